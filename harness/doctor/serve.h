// One of our engines behind the engine protocol (docs/reference/engine-protocol.md). Authors of
// engines can compare theirs with it, and it shows that the protocol changes no bits.
//
//   # gives the same digests as --engine cpu:
//   twinrun train digits_mlp --engine 'exec:twinrun_dev serve --engine cpu'
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "backends/faults/faults.h"

namespace twinrun {

struct ServeOptions {
  std::string engine = "cpu", folder;
  int threads = 1;
  std::vector<FaultSpec> faults;
};

// Answers requests until `in` ends. An error of a request is sent as its answer; only a missing
// folder or an unknown engine is returned as an error.
Status serve(const ServeOptions& options, std::istream& in, std::ostream& out);

}  // namespace twinrun
