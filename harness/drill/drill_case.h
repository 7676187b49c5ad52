// What a drill injects, case by case. A case is determined by its id: Philox draws everything else
// from the digest of the id. So any case can run alone, and a longer drill contains the cases of a
// shorter one.
//
//   auto ids = plan_cases({.scenarios = {"drill_mlp"}, .cases = 60, .seed = 1});
//       // stratified, and so is every prefix
//   auto c = draw_case("engine.drill_mlp.1.17");   // stratum, scenario, seed, number
//   c->fault;                    // "scale@dense1/dot_general,core=2,from=3,magnitude=1.5"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/experiment/experiment.h"
#include "program/base/result.h"

namespace twinrun::drill {

enum class Stratum : uint8_t {
  kClean,     // a conforming engine that runs the scenario's program
  kEngine,    // an engine fault
  kBias,      // a fault that biases every sum of an op in one direction, by an ulp or less
  kInert,     // a fault that never occurs
  kDeclared,  // keys of the scenario that change the meaning of the sharded program
  kHidden,    // a subject that secretly runs another program
  kBoth,      // a declared cause and an engine fault
};
inline constexpr Stratum kStrata[] = {Stratum::kClean, Stratum::kEngine,   Stratum::kBias,
                                      Stratum::kInert, Stratum::kDeclared, Stratum::kHidden,
                                      Stratum::kBoth};
std::string_view to_string(Stratum stratum);  // "clean", "engine", ...

struct DrillCase {
  std::string id;
  Stratum stratum = Stratum::kClean;
  char level = 'A';      // C: the subject shows tensors only, no ops
  std::string scenario;  // name or path
  Overrides overrides;   // seed, cores, precision, and the keys of a declared cause
  uint64_t variant = 0;  // seed of the conforming engine that the subject is based on
  // Kind of fault, or the cause, or "KIND+CAUSE" for both; "" where nothing is injected.
  std::string kind;
  std::string fault, op;  // the fault as --fault takes it, and the op that it acts on; "": none
  std::string cause;      // of sharding; "": none
  std::optional<double> magnitude;
};

struct CasePlan {
  std::vector<std::string> scenarios;
  int64_t cases = 0;
  uint64_t seed = 1;
  std::optional<char> level;  // restricts the plan to cases of this evidence level
  // If given, the cases are of this program and not of scenarios. It runs on one core, so nothing
  // about sharding is introduced.
  ProgramFiles program = {};
};

// Ids in the order in which they run. Scenarios larger than the drill_* ones get at most
// kLargeCases cases each.
inline constexpr int64_t kLargeCases = 20;
Result<std::vector<std::string>> plan_cases(const CasePlan& plan);

// The parts of an id.
struct CaseName {
  Stratum stratum = Stratum::kClean;
  char level = 'A';
  std::string scenario;
  uint64_t seed = 0;
  int64_t number = 0;
};
Result<CaseName> parse_id(const std::string& id);

// `program`: that of the plan. Errors: not an id; no such scenario; a stratum for which this
// scenario has nothing to inject.
Result<DrillCase> draw_case(const std::string& id, const ProgramFiles& program = {});

}  // namespace twinrun::drill
