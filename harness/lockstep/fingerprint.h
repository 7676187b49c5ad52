// Signatures of a fault: what a wrong tensor looks like beside the expected one, in words for the
// author of the engine. Each hypothesis is tested: the op is recomputed as the hypothesis says, and
// the subject must then agree inside the bound. Lockstep (harness/lockstep/lockstep.h) calls this
// for the first violation of an op.
//
//   op_signatures(declared, op, subject, oracle, inputs, pool, past);
//   // {"8 times what was expected", 1}, ...
#pragma once

#include <span>
#include <string>
#include <vector>

#include "backends/oracle/oracle.h"

namespace twinrun {

struct OpSignature {
  std::string text;
  double share = 1;  // share of the wrong elements that it explains
};

// Values of the step before, and the number of cores. Stale values are looked for among them.
struct Past {
  Tensor result;                 // the result of this op; invalid if unknown
  std::vector<Tensor> operands;  // its operands, each invalid if unknown
  int cores = 1;
};

// Best first: signatures that explain every wrong element, then those that explain nearly all (90 %
// or more), else a description in numbers. Never empty for an f32 result with wrong elements.
std::vector<OpSignature> op_signatures(const Capabilities& declared, const Op& op,
                                       const Tensor& subject, const OracleResult& oracle,
                                       const std::vector<Tensor>& inputs, ThreadPool* pool,
                                       const Past& past);

// The text of the best signature; "" if there is none. `previous`: the op's result one step before,
// or nullptr.
std::string fingerprint(const Capabilities& declared, const Op& op, const Tensor& subject,
                        const OracleResult& oracle, const std::vector<Tensor>& inputs,
                        ThreadPool* pool, const Tensor* previous);

// Flat indices of elements outside their bounds, ascending.
std::vector<int64_t> wrong_elements(const OracleResult& oracle, const Tensor& subject);

}  // namespace twinrun
