// Compares a result with its definition once more, with sums in half precision.
#include "backends/aten/precision.h"

#include "backends/aten/definitions.h"

namespace twinrun::aten {

std::optional<double> digits_with_narrow_sums(const Call& call, const Arithmetic& arithmetic,
                                              size_t which, const TensorView& actual) {
  Checked<const TensorView*> tensors;
  for (const Value& v : call.args) collect(v, tensors);
  for (const auto& [name, v] : call.kwargs) collect(v, tensors);
  collect(call.result, tensors);
  Element half = Element::kF32;
  for (const TensorView* t : tensors)
    if (half_unit(t->element) > half_unit(half)) half = t->element;
  if (!is_half(half)) return std::nullopt;
  const Arithmetic m = arithmetic.with_narrow_sums(half);
  try {
    const Expected e = expected_of(call, m);
    if (!e.problem.empty() || which >= e.results.size() || !e.results[which]) return std::nullopt;
    const Array& expected = *e.results[which];
    if (expected.dims != actual.dims) return std::nullopt;
    const Array found = array_of(actual, m.pool);
    double error = 0, size = 0;
    for (int64_t i = 0; i < expected.size(); ++i) {
      const Estimate x = stored(expected.at(i), actual.element);
      const double got = found.at(i).value, off = std::fabs(got - x.value);
      if (!finite(x.value) && (got == x.value || got != got)) continue;
      if (!(off <= x.radius && x.radius < kInfinity)) return std::nullopt;
      error += off * off, size += x.value * x.value;
    }
    if (!(error > 0)) return std::nullopt;
    const double digits = std::log10(size / error) / 2;
    if (digits >= 1) return digits;
  } catch (const Undefined&) {
  }
  return std::nullopt;
}

}  // namespace twinrun::aten
