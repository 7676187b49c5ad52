// Seeds for the reader of traces: two for each row of tests/backends/aten/calls.txt, of the call and
// of a compiled region that makes it, so that what is changed in them reaches the definitions.
#pragma once

#include <string>
#include <vector>

namespace twinrun::fuzz {

std::vector<std::string> traces_of_calls();

}  // namespace twinrun::fuzz
