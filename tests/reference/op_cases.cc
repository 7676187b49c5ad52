// The cases of every op kind: shapes, attributes and operands. Ops on rows, stacks of matrices and
// grouped convolutions are in op_cases_rows.cc.
#include "tests/reference/op_cases.h"

#include "tests/reference/case_list.h"

namespace twinrun {
namespace {

using namespace cases;

Window window(int64_t kh, int64_t kw, int64_t stride, int64_t low, int64_t high,
              int64_t dilation = 1) {
  return {{kh, kw}, {stride, stride}, {low, low}, {high, high}, {dilation, dilation}};
}

// ---- results at the edge of flushing: 2^-126 - 2^-150 is flushed to zero, though it rounds to
// 2^-126 where denormals are kept

// Operands whose product x y, or quotient x / y, lies within a few ulps of 2^-126.
void edge_of_flush(Cases& cases, OpKind kind) {
  const Dims d{500};
  const Tensor x =
      cases.made(d, [](Random& r) { return sign(r) * static_cast<float>(1 + unit(r)) * 0x1p-60f; });
  Tensor y = cases.made(d, [](Random& r) { return static_cast<float>(integer(r, -1, 1)); });
  for (size_t i = 0; i < 500; ++i) {
    const float a = x.as<float>()[i];
    const float partner = kind == OpKind::kMultiply ? 0x1p-126f / a : a * 0x1p126f;
    y.as<float>()[i] =
        from_bits(to_bits(partner) + static_cast<uint32_t>(static_cast<int32_t>(y.as<float>()[i])));
  }
  cases.add({}, {x, y});
}

void edge_of_flush_dots(Cases& cases) {
  auto power = [](Random& r) {
    static const int exponents[] = {-63, -75, -76};
    return sign(r) * std::ldexp(1.0f, exponents[r() % 3]);
  };
  const Tensor a = cases.made({16, 8}, power), b = cases.made({8, 16}, power);
  cases.add({}, {a, b});
  // Zero padding turns the -0 of a chain into +0. The blocks are 2^-126, then -1.5 2^-126 (the sum
  // is flushed to -0), then two products that are flushed.
  Tensor row = Tensor::zeros({DType::kF32, {1, 66}}),
         column = Tensor::zeros({DType::kF32, {66, 1}});
  auto term = [&](size_t k, float x, float y) {
    row.as<float>()[k] = x, column.as<float>()[k] = y;
  };
  term(0, 0x1p-63f, 0x1p-63f);
  term(32, -0x1.8p-63f, 0x1p-63f);
  term(64, -0x1p-65f, 0x1p-65f);
  term(65, -0x1p-65f, 0x1p-65f);
  cases.add({}, {row, column});
}

// Arguments where exp leaves and enters the normal range, and where the other functions change most
// or saturate.
void elementary_ranges(Cases& cases) {
  for (double low : {-105.0, -87.3366, -10.0, 88.7228}) {
    const double width = low == -105.0 ? 195.0 : low == -10.0 ? 20.0 : 0.0002;
    cases.add(
        {},
        {cases.made({301}, [&](Random& r) { return static_cast<float>(low + width * unit(r)); })});
  }
}

struct ConvolutionShape {
  Dims x;
  int64_t co;
  Window window;
};
const std::vector<ConvolutionShape>& convolution_shapes() {
  static const std::vector<ConvolutionShape> shapes = {
      {{2, 6, 5, 3}, 4, window(3, 3, 1, 1, 1)},    {{1, 7, 7, 1}, 3, window(5, 5, 1, 2, 2)},
      {{2, 8, 7, 2}, 17, window(3, 3, 2, 0, 1)},   {{3, 5, 5, 33}, 2, window(1, 1, 2, 0, 0)},
      {{1, 9, 8, 2}, 3, window(3, 2, 1, 2, 1, 2)}, {{1, 6, 6, 16}, 16, window(3, 3, 1, 1, 1)},
  };
  return shapes;
}

void convolutions(Cases& cases, OpKind kind, DType dtype) {
  for (const auto& s : convolution_shapes()) {
    const Dims w{s.window.size[0], s.window.size[1], s.x[3], s.co};
    const Dims y{s.x[0], s.window.out(s.x[1], 0), s.window.out(s.x[2], 1), s.co};
    Attrs a;
    a.window = s.window;
    if (kind == OpKind::kConvolution) {
      cases.add(a, {cases.floats(dtype, s.x), cases.floats(dtype, w)});
    } else if (kind == OpKind::kConvolutionInputGrad) {
      a.shape = s.x;
      cases.add(a, {cases.floats(dtype, y), cases.floats(dtype, w)});
    } else {
      a.shape = w;
      cases.add(a, {cases.floats(dtype, s.x), cases.floats(dtype, y)});
    }
  }
  // More than one block of every cache level.
  if (dtype == DType::kF32 && cases.data() == DataClass::kNormal) {
    const Window same = window(3, 3, 1, 1, 1);
    Attrs a;
    a.window = same;
    a.shape = kind == OpKind::kConvolutionInputGrad ? Dims{2, 14, 14, 16} : Dims{3, 3, 16, 36};
    const Dims x{2, 14, 14, 16}, w{3, 3, 16, 36}, y{2, 14, 14, 36};
    cases.add(a, {cases.floats(dtype, kind == OpKind::kConvolutionInputGrad ? y : x),
                  cases.floats(dtype, kind == OpKind::kConvolutionKernelGrad ? y : w)});
  }
  // More than one segment of 4096.
  if (kind == OpKind::kConvolutionKernelGrad && dtype == DType::kF32) {
    Attrs a;
    a.window = window(2, 2, 1, 0, 1);
    a.shape = {2, 2, 2, 3};
    cases.add(a, {cases.floats(dtype, {3, 41, 35, 2}), cases.floats(dtype, {3, 41, 35, 3})});
  }
}

void dots(Cases& cases, DType dtype) {
  static const int64_t sizes[][3] = {{1, 1, 1},   {3, 5, 7},    {7, 33, 17}, {16, 64, 32},
                                     {5, 100, 3}, {2, 4100, 3}, {1, 8193, 2}};
  if (cases.data() == DataClass::kTiny && dtype == DType::kF32) edge_of_flush_dots(cases);
  if (cases.data() == DataClass::kNormal && dtype == DType::kF32) {
    cases.add({}, {cases.floats(dtype, {67, 600}), cases.floats(dtype, {600, 70})});
  }
  for (const auto& [m, k, n] : sizes) {
    for (int contract = 0; contract < 4; ++contract) {
      Attrs a;
      a.lhs_contract = contract & 1;
      a.rhs_contract = contract >> 1;
      cases.add(a, {cases.floats(dtype, a.lhs_contract == 1 ? Dims{m, k} : Dims{k, m}),
                    cases.floats(dtype, a.rhs_contract == 1 ? Dims{n, k} : Dims{k, n})});
    }
  }
}

void reductions(Cases& cases, DType dtype) {
  struct Shape {
    Dims dims, reduced;
  };
  static const std::vector<Shape> shapes = {{{1}, {0}},
                                            {{5}, {0}},
                                            {{16}, {0}},
                                            {{17}, {0}},
                                            {{4095}, {0}},
                                            {{8200}, {0}},
                                            {{7, 10}, {1}},
                                            {{7, 10}, {0}},
                                            {{7, 10}, {0, 1}},
                                            {{40, 33}, {0}},
                                            {{6, 5, 4, 3}, {0, 1, 2}},
                                            {{6, 5, 4, 3}, {3}},
                                            {{6, 5, 4, 3}, {1, 2}},
                                            {{3, 70, 61, 2}, {0, 1, 2}},
                                            {{6, 5, 4, 3}, {0, 2}},
                                            {{67, 1}, {1}},
                                            {{5000, 3}, {0}}};
  for (const auto& s : shapes) {
    for (Reducer reducer : {Reducer::kSum, Reducer::kMax, Reducer::kMean}) {
      Attrs a;
      a.dims = s.reduced;
      a.reducer = reducer;
      cases.add(a, {cases.floats(dtype, s.dims)});
    }
  }
}

void pooling(Cases& cases, OpKind kind, DType dtype) {
  struct Shape {
    Dims x;
    Window window;
  };
  static const std::vector<Shape> shapes = {
      {{2, 6, 6, 3}, window(2, 2, 2, 0, 0)},  {{1, 7, 8, 2}, window(3, 3, 2, 1, 1)},
      {{2, 5, 5, 17}, window(3, 3, 1, 1, 1)}, {{1, 4, 4, 5}, window(4, 4, 1, 0, 0)},
      {{1, 7, 5, 1}, window(2, 3, 3, 0, 1)},  {{2, 3, 3, 4}, window(1, 1, 2, 0, 0)}};
  for (const auto& s : shapes) {
    const Dims y{s.x[0], s.window.out(s.x[1], 0), s.window.out(s.x[2], 1), s.x[3]};
    Attrs a;
    a.window = s.window;
    if (kind == OpKind::kReduceWindow) {
      for (Reducer reducer : {Reducer::kMax, Reducer::kMean}) {
        a.reducer = reducer;
        cases.add(a, {cases.floats(dtype, s.x)});
      }
    } else if (kind == OpKind::kSelectAndScatter) {
      cases.add(a, {cases.floats(dtype, s.x), cases.floats(dtype, y)});
    } else {
      a.shape = s.x;
      cases.add(a, {cases.floats(dtype, y)});
    }
  }
}

void broadcasts(Cases& cases, DType dtype) {
  struct Shape {
    Dims x, dims, shape;
  };
  static const std::vector<Shape> shapes = {{{}, {}, {3, 5}},
                                            {{5}, {1}, {3, 5}},
                                            {{3}, {0}, {3, 5}},
                                            {{3, 1}, {0, 1}, {3, 7}},
                                            {{4}, {3}, {2, 3, 2, 4}},
                                            {{2, 4}, {0, 3}, {2, 3, 3, 4}},
                                            {{1}, {0}, {33}},
                                            {{2, 3}, {0, 1}, {2, 3}},
                                            {{2, 1, 1, 3}, {0, 1, 2, 3}, {2, 5, 4, 3}}};
  for (const auto& s : shapes) {
    Attrs a;
    a.dims = s.dims;
    a.shape = s.shape;
    cases.add(a, {dtype == DType::kI32    ? cases.ints(s.x)
                  : dtype == DType::kPred ? cases.preds(s.x)
                                          : cases.floats(dtype, s.x)});
  }
}

void sources(Cases& cases, OpKind kind) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kI32, DType::kPred}) {
    for (double value : {0.0, 1.0, -0.1, 3.14159265358979, 1e-40}) {
      Attrs a;
      a.dtype = dtype;
      a.value = value;
      if (kind == OpKind::kConstant) {
        cases.add(a, {});
        a.shape = {3, 7};
        cases.add(a, {});
      } else if (dtype == DType::kF32 || dtype == DType::kI32) {
        a.shape = {4, 3, 5};
        for (int64_t d = 0; d < 3; ++d) {
          a.dims = {d};
          cases.add(a, {});
        }
      }
    }
  }
}

