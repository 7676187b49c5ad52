// Bias below the bound: an op whose results all lie inside their radii, but whose rounding errors no honest engine has. Scores
// of the residuals r = subject - oracle of one result are held against the same scores of honest engines on the same inputs;
// a finding needs several results, on several steps, that agree. docs/bounds.md, "Bias below the bound".
//
//   BiasWatch watch(honest_engines(declared), seed);
//   if (BiasWatch::scored(op)) finding = watch.observe({step, replica, id, &op, inputs, &subject, &oracle});
//   watch.suspects(id)             // worth a replay on every step until this is settled
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "backends/oracle/oracle.h"
#include "harness/lockstep/violation.h"

namespace twinrun {

// Elements of an op's result as honest engines of one declaration compute them: [member][element]. Another draw gives other
// members.
using HonestElements = std::function<std::vector<std::vector<float>>(
    uint64_t draw, int members, const Op& op, std::span<const Tensor> inputs,
    std::span<const int64_t> elements)>;

// One result that was replayed and lies inside its bound.
struct BiasSample {
  int64_t step = 0;
  int replica = 0, cores = 1;
  ValueId id = kNoValue;
  const Op* op = nullptr;
  std::span<const Tensor> inputs;
  const Tensor* subject = nullptr;
  const OracleResult* oracle = nullptr;
};

// Residuals of one or of many results, each in units of its radius: a large element has no more say than a small one.
struct ResidualSums {
  double away = 0, up = 0;        // away from zero, upward
  double sizes = 0, squares = 0;  // of |x|, of x^2
  int64_t counted = 0;
  double direction(double total) const;  // of away or up: in [-1, 1]
  double rms() const;
  double effective() const;  // how many independent ones there are at most: (sum |x|)^2 / sum x^2
  void add(const ResidualSums& other);
};

// How often each stage was reached, for the calibration.
struct BiasCounts {
  int64_t results = 0;     // scored
  int64_t asked = 0;       // honest engines were asked
  int64_t beyond = 0;      // a score beyond theirs
  double highest = 0;      // level that was reached,
  std::string highest_at;  // in which op and score
  int64_t opened = 0;      // pools
  double pooled = 0;       // a pool's largest part of what a finding takes
  int64_t findings = 0;
};

class BiasWatch {
 public:
  BiasWatch(HonestElements honest, uint64_t seed) : honest_(std::move(honest)), seed_(seed) {}

  // f32 sums: where an engine is free in the order, and may be wrong inside it. Single roundings are decided by the radius.
  static bool scored(const Op& op);

  // A finding the first time that enough results agree; at most one per op.
  std::optional<BiasFinding> observe(const BiasSample& sample);
  bool suspects(ValueId id) const;
  const BiasCounts& counts() const { return counts_; }

  static constexpr int kMembers = 12;         // honest engines per comparison
  static constexpr int64_t kElements = 4096;  // at most, of a result
  static constexpr double kEnough = 6;        // what the level of a finding reaches,
  static constexpr int64_t kResults = 4;      // on as many results
  static constexpr int64_t kSteps = 3;        // and steps at least
  static constexpr double kMargin =
      1;  // of a direction beyond the honest range, in standard deviations
  static constexpr double kLarger = 3;       // of sizes, against the largest honest one
  static constexpr double kOneElement = 16;  // of one element's error
  static constexpr double kClear = 0.75;     // ... and at least this much of all of it
  static constexpr size_t kPooledSteps = 64;
  static constexpr double kPooled =
      4;  // of a direction over many results, in standard deviations beyond kMargin

 private:
  enum Kind : uint8_t { kTowardZero, kAwayFromZero, kUpward, kDownward, kSize, kOne };
  static constexpr int kKinds = 6;
  struct Seen {       // one score of one result
    double gain = 0;  // of the level: above 0 if beyond honest engines
    double value = 0, low = 0, high = 0;
  };
  // What agrees so far. The level rises by 1 to 2 with a result beyond honest engines, falls by kFalls with one within, and never
  // below 0. Cores that share weights are no independent witnesses: of all together, each counts for its part of a step.
  struct Run {
    double level = 0;
    int64_t observations = 0, first_step = 0;
    std::set<int64_t> steps;
    double value = 0, low = 0, high = 0;
  };
  static constexpr double kFalls = 0.5;
  using Scores = std::array<Seen, kKinds>;
  // A subject's residuals and those of honest engines on the same elements; of one result, or of many.
  struct Against {
    ResidualSums subject;
    std::vector<ResidualSums> members;
    double floor = 0;  // sum of squares that single roundings of the results would have
    std::set<float>
        different;  // sizes of the subject's residuals: sums of equal terms have few, again and again
    int64_t results = 0;
    void add(const Against& other);
  };
  struct Judgement {
    double beyond = -1, value = 0, low = 0, high = 0;
  };
  struct Judged {
    std::array<Judgement, kOne> scores;  // without kOne
    double honest_size = 0;              // rms of residual / radius of the worst honest engine
  };
  struct Pool {
    bool open = false;
    int64_t first_step = 0;  // when it was opened
    std::map<int64_t, Against> steps;
  };
  static Judged judge(const Against& against);
  static double alone(const Against& of, Kind kind);
  // `which` draws the engines; `seen`: this one result's scores, if they are wanted.
  std::optional<Against> ask(const BiasSample& sample, std::span<const double> residual,
                             uint64_t which, Scores* seen);
  std::optional<BiasFinding> pool(const BiasSample& sample, int replica, bool suspicious,
                                  const std::optional<Against>& against);
  std::optional<BiasFinding> agree(const BiasSample& sample, int replica, double weight,
                                   const Scores& seen);

  HonestElements honest_;
  uint64_t seed_;
  std::map<std::pair<ValueId, int>, std::array<Run, kKinds>>
      runs_;                                       // replica -1: all of them together
  std::map<std::pair<ValueId, int>, Pool> pools_;  // likewise
  std::map<ValueId, double>
      honest_size_;  // rms of residual / radius of the worst honest engine, when last asked
  std::map<std::pair<ValueId, int>, uint64_t>
      last_;                   // digest of the residuals: what is fed twice is seen once
  std::set<ValueId> settled_;  // found
  BiasCounts counts_;
};

}  // namespace twinrun
