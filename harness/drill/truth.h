// What is true of a case, decided before and without the diagnosis: by the honest engines' own results for a fault, by binary64
// and many seeds for a cause of sharding. Shares no code with lockstep, bounds, switches or classifier.
//
// Fault: the faulty op of the case's own run is computed again, on the inputs of each activation, by honest judges (judges.h).
// Outside: at some element it is farther from them than they are apart. Biased: inside, but its errors lean to one side, on every
// step looked at, by more than kLean standard deviations of what the judges' do. At level C the tensors of these steps, too.
// Cause: the two programs run three steps in binary64; what is left between them is meaning. Whether it matters: held-out loss,
// S - R on the reference over kSeeds seeds that no diagnosis uses: is it so far from diagnose.margin that diagnose.max_seeds of them
// must decide it (the last look's part of 5 %, power 95 %)? Open, too, where the reference learns nothing.
#pragma once

#include <map>
#include <mutex>
#include <optional>

#include "harness/drill/judges.h"
#include "harness/drill/record.h"

namespace twinrun::drill {

inline constexpr double kLean = 4;
inline constexpr int kSeeds = 8;

// What many cases share: the meaning of a scenario's sharded program, with a hidden cause or none.
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
