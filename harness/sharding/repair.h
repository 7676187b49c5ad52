// Which mistakes make a sharded step mean something else than the same step on one device. The
// sharded program runs op by op in binary64; where a value is the mean, the sum or a multiple of one
// that the step on one device has, and nothing later makes it that, it is repaired. The causes are
// the smallest set of repairs with which the whole step means the same; if there is none, a
// collective that is written otherwise (repair_variants.h), with repairs or alone. Their names, and what is
// said of them, are those of adapters/twinrun/causes.json (catalogue.h).
//
//   const auto causes =
//       repaired_causes({sharded, given, whole, whole_given, axes, exchanges, same, 2});
//   causes->front().cause;                 // "clipping"
//   causes->front().facts.at("line");      // "train.py:41"
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "backends/oracle/replica_walk.h"
#include "program/import/exchange.h"

namespace twinrun {

struct RepairedCause {
  std::string cause;
  std::map<std::string, std::string> facts;  // what the sentences of the catalogue ask for
};

struct RepairTask {
  const Program& sharded;
  const ReplicaWalk::Values& given;  // state and inputs of each core, in binary64
  const Program& whole;
  const ReplicaWalk::Values& whole_given;
  std::span<const MeshAxis> axes;
  std::span<const Exchange> exchanges;
  // Whether the values of a walk through the sharded program mean what the step on one device does.
  std::function<bool(const ReplicaWalk::Values&)> same;
  int threads = 1;
};

// No mistake: each core draws random numbers of its own for its own samples.
inline constexpr const char* kOwnDraws = "own_draws";

// Empty if no set of repairs does.
Result<std::vector<RepairedCause>> repaired_causes(const RepairTask& task);

}  // namespace twinrun
