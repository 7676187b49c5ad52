// Makes the report of a compiled module.
#include "reports/module_verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "reports/text.h"

namespace twinrun {
namespace {

using Outcome = Answer::Outcome;

std::string index_of(const ModuleResult::Worst& worst) {
  return fmt::format("[{}]", fmt::join(worst.index, ","));
}

Finding finding_of(const ModuleResult& r) {
  Finding f;
  f.verdict = VerdictClass::kEngineBug;
  f.cause = "module";
  f.level = ' ';
  f.op = fmt::format("result {}", r.index);
  f.sentence = fmt::format("result {}, {}: {} of {} elements outside{}", r.index, r.type,
                           text::count(r.outside), text::count(r.elements),
                           r.worst ? ", the worst at " + index_of(*r.worst) : "");
  f.elements = fmt::format("{} of {} elements{}", text::count(r.outside), text::count(r.elements),
                           r.pattern.empty() ? "" : ": " + r.pattern);
  if (r.worst) {
    f.elements += ", worst at " + index_of(*r.worst);
    f.number = std::fabs(r.worst->found - r.worst->expected);
    f.bound = r.worst->radius;
    f.number_text = fmt::format("{:.9g}, expected {:.9g} within {:.3g}", r.worst->found,
                                r.worst->expected, r.worst->radius);
    f.bound_source = "docs/method/bounds.md";
  }
  return f;
}

DetailTable results_of(const ModuleVerdict& v) {
  DetailTable t{"results",
                "Results",
                "Radii are those of what rounding and legal rewriting may make.",
                {{"index", "result"},
                 {"type", "type"},
                 {"elements", "elements"},
                 {"outside", "outside"},
                 {"unknown", "without a bound"},
                 {"why", "why"},
                 {"pattern", "which are outside"},
                 {"worst_at", "worst at"},
                 {"found", "found"},
                 {"expected", "expected"},
                 {"radius", "radius"},
                 {"largest_ratio", "largest difference in radii"},
                 {"median_relative_radius", "median radius of the largest value"},
                 {"likely", "of likely values"},
                 {"replaces", "new value of argument"},
                 {"moved", "elements that move"},
                 {"undecided", "of its change undecided"}},
                {}};
  for (const ModuleResult& r : v.results)
    t.rows.push_back({r.index, r.type, r.elements, r.outside, r.unknown, r.why, r.pattern,
                      r.worst ? index_of(*r.worst) : "", r.worst ? r.worst->found : NAN,
                      r.worst ? r.worst->expected : NAN, r.worst ? r.worst->radius : NAN,
                      r.largest_ratio, r.median_relative_radius,
                      std::string(r.likely ? "yes" : "no"), r.replaces, r.moved, r.undecided});
  return t;
}

std::string headline_of(const ModuleVerdict& v) {
  const std::string name = std::filesystem::path(v.module).filename().string();
  if (v.outside() > 0)
    return fmt::format("no rounding and no legal rewriting of {} explains {}", name,
                       text::plural(v.outside(), "element"));
  if (v.unlikely() > 0)
    return fmt::format(
        "{} of {} are farther off than rounding is likely to explain, which proves nothing",
        text::plural(v.unlikely(), "element"), name);
  if (!v.left_out.empty())
    return fmt::format("{} of {} was not given, and not judged", v.left_out.front(), name);
  if (v.judged() == 0) return fmt::format("no element of {} could be judged", name);
  if (v.verdict() != VerdictClass::kNoise)
    return fmt::format(
        "the bounds leave {:.2g} of the change that {} makes undecided, so they say nothing of it",
        v.undecided(), name);
  return fmt::format("all {} judged elements of {} are within what rounding explains",
                     text::count(v.judged()), name);
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
int64_t ModuleVerdict::elements() const {
  int64_t n = 0;
  for (const ModuleResult& r : results) n += r.elements;
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
VerdictClass ModuleVerdict::verdict() const {
  if (outside() > 0) return VerdictClass::kEngineBug;
  const bool is_open = undecided() * undecided() >= 0.5;
  return judged() > 0 && unlikely() == 0 && !is_open && left_out.empty()
             ? VerdictClass::kNoise
             : VerdictClass::kInconclusive;
}

Report report_of(const ModuleVerdict& v) {
  Report r;
  r.kind = "module";
  r.scenario_name = v.module;
  r.verdict = v.verdict();
  r.headline = headline_of(v);
  r.answers.repeats = {Outcome::kNotAsked, "one set of results was given"};
  r.answers.operations = {r.verdict == VerdictClass::kEngineBug ? Outcome::kNo
                          : r.verdict == VerdictClass::kNoise   ? Outcome::kYes
                                                                : Outcome::kOpen,
                          r.headline};
  r.answers.program = {Outcome::kNotAsked, "the module is taken as it is written"};
  r.answers.sharding = {Outcome::kNotAsked, "the module is taken as it is written"};
  r.answers.effect = {Outcome::kNotAsked, "one step does not say what the model learns"};
  for (const ModuleResult& result : v.results) {
    if (result.outside > 0 && !result.likely) r.findings.push_back(finding_of(result));
  }
  r.details.push_back(results_of(v));
  r.notes = v.notes;
  r.counts = {{"judged", v.judged()}, {"outside", v.outside()}, {"unlikely", v.unlikely()}};
  r.numbers["undecided"] = v.undecided();
  r.confidence = fmt::format("{} of {} elements have a bound", text::count(v.judged()),
                             text::count(v.elements()));
  if (std::ranges::any_of(v.results, [](const ModuleResult& of) { return of.replaces >= 0; }))
    r.confidence += fmt::format("; of the step's change {:.2g} is undecided", v.undecided());
  return r;
}

}  // namespace twinrun
