// Sentences about a profile.
#pragma once

#include <string>
#include <string_view>
#include <vector>

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
// The settings of a suggestion, each as an option: "--set train.batch=1024".
std::vector<std::string> options(const Recommendation& r);
// "892000 -> 700000 samples/s, 0.78 times", or of a suggestion to do more arithmetic, FLOP/s.
std::string effect(const Recommendation& r);
// "6 steps shown: 7.90 ms to 8.10 ms, standard deviation 80.0 us".
std::string step_range(const Profile& p);
std::string input(const Profile& profile);

}  // namespace twinrun::words
