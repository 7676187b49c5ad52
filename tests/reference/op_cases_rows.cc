// Cases of ops that move or add rows, of dots of stacks of matrices, and of grouped convolutions.
#include "tests/reference/case_list.h"

namespace twinrun::cases {
namespace {

Tensor any(Cases& cases, DType dtype, Dims dims) {
  return dtype == DType::kI32    ? cases.ints(std::move(dims))
         : dtype == DType::kPred ? cases.preds(std::move(dims))
                                 : cases.floats(dtype, std::move(dims));
}

// Indices in [-2, rows + 2), so that some lie outside of the rows.
Tensor indices(Dims dims, int64_t rows, uint64_t seed) {
  Random r(seed);
  Tensor t = Tensor::empty({DType::kI32, std::move(dims)});
  for (int32_t& id : t.as<int32_t>()) id = static_cast<int32_t>(integer(r, -2, rows + 1));
  return t;
}

Attrs along(Dims dims) {
  Attrs a;
  a.dims = std::move(dims);
  return a;
}

}  // namespace

void rows(Cases& cases, OpKind kind, DType dtype) {
  const auto x = [&](Dims dims) { return any(cases, dtype, std::move(dims)); };
  switch (kind) {
    case OpKind::kConcatenate:
      cases.add(along({0}), {x({3, 5}), x({1, 5})});
      cases.add(along({1}), {x({3, 5}), x({3, 33})});
      cases.add(along({3}), {x({2, 4, 3, 7}), x({2, 4, 3, 1})});
      cases.add(along({1}), {x({2, 4, 3}), x({2, 2, 3})});
      break;
    case OpKind::kSlice:
      cases.add(along({0, 1, 3}), {x({4, 5})});
      cases.add(along({1, 0, 5}), {x({4, 5})});
      cases.add(along({1, 2, 3}), {x({4, 5, 3})});
      cases.add(along({2, 7, 40}), {x({2, 3, 41})});
      break;
    case OpKind::kPad:
      cases.add(along({0, 1, 2}), {x({4, 5})});
      cases.add(along({1, 0, 3}), {x({4, 5})});
      cases.add(along({1, 2, 0}), {x({4, 5, 3})});
      cases.add(along({2, 3, 4}), {x({2, 3, 41})});
      break;
    case OpKind::kGather:
      cases.add({}, {x({7, 5}), indices({4}, 7, 1)});
      cases.add({}, {x({1, 3}), indices({6}, 1, 2)});
      cases.add({}, {x({9, 2, 3}), indices({3, 8}, 9, 3)});
      cases.add({}, {x({11}), indices({2, 3, 2}, 11, 4)});
      break;
    default: {  // scatter_add
      const auto into = [](Dims shape) {
        Attrs a;
        a.shape = std::move(shape);
        return a;
      };
      cases.add(into({7, 5}), {indices({40}, 7, 5), x({40, 5})});
      cases.add(into({3}), {indices({5, 9}, 3, 6), x({5, 9})});
      cases.add(into({40, 2, 33}), {indices({6}, 40, 7), x({6, 2, 33})});
      cases.add(into({2, 600}), {indices({90}, 2, 8), x({90, 600})});
    }
  }
}

void stacked_dots(Cases& cases, DType dtype) {
  for (int contract = 0; contract < 4; ++contract) {
    Attrs a;
    a.lhs_contract = contract & 1;
    a.rhs_contract = contract >> 1;
    const auto add = [&](Dims stack, int64_t m, int64_t k, int64_t n) {
      a.batch_dims = static_cast<int>(stack.size());
      Dims l = stack, r = stack;
      l.insert(l.end(), {a.lhs_contract == 1 ? m : k, a.lhs_contract == 1 ? k : m});
      r.insert(r.end(), {a.rhs_contract == 1 ? n : k, a.rhs_contract == 1 ? k : n});
      cases.add(a, {cases.floats(dtype, l), cases.floats(dtype, r)});
    };
    add({3}, 5, 7, 4);
    add({2, 3}, 16, 33, 17);
    add({1}, 4, 4100, 2);  // one chain: dots of stacks have no segments
  }
}

void grouped_convolutions(Cases& cases, OpKind kind, DType dtype) {
  struct Shape {
    Dims x;
    int64_t groups, outputs, size, stride, dilation;
  };
  static const Shape shapes[] = {{{2, 6, 5, 4}, 2, 6, 3, 1, 1},   // groups of 2, 3 outputs each
                                 {{1, 7, 8, 5}, 5, 5, 3, 2, 1},   // depthwise
                                 {{2, 9, 9, 3}, 3, 6, 3, 1, 2}};  // depthwise, two outputs, dilated
  for (const Shape& s : shapes) {
    Attrs a;
    a.groups = s.groups;
    a.window = {{s.size, s.size}, {s.stride, s.stride}, {1, 1}, {1, 1}, {s.dilation, s.dilation}};
    const Dims w{s.size, s.size, s.x[3] / s.groups, s.outputs};
    const Dims y{s.x[0], a.window.out(s.x[1], 0), a.window.out(s.x[2], 1), s.outputs};
    if (kind == OpKind::kConvolutionInputGrad) a.shape = s.x;
    if (kind == OpKind::kConvolutionKernelGrad) a.shape = w;
    const bool backward = kind == OpKind::kConvolutionInputGrad;
    const bool kernel = kind == OpKind::kConvolutionKernelGrad;
    cases.add(a, {cases.floats(dtype, backward ? y : s.x), cases.floats(dtype, kernel ? y : w)});
  }
}

}  // namespace twinrun::cases
