// Sizes of memory as XLA's logs print them: units of 1024; whole bytes, K with one decimal, M and G
// with two.
//
//   size_text(130023424) == "124.00M";    size_text(4096) == "4.0K";    size_text(0) == "0B"
#pragma once

#include <cstdint>
#include <string>

namespace twinrun {

std::string size_text(int64_t bytes);  // a negative size is "-" and the size of its magnitude

}  // namespace twinrun
