// Writes a profile as an XSpace: a plane for each core with its steps, layers and ops, and one for
// the host with the stages of its input.
#include "harness/xplane/write.h"

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <xplane.pb.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "checkpoints/container/atomic_file.h"
#include "harness/xplane/hlo_names.h"
#include "harness/xplane/schema.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using xplane::XEvent;
using xplane::XEventMetadata;
using xplane::XLine;
using xplane::XPlane;
using xplane::XStat;

constexpr int64_t kProgram = 1;  // of the one program that a profile is of
// All are alike, and the deviation of two equal numbers is 0 in every arithmetic; XProf shows that
// of ten as the root of a rounding error, "-nan".
constexpr size_t kModelledSteps = 2;
constexpr int kMaxCores = 8;                   // all cores of a modelled profile do the same
constexpr size_t kMaxEvents = 1'000'000;       // of ops: some 30 MB
constexpr std::string_view kHost = "twinrun";  // the name of the host, and of the file

int64_t picoseconds(double seconds) { return std::llround(std::max(0.0, seconds) * 1e12); }

// A plane whose stats and events refer to their names by number.
class PlaneBuilder {
 public:
  PlaneBuilder(XPlane& plane, int64_t id, std::string_view name) : plane_(plane) {
    plane_.set_id(id);
    plane_.set_name(std::string(name));
  }
  // One more stat of a plane, an event or the metadata of an event.
  template <typename Owner>
  XStat& stat(Owner& owner, std::string_view name) {
    XStat& stat = *owner.add_stats();
    auto [at, fresh] = stats_.try_emplace(std::string(name), stats_.size() + 1);
    if (fresh) {
      auto& metadata = (*plane_.mutable_stat_metadata())[at->second];
      metadata.set_id(at->second);
      metadata.set_name(at->first);
    }
    stat.set_metadata_id(at->second);
    return stat;
  }
  template <typename Owner>
  void text(Owner& owner, std::string_view name, const std::string& value) {
    stat(owner, name).set_str_value(text::printable(value));
  }
  template <typename Owner>
  void number(Owner& owner, std::string_view name, int64_t value) {
    stat(owner, name).set_int64_value(value);
  }
  XEventMetadata& metadata() {
    const int64_t id = static_cast<int64_t>(plane_.event_metadata_size()) + 1;
    auto& metadata = (*plane_.mutable_event_metadata())[id];
    metadata.set_id(id);
    return metadata;
  }
  XLine& line(std::string_view name) {
    XLine& line = *plane_.add_lines();
    line.set_id(plane_.lines_size());
    line.set_name(std::string(name));
    line.set_display_name(std::string(name));
    return line;
  }
  XPlane& get() { return plane_; }

 private:
  XPlane& plane_;
  std::map<std::string, int64_t> stats_;
};

XEvent& add_event(XLine& line, const XEventMetadata& metadata, int64_t begin, int64_t end) {
  XEvent& event = *line.add_events();
  event.set_metadata_id(metadata.id());
  event.set_offset_ps(begin);
  event.set_duration_ps(end - begin);
  return event;
}

// The steps that are written. A modelled profile shows some around the end of a loop; XProf
// averages over what it sees, so each of its steps is the average one.
std::vector<ProfileStep> written_steps(const Profile& p) {
  if (p.source != "modelled") {
    const size_t most = std::max<size_t>(1, kMaxEvents / std::max<size_t>(1, p.ops.size()));
    return {p.steps.begin(),
            p.steps.begin() + static_cast<int64_t>(std::min(most, p.steps.size()))};
  }
  std::vector<ProfileStep> steps(kModelledSteps, p.average);
  const int64_t first = p.steps.empty() ? 0 : p.steps.front().step;
  for (size_t i = 0; i < steps.size(); ++i) steps[i].step = first + static_cast<int64_t>(i);
  return steps;
}

class Writer {
 public:
  Writer(const Profile& p, const std::string& hlo) : p_(p), hlo_(hlo), steps_(written_steps(p)) {
    for (const ProfileOp& op : p.ops) op_seconds_ += op.seconds;
  }
  xplane::XSpace run();

 private:
  void core(XPlane& plane, int index);
  void host(XPlane& plane);
  void modules(XPlane& plane) const;
  std::string module_name() const {
    return fmt::format("{}({})", text::printable(p_.scenario), kProgram);
  }
  XEventMetadata& op_metadata(PlaneBuilder& plane, const ProfileOp& op, int64_t symbol) const;

