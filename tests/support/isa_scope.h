// An instruction set for the length of a scope. Less may come out of it: there() tells.
//
//   const IsaScope scope(Isa::kAvx2);
#pragma once

#include "backends/kernels/kernels.h"

namespace twinrun {

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
