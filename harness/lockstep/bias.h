// Bias below the bound: an op whose results all lie inside their radii, but whose rounding errors
// are unlike those of any conforming engine. The residuals r = subject - oracle of a result are
// scored and compared with the scores of conforming engines on the same inputs. A finding needs
// several results, on several steps, that agree. Part of instrument 1: Lockstep
// (harness/lockstep/lockstep.h) feeds it each result that it replays. See docs/method/bounds.md,
// "Bias below the bound".
//
//   BiasWatch watch(conforming_engines(declared), seed);
//   if (BiasWatch::scored(op)) finding = watch.observe({step, replica, cores, id, &op, ...});
//   watch.suspects(id)             // if true, replay this op on every step until that is settled
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

// Elements of an op's result as conforming engines of one declaration compute them:
// [member][element]. Another `draw` selects other members.
using ConformingElements = std::function<std::vector<std::vector<float>>(
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

// Sums over the residuals of one or of many results, each in units of its radius, so that elements
// of all magnitudes count alike.
struct ResidualSums {
  double away = 0, up = 0;        // sums of x signed away from zero, and of x
  double sizes = 0, squares = 0;  // sums of |x| and of x^2
  int64_t counted = 0;
  // `total` is `away` or `up`; the result is in [-1, 1].
  double direction(double total) const;
  double rms() const;
  // An upper bound on the number of independent residuals: (sum |x|)^2 / sum x^2.
  double effective() const;
  void add(const ResidualSums& other);
};

// How often each stage was reached; used for the calibration.
struct BiasCounts {
  int64_t results = 0;     // scored
  int64_t asked = 0;       // comparisons with conforming engines
  int64_t beyond = 0;      // results with a score outside their range
  double highest = 0;      // the highest level reached,
  std::string highest_at;  // and in which op and score
  int64_t opened = 0;      // pools opened
  // How close any pool came to a finding: the size, or the excess of a direction over the
  // conforming range, divided by what a finding needs. (A pool sums results that are too small to
  // decide alone.)
  double pooled = 0;
  int64_t findings = 0;
};

class BiasWatch {
 public:
  BiasWatch(ConformingElements conforming, uint64_t seed)
      : conforming_(std::move(conforming)), seed_(seed) {}

  // Whether results of this op are scored: sums in f32, where an engine may choose the order of the
  // terms and can be wrong inside the bound. Ops with a single rounding are decided by the radius.
  static bool scored(const Op& op);

  // Returns a finding as soon as enough results agree; at most one per op.
  std::optional<BiasFinding> observe(const BiasSample& sample);
  // Whether the level of a score of this op is above 0 and there is no finding yet.
  bool suspects(ValueId id) const;
  bool suspects_any() const;
  const BiasCounts& counts() const { return counts_; }

  static constexpr int kMembers = 12;         // conforming engines per comparison
  static constexpr int64_t kElements = 4096;  // elements of a result that are compared, at most
  static constexpr double kEnough = 6;        // the level that a finding reaches,
  static constexpr int64_t kResults = 4;      // on at least so many results
  static constexpr int64_t kSteps = 3;        // and on at least so many steps
  // How far a direction must lie outside the range of conforming engines, in standard deviations.
  static constexpr double kMargin = 1;
  // A size must exceed the largest conforming one by this factor, and more where elements are few.
  static constexpr double kLarger = 3;
  // The error of one element must exceed the largest conforming one by this factor.
  static constexpr double kOneElement = 16;
  // A direction summed over many results must also be at least this large in absolute value.
  static constexpr double kClear = 0.75;
  // Steps that a pool keeps.
  static constexpr size_t kPooledSteps = 64;
  // How far a direction over many results must lie outside, in standard deviations beyond kMargin.
  static constexpr double kPooled = 4;

 private:
  enum Kind : uint8_t { kTowardZero, kAwayFromZero, kUpward, kDownward, kSize, kOne };
  static constexpr int kKinds = 6;
  struct Seen {       // one score of one result
    double gain = 0;  // added to the level; above 0 if outside the conforming range
    double value = 0, low = 0, high = 0;
  };
  // Successive results that agree in one score. The level rises by 1 to 2 with a result outside the
  // range of conforming engines, falls by kFalls with one inside, and never below 0. Cores share
  // weights and are not independent evidence: in the run of all cores together, each core's result
  // has weight 1 / cores.
  struct Run {
    double level = 0;
    int64_t observations = 0, first_step = 0;
    std::set<int64_t> steps;
    double value = 0, low = 0, high = 0;
  };
  static constexpr double kFalls = 0.5;
  using Scores = std::array<Seen, kKinds>;
  // The residuals of the subject and of conforming engines on the same elements, of one or of many
  // results.
  struct Against {
    ResidualSums subject;
    std::vector<ResidualSums> members;
    double floor = 0;  // sum of squares that rounding each result once would give
    // Distinct magnitudes of the subject's residuals. Sums of equal terms repeat a few magnitudes,
    // so that their residuals are not independent.
    std::vector<float> different;  // ascending
    int64_t results = 0;
    void add(const Against& other);
  };
  struct Judgement {
    double beyond = -1, value = 0, low = 0, high = 0;
  };
  struct Judged {
    // All but kOne.
    std::array<Judgement, kOne> scores;
    double conforming_size = 0;  // rms of residual / radius, of the worst member
  };
  struct Pool {
    bool open = false;
    // The step that opened the pool.
    int64_t first_step = 0;
    std::map<int64_t, Against> steps;
  };
  static Judged judge(const Against& against);
  static double alone(const Against& of, Kind kind);
  // Compares the residuals with those of conforming engines on a sample of the elements. `which`
  // seeds the draw of these engines; `seen`, if not null, receives the scores of this result.
  std::optional<Against> ask(const BiasSample& sample, std::span<const double> residual,
                             uint64_t which, Scores* seen);
  std::optional<BiasFinding> pool(const BiasSample& sample, int replica, bool suspicious,
                                  const std::optional<Against>& against);
  std::optional<BiasFinding> agree(const BiasSample& sample, int replica, double weight,
                                   const Scores& seen);

  ConformingElements conforming_;
  uint64_t seed_;
  // Replica -1: all cores together.
  std::map<std::pair<ValueId, int>, std::array<Run, kKinds>> runs_;
  std::map<std::pair<ValueId, int>, Pool> pools_;  // as in runs_
  // Size of the errors of the worst conforming engine, from the latest comparison
  // (Judged::conforming_size).
  std::map<ValueId, double> conforming_size_;
  // Digest of the latest residuals: a result that repeats them is no new evidence.
  std::map<std::pair<ValueId, int>, uint64_t> last_;
  std::set<ValueId> settled_;  // ops with a finding
  BiasCounts counts_;
};

}  // namespace twinrun
