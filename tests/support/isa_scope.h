// Forces an instruction set on the kernels until the end of a scope. On a machine that lacks it a
// lesser one becomes active, and there() returns false.
//
//   const IsaScope scope(Isa::kAvx2);
#pragma once

#include <vector>

#include "backends/kernels/kernels.h"

namespace twinrun {

// The instruction sets with vectors that this kind of processor may have, the least first.
inline std::vector<Isa> vector_isas() {
#if defined(__x86_64__)
  return {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};
#else
  return {Isa::kNeon};
#endif
}

class IsaScope {
 public:
  explicit IsaScope(Isa isa) : wanted_(isa), saved_(active_isa()) { force_isa(isa); }
  ~IsaScope() { force_isa(saved_); }
  IsaScope(const IsaScope&) = delete;
  IsaScope& operator=(const IsaScope&) = delete;

  bool there() const { return active_isa() == wanted_; }

 private:
  Isa wanted_, saved_;
};

}  // namespace twinrun