  const Profile& p_;
  const std::string& hlo_;
  std::vector<ProfileStep> steps_;
  double op_seconds_ = 0;
};

XEventMetadata& Writer::op_metadata(PlaneBuilder& plane, const ProfileOp& op,
                                    int64_t symbol) const {
  XEventMetadata& m = plane.metadata();
  // XProf takes what stands before the first " = " for the name.
  const std::string name = hlo_name(op.name), own = op.name + " = ";
  m.set_name(name + " = " +
             text::printable(op.expression.starts_with(own)
                                 ? op.expression.substr(own.size())
                                 : fmt::format("{} of\n{}", op.category, op.expression)));
  m.set_display_name(name);
  plane.number(m, xplane::kProgramId, kProgram);
  plane.number(m, xplane::kSymbolId, symbol);
  plane.text(m, xplane::kCategory, op.category);
  // XProf reads name:type, and accepts no other colon.
  std::string framework_op = op.name;
  std::ranges::replace(framework_op, ':', '_');
  plane.text(m, xplane::kFrameworkOp, framework_op + ":" + op.kind);
  if (op.flops > 0) {
    plane.number(m, xplane::kFlops, std::llround(op.flops));
    plane.number(m, xplane::kModelFlops, std::llround(op.flops));
  }
  if (op.bytes > 0) {
    plane.number(m, xplane::kBytes, std::llround(op.bytes));
    xplane::MemoryAccessBreakdown breakdown;
    auto& all = *breakdown.add_memory_accessed();
    all.set_operation_type(1);
    all.set_memory_space(1);
    all.set_bytes_accessed(static_cast<uint64_t>(std::llround(op.bytes)));
    plane.stat(m, xplane::kBytesOf).set_bytes_value(breakdown.SerializeAsString());
  }
  return m;
}

void Writer::core(XPlane& into, int index) {
  PlaneBuilder plane(into, index, fmt::format("{}{}", xplane::kTpuPlane, index));
  plane.text(into, xplane::kDeviceType, p_.machine);
  plane.stat(into, xplane::kPeakTeraflops).set_double_value(p_.peak_flops / 1e12);
  plane.stat(into, xplane::kPeakGigabytes).set_double_value(p_.peak_bandwidth / 1e9);
  xplane::CoreDetails details;
  details.set_hostname(std::string(kHost));
  const auto core = static_cast<uint32_t>(index);
  details.set_device_ordinal(core);
  details.set_core_num(core % 2);
  details.set_local_chip_id(core / 2);
  details.set_global_chip_id(core / 2);
  details.set_global_core_id(core);
  plane.stat(into, xplane::kCoreDetails).set_bytes_value(details.SerializeAsString());

  ProfileOp wait;
  wait.name = wait.kind = wait.category = std::string(xplane::kInfeed);
  wait.expression = "waiting for input";
  const XEventMetadata& infeed = op_metadata(plane, wait, 1);
  std::vector<const XEventMetadata*> ops, layers;
  for (const ProfileOp& op : p_.ops) {
    ops.push_back(&op_metadata(plane, op, static_cast<int64_t>(ops.size()) + 2));
    XEventMetadata& layer = plane.metadata();
    layer.set_name(text::printable(op.layer));
    layers.push_back(&layer);
  }
  XEventMetadata& module = plane.metadata();
  module.set_name(module_name());
  plane.number(module, xplane::kProgramId, kProgram);

  XLine &step_line = plane.line(xplane::kSteps), &module_line = plane.line(xplane::kModules);
  XLine &scope_line = plane.line(xplane::kScopes), &op_line = plane.line(xplane::kOps);
  int64_t first = 0;  // of the step, in picoseconds
  for (size_t index = 0; index < steps_.size(); ++index) {
    const ProfileStep& step = steps_[index];
    const int64_t end = first + picoseconds(step.seconds());
    const auto at = [&](double seconds) { return std::min(end, first + picoseconds(seconds)); };
    const auto add = [&](XLine& line, const XEventMetadata& metadata, double begin,
                         double stop) -> XEvent& {
      XEvent& event = add_event(line, metadata, at(begin), at(stop));
      // XProf numbers the events in the line of steps from 0 and looks for that number in ops.
      plane.number(event, xplane::kGroupId, static_cast<int64_t>(index));
      return event;
    };
    XEventMetadata& number = plane.metadata();
    number.set_name(std::to_string(step.step));
    plane.number(add(step_line, number, 0, step.seconds()), xplane::kStepNum, step.step);
    if (step.input > 0) add(op_line, infeed, 0, step.input);
    const double busy = step.compute + step.all_reduce;
    const double scale = op_seconds_ > 0 ? busy / op_seconds_ : 0;
    add(module_line, module, step.input, step.input + busy);
    double now = step.input, layer_begin = now;
    for (size_t i = 0; i < p_.ops.size(); ++i) {
      const double next = now + p_.ops[i].seconds * scale;
      add(op_line, *ops[i], now, next);
      now = next;
      if (i + 1 == p_.ops.size() || p_.ops[i + 1].layer != p_.ops[i].layer) {
        add(scope_line, *layers[i], layer_begin, now);
        layer_begin = now;
      }
    }
    first = end;
  }
}

