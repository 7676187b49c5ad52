// What instrument 1 (harness/lockstep/lockstep.h) finds: an op outside its bound, a broken link
// between ops, or rounding errors unlike those of any conforming engine. The verdict and the report
// are made from these.
//
//   for (const Violation& v : lockstep.violations())      // earliest first
//     v.op, v.step, v.replica, v.fingerprint, v.pattern;  // where, and what it looks like
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backends/oracle/oracle.h"
#include "program/base/digest.h"
#include "reports/report.h"

namespace twinrun {

// One score of the rounding errors of an op's results, with the range of conforming engines on the
// same inputs.
struct BiasScore {
  std::string name;          // "toward zero", "upward", "size", "one element"
  double value = 0;          // mean over the observations of the subject
  double low = 0, high = 0;  // range of conforming engines
};

// A bias below the bound, found on several steps (harness/lockstep/bias.h).
struct BiasFinding {
  BiasScore score;
  int64_t first_step = 0;    // the first step that contributes
  int64_t steps = 0;         // number of steps that contribute
  int64_t observations = 0;  // number of results (each core has one per step)
  int members = 0;           // conforming engines that each result is compared with
  // Best-fit factor of the result against the expected value: 1.0001 is 0.01 % too large.
  double factor = 1;
  // "its rounding errors point toward zero: score -0.93 of -1 to 1, honest engines within [-0.08,
  // 0.11] (...)"
  std::string text() const;
};

struct Violation {
  int64_t step = 0;
  int replica = 0;        // the first core on which it was seen; -1: all (a collective)
  int replicas = 1;       // number of cores on which it was seen
  ValueId id = kNoValue;  // of the executed program
  std::string op, kind, phase, layer;
  // kResult: a result outside its bound. kLink: values that should be bit-identical are not, or an
  // op is missing. kFeed: an input of the program is not what was fed; the arithmetic may be right
  // on other data. kStatistic: results inside their bounds whose errors are biased.
  enum class What : uint8_t { kResult, kLink, kStatistic, kFeed } what = What::kResult;
  OracleVerdict verdict;  // kResult; kStatistic: of the latest result that contributes
  // kFeed: the name of the input, and what each core read of it.
  std::string input;
  std::vector<Tensor> read;
  std::string link;         // kLink, kFeed: "operand 1 is not what dense1/kernel wrote"
  std::string fingerprint;  // "8 times what was expected", "the value of the step before", ...
  std::vector<std::string> also;  // other explanations that also fit
  std::string elements;           // "12 of 4608 elements, worst at [0,3,1,7]"
  // Which elements: "every 8th along dimension 1, from 3", "the last 16 of 784 rows".
  std::string pattern;
  std::optional<TensorPicture> picture;  // kResult; the first violation of its op only
  // The nearest op upstream whose result was checked and lies inside its bound.
  std::string last_good;
  std::optional<BiasFinding> bias;  // kStatistic
  // What running the step again from the same state showed (harness/lockstep/rerun.h).
  enum class Persistence : uint8_t {
    kNotRerun,
    kPersistent,    // the same wrong bits in every rerun
    kTransient,     // right in every rerun
    kIntermittent,  // wrong in some reruns only, or with other bits
  } persistence = Persistence::kNotRerun;
  int reruns = 0, wrong_again = 0, same_bits_again = 0;
  Digest bits;  // of the wrong result, on the core `replica`
};

// The user's layer that an op belongs to: "conv1" of "conv1/kernel.grad".
std::string layer_of(const std::string& op);
// A violation at an op, with its names filled in.
Violation violation_at(int64_t step, int replica, ValueId id, const Op& op, Violation::What what);

}  // namespace twinrun
