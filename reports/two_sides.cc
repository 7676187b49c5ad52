// Makes the report of a comparison of two traces.
#include "reports/two_sides.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "reports/text.h"
#include "reports/trace_step.h"

namespace twinrun {
namespace {

using Outcome = Answer::Outcome;

std::string first_line(const std::string& place) { return place.substr(0, place.find('\n')); }

std::string bounds_of(const SideCall& s) {
  if (!s.judged) return "not judged";
  if (s.outside > 0) return fmt::format("{} elements outside", text::count(s.outside));
  return "within, " + text::number(s.worst);
}

void add_differences(DetailTable& t, std::string_view role,
                     const std::vector<SideDifference>& all) {
  for (const SideDifference& d : all)
    t.rows.push_back({std::string(role), d.a.op, d.b.op,
                      d.a.module.empty() ? d.b.module : d.a.module, first_line(d.a.place),
                      int64_t{d.a.step}, d.a.call, d.b.call, bounds_of(d.a), bounds_of(d.b),
                      d.differing, d.elements, d.relative, d.ratio,
                      std::string(d.same_inputs ? "yes" : "no"), d.by});
}
void add_differences(DetailTable& t, std::string_view role,
                     const std::optional<SideDifference>& one) {
  if (one) add_differences(t, role, std::vector{*one});
}

DetailTable differences(const TwoSides& s) {
  DetailTable t{"differences",
                "Where the sides differ",
                "The first difference, the largest in units of the bounds, what is outside of its "
                "bounds, what is not explained because a side could not be judged, and how the "
                "difference grows.",
                {{"role", "which"},
                 {"a_op", "operation of A"},
                 {"b_op", "of B"},
                 {"module", "module"},
                 {"place", "place"},
                 {"step", "step"},
                 {"a_call", "call of A"},
                 {"b_call", "of B"},
                 {"a_bound", "error / bound of A"},
                 {"b_bound", "of B"},
                 {"differing", "elements that differ"},
                 {"elements", "of"},
                 {"relative", "of the largest value"},
                 {"ratio", "of both bounds"},
                 {"same_inputs", "same inputs"},
                 {"by", "aligned by"}},
                {}};
  add_differences(t, "first", s.first);
  add_differences(t, "largest", s.largest);
  add_differences(t, "outside on A", s.of_a);
  add_differences(t, "outside on B", s.of_b);
  add_differences(t, "not explained", s.unexplained);
  add_differences(t, "growth", s.growth);
  return t;
}

constexpr std::array kKinds = {"tensor", "draw",      "number",   "arguments",
                               "type",   "operation", "gradient", "update"};

// Inputs that are described in the same words count as one: the draws of a line that a loop makes.
std::vector<std::pair<const OtherInput*, int64_t>> told_once(const TwoSides& s) {
  std::vector<std::pair<const OtherInput*, int64_t>> out;
  std::map<std::string, size_t> at;
  for (const OtherInput& o : s.inputs) {
    const auto [same, is_new] = at.try_emplace(o.sentence() + o.a.place, out.size());
    if (is_new)
      out.emplace_back(&o, 1);
    else
      ++out[same->second].second;
  }
  return out;
}

DetailTable inputs(const TwoSides& s) {
  DetailTable t{"inputs",
                "Not the same on both sides",
                "",
                {{"kind", "what"},
                 {"sentence", "how"},
                 {"a_place", "place"},
                 {"a_has", "A has"},
                 {"b_has", "B has"},
                 {"differing", "elements that differ"},
                 {"relative", "relative"},
                 {"times", "times"}},
                {}};
  for (const auto& [o, times] : told_once(s))
    t.rows.push_back({std::string(kKinds[static_cast<size_t>(o->kind)]), o->sentence(),
                      first_line(o->a.place), o->a_has, o->b_has, o->differing, o->relative,
                      times});
  return t;
}

DetailTable steps(const TwoSides& s) {
  DetailTable t{"steps",
                "Each step",
                "Norms of differences over norms. What rounding explains of the gradients is the "
                "sum of both sides' bounds.",
                {{"step", "step"},
                 {"aligned", "aligned results"},
                 {"differing", "that differ"},
                 {"optimizer", "after the optimizer, of the largest value"},
                 {"update", "the updates"},
                 {"gradients", "the gradients"},
                 {"explained", "of which rounding explains"}},
                {}};
  for (const StepGrowth& g : s.steps)
    t.rows.push_back(
        {int64_t{g.step}, g.aligned, g.differing, g.relative, g.update, g.gradients, g.explained});
  return t;
}

DetailTable unaligned(const TwoSides& s) {
  DetailTable t{"unaligned",
                "Only on one side",
                "",
                {{"side", "side"}, {"op", "operation"}, {"calls", "calls"}},
                {}};
  for (const auto& [op, n] : s.unaligned_a) t.rows.push_back({std::string("A"), op, n});
  for (const auto& [op, n] : s.unaligned_b) t.rows.push_back({std::string("B"), op, n});
  return t;
}

DetailTable both(const TwoSides& s) {
  DetailTable t{"sides",
                "Each side by itself",
                "",
                {{"side", "side"},
                 {"framework", "framework"},
                 {"name", "command or trace"},
                 {"verdict", "verdict"},
                 {"judged", "judged calls"},
                 {"calls", "of"},
                 {"outside", "outside"}},
                {}};
  for (const auto& [side, v, name] :
       {std::tuple{"A", &s.a, &s.a_name}, std::tuple{"B", &s.b, &s.b_name}})
    t.rows.push_back({std::string(side), v->framework, *name, std::string(to_string(v->verdict())),
                      v->judged, v->calls, v->outside_calls});
  return t;
}

Answers answers_of(const TwoSides& s) {
  Answers out;
  out.repeats = {Outcome::kNotAsked, "each side was recorded once"};
  const Answers a = answers_of(s.a), b = answers_of(s.b);
  const auto outcome = [&](Outcome o) {
    return a.operations.outcome == o || b.operations.outcome == o;
  };
  out.operations = {outcome(Outcome::kNo)     ? Outcome::kNo
                    : outcome(Outcome::kOpen) ? Outcome::kOpen
                                              : Outcome::kYes,
                    fmt::format("side A: {}; side B: {}", a.operations.what, b.operations.what)};
  const bool open = !s.a.open.empty() || !s.b.open.empty();
  out.program =
      s.verdict == VerdictClass::kProgram     ? Answer{Outcome::kNo, s.headline}
      : s.verdict == VerdictClass::kIdentical ? Answer{Outcome::kYes, "the same bits on both sides"}
      : s.verdict != VerdictClass::kNoise     ? Answer{Outcome::kOpen, s.headline}
      : open
          ? Answer{Outcome::kOpen,
                   "the gradients agree within what rounding explains at most, and not every call "
                   "was judged"}
          : Answer{Outcome::kYes, "the updates agree within what rounding explains at most"};
  if (s.verdict == VerdictClass::kNoise && s.meant.asked)
    out.program.what += fmt::format("; without rounding, the gradients of step {} are {} apart",
                                    s.meant.step, text::number(s.meant.relative));
  out.sharding = {Outcome::kNotApplicable, "the sides are held against each other"};
  out.effect = {Outcome::kNotAsked, "a few steps do not say what the model learns"};
  return out;
}

// The first finding of a side, and the same result on the other side.
void add_finding(Report& r, const char* side, const TraceVerdict& v,
                 const std::optional<SideDifference>& other) {
  const Report alone = report_of(v);
  if (alone.findings.empty()) return;
  Finding f = alone.findings.front();
  f.sentence = fmt::format("Side {}: {}", side, f.sentence);
  if (other) {
    const bool on_a = side[0] == 'A';
    const SideCall& there = on_a ? other->b : other->a;
    f.evidence.push_back(fmt::format("the same result on side {}: call {}, {}", on_a ? "B" : "A",
                                     there.call, bounds_of(there)));
  }
  if (v.outside_calls > 1)
    f.evidence.push_back(fmt::format("and {} more of this side", v.outside_calls - 1));
  r.findings.push_back(std::move(f));
}

}  // namespace

// "4" of 4.000000001
std::string weight_text(double x) {
  const double whole = std::round(x);
  return std::fabs(x - whole) < 1e-4 ? fmt::format("{}", whole == 0 ? 0 : whole)
                                     : text::number(x, 3);
}

std::string MeantGradients::sentence() const {
  const char *many = of_a ? "A" : "B", *few = of_a ? "B" : "A";
  std::string out =
      fmt::format("those of step {} differ by {} of their norm", step, text::number(relative));
  if (factor) {
    const double times = of_a ? *factor : 1 / *factor;
    out += fmt::format(": side {}'s is {} times side {}'s", many, weight_text(times), few);
    if (passes > 1 && std::fabs(times - static_cast<double>(passes)) < 1e-4)
      out += fmt::format(", the sum of its {} backward passes, which nothing divides", passes);
    return out;
  }
  if (other.empty()) return out;
  const auto list = [](const std::vector<double>& all) {
    constexpr size_t kShown = 8;
    std::string words;
    for (size_t i = 0; i < std::min(all.size(), kShown); ++i)
      words += (i == 0 ? "" : i + 1 == all.size() ? " and " : ", ") + weight_text(all[i]);
    return words + (all.size() > kShown ? ", .." : "");
  };
  out += fmt::format(": as a sum of side {}'s {} backward passes, side {}'s has the weights {}",
                     many, passes, few, list(other));
  if (!own.empty()) out += fmt::format(", and side {}'s {}", many, list(own));
  return out;
}

std::string MeantGradients::what_to_do() const {
  const auto is = [](double x, double y) { return std::fabs(x - y) < 1e-4; };
  if (factor && passes > 1)
    return fmt::format(
        "divide the loss of each of the {} passes by the count of all of them together", passes);
  if (own.empty() || other.empty()) return "";
  if (std::ranges::any_of(own, [&](double x) { return is(x, 0); }))
    return "clear the gradients once before all backward passes of an update, not between them";
  // All count alike, though they hold unequally many.
  if (std::ranges::all_of(own, [&](double x) { return is(x, own.front()); }))
    return "sum the loss of each pass, and divide it by the count of the whole batch (of tokens "
           "that "
           "are not padding, say): a mean of means weighs passes alike that hold unequally many";
  return "";
}

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
          "the two runs compute something else: the values go apart at {} on side A, and at {} of "
          "step {}{} on side B",
          at, b.op, b.step, b.place.empty() ? "" : fmt::format(" at {}", first_line(b.place)));
    case Kind::kGradient:
      if (!meaning.empty())
        return "without rounding, the two runs mean another gradient: " + meaning;
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

