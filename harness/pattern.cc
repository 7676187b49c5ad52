#include "harness/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace twinrun {
namespace {

Dims index_of(const Dims& dims, int64_t flat) {
  Dims index(dims.size());
  for (size_t i = dims.size(); i-- > 0;) {
    index[i] = flat % dims[i];
    flat /= dims[i];
  }
  return index;
}

// Indices along one dimension: "the last 16 of 784", "every 8th, from 3".
std::string along(const std::set<int64_t>& at, int64_t size, size_t dimension) {
  const auto count = static_cast<int64_t>(at.size());
  const int64_t first = *at.begin(), last = *at.rbegin();
  const std::string where = fmt::format("along dimension {}", dimension);
  if (count == 1) return fmt::format("index {} of {} {}", first, size, where);
  if (last - first == count - 1) {
    if (last == size - 1) return fmt::format("the last {} of {} {}", count, size, where);
    if (first == 0) return fmt::format("the first {} of {} {}", count, size, where);
    return fmt::format("{} to {} of {} {}", first, last, size, where);
  }
  const int64_t step = *std::next(at.begin()) - first;
  bool even = true;
  int64_t due = first;
  for (const int64_t i : at) {
    even = even && i == due;
    due += step;
  }
  if (even && first < step && due >= size)
    return fmt::format("every {}{} {}, from {}", step,
                       step == 2   ? "nd"
                       : step == 3 ? "rd"
                                   : "th",
                       where, first);
  return fmt::format("{} of {} indices {}", count, size, where);
}

// Everything on the rim of an image [n, h, w, c]: how wide; 0 if not.
int64_t rim(const Dims& dims, const std::vector<Dims>& wrong) {
  if (dims.size() != 4) return 0;
  for (int64_t wide = 1; wide <= 3 && 2 * wide < std::min(dims[1], dims[2]); ++wide) {
    const bool inside = std::ranges::any_of(wrong, [&](const Dims& i) {
      return i[1] >= wide && i[1] < dims[1] - wide && i[2] >= wide && i[2] < dims[2] - wide;
    });
    if (!inside) return wide;
  }
  return 0;
}

}  // namespace

std::string index_text(const Dims& dims, int64_t flat) { return to_string(index_of(dims, flat)); }

std::string element_pattern(const Dims& dims, const std::vector<int64_t>& wrong) {
  if (wrong.empty()) return "";
  const int64_t all = TensorType{DType::kF32, dims}.elements();
  const auto count = static_cast<int64_t>(wrong.size());
  if (count == all) return all == 1 ? "the only element" : "all elements";
  if (count == 1) return "one element, " + index_text(dims, wrong[0]);

  std::vector<Dims> indices;
  indices.reserve(wrong.size());
  for (const int64_t flat : wrong) indices.push_back(index_of(dims, flat));
  // The smallest box of indices that holds them; what it leaves out is the pattern.
  std::vector<std::set<int64_t>> at(dims.size());
  for (const Dims& index : indices) {
    for (size_t d = 0; d < dims.size(); ++d) at[d].insert(index[d]);
  }
  int64_t box = 1;
  std::string text;
  for (size_t d = 0; d < dims.size(); ++d) {
    const auto taken = static_cast<int64_t>(at[d].size());
    box *= taken;
    if (taken == dims[d]) continue;
    text += (text.empty() ? "" : ", ") + along(at[d], dims[d], d);
  }
  const double filled = static_cast<double>(count) / static_cast<double>(box);
  if (!text.empty() && filled == 1) return text;
  if (const int64_t wide = rim(dims, indices); wide > 0)
    return fmt::format("the border of dimensions 1 and 2, {} wide", wide);
  for (const int64_t lanes : {128, 64, 32, 16, 8, 4, 2}) {
    if (lanes >= all || count * lanes < all / 2) continue;
    if (std::ranges::all_of(wrong, [&](int64_t i) { return i % lanes == wrong[0] % lanes; }))
      return fmt::format("every {}th element, from {}", lanes, wrong[0] % lanes);
  }
  if (!text.empty() && filled >= 0.5)
    return fmt::format("{} ({:.0f} % of these)", text, 100 * filled);
  const double share = 100 * static_cast<double>(count) / static_cast<double>(all);
  return fmt::format("scattered, {:.2g} % of all{}", share, text.empty() ? "" : "; within " + text);
}

}  // namespace twinrun
