// The words for what a recorded step does as a whole, and its findings.
#include "reports/trace_step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "reports/text.h"

namespace twinrun {

std::string step::innermost(const std::string& place) { return place.substr(0, place.find('\n')); }

namespace {

using step::innermost;

// "train.py:8" of "train.py:8 in backward: def backward(ctx, g):"
std::string line_of(const std::string& place) {
  const std::string first = innermost(place);
  return first.substr(0, first.find(" in "));
}

// "from __main__.Swish on, whose backward pass is defined at train.py:8"
std::string where(const GradientCheck& g) {
  if (!g.changed_by.empty())
    return fmt::format("{} wrote {} after the forward pass had kept it for {}, past autograd{}",
                       g.changed_by, g.changed, g.node,
                       g.place.empty() ? "" : ", at " + line_of(g.place));
  if (!g.drawn_again.empty())
    return fmt::format(
        "the backward pass computes a part of the forward pass again, and draws other "
        "numbers than {} drew{}",
        g.drawn_again, g.place.empty() ? "" : " at " + line_of(g.place));
  if (!g.function.empty())
    return fmt::format("from {} on, whose backward pass is defined at {}", g.function,
                       line_of(g.place));
  if (g.node.empty()) return "";
  return fmt::format("from {} on{}", g.node,
                     g.place.empty() ? "" : ", of the forward call at " + line_of(g.place));
}

std::string described(const GradientCheck& g) {
  const std::string of = where(g);
  return fmt::format("the gradient is not the derivative of the loss{}{}", of.empty() ? "" : ": ",
                     of);
}

std::string described(const UnclearedGradients& u) {
  return fmt::format(
      "gradients are not cleared: step {} adds those of {} to gradients that an update was made "
      "with",
      u.step, text::plural(u.weights, "weight"));
}

std::string described(const StaleReads& s) {
  return fmt::format("step {} computes with {} from before an update: {} read {} in step {}",
                     s.step, s.weights == 1 ? "a weight" : text::plural(s.weights, "weight"), s.op,
                     s.weights == 1 ? "it" : "them", s.made_in);
}

std::string described(const UpdateCheck& u) {
  return fmt::format("the update of step {} is not the published formula of {}{}", u.step,
                     u.optimizer, u.looks.empty() ? "" : ": " + u.looks);
}

std::string described(const TrainedWeights& t) {
  const std::string all = text::plural(t.parameters, "parameter");
  const std::string holds =
      t.without_gradient == t.parameters
          ? fmt::format("none of the {} that {} holds has a gradient", all, t.optimizer)
          : fmt::format("{} of the {} that {} holds have no gradient",
                        text::count(t.without_gradient), all, t.optimizer);
  const std::string others = text::plural(t.not_updated, "weight");
  if (t.is_nothing_updated)
    return "no weight is updated: " + holds +
           (t.not_updated == 0 ? "" : ", and " + others + " with one belong to no optimizer");
  if (t.is_replaced)
    return fmt::format(
        "{}, and {} of the same shapes have one and are not updated: they took the place of those "
        "after the optimizer was made",
        holds, others);
  std::vector<std::string> parts;
  if (t.without_gradient > 0)
    parts.push_back(fmt::format("{} (such as {}{})", holds, t.type,
                                t.op.empty() ? ", which no forward call reads"
                                : t.place.empty()
                                    ? ", which " + t.op + " reads"
                                    : ", which " + t.op + " reads at " + line_of(t.place)));
  if (t.not_updated > 0)
    parts.push_back(fmt::format("{} with a gradient {} not updated (such as {})", others,
                                t.not_updated == 1 ? "is" : "are", t.not_updated_type));
  return fmt::format("{}", fmt::join(parts, "; "));
}

// " at train.py:8"; "" of no place.
std::string at_line(const std::string& place) {
  return place.empty() ? "" : " at " + line_of(place);
}

// A finding about the step itself: what the program asks for, not how it was computed.
template <class Check>
Finding step_finding(const char* cause, const char* phase, const Check& check) {
  Finding out;
  out.verdict = VerdictClass::kProgram;
  out.cause = cause;
  out.level = ' ';
  out.step = check.step;
  out.phase = phase;
  out.place = check.place;
  out.sentence = described(check);
  return out;
}

Finding finding_of(const GradientCheck& g) {
  Finding out = step_finding("gradient", "backward", g);
  out.op = g.function.empty() ? g.node : g.function;
  out.number = g.worst;
  out.bound = GradientCheck::kLeast;
  out.number_text = fmt::format(
      "in binary64, where no rounding of the step is left, the loss changes otherwise than the "
      "gradient says, by {:.3g} of it",
      g.worst);
  out.bound_source = "docs/method/calls.md#the-gradient";
  return out;
}
std::string what_to_do(const GradientCheck& g) {
  if (!g.changed_by.empty())
    return "write it before the forward pass reads it, or after the backward pass";
  if (!g.drawn_again.empty())
    return "give the random numbers their state back: preserve_rng_state=True of checkpoint()";
  return "torch.autograd.gradcheck, in float64, shows it for a function alone" +
         (g.function.empty()
              ? ""
              : fmt::format("; if another gradient is meant: --allow {}", g.function));
}

Finding finding_of(const UnclearedGradients& u) {
  return step_finding("uncleared_gradients", "backward", u);
}
std::string what_to_do(const UnclearedGradients&) {
  return "call optimizer.zero_grad() between the update and the next backward pass: nothing set "
         "the "
         "gradients to zero or None";
}

Finding finding_of(const TrainedWeights& t) {
  Finding out = step_finding("untrained_weights", "optimizer", t);
  out.op = t.optimizer;
  return out;
}
std::string what_to_do(const TrainedWeights& t) {
  return t.not_updated == 0
             ? "look for detach(), no_grad() or another model between the weights and the loss"
             : "make the optimizer after the model is complete (copied, moved, given new layers), "
               "from the parameters that the loss is computed with";
}

Finding finding_of(const StaleReads& s) {
  Finding out = step_finding("stale_weights", "forward", s);
  out.op = s.op;
  return out;
}
std::string what_to_do(const StaleReads&) {
  return "compute in each step what is computed of a weight, such as its cast to half precision: a "
         "torch.autocast region for each step, not one around the loop";
}

Finding finding_of(const UpdateCheck& u) {
  Finding out = step_finding("update", "optimizer", u);
  out.op = u.optimizer;
  out.number = u.off;
  out.bound = UpdateCheck::kLeast;
  out.number_text = fmt::format(
      "{} of a parameter {} differ by {:.2g} of the largest element from what the formula gives in "
      "binary64; {} of {} parameters are so",
      u.what, u.type, u.off, u.wrong, u.parameters);
  out.bound_source = "docs/method/calls.md#the-update";
  return out;
}

std::string what_to_do(const UpdateCheck&) {
  return "hold the optimizer against another implementation (foreach=True, another release: "
         "twinrun "
         "diagnose --against B A)";
}

}  // namespace

std::string step::meant(const GradientCheck& g) {
  const std::string line = line_of(g.place);
  // Of the hook "train.py:8 in scale: return 2 * g", "scale".
  const std::string hook = innermost(g.place).substr(std::min(line.size() + 4, g.place.size()));
  const std::string names =
      g.is_hook ? hook.substr(0, hook.find(':')) : fmt::format("{}", fmt::join(g.meant, ","));
  const std::string by =
      g.is_hook        ? fmt::format("{} at {} changes it", g.node, line)
      : g.is_allowed() ? fmt::format("{} gives another one", fmt::join(g.meant, " and "))
      : g.passes_on    ? fmt::format("{} passes its input on, and changes it", g.function)
                       : fmt::format("the forward pass of {} has steps", g.function);
  if (g.is_allowed())
    return fmt::format("The gradient is not the derivative of the loss, as --allow says: {}.", by);
  const bool is_plain = names.find('<') == names.npos;  // "<lambda>" is not, for a shell
  return fmt::format(
      "the gradient is not the derivative of the loss, which seems to be meant: {}. If it is, "
      "allow it by name: --allow {}",
      by, is_plain ? names : "'" + names + "'");
}

std::vector<std::string> step::remarks(const TraceVerdict& v) {
  std::vector<std::string> told;
  if (v.gradient.is_meant() && !v.gradient.is_allowed()) told.push_back(meant(v.gradient));
  if (std::string weights = described(v.trained); !weights.empty()) told.push_back(weights);
  if (v.gradient.unscaled > 0)
    told.push_back(fmt::format(
        "the gradient is the sum of {} backward passes of one line, which nothing divides",
        v.gradient.unscaled));
  if (const auto& c = v.old_copy)
    told.push_back(
        fmt::format("step {} computes with a copy of a weight ({}) from before an update: {} made "
                    "it in step {}{}",
                    c->step, c->type, c->op, c->made_in, at_line(c->place)));
  const auto tell = [&](const std::optional<CallSite>& call, const char* words) {
    if (call) told.push_back(call->op + at_line(call->place) + words);
  };
  tell(v.weights_written, " changes weights besides the optimizer's updates");
  tell(v.gradients_written, " changes gradients after the update that used them");
  tell(v.scaled_gradients_written,
       " changes gradients before the scaler divides them by its scale");
  tell(v.stretched_loss,
       " compares each number of the one tensor with each of the other: their shapes differ, and "
       "both are stretched");
  if (const auto& c = v.unused_backward)
    told.push_back(
        fmt::format("the gradients of a backward pass{} are cleared before anything uses them",
                    at_line(c->place)));
  if (!v.update.like.empty()) told.push_back(v.update.like);
  if (v.repeats_batch) told.emplace_back("each step reads the same batch");
  tell(v.evaluating, ", as all batch normalisation here, is in evaluation mode");
  if (!v.dropout_off.empty())
    told.push_back("all dropout is in evaluation mode, such as " + v.dropout_off.front());
  return told;
}

std::string step::looked_at(const TraceVerdict& v) {
  const GradientCheck& g = v.gradient;
  const UpdateCheck& u = v.update;
  std::vector<std::string> asked, open;
  if (g.is_meant())
    asked.push_back(fmt::format("the gradient is not the derivative of the loss, which {}",
                                g.is_allowed() ? "is allowed (--allow)" : "seems to be meant"));
  else if (g.asked && !g.is_wrong)
    asked.push_back(
        g.worst < GradientCheck::kLeast
            ? fmt::format("the gradient of step {} is the derivative of its loss (they differ by "
                          "{:.1e} of it)",
                          g.step, g.worst)
            : fmt::format("the gradient of step {} is within {:.1e} of the derivative of its loss, "
                          "which roundings to half precision may explain and float32 would decide",
                          g.step, g.worst));
  else if (!g.is_wrong)
    open.emplace_back("whether the gradient is the derivative of the loss");
  if (u.asked)
    asked.push_back(
        fmt::format("the updates are the published formula of {} (they differ by {:.1e})",
                    fmt::join(u.optimizers, " and "), u.worst));
  else if (u.like.empty())
    open.push_back("whether the update is the optimizer's published formula" +
                   (u.why.empty() ? "" : fmt::format(" ({})", u.why)));
  if (const TrainedWeights& t = v.trained; t.asked && t.without_gradient == 0)
    asked.push_back(
        t.frozen == 0
            ? "every parameter of the optimizers has a gradient"
            : fmt::format("{} of {} of the optimizers are frozen, the others have a gradient",
                          text::count(t.frozen),
                          text::plural(t.frozen + t.parameters, "parameter")));
  if (v.stale.asked) asked.emplace_back("no gradient goes through an earlier version of a weight");
  open.emplace_back(
      "whether the model and its mode, the loss, the data, and what else is done to gradients and "
      "weights are those that you mean");
  asked.push_back(fmt::format("not asked: {}", fmt::join(open, ", ")));
  return fmt::format("{}", fmt::join(asked, "; "));
}

// The most important first.
std::string step::wrong(const TraceVerdict& v) {
  if (v.gradient.accuses()) return described(v.gradient);
  if (v.trained.is_wrong()) return described(v.trained);
  if (v.uncleared) return described(*v.uncleared);
  if (v.stale.weights > 0) return described(v.stale);
  return v.update.is_wrong ? described(v.update) : "";
}

void step::add_findings(const TraceVerdict& v, Report& r) {
  const auto add = [&](const auto& check) {
    r.findings.push_back(finding_of(check));
    r.next_steps.push_back(what_to_do(check));
  };
  if (v.gradient.accuses()) add(v.gradient);
  if (v.trained.is_wrong()) add(v.trained);
  if (v.uncleared) add(*v.uncleared);
  if (v.stale.weights > 0) add(v.stale);
  if (v.update.is_wrong) add(v.update);
}

}  // namespace twinrun
