// Walks through the wire format of an XSpace (field numbers: xplane.proto).
#include "harness/xplane/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>
#include <vector>

#include "harness/xplane/schema.h"
#include "harness/xplane/wire.h"

namespace twinrun::xplane {
namespace {

using wire::Fields;

constexpr const char* kFix =
    "give a *.xplane.pb of jax.profiler, XProf or TensorBoard: LOGDIR/plugins/profile/RUN/";

// The stats that matter, as numbers.
enum class Known : uint8_t {
  kOther,
  kHloOp,
  kModule,
  kFrameworkOp,
  kCategory,
  kHloProto,
  kDeviceType,
  kProgram,
  kStepNum,
  kGroup,
  kFlops,
  kBytes,
  kStage,
  kDeviceDuration
};
constexpr std::array<std::pair<std::string_view, Known>, 14> kKnown = {
    {{kHloOp, Known::kHloOp},
     {kHloModule, Known::kModule},
     {kFrameworkOp, Known::kFrameworkOp},
     {kCategory, Known::kCategory},
     {kHloProto, Known::kHloProto},
     {"hlo_proto", Known::kHloProto},
     {kDeviceType, Known::kDeviceType},
     {kProgramId, Known::kProgram},
     {kStepNum, Known::kStepNum},
     {kGroupId, Known::kGroup},
     {kFlops, Known::kFlops},
     {kBytes, Known::kBytes},
     {kStageName, Known::kStage},
     {kDeviceDuration, Known::kDeviceDuration}}};

struct Name {
  std::string_view text;
  Known known = Known::kOther;
};

struct Metadata {
  std::string_view name;
  std::string_view bytes;  // of the message
  Stats stats;
};

constexpr size_t kMaxLines = 1'000'000;  // of a plane, and planes of a space

// The value of a field of XStat as a number, whatever its type is.
double number_of(const Fields& field) {
  if (field.number() == 2) return std::isfinite(field.real()) ? field.real() : 0;
  return field.number() == 3 ? static_cast<double>(field.value())
                             : static_cast<double>(field.integer());
}

int64_t integer_of(const Fields& field) { return field.number() == 2 ? 0 : field.integer(); }

class Walker {
 public:
  Walker(const std::string& where, const Visitor& visitor) : where_(where), visitor_(visitor) {}
  Status run(std::string_view bytes);

 private:
  struct BadCapture {
    std::string what;
  };
  [[noreturn]] static void refuse(std::string what) { throw BadCapture{std::move(what)}; }
  // Throws unless all fields of the message could be read.
  static void expect_whole(const Fields& fields, std::string_view what) {
    if (fields.broken()) refuse(fmt::format("{} is cut short or broken", what));
  }
  void plane(std::string_view bytes);
  void line(const Plane& plane, std::string_view bytes, size_t index);
  void add_stat(Stats& stats, std::string_view bytes) const;
  // All stats of a message, which it has in the field of this number.
  void add_stats(Stats& stats, std::string_view message, uint64_t number) const {
    Fields fields(message);
    while (fields.next()) {
      if (fields.number() == number) add_stat(stats, fields.bytes());
    }
  }
  void add_name(std::string_view entry);
  void add_metadata(std::string_view entry);
  static int64_t begin_of(std::string_view line);

