// Decides what is true of a case, before the diagnosis and independently of it: for a fault, from
// the results of conforming engines; for a cause of sharding, from binary64 and many seeds. Shares
// no code with lockstep, bounds, switches or classifier.
//
// Fault: the case runs once by itself, and at each activation the judges (judges.h) recompute the
// faulty op on the inputs that it had. Outside: at some element it is farther from them than they
// are from each other. Biased: inside, but on every activation examined its errors are biased in
// the same direction, by more than kLean standard deviations of the judges' errors. At level C the
// tensors of these steps are compared, too. Cause: the two programs run the first steps (three
// without accumulation) in binary64; what then differs is their meaning. Whether it matters is
// decided from held-out loss, S - R on the reference over kSeeds seeds that no diagnosis uses: is
// it so far from diagnose.margin that diagnose.max_seeds seeds must decide it (the last look's
// share of 5 %, power 95 %)? Otherwise it is open, as it is where the reference learns nothing.
#pragma once

#include <map>
#include <mutex>
#include <optional>

#include "harness/drill/judges.h"
#include "harness/drill/record.h"

namespace twinrun::drill {

inline constexpr double kLean = 4;
inline constexpr int kSeeds = 8;

// What many cases share: the meaning of a scenario's sharded program, with or without a hidden
// cause.
struct MeaningTruth {
  double drift = 0;
  std::string matters;
};
class TruthCache {
 public:
  std::optional<MeaningTruth> find(const std::string& key) const;
  void keep(const std::string& key, MeaningTruth truth);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, MeaningTruth> known_;
};

Result<Truth> decide_truth(const DrillCase& c, const Experiment& experiment, TruthCache& cache);

}  // namespace twinrun::drill
