// Joined lists, and nearest names by optimal string alignment distance.
#include "program/base/names.h"

#include <algorithm>
#include <array>
#include <utility>

namespace twinrun {

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i != 0) out += separator;
    out += parts[i];
  }
  return out;
}

int edit_distance(std::string_view a, std::string_view b) {
  // Names of foreign files have any length, and the table has the product of both.
  constexpr size_t kMax = 64;
  const auto shared = [](auto x, auto y, auto end_x, auto end_y) {
    return static_cast<size_t>(std::mismatch(x, end_x, y, end_y).first - x);
  };
  const size_t head = shared(a.begin(), b.begin(), a.end(), b.end());
  a.remove_prefix(head), b.remove_prefix(head);
  const size_t tail = shared(a.rbegin(), b.rbegin(), a.rend(), b.rend());
  a.remove_suffix(tail), b.remove_suffix(tail);
  const size_t beyond = std::max(std::max(a.size(), b.size()), kMax) - kMax;
  a = a.substr(0, kMax), b = b.substr(0, kMax);
  const size_t n = a.size(), m = b.size();
  std::array<std::array<int, kMax + 1>, kMax + 1> d;
  for (size_t i = 0; i <= n; ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= m; ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= n; ++i) {
    for (size_t j = 1; j <= m; ++j) {
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[n][m] + static_cast<int>(beyond);
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::string nearest(std::string_view name, const std::vector<std::string>& known) {
  // Distance without regard to case decides; between equals, the distance with regard to case.
  const auto best = std::ranges::min_element(known, {}, [&](const auto& k) {
    return std::pair(edit_distance(lower_case(name), lower_case(k)), edit_distance(name, k));
  });
  return best == known.end() ? "" : *best;
}

}  // namespace twinrun
