// The names that a TPU's compiler knows. Source: openxla/xla hlo/ir/hlo_opcode.h; custom calls:
// those that XLA and JAX make for TPUs themselves. Used by text_rules.cc, which also checks element
// types and sizes.
#pragma once

#include <string_view>
#include <vector>

namespace twinrun::check {

// An opcode of HLO, or an op of StableHLO or CHLO that is lowered to such opcodes.
bool is_known(std::string_view opcode);
std::vector<std::string_view> known_opcodes();  // those of HLO, sorted
bool is_dynamic(std::string_view opcode);  // the sizes of its result are known only at run time
bool sums_over_cores(std::string_view opcode);  // all-reduce and similar ops
bool has_tpu_target(std::string_view custom_call_target);

}  // namespace twinrun::check
