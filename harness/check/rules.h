// The rules, grouped by what they read. Each function appends its findings; check.cc sorts them.
// Used by harness/check only.
#pragma once

#include <fmt/format.h>

#include "harness/check/check.h"
#include "harness/check/tf_step.h"

namespace twinrun::check {

using Findings = std::vector<RuleFinding>;

// A finding of a rule. `arguments` are formatted into the rule's message.
template <typename... Arguments>
RuleFinding finding(std::string_view id, std::string where, std::string found, std::string why,
                    std::string fix, const Arguments&... arguments) {
  const Rule& r = rule(id);
  return {r.id,
          r.severity,
          std::move(where),
          std::move(found),
          std::move(why),
          std::move(fix),
          fmt::format(fmt::runtime(r.message), arguments...)};
}

// Rules that read keys only: batch, steps, data, reductions, clipping, sizes of layers.
void check_keys(const ReadScenario& read, Findings& out);
// Rules about layers and losses across samples. `forward`: the program of the whole batch, before
// sharding.
void check_couplings(const ReadScenario& read, const Program& forward, Findings& out);
// Rules about the sharded step: that gradients are reduced over the cores.
void check_collectives(const Program& step, const std::string& where, Findings& out);
// What import refuses, so that the step cannot be diagnosed, where no error says it already.
void check_import(const std::vector<ImportProblem>& problems, const std::string& file,
                  Findings& out);
// The name of an instruction in findings: "fft.3:41", with its line, as names may repeat between
// functions.
std::string op_id(const HloInstruction& in);
// Rules about a text: element types, sizes, opcodes, random numbers, all-reduces. The first `state`
// parameters are fed once, the others at every step.
void check_text(const HloModule& module, size_t state, Findings& out);

// The name of a node in findings: "main/dense/MatMul", with the function that it is in.
std::string tf_node_id(const TfBody& body, const TfNode& node);
// Rules about what of a TensorFlow graph runs on the TPU: ops, types, shapes, placement, and what
// the loop over steps and the infeed need.
void check_tf_graph(const TfGraph& graph, const TfStep& step, Findings& out);
// An input of a node that must be known when the step is compiled, and depends on what is fed, on a
// variable or on a random number.
struct ComputedInput {
  const TfBody* body;
  const TfNode* node;
  size_t input;
};
std::vector<ComputedInput> computed_inputs(const TfStep& step);

}  // namespace twinrun::check
