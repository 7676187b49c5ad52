// Makes the report of a recorded step.
#include "reports/trace_verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "reports/text.h"
#include "reports/trace_step.h"

namespace twinrun {
namespace {

using Outcome = Answer::Outcome;

std::string of_result(const std::string& result, const std::string& type) {
  return result.empty() ? type : result + ", " + type;
}

std::string right(const TraceVerdict& v) {
  return fmt::format("every result of the {} judged calls is within its bound",
                     text::count(v.judged));
}

std::string first_open(const TraceVerdict& v) {
  const auto more = static_cast<int64_t>(v.open.size()) - 1;
  return v.open.front().what +
         (more > 0 ? fmt::format(" (and {} more)", text::plural(more, "open question")) : "");
}

Answer operations(const TraceVerdict& v) {
  if (v.outside_calls > 0)
    return {Outcome::kNo, fmt::format("{} of {} judged calls have results outside their bounds",
                                      text::count(v.outside_calls), text::count(v.judged))};
  if (v.judged == 0) return {Outcome::kOpen, "no call could be judged"};
  if (v.judged <= v.unrecorded)
    return {Outcome::kOpen, fmt::format("{} calls were judged and {} could not be recorded",
                                        text::count(v.judged), text::count(v.unrecorded))};
  if (!std::ranges::all_of(v.open, &OpenQuestion::of_program))
    return {Outcome::kOpen, first_open(v)};
  return {Outcome::kYes, right(v)};
}

Answer program(const TraceVerdict& v) {
  if (const std::string wrong = step::wrong(v); !wrong.empty()) return {Outcome::kNo, wrong};
  if (const auto q = std::ranges::find_if(v.open, &OpenQuestion::of_program);
      q != v.open.end() && !v.not_finite.weights)
    return {Outcome::kOpen, q->what};
  if (!v.not_finite.weights) return {Outcome::kPartly, step::looked_at(v)};
  const std::string from =
      v.not_finite.call < 0 ? ""
      : v.not_finite.from_input
          ? ": a NaN comes from outside of the recorded calls"
          : fmt::format(": {} returns the first NaN, rightly", v.not_finite.op);
  // A call that was not examined may have made it.
  return {v.open.empty() ? Outcome::kNo : Outcome::kOpen,
          "the weights become NaN or infinite" + from};
}

Answer sharding(const TraceVerdict& v) {
  if (v.ranks <= 1) return {Outcome::kNotApplicable, "one process"};
  return {Outcome::kNotAsked,
          fmt::format("{} of {} ranks were judged, one by one", v.rank_traces, v.ranks)};
}

Finding finding_of(const CallFinding& f) {
  Finding out;
  out.verdict = VerdictClass::kEngineBug;
  out.cause = "engine:" + f.op;
  out.level = ' ';
  out.step = f.step;
  out.phase = f.phase;
  out.op = f.op;
  out.call = f.call;
  out.place = f.place;
  out.module = f.module;
  out.composed = f.composed;
  const std::string at =
      f.place.empty()
          ? ""
          : fmt::format("{} {}", f.phase == "backward" ? ", of the forward call at" : " at",
                        step::innermost(f.place));
  if (!f.problem.empty()) {
    out.sentence = fmt::format("{}{}: {}", f.op, at, f.problem);
  } else {
    out.sentence = fmt::format("{}{}: {} of {} elements are outside their bound", f.op, at,
                               text::count(f.outside), text::count(f.elements));
    out.elements = fmt::format("{} of {} elements of {}{}, worst at {}", text::count(f.outside),
                               text::count(f.elements), of_result(f.result, f.type),
                               f.pattern.empty() ? "" : ": " + f.pattern, f.worst_index);
    out.outside = f.outside;
    out.fingerprint = f.signature;
    out.number = std::fabs(f.got - f.expected);
    out.bound = f.bound;
    out.number_text =
        fmt::format("{:.9g}, expected {:.9g} within {:.3g}", f.got, f.expected, f.bound);
    out.bound_source = "docs/method/calls.md";
  }
  if (f.made_by.size() > 1)
    out.evidence.push_back(
        fmt::format("the compiled code makes it by {}", fmt::join(f.made_by, ", ")));
  if (f.composed)
    out.evidence.emplace_back(
        "the function as a whole differs from its documented definition, although the calls that "
        "it is made of may each be right");
  if (!f.node.empty()) out.evidence.push_back("node of autograd: " + f.node);
  for (const CallOperand& o : f.operands)
    out.evidence.push_back(
        fmt::format("{}{}: {}", o.name, o.type.empty() ? "" : " " + o.type, o.values));
  return out;
}

DetailTable precision_losses(const TraceVerdict& v) {
  DetailTable t{"precision_losses",
                "Losses of precision",
                "Outside of the bounds of kernels that add in float32, within those of kernels "
                "that keep their sums in half precision.",
                {{"op", "operation"},
                 {"place", "place"},
                 {"module", "module"},
                 {"result", "result"},
                 {"times", "calls"},
                 {"digits", "right digits"}},
                {}};
  for (const IllConditioned& f : v.precision_losses)
    t.rows.push_back(
        {f.op, step::innermost(f.place), f.module, of_result(f.result, f.type), f.times, f.digits});
  return t;
}

DetailTable ill_conditioned(const TraceVerdict& v) {
  DetailTable t{"ill_conditioned",
                "Results without a correct digit",
                "Within their bounds, but nothing is left of them except rounding error: the "
                "true value is 0, or the terms cancel. The gradient of a bias before a batch norm "
                "is such a result, and harmless.",
                {{"op", "operation"},
                 {"place", "place"},
                 {"module", "module"},
                 {"result", "result"},
                 {"times", "calls"},
                 {"error", "largest error"},
                 {"expected", "largest expected value"},
                 {"bound", "largest bound"}},
                {}};
  for (const IllConditioned& f : v.ill_conditioned)
    t.rows.push_back({f.op, step::innermost(f.place), f.module, of_result(f.result, f.type),
                      f.times, f.error, f.expected, f.bound});
  return t;
}

using Ops = std::vector<std::pair<const std::string*, const TraceOp*>>;

DetailTable operations_table(const Ops& ops) {
  DetailTable t{"operations",
                "Operations",
                "The largest error / bound first.",
                {{"op", "operation"},
                 {"calls", "calls"},
                 {"judged", "judged"},
                 {"outside", "outside"},
                 {"elements", "elements"},
                 {"median", "error / bound: median of calls"},
                 {"worst", "largest"}},
                {}};
  for (const auto& [name, op] : ops)
    t.rows.push_back({*name, op->calls, op->judged, op->outside, op->elements, op->median(),
                      op->ratios.empty() ? NAN : op->worst});
  return t;
}

DetailTable not_judged(const TraceVerdict& v) {
  DetailTable t{"not_judged",
                "Seen, not judged",
                "",
                {{"op", "operation"},
                 {"calls", "calls"},
                 {"on_path", "that an update depends on"},
                 {"why", "why"}},
                {}};
  for (const auto& [key, u] : v.unjudged)
    t.rows.push_back({key.first, u.calls, u.on_path, key.second});
  return t;
}

std::optional<DotFigure> figure_of(const Ops& ops) {
  constexpr size_t kDrawn = 40;
  DotFigure figure{"Error over bound of each call, by operation",
                   "A dot is a judged call: the largest of |result - expected| / bound over its "
                   "elements. What is right of the bound is wrong.",
                   "largest error / bound of a call",
                   {}};
  int64_t exact = 0, more = 0;
  for (const auto& [name, op] : ops) {
    if (op->ratios.empty()) continue;
    if (op->worst == 0) {
      ++exact;
    } else if (figure.rows.size() == kDrawn) {
      ++more;
    } else {
      figure.rows.push_back({name->starts_with("aten.") ? name->substr(5) : *name, op->ratios});
    }
  }
  if (exact > 0)
    figure.description +=
        fmt::format(" Not drawn: {}, exact in every call.", text::plural(exact, "operation"));
  if (more > 0)
    figure.description += fmt::format(" {} are in the table only.", text::plural(more, "other"));
  return figure.rows.empty() ? std::nullopt : std::optional(figure);
}

// The first NaN, where it matters or can be explained.
std::string describe(const NotFinite& n) {
  return fmt::format(
      "The first NaN: step {}, call {}, {} ({}){}. {} {}", n.step, n.call, n.op, n.phase,
      n.place.empty() ? "" : " at " + step::innermost(n.place),
      n.from_input ? "It read a NaN that no recorded call had made." : "What it read has no NaN.",
      n.weights ? "After the last step some weights are not finite."
                : "After the last step the weights are finite.");
}

std::vector<std::string> notes_of(const TraceVerdict& v) {
  std::vector<std::string> notes;
  if (v.not_finite.call >= 0) notes.push_back(describe(v.not_finite));
  if (v.outside_calls > static_cast<int64_t>(v.findings.size()))
    notes.push_back(fmt::format("{} more calls are outside their bounds and not listed.",
                                v.outside_calls - static_cast<int64_t>(v.findings.size())));
  if (v.precision_loss_results > 0)
    notes.push_back(fmt::format("{} with a loss of precision.",
                                text::plural(v.precision_loss_results, "result")));
  if (v.ill_conditioned_results > 0)
    notes.push_back(fmt::format(
        "{} without a correct digit, for which the terms cancel. An optimizer that divides by the "
        "gradient's size makes them steps of full size{}.",
        text::plural(v.ill_conditioned_results, "result"),
        v.uncertain_update > 0
            ? fmt::format(": up to {:.2g} % of the update's norm", 100 * v.uncertain_update)
            : ""));
  if (const GradientCheck& g = v.gradient; g.is_allowed()) {
    notes.push_back(step::meant(g));
  } else if (!g.asked) {
    notes.push_back(fmt::format(
        "Whether the gradient is the derivative of the loss was not asked: {}.", g.why));
  }
  if (!v.gradient.allowed_in_vain.empty())
    notes.push_back(
        fmt::format("--allow names {}, and no function or hook of this step is called so.",
                    fmt::join(v.gradient.allowed_in_vain, " and ")));
  if (v.gradient.unscaled > 0)
    notes.push_back(
        fmt::format("The gradient of step {} is the sum of {} backward passes of one line, which "
                    "nothing divides: "
                    "if they are of micro-batches, it is {} times that of the whole batch. Whether "
                    "the passes of a "
                    "step mean what one pass would was not asked.",
                    v.gradient.step, v.gradient.unscaled, v.gradient.unscaled));
  if (!v.update.asked && v.update.like.empty())
    notes.push_back(
        fmt::format("Whether the update is the optimizer's published formula was not asked: {}.",
                    v.update.why));
  if (v.without_update)
    notes.emplace_back("No update of a weight is in the trace, so every call counts.");
  notes.insert(notes.end(), v.notes.begin(), v.notes.end());
  if (!v.observer.empty()) notes.push_back(v.observer);
  return notes;
}

}  // namespace

VerdictClass TraceVerdict::verdict() const { return classify(answers_of(*this)); }

std::string TraceVerdict::headline() const {
  if (outside_calls > 0) {
    const CallFinding& f = findings.front();
    return fmt::format("{} computes something else than its definition, first at step {}, call {}",
                       f.op, f.step, f.call);
  }
  if (judged <= unrecorded) return operations(*this).what;
  if (const std::string wrong = step::wrong(*this); !wrong.empty()) return wrong;
  if (!open.empty()) return fmt::format("{}; {}", first_open(*this), right(*this));
  if (not_finite.weights) return fmt::format("{}, and {}", program(*this).what, right(*this));
  return right(*this);
}

double TraceOp::median() const {
  if (ratios.empty()) return NAN;
  std::vector<double> sorted = ratios;
  std::ranges::sort(sorted);
  const size_t n = sorted.size();
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

Answers answers_of(const TraceVerdict& v) {
  Answers out;
  out.repeats = {Outcome::kNotAsked, "the steps were recorded once"};
  out.operations = operations(v);
  out.program = program(v);
  out.sharding = sharding(v);
  out.effect = {Outcome::kNotAsked, "a few steps do not say what the model learns"};
  return out;
}

Report report_of(const TraceVerdict& v) {
  Report r;
  r.kind = "recorded step";
  r.scenario_name = v.script.empty() ? v.trace : v.script;
  r.subject = v.framework;
  r.answers = answers_of(v);
  r.verdict = v.verdict();
  r.headline = v.headline();
  r.open = v.open;
  for (const CallFinding& f : v.findings) r.findings.push_back(finding_of(f));
  step::add_findings(v, r);
  r.notes = notes_of(v);
  r.remarks = step::remarks(v);
  r.counts = {{"steps", v.steps},
              {"calls", v.calls},
              {"judged", v.judged},
              {"calls_outside", v.outside_calls},
              {"elements", v.elements},
              {"untestable", v.untestable},
              {"on_path", v.on_path},
              {"judged_by_parts", v.by_parts},
              {"rank", v.rank},
              {"ranks", v.ranks},
              {"ill_conditioned_results", v.ill_conditioned_results},
              {"precision_loss_results", v.precision_loss_results}};
  r.numbers["uncertain_update"] = v.uncertain_update;
  if (v.gradient.asked) r.numbers["gradient_off"] = v.gradient.worst;
  if (v.update.asked && std::isfinite(v.update.worst)) r.numbers["update_off"] = v.update.worst;
  r.confidence =
      fmt::format("{} of {} in {}, {} compared{}; the new weights depend on {} of the calls",
                  text::count(v.judged), text::plural(v.calls, "call"),
                  text::plural(v.steps, "step"), text::plural(v.elements, "element"),
                  v.untestable > 0 ? text::unbounded(v.untestable) : "", text::count(v.on_path));
  Ops ops;
  for (const auto& [name, op] : v.ops) ops.emplace_back(&name, &op);
  std::ranges::stable_sort(
      ops, [](const auto& a, const auto& b) { return a.second->worst > b.second->worst; });
  r.details = {precision_losses(v), ill_conditioned(v), operations_table(ops), not_judged(v)};
  std::erase_if(r.details, [](const DetailTable& t) { return t.rows.empty(); });
  r.figure = figure_of(ops);
  for (const auto& [key, value] : v.settings) r.environment[key] = value;
  r.environment["framework"] = v.framework;
  r.environment["trace"] = v.trace;
  return r;
}

}  // namespace twinrun
