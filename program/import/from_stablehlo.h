// What the two files of the translation share: one op of StableHLO, and the HLO instruction that it becomes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "program/import/mlir.h"

namespace twinrun {

// HLO's word for an op: "dot" of "stablehlo.dot_general"; that of an op which HLO does not have is its own.
std::string hlo_opcode(const std::string& op);

// Fills in.attributes from op's, HLO's names and forms for StableHLO's. `operands` are the shapes of in.operands. Regions are not
// looked at. What is missing or malformed is left so: the rules that lower HLO tell of it.
void set_hlo_attributes(const MlirOp& op, const std::vector<const HloShape*>& operands,
                        HloInstruction& in);

}  // namespace twinrun
