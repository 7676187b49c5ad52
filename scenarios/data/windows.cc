// Windows of tokens, UTF-8 decoding and ranks of characters.
#include "scenarios/data/windows.h"

#include <fmt/format.h>

#include <algorithm>

#include "scenarios/data/source.h"

namespace twinrun::data {

Result<Samples> windows(const DataRequest& request, std::span<const int32_t> tokens,
                        const std::string& what) {
  const int64_t window = request.window, have = static_cast<int64_t>(tokens.size());
  if (window < 1) {
    return Error{fmt::format("data.window is {}; allowed: at least 1", window), request.where,
                 "set data.window = 64"};
  }
  const int64_t count = (have - 1) / window;
  if (have < 2 || count == 0) {
    return Error{
        fmt::format("found {} tokens; a window of {} and the token after it need {}", have, window,
                    window + 1),
        join_where(request.where, what),
        have < 2 ? "give a longer text"
                 : fmt::format("set data.window to {} or less, or give a longer text", have - 1)};
  }
  const TensorType type{DType::kI32, {count, window}};
  Samples out{Tensor::empty(type), Tensor::empty(type), {}};
  std::copy_n(tokens.begin(), count * window, out.features.as<int32_t>().begin());
  std::copy_n(tokens.begin() + 1, count * window, out.labels.as<int32_t>().begin());
  return out;
}

Result<std::vector<int32_t>> code_points(std::string_view text) {
  std::vector<int32_t> out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) -> uint32_t {
      return i + k < text.size() ? static_cast<uint8_t>(text[i + k]) : 0;
    };
    const uint32_t lead = byte(0);
    const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    constexpr uint32_t kLeadBits[] = {0x7F, 0x1F, 0x0F, 0x07};
    constexpr uint32_t kMin[] = {0, 0x80, 0x800, 0x10000};
    uint32_t point = lead & kLeadBits[length - 1];
    bool good = lead < 0x80 || (lead >= 0xC2 && lead <= 0xF4);
    for (size_t k = 1; k < length; ++k) {
      good = good && (byte(k) & 0xC0) == 0x80;
      point = point << 6 | (byte(k) & 0x3F);
    }
    good = good && point >= kMin[length - 1] && point <= 0x10FFFF &&
           (point < 0xD800 || point > 0xDFFF);
    if (!good) {
      const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<long>(i), '\n');
      return Error{fmt::format("byte {} ({:02x}) is not UTF-8", i, lead),
                   fmt::format("line {}", line),
                   "convert the file to UTF-8, or set data.tokens = \"bytes\""};
    }
    out.push_back(static_cast<int32_t>(point));
    i += length;
  }
  return out;
}

int64_t rank_values(std::vector<int32_t>& values) {
  std::vector<int32_t> distinct = values;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  for (int32_t& value : values) {
    value = static_cast<int32_t>(std::lower_bound(distinct.begin(), distinct.end(), value) -
                                 distinct.begin());
  }
  return static_cast<int64_t>(distinct.size());
}

}  // namespace twinrun::data
