// Where numbers stand among others: membership, positions in sorted sequences, sorting; sequences of
// sorted lengths.
#include <algorithm>
#include <functional>
#include <numeric>

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

// NaN counts as larger than every number.
bool before(double x, double y, bool descending) {
  if (descending) std::swap(x, y);
  return y != y ? x == x : x < y;
}
bool equal(double x, double y) { return x == y || (x != x && y != y); }
// The first `kept` of each line in order, and where they were. Equal elements may come in any order
// unless the sort is stable; all elements may where `ordered` is false: then the indices that the
// call returned count, if they are different and point at elements that belong there.
struct Order {
  int64_t dim = -1, kept = -1;  // -1: all
  bool descending = false, stable = false, ordered = true;
};
Expected sorted(const Arguments& a, const Order& order, bool with_values) {
  const Array x = a.array(0, "self");
  const int64_t axis = axis_of(order.dim, static_cast<int64_t>(x.dims.size()));
  Dims dims = x.dims.empty() ? Dims{1} : x.dims;
  const int64_t n = dims[static_cast<size_t>(axis)], kept = order.kept < 0 ? n : order.kept;
  if (kept > n) throw Undefined("more elements asked for than there are");
  const int64_t inner = count(dims.part(axis + 1));
  dims[static_cast<size_t>(axis)] = kept;
  if (x.dims.empty()) dims = {};
  const Array given = a.result_array(with_values ? 1 : 0);
  if (given.dims != dims) throw Undefined("indices of another shape");
  Array values = empty_array(dims, true), indices = empty_array(dims, true);
  const int64_t lines = n == 0 ? 0 : x.size() / n;
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t outer = line / inner, column = line % inner;
    const auto element = [&](int64_t i) { return x.at((outer * n + i) * inner + column).value; };
    const auto by_value = [&](int64_t i, int64_t j) {
      return before(element(i), element(j), order.descending);
    };
    Checked<int64_t> best(static_cast<size_t>(n));
    std::iota(best.begin(), best.end(), int64_t{0});
    std::ranges::stable_sort(best, by_value);
    best.resize(static_cast<size_t>(kept));
    Checked<int64_t> pointed;
    Checked<bool> used(static_cast<size_t>(n), false);
    bool accepted = !order.stable;
    for (int64_t i = 0; i < kept && accepted; ++i) {
      const double index = given.at((outer * kept + i) * inner + column).value;
      accepted = index >= 0 && index < static_cast<double>(n) && !used[static_cast<size_t>(index)];
      if (!accepted) break;
      used[static_cast<size_t>(index)] = true;
      pointed.push_back(static_cast<int64_t>(index));
    }
    if (accepted) {
      Checked<int64_t> in_order = pointed;
      if (!order.ordered) std::ranges::stable_sort(in_order, by_value);
      accepted = std::ranges::equal(
          in_order, best, [&](int64_t i, int64_t j) { return equal(element(i), element(j)); });
    }
    const Checked<int64_t>& expected = accepted ? pointed : best;
    for (int64_t i = 0; i < kept; ++i) {
      const auto to = static_cast<size_t>((outer * kept + i) * inner + column);
      const int64_t index = expected[static_cast<size_t>(i)];
      values.value[to] = element(index);
      indices.value[to] = static_cast<double>(index);
    }
  }
  if (!with_values) return indices;
  Expected e = std::move(values);
  e.results.emplace_back(std::move(indices));
  return e;
}
Order order_of(const Arguments& a) {
  Order order;
  order.dim = a.integer(1, "dim", -1);
  order.descending = a.flag(2, "descending", false);
  order.stable = a.flag(SIZE_MAX, "stable", false);
  return order;
}
Expected sort(const Arguments& a) { return sorted(a, order_of(a), true); }
Expected argsort(const Arguments& a) { return sorted(a, order_of(a), false); }
Expected topk(const Arguments& a) {
  Order order;
  order.kept = a.integer(1, "k", 0);
  order.dim = a.integer(2, "dim", -1);
  order.descending = a.flag(3, "largest", true);
  order.ordered = a.flag(4, "sorted", true);
  return sorted(a, order, true);
}

constexpr Definition kSearchingDefinitions[] = {
    {"aten.sort", sort},
    {"aten.argsort", argsort},
    {"aten.topk", topk},
    {"aten.isin", isin},
    {"aten.bucketize", bucketize},
    {"aten.searchsorted", searchsorted},
    {"aten._pack_padded_sequence", pack_padded_sequence}};

}  // namespace

std::span<const Definition> searching_definitions() { return kSearchingDefinitions; }

}  // namespace twinrun::aten
