// Renders the comparison of two traces as text and as JSON.
#include "reports/two_sides.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/text.h"

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kShownOfEach = 5;

std::string first_line(const std::string& place) { return place.substr(0, place.find('\n')); }

std::string where(const SideCall& s) {
  std::string out = fmt::format("step {}, call {}: {} ({})", s.step, s.call, s.op, s.phase);
  if (!s.module.empty()) out += fmt::format(", module {}", s.module);
  if (!s.place.empty()) out += fmt::format(", {}", first_line(s.place));
  return out;
}

std::string bounds_of(const SideCall& s) {
  if (!s.judged) return "not judged";
  if (s.outside > 0) return fmt::format("{} elements outside their bound", s.outside);
  return fmt::format("within its bound (largest error / bound {})", text::number(s.worst));
}

std::string times_bound(double ratio) {
  if (std::isnan(ratio)) return "no bound is known";
  if (std::isinf(ratio)) return "the result has no rounding of its own";
  return text::number(ratio) + " of both bounds together";
}

std::string describe(const SideDifference& d) {
  std::string out = fmt::format("  A  {}\n     {}\n", where(d.a), bounds_of(d.a));
  out += fmt::format("  B  {}\n     {}\n", where(d.b), bounds_of(d.b));
  return out + fmt::format(
                   "  {}: {} of {} elements differ, by at most {} ({} of the largest value; "
                   "{}); {}\n",
                   d.type, text::count(d.differing), text::count(d.elements),
                   text::number(d.largest), text::number(d.relative), times_bound(d.ratio),
                   d.same_inputs ? "both read the same bits" : "what they read differs");
}

std::string finding_of(const char* side, const TraceVerdict& v,
                       const std::optional<SideDifference>& other) {
  if (v.findings.empty()) return "";
  const CallFinding& f = v.findings.front();
  std::string out = fmt::format("Side {}: step {}, call {}: {} ({})\n", side, f.step, f.call, f.op,
                                f.node.empty() ? f.phase : f.phase + ", " + f.node);
  if (!f.place.empty()) out += fmt::format("  at {}\n", first_line(f.place));
  if (!f.module.empty()) out += fmt::format("  in module {}\n", f.module);
  if (!f.problem.empty()) {
    out += fmt::format("  {}\n", f.problem);
  } else {
    out += fmt::format("  {}: {} of {} elements are outside their bound{}\n", f.type, f.outside,
                       f.elements, f.pattern.empty() ? "" : ": " + f.pattern);
    out += fmt::format("  worst at {}: {:.9g}, expected {:.9g} within {:.3g}\n", f.worst_index,
                       f.got, f.expected, f.bound);
    if (!f.signature.empty()) out += fmt::format("  of the wrong elements: {}\n", f.signature);
  }
  if (other) {
    const SideCall& there = side[0] == 'A' ? other->b : other->a;
    out += fmt::format("  the same result on side {}: call {}, {}\n", side[0] == 'A' ? "B" : "A",
                       there.call, bounds_of(there));
  }
  if (v.outside_calls > 1) out += fmt::format("  and {} more of this side\n", v.outside_calls - 1);
  return out + "\n";
}

std::string unaligned_text(const char* side, const std::map<std::string, int64_t>& calls) {
  if (calls.empty()) return "";
  int64_t all = 0;
  for (const auto& [op, n] : calls) all += n;
  std::string out = fmt::format("only on side {}: {}\n", side, text::plural(all, "call"));
  for (const auto& [op, n] : calls) out += fmt::format("  {:>5}  {}\n", n, op);
  return out;
}

Json number(double x) {
  if (std::isnan(x)) return nullptr;
  return std::isinf(x) ? Json("inf") : Json(x);
}
Json json_of(const SideCall& s) {
  return {{"call", s.call},      {"step", s.step},
          {"op", s.op},          {"place", s.place},
          {"module", s.module},  {"phase", s.phase},
          {"judged", s.judged},  {"worst_ratio", number(s.worst)},
          {"outside", s.outside}};
}
Json json_of(const SideDifference& d) {
  return {{"a", json_of(d.a)},
          {"b", json_of(d.b)},
          {"type", d.type},
          {"aligned_by", d.by},
          {"same_inputs", d.same_inputs},
          {"elements", d.elements},
          {"differing", d.differing},
          {"largest", number(d.largest)},
          {"relative", number(d.relative)},
          {"ratio", number(d.ratio)}};
}
Json json_of(const OtherInput& o) {
  static constexpr const char* kWords[] = {"tensor", "draw",      "number",   "arguments",
                                           "type",   "operation", "gradient", "update"};
  return {{"kind", kWords[static_cast<size_t>(o.kind)]},
          {"sentence", o.sentence()},
          {"a", json_of(o.a)},
          {"b", json_of(o.b)},
          {"a_has", o.a_has},
          {"b_has", o.b_has},
          {"elements", o.elements},
          {"differing", o.differing},
          {"relative", number(o.relative)},
          {"explained", number(o.explained)}};
}
Json json_of(const StepGrowth& s) {
  return {{"step", s.step},
          {"aligned", s.aligned},
          {"differing", s.differing},
          {"optimizer_relative", number(s.relative)},
          {"update_relative", number(s.update)},
          {"gradient_relative", number(s.gradients)},
          {"explained_relative", number(s.explained)}};
}

template <typename T>
Json json_of(const std::optional<T>& d) {
  return d ? json_of(*d) : Json(nullptr);
}
template <typename T>
Json json_of(const std::vector<T>& all) {
  Json out = Json::array();
  for (const T& one : all) out.push_back(json_of(one));
  return out;
}
}  // namespace

