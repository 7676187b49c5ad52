// Shared by the two files that translate StableHLO to HLO (from_stablehlo.cc,
// from_stablehlo_ops.cc): the opcode and the attributes of the HLO instruction that an op becomes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "program/import/mlir.h"

namespace twinrun {

// HLO's name of an op: "dot" for "stablehlo.dot_general". An op that HLO does not have keeps its
// own name.
std::string hlo_opcode(const std::string& op);

// Fills in.attributes from the attributes of `op`, translated to HLO's names and forms. `operands`
// are the shapes of in.operands. Regions are not translated here. Missing or malformed attributes
// stay so; the rules that lower HLO report them.
void set_hlo_attributes(const MlirOp& op, const std::vector<const HloShape*>& operands,
                        HloInstruction& in);

}  // namespace twinrun
