// Walks through an XSpace, event by event, with the names of events and stats resolved. Keeps
// nothing but the names of one plane at a time; texts refer to the bytes that are read.
//
//   xplane::Visitor visitor;
//   visitor.event = [&](const Plane& plane, const Line& line, const Event& event) { ... };
//   TWINRUN_RETURN_IF_ERROR(xplane::walk(bytes, "host.xplane.pb", visitor));
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "program/base/result.h"

namespace twinrun::xplane {

// What a capture may hold; more is refused.
inline constexpr size_t kMaxBytes = size_t{1} << 30;
inline constexpr size_t kMaxEvents = 20'000'000;
inline constexpr size_t kMaxNames = 2'000'000;  // of events and stats, in one plane

// The stats that are read, of an event with those of its metadata, or of a plane. Missing ones are
// empty, 0 or nothing.
struct Stats {
  std::string_view hlo_op, module, framework_op, category, hlo_proto, device_type;
  int64_t program = 0;
  std::optional<int64_t> device_duration;  // picoseconds
  std::optional<int64_t> step, group;      // XProf numbers the events of a step
  double flops = 0, bytes = 0;
  bool input_stage = false;
};

struct Plane {
  std::string_view name;
  Stats stats;
};

struct Line {
  std::string_view name;
  size_t index = 0;  // in its plane
};

struct Event {
  std::string_view name;  // the display name where there is one
  // Seconds since the earliest line of the capture; the duration is the device's, if it is known.
  double begin = 0, end = 0;
  Stats stats;
};

struct Visitor {
  std::function<void(std::string_view host)> host = {};
  std::function<void(const Plane&)> plane = {};  // before its events
  std::function<void(const Plane&, const Line&, const Event&)> event = {};
  // The metadata of events that have an HLO module, and need not occur.
  std::function<void(const Event&)> module = {};
};

// Errors: too large, not an XSpace, cut short, more events or names than allowed.
Status walk(std::string_view bytes, const std::string& where, const Visitor& visitor);

}  // namespace twinrun::xplane