void randoms(Cases& cases) {
  Attrs a;
  a.seed = 0x123456789ABCDEFull;
  a.stream = 3;
  a.shape = {5, 3, 7};
  Tensor samples = Tensor::empty({DType::kI32, {5}});
  for (size_t i = 0; i < 5; ++i) samples.as<int32_t>()[i] = static_cast<int32_t>(i * 77 + 1);
  cases.add(a, {Tensor::scalar_i32(41), samples});
  a.shape = {5};
  cases.add(a, {Tensor::scalar_i32(0), samples});
}

void moves(Cases& cases, OpKind kind, DType dtype) {
  auto any = [&](Dims dims) {
    return dtype == DType::kI32    ? cases.ints(dims)
           : dtype == DType::kPred ? cases.preds(dims)
                                   : cases.floats(dtype, dims);
  };
  if (kind == OpKind::kReshape) {
    Attrs a;
    a.shape = {6, 5};
    cases.add(a, {any({2, 3, 5})});
  } else if (kind == OpKind::kTranspose) {
    for (const Dims& permutation :
         {Dims{0, 1, 2, 3}, Dims{3, 2, 1, 0}, Dims{0, 3, 1, 2}, Dims{1, 0, 2, 3}}) {
      Attrs a;
      a.dims = permutation;
      cases.add(a, {any({2, 3, 4, 5})});
    }
    Attrs a;
    a.dims = {1, 0};
    cases.add(a, {any({33, 18})});
  } else {  // select
    cases.add({}, {cases.preds({3, 37}), any({3, 37}), any({3, 37})});
  }
}

