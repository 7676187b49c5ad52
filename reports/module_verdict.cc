// Renders the verdict of a compiled module as text and as JSON.
#include "reports/module_verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/json_number.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const ModuleResult& r) {
  Json worst = nullptr;
  if (r.worst) {
    worst = {{"index", r.worst->index},
             {"found", json::number(r.worst->found)},
             {"expected", json::number(r.worst->expected)},
             {"radius", json::number(r.worst->radius)}};
  }
  return {{"index", r.index},
          {"elements", r.elements},
          {"outside", r.outside},
          {"why", r.why},
          {"worst", worst},
          {"largest_ratio", json::number(r.largest_ratio)},
          {"median_relative_radius", json::number(r.median_relative_radius)},
          {"pattern", r.pattern},
          {"likely", r.likely},
          {"unknown", r.unknown},
          {"replaces", r.replaces},
          {"moved", r.moved},
          {"undecided", r.undecided}};
}

std::string describe(const ModuleResult& r) {
  std::string out = fmt::format("result {}, {}: {} of {} elements outside", r.index, r.type,
                                r.outside, r.elements);
  if (!r.pattern.empty()) out += ": " + r.pattern;
  out += "\n";
  if (r.unknown > 0)
    out += fmt::format("  {} elements have no finite bound: {}\n", r.unknown, r.why);
  if (r.unknown == r.elements) return out;
  if (r.worst && r.largest_ratio > 1)
    out += fmt::format("  worst at [{}]: {:.9g}, expected {:.9g} within {:.3g}\n",
                       fmt::join(r.worst->index, ","), r.worst->found, r.worst->expected,
                       r.worst->radius);
  else
    out += fmt::format("  the largest difference is {:.3g} of its radius\n", r.largest_ratio);
  out += fmt::format("  radii{}: median {:.2g} of the largest value\n",
                     r.likely ? ", of likely values" : "", r.median_relative_radius);
  if (r.replaces >= 0)
    out += fmt::format("  of its change they leave {:.2g} of the norm undecided\n", r.undecided);
  return out;
}

}  // namespace

int64_t ModuleVerdict::outside() const {
  int64_t n = 0;
  for (const ModuleResult& r : results) n += r.likely ? 0 : r.outside;
  return n;
}
int64_t ModuleVerdict::unlikely() const {
  int64_t n = 0;
  for (const ModuleResult& r : results) n += r.likely ? r.outside : 0;
  return n;
}
int64_t ModuleVerdict::judged() const {
  int64_t n = 0;
  for (const ModuleResult& r : results) n += r.elements - r.unknown;
  return n;
}
double ModuleVerdict::undecided() const {
  double open = 0, all = 0;
  for (const ModuleResult& r : results) {
    if (r.replaces < 0) continue;
    all += static_cast<double>(r.moved);
    open += static_cast<double>(r.moved) * r.undecided * r.undecided;
  }
  return all > 0 ? std::sqrt(open / all) : 0;
}
std::string ModuleVerdict::word() const {
  if (outside() > 0) return "ENGINE_BUG";
  const bool is_open = undecided() * undecided() >= 0.5;
  return judged() > 0 && unlikely() == 0 && !is_open ? "NOISE" : "INCONCLUSIVE";
}

std::string module_text(const ModuleVerdict& v) {
  std::string out = v.word() + "  ";
  if (v.outside() > 0) {
    out += fmt::format("no rounding and no legal rewriting of {} explains {} elements", v.module,
                       v.outside());
  } else if (v.unlikely() > 0) {
    out += fmt::format(
        "{} elements of {} are farther off than rounding is likely to explain, which "
        "proves nothing",
        v.unlikely(), v.module);
  } else if (v.judged() > 0 && v.word() != "NOISE") {
    out += fmt::format(
        "the bounds leave {:.2g} of the change that {} makes undecided, so they say nothing of it",
        v.undecided(), v.module);
  } else if (v.judged() > 0) {
    out += fmt::format("all {} judged elements of {} are within what rounding explains", v.judged(),
                       v.module);
  } else {
    out += fmt::format("no element of {} could be judged", v.module);
  }
  out += "\n\n";
  for (const ModuleResult& r : v.results) out += describe(r);
  for (const std::string& note : v.notes) out += fmt::format("note: {}\n", note);
  std::string clean;
  for (const std::string& line : text::clean_lines(out)) clean += line + "\n";
  return clean;
}

std::string module_json(const ModuleVerdict& v) {
  Json results = Json::array();
  for (const ModuleResult& r : v.results) results.push_back(json_of(r));
  const Json j = {{"verdict", v.word()},
                  {"results", results},
                  {"undecided", v.undecided()},
                  {"refused", v.refused},
                  {"notes", v.notes}};
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace twinrun
