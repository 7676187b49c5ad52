// Names for ops from the place in the user's source that HLO's metadata tells.
//
//   source_path("jit(step)/transpose(jvp(dense1))/dot_general");     // {"dense1/dot_general.grad", gradient}
#pragma once

#include <string>
#include <string_view>

namespace twinrun {

struct SourcePath {
  std::string path;       // "" where nothing but transformations stands
  bool absolute = false;  // begins with the function that was lowered, which is left out
  bool gradient = false;  // made by the transpose of reverse-mode differentiation
};

// JAX's words for transformations, jit(...) jvp(...) transpose(...), are taken away; what they wrap stays. Characters that a fault's
// glob could not spell become '_'.
SourcePath source_path(std::string_view op_name);

}  // namespace twinrun