void converts(Cases& cases) {
  auto to = [](DType dtype) {
    Attrs a;
    a.dtype = dtype;
    return a;
  };
  const Dims d{5, 101};
  cases.add(to(DType::kF32), {cases.ints(d)});
  cases.add(to(DType::kF32), {cases.preds(d)});
  cases.add(to(DType::kF32), {cases.floats(DType::kBF16, d)});
  cases.add(to(DType::kBF16), {cases.floats(DType::kF32, d)});
  cases.add(to(DType::kI32), {cases.floats(DType::kF32, d)});
  Tensor wide = cases.floats(DType::kF32, d);
  for (float& x : wide.as<float>()) x *= 1e9f;
  cases.add(to(DType::kI32), {wide});
}

void elementwise(Cases& cases, OpKind kind, DType dtype) {
  if (dtype == DType::kF32 && cases.data() == DataClass::kTiny) {
    if (kind == OpKind::kMultiply || kind == OpKind::kDivide) edge_of_flush(cases, kind);
    if (kind == OpKind::kExponential || kind == OpKind::kTanh || kind == OpKind::kLogistic ||
        kind == OpKind::kLog || kind == OpKind::kErf || kind == OpKind::kLog1p ||
        kind == OpKind::kSine || kind == OpKind::kCosine) {
      elementary_ranges(cases);
    }
  }
  for (const Dims& d : {Dims{}, Dims{7}, Dims{3, 33}, Dims{257}}) {
    std::vector<Tensor> in;
    for (int i = 0; i < operand_count(kind); ++i)
      in.push_back(dtype == DType::kI32 ? cases.ints(d) : cases.floats(dtype, d));
    if (kind == OpKind::kCompare) {
      for (CompareKind compare : {CompareKind::kEq, CompareKind::kNe, CompareKind::kLt,
                                  CompareKind::kLe, CompareKind::kGt, CompareKind::kGe}) {
        Attrs a;
        a.compare = compare;
        cases.add(a, in);
      }
    } else {
      cases.add({}, in);
    }
  }
}