Report report_of(const TwoSides& s) {
  Report r;
  r.kind = "two sides";
  r.scenario_name = s.a.script.empty() ? s.a_name : s.a.script;
  r.subject = fmt::format("A: {}, {}; B: {}, {}", s.a.framework, s.a_name, s.b.framework, s.b_name);
  r.verdict = s.verdict;
  r.side = s.side;
  r.headline = s.headline;
  r.answers = answers_of(s);
  r.open = s.a.open;
  r.open.insert(r.open.end(), s.b.open.begin(), s.b.open.end());
  add_finding(r, "A", s.a, s.of_a);
  add_finding(r, "B", s.b, s.of_b);
  if (s.verdict == VerdictClass::kProgram) {
    for (const auto& [input, times] : told_once(s)) {
      const OtherInput& o = *input;
      Finding f;
      f.verdict = VerdictClass::kProgram;
      f.cause = fmt::format("other_{}", kKinds[static_cast<size_t>(o.kind)]);
      f.sentence = o.sentence();
      f.step = o.a.step;
      f.phase = o.a.phase;
      f.op = o.a.op;
      f.call = o.a.call;
      f.place = o.a.place;
      f.module = o.a.module;
      f.level = ' ';
      if (times > 1) f.evidence.push_back(fmt::format("{} times", times));
      r.findings.push_back(std::move(f));
    }
  }
  if (!s.inputs.empty() && s.inputs.front().kind == OtherInput::Kind::kDraw) {
    const OtherInput& first = s.inputs.front();
    r.next_steps.emplace_back(
        first.a_has != first.b_has
            ? "The sides draw other numbers of samples, whatever their seeds. Let both read the "
              "same "
              "samples in one order: data that is made before the loop, a loader that does not "
              "shuffle."
        : s.unaligned_a.empty() && s.unaligned_b.empty()
            ? "Seed both sides alike. Releases and devices may draw in another order: leave out "
              "dropout, or draw outside of the step."
            : "Look at the calls that only one side makes (the last table): a draw among them "
              "moves "
              "all that follow. Seed both sides alike. Releases and devices may draw in another "
              "order: leave out dropout, or draw outside of the step.");
  }
  if (std::string how = s.meant.differ() ? s.meant.what_to_do() : ""; !how.empty())
    r.next_steps.push_back(std::move(how));
  if (s.verdict == VerdictClass::kInconclusive && s.meant.asked && !s.meant.agree())
    r.next_steps.emplace_back(
        "look for a constant or a formula that differs, or for a choice that rounding made on one "
        "side alone (the place of a maximum, a rounded number): in float64 such choices are the "
        "same");
  if (s.meant.asked) r.numbers["meant"] = s.meant.relative;
  r.notes = s.notes;
  if (!s.meant.asked && !s.meant.why.empty())
    r.notes.push_back("Whether both sides mean the same gradient was not asked: " + s.meant.why +
                      ".");
  const std::vector<std::string> of_a = step::remarks(s.a), of_b = step::remarks(s.b);
  const auto add_remarks = [&](const char* side, const auto& mine, const auto& others) {
    for (const std::string& remark : mine)
      if (std::ranges::find(others, remark) == others.end())
        r.remarks.push_back(fmt::format("side {} alone: {}", side, remark));
  };
  add_remarks("A", of_a, of_b);
  add_remarks("B", of_b, of_a);
  r.counts = {{"differing", s.differing},         {"aligned_by_bits", s.by_bits},
              {"aligned_by_values", s.by_values}, {"aligned_by_order", s.by_order},
              {"judged_a", s.a.judged},           {"calls_a", s.a.calls},
              {"judged_b", s.b.judged},           {"calls_b", s.b.calls}};
  r.confidence = fmt::format(
      "{} and {} calls were judged; {} results aligned by their bits, {} by their values, {} by "
      "module and order; {} differ",
      text::count(s.a.judged), text::count(s.b.judged), text::count(s.by_bits),
      text::count(s.by_values), text::count(s.by_order), text::count(s.differing));
  r.details = {both(s), inputs(s), differences(s), steps(s), unaligned(s)};
  std::erase_if(r.details, [](const DetailTable& t) { return t.rows.empty(); });
  return r;
}

}  // namespace twinrun
