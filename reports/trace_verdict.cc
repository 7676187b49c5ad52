// Renders the verdict of a trace as text and as JSON.
#include "reports/trace_verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/text.h"

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kShown = 5;  // findings in the text

std::string innermost(const std::string& place) { return place.substr(0, place.find('\n')); }

template <typename T>
std::string located(const T& f) {
  std::string out = fmt::format("step {}, call {}: {} ({})\n", f.step, f.call, f.op,
                                f.node.empty() ? f.phase : f.phase + ", " + f.node);
  if (!f.place.empty())
    out += fmt::format("  {} {}\n", f.phase == "backward" ? "of the forward call at" : "at",
                       innermost(f.place));
  if (!f.module.empty()) out += fmt::format("  in module {}\n", f.module);
  return out;
}

std::string describe(const IllConditioned& f) {
  return located(f) +
         fmt::format(
             "  {}{}: errors up to {:.3g}, expected values up to {:.3g}, bounds up to {:.3g}{}\n",
             f.result.empty() ? "" : f.result + ", ", f.type, f.error, f.expected, f.bound,
             f.times > 1 ? fmt::format("; in {} calls", f.times) : "");
}

std::string describe_loss(const IllConditioned& f) {
  return located(f) + fmt::format("  {}{}: about {:.1f} decimal digits are right{}\n",
                                  f.result.empty() ? "" : f.result + ", ", f.type, f.digits,
                                  f.times > 1 ? fmt::format("; in {} calls", f.times) : "");
}

std::string describe(const CallFinding& f) {
  std::string out = located(f);
  if (!f.problem.empty()) return out + fmt::format("  {}\n", f.problem);
  out += fmt::format("  {}{}: {} of {} elements are outside their bound{}\n",
                     f.result.empty() ? "" : f.result + ", ", f.type, f.outside, f.elements,
                     f.pattern.empty() ? "" : ": " + f.pattern);
  out += fmt::format("  worst at {}: {:.9g}, expected {:.9g} within {:.3g}\n", f.worst_index, f.got,
                     f.expected, f.bound);
  if (!f.signature.empty()) out += fmt::format("  of the wrong elements: {}\n", f.signature);
  if (f.made_by.size() > 1)
    out += fmt::format("  the compiled code makes it by {}\n", fmt::join(f.made_by, ", "));
  if (f.composed)
    out +=
        "  the function as a whole differs from its documented definition, although the calls "
        "that it is made of may each be right\n";
  return out;
}

template <typename T>
Json located_json(const T& f) {
  return {{"step", f.step}, {"call", f.call},   {"op", f.op},        {"phase", f.phase},
          {"node", f.node}, {"place", f.place}, {"module", f.module}};
}

}  // namespace

std::string TraceVerdict::word() const {
  if (outside_calls > 0) return "ENGINE_BUG";
  if (judged <= unrecorded || !open.empty()) return "INCONCLUSIVE";
  return not_finite.weights ? "PROGRAM" : "NOISE";
}

int TraceVerdict::exit_code() const {
  const std::string w = word();
  return w == "ENGINE_BUG" ? 20 : w == "PROGRAM" ? 15 : w == "NOISE" ? 0 : 125;
}

std::string TraceVerdict::headline() const {
  if (outside_calls > 0) {
    const CallFinding& f = findings.front();
    return fmt::format("{} computes something else than its definition, first at step {}, call {}",
                       f.op, f.step, f.call);
  }
  if (judged == 0) return "no call could be judged";
  if (judged <= unrecorded)
    return fmt::format("{} calls were judged and {} could not be recorded", judged, unrecorded);
  const std::string right =
      fmt::format("every result of the {} judged calls is within its bound", judged);
  if (!open.empty()) {
    return fmt::format(
        "{}{}; {}", open.front().what,
        open.size() > 1
            ? fmt::format(" (and {} more)",
                          text::plural(static_cast<int64_t>(open.size()) - 1, "open question"))
            : "",
        right);
  }
  if (not_finite.weights)
    return fmt::format("the weights become NaN or infinite{}, and {}",
                       not_finite.call < 0 ? std::string()
                       : not_finite.from_input
                           ? ": a NaN comes from outside of the recorded calls"
                           : fmt::format(": {} returns the first NaN, rightly", not_finite.op),
                       right);
  return fmt::format("{}{}", right,
                     ill_conditioned_results > 0 ? ", some without a correct digit" : "") +
         (precision_loss_results > 0 ? fmt::format("; {} with a loss of precision",
                                                   text::plural(precision_loss_results, "result"))
                                     : "");
}