// One line: its stages follow one another, as the work for one batch does. What is done once
// belongs to no share and is left out. Between two steps the host may be busy with the loop.
void Writer::host(XPlane& into) {
  PlaneBuilder plane(into, kMaxCores + 1, xplane::kHostPlane);
  if (p_.source == "modelled") {
    plane.stat(into, xplane::kMatrixPercent).set_double_value(100 * p_.matrix_utilisation);
    plane.stat(into, xplane::kMemoryPercent).set_double_value(100 * p_.memory_utilisation);
  }
  XLine& line = plane.line("input pipeline");
  std::vector<const XEventMetadata*> stages;
  for (const InputStage& stage : p_.input.stages) {
    XEventMetadata& m = plane.metadata();
    m.set_name(text::printable(stage.name));
    stages.push_back(&m);
  }
  XEventMetadata& loop = plane.metadata();
  loop.set_name("between_steps:HostLoop");  // name:type, which XProf counts as busy
  int64_t first = 0, now = 0;
  for (const ProfileStep& step : steps_) {
    now = std::max(now, first);
    for (size_t i = 0; i < stages.size(); ++i) {
      const InputStage& stage = p_.input.stages[i];
      const int64_t end = now + picoseconds(stage.seconds);
      if (stage.once || end == now) continue;
      XEvent& event = add_event(line, *stages[i], now, end);
      plane.number(event, xplane::kStageId, static_cast<int64_t>(i) + 1);
      plane.text(event, xplane::kStageName, stage.name);
      plane.text(event, xplane::kStageCategory, std::string(host_category(stage)));
      plane.text(event, "what", stage.what);
      now = end;
    }
    first += picoseconds(step.seconds());
    const int64_t begin = std::max(now, first - picoseconds(step.host));
    if (begin < first) {
      add_event(line, loop, begin, first);
      now = first;
    }
  }
}

void Writer::modules(XPlane& into) const {
  PlaneBuilder plane(into, kMaxCores + 2, xplane::kModulePlane);
  XEventMetadata& module = plane.metadata();
  module.set_name(module_name());
  plane.stat(module, xplane::kHloProto).set_bytes_value(hlo_);
}

xplane::XSpace Writer::run() {
  xplane::XSpace space;
  space.add_hostnames(std::string(kHost));
  // Measured cores take turns on the machine's threads: their times are of all cores together.
  const int cores = p_.source == "modelled" ? std::clamp(p_.cores, 1, kMaxCores) : 1;
  for (int i = 0; i < cores; ++i) core(*space.add_planes(), i);
  host(*space.add_planes());
  if (!hlo_.empty()) modules(*space.add_planes());
  return space;
}

}  // namespace

std::string to_xplane(const Profile& profile, const std::string& hlo_proto) {
  const xplane::XSpace space = Writer(profile, hlo_proto).run();
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.SetSerializationDeterministic(true);  // maps in the order of their keys
  space.SerializeToCodedStream(&out);
  out.Trim();
  return bytes;
}

std::string xplane_path(const Profile& profile) {
  return fmt::format("plugins/profile/{}/{}.xplane.pb", profile.source, kHost);
}

Status write_xplane(const Profile& profile, const std::string& hlo_proto, const std::string& dir) {
  const std::filesystem::path path = std::filesystem::path(dir) / xplane_path(profile);
  std::error_code failed;
  std::filesystem::create_directories(path.parent_path(), failed);
  if (failed)
    return Error{failed.message(), path.parent_path().string(), "name a folder that can be made"};
  return write_file_atomically(path.string(), to_xplane(profile, hlo_proto));
}

}  // namespace twinrun
