// What this machine has, asked of the processor and the kernel. Called by isa.cc.
#pragma once

#include <string_view>

namespace twinrun {

bool has_avx512();
// Asks for AMX tiles, for this process, and tries them. Why they cannot be used; empty if they can.
std::string_view probe_amx();

}  // namespace twinrun
