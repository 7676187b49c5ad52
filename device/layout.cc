// Tile sizes, the choice of a layout, padded bytes, and layouts as XLA prints them.
#include "device/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "device/machine.h"

namespace twinrun::tpu {
namespace {

// The compact forms. Two rows of a 16-bit type or four of an 8-bit type share a 32-bit word, so the
// compact forms of these types begin at 4 rows.
int64_t sublanes_for(const TensorType& type, int64_t rows) {
  if (rows <= 2 && size_of(type.dtype) >= 4) return 2;
  return rows <= 4 ? 4 : kSublanes;
}

std::vector<int64_t> with_minor(const TensorType& type, int64_t lanes, int64_t sublanes) {
  std::vector<int64_t> order = {lanes, sublanes};
  for (int64_t d = type.rank() - 1; d >= 0; --d) {
    if (d != lanes && d != sublanes) order.push_back(d);
  }
  return order;
}

// Pairs of dimensions for lanes and sublanes, the preferred one first.
std::vector<std::pair<int64_t, int64_t>> minor_pairs(int64_t rank) {
  if (rank == 4) return {{3, 0}, {0, 3}, {3, 2}};
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (int64_t lanes = rank - 1; lanes >= 0; --lanes) {
    for (int64_t sublanes = rank - 1; sublanes >= 0; --sublanes) {
      if (lanes != sublanes) pairs.emplace_back(lanes, sublanes);
    }
  }
  return pairs;
}

}  // namespace

Layout with_order(const TensorType& type, std::vector<int64_t> minor_to_major) {
  // An array of one dimension has as many rows as it fills lines of 128 elements.
  int64_t rows = 1;
  if (type.rank() == 1) rows = padded(type.dims[0], kLanes) / kLanes;
  if (type.rank() >= 2) rows = type.dims[static_cast<size_t>(minor_to_major[1])];
  return {std::move(minor_to_major), sublanes_for(type, rows)};
}

Layout default_layout(const TensorType& type) {
  std::vector<int64_t> order;
  for (int64_t d = type.rank() - 1; d >= 0; --d) order.push_back(d);
  return with_order(type, std::move(order));
}

Layout smallest_layout(const TensorType& type) {
  if (type.rank() < 2) return default_layout(type);
  Layout best;
  int64_t least = -1;
  for (const auto& [lanes, sublanes] : minor_pairs(type.rank())) {
    Layout layout = with_order(type, with_minor(type, lanes, sublanes));
    const int64_t bytes = padded_bytes(type, layout);
    if (least >= 0 && bytes >= least) continue;
    least = bytes;
    best = std::move(layout);
  }
  return best;
}

int64_t padded_bytes(const TensorType& type, const Layout& layout) {
  const auto size = static_cast<int64_t>(size_of(type.dtype));
  const std::vector<int64_t>& order = layout.minor_to_major;
  if (order.size() < 2) {
    const int64_t elements = order.empty() ? 1 : type.dims[0];
    return padded(elements, layout.sublanes * kLanes) * size;
  }
  int64_t elements = padded(type.dims[static_cast<size_t>(order[0])], kLanes) *
                     padded(type.dims[static_cast<size_t>(order[1])], layout.sublanes);
  for (size_t i = 2; i < order.size(); ++i) elements *= type.dims[static_cast<size_t>(order[i])];
  return elements * size;
}

std::string to_string(const TensorType& type, const Layout& layout) {
  // XLA calls the signed integer s32, we call it i32.
  const std::string_view dtype = type.dtype == DType::kI32 ? "s32" : twinrun::to_string(type.dtype);
  const std::string tiles = type.rank() < 2 ? fmt::format("T({})", layout.sublanes * kLanes)
                                            : fmt::format("T({},{})", layout.sublanes, kLanes);
  const size_t size = size_of(type.dtype);
  const char* packed = size == 2 ? "(2,1)" : size == 1 ? "(4,1)" : "";
  return fmt::format("{}[{}]{{{}:{}{}}}", dtype, fmt::join(type.dims, ","),
                     fmt::join(layout.minor_to_major, ","), tiles, packed);
}

}  // namespace twinrun::tpu
