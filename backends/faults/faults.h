// Faults for tests, drills and --fault: engines that are wrong on purpose, through the hooks of backend.h.
//
//   auto fault = parse_fault("truncate_bf16@dense1/*,core=3,from=5");
//   auto hooks = FaultHooks::make(program, {*fault}, /*seed=*/1);    // error: no op matches, no such core, wrong kind of op
//   engine->step(..., hooks->get());
//   hooks->activations();                                            // what changed bits, for the sealed log
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"

namespace twinrun {

enum class FaultKind : uint8_t {
  kTruncateBf16,  // operands of a dot (else the result) cut to bf16 toward zero
  kDropKTail,  // the last partial tile of 128 of a dot's K (a whole one if K is a multiple) left out; magnitude: its size
  kScale,      // result times magnitude (default 8)
  kDropCore,   // one core's part missing from an all-reduce (default: the last core)
  kStaleWeights,  // the result is that of the step before; for an update: the old weights
  kBitFlip,  // bit `magnitude` (default 22, the top of the fraction) of one element, chosen by the seed
};

struct FaultSpec {
  FaultKind kind = FaultKind::kScale;
  std::string glob;  // over op names of all phases; * and ?
  std::optional<int> core;
  std::optional<int64_t> step, from,
      every;  // at most one; bit_flip without one: step 0; others: every step
  std::optional<double> magnitude;
  std::string text;  // as given
  bool active_at(int64_t step) const;
};

// "KIND@OP-GLOB[,core=C][,step=S|from=S|every=N][,magnitude=M]"
Result<FaultSpec> parse_fault(std::string_view text);
std::vector<std::string> fault_kinds();

struct Activation {
  int64_t step = 0;
  int replica = 0;  // -1: a collective
  std::string op;
  std::string fault;
  int64_t elements = 0;  // whose bits changed in the operands or the result
};

class FaultHooks : public OpHooks {
 public:
  static Result<std::unique_ptr<FaultHooks>> make(const Program& program,
                                                  std::vector<FaultSpec> faults, uint64_t seed);
  ~FaultHooks() override;

  bool watches(const Program& program, ValueId id, int64_t step) override;
  void before(const OpSite& site, std::vector<Tensor>& inputs) override;
  void after(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) override;

  // In (step, op, replica) order.
  std::vector<Activation> activations() const;

 private:
  FaultHooks();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace twinrun
