// One of our engines behind the engine protocol (docs/engine-protocol.md): what an author of another one can run theirs beside,
// and what shows that nothing is lost on the way.
//
//   twinrun train digits_mlp --engine 'exec:twinrun serve --engine cpu'     # the same digests as --engine cpu
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

// Answers until `in` ends. Errors of a request are answered; only a folder or an engine that is not there is returned.
Status serve(const ServeOptions& options, std::istream& in, std::ostream& out);

}  // namespace twinrun
