// Measures how often an effect is reported wrongly and how often it is detected: on real runs that
// differ only in the random numbers of dropout, and on runs of other seeds. Prints the table of
// docs/method/diagnosis.md. TWINRUN_CALIBRATION_PAIRS=400 sets the number of null pairs; the suite
// uses fewer.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/math/distributions/binomial.hpp>
#include <cmath>
#include <cstdlib>

#include "backends/registry.h"
#include "harness/effect/effect.h"
#include "harness/run/run.h"
#include "harness/sharding/causes.h"

namespace twinrun {
namespace {

// Held-out results of one seed after another, trained when they are needed: those of the whole
// batch, and those of cores that draw random numbers from streams of their own. The two programs
// mean different things, but what they learn follows the same law.
class Pool {
 public:
  Pool() {
    auto scenario = load_scenario("drill_dropout", {});
    experiment_ = std::make_unique<Experiment>(std::move(*make_experiment(*scenario)));
    backend_ = std::move(*make_backend("cpu", {}));
  }
  const Experiment& experiment() const { return *experiment_; }
  const Evaluation& r(size_t i) { return get(r_, i, false); }
  const Evaluation& s(size_t i) { return get(s_, i, true); }

 private:
  const Evaluation& get(std::vector<Evaluation>& kept, size_t i, bool own_streams) {
    while (kept.size() <= i) {
      const Experiment e = *with_seed(*experiment_, 1000 + kept.size());
      RunOptions options;
      options.digest_states = false;
      const Program program =
          own_streams ? e.sharded(introduce(e, e.sharding, "stream_per_core")) : e.whole();
      kept.push_back(train(e, program, *backend_, options)->file.evaluations.back());
    }
    return kept[i];
  }
  std::unique_ptr<Experiment> experiment_;
  std::unique_ptr<Backend> backend_;
  std::vector<Evaluation> r_, s_;
};

struct Count {
  int64_t diagnoses = 0, significant = 0, none = 0, undecided = 0, seeds = 0;
};

// One diagnosis after another, each with seeds that no other uses: `pair_of(i)` returns the results
// of the i-th seed.
template <typename PairOf>
Count diagnose_all(const SeedTrials& trials, int64_t diagnoses, size_t first,
                   const PairOf& pair_of) {
  Count count;
  size_t next = first;
  for (int64_t d = 0; d < diagnoses; ++d) {
    std::vector<Evaluation> a, b;
    Effect effect = Effect::kUndecided;
    bool significant = false;
    for (const int look : trials.looks()) {
      while (a.size() < static_cast<size_t>(look)) {
        const auto [subject, reference] = pair_of(next++);
        a.push_back(subject);
        b.push_back(reference);
      }
      const auto rows = trials.compare("S - R", "", a, b, b);
      const TrajectoryRow* row = speaking(rows, "S - R");
      effect = effect_of(*row);
      significant = is_significant(row);
      if (effect != Effect::kUndecided) break;
    }
    ++count.diagnoses;
    count.significant += significant;
    count.none += effect == Effect::kNoneDetected;
    count.undecided += effect == Effect::kUndecided;
    count.seeds += static_cast<int64_t>(a.size());
  }
  return count;
}

void print(const std::string& what, const Count& c) {
  const auto share = [&](int64_t n) {
    return fmt::format("{} ({:.1f} %)", n,
                       100.0 * static_cast<double>(n) / static_cast<double>(c.diagnoses));
  };
  fmt::print("| {} | {} | {} | {} | {} | {:.1f} |\n", what, c.diagnoses, share(c.significant),
             share(c.none), share(c.undecided),
             static_cast<double>(c.seeds) / static_cast<double>(c.diagnoses));
}

TEST(EffectCalibrationSlow, FalseEffectsAndPower) {
  const char* asked = std::getenv("TWINRUN_CALIBRATION_PAIRS");
  const int64_t pairs = asked != nullptr ? std::atoll(asked) : 20;
  Pool pool;
  const SeedTrials trials(DiagnoseSpec(), true, counted_labels(pool.experiment().data->eval));
  ASSERT_EQ(trials.looks().back(), 20);
  const auto streams = [&](size_t i) { return std::pair(pool.s(i), pool.r(i)); };
  const auto others = [&](size_t i) { return std::pair(pool.r(2 * i), pool.r(2 * i + 1)); };
  fmt::print("| pairs | diagnoses | an effect is told | none detected | undecided | seeds |\n");
  const Count null = diagnose_all(trials, pairs, 0, streams);
  print("other random streams", null);
  const Count seeds = diagnose_all(trials, pairs, 0, others);
  print("other seeds, unpaired", seeds);
  // At most 5 % of each, up to a count that one series in a thousand exceeds.
  const double most = boost::math::quantile(
      boost::math::complement(boost::math::binomial(static_cast<double>(pairs), 0.05), 0.001));
  EXPECT_LE(static_cast<double>(null.significant), most);
  EXPECT_LE(static_cast<double>(seeds.significant), most);

  // The same pairs with an effect added to the loss, in units of the standard deviation between the
  // pairs' differences.
  double sum = 0, square = 0;
  const auto trained = static_cast<size_t>(null.seeds);
  for (size_t i = 0; i < trained; ++i) {
    const double d = pool.s(i).loss - pool.r(i).loss;
    sum += d;
    square += d * d;
  }
  const double n = static_cast<double>(trained),
               deviation = std::sqrt((square - sum * sum / n) / (n - 1));
  double seen = 0;
  for (const double size : {0.5, 1.0, 2.0, 4.0}) {
    const Count power = diagnose_all(trials, pairs, 0, [&](size_t i) {
      auto pair = streams(i);
      pair.first.loss += size * deviation;
      return pair;
    });
    print(fmt::format("{:g} standard deviations", size), power);
    const double share =
        static_cast<double>(power.significant) / static_cast<double>(power.diagnoses);
    EXPECT_GE(share, seen - 0.1) << "power grows with the effect";
    seen = share;
  }
  EXPECT_GE(seen, 0.9) << "of four standard deviations";
}

}  // namespace
}  // namespace twinrun
