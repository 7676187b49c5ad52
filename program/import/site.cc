// The building blocks of lowering rules: names, broadcasts, logic, strided slices, padding,
// reversal.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "program/import/integers.h"

namespace twinrun {
namespace {

bool identity(const Dims& permutation) {
  for (size_t i = 0; i < permutation.size(); ++i) {
    if (permutation[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

Dims with(Dims dims, int64_t axis, int64_t size) {
  dims[static_cast<size_t>(axis)] = size;
  return dims;
}

}  // namespace

std::optional<DType> dtype_of(std::string_view hlo) {
  if (hlo == "f32") return DType::kF32;
  if (hlo == "bf16") return DType::kBF16;
  if (hlo == "pred") return DType::kPred;
  if (is_integer(hlo)) return DType::kI32;
  if (hlo == "f64") return DType::kF32;
  return std::nullopt;
}

int64_t product(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

std::optional<double> splat_of(const Graph& graph, ValueId id) {
  for (;;) {
    const Op& op = graph.op(id);
    switch (op.kind) {
      case OpKind::kConstant:
        return op.attrs.value;
      case OpKind::kBroadcastInDim:
      case OpKind::kReshape:
      case OpKind::kTranspose:
        id = op.operands[0];
        continue;
      case OpKind::kConvert:
        if (op.type.dtype != DType::kF32) return std::nullopt;
        id = op.operands[0];
        continue;
      default:
        return std::nullopt;
    }
  }
}

std::string Site::name(std::string_view local) const {
  std::string out = path_;
  if (!local.empty()) out += "." + std::string(local);
  out += shared_.iteration;
  if (!source_.empty()) out += "@" + source_;
  // Numbering repeated names here is cheaper than in Graph::add, which tries one number after the
  // other.
  if (const int n = ++shared_.names[out]; n > 1) out += ":" + std::to_string(n);
  return out;
}

TensorType Site::result() const {
  const auto dtype = dtype_of(in.shape.dtype);
  if (!dtype)
    refuse(fmt::format(
        "the result has the unsupported type {}; allowed: arrays of f32, bf16, integers, pred",
        to_string(in.shape)));
  return {*dtype, in.shape.dims};
}

void Site::check_size(const Dims& dims) const {
  int64_t elements = 1;
  for (int64_t d : dims) {
    if (d < 1 || d > kMaxHloElements / elements)
      refuse(fmt::format("{} of {} elements; allowed: 1 to {}", in.opcode, to_string(dims),
                         kMaxHloElements));
    elements *= d;
  }
}

void Site::expect(size_t operands) const {
  if (x.size() != operands)
    refuse(fmt::format("{} with {} operands; allowed: {}", in.opcode, x.size(), operands));
}

std::string Site::region(const std::string& key) const {
  const HloComputation* c = module.find(text_attribute(in, key));
  if (c == nullptr) refuse(fmt::format("{}={}: no such computation", key, text_attribute(in, key)));
  const HloInstruction& root = c->instructions[static_cast<size_t>(c->root)];
  if (c->parameters.size() != 2 || c->instructions.size() != 3 || root.operands.size() != 2)
    return "";
  const int a = c->parameters[0], b = c->parameters[1];
  const bool straight = root.operands[0] == a && root.operands[1] == b;
  if (!straight && !(root.operands[0] == b && root.operands[1] == a)) return "";
  if (root.opcode == "compare")
    return straight ? "compare " + text_attribute(root, "direction") : "";
  return root.opcode;
}

ValueId Site::splat(double value, const TensorType& like, std::string_view local) {
  const ValueId scalar = b.constant(value, like.dtype, name(local));
  return like.dims.empty() ? scalar
                           : b.broadcast(scalar, like.dims, {}, name(std::string(local) + "s"));
}
ValueId Site::scalar_like(ValueId v, double value, std::string_view local) {
  const TensorType like = b.type(v);
  return splat(value, like, local);
}
ValueId Site::reshape(ValueId v, const Dims& dims, std::string_view local) {
  while (b.type(v).dims != dims && b.graph().op(v).kind == OpKind::kReshape)
    v = b.graph().op(v).operands[0];  // merges consecutive reshapes
  return b.type(v).dims == dims ? v : b.reshape(v, dims, name(local));
}
ValueId Site::transpose(ValueId v, const Dims& permutation, std::string_view local) {
  Dims order = permutation;
  while (b.graph().op(v).kind == OpKind::kTranspose) {  // merges consecutive transposes
    const Op& inner = b.graph().op(v);
    for (int64_t& d : order) d = inner.attrs.dims[static_cast<size_t>(d)];
    v = inner.operands[0];
  }
  return identity(order) ? v : b.transpose(v, order, name(local));
}
ValueId Site::convert(ValueId v, DType dtype, std::string_view local) {
  return b.type(v).dtype == dtype ? v : b.convert(v, dtype, name(local));
}
ValueId Site::spread(ValueId v, const TensorType& like) {
  if (b.type(v).dims == like.dims || !b.type(v).dims.empty()) return v;
  return b.broadcast(v, like.dims, {}, name("broadcast"));
}
ValueId Site::logical_not(ValueId p, std::string_view local) {
  const TensorType t = b.type(p);
  const ValueId no = splat(0, t, "false"), yes = splat(1, t, "true");
  return b.select(p, no, yes, name(local));
}
ValueId Site::logical_and(ValueId p, ValueId q, std::string_view local) {
  const TensorType t = b.type(p);
  return b.select(p, q, splat(0, t, "false"), name(local));
}
ValueId Site::logical_or(ValueId p, ValueId q, std::string_view local) {
  const TensorType t = b.type(p);
  return b.select(p, splat(1, t, "true"), q, name(local));
}

// For a stride, elements are grouped by it: the last group is padded, then the first element of
// each group is kept.
ValueId Site::cut(ValueId v, int64_t axis, int64_t begin, int64_t end, int64_t stride) {
  const Dims dims = b.type(v).dims;
  const int64_t size = dims[static_cast<size_t>(axis)];
  if (begin < 0 || end > size || begin >= end)
    refuse(fmt::format("{} [{}:{}] of {}", in.opcode, begin, end, to_string(b.type(v))));
  if (begin != 0 || end != size) v = b.slice(v, axis, begin, end, name("slice"));
  if (stride == 1) return v;
  const int64_t count = (end - begin + stride - 1) / stride;
  const int64_t whole = count * stride - (end - begin);
  if (whole > 0) v = b.pad(v, axis, 0, whole, name("fill"));
  Dims grouped = with(dims, axis, count), kept = grouped;
  grouped.insert(grouped.begin() + axis + 1, stride);
  v = b.slice(b.reshape(v, grouped, name("groups")), axis + 1, 0, 1, name("first"));
  return b.reshape(v, kept, name("strided"));
}

ValueId Site::widen(ValueId v, int64_t axis, int64_t low, int64_t high, int64_t interior) {
  const int64_t given = b.type(v).dims[static_cast<size_t>(axis)];
  check_size(with(b.type(v).dims, axis,
                  given * (interior + 1) + std::max<int64_t>(0, low) + std::max<int64_t>(0, high)));
  if (interior > 0) {
    const Dims dims = b.type(v).dims;
    const int64_t n = dims[static_cast<size_t>(axis)];
    if (n > 1) {
      Dims grouped = dims;
      grouped.insert(grouped.begin() + axis + 1, 1);
      v = b.pad(b.reshape(v, grouped, name("groups")), axis + 1, 0, interior, name("spread"));
      v = b.reshape(v, with(dims, axis, n * (interior + 1)), name("spaced"));
      v = b.slice(v, axis, 0, (n - 1) * (interior + 1) + 1, name("trimmed"));
    }
  }
  if (low < 0 || high < 0) {
    const int64_t n = b.type(v).dims[static_cast<size_t>(axis)];
    v = cut(v, axis, std::max<int64_t>(0, -low), n - std::max<int64_t>(0, -high));
  }
  low = std::max<int64_t>(0, low);
  high = std::max<int64_t>(0, high);
  return low + high == 0 ? v : b.pad(v, axis, low, high, name("pad"));
}

ValueId Site::take(ValueId v, int64_t axis, ValueId ids) {
  Dims front(static_cast<size_t>(b.type(v).rank()));
  std::iota(front.begin(), front.end(), 0);
  std::rotate(front.begin(), front.begin() + axis, front.begin() + axis + 1);
  Dims back(front.size());
  for (size_t i = 0; i < front.size(); ++i)
    back[static_cast<size_t>(front[i])] = static_cast<int64_t>(i);
  v = b.gather(transpose(v, front), ids, name("gather"));
  return transpose(v, back);
}

ValueId Site::reverse(ValueId v, int64_t axis) {
  const int64_t n = b.type(v).dims[static_cast<size_t>(axis)];
  if (n == 1) return v;
  const ValueId up = b.iota({n}, 0, DType::kI32, name("iota"));
  const ValueId last = splat(static_cast<double>(n - 1), {DType::kI32, {n}}, "last");
  return take(v, axis, b.sub(last, up, name("down")));
}

ValueId Site::bounded(ValueId ids, int64_t last) {
  const ValueId above =
      b.binary(OpKind::kMaximum, ids, scalar_like(ids, 0, "first"), name("from_first"));
  return b.binary(OpKind::kMinimum, above, scalar_like(ids, static_cast<double>(last), "last"),
                  name("to_last"));
}

ValueId Site::fold(OpKind kind, ValueId v) {
  for (;;) {
    const Dims dims = b.type(v).dims;
    const int64_t n = dims[0], half = n / 2;
    if (n == 1) return reshape(v, Dims(dims.begin() + 1, dims.end()));
    const ValueId first = cut(v, 0, 0, half), second = cut(v, 0, half, 2 * half);
    ValueId pairs = b.binary(kind, first, second, name("pairs"));
    if (n % 2 == 1) pairs = b.concatenate(pairs, cut(v, 0, n - 1, n), 0, name("rest"));
    v = pairs;
  }
}

}  // namespace twinrun
