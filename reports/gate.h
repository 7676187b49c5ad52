// The result of a regression gate (twinrun verify), one per golden run, as terminal text, JSON
// lines and JUnit XML.
//
//   std::string xml = to_junit(gates);        // <testsuites>, one test case per gate
//   std::string line = to_json_line(gate);    // one object, one line
//   return exit_code(gates);                  // the worst
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace twinrun {

enum class GateOutcome : uint8_t {
  kSame,         // bit for bit
  kInside,       // bits differ, inside the noise of conforming engines
  kDiverged,     // any other difference
  kUnavailable,  // the engine cannot be started, or failed
  kBadInput,     // the golden run cannot be read, or is inconsistent
  kInterrupted,  // stopped before it was decided
};
std::string_view to_string(GateOutcome outcome);  // "same" "inside_noise" "moved" ...
int exit_code(GateOutcome outcome);               // 0 0 1 125 128 130

// A place in a step, and the values before and now.
struct GateSite {
  std::optional<int64_t> step;  // from 0; nullopt: before the first step
  std::string tensor;           // an op, a gradient, a state variable, "loss", "data"
  std::optional<int> core;
  std::string was, now;  // digests and ranges, or a distance in words
};

struct Gate {
  std::string golden;  // the path, as given on the command line
  std::string scenario, engine;
  std::string settings;  // "cores=8 batch=64 precision=default"
  std::string decides;   // "bits" or "noise"
  GateOutcome outcome = GateOutcome::kSame;
  std::string headline;                // one sentence
  std::optional<GateSite> divergence;  // the first difference; by bits where they are known
  // One step from each recorded state against conforming engines of the declared arithmetic, if
  // requested.
  struct Noise {
    bool inside = true;
    // Largest distance and its limit, relative to the root mean square of a conforming engine.
    double ratio = 0, threshold = 0;
    double false_alarm = 0;  // probability for a conforming engine, over all tensors and states
    int64_t states = 0;      // recorded states that were compared
    // Per core and step; fewer kept: only a sample was compared.
    int64_t elements = 0, elements_kept = 0;
    std::string unusable;             // why noise cannot decide here; "" where it can
    std::optional<GateSite> outside;  // the first tensor outside
  };
  std::optional<Noise> noise;
  std::vector<std::string> notes;  // other remarks for the reader
  // Environment and settings that changed as well: "isa: avx512, now avx2"
  std::vector<std::string> changed;
  bool updated = false;  // the golden run was rewritten
  double seconds = 0;    // shown, but decides nothing
};

int exit_code(const std::vector<Gate>& gates);

std::string to_terminal(const Gate& gate, int width = 80);
std::string to_json_line(
    const Gate& gate);  // keys: docs/guides/regression-gates.md; without a line end
// The schema that Jenkins, GitLab and GitHub's reporters read: testsuites, testsuite, testcase with
// failure, error or skipped.
std::string to_junit(const std::vector<Gate>& gates);

}  // namespace twinrun
