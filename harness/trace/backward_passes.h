// The backward passes of a step, as they are recorded: what each begins with, and the gradients of
// weights that it adds up.
//
//   const Step step = step_of(trace, begin, end);   // calls of one step
//   for (const std::vector<Pass>& group : groups_of(trace, step)) ...
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "harness/trace/trace_file.h"

namespace twinrun {

// Whether a call computes: it is one of PyTorch's own and not composed of others.
bool is_work(const aten::Call& call);

// Whether a call gives new values to all that it writes, as those that clear gradients do.
bool clears_all(const aten::Call& call);

// The storages that calls `begin` to `end` compute.
std::unordered_set<uint64_t> computed_in(const TraceFile& trace, int64_t begin, int64_t end);

// The gradient that a call within AccumulateGrad adds, and the leaf's storage.
struct Contribution {
  int64_t call = 0;
  uint64_t leaf = 0;
  const aten::TensorView* view = nullptr;
};
// Of a call that is none: nullopt.
std::optional<Contribution> contribution_of(const aten::Call& call);

// One backward pass.
struct Pass {
  int64_t begin = 0, end = 0;
  std::vector<const aten::TensorView*> losses;
  std::vector<int64_t> seeds;  // the calls that make the ones it begins with
  // Where the script gives the gradient that it begins with: that. `seeds` is the call that gives what
  // it is the gradient of, so that the loss is their product.
  const aten::TensorView* given = nullptr;
  std::vector<Contribution> contributions;
  std::set<uint64_t> leaves() const {
    std::set<uint64_t> out;
    for (const Contribution& c : contributions) out.insert(c.leaf);
    return out;
  }
};

struct Step {
  int64_t begin = 0, end = 0;
  std::vector<Pass> passes;
  std::string why;                  // it cannot be asked
  std::set<std::string> functions;  // of the script, whose backward passes ran
  bool has_half = false;            // tensors of half precision
  bool has_regions =
      false;  // that torch.compile made: what they hold fixed their graphs do not tell
};

Step step_of(const TraceFile& trace, int64_t begin, int64_t end);

// Numbers that a step has in its tensors, counted once for each call that reads them, and how many it
// may have: beyond that its evaluation takes minutes.
double size_of_step(const TraceFile& trace, const Step& step);
constexpr double kLargestStep = 0x1p28;

// Passes of one line of the script, as of micro-batches, whose losses and gradients no call scales: the
// update is made of the sum of their gradients. 0: none.
int64_t unscaled_passes(const TraceFile& trace, const Step& step, const std::vector<Pass>& group);

// Random draws within a backward pass, each with the one of the forward pass that it may repeat: of the
// same operation and dimensions. The ways to pair them that are likely, with checkpoints in the order of
// the forward pass or against it.
std::vector<std::map<int64_t, int64_t>> drawn_again(const TraceFile& trace, int64_t step,
                                                    const Pass& pass);

// Passes that add to the same gradient before an optimizer reads it.
std::vector<std::vector<Pass>> groups_of(const TraceFile& trace, const Step& step);

}  // namespace twinrun
