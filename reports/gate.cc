// Renders the result of a regression gate as terminal text and JSON lines; exit codes.
#include "reports/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/json_number.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;

using json::number;

Json of(const std::optional<GateSite>& site) {
  if (!site) return nullptr;
  return {{"step", site->step ? Json(*site->step) : Json(nullptr)},
          {"tensor", text::clean(site->tensor)},
          {"core", site->core ? Json(*site->core) : Json(nullptr)},
          {"was", text::clean(site->was)},
          {"now", text::clean(site->now)}};
}

Json of(const std::vector<std::string>& lines) {
  Json out = Json::array();
  for (const std::string& line : lines) out.push_back(text::clean(line));
  return out;
}

std::string_view word_of(GateOutcome outcome) {
  switch (outcome) {
    case GateOutcome::kSame:
    case GateOutcome::kInside:
      return "PASSED";
    case GateOutcome::kDiverged:
      return "MOVED";
    case GateOutcome::kInterrupted:
      return "STOPPED";
    default:
      return "ERROR";
  }
}

}  // namespace

std::string_view to_string(GateOutcome outcome) {
  switch (outcome) {
    case GateOutcome::kSame:
      return "same";
    case GateOutcome::kInside:
      return "inside_noise";
    case GateOutcome::kDiverged:
      return "moved";
    case GateOutcome::kUnavailable:
      return "unavailable";
    case GateOutcome::kBadInput:
      return "bad_input";
    case GateOutcome::kInterrupted:
      return "interrupted";
  }
  return "bad_input";
}

int exit_code(GateOutcome outcome) {
  switch (outcome) {
    case GateOutcome::kSame:
    case GateOutcome::kInside:
      return 0;
    case GateOutcome::kDiverged:
      return 1;
    case GateOutcome::kUnavailable:
      return 125;
    case GateOutcome::kBadInput:
      return 128;
    case GateOutcome::kInterrupted:
      return 130;
  }
  return 128;
}

int exit_code(const std::vector<Gate>& gates) {
  int worst = 0;
  for (const Gate& gate : gates) worst = std::max(worst, exit_code(gate.outcome));
  return worst;
}

std::string to_terminal(const Gate& g, int width) {
  std::string out;
  const auto add = [&](const std::string& label, const std::string& what) {
    const auto indent = static_cast<int>(label.empty() ? 2 : 12);
    bool first = true;
    for (const std::string& line : text::wrap(text::clean(what), width - indent)) {
      out += label.empty() ? fmt::format("  {}\n", line)
                           : fmt::format("  {:<9} {}\n", first ? label : "", line);
      first = false;
    }
  };
  const auto site = [&](const std::string& label, const GateSite& s) {
    std::string where = s.step ? fmt::format("step {}, {}", *s.step, s.tensor) : s.tensor;
    if (s.core) where += fmt::format(", core {}", *s.core);
    add(label, where);
    if (!s.was.empty()) add("was", s.was);
    if (!s.now.empty()) add("now", s.now);
  };
  out += fmt::format("{:<8} {}\n", word_of(g.outcome), text::clean(g.golden));
  add("", g.headline);
  if (!g.engine.empty()) add("engine", g.engine + ", " + g.settings);
  if (g.divergence) site("first", *g.divergence);
  if (g.noise && g.noise->unusable.empty()) {
    add("noise",
        fmt::format("largest distance {} times that of conforming engines, {} allowed (one "
                    "conforming engine in {} is farther); one step from each of {}",
                    text::number(g.noise->ratio), text::number(g.noise->threshold),
                    text::count(std::llround(1 / g.noise->false_alarm)),
                    text::plural(g.noise->states, "state")));
    if (g.noise->elements_kept < g.noise->elements)
      add("", fmt::format("a sample of each tensor was compared: {} of {} elements",
                          text::count(g.noise->elements_kept), text::count(g.noise->elements)));
    if (g.noise->outside) site("outside", *g.noise->outside);
  } else if (g.noise) {
    add("noise", "not usable: " + g.noise->unusable);
  }
  for (const std::string& note : g.notes) add("note", note);
  for (const std::string& change : g.changed) add("changed", change);
  if (g.updated) add("updated", "the golden run was rewritten");
  return out;
}

std::string to_json_line(const Gate& g) {
  Json noise = nullptr;
  if (g.noise) {
    noise = {{"inside", g.noise->unusable.empty() ? Json(g.noise->inside) : Json(nullptr)},
             {"ratio", number(g.noise->ratio)},
             {"threshold", number(g.noise->threshold)},
             {"false_alarm", g.noise->false_alarm},
             {"states", g.noise->states},
             {"elements", g.noise->elements},
             {"elements_kept", g.noise->elements_kept},
             {"unusable", text::clean(g.noise->unusable)},
             {"outside", of(g.noise->outside)}};
  }
  const Json j = {{"schema", 1},
                  {"golden", text::clean(g.golden)},
                  {"outcome", to_string(g.outcome)},
                  {"exit_code", exit_code(g.outcome)},
                  {"decides", g.decides},
                  {"scenario", text::clean(g.scenario)},
                  {"engine", text::clean(g.engine)},
                  {"settings", text::clean(g.settings)},
                  {"headline", text::clean(g.headline)},
                  {"moved", of(g.divergence)},
                  {"noise", noise},
                  {"notes", of(g.notes)},
                  {"changed", of(g.changed)},
                  {"updated", g.updated},
                  {"seconds", g.seconds}};
  return j.dump();
}

}  // namespace twinrun
