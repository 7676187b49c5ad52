// Where numbers stand among others: membership, and positions in sorted sequences; sequences of sorted
// lengths.
#include <algorithm>
#include <functional>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

Expected isin(const Arguments& a) {
  const Array x = a.array(0, "elements");
  const bool invert = a.flag(3, "invert", false);
  const Value* one = a.find(1, "test_elements");
  if (one != nullptr && one->kind == Value::Kind::kNumber) {
    const Limit limit = limit_of(a, one->number, a.view(0, "elements").element);
    return map(
        a.m,
        [&](Estimate v) {
          return Estimate{(v.value == limit.at) != invert ? 1.0 : 0.0,
                          limit.is_open(v.value) ? kInfinity : 0};
        },
        x);
  }
  const Array among = a.array(1, "test_elements");
  std::vector<double> sorted(among.value.begin(), among.value.end());
  std::ranges::sort(sorted);
  Array out = empty_array(x.dims, true);
  for (size_t i = 0; i < x.value.size(); ++i)
    out.value[i] = std::ranges::binary_search(sorted, x.value[i]) != invert ? 1 : 0;
  return out;
}

// The positions of `x` in rows of sorted numbers; `right`: behind those that are equal.
Array positions(const Array& x, const Array& sorted, bool right) {
  const int64_t width = sorted.dims.empty() ? 1 : sorted.dims.back();
  const bool rows = sorted.dims.size() > 1;
  const int64_t each = x.dims.empty() ? 1 : x.dims.back();
  if (rows && (x.dims.size() != sorted.dims.size() ||
               !std::equal(x.dims.begin(), x.dims.end() - 1, sorted.dims.begin())))
    throw Undefined("rows of numbers that are not those of the sorted sequence");
  if (std::ranges::any_of(sorted.value, [](double v) { return v != v; }) ||
      std::ranges::any_of(x.value, [](double v) { return v != v; }))
    throw Undefined("positions of NaN");
  Array out = empty_array(x.dims, true);
  for (int64_t i = 0; i < x.size(); ++i) {
    const auto begin = sorted.value.begin() + (rows ? quotient(i, each) * width : 0);
    const double v = x.value[static_cast<size_t>(i)];
    const auto at = right ? std::upper_bound(begin, begin + width, v)
                          : std::lower_bound(begin, begin + width, v);
    out.value[static_cast<size_t>(i)] = static_cast<double>(at - begin);
  }
  return out;
}
Expected bucketize(const Arguments& a) {
  return positions(a.array(0, "self"), a.array(1, "boundaries"), a.flag(3, "right", false));
}
Expected searchsorted(const Arguments& a) {
  if (a.has(5, "sorter")) throw Undefined("a sequence that a sorter sorts");
  const bool right = a.flag(3, "right", false) || a.text(4, "side", "left") == "right";
  return positions(a.array(1, "self"), a.array(0, "sorted_sequence"), right);
}

// Sequences of falling lengths, step by step: those that are long enough, and how many they are.
Expected pack_padded_sequence(const Arguments& a) {
  const Array x = a.array(0, "input"), lengths = a.array(1, "lengths");
  const bool batch_first = a.flag(2, "batch_first", false);
  if (x.dims.size() < 2) throw Undefined("sequences of less than two dimensions");
  const int64_t batch = x.dims[batch_first ? 0 : 1], steps = x.dims[batch_first ? 1 : 0];
  const auto most = static_cast<double>(steps);
  if (lengths.size() != batch || batch == 0 || lengths.value[0] > most ||
      lengths.value[static_cast<size_t>(batch) - 1] < 1 ||
      !std::ranges::is_sorted(lengths.value, std::greater<>()))
    throw Undefined("lengths that are not sorted, or not those of the sequences");
  const int64_t each = quotient(x.size(), std::max<int64_t>(batch * steps, 1));
  Checked<int64_t> positions;
  Array sizes = empty_array({static_cast<int64_t>(lengths.value[0])}, true);
  for (int64_t t = 0, n = batch; t < sizes.size(); ++t) {
    while (n > 0 && lengths.value[static_cast<size_t>(n) - 1] <= static_cast<double>(t)) --n;
    sizes.value[static_cast<size_t>(t)] = static_cast<double>(n);
    for (int64_t b = 0; b < n; ++b)
      for (int64_t i = 0; i < each; ++i)
        positions.push_back((batch_first ? b * steps + t : t * batch + b) * each + i);
  }
  Dims dims(x.dims.begin() + 1, x.dims.end());
  dims[0] = quotient(static_cast<int64_t>(positions.size()), std::max<int64_t>(each, 1));
  Expected out(gathered(x, positions, dims));
  out.results.emplace_back(std::move(sizes));
  return out;
}

constexpr Definition kSearchingDefinitions[] = {
    {"aten.isin", isin},
    {"aten.bucketize", bucketize},
    {"aten.searchsorted", searchsorted},
    {"aten._pack_padded_sequence", pack_padded_sequence}};

}  // namespace

std::span<const Definition> searching_definitions() { return kSearchingDefinitions; }

}  // namespace twinrun::aten