  const std::string& where_;
  const Visitor& visitor_;
  int64_t base_ = std::numeric_limits<int64_t>::max();  // ns
  size_t events_ = 0;
  std::unordered_map<int64_t, Name> names_;  // of stats of this plane
  std::map<int64_t, Metadata> metadata_;     // of events of this plane
};

void Walker::add_name(std::string_view entry) {
  int64_t id = 0;
  Name name;
  Fields pair(entry);
  while (pair.next()) {
    if (pair.number() == 1) id = pair.integer();
    if (pair.number() != 2) continue;
    Fields fields(pair.bytes());
    while (fields.next()) {
      if (fields.number() == 2) name.text = fields.bytes();
    }
    expect_whole(fields, "the name of a stat");
  }
  expect_whole(pair, "the name of a stat");
  for (const auto& [text, known] : kKnown) {
    if (name.text == text) name.known = known;
  }
  names_[id] = name;
  if (names_.size() > kMaxNames)
    refuse(fmt::format("a plane has more than {} names of stats", kMaxNames));
}

void Walker::add_metadata(std::string_view entry) {
  int64_t id = 0;
  Metadata metadata;
  Fields pair(entry);
  while (pair.next()) {
    if (pair.number() == 1) id = pair.integer();
    if (pair.number() != 2) continue;
    metadata.bytes = pair.bytes();
    std::string_view display;
    Fields fields(metadata.bytes);
    while (fields.next()) {
      if (fields.number() == 2) metadata.name = fields.bytes();
      if (fields.number() == 4) display = fields.bytes();
    }
    expect_whole(fields, "the name of an event");
    if (!display.empty()) metadata.name = display;
  }
  expect_whole(pair, "the name of an event");
  metadata_[id] = metadata;
  if (metadata_.size() > kMaxNames)
    refuse(fmt::format("a plane has more than {} names of events", kMaxNames));
}

void Walker::add_stat(Stats& stats, std::string_view bytes) const {
  int64_t id = 0;
  Fields fields(bytes), value("");
  while (fields.next()) {
    if (fields.number() == 1)
      id = fields.integer();
    else
      value = fields;
  }
  expect_whole(fields, "a stat");
  const auto named = names_.find(id);
  if (named == names_.end() || named->second.known == Known::kOther) return;
  std::string_view text = value.bytes();
  if (value.number() == 7) {
    const auto referred = names_.find(value.integer());
    if (referred != names_.end()) text = referred->second.text;
  }
  switch (named->second.known) {
    case Known::kOther:
      break;
    case Known::kHloOp:
      stats.hlo_op = text;
      break;
    case Known::kModule:
      stats.module = text;
      break;
    case Known::kFrameworkOp:
      stats.framework_op = text;
      break;
    case Known::kCategory:
      stats.category = text;
      break;
    case Known::kHloProto:
      stats.hlo_proto = text;
      break;
    case Known::kDeviceType:
      stats.device_type = text;
      break;
    case Known::kProgram:
      stats.program = integer_of(value);
      break;
    case Known::kStepNum:
      stats.step = integer_of(value);
      break;
    case Known::kGroup:
      stats.group = integer_of(value);
      break;
    case Known::kFlops:
      stats.flops = number_of(value);
      break;
    case Known::kBytes:
      stats.bytes = number_of(value);
      break;
    case Known::kDeviceDuration:
      stats.device_duration = integer_of(value);
      break;
    case Known::kStage:
      stats.input_stage = true;
      break;
  }
}

int64_t Walker::begin_of(std::string_view line) {
  int64_t begin = 0;
  Fields fields(line);
  while (fields.next()) {
    if (fields.number() == 3) begin = fields.integer();
  }
  return begin;
}

void Walker::line(const Plane& plane, std::string_view bytes, size_t index) {
  Line line{.index = index};
  bool any = false;
  Fields head(bytes);
  while (head.next()) {
    if (head.number() == 2) line.name = head.bytes();
    any = any || head.number() == 4;
  }
  expect_whole(head, "a line");
  if (!any) return;
  // No line begins before base_, so that the difference fits into 64 bits without a sign.
  const auto after = static_cast<uint64_t>(begin_of(bytes)) - static_cast<uint64_t>(base_);
  const double begin = static_cast<double>(after) * 1e-9;
  Fields fields(bytes);
  while (fields.next()) {
    if (fields.number() != 4) continue;
    if (++events_ > kMaxEvents)
      refuse(fmt::format("it has more than {} events; record fewer steps", kMaxEvents));
    Event event;
    double offset = 0, duration = 0;
    Fields of_event(fields.bytes());
    int64_t id = 0;
    while (of_event.next()) {
      if (of_event.number() == 1) id = of_event.integer();
      if (of_event.number() == 2) offset = static_cast<double>(of_event.integer()) * 1e-12;
      if (of_event.number() == 3) duration = static_cast<double>(of_event.integer()) * 1e-12;
    }
    expect_whole(of_event, "an event");
    if (const auto found = metadata_.find(id); found != metadata_.end()) {
      event.name = found->second.name;
      event.stats = found->second.stats;
    }
    add_stats(event.stats, fields.bytes(), 4);
    event.begin = begin + offset;
    if (event.stats.device_duration)
      duration = static_cast<double>(*event.stats.device_duration) * 1e-12;
    event.end = event.begin + std::max(0.0, duration);
    visitor_.event(plane, line, event);
  }
}

void Walker::plane(std::string_view bytes) {
  names_.clear();
  metadata_.clear();
  Plane plane;
  std::vector<std::string_view> lines;
  Fields fields(bytes);
  while (fields.next()) {
    if (fields.number() == 2) plane.name = fields.bytes();
    if (fields.number() == 3) lines.push_back(fields.bytes());
    if (fields.number() == 4) add_metadata(fields.bytes());
    if (fields.number() == 5) add_name(fields.bytes());
    if (lines.size() > kMaxLines) refuse(fmt::format("a plane has more than {} lines", kMaxLines));
  }
  expect_whole(fields, "a plane");
  add_stats(plane.stats, bytes, 6);
  for (auto& [id, metadata] : metadata_) add_stats(metadata.stats, metadata.bytes, 5);
  if (visitor_.plane) visitor_.plane(plane);
  if (visitor_.module) {
    for (const auto& [id, metadata] : metadata_) {
      Event event{.name = metadata.name, .stats = metadata.stats};
      if (event.stats.program == 0) event.stats.program = id;
      if (!event.stats.hlo_proto.empty()) visitor_.module(event);
    }
  }
  if (!visitor_.event) return;
  for (size_t i = 0; i < lines.size(); ++i) line(plane, lines[i], i);
}

Status Walker::run(std::string_view bytes) {
  if (bytes.size() > kMaxBytes) {
    return Error{fmt::format("has {} MiB; allowed: {}", bytes.size() >> 20, kMaxBytes >> 20),
                 where_, "record fewer steps"};
  }
  if (bytes.starts_with("\x1F\x8B") || bytes.starts_with("{"))
    return Error{bytes.starts_with("{") ? "is JSON, not an XSpace" : "is gzip, not an XSpace",
                 where_, kFix};
  try {
    std::vector<std::string_view> planes;
    Fields space(bytes);
    while (space.next()) {
      if (space.number() == 1) planes.push_back(space.bytes());
      if (space.number() == 4 && visitor_.host) visitor_.host(space.bytes());
      if (planes.size() > kMaxLines) refuse(fmt::format("has more than {} planes", kMaxLines));
    }
    if (space.broken())
      refuse(planes.empty() ? "is not an XSpace" : "is cut short or broken after its last plane");
    if (planes.empty()) refuse("has no planes");
    for (const std::string_view plane : planes) {
      Fields fields(plane);
      while (fields.next()) {
        if (fields.number() == 3) base_ = std::min(base_, begin_of(fields.bytes()));
      }
    }
    for (const std::string_view bytes_of_plane : planes) plane(bytes_of_plane);
  } catch (const BadCapture& bad) {
    return Error{bad.what, where_, kFix};
  }
  return Ok{};
}

}  // namespace

Status walk(std::string_view bytes, const std::string& where, const Visitor& visitor) {
  return Walker(where, visitor).run(bytes);
}

}  // namespace twinrun::xplane
