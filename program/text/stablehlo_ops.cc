// Ops that StableHLO has, as StableHLO text; and text of types, constants and attributes.
#include <limits>
#include <optional>

#include "program/base/bits.h"
#include "program/text/stablehlo_writer.h"

namespace twinrun::stablehlo {
namespace {

std::string_view element_text(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kI32:
      return "i32";
    case DType::kPred:
      return "i1";
    default:
      throw GraphError("StableHLO text holds f32, bf16, i32 and pred, not " +
                       std::string(to_string(dtype)));
  }
}

std::string_view name_in_stablehlo(OpKind kind) {
  switch (kind) {
    case OpKind::kLog1p:
      return "stablehlo.log_plus_one";
    case OpKind::kErf:
      return "chlo.erf";
    default:
      return "";
  }
}

// The divisor of a division, if it is a constant (perhaps broadcast).
std::optional<double> constant_divisor(const Graph& graph, const Op& op) {
  if (op.kind != OpKind::kDivide) return std::nullopt;
  ValueId by = op.operands[1];
  while (graph.op(by).kind == OpKind::kBroadcastInDim) by = graph.op(by).operands[0];
  if (graph.op(by).kind != OpKind::kConstant) return std::nullopt;
  return graph.op(by).attrs.value;
}

std::string_view direction(CompareKind kind) {
  constexpr std::string_view kNames[] = {"EQ", "NE", "LT", "LE", "GT", "GE"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

std::string location_text(std::string_view name) {
  std::string out = "loc(\"";
  for (const char c : name) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\")";
}

std::string type_text(const TensorType& type) {
  std::string out = "tensor<";
  for (const int64_t d : type.dims) out += fmt::format("{}x", d);
  return out + std::string(element_text(type.dtype)) + ">";
}

std::string list_text(const Dims& dims) {
  std::string out;
  for (const int64_t d : dims) out += (out.empty() ? "" : ", ") + std::to_string(d);
  return out;
}

std::string array_text(const Dims& dims) {
  return dims.empty() ? "array<i64>" : "array<i64: " + list_text(dims) + ">";
}

std::string splat_text(DType dtype, double value) {
  switch (dtype) {
    case DType::kF32:
      return fmt::format("dense<0x{:08X}>", to_bits(static_cast<float>(value)));
    case DType::kBF16:
      return fmt::format("dense<0x{:04X}>", bf16_round(static_cast<float>(value)));
    case DType::kPred:
      return value != 0 ? "dense<true>" : "dense<false>";
    default:
      return fmt::format("dense<{}>", static_cast<int64_t>(value));
  }
}

void Writer::end_line() { body_ += " " + location_ + "\n"; }

void Writer::plain(ValueId id, std::string_view name) {
  const Op& op = graph_.op(id);
  std::string operands;
  for (const ValueId operand : op.operands)
    operands += (operands.empty() ? "" : ", ") + ref(operand);
  line(ref(id), "{} {} : {}", name, operands, type_text(op.type));
}

std::string Writer::constant(ValueId id, std::string_view name, const TensorType& type,
                             double value) {
  std::string result = fmt::format("%v{}_{}", id, name);
  line(result, "stablehlo.constant {} : {}", splat_text(type.dtype, value), type_text(type));
  return result;
}

std::string Writer::divisor(ValueId id, std::string_view name, const TensorType& type,
                            double value) {
  const TensorType scalar{type.dtype, {}};
  const std::string given = constant(id, fmt::format("{}_given", name), scalar, value);
  const std::string kept = fmt::format("%v{}_{}_kept", id, name);
  line(kept, "stablehlo.optimization_barrier {} : {}", given, type_text(scalar));
  std::string result = fmt::format("%v{}_{}", id, name);
  line(result, "stablehlo.broadcast_in_dim {}, dims = [] : ({}) -> {}", kept, type_text(scalar),
       type_text(type));
  return result;
}

std::string Writer::region(DType dtype, std::string_view op) const {
  const std::string scalar = type_text({dtype, {}});
  return fmt::format(
      "({{\n      ^bb0(%a: {0}, %b: {0}):\n        %c = stablehlo.{1} %a, %b : {0}\n        "
      "stablehlo.return %c : {0}\n    }})",
      scalar, op);
}

void Writer::source(ValueId id, const Op& op) {
  if (op.kind == OpKind::kConstant) {
    line(ref(id), "stablehlo.constant {} : {}", splat_text(op.type.dtype, op.attrs.value),
         type_text(op.type));
  } else {
    line(ref(id), "stablehlo.iota dim = {} : {}", op.attrs.dims[0], type_text(op.type));
  }
}

void Writer::movement(ValueId id, const Op& op) {
  const Dims& dims = op.attrs.dims;
  const ValueId x = op.operands[0];
  const TensorType& from = type(x);
  const std::string to = type_text(op.type);
  const auto mapped = [&] { return fmt::format("({}) -> {}", type_text(from), to); };
  const auto axis = static_cast<size_t>(dims.empty() ? 0 : dims[0]);
  switch (op.kind) {
    case OpKind::kBroadcastInDim:
      line(ref(id), "stablehlo.broadcast_in_dim {}, dims = [{}] : {}", ref(x), list_text(dims),
           mapped());
      return;
    case OpKind::kReshape:
      line(ref(id), "stablehlo.reshape {} : {}", ref(x), mapped());
      return;
    case OpKind::kTranspose:
      line(ref(id), "stablehlo.transpose {}, dims = [{}] : {}", ref(x), list_text(dims), mapped());
      return;
    case OpKind::kSelect:
      line(ref(id), "stablehlo.select {}, {}, {} : {}, {}", ref(x), ref(op.operands[1]),
           ref(op.operands[2]), type_text(from), to);
      return;
    case OpKind::kConcatenate:
      line(ref(id), "stablehlo.concatenate {}, {}, dim = {} : ({}, {}) -> {}", ref(x),
           ref(op.operands[1]), dims[0], type_text(from), type_text(type(op.operands[1])), to);
      return;
    case OpKind::kSlice: {
      std::string ranges;
      for (size_t i = 0; i < from.dims.size(); ++i)
        ranges += fmt::format("{}{}:{}", i == 0 ? "" : ", ", i == axis ? dims[1] : 0,
                              i == axis ? dims[2] : from.dims[i]);
      line(ref(id), "stablehlo.slice {} [{}] : {}", ref(x), ranges, mapped());
      return;
    }
    case OpKind::kPad: {
      const TensorType scalar{from.dtype, {}};
      const std::string zero = constant(id, "zero", scalar, 0);
      Dims low(from.dims.size(), 0), high = low, interior = low;
      low[axis] = dims[1];
      high[axis] = dims[2];
      line(ref(id),
           "stablehlo.pad {}, {}, low = [{}], high = [{}], interior = [{}] : ({}, {}) -> {}",
           ref(x), zero, list_text(low), list_text(high), list_text(interior), type_text(from),
           type_text(scalar), to);
      return;
    }
    default: {  // gather: rows of x
      const TensorType& ids = type(op.operands[1]);
      Dims offsets, sizes = from.dims;
      sizes[0] = 1;
      for (int64_t i = 1; i < from.rank(); ++i) offsets.push_back(ids.rank() + i - 1);
      line(ref(id),
           "\"stablehlo.gather\"({}, {}) <{{dimension_numbers = #stablehlo.gather<offset_dims = "
           "[{}], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {}>, "
           "indices_are_sorted = false, slice_sizes = {}}}> : ({}, {}) -> {}",
           ref(x), ref(op.operands[1]), list_text(offsets), ids.rank(), array_text(sizes),
           type_text(from), type_text(ids), to);
    }
  }
}

void Writer::elementwise(ValueId id, const Op& op) {
  if (op.kind == OpKind::kConvert || op.kind == OpKind::kBitcastConvert) {
    line(ref(id), "stablehlo.{} {} : ({}) -> {}", name_of(op.kind), ref(op.operands[0]),
         type_text(type(op.operands[0])), type_text(op.type));
  } else if (const auto value = constant_divisor(graph_, op)) {
    const std::string by = divisor(id, "divisor", op.type, *value);
    line(ref(id), "stablehlo.divide {}, {} : {}", ref(op.operands[0]), by, type_text(op.type));
  } else if (op.kind == OpKind::kCompare) {
    const TensorType& of = type(op.operands[0]);
    line(ref(id), "stablehlo.compare {}, {}, {}, {} : ({}, {}) -> {}", direction(op.attrs.compare),
         ref(op.operands[0]), ref(op.operands[1]),
         is_floating(of.dtype)      ? "FLOAT"
         : of.dtype == DType::kPred ? "UNSIGNED"
                                    : "SIGNED",
         type_text(of), type_text(of), type_text(op.type));
  } else if (const std::string_view other = name_in_stablehlo(op.kind); op.kind == OpKind::kErf) {
    // The syntax of CHLO names the types of operand and result.
    line(ref(id), "{} {} : {} -> {}", other, ref(op.operands[0]), type_text(op.type),
         type_text(op.type));
  } else {
    plain(id, other.empty() ? "stablehlo." + std::string(name_of(op.kind)) : std::string(other));
  }
}

void Writer::dot(ValueId id, const Op& op) {
  const ValueId a = op.operands[0], b = op.operands[1];
  const int batch = op.attrs.batch_dims;
  std::string batching;
  if (batch > 0) {
    Dims dims;
    for (int64_t i = 0; i < batch; ++i) dims.push_back(i);
    batching = fmt::format("batching_dims = [{0}] x [{0}], ", list_text(dims));
  }
  line(ref(id),
       "stablehlo.dot_general {}, {}, {}contracting_dims = [{}] x [{}], precision = [{}, {}] : "
       "({}, {}) -> {}",
       ref(a), ref(b), batching, batch + op.attrs.lhs_contract, batch + op.attrs.rhs_contract,
       options_.precision, options_.precision, type_text(type(a)), type_text(type(b)),
       type_text(op.type));
}

void Writer::reduce(ValueId id, const Op& op) {
  const ValueId x = op.operands[0];
  const TensorType scalar{op.type.dtype, {}};
  const bool max = op.attrs.reducer == Reducer::kMax, mean = op.attrs.reducer == Reducer::kMean;
  const std::string init =
      constant(id, "init", scalar,
               !max                         ? 0
               : is_floating(op.type.dtype) ? -std::numeric_limits<double>::infinity()
                                            : std::numeric_limits<int32_t>::min());
  const std::string sum = mean ? ref(id) + "_sum" : ref(id);
  line(sum,
       "stablehlo.reduce({} init: {}) applies stablehlo.{} across dimensions = [{}] : ({}, {}) -> "
       "{}",
       ref(x), init, max ? "maximum" : "add", list_text(op.attrs.dims), type_text(type(x)),
       type_text(scalar), type_text(op.type));
  if (!mean) return;
  int64_t count = 1;
  for (const int64_t d : op.attrs.dims) count *= type(x).dims[static_cast<size_t>(d)];
  const std::string n = divisor(id, "count", op.type, static_cast<double>(count));
  line(ref(id), "stablehlo.divide {}, {} : {}", sum, n, type_text(op.type));
}

void Writer::scatter_add(ValueId id, const Op& op) {
  const ValueId ids = op.operands[0], dy = op.operands[1];
  const TensorType& of = type(ids);
  const TensorType scalar{of.dtype, {}};
  const std::string zeros = constant(id, "zeros", op.type, 0);
  // StableHLO drops updates whose index is out of range. Our op clamps the index, so clamp it
  // first.
  const std::string low = constant(id, "low", scalar, 0);
  const std::string high = constant(id, "high", scalar, static_cast<double>(op.attrs.shape[0] - 1));
  const std::string inside = ref(id) + "_ids";
  line(inside, "stablehlo.clamp {}, {}, {} : ({}, {}, {}) -> {}", low, ref(ids), high,
       type_text(scalar), type_text(of), type_text(scalar), type_text(of));
  Dims window;
  for (int64_t i = of.rank(); i < type(dy).rank(); ++i) window.push_back(i);
  line(ref(id),
       "\"stablehlo.scatter\"({}, {}, {}) <{{indices_are_sorted = false, scatter_dimension_numbers "
       "= #stablehlo.scatter<update_window_dims = [{}], inserted_window_dims = [0], "
       "scatter_dims_to_operand_dims = [0], index_vector_dim = {}>, unique_indices = false}}> {} : "
       "({}, {}, {}) -> {}",
       zeros, inside, ref(dy), list_text(window), of.rank(), region(op.type.dtype, "add"),
       type_text(op.type), type_text(of), type_text(type(dy)), type_text(op.type));
}

// The second result of sorting (x, positions) by x.
void Writer::sort_order(ValueId id, const Op& op) {
  const std::string places = ref(id) + "_places", sorted = ref(id) + "_sorted",
                    x = ref(op.operands[0]), of = type_text(op.type), one = "tensor<i32>";
  const int64_t axis = op.type.rank() - 1;
  line(places, "stablehlo.iota dim = {} : {}", axis, of);
  line(sorted + ":2",
       "\"stablehlo.sort\"({0}, {1}) <{{dimension = {2} : i64, is_stable = true}}> ({{ ^bb0(%a: "
       "{3}, %b: {3}, %c: {3}, %d: {3}): %before = stablehlo.compare LT, %a, %b, SIGNED : ({3}, "
       "{3}) -> tensor<i1> stablehlo.return %before : tensor<i1> }}) : ({4}, {4}) -> ({4}, {4})",
       x, places, axis, one, of);
  line(ref(id), "stablehlo.reshape {}#1 : ({}) -> {}", sorted, of, of);
}

void Writer::all_reduce(ValueId id, const Op& op) {
  Dims replicas;
  for (int64_t r = 0; r < cores_; ++r) replicas.push_back(r);
  line(ref(id),
       "\"stablehlo.all_reduce\"({}) <{{replica_groups = dense<[[{}]]> : tensor<1x{}xi64>}}> {} : "
       "({}) -> {}",
       ref(op.operands[0]), list_text(replicas), cores_, region(op.type.dtype, "add"),
       type_text(op.type), type_text(op.type));
}

void Writer::write(ValueId id) {
  const Op& op = graph_.op(id);
  at_ = id;
  location_ = location_text(op.name);
  switch (op.kind) {
    case OpKind::kParameter:
    case OpKind::kRngUniform:
      return;  // these are arguments
    case OpKind::kNegate:
    case OpKind::kAbs:
      return plain(id, "stablehlo." + std::string(name_of(op.kind)));
    case OpKind::kDotGeneral:
      return dot(id, op);
    case OpKind::kConvolution:
      return convolution(id, ref(op.operands[0]), type(op.operands[0]), ref(op.operands[1]),
                         type(op.operands[1]), "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]", "",
                         op.attrs.groups, 1);
    case OpKind::kConvolutionInputGrad:
      return input_grad(id, op);
    case OpKind::kConvolutionKernelGrad:
      return kernel_grad(id, op);
    case OpKind::kReduce:
      return reduce(id, op);
    case OpKind::kScatterAdd:
      return scatter_add(id, op);
    case OpKind::kReduceWindow:
      return reduce_window(id, op);
    case OpKind::kSelectAndScatter:
      return select_and_scatter(id, op);
    case OpKind::kAvgPoolGrad:
      return avg_pool_grad(id, op);
    case OpKind::kAllReduce:
      return all_reduce(id, op);
    case OpKind::kSortOrder:
      return sort_order(id, op);
    default:
      break;
  }
  switch (class_of(op.kind)) {
    case OpClass::kSource:
      return source(id, op);
    case OpClass::kMove:
      return movement(id, op);
    default:
      return elementwise(id, op);
  }
}

}  // namespace twinrun::stablehlo
