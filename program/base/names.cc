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

std::string meant(std::string_view name, const std::vector<std::string>& known) {
  constexpr size_t kLeast = 3, kMost = 64;
  if (name.empty() || name.size() > kMost) return "";
  const std::string word = lower_case(name);
  const auto find = [&](auto&& fits) -> std::string {
    const auto at = std::ranges::find_if(known, [&](const std::string& k) {
      const std::string other = lower_case(k);
      return std::min(word.size(), other.size()) >= kLeast && fits(other);
    });
    return at == known.end() ? "" : *at;
  };
  const std::string close = nearest(name, known);
  const int distance = edit_distance(word, lower_case(close));
  if (!close.empty() && distance <= 1) return close;
  for (const std::string& found :
       {find([&](const std::string& k) { return k.starts_with(word) || word.starts_with(k); }),
        find([&](const std::string& k) {
          return k.find(word) != std::string::npos || word.find(k) != std::string::npos;
        })}) {
    if (!found.empty()) return found;
  }
  return distance <= std::max(1, static_cast<int>(std::max(word.size(), close.size())) / 3) ? close
                                                                                            : "";
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  const std::string found = meant(name, known);
  return found.empty() ? "" : "did you mean '" + found + "'?";
}

}  // namespace twinrun