// Operands of any size, and right ones that are shifts by -2 to 34 bits.
void integers(Cases& cases) {
  for (const Dims& d : {Dims{}, Dims{7}, Dims{3, 33}, Dims{257}}) {
    cases.add({}, {cases.ints(d), cases.ints(d)});
    Tensor few = cases.ints(d);
    for (int32_t& x : few.as<int32_t>())
      x = static_cast<int32_t>(static_cast<uint32_t>(x) % 37) - 2;
    cases.add({}, {cases.ints(d), few});
  }
}

void bitcasts(Cases& cases) {
  Attrs to;
  to.dtype = DType::kI32;
  cases.add(to, {cases.floats(DType::kF32, {5, 101})});
  to.dtype = DType::kF32;
  cases.add(to, {cases.ints({5, 101})});
}

void all_reduces(Cases& cases, DType dtype) {
  for (int64_t replicas : {1, 2, 3, 8}) {
    for (const Dims& d : {Dims{}, Dims{5}, Dims{3, 41}}) {
      std::vector<Tensor> in;
      for (int64_t r = 0; r < replicas; ++r)
        in.push_back(dtype == DType::kI32 ? cases.ints(d) : cases.floats(dtype, d));
      cases.add({}, in);
    }
  }
}

}  // namespace

std::string_view to_string(DataClass data) {
  switch (data) {
    case DataClass::kNormal:
      return "normal";
    case DataClass::kPositive:
      return "positive";
    case DataClass::kWide:
      return "wide";
    case DataClass::kTiny:
      return "tiny";
    case DataClass::kHuge:
      return "huge";
    case DataClass::kSpecial:
      return "special";
    case DataClass::kTies:
      return "ties";
  }
  return "";
}

