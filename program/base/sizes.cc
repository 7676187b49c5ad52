// Sizes of memory as text, in the format of XLA's logs.
#include "program/base/sizes.h"

#include <cstdio>

namespace twinrun {

std::string size_text(int64_t bytes) {
  if (bytes < 0) return "-" + size_text(-bytes);
  constexpr double kK = 1024;
  const auto size = static_cast<double>(bytes);
  const auto print = [](const char* format, double value) {
    char text[32];
    std::snprintf(text, sizeof text, format, value);
    return std::string(text);
  };
  if (size < kK) return std::to_string(bytes) + "B";
  if (size < kK * kK) return print("%.1fK", size / kK);
  if (size < kK * kK * kK) return print("%.2fM", size / (kK * kK));
  return print("%.2fG", size / (kK * kK * kK));
}

}  // namespace twinrun
