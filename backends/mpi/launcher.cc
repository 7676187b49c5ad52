// Reads what a launcher of ranks puts into the environment.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "backends/mpi/join_ranks.h"

namespace twinrun {
namespace {

int number_of(const char* variable) {
  const char* const value = std::getenv(variable);
  if (value == nullptr) return 0;
  const std::string_view text = value;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : 0;
}

}  // namespace

int started_ranks() {
  const int told = std::max(number_of("OMPI_COMM_WORLD_SIZE"), number_of("PMI_SIZE"));
  if (told > 0) return told;
  return number_of("PMIX_RANK") > 0 ? 2 : 1;
}

}  // namespace twinrun