Tensor random_tensor(TensorType type, DataClass data, uint64_t seed) {
  Random r(seed);
  Tensor t = Tensor::empty(type);
  for (int64_t i = 0; i < t.elements(); ++i) {
    const float x = draw_float(r, data);
    if (type.dtype == DType::kBF16) {
      t.as<uint16_t>()[static_cast<size_t>(i)] = bf16_round(x);
    } else {
      t.as<float>()[static_cast<size_t>(i)] = canonical(x);
    }
  }
  return t;
}

std::vector<OpCase> op_cases(OpKind kind, DataClass data, uint64_t seed) {
  Cases cases(kind, data, seed);
  constexpr DType kFloats[] = {DType::kF32, DType::kBF16};
  constexpr DType kAll[] = {DType::kF32, DType::kBF16, DType::kI32, DType::kPred};
  switch (kind) {  // no default, so that the compiler names a kind without cases
    case OpKind::kParameter:
      break;
    case OpKind::kConstant:
    case OpKind::kIota:
      sources(cases, kind);
      break;
    case OpKind::kBroadcastInDim:
      for (DType t : kAll) broadcasts(cases, t);
      break;
    case OpKind::kReshape:
    case OpKind::kTranspose:
    case OpKind::kSelect:
      for (DType t : kAll) moves(cases, kind, t);
      break;
    case OpKind::kConcatenate:
    case OpKind::kSlice:
    case OpKind::kPad:
    case OpKind::kGather:
      for (DType t : kAll) rows(cases, kind, t);
      break;
    case OpKind::kScatterAdd:
      for (DType t : {DType::kF32, DType::kBF16, DType::kI32}) rows(cases, kind, t);
      break;
    case OpKind::kConvert:
      converts(cases);
      break;
    case OpKind::kAdd:
    case OpKind::kSubtract:
    case OpKind::kMultiply:
    case OpKind::kMaximum:
    case OpKind::kMinimum:
    case OpKind::kCompare:
    case OpKind::kDivide:
      elementwise(cases, kind, DType::kI32);
      [[fallthrough]];
    case OpKind::kNegate:
    case OpKind::kAbs:
    case OpKind::kSine:
    case OpKind::kCosine:
    case OpKind::kSqrt:
    case OpKind::kRsqrt:
    case OpKind::kExponential:
    case OpKind::kLog:
    case OpKind::kTanh:
    case OpKind::kLogistic:
    case OpKind::kErf:
    case OpKind::kLog1p:
      for (DType t : kFloats) elementwise(cases, kind, t);
      break;
    case OpKind::kAnd:
    case OpKind::kOr:
    case OpKind::kXor:
    case OpKind::kShiftLeft:
    case OpKind::kShiftRightLogical:
    case OpKind::kShiftRightArithmetic:
    case OpKind::kRemainder:
      integers(cases);
      break;
    case OpKind::kBitcastConvert:
      bitcasts(cases);
      break;
    case OpKind::kSortOrder:
      for (const Dims& d : {Dims{1}, Dims{257}, Dims{3, 33}, Dims{2, 3, 17}})
        cases.add({}, {cases.ints(d)});
      break;
    case OpKind::kDotGeneral:
      for (DType t : kFloats) dots(cases, t);
      for (DType t : kFloats) stacked_dots(cases, t);
      break;
    case OpKind::kConvolution:
    case OpKind::kConvolutionInputGrad:
    case OpKind::kConvolutionKernelGrad:
      for (DType t : kFloats) convolutions(cases, kind, t);
      for (DType t : kFloats) grouped_convolutions(cases, kind, t);
      break;
    case OpKind::kReduce:
      for (DType t : kFloats) reductions(cases, t);
      break;
    case OpKind::kReduceWindow:
    case OpKind::kSelectAndScatter:
    case OpKind::kAvgPoolGrad:
      for (DType t : kFloats) pooling(cases, kind, t);
      break;
    case OpKind::kRngUniform:
      randoms(cases);
      break;
    case OpKind::kAllReduce:
      for (DType t : {DType::kF32, DType::kBF16, DType::kI32}) all_reduces(cases, t);
      break;
  }
  return std::move(cases.out);
}

}  // namespace twinrun
