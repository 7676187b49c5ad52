// Small instances of every op kind, for tests that compare two implementations: attributes, shapes,
// and operands of seven data classes.
//
//   for (const OpCase& c : op_cases(OpKind::kAdd, DataClass::kWide, seed))
//     reference_op(c.op, c.inputs, {});
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "program/base/tensor.h"
#include "program/ops/op.h"

namespace twinrun {

enum class DataClass {
  kNormal,    // uniform in (-1, 1)
  kPositive,  // half zeros, half in (0, 1): activations after relu
  kWide,      // any finite exponent
  kTiny,      // products and quotients land around 2^-126, inputs include denormals
  kHuge,      // sums and products overflow now and then
  kSpecial,   // NaN, infinities, both zeros, denormals, the largest numbers among ordinary ones
  kTies,      // numbers of few bits, bf16 midpoints, both zeros, repeated values
};
inline constexpr DataClass kDataClasses[] = {
    DataClass::kNormal, DataClass::kPositive, DataClass::kWide, DataClass::kTiny,
    DataClass::kHuge,   DataClass::kSpecial,  DataClass::kTies};
std::string_view to_string(DataClass data);

struct OpCase {
  std::string name;  // "dot_general f32[3,7] tiny"
  Op op;
  std::vector<Tensor> inputs;  // for all_reduce: one per replica
};

// Cases of an op kind. Only parameter has none.
std::vector<OpCase> op_cases(OpKind kind, DataClass data, uint64_t seed);

// A float tensor (f32 or bf16) with data of this class.
Tensor random_tensor(TensorType type, DataClass data, uint64_t seed);

}  // namespace twinrun
