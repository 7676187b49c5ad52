// What a wrong tensor looks like beside the expected one, as an engine engineer would say it. Hypotheses are tried by evidence:
// the op is recomputed as the hypothesis says, and must then agree inside the bound.
//
//   fingerprint(declared, op, subject, oracle, inputs, pool, nullptr);     // "8 times the expected value"
#pragma once

#include <span>
#include <string>

#include "backends/oracle.h"

namespace twinrun {

// "" if nothing recognisable. previous: the op's result one step before, or nullptr.
std::string fingerprint(const Capabilities& declared, const Op& op, const Tensor& subject,
                        const OracleResult& oracle, const std::vector<Tensor>& inputs,
                        ThreadPool* pool, const Tensor* previous);

// "[2,0,1]" of a flat index.
std::string index_text(const Dims& dims, int64_t flat);

}  // namespace twinrun
