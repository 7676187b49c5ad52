// Cuts and cleans the parts of an error.
#include "reports/error_text.h"

#include "program/base/names.h"
#include "reports/text.h"

namespace twinrun::text {

std::string printed(const Error& error) {
  constexpr size_t kMaxPart = 16'000;
  const auto cut = [](const std::string& part) {
    if (part.size() <= kMaxPart) return part;
    return part.substr(0, kMaxPart) + "... (" + std::to_string(part.size()) + " bytes)";
  };
  const Error bounded{cut(error.what), cut(error.where), cut(error.fix), error.kind};
  return join(clean_lines(bounded.message()), "\n");
}

}  // namespace twinrun::text
