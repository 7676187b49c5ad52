// Sentences about a profile that the terminal and the page share.
#pragma once

#include <string>

#include "reports/profile.h"

namespace twinrun::words {

std::string three_digits(double value);                 // "402", "8.30", "0.0105", "304000"
std::string seconds(double s);                          // "402 ms", "8.30 us", "0"
std::string rate(double per_second, const char* unit);  // "7.76 TFLOP/s"
std::string step(const Profile& profile);               // time, samples per second, uncertainty
std::string matrix(const Profile& profile);
std::string memory(const Profile& profile);
// What a slow core or slow links cost; "" where there are none.
std::string cores(const Profile& profile);
std::string input(const Profile& profile);

}  // namespace twinrun::words
