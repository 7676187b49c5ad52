// Detection of AVX-512, AVX512-BF16 and AMX, by querying the processor and the operating system's
// kernel. Called by isa.cc.
#pragma once

#include <string_view>

namespace twinrun {

bool has_avx512();
bool has_avx512bf16();
// Requests AMX tiles for this process and tests them. Returns why they cannot be used; empty if
// they can.
std::string_view probe_amx();
// Tests VDPBF16PS. Returns why it cannot be used; empty if it can.
std::string_view probe_avx512bf16();
bool is_amd();

}  // namespace twinrun
