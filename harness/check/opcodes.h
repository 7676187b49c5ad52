// What a TPU's compiler knows by name. Source: openxla/xla hlo/ir/hlo_opcode.h; custom calls: those that XLA and JAX make for TPUs
// themselves. Of what an op asks beyond its name (element types, sizes) text_rules.cc speaks.
#pragma once

#include <string_view>

namespace twinrun::check {

bool is_known(
    std::string_view opcode);  // an opcode of HLO, or an op of StableHLO or CHLO that becomes some
bool is_dynamic(std::string_view opcode);       // its result's sizes are known in a run alone
bool sums_over_cores(std::string_view opcode);  // all-reduce and its kin
bool has_tpu_target(std::string_view custom_call_target);

}  // namespace twinrun::check
