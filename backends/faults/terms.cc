// The addends behind each element of a sum, at the precision of an engine, and faulty sums of them.
#include "backends/faults/terms.h"

#include "backends/faults/kind.h"
#include "program/base/bits.h"

namespace twinrun {
namespace {

// A number as the sum of up to three bf16 parts; each part is the remainder rounded to bf16
// (docs/method/numerics.md, the TPU).
struct Parts {
  double part[3];
  explicit Parts(float x) {
    for (double& p : part) {
      const float rounded = bf16_to_f32(bf16_round(x));
      p = rounded;
      x -= rounded;
    }
  }
};

// One term of a dot: the product of a and b at this precision. Products of binary32 numbers are
// exact in binary64, and the sums of their few parts nearly always are.
double product(DotPrecision precision, float a, float b) {
  if (precision == DotPrecision::kF32) return static_cast<double>(a) * b;
  const Parts of_a(a), of_b(b);
  const double *x = of_a.part, *y = of_b.part;
  switch (precision) {
    case DotPrecision::kBf16x3:
      return x[0] * y[0] + (x[0] * y[1] + x[1] * y[0]);
    case DotPrecision::kBf16x6:
      return x[0] * y[0] + (x[0] * y[1] + x[1] * y[0]) + (x[0] * y[2] + x[1] * y[1] + x[2] * y[0]);
    default:
      return x[0] * y[0];
  }
}

}  // namespace

bool has_terms(const Program& program, ValueId id) {
  const Op& op = op_at(program, id);
  if (!is_f32(op) || (op.kind != OpKind::kScatterAdd && !f32_operands(program, id))) return false;
  return is_sum_of_terms(op);
}

void each_addend(const Op& op, const std::vector<Tensor>& inputs, TermOptions options,
                 const std::function<void(int64_t, double)>& addend) {
  const bool products = is_dot(op);
  const auto a = inputs.front().as<float>(), b = inputs.back().as<float>();
  for_each_term(
      op, inputs,
      [&](const SumTerm& t) {
        const float y = b[static_cast<size_t>(t.b)];
        addend(t.result, products ? product(options.precision, a[static_cast<size_t>(t.a)], y)
                                  : y / static_cast<float>(t.count));
      },
      options.ties);
}

Tensor add_up(const Op& op, const std::vector<Tensor>& inputs, TermOptions options,
              const std::function<float(float, double)>& add) {
  Tensor result = Tensor::zeros(op.type);
  const auto sum = result.as<float>();
  std::vector<int64_t> count(sum.size(), 0);
  each_addend(op, inputs, options, [&](int64_t element, double term) {
    const auto i = static_cast<size_t>(element);
    sum[i] = add(sum[i], term);
    ++count[i];
  });
  if (is_mean(op)) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] /= static_cast<float>(count[i]);
  }
  return result;
}

}  // namespace twinrun
