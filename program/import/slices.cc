// dynamic-slice and dynamic-update-slice. Loops write one row after the other of an array and read
// them in other loops: such rows are remembered, so that reading one gives the value that was
// written, and an array of which every row was written is one concatenation.
#include "program/import/slices.h"

#include <fmt/format.h>

#include <algorithm>

namespace twinrun {

// What was written to successive versions of one array, in blocks of equal size along one axis.
struct WrittenBlocks {
  struct Block {
    int64_t version;
    ValueId value;
  };
  ValueId base = kNoValue;  // the array before the first block was written
  size_t axis = 0;
  int64_t size = 1, latest = 0;
  std::unordered_map<int64_t, std::vector<Block>> blocks;  // by their position
};

namespace {

using Version = std::pair<std::shared_ptr<WrittenBlocks>, int64_t>;

// The only axis along which the window is smaller than x; nothing if there are more.
std::optional<size_t> cut_axis(const Dims& x, const Dims& window) {
  std::optional<size_t> axis;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == window[i]) continue;
    if (axis) return std::nullopt;
    axis = i;
  }
  return axis;
}

const Version* version_of(Site& s, ValueId x) {
  const auto found = s.shared().written.find(x);
  return found == s.shared().written.end() ? nullptr : &found->second;
}

ValueId read_at(Site& s, ValueId x, const Dims& start, const Dims& sizes) {
  const Dims dims = s.b.type(x).dims;
  if (const auto axis = cut_axis(dims, sizes)) {
    constexpr int kMaxSteps = 64;  // bounds the work for arrays of arrays that were written
    for (int step = 0; step < kMaxSteps; ++step) {
      const Version* v = version_of(s, x);
      if (v == nullptr || v->first->axis != *axis || v->first->size != sizes[*axis] ||
          start[*axis] % v->first->size != 0)
        break;
      const auto found = v->first->blocks.find(start[*axis] / v->first->size);
      if (found != v->first->blocks.end()) {
        const auto& blocks = found->second;
        const auto later =
            std::ranges::upper_bound(blocks, v->second, {}, &WrittenBlocks::Block::version);
        if (later != blocks.begin()) return (later - 1)->value;
      }
      x = v->first->base;
    }
  }
  for (size_t i = 0; i < dims.size(); ++i)
    x = s.cut(x, static_cast<int64_t>(i), start[i], start[i] + sizes[i]);
  return x;
}

// Concatenates blocks [begin, end) in pairs, so that no element is copied more than log n times.
ValueId concatenated(Site& s, const std::vector<ValueId>& blocks, size_t begin, size_t end,
                     int64_t axis) {
  if (end - begin == 1) return blocks[begin];
  const size_t middle = begin + (end - begin) / 2;
  const ValueId first = concatenated(s, blocks, begin, middle, axis),
                second = concatenated(s, blocks, middle, end, axis);
  return s.b.concatenate(first, second, axis, s.name("stacked"));
}

ValueId replaced(Site& s, ValueId x, ValueId update, const Dims& start, size_t axis) {
  const Dims dims = s.b.type(x).dims, part = s.b.type(update).dims;
  while (axis < dims.size() && dims[axis] == part[axis]) ++axis;
  if (axis == dims.size()) return update;
  const auto a = static_cast<int64_t>(axis);
  const int64_t begin = start[axis], end = begin + part[axis];
  ValueId out = replaced(s, s.cut(x, a, begin, end), update, start, axis + 1);
  if (begin > 0) {
    const ValueId before = s.cut(x, a, 0, begin);
    out = s.b.concatenate(before, out, a, s.name("before"));
  }
  if (end < dims[axis]) {
    const ValueId after = s.cut(x, a, end, dims[axis]);
    out = s.b.concatenate(out, after, a, s.name());
  }
  return out;
}

ValueId overwrite_at(Site& s, ValueId x, ValueId update, const Dims& start) {
  const Dims dims = s.b.type(x).dims, part = s.b.type(update).dims;
  if (dims == part) return update;
  const auto axis = cut_axis(dims, part);
  const bool aligned = axis && dims[*axis] % part[*axis] == 0 && start[*axis] % part[*axis] == 0;
  if (!aligned) return replaced(s, x, update, start, 0);
  Version next;
  const Version* v = version_of(s, x);
  const int64_t count = dims[*axis] / part[*axis];
  if (v != nullptr && v->first->axis == *axis && v->first->size == part[*axis] &&
      v->first->latest == v->second) {
    next = {v->first, ++v->first->latest};
  } else {
    next = {std::make_shared<WrittenBlocks>(WrittenBlocks{x, *axis, part[*axis], 1, {}}), 1};
  }
  WrittenBlocks& all = *next.first;
  const size_t before = all.blocks.size();
  all.blocks[start[*axis] / part[*axis]].push_back({next.second, update});
  ValueId out = kNoValue;
  if (all.blocks.size() > before && all.blocks.size() == static_cast<size_t>(count)) {
    std::vector<ValueId> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(all.blocks.at(i).back().value);
    out = concatenated(s, values, 0, values.size(), static_cast<int64_t>(*axis));
  } else {
    out = replaced(s, x, update, start, 0);
  }
  s.shared().written[out] = std::move(next);
  return out;
}

