// Fault injection for tests, drills and --fault: hooks (backends/core/backend.h) that make an
// engine compute wrongly on purpose. Each fault kind is a row of the catalogue; each file of this
// folder holds the kinds of one group (kind.h explains how to write one).
//
//   auto fault = parse_fault("truncate_bf16@dense1/*,core=3,from=5");
//   // Errors: no op matches, no such core, wrong kind of op.
//   auto hooks = FaultHooks::make(program, {*fault}, /*seed=*/1);
//   engine->step(..., hooks->get());
//   (*hooks)->activations();               // where bits changed, for the sealed log
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

struct Strike;  // kind.h: one application of a fault, to one op on one core

// What `magnitude=` means for a kind.
struct FaultMagnitude {
  enum class Unit : uint8_t { kNone, kCount, kNumber } unit = Unit::kNone;
  double standard = 0;          // the default; NaN: the default depends on the op
  std::string_view means = {};  // "factor"
  // Values for a power curve (detection rate against fault size), where the magnitude is a size.
  // The docs and the drills step through them.
  std::vector<double> grid = {};
};

struct FaultKind {
  std::string_view name;
  FaultGroup group = FaultGroup::kArithmetic;
  std::string_view acts_on;  // the ops that it acts on, as text for help and error messages
  std::string_view does;     // what it does to them, likewise
  FaultMagnitude magnitude = {};
  // What it changes: how the op is computed, its result, or each core's copy of a collective's
  // result.
  enum class Place : uint8_t { kComputation, kResult, kEachCopy } place = Place::kResult;
  // Strikes only in step 0 unless step, from, every or rate is given. Other kinds then strike in
  // every step.
  bool once = false;
  bool remembers = false;  // needs the operands and the result of the op in the step before
  bool (*fits)(const Program&, ValueId) = nullptr;
  void (*strike)(Strike&) = nullptr;
};

// All kinds, group by group. The rows live until the process ends.
std::span<const FaultKind> fault_catalogue();
const FaultKind* find_fault_kind(std::string_view name);  // nullptr if unknown
// Whether this kind can act on that op. Whether it then changes any bit depends on the values.
bool applies(const FaultKind& kind, const Program& program, ValueId id);
// The catalogue as text for terminals, wrapped to `width` columns.
std::string fault_table(size_t width = 100);

struct FaultSpec {
  const FaultKind* kind = nullptr;
  std::string glob;  // matched against the op names of all phases, with * and ?
  std::optional<int> core;
  std::optional<int64_t> step, from, every;  // at most one
  std::optional<double> magnitude;
  std::optional<double> rate;  // intermittent: strikes an op in a step with this probability
  std::string text;            // as the user wrote it
  bool active_at(int64_t step) const;  // disregards `rate`
};

// "KIND@OP-GLOB[,core=C][,step=S|from=S|every=N][,magnitude=M][,rate=P]"
Result<FaultSpec> parse_fault(std::string_view text);
std::vector<std::string> fault_kinds();

struct Activation {
  int64_t step = 0;
  int replica = 0;  // -1: the result of a collective, which all replicas share
  std::string op;
  std::string fault;  // FaultSpec::text
  std::string kind;
  int64_t elements = 0;  // how many elements of the result changed bits
};

class FaultHooks : public OpHooks {
 public:
  // What a fault's effect depends on: the seed, the arithmetic that the engine declares (a wrong
  // accumulator still rounds its operands as declared), and, for intermittent faults, the number of
  // the run.
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

  // Sorted by (step, op, replica).
  std::vector<Activation> activations() const;

 private:
  FaultHooks();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace twinrun
