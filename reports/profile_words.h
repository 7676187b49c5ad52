// Sentences about a profile that the terminal and the page share.
#pragma once

#include <string>

#include "reports/profile.h"

namespace twinrun::words {

std::string seconds(double s);                          // "402.382 ms", "8.3 us", "0"
std::string rate(double per_second, const char* unit);  // "7.76 TFLOP/s"
std::string matrix(const Profile& profile);
std::string memory(const Profile& profile);
std::string input(const Profile& profile);

}  // namespace twinrun::words
