// Sizes of memory as XLA's logs print them: 1024-based, bytes whole, K with one decimal, M and G with two.
//
//   size_text(130023424) == "124.00M";    size_text(4096) == "4.0K";    size_text(0) == "0B"
#pragma once

#include <cstdint>
#include <string>

namespace twinrun {

std::string size_text(int64_t bytes);  // of a negative number: "-" and the size

}  // namespace twinrun