double CallFinding::ratio() const {
  const double error = std::fabs(got - expected);
  return std::isnan(error) || bound == 0 ? INFINITY : error / bound;
}

double TraceOp::median() const {
  if (ratios.empty()) return NAN;
  std::vector<double> sorted = ratios;
  std::ranges::sort(sorted);
  const size_t n = sorted.size();
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

// The first NaN, where it matters or can be explained.
std::string describe(const NotFinite& n) {
  if (n.call < 0) return "";
  return fmt::format("the first NaN: {}", located(n)) +
         (n.from_input ? "  it read a NaN that no recorded call had made\n"
                       : "  what it read has no NaN\n") +
         (n.weights ? "  after the last step some weights are not finite\n"
                    : "  after the last step the weights are finite\n");
}

std::string trace_text(const TraceVerdict& v, bool all_ops) {
  std::string out = fmt::format("{}  {}\n\n", v.word(), v.headline());
  for (size_t i = 0; i < v.findings.size() && i < kShown; ++i)
    out += describe(v.findings[i]) + "\n";
  if (v.findings.size() > kShown)
    out += fmt::format("and {} more, which --json lists\n\n",
                       v.outside_calls - static_cast<int64_t>(kShown));
  if (!v.open.empty()) {
    out += "not examined, though the new weights depend on it:\n";
    for (size_t i = 0; i < v.open.size() && i < kShown; ++i) {
      const OpenQuestion& q = v.open[i];
      out +=
          fmt::format("  - {}{}\n", q.what, q.times > 1 ? fmt::format(" ({} times)", q.times) : "");
      if (!q.place.empty()) out += fmt::format("    at {}\n", q.place);
      out += fmt::format("    to examine it: {}\n", q.how);
    }
    if (v.open.size() > kShown)
      out += fmt::format("  and {} more, which --json lists\n", v.open.size() - kShown);
    out += "\n";
  }
  if (v.not_finite.call >= 0) out += describe(v.not_finite) + "\n";
  if (!v.precision_losses.empty()) {
    out += fmt::format(
        "{} with a loss of precision: outside of the bounds of kernels that add in float32, and "
        "within those "
        "of kernels that keep their sums in half precision\n\n",
        text::plural(v.precision_loss_results, "result"));
    for (size_t i = 0; i < v.precision_losses.size() && i < kShown; ++i)
      out += describe_loss(v.precision_losses[i]) + "\n";
  }
  if (!v.ill_conditioned.empty()) {
    out += fmt::format(
        "{} result{} within bounds but without a correct digit: the terms cancel, and what is left "
        "is "
        "rounding error. An optimizer that divides by the gradient's size makes it steps of full "
        "size.\n\n",
        v.ill_conditioned_results, v.ill_conditioned_results == 1 ? "" : "s");
    for (size_t i = 0; i < v.ill_conditioned.size() && i < kShown; ++i)
      out += describe(v.ill_conditioned[i]) + "\n";
    if (v.ill_conditioned.size() > kShown)
      out += fmt::format("and at {} more places, which --json lists\n\n",
                         v.ill_conditioned.size() - kShown);
  }
  out += fmt::format("{}{}: {} step{}, {} calls, of which {} judged; {} elements compared",
                     v.framework, v.script.empty() ? "" : ", " + v.script, v.steps,
                     v.steps == 1 ? "" : "s", v.calls, v.judged, v.elements);
  if (v.untestable > 0) out += fmt::format(", {} of them without a finite bound", v.untestable);
  out += "\n";
  out += v.without_update ? "no update of a weight is in the trace, so every call counts\n"
                          : fmt::format("the new weights depend on {} of the calls\n", v.on_path);
  if (v.uncertain_update > 0)
    out += fmt::format(
        "up to {:.2g} % of the update's norm belongs to parameters whose gradient has no correct "
        "digit\n",
        100 * v.uncertain_update);
  std::string off;
  for (const auto& [key, u] : v.unjudged) {
    if (u.calls > u.on_path)
      off += fmt::format("  {:>5}  {}: {}\n", u.calls - u.on_path, key.first, key.second);
  }
  if (!off.empty()) out += "not judged, and without effect on the new weights:\n" + off;
  for (const std::string& note : v.notes) out += fmt::format("note: {}\n", note);
  if (!v.observer.empty()) out += fmt::format("note: {}\n", v.observer);
  out += fmt::format("\n{}\n", kNotAsked);
  if (all_ops) {
    out += "\n  calls  judged  outside  worst/bound  operation\n";
    for (const auto& [name, op] : v.ops)
      out += fmt::format("  {:>5}  {:>6}  {:>7}  {:>11.3g}  {}\n", op.calls, op.judged, op.outside,
                         op.worst, name);
  }
  std::string clean;
  for (const std::string& line : text::clean_lines(out)) clean += line + "\n";
  return clean;
}

std::string trace_json(const TraceVerdict& v) {
  Json j = {{"schema", 1},
            {"kind", "trace"},
            {"verdict", v.word()},
            {"headline", v.headline()},
            {"trace", v.trace},
            {"framework", v.framework},
            {"script", v.script},
            {"steps", v.steps},
            {"calls", v.calls},
            {"judged", v.judged},
            {"calls_outside", v.outside_calls},
            {"elements", v.elements},
            {"untestable", v.untestable},
            {"exit_code", v.exit_code()},
            {"on_path", v.on_path},
            {"without_update", v.without_update},
            {"uncertain_update", v.uncertain_update},
            {"judged_by_parts", v.by_parts},
            {"rank", v.rank},
            {"ranks", v.ranks}};
  j["open"] = Json::array();
  for (const OpenQuestion& q : v.open)
    j["open"].push_back({{"what", q.what}, {"how", q.how}, {"place", q.place}, {"times", q.times}});
  j["not_asked"] = kNotAsked;
  if (v.not_finite.call >= 0 || v.not_finite.weights) {
    Json n = located_json(v.not_finite);
    n.update({{"weights", v.not_finite.weights},
              {"judged", v.not_finite.judged},
              {"from_input", v.not_finite.from_input}});
    j["not_finite"] = std::move(n);
  }
  j["findings"] = Json::array();
  for (const CallFinding& f : v.findings) {
    Json one = located_json(f);
    one["composed"] = f.composed;
    if (f.forward >= 0) one["forward_call"] = f.forward;
    if (!f.problem.empty()) {
      one["problem"] = f.problem;
    } else {
      one.update({{"result", f.result},
                  {"type", f.type},
                  {"elements", f.elements},
                  {"outside", f.outside},
                  {"pattern", f.pattern},
                  {"worst_index", f.worst_index},
                  {"got", fmt::format("{:.17g}", f.got)},
                  {"expected", fmt::format("{:.17g}", f.expected)},
                  {"bound", fmt::format("{:.17g}", f.bound)},
                  {"signature", f.signature},
                  {"made_by", f.made_by}});
      one["operands"] = Json::array();
      for (const CallOperand& o : f.operands)
        one["operands"].push_back({{"name", o.name}, {"type", o.type}, {"values", o.values}});
    }
    j["findings"].push_back(std::move(one));
  }
  j["precision_loss_results"] = v.precision_loss_results;
  j["precision_losses"] = Json::array();
  for (const IllConditioned& f : v.precision_losses) {
    Json one = located_json(f);
    one.update({{"result", f.result}, {"type", f.type}, {"times", f.times}, {"digits", f.digits}});
    j["precision_losses"].push_back(std::move(one));
  }
  j["ill_conditioned_results"] = v.ill_conditioned_results;
  j["ill_conditioned"] = Json::array();
  for (const IllConditioned& f : v.ill_conditioned) {
    Json one = located_json(f);
    one.update({{"result", f.result},
                {"type", f.type},
                {"times", f.times},
                {"largest_error", fmt::format("{:.17g}", f.error)},
                {"largest_expected", fmt::format("{:.17g}", f.expected)},
                {"largest_bound", fmt::format("{:.17g}", f.bound)}});
    j["ill_conditioned"].push_back(std::move(one));
  }
  j["ops"] = Json::array();
  for (const auto& [name, op] : v.ops) {
    j["ops"].push_back({{"op", name},
                        {"calls", op.calls},
                        {"judged", op.judged},
                        {"outside", op.outside},
                        {"elements", op.elements},
                        {"median_ratio", fmt::format("{:.6g}", op.median())},
                        {"worst_ratio", fmt::format("{:.6g}", op.worst)}});
  }
  j["not_judged"] = Json::array();
  for (const auto& [key, u] : v.unjudged)
    j["not_judged"].push_back(
        {{"op", key.first}, {"why", key.second}, {"calls", u.calls}, {"on_path", u.on_path}});
  j["notes"] = v.notes;
  j["settings"] = Json::object();
  for (const auto& [key, value] : v.settings) j["settings"][key] = value;
  j["observer"] = v.observer;
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace twinrun
