// Where the changes between two releases of a package can be read: a small table of repositories
// and of how they name their tags.
//
//   comparison_links("torch", "1.11.0", "1.12.0")
//   // {"https://github.com/pytorch/pytorch/compare/v1.11.0...v1.12.0"}
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace twinrun::bisect {

// Empty for a package that the table does not have, and for what is no version. For jax and jaxlib
// a second link compares the commits of openxla/xla that they are built from, where both are known.
std::vector<std::string> comparison_links(std::string_view package, std::string_view before,
                                          std::string_view after);

}  // namespace twinrun::bisect
