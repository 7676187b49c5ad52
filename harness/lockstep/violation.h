// What instrument 1 finds: one op outside its bound, a broken link between ops, or rounding errors that no honest engine has.
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

// One bounded score of the rounding errors of an op's results, beside the scores of honest engines on the same inputs.
struct BiasScore {
  std::string name;          // "toward zero", "upward", "size", "one element"
  double value = 0;          // of the subject, mean over the observations
  double low = 0, high = 0;  // what honest engines showed there
};

// A bias below the bound: what several steps agree in (harness/lockstep/bias.h).
struct BiasFinding {
  BiasScore score;
  int64_t first_step = 0;    // of the observations that agree
  int64_t steps = 0;         // on how many steps it rests,
  int64_t observations = 0;  // in how many results (a step has one on every core),
  int members = 0;           // against how many honest engines each
  double factor =
      1;  // best-fit factor of the result on what was due, minus nothing: 1.0001 is 0.01 % too large
  std::string text()
      const;  // "rounding errors point toward zero: score -0.93, honest engines within [-0.08, 0.11], ..."
};

struct Violation {
  int64_t step = 0;
  int replica = 0;        // the first core it was seen on; -1: all (a collective)
  int replicas = 1;       // on how many cores
  ValueId id = kNoValue;  // in the program that was executed
  std::string op, kind, phase, layer;
  // kResult: a result outside its bound. kLink: bits that should be equal are not, or an op is missing. kFeed: an input of the
  // program is not what was fed: the arithmetic may be right, the data are others. kStatistic: results inside their bounds
  // whose errors are biased.
  enum class What : uint8_t { kResult, kLink, kStatistic, kFeed } what = What::kResult;
  OracleVerdict verdict;  // kResult; kStatistic: of the last result that it rests on
  std::string input;      // kFeed: of the program, and what each core read of it
  std::vector<Tensor> read;
  std::string link;         // kLink, kFeed: "operand 1 is not what dense1/kernel wrote"
  std::string fingerprint;  // "8 times the expected value", "the value of the step before", ...
  std::vector<std::string> also;  // other explanations that fit no worse
  std::string elements;           // "12 of 4608 elements, worst at [0,3,1,7]"
  std::string pattern;  // which: "every 8th along dimension 1, from 3", "the last 16 of 784 rows"
  std::optional<TensorPicture> picture;  // kResult, the first of its op
  std::string last_good;            // the nearest op upstream whose result was checked and inside
  std::optional<BiasFinding> bias;  // kStatistic
  // What running the step again from the same state showed (harness/lockstep/rerun.h).
  enum class Persistence : uint8_t {
    kNotRerun,
    kPersistent,    // the same wrong bits each time
    kTransient,     // right when run again
    kIntermittent,  // wrong now and then, or in other bits
  } persistence = Persistence::kNotRerun;
  int reruns = 0, wrong_again = 0, same_bits_again = 0;
  Digest bits;  // of the wrong result, on the first core it was seen on
};

// The user's layer that an op belongs to: "conv1" of "conv1/kernel.grad".
std::string layer_of(const std::string& op);
// A violation at an op, with its names filled in.
Violation violation_at(int64_t step, int replica, ValueId id, const Op& op, Violation::What what);

}  // namespace twinrun
