// What a drill injects, case by case. A case is its id: everything in it is drawn by Philox from the id's digest, so that any case
// can be run alone, and a longer drill has the cases of a shorter one.
//
//   auto ids = plan_cases({.scenarios = {"drill_mlp"}, .cases = 60, .seed = 1});   // stratified; so is every prefix
//   auto c = draw_case(ids[0]);                      // "engine.drill_mlp.1.17": stratum, scenario, seed, number
//   c->fault;                                        // "scale@dense1/dot_general,core=2,from=3,magnitude=1.5"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/experiment/experiment.h"
#include "program/base/result.h"

namespace twinrun::drill {

enum class Stratum : uint8_t {
  kClean,     // an honest engine, the program that was asked for
  kEngine,    // a fault of the engine
  kBias,      // a fault that makes every sum of an op lean to one side, by an ulp or less
  kInert,     // a fault that can change nothing
  kDeclared,  // the scenario's own keys change what sharding means
  kHidden,    // the subject secretly runs another program than it was asked to
  kBoth,      // a declared cause and a fault of the engine
};
inline constexpr Stratum kStrata[] = {Stratum::kClean, Stratum::kEngine,   Stratum::kBias,
                                      Stratum::kInert, Stratum::kDeclared, Stratum::kHidden,
                                      Stratum::kBoth};
std::string_view to_string(Stratum stratum);  // "clean", "engine", ...

struct DrillCase {
  std::string id;
  Stratum stratum = Stratum::kClean;
  char level = 'A';      // C: the subject shows no ops, tensors only
  std::string scenario;  // name or path
  Overrides overrides;   // seed, cores, precision, a declared cause's keys
  uint64_t variant = 0;  // the honest engine below, by its seed
  std::string kind;  // of fault, or the cause; of both: "KIND+CAUSE"; "" where nothing is injected
  std::string fault, op;  // the fault as --fault takes it, and the op it is on; "": none
  std::string cause;      // of sharding; "": none
  std::optional<double> magnitude;
};

struct CasePlan {
  std::vector<std::string> scenarios;
  int64_t cases = 0;
  uint64_t seed = 1;
  std::optional<char> level;  // only cases of that evidence level
};

// Ids, in the order in which they are run. Scenarios above litmus size have kLargeCases at most.
inline constexpr int64_t kLargeCases = 20;
Result<std::vector<std::string>> plan_cases(const CasePlan& plan);

// What an id says.
struct CaseName {
  Stratum stratum = Stratum::kClean;
  char level = 'A';
  std::string scenario;
  uint64_t seed = 0;
  int64_t number = 0;
};
Result<CaseName> parse_id(const std::string& id);

// Errors: not an id, no such scenario, a stratum that this scenario has no case for (nothing to inject).
Result<DrillCase> draw_case(const std::string& id);

}  // namespace twinrun::drill