std::string OtherInput::sentence() const {
  const std::string at =
      fmt::format("{} of step {}{}", a.op, a.step,
                  a.place.empty() ? "" : fmt::format(" at {}", first_line(a.place)));
  const std::string differ =
      a_has == b_has && elements > 0
          ? fmt::format("{}, {} of {} elements differ", a_has, differing, elements)
          : fmt::format("{} on side A, {} on side B", a_has, b_has);
  switch (kind) {
    case Kind::kTensor:
      return fmt::format("the two runs do not get the same inputs: a tensor that {} reads ({})", at,
                         differ);
    case Kind::kDraw:
      return fmt::format("the two runs do not get the same inputs: the random draw of {} ({})", at,
                         differ);
    case Kind::kNumber:
      return fmt::format("the two runs compute with other numbers: {} ({})", at, differ);
    case Kind::kArguments:
      return fmt::format(
          "the two runs compute something else: {} reads the same bits on both sides, each result "
          "is within its own bound, and they are further apart than the bounds allow, so the "
          "other arguments differ",
          at);
    case Kind::kType:
      return fmt::format("the two runs compute in other types: {} ({})", at, differ);
    case Kind::kOperation:
      return fmt::format(
          "the two runs compute something else: from {} on side A and {} of step {} on side B on, "
          "their values go apart",
          at, b.op, b.step);
    case Kind::kGradient:
      return fmt::format(
          "the two runs compute something else: the gradients of step {} differ by {} of their "
          "norm, "
          "and both sides' rounding explains at most {}",
          a.step, text::number(relative), text::number(explained));
    case Kind::kUpdate:
      return fmt::format(
          "the two runs compute something else: the optimizers move the weights differently from "
          "the "
          "same gradients, in step {} by {} of the update's norm",
          a.step, text::number(relative));
  }
  return "";
}

std::string two_sides_text(const TwoSides& s) {
  std::string out = fmt::format("{}  {}\n\n", to_string(s.verdict), s.headline);
  out +=
      fmt::format("  A  {}, {}\n  B  {}, {}\n\n", s.a.framework, s.a_name, s.b.framework, s.b_name);
  out += finding_of("A", s.a, s.of_a) + finding_of("B", s.b, s.of_b);
  for (size_t i = 0; i < std::min(s.inputs.size(), kShownOfEach); ++i)
    out += fmt::format("Not the same: {}\n", s.inputs[i].sentence());
  if (s.inputs.size() > kShownOfEach)
    out += fmt::format("and {} more, which --json lists\n", s.inputs.size() - kShownOfEach);
  if (!s.inputs.empty() && s.inputs.front().kind == OtherInput::Kind::kDraw)
    out +=
        "Seed both sides alike. Releases and devices may draw in another order: leave out dropout, "
        "or draw outside of the step.\n";
  if (!s.inputs.empty()) out += "\n";
  if (s.first) out += "First difference\n" + describe(*s.first) + "\n";
  if (s.largest) out += "Largest difference in units of the bounds\n" + describe(*s.largest) + "\n";
  for (size_t i = 0; i < std::min(s.unexplained.size(), kShownOfEach); ++i)
    out += "Not explained\n" + describe(s.unexplained[i]) + "\n";
  for (const StepGrowth& g : s.steps) {
    out += fmt::format("step {}: {} of {} aligned results differ", g.step, g.differing, g.aligned);
    if (g.relative > 0)
      out += fmt::format("; after the optimizer by at most {} of the largest value",
                         text::number(g.relative));
    if (g.update > 0)
      out += fmt::format("; the updates by {} of their norm", text::number(g.update));
    if (g.gradients == g.gradients)
      out += fmt::format("; the gradients by {}, of which rounding explains {}",
                         text::number(g.gradients), text::number(g.explained));
    out += "\n";
  }
  out += fmt::format("aligned: {} by their bits, {} by their values, {} by module and order\n",
                     s.by_bits, s.by_values, s.by_order);
  out += unaligned_text("A", s.unaligned_a) + unaligned_text("B", s.unaligned_b);
  for (const auto& [side, v] : {std::pair{"A", &s.a}, std::pair{"B", &s.b}})
    out += fmt::format("judged on side {}: {} of {} calls\n", side, v->judged, v->calls);
  for (const std::string& note : s.notes) out += fmt::format("note: {}\n", note);
  std::string clean;
  for (const std::string& line : text::clean_lines(out)) clean += line + "\n";
  return clean;
}

std::string two_sides_json(const TwoSides& s) {
  Json j = {{"schema", 1},
            {"kind", "two_sides"},
            {"verdict", std::string(to_string(s.verdict))},
            {"exit_code", exit_code(s.verdict)},
            {"side", s.side},
            {"headline", s.headline},
            {"differing", s.differing},
            {"aligned", {{"bits", s.by_bits}, {"values", s.by_values}, {"order", s.by_order}}}};
  j["first_difference"] = json_of(s.first);
  j["largest_difference"] = json_of(s.largest);
  j["growth"] = json_of(s.growth);
  j["steps"] = json_of(s.steps);
  j["unexplained"] = json_of(s.unexplained);
  j["other_inputs"] = json_of(s.inputs);
  j["finding_of_a"] = json_of(s.of_a);
  j["finding_of_b"] = json_of(s.of_b);
  j["unaligned"] = {{"a", Json(s.unaligned_a)}, {"b", Json(s.unaligned_b)}};
  j["notes"] = s.notes;
  j["a"] = Json::parse(trace_json(s.a));
  j["a"]["name"] = s.a_name;
  j["b"] = Json::parse(trace_json(s.b));
  j["b"]["name"] = s.b_name;
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace twinrun
