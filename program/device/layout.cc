#include "program/device/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "program/device/machine.h"

namespace twinrun::tpu {
namespace {

int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The compact forms: one or two rows take tiles of 2 sublanes, three or four take tiles of 4; 16 and 8 bit types have none.
int64_t sublanes_of(const TensorType& type, int64_t rows) {
  if (size_of(type.dtype) != 4) return kSublanes;
  return rows <= 2 ? 2 : rows <= 4 ? 4 : kSublanes;
}

Layout with_minor(const TensorType& type, int64_t lanes, int64_t sublanes) {
  Layout layout;
  layout.minor_to_major.push_back(lanes);
  if (sublanes >= 0) layout.minor_to_major.push_back(sublanes);
  for (int64_t d = type.rank() - 1; d >= 0; --d) {
    if (d != lanes && d != sublanes) layout.minor_to_major.push_back(d);
  }
  layout.sublanes = sublanes_of(type, sublanes >= 0 ? type.dims[static_cast<size_t>(sublanes)] : 1);
  return layout;
}

}  // namespace

Layout default_layout(const TensorType& type) {
  if (type.rank() == 0) return {};
  return with_minor(type, type.rank() - 1, type.rank() - 2);
}

Layout smallest_layout(const TensorType& type) {
  Layout best = default_layout(type);
  if (type.rank() < 2) return best;
  int64_t least = padded_bytes(type, best);
  for (int64_t lanes = type.rank() - 1; lanes >= 0; --lanes) {
    for (int64_t sublanes = type.rank() - 1; sublanes >= 0; --sublanes) {
      if (lanes == sublanes) continue;
      const Layout layout = with_minor(type, lanes, sublanes);
      const int64_t bytes = padded_bytes(type, layout);
      if (bytes >= least) continue;
      least = bytes;
      best = layout;
    }
  }
  return best;
}

int64_t padded_bytes(const TensorType& type, const Layout& layout) {
  const auto size = static_cast<int64_t>(size_of(type.dtype));
  const std::vector<int64_t>& order = layout.minor_to_major;
  if (order.empty()) return size;
  int64_t elements = up_to(type.dims[static_cast<size_t>(order[0])], kLanes);
  if (order.size() > 1)
    elements *= up_to(type.dims[static_cast<size_t>(order[1])], layout.sublanes);
  for (size_t i = 2; i < order.size(); ++i) elements *= type.dims[static_cast<size_t>(order[i])];
  return elements * size;
}

std::string to_string(const TensorType& type, const Layout& layout) {
  // XLA's name of a signed integer is s32, ours i32.
  const std::string_view dtype = type.dtype == DType::kI32 ? "s32" : twinrun::to_string(type.dtype);
  if (type.rank() == 0) return fmt::format("{}[]", dtype);
  const std::string tiles = type.rank() == 1 ? fmt::format("T({})", kLanes)
                                             : fmt::format("T({},{})", layout.sublanes, kLanes);
  const char* packed = size_of(type.dtype) == 2 ? "(2,1)" : size_of(type.dtype) == 1 ? "(4,1)" : "";
  return fmt::format("{}[{}]{{{}:{}{}}}", dtype, fmt::join(type.dims, ","),
                     fmt::join(layout.minor_to_major, ","), tiles, packed);
}

}  // namespace twinrun::tpu
