// Tensors made without others: filled, counted up, or uninitialised; and calls without a tensor as
// a result.
#include <algorithm>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

// Uninitialised memory, or memory that another call wrote.
Expected given(const Arguments&) {
  Expected e;
  e.results.emplace_back(std::nullopt);
  return e;
}
// A number, a truth value or a shape goes back to the program: there is no tensor to compare.
Expected nothing(const Arguments&) { return {}; }

Expected of(const Arguments& a, const Dims& dims, double value) {
  return converted(filled(dims, value), a.result(0).element);
}
Expected zeros(const Arguments& a) { return of(a, a.integers(0, "size", {}), 0); }
Expected ones(const Arguments& a) { return of(a, a.integers(0, "size", {}), 1); }
Expected full(const Arguments& a) {
  return of(a, a.integers(0, "size", {}), a.number(1, "fill_value", 0));
}
Expected zeros_like(const Arguments& a) { return of(a, a.view(0, "self").dims, 0); }
Expected ones_like(const Arguments& a) { return of(a, a.view(0, "self").dims, 1); }
Expected full_like(const Arguments& a) {
  return of(a, a.view(0, "self").dims, a.number(1, "fill_value", 0));
}
Expected new_zeros(const Arguments& a) { return of(a, a.integers(1, "size", {}), 0); }
Expected new_ones(const Arguments& a) { return of(a, a.integers(1, "size", {}), 1); }
Expected new_full(const Arguments& a) {
  return of(a, a.integers(1, "size", {}), a.number(2, "fill_value", 0));
}
Expected scalar_tensor(const Arguments& a) { return of(a, {}, a.number(0, "s", 0)); }
Expected fill(const Arguments& a) {
  const TensorView& self = a.view(0, "self");
  return converted(filled(self.dims, a.number(1, "value", 0)), self.element);
}
Expected zero(const Arguments& a) { return filled(a.view(0, "self").dims, 0); }
Expected lift(const Arguments& a) { return a.array(0, "self"); }

Expected eye(const Arguments& a) {
  const int64_t n = a.integer(0, "n", 0), columns = a.integer(1, "m", n);
  Array out = filled({n, columns}, 0);
  for (int64_t i = 0; i < std::min(n, columns); ++i)
    out.value[static_cast<size_t>(i * columns + i)] = 1;
  return out;
}

// start + i step. Kernels with lanes round the element of the first lane, which lies between the
// start and the result, to the element type before they add the lane's multiple of the step.
Expected arange(const Arguments& a) {
  const bool only_end = a.call().args.size() == 1;
  double start = only_end ? 0 : a.number(0, "start", 0);
  const double end = a.number(only_end ? 0 : 1, "end", 0);
  double step = a.number(2, "step", 1);
  if (step == 0) throw Undefined("a range with a step of zero");
  // The number of elements follows from the arguments as they were given.
  const auto n = as_integer(std::fmax(0.0, std::ceil((end - start) / step)));
  const Arithmetic& m = a.m;
  const Element element = a.result(0).element;
  const bool whole = is_integer(element);
  if (whole) {
    start = std::trunc(start);
    step = std::trunc(step);
  }
  const double unit = a.m.unit_of(a.result(0).element);
  Array out = empty_array({n}, whole);
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<double>(i);
    if (whole) {
      out.value[static_cast<size_t>(i)] = start + at * step;
      continue;
    }
    const Estimate moved = m.mul(m.rounded({step, 0}), m.rounded({at, 0}));
    Estimate e = m.add(m.rounded({start, 0}), moved);
    if (i > 0 && stored(e, element).radius > 0)
      e.radius += unit * (std::fmax(std::fabs(start), std::fabs(e.value)) + e.radius);
    out.set(i, e);
  }
  return out;
}
// From the nearer end, in steps of (end - start) / (steps - 1), all in the element type. With
// M = |start| + |end| and the unit u, the multiple of the step errs by 2 u M; the rounding of the
// ends, the addition and the first lane's rounding (as in arange) add u M each. The sixth u M is
// for terms of higher order.
Expected linspace(const Arguments& a) {
  const double start = a.number(0, "start", 0), end = a.number(1, "end", 0);
  const int64_t n = a.integer(2, "steps", 0);
  if (is_integer(a.result(0).element)) throw Undefined("steps that are rounded to integers");
  const double radius = 6 * a.m.unit_of(a.result(0).element) * (std::fabs(start) + std::fabs(end));
  const double step = n > 1 ? (end - start) / static_cast<double>(n - 1) : 0;
  Array out = empty_array({n});
  for (int64_t i = 0; i < n; ++i) {
    const bool first_half = n == 1 || i < n / 2;
    const auto steps = static_cast<double>(first_half ? i : n - 1 - i);
    const double value = first_half ? start + steps * step : end - steps * step;
    out.set(i, steps == 0 ? a.m.rounded({value, 0}) : Estimate{value, radius});
  }
  return out;
}

constexpr Definition kCreationDefinitions[] = {
    {"aten.zeros", zeros},
    {"aten._efficientzerotensor", zeros},
    {"aten.ones", ones},
    {"aten.full", full},
    {"aten.zeros_like", zeros_like},
    {"aten.ones_like", ones_like},
    {"aten.full_like", full_like},
    {"aten.new_zeros", new_zeros},
    {"aten.new_ones", new_ones},
    {"aten.new_full", new_full},
    {"aten.scalar_tensor", scalar_tensor},
    {"aten.fill", fill},
    {"aten.zero", zero},
    {"aten.lift", lift},
    {"aten.eye", eye},
    {"aten.arange", arange},
    {"aten.linspace", linspace},
    {"aten.empty", given},
    {"aten.empty_like", given},
    {"aten.empty_strided", given},
    {"aten.new_empty", given},
    {"aten.new_empty_strided", given},
    {"aten.resize_", given},
    {"aten.resize_as_", given},
    {"aten.set_", given},
    {"aten._local_scalar_dense", nothing},
    {"aten.item", nothing},
    {"aten.equal", nothing},
    {"aten.is_same_size", nothing},
    {"profiler._record_function_enter_new.default", given},
    {"profiler._record_function_enter.default", given},
    {"profiler._record_function_exit._RecordFunction", given},
    {"profiler._record_function_exit.default", given},
};

}  // namespace

std::span<const Definition> creation_definitions() { return kCreationDefinitions; }

}  // namespace twinrun::aten
