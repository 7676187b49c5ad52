// Faults for tests, drills and --fault: engines that are wrong on purpose, through the hooks of backend.h. A kind is a row of
// the catalogue; a file of this folder holds the kinds of a group (kind.h says how one is written).
//
//   auto fault = parse_fault("truncate_bf16@dense1/*,core=3,from=5");
//   auto hooks = FaultHooks::make(program, {*fault}, /*seed=*/1);    // error: no op matches, no such core, wrong kind of op
//   engine->step(..., hooks->get());
//   hooks->activations();                                            // what changed bits, for the sealed log
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/core/backend.h"

namespace twinrun {

enum class FaultGroup : uint8_t {
  kArithmetic,
  kIndexing,
  kState,
  kCollectives,
  kRandom,
  kHardware
};
std::string_view to_string(FaultGroup group);  // "arithmetic", ...

struct Strike;  // kind.h: one op on one core, about to be made wrong

// What `magnitude` means to a kind. Values of a power curve, where it means a size: docs and drills go over them.
struct FaultMagnitude {
  enum class Unit : uint8_t { kNone, kCount, kNumber } unit = Unit::kNone;
  double standard = 0;          // without magnitude=; NaN: it depends on the op
  std::string_view means = {};  // "factor"
  std::vector<double> grid = {};
};

struct FaultKind {
  std::string_view name;
  FaultGroup group = FaultGroup::kArithmetic;
  std::string_view acts_on;  // for people
  std::string_view does;
  FaultMagnitude magnitude = {};
  // What it changes: how the op is computed, the result, or each core's copy of a collective's result.
  enum class Place : uint8_t { kComputation, kResult, kEachCopy } place = Place::kResult;
  bool once = false;       // without step, from or every: step 0 only; others: every step
  bool remembers = false;  // needs what the op read and gave one step before
  bool (*fits)(const Program&, ValueId) = nullptr;
  void (*strike)(Strike&) = nullptr;
};

// All kinds, group by group; rows live as long as the program.
std::span<const FaultKind> fault_catalogue();
const FaultKind* find_fault_kind(std::string_view name);  // nullptr if unknown
// Can this kind act on that op? (Whether it then changes a bit depends on the numbers.)
bool applies(const FaultKind& kind, const Program& program, ValueId id);
// The catalogue as a table of lines of at most `width` columns, for terminals.
std::string fault_table(size_t width = 100);

struct FaultSpec {
  const FaultKind* kind = nullptr;
  std::string glob;  // over op names of all phases; * and ?
  std::optional<int> core;
  std::optional<int64_t> step, from, every;  // at most one
  std::optional<double> magnitude;
  std::optional<double> rate;  // intermittent: strikes an op in a step with this probability
  std::string text;            // as given
  bool active_at(int64_t step) const;  // but for the rate
};

// "KIND@OP-GLOB[,core=C][,step=S|from=S|every=N][,magnitude=M][,rate=P]"
Result<FaultSpec> parse_fault(std::string_view text);
std::vector<std::string> fault_kinds();

struct Activation {
  int64_t step = 0;
  int replica = 0;  // -1: the result of a collective that all replicas share
  std::string op;
  std::string fault;  // its text
  std::string kind;
  int64_t elements = 0;  // of the result, whose bits changed
};

class FaultHooks : public OpHooks {
 public:
  // What of an engine and of its run decides what a fault does: its declared arithmetic (a wrong accumulator still rounds its
  // operands as declared), and, for intermittent faults, which run it is.
  struct Where {
    uint64_t seed = 1;
    Capabilities declared = {};
    uint64_t run = 0;
  };
  static Result<std::unique_ptr<FaultHooks>> make(const Program& program,
                                                  std::vector<FaultSpec> faults, Where where);
  static Result<std::unique_ptr<FaultHooks>> make(const Program& program,
                                                  std::vector<FaultSpec> faults, uint64_t seed) {
    return make(program, std::move(faults), Where{.seed = seed});
  }
  ~FaultHooks() override;

  bool watches(const Program& program, ValueId id, int64_t step) override;
  bool replace(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) override;
  void after_copy(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& copy) override;

  // In (step, op, replica) order.
  std::vector<Activation> activations() const;

 private:
  FaultHooks();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace twinrun