// Starts as numbers, clamped as XLA does.
std::optional<Dims> clamped(Site& s, const std::vector<ValueId>& starts, const Dims& dims,
                            const Dims& sizes) {
  auto start = known_starts(s, starts);
  for (size_t i = 0; start && i < dims.size(); ++i)
    (*start)[i] = std::clamp<int64_t>((*start)[i], 0, dims[i] - sizes[i]);
  return start;
}

// Starts that make no difference, because the window is as large as the array, are left out.
std::vector<ValueId> needed(const std::vector<ValueId>& starts, const Dims& dims,
                            const Dims& sizes) {
  std::vector<ValueId> out = starts;
  for (size_t i = 0; i < out.size(); ++i) {
    if (dims[i] == sizes[i]) out[i] = kNoValue;
  }
  return out;
}

ValueId dynamic_slice(Site& s) {
  const Dims sizes = list_attribute(s.in, "dynamic_slice_sizes");
  const auto rank = static_cast<size_t>(s.type(0).rank());
  s.expect(rank + 1);
  if (sizes.size() != rank) s.refuse("dynamic_slice_sizes of another rank");
  for (size_t i = 0; i < rank; ++i) {
    if (sizes[i] < 1 || sizes[i] > s.type(0).dims[i])
      s.refuse("dynamic_slice_sizes beyond the operand");
  }
  return read_window(s, s.x[0], {s.x.begin() + 1, s.x.end()}, sizes);
}

ValueId dynamic_update_slice(Site& s) {
  const auto rank = static_cast<size_t>(s.type(0).rank());
  s.expect(rank + 2);
  const Dims part = s.type(1).dims;
  if (part.size() != rank || s.type(1).dtype != s.type(0).dtype)
    s.refuse("an update of another type than its operand");
  for (size_t i = 0; i < rank; ++i) {
    if (part[i] < 1 || part[i] > s.type(0).dims[i]) s.refuse("an update larger than its operand");
  }
  return overwrite_window(s, s.x[0], s.x[1], {s.x.begin() + 2, s.x.end()});
}

}  // namespace

std::optional<Dims> known_starts(Site& s, const std::vector<ValueId>& starts) {
  Dims out;
  for (const ValueId start : starts) {
    const auto value = start == kNoValue ? 0 : s.shared().constants.integer(start);
    if (!value) return std::nullopt;
    out.push_back(*value);
  }
  return out;
}

ValueId read_window(Site& s, ValueId x, const std::vector<ValueId>& starts, const Dims& sizes) {
  const Dims dims = s.b.type(x).dims;
  const auto from = needed(starts, dims, sizes);
  if (const auto start = clamped(s, from, dims, sizes)) return read_at(s, x, *start, sizes);
  for (size_t i = 0; i < dims.size(); ++i) {
    if (sizes[i] == dims[i]) continue;
    const ValueId start = s.bounded(from[i], dims[i] - sizes[i]);
    const ValueId up = s.b.iota({sizes[i]}, 0, DType::kI32, s.name("iota"));
    const TensorType like = s.b.type(up);
    const ValueId first = s.spread(start, like);
    x = s.take(x, static_cast<int64_t>(i), s.b.add(first, up, s.name("ids")));
  }
  return x;
}

// The update, moved to its position along every axis, and x everywhere else.
ValueId overwrite_window(Site& s, ValueId x, ValueId update, const std::vector<ValueId>& starts) {
  const Dims dims = s.b.type(x).dims, part = s.b.type(update).dims;
  const auto from = needed(starts, dims, part);
  if (const auto start = clamped(s, from, dims, part)) return overwrite_at(s, x, update, *start);
  ValueId moved = update, inside = kNoValue;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (part[i] == dims[i]) continue;
    const auto axis = static_cast<int64_t>(i);
    const ValueId up = s.b.iota({dims[i]}, 0, DType::kI32, s.name("iota"));
    const TensorType like = s.b.type(up);
    const ValueId first = s.spread(s.bounded(from[i], dims[i] - part[i]), like);
    const ValueId place = s.b.sub(up, first, s.name("place"));
    moved = s.take(moved, axis, s.bounded(place, part[i] - 1));
    const ValueId zero = s.scalar_like(place, 0, "zero"),
                  end = s.scalar_like(place, static_cast<double>(part[i]), "end");
    const ValueId above = s.b.compare(CompareKind::kGe, place, zero, s.name("from")),
                  below = s.b.compare(CompareKind::kLt, place, end, s.name("to"));
    const ValueId line = s.logical_and(above, below);
    const ValueId here = s.b.broadcast(line, dims, {axis}, s.name("inside"));
    inside = inside == kNoValue ? here : s.logical_and(inside, here);
  }
  return s.b.select(inside, moved, x, s.name());
}

void add_slices(LoweringTable& table) {
  table["dynamic-slice"] = dynamic_slice;
  table["dynamic-update-slice"] = dynamic_update_slice;
}

}  // namespace twinrun
