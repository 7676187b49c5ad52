// while and conditional: loops are unrolled iteration by iteration, and of branches the one that is
// taken is lowered, or all of them. Between the importer, which inlines computations, and the graph.
//
//   HloValue results = lower_while(call, operands);      // the carried values after the last iteration
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "program/import/site.h"

namespace twinrun {

// An array or a tuple of values; neither if its instruction was refused.
struct HloValue {
  ValueId id = kNoValue;
  std::vector<HloValue> parts;
  bool known() const {
    return id != kNoValue || (!parts.empty() && std::ranges::all_of(parts, &HloValue::known));
  }
};

// The position in the source from which an inlined computation was called.
struct CallSite {
  std::string path, source;
  bool gradient = false;
};

// An instruction with computations of its own, and how to lower those.
struct ControlFlow {
  const HloModule& module;
  const HloComputation& caller;
  const HloInstruction& in;
  const CallSite& scope;
  Graph& graph;
  Shared& shared;
  std::function<HloValue(const HloComputation&, const std::vector<HloValue>&)> inlined;
  std::function<bool()> stopped;  // after a refusal, or at the limit of ops

  // The computation that attribute `key` names. Throws Unsupported if it does not come before the
  // caller, so that no computation can contain itself.
  const HloComputation& callee(const std::string& name) const;
};

// HLO's loops have one tuple as their operand and as the parameter of both computations. Those of
// StableHLO have attribute "carried", the number of values that change; the operands after them are
// values that the regions read from outside. Throws Unsupported if the condition depends on data.
HloValue lower_while(const ControlFlow& flow, std::vector<HloValue> operands);

// The first operand chooses: a predicate between true_computation and false_computation, or a
// number among branch_computations. Each branch has the next operand as its parameter; with
// attribute "captured" all of the operands.
HloValue lower_conditional(const ControlFlow& flow, const std::vector<HloValue>& operands);

}  // namespace twinrun
