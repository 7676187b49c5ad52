// What is found of a recorded step, as plain structs, and the Report that they make.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reports/report.h"

namespace twinrun {

// An argument of a call, as far as it explains one element of a result.
struct CallOperand {
  std::string name, type;  // "argument 2", "alpha"; "float32[64, 10]", "" of what is no tensor
  std::string values;      // "0.25 at [3,7]; all from -1.5 to 2"
};

// A call with a result outside its bound, or with another problem.
struct CallFinding {
  int64_t call = 0;  // its number in the trace
  int32_t step = 0;
  std::string op, place, module, node, phase;  // phase: "forward", "backward", "optimizer"
  int64_t forward = -1;                        // of a backward call: the forward call
  bool composed = false;                       // a function made of several calls
  std::string problem;                         // instead of what follows: a sentence
  std::string result, type;                    // "result 2 of 3", "float32[64, 10]"
  int64_t elements = 0, outside = 0;
  std::string pattern, worst_index, signature;
  std::vector<std::string> made_by;  // of a compiled region: its operations behind the result
  double got = 0, expected = 0, bound = 0;  // at the worst element
  std::vector<CallOperand> operands;        // at the worst element
};

// Results within their bounds of which no digit is right: the largest error of the elements exceeds
// half of the largest value expected, because the terms that they are computed from cancel. Those of
// one operation at one place are one entry.
struct IllConditioned {
  int64_t call = 0;
  int32_t step = 0;
  std::string op, place, module, node, phase;  // as in CallFinding
  std::string result, type;
  int64_t times = 1;
  double error = 0, expected = 0, bound = 0;  // each the largest of all elements and times
  double digits =
      0;  // of a loss of precision: decimal digits that are right; the fewest of all times
};

struct TraceOp {
  int64_t calls = 0, judged = 0, outside = 0, elements = 0;
  double worst = 0;  // the largest |result - expected| / bound
  // The largest of each call with elements that were compared.
  std::vector<double> ratios;
  double median() const;  // of `ratios`; NaN without any
};

// The calls of one operation that were not judged for one reason.
struct UnjudgedCalls {
  int64_t calls = 0, on_path = 0;  // on_path: those that an update depends on
};

// The first NaN of the trace, and whether the weights of its end are finite.
struct NotFinite {
  bool weights = false;  // some weight is not finite after the last step
  int64_t call = -1;     // that returned the first NaN, whatever it had read; -1: none did
  int32_t step = 0;
  std::string op, place, phase, node, module;
  bool judged = false;      // and found to be right
  bool from_input = false;  // it read a NaN that no call had made
};

// Whether the recorded gradient is the derivative of the loss that was computed.
struct GradientCheck {
  bool asked = false;
  std::string why;  // it was not
  int32_t step = 0;
  std::vector<std::string> functions;  // of the script, whose backward passes ran in the step
  // The largest difference of the loss's slope from the gradient's, along the gradient and along
  // random signs, relative to what is compared.
  double worst = 0;
  int64_t unscaled = 0;  // backward passes of one line whose gradients are added as they are
  bool is_wrong = false;
  std::string node, place;  // where the backward pass becomes wrong
  std::string function;     // of the script, if that is one: "__main__.Swish"
  // The call that has written what a node had kept for its backward pass, past autograd, and the type
  // of that; `place` is the call's then.
  std::string changed_by, changed;
  // The call of the forward pass whose random numbers the backward pass draws anew.
  std::string drawn_again;
  // The function gives its input, or only steps: then its backward pass is its purpose. A hook
  // changes a gradient on purpose.
  bool passes_on = false, has_steps = false, is_hook = false;
  // Functions of the script that are right; if the gradient is wrong, examined by themselves. Those
  // that are meant to be no derivative.
  std::vector<std::string> right, meant;
  // Of the names that the user allows to give another gradient, those that do, and those that nothing
  // here has.
  std::vector<std::string> allowed, allowed_in_vain;
  static constexpr double kLeast = 0x1p-10;  // differences below are not told: gradient.cc
  bool is_meant() const { return is_wrong && (passes_on || has_steps || is_hook || is_allowed()); }
  // All that makes the gradient another one is.
  bool is_allowed() const {
    return is_wrong && !allowed.empty() && allowed.size() >= std::max<size_t>(meant.size(), 1);
  }
  // It is known what is wrong, and it is not meant.
  bool accuses() const { return is_wrong && !node.empty() && !is_meant(); }
};

// Gradients that a step adds to those of the step before, whose update was made with them.
struct UnclearedGradients {
  int32_t step = 0;
  int64_t weights = 0;
  std::string place;  // of the backward pass
};

// Weights as they were before an update, through which the gradient of a later step goes.
struct StaleReads {
  bool asked =
      false;  // a step after the first one has a backward pass whose forward calls are known
  int64_t weights = 0;
  int32_t step = 0, made_in = 0;  // of the first: the step of the gradient, and that of the reading
  std::string op, place;          // the call that read the weight
};

// A detached copy of a weight that a later step computes with, although the weight was updated since.
struct OldCopy {
  int32_t step = 0, made_in = 0;
  std::string type;       // of the copy
  std::string op, place;  // the call that made it
};

// A call of the script.
struct CallSite {
  std::string op, place;
};

// Which weights the recorded steps train.
struct TrainedWeights {
  bool asked = false;      // it is known what the optimizers hold
  int64_t parameters = 0;  // of the optimizers, that require a gradient
  int64_t frozen = 0;      // those that require none
  // Those that no gradient reached in any step; of one of them the type, and the forward call that
  // reads it, if one does.
  int64_t without_gradient = 0;
  std::string optimizer, type, op, place;
  // Weights that have gradients, and that nothing updates; the type of one.
  int64_t not_updated = 0;
  std::string not_updated_type;
  // The optimizers step, and change nothing; the weights without gradients have successors of the
  // same types with gradients, which no optimizer holds.
  bool is_nothing_updated = false, is_replaced = false;
  static constexpr int32_t step = 0;
  bool is_wrong() const { return is_nothing_updated || is_replaced; }
};

// Whether the updates are the published formulas of their optimizers.
struct UpdateCheck {
  // A difference below is none. Optimizers keep numbers that all elements share in float32: each has an
  // error of 2^-24, and a formula has fewer than 64.
  static constexpr double kLeast = 64 * 0x1p-24;
  bool asked = false;
  std::string why;                      // it was not
  std::vector<std::string> optimizers;  // "torch.optim.AdamW"
  // The largest difference of a parameter's update, or of its state, from the formula's, relative to
  // the largest element.
  double worst = 0;
  int64_t parameters = 0, wrong = 0;
  // The first that is wrong.
  bool is_wrong = false;
  int32_t step = 0;
  double off = 0;
  std::string optimizer, place;
  // Of an optimizer that is none of PyTorch's, where its updates are those of no formula, of one but
  // for a part of it, or of another one than its name says.
  std::string like;
  std::string type;  // of the parameter: "float32[64, 10]"
  std::string what;  // "the weights", "its state exp_avg_sq"
  std::string
      looks;  // "it is the formula without its weight decay"; "" if it is none that is known
};

struct TraceVerdict {
  std::string trace, framework, script;
  int64_t steps = 0, calls = 0, judged = 0, outside_calls = 0;
  int64_t elements = 0, untestable = 0;
  std::vector<CallFinding> findings;            // in the order of the calls, at most 200
  std::vector<IllConditioned> ill_conditioned;  // at most 200
  int64_t ill_conditioned_results = 0;          // all of them
  // Results of half precision outside of their bounds, but within those of a kernel that keeps its sums
  // in half precision: another rounding, not another function. At most 200.
  std::vector<IllConditioned> precision_losses;
  int64_t precision_loss_results = 0;  // all of them
  std::map<std::string, TraceOp> ops;
  std::map<std::pair<std::string, std::string>, UnjudgedCalls> unjudged;  // by {op, why}
  int64_t by_parts = 0;         // composed functions without a verdict, whose calls were judged
  int64_t on_path = 0;          // calls that an update depends on
  bool without_update = false;  // no update of a weight is in the trace: then every call counts
  int64_t rank = 0, ranks = 1, rank_traces = 1;  // of how many ranks the traces were given
  std::vector<OpenQuestion> open;
  GradientCheck gradient;
  UpdateCheck update;
  std::optional<UnclearedGradients> uncleared;
  StaleReads stale;
  TrainedWeights trained;
  bool repeats_batch = false;  // each step reads the same one
  std::optional<OldCopy> old_copy;
  // What writes weights besides the updates, and gradients after the update that was made with them.
  std::optional<CallSite> weights_written, gradients_written, scaled_gradients_written;
  std::optional<CallSite> stretched_loss;
  std::optional<CallSite> unused_backward;  // a backward pass whose gradients nothing uses
  std::vector<std::string> dropout_off;  // modules of dropout, all of which are in evaluation mode
  std::optional<CallSite> evaluating;    // batch normalisation, all of which is in evaluation mode
  NotFinite not_finite;
  // The part of the update's norm that belongs to parameters whose gradient has no correct digit;
  // the largest of the steps.
  double uncertain_update = 0;
  int64_t unrecorded = 0;  // calls that the recorder could not record
  std::vector<std::string> notes;
  std::vector<std::pair<std::string, std::string>> settings;  // of the framework
  std::string observer;  // whether recording changed what the script computes; "" if not examined

  // kEngineBug; kInconclusive where something that the new weights depend on was not examined;
  // kProgram where right calls make weights that are not finite; otherwise kNoise.
  VerdictClass verdict() const;
  std::string headline() const;  // a sentence without a full stop
};

Answers answers_of(const TraceVerdict& verdict);
Report report_of(const TraceVerdict& verdict);

}  // namespace twinrun
