// Finds steps, ops, idle time and input in a recorded profile.
#include "harness/xplane/read.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "harness/xplane/hlo_names.h"
#include "harness/xplane/schema.h"
#include "harness/xplane/space.h"
#include "harness/xplane/timeline.h"
#include "reports/text.h"
#include "scenarios/data/byte_reader.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using xplane::Event;
using xplane::Line;
using xplane::Plane;

constexpr size_t kMaxOps = 200'000;  // different ones
constexpr size_t kMaxSteps = 1'000'000;
constexpr size_t kMaxText = 300;  // bytes of a name that is kept

std::string kept(std::string_view text) { return text::clean(text.substr(0, kMaxText)); }

// Lines of a GPU that XProf derives from others.
bool is_derived(std::string_view line) {
  static constexpr std::string_view kDerived[] = {
      xplane::kSteps,  xplane::kModules,        xplane::kOps,     xplane::kScopes,
      "Framework Ops", "TensorFlow Name Scope", "TensorFlow Ops", "Source code",
      "Launch Stats",  "Async XLA Ops",         "XLA TraceMe"};
  return std::ranges::find(kDerived, line) != std::end(kDerived);
}

// Events of the host in which it waits for a batch or hands one over. XProf looks for the same ones
// (ClassifyCpuEvent in xplane_to_step_events.cc).
bool is_input(const Event& event) {
  return event.stats.input_stage || event.name.starts_with("IteratorGetNext") ||
         event.name.starts_with("InfeedEnqueue") || event.name.starts_with("MemcpyH2D") ||
         event.name.starts_with("MEMCPYHtoD");
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 19 &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

struct StepSpan : Span {
  int64_t step = 0;
};

// One device: a TPU core, a GPU, or all threads of a CPU.
struct Device {
  std::map<size_t, std::vector<OpSpan>> lines;
  std::vector<StepSpan> steps;
  std::map<std::string, std::vector<StepSpan>> modules;  // executions of programs
};

class Reader {
 public:
  explicit Reader(const std::string& where) : where_(where) {}
  Result<Capture> run(std::string_view bytes);

 private:
  enum class Kind : uint8_t { kTpu, kGpu, kCpu };
  Kind kind() const;
  void on_event(const Plane& plane, const Line& line, const Event& event);
  void on_host(const Line& line, const Event& event);
  void add_op(Device& device, const Line& line, const Event& event, std::string_view name);
  void choose_steps(const Device& device);
  void set_whole(const std::vector<Device*>& devices);
  void measure(const std::vector<Device*>& devices);
  void add_names(std::string_view bytes);
  void add_notes();

  const std::string& where_;
  Capture out_;
  std::map<std::string, Device> tpus_, gpus_;
  Device cpu_;
  std::map<int64_t, StepSpan> host_steps_;
  std::vector<Span> input_;  // of the host
  std::map<std::pair<int64_t, std::string>, size_t> op_numbers_;
  std::vector<int64_t> programs_;  // of ops
  bool too_many_ops_ = false, too_many_steps_ = false;
  bool host_marks_ = false;  // the steps
  Span whole_;
};

void Reader::add_op(Device& device, const Line& line, const Event& event, std::string_view name) {
  auto [at, fresh] = op_numbers_.try_emplace({event.stats.program, kept(name)}, out_.ops.size());
  if (fresh) {
    if (out_.ops.size() >= kMaxOps) {
      op_numbers_.erase(at);
      too_many_ops_ = true;
      return;
    }
    CaptureOp op;
    op.name = at->first.second;
    op.program = kept(event.stats.module);
    op.category = kept(event.stats.category);
    op.flops = event.stats.flops;
    op.bytes = event.stats.bytes;
    op.paths = places_of(event.stats.framework_op);
    out_.ops.push_back(std::move(op));
    programs_.push_back(event.stats.program);
  }
  OpSpan span;
  span.begin = event.begin;
  span.end = event.end;
  span.op = at->second;
  device.lines[line.index].push_back(span);
}

void Reader::on_host(const Line& line, const Event& event) {
  if (!event.stats.hlo_op.empty()) return add_op(cpu_, line, event, event.stats.hlo_op);
  if (is_input(event)) input_.push_back({event.begin, event.end});
  // What jax.profiler.StepTraceAnnotation and TensorFlow's Trace record.
  if (!event.stats.step || event.end <= event.begin || event.stats.input_stage) return;
  StepSpan step{{event.begin, event.end}, *event.stats.step};
  auto [at, fresh] = host_steps_.try_emplace(step.step, step);
  if (!fresh && step.end - step.begin > at->second.end - at->second.begin) at->second = step;
  if (host_steps_.size() > kMaxSteps) {
    host_steps_.erase(at);
    too_many_steps_ = true;
  }
}

void Reader::on_event(const Plane& plane, const Line& line, const Event& event) {
  if (plane.name == xplane::kHostPlane) return on_host(line, event);
  const bool tpu = plane.name.starts_with(xplane::kTpuPlane) &&
                   is_number(plane.name.substr(xplane::kTpuPlane.size()));
  const bool gpu = plane.name.starts_with(xplane::kGpuPlane);
  if (!tpu && !gpu) return;
  Device& device = (tpu ? tpus_ : gpus_)[kept(plane.name)];
  if (line.name == xplane::kSteps) {
    if (device.steps.size() >= kMaxSteps) {
      too_many_steps_ = true;
      return;
    }
    const auto index = static_cast<int64_t>(device.steps.size());
    device.steps.push_back({{event.begin, event.end},
                            is_number(event.name) ? std::stoll(std::string(event.name))
                                                  : event.stats.group.value_or(index)});
  } else if (line.name == xplane::kModules) {
    std::vector<StepSpan>& runs = device.modules[kept(event.name)];
    runs.push_back({{event.begin, event.end}, static_cast<int64_t>(runs.size())});
  } else if (tpu ? line.name == xplane::kOps : !is_derived(line.name)) {
    add_op(device, line, event, event.stats.hlo_op.empty() ? event.name : event.stats.hlo_op);
  }
}

Reader::Kind Reader::kind() const {
  return !tpus_.empty() ? Kind::kTpu : !gpus_.empty() ? Kind::kGpu : Kind::kCpu;
}

// Steps as the device marks them, else as the host does, else the executions of the program that
// takes the longest.
void Reader::choose_steps(const Device& device) {
  std::vector<StepSpan> steps;
  if (!device.steps.empty()) {
    steps = device.steps;
    out_.steps_from = "the device's line of steps";
  } else if (!host_steps_.empty()) {
    for (const auto& [number, step] : host_steps_) steps.push_back(step);
    out_.steps_from = "step annotations of the host";
    host_marks_ = true;
  } else {
    double longest = 0;
    for (const auto& [name, runs] : device.modules) {
      double sum = 0;
      for (const StepSpan& run : runs) sum += run.end - run.begin;
      if (sum <= longest) continue;
      longest = sum;
      steps = runs;
      out_.steps_from = "executions of " + name;
    }
  }
  std::ranges::stable_sort(steps, {}, &Span::begin);
  double sum = 0, squares = 0;
  for (const StepSpan& step : steps) {
    const double seconds = step.end - step.begin;
    out_.steps.push_back({step.step, seconds});
    sum += seconds;
    out_.shortest = out_.steps.size() == 1 ? seconds : std::min(out_.shortest, seconds);
    out_.longest = std::max(out_.longest, seconds);
  }
  if (steps.empty()) return;
  const auto n = static_cast<double>(steps.size());
  out_.step_seconds = sum / n;
  for (const StepSpan& step : steps)
    squares += std::pow(step.end - step.begin - out_.step_seconds, 2);
  // Captures count picoseconds; what is less comes from binary64.
  const bool alike = out_.longest - out_.shortest < 1e-12;
  out_.deviation = alike ? 0 : std::sqrt(squares / (n - 1));
  whole_ = steps.front();
  for (const StepSpan& step : steps) whole_.end = std::max(whole_.end, step.end);
}

// Work that the host has enqueued in its last step may end after it, so what the host marks lasts
// to the last op.
void Reader::set_whole(const std::vector<Device*>& devices) {
  const bool to_last_op = out_.steps.empty() || host_marks_;
  bool any = !out_.steps.empty();
  for (const Device* device : devices) {
    for (const auto& [index, line] : device->lines) {
      for (const OpSpan& span : line) {
        if (!any) whole_ = span;
        any = true;
        if (out_.steps.empty()) whole_.begin = std::min(whole_.begin, span.begin);
        if (to_last_op) whole_.end = std::max(whole_.end, span.end);
      }
    }
  }
  out_.wall_seconds = whole_.end - whole_.begin;
}

void Reader::measure(const std::vector<Device*>& devices) {
  std::vector<double> self(out_.ops.size());
  const std::vector<Span> whole = merged({whole_});
  const std::vector<Span> input = intersection(merged(std::move(input_)), whole);
  out_.input_known = !input.empty();
  double busy_seconds = 0, input_seconds = 0;
  for (Device* device : devices) {
    std::vector<Span> all, infeed;
    for (auto& [index, line] : device->lines) {
      set_self_times(line);
      for (const OpSpan& span : line) {
        all.push_back(span);
        if (out_.ops[span.op].category == xplane::kInfeed) infeed.push_back(span);
        if (span.begin < whole_.begin || span.begin >= whole_.end) continue;
        self[span.op] += span.self;
        ++out_.ops[span.op].count;
      }
    }
    const std::vector<Span> ran = intersection(merged(std::move(all)), whole);
    // A device without ops that wait for input waits where it is idle and the host is at the input.
    const bool has_infeed = !infeed.empty();
    const double waited = has_infeed ? total(intersection(merged(std::move(infeed)), whole))
                                     : total(input) - total(intersection(input, ran));
    out_.input_known = out_.input_known || has_infeed;
    input_seconds += waited;
    busy_seconds += total(ran) - (has_infeed ? waited : 0);
  }
  const auto n = static_cast<double>(devices.size());
  const auto steps = static_cast<double>(std::max<size_t>(1, out_.steps.size()));
  if (out_.wall_seconds > 0) {
    out_.busy_share = busy_seconds / n / out_.wall_seconds;
    out_.input_share = input_seconds / n / out_.wall_seconds;
    out_.idle_share = std::max(0.0, 1 - out_.busy_share - out_.input_share);
  }
  for (size_t i = 0; i < out_.ops.size(); ++i) {
    CaptureOp& op = out_.ops[i];
    op.seconds = self[i] / n / steps;
    if (out_.wall_seconds > 0) op.share = self[i] / n / out_.wall_seconds;
  }
}

// Opcodes and places in the source, from the HLO modules of the capture.
void Reader::add_names(std::string_view bytes) {
  std::map<int64_t, std::map<std::string, CaptureOp*>> ops;
  for (size_t i = 0; i < out_.ops.size(); ++i)
    ops[programs_[i]].emplace(out_.ops[i].name, &out_.ops[i]);
  xplane::Visitor visitor;
  visitor.module = [&](const Event& module) {
    if (const auto found = ops.find(module.stats.program); found != ops.end())
      add_hlo_names(module.stats.hlo_proto, found->second);
  };
  // The capture was walked through before, so there is no error left to find.
  (void)xplane::walk(bytes, where_, visitor);
}

void Reader::add_notes() {
  if (out_.steps.empty())
    out_.notes.emplace_back(
        "the capture marks no steps, so times are of all of it; mark them with "
        "jax.profiler.StepTraceAnnotation(name, step_num=i)");
  if (!out_.input_known)
    out_.notes.emplace_back(
        "the capture has no events of input (infeed, IteratorGetNext, copies from the host), so "
        "waiting for it counts as idle");
  if (kind() == Kind::kCpu)
    out_.notes.emplace_back(
        "ops ran on the threads of a CPU, some at the same time: their times may add up to more "
        "than a step");
  if (too_many_ops_)
    out_.notes.push_back(fmt::format("only the first {} different ops are counted", kMaxOps));
  if (too_many_steps_)
    out_.notes.push_back(fmt::format("only {} steps of a device are counted", kMaxSteps));
}

Result<Capture> Reader::run(std::string_view bytes) {
  xplane::Visitor visitor;
  visitor.host = [&](std::string_view host) { out_.host = kept(host); };
  visitor.plane = [&](const Plane& plane) {
    if (plane.name.starts_with(xplane::kTpuPlane) && !plane.stats.device_type.empty())
      out_.device = kept(plane.stats.device_type);
  };
  visitor.event = [&](const Plane& plane, const Line& line, const Event& event) {
    on_event(plane, line, event);
  };
  TWINRUN_RETURN_IF_ERROR(xplane::walk(bytes, where_, visitor));
  if (out_.ops.empty())
    return Error{
        "has no ops: no events of a TPU or GPU, and none of XLA on the CPU", where_,
        "record some steps after the first, which compiles; ops of TensorFlow on the CPU are read "
        "where XLA compiles them (jit_compile=True)"};
  add_names(bytes);
  out_.file = where_;
  if (kind() != Kind::kTpu || out_.device.empty())
    out_.device = kind() == Kind::kTpu ? "TPU" : kind() == Kind::kGpu ? "GPU" : "CPU";
  std::vector<Device*> devices;
  for (auto& [name, device] : kind() == Kind::kGpu ? gpus_ : tpus_) devices.push_back(&device);
  if (devices.empty()) devices.push_back(&cpu_);
  out_.devices = static_cast<int>(devices.size());
  choose_steps(*devices.front());
  set_whole(devices);
  measure(devices);
  add_notes();
  std::erase_if(out_.ops, [](const CaptureOp& op) { return op.count == 0; });
  std::ranges::stable_sort(out_.ops, std::greater{}, &CaptureOp::seconds);
  return std::move(out_);
}

// The one capture below a folder.
Result<std::string> capture_in(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().string().ends_with(".xplane.pb")) found.push_back(it->path().string());
  }
  if (error) return Error{error.message(), folder, ""};
  std::ranges::sort(found);
  if (found.size() == 1) return found[0];
  if (found.empty())
    return Error{"holds no *.xplane.pb", folder, "give the folder that the profiler wrote to"};
  return Error{fmt::format("holds {} captures, the last of them {}", found.size(), found.back()),
               folder, "give one of these files"};
}

}  // namespace

Result<Capture> read_xplane_bytes(std::string_view bytes, const std::string& where) {
  return Reader(where).run(bytes);
}

Result<Capture> read_xplane(const std::string& path) {
  std::string file = path;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    TWINRUN_ASSIGN(file, capture_in(path));
  }
  TWINRUN_ASSIGN(const std::string bytes, data::ByteReader::read_whole(file, xplane::kMaxBytes));
  return read_xplane_bytes(bytes, file);
}

}  // namespace twinrun
