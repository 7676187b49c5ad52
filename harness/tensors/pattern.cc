// Finds the pattern in a set of wrong elements: boxes, borders, lanes, stretches in memory.
#include "harness/tensors/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace twinrun {
namespace {

// Returns n where the indices are exactly every nth index of a dimension of this size; else 0.
int64_t even_step(const std::set<int64_t>& at, int64_t size) {
  if (at.size() < 2) return 0;
  const int64_t step = *std::next(at.begin()) - *at.begin();
  int64_t expected = *at.begin();
  if (expected >= step) return 0;
  for (const int64_t i : at) {
    if (i != expected) return 0;
    expected += step;
  }
  return expected >= size ? step : 0;
}

bool contiguous(const std::set<int64_t>& at) {
  return *at.rbegin() - *at.begin() == static_cast<int64_t>(at.size()) - 1;
}

std::string_view ending(int64_t n) { return n == 2 ? "nd" : n == 3 ? "rd" : "th"; }

// Describes indices along one dimension: "the last 16 of 784", "every 8th, from 3".
std::string along(const std::set<int64_t>& at, int64_t size, size_t dimension) {
  const auto count = static_cast<int64_t>(at.size());
  const int64_t first = *at.begin(), last = *at.rbegin();
  const std::string where = fmt::format("along dimension {}", dimension);
  if (count == 1) return fmt::format("index {} of {} {}", first, size, where);
  if (contiguous(at)) {
    if (last == size - 1) return fmt::format("the last {} of {} {}", count, size, where);
    if (first == 0) return fmt::format("the first {} of {} {}", count, size, where);
    return fmt::format("{} to {} of {} {}", first, last, size, where);
  }
  if (const int64_t step = even_step(at, size); step > 0)
    return fmt::format("every {}{} {}, from {}", step, ending(step), where, first);
  return fmt::format("{} of {} indices {}", count, size, where);
}

// The same for a dimension that has a name: "the last 16 of 784 columns".
std::string along(const std::set<int64_t>& at, int64_t size, const std::string& name) {
  const auto count = static_cast<int64_t>(at.size());
  const int64_t first = *at.begin(), last = *at.rbegin();
  if (count == 1)
    return last == size - 1 && size > 2 ? fmt::format("the last of {} {}s", size, name)
                                        : fmt::format("{} {} of {}", name, first, size);
  if (contiguous(at)) {
    if (last == size - 1) return fmt::format("the last {} of {} {}s", count, size, name);
    if (first == 0) return fmt::format("the first {} of {} {}s", count, size, name);
    return fmt::format("{}s {} to {} of {}", name, first, last, size);
  }
  if (const int64_t step = even_step(at, size); step > 0)
    return fmt::format("every {}{} of {} {}s, from {}", step, ending(step), size, name, first);
  return fmt::format("{} of {} {}s", count, size, name);
}

// The width (1 to 3) of the border of an image [n, h, w, c] that contains all wrong elements; 0
// where there is no such border.
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

Dims index_of(const Dims& dims, int64_t flat) {
  Dims index(dims.size());
  for (size_t i = dims.size(); i-- > 0;) {
    index[i] = flat % dims[i];
    flat /= dims[i];
  }
  return index;
}

std::string index_text(const Dims& dims, int64_t flat) { return to_string(index_of(dims, flat)); }

std::string element_pattern(const Dims& dims, const std::vector<int64_t>& wrong,
                            const std::vector<std::string>& axes) {
  if (wrong.empty()) return "";
  const int64_t all = TensorType{DType::kF32, dims}.elements();
  const auto count = static_cast<int64_t>(wrong.size());
  if (count == all) return all == 1 ? "the only element" : "all elements";
  if (count == 1) return "one element, " + index_text(dims, wrong[0]);

  std::vector<Dims> indices;
  indices.reserve(wrong.size());
  for (const int64_t flat : wrong) indices.push_back(index_of(dims, flat));
  // at[d] holds the wrong indices along dimension d. Together they form the smallest box that
  // contains all wrong elements; the dimensions that it does not cover completely describe the
  // pattern.
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
    text += (text.empty() ? "" : ", ") + (d < axes.size() && !axes[d].empty()
                                              ? along(at[d], dims[d], axes[d])
                                              : along(at[d], dims[d], d));
  }
  const double filled = static_cast<double>(count) / static_cast<double>(box);
  if (!text.empty() && filled == 1) return text;
  if (count > 2 && wrong.back() - wrong.front() == count - 1)
    return fmt::format("elements {} to {} of {}, a stretch in memory", wrong.front(), wrong.back(),
                       all);
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
  return fmt::format("scattered, {:.{}f} % of all{}", share, share >= 1 && share < 99.5 ? 0 : 2,
                     text.empty() ? "" : "; within " + text);
}

std::vector<std::vector<int64_t>> regions_around(const Dims& dims,
                                                 const std::vector<int64_t>& wrong) {
  std::vector<std::vector<int64_t>> out;
  if (wrong.empty() || dims.size() > 8) return out;
  const auto elements = static_cast<size_t>(TensorType{DType::kF32, dims}.elements());
  // For each element, a bit for every dimension along which it shares its index with a wrong one.
  std::vector<uint8_t> shares(elements);
  // Dimensions along which the wrong indices leave others out and have a name: contiguous, or
  // every nth.
  uint8_t narrow = 0;
  int64_t stride = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    std::set<int64_t> at;
    for (const int64_t flat : wrong) at.insert(flat / stride % dims[d]);
    const auto bit = static_cast<uint8_t>(1u << d);
    if (static_cast<int64_t>(at.size()) < dims[d] &&
        (contiguous(at) || even_step(at, dims[d]) > 0)) {
      narrow |= bit;
      for (size_t i = 0; i < elements; ++i) {
        if (at.contains(static_cast<int64_t>(i) / stride % dims[d])) shares[i] |= bit;
      }
    }
    stride *= dims[d];
  }
  for (unsigned mask = 0; mask < 1u << dims.size(); ++mask) {
    if ((mask & narrow) != mask) continue;
    std::vector<int64_t> box;
    for (size_t i = 0; i < elements; ++i) {
      if ((shares[i] & mask) == mask) box.push_back(static_cast<int64_t>(i));
    }
    out.push_back(std::move(box));
  }
  std::vector<int64_t> stretch;
  for (int64_t i = wrong.front(); i <= wrong.back(); ++i) stretch.push_back(i);
  out.push_back(std::move(stretch));
  std::erase_if(out, [&](const auto& region) { return region.size() <= wrong.size(); });
  std::ranges::stable_sort(out, std::greater<>(), &std::vector<int64_t>::size);
  return out;
}

}  // namespace twinrun
