// Names for ops from the position in the user's source that HLO's metadata gives. The importer
// names ops by them.
//
//   // {"dense1/dot_general", absolute, gradient}
//   source_path("jit(step)/transpose(jvp(dense1))/dot_general");
#pragma once

#include <string>
#include <string_view>

namespace twinrun {

struct SourcePath {
  std::string path;       // "" if the name consists of transformations only
  bool absolute = false;  // begins with the function that was lowered, which is left out
  bool gradient = false;  // made by the transpose of reverse-mode differentiation
};

// Removes JAX's names of transformations, jit(...) jvp(...) transpose(...), and keeps what they
// wrap. Characters that cannot appear in a fault's glob become '_'.
SourcePath source_path(std::string_view op_name);

}  // namespace twinrun
