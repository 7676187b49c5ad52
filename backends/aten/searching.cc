// Where numbers stand among others: membership, and positions in sorted sequences.
#include <algorithm>

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

constexpr Definition kSearchingDefinitions[] = {
    {"aten.isin", isin}, {"aten.bucketize", bucketize}, {"aten.searchsorted", searchsorted}};

}  // namespace

std::span<const Definition> searching_definitions() { return kSearchingDefinitions; }

}  // namespace twinrun::aten
