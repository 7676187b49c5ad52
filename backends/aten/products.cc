// What matrix products compute: value and bound of mm, bmm, mv, dot, addmm, baddbmm and addmv.
#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

Expected product(const Arguments& a) { return matmul(a.m, a.array(0, "self"), a.array(1, "mat2")); }

// A scalar of the call, which a kernel rounds to its arithmetic.
Estimate factor(const Arithmetic& m, double x) {
  return {x, m.holds(x) ? 0 : std::fabs(x) * m.unit};
}

// beta * input + alpha * (left right). A kernel may scale an operand or the product by alpha, and
// may begin the sum with the scaled input, which then takes part in every rounding of the sum.
Array added(const Arguments& a, Array left, const Array& right, const Dims& dims) {
  const Arithmetic& m = a.m;
  if (a.call().op.find(".dtype") != std::string::npos)
    throw Undefined("a product with another type of result");
  // PyTorch's CPU kernels may round alpha and beta, what they scale, and the product to the type
  // of the result before they add: up to two roundings of half precision for each.
  const Element type = a.result(0).element;
  const double half = type == Element::kBF16 ? 2 * 0x1p-8 : type == Element::kF16 ? 2 * 0x1p-11 : 0;
  // Below its normal numbers binary16 errs by half its smallest number.
  const double least = type == Element::kF16 ? 2 * 0x1p-25 : 0;
  const Estimate alpha = factor(m, a.number(4, "alpha", 1));
  const Estimate beta = factor(m, a.number(3, "beta", 1));
  const double relative = m.of_sum(left.dims.back() + 1);
  const auto kept = [&](Estimate e) {
    if (half == 0) return e;
    e = m.more(e, half);
    return Estimate{e.value, e.radius + least};
  };
  if (alpha.value != 1) {
    left = map(
        m, [&](Estimate x) { return kept(m.mul(alpha, x)); }, left);
  }
  const Array y = reshaped(matmul(m, left, right), dims);
  if (beta.value == 0) return y;  // The input is not read: its NaN does not count.
  return map(
      m,
      [&](Estimate p, Estimate x) {
        return m.add(kept(p), kept(m.more(m.mul(beta, x), relative)));
      },
      y, broadcast(a.array(0, "self"), dims));
}
Expected addmm(const Arguments& a) {
  const Array left = a.array(1, "mat1"), right = a.array(2, "mat2");
  if (left.dims.size() < 2 || right.dims.size() < 2) throw Undefined("a product of vectors");
  Dims dims = left.dims;
  dims.back() = right.dims.back();
  return added(a, left, right, dims);
}
Expected addmv(const Arguments& a) {
  const Array left = a.array(1, "mat"), right = a.array(2, "vec");
  if (left.dims.size() != 2) throw Undefined("a matrix of another rank");
  return added(a, left, reshaped(right, {right.size(), 1}), {left.dims[0]});
}
Expected mv(const Arguments& a) {
  const Array left = a.array(0, "self"), right = a.array(1, "vec");
  if (left.dims.size() != 2) throw Undefined("a matrix of another rank");
  return reshaped(matmul(a.m, left, reshaped(right, {right.size(), 1})), {left.dims[0]});
}
Expected dot(const Arguments& a) {
  const Array x = a.array(0, "self"), y = a.array(1, "tensor");
  return reshaped(matmul(a.m, reshaped(x, {1, x.size()}), reshaped(y, {y.size(), 1})), {});
}

constexpr Definition kTable[] = {
    {"aten.mm", product},  {"aten.bmm", product},   {"aten.mv", mv},       {"aten.dot", dot},
    {"aten.addmm", addmm}, {"aten.baddbmm", addmm}, {"aten.addmv", addmv},
};

}  // namespace

std::span<const Definition> product_definitions() { return kTable; }

}  // namespace twinrun::aten
