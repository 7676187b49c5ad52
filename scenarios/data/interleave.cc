// Interleaves the samples of several files. The files are read one after the other and the samples
// reordered afterwards, so that the order does not depend on timing.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "scenarios/data/source.h"

namespace twinrun::data {
namespace {

Tensor reordered(const Tensor& all, const std::vector<int64_t>& order) {
  if (!all.valid()) return {};
  Tensor out = Tensor::empty(all.type());
  const size_t row = all.bytes() / static_cast<size_t>(all.dims()[0]);
  for (size_t to = 0; to < order.size(); ++to) {
    std::memcpy(out.raw() + to * row, all.raw() + static_cast<size_t>(order[to]) * row, row);
  }
  return out;
}

}  // namespace

std::vector<int64_t> interleaved_order(const std::vector<int64_t>& counts, int64_t cycle_length) {
  std::vector<int64_t> first(counts.size(), 0), taken(counts.size(), 0);
  std::exclusive_scan(counts.begin(), counts.end(), first.begin(), int64_t{0});
  constexpr size_t kNone = ~size_t{0};
  size_t next = 0;  // the file to open next
  const auto open = [&] {
    while (next < counts.size() && counts[next] == 0) ++next;
    return next < counts.size() ? next++ : kNone;
  };
  std::vector<size_t> cycle;  // the file in each slot
  for (int64_t i = 0; i < std::min(cycle_length, static_cast<int64_t>(counts.size())); ++i) {
    cycle.push_back(open());
  }
  const auto total = static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  std::vector<int64_t> order;
  order.reserve(total);
  while (order.size() < total) {
    for (size_t& file : cycle) {
      if (file == kNone) continue;
      order.push_back(first[file] + taken[file]++);
      if (taken[file] == counts[file]) file = open();
    }
  }
  return order;
}

Samples interleaved(const Samples& samples, const std::vector<int64_t>& counts,
                    int64_t cycle_length) {
  const std::vector<int64_t> order = interleaved_order(counts, cycle_length);
  return {reordered(samples.features, order), reordered(samples.labels, order),
          reordered(samples.weights, order)};
}

}  // namespace twinrun::data
