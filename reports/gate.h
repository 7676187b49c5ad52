// What a regression gate has to say (twinrun verify): one golden run each, as terminal text, JSON lines and JUnit XML.
//
//   std::string xml = to_junit(gates);        // <testsuites>, a test case each
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
  kInside,       // bits moved, inside the noise of honest engines
  kMoved,        // neither
  kUnavailable,  // the engine cannot be started, or failed
  kBadInput,     // the golden run cannot be read, or says what cannot be
  kInterrupted,  // not decided: it was stopped
};
std::string_view to_string(GateOutcome outcome);  // "same" "inside_noise" "moved" ...
int exit_code(GateOutcome outcome);               // 0 0 1 125 128 130

// A place in a step, and what stood there.
struct GateSite {
  std::optional<int64_t> step;  // from 0; none: before the first
  std::string tensor;           // an op, a gradient, a state variable, "loss", "data"
  std::optional<int> core;
  std::string was, now;  // digests and ranges, or a distance in words
};

struct Gate {
  std::string golden;  // as named: a path
  std::string scenario, engine;
  std::string settings;  // "cores=8 batch=64 precision=default"
  std::string decides;   // "bits" or "noise"
  GateOutcome outcome = GateOutcome::kSame;
  std::string headline;           // one sentence
  std::optional<GateSite> moved;  // the first that moved, by bits where they are known
  // One step from each recorded state against honest engines of the declared arithmetic, if it was asked.
  struct Noise {
    bool inside = true;
    double ratio = 0, threshold = 0;  // of the root mean square that an honest engine has
    double false_alarm = 0;           // of an honest engine, all tensors and states together
    int64_t states = 0;               // recorded states that were looked at
    int64_t elements = 0, elements_kept = 0;  // of a core's step; fewer kept: a sample was compared
    std::string unusable;                     // why noise can decide nothing here; "": it can
    std::optional<GateSite> outside;          // the first tensor outside
  };
  std::optional<Noise> noise;
  std::vector<std::string> notes;    // what else a reader should know
  std::vector<std::string> changed;  // besides: environment and settings, "isa: avx512, now avx2"
  bool updated = false;              // the golden run was written anew
  double seconds = 0;                // shown, never decides
};

int exit_code(const std::vector<Gate>& gates);

std::string to_terminal(const Gate& gate, int width = 80);
std::string to_json_line(const Gate& gate);  // docs/regression-gates.md has the keys; no line end
// The schema that Jenkins, GitLab and GitHub's reporters read: testsuites, testsuite, testcase with failure, error or skipped.
std::string to_junit(const std::vector<Gate>& gates);

}  // namespace twinrun
