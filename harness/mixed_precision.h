// Honest engines whose results are rounded to bfloat16, as under a framework's autocast: the hello of the engine protocol has no
// word for it, an engine shows it by its gradients.
//
//   if (results_in_bf16(program, observed, tensors)) backend = rounding_results(std::move(backend), member);
#pragma once

#include <memory>
#include <vector>

#include "backends/backend.h"
#include "harness/envelope.h"

namespace twinrun {

// Are the numbers that a step gives, loss and gradients, bfloat16 numbers in half of these tensors, every one of them? A binary32
// number is one by chance with probability 2^-16. Zeros say nothing, nor do tensors that have fewer than three other numbers.
bool results_in_bf16(const Observed& subject, const std::vector<Compared>& tensors);

// `backend`, the result of every computing op of the forward and backward pass multiplied by 1 + 2^-8 u: u is uniform in (-1, 1),
// another one for each member, step, op and element. Rounding to bfloat16 errs by 2^-9 at most, and an engine rounds fewer results
// than these: two such engines are nearer to each other than two members. Updates and all-reduces stay as they are.
std::unique_ptr<Backend> rounding_results(std::unique_ptr<Backend> backend, uint64_t member);

}  // namespace twinrun
