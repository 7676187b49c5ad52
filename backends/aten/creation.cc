// Calls that make tensors from numbers, and calls that give no tensor.
#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

// A constant in the shape of the result; only the number is defined by the call's name.
Expected all(const Arguments& a, double value) {
  const TensorView& made = a.call().written.empty() ? a.result(0) : a.call().written[0];
  return converted(filled(made.dims, value), made.element);
}
Expected zeros(const Arguments& a) { return all(a, 0); }
Expected ones(const Arguments& a) { return all(a, 1); }
Expected full(const Arguments& a) { return all(a, a.number(1, "fill_value", 0)); }
Expected new_full(const Arguments& a) { return all(a, a.number(2, "fill_value", 0)); }
Expected fill(const Arguments& a) { return all(a, a.number(1, "value", 0)); }
Expected scalar_tensor(const Arguments& a) { return all(a, a.number(0, "s", 0)); }
// Memory that is not initialised, or whose content comes from elsewhere: taken as given.
Expected nothing(const Arguments&) { return {}; }

Expected count_up(const Arguments& a, double start, double step) {
  const TensorView& made = a.result(0);
  Array out = filled(made.dims, 0);
  for (int64_t i = 0; i < out.size(); ++i)
    out.value[static_cast<size_t>(i)] = start + static_cast<double>(i) * step;
  if (is_integer(made.element)) return out;
  // The position times the step, or repeated additions within a vector.
  return map(
      a.m,
      [&](Estimate x) {
        return a.m.more(x, 4 * a.m.unit * (std::fabs(start) + std::fabs(x.value)) /
                               std::fmax(std::fabs(x.value), 1e-300));
      },
      out);
}
Expected arange(const Arguments& a) { return count_up(a, 0, 1); }
Expected arange_start(const Arguments& a) { return count_up(a, a.number(0, "start", 0), 1); }
Expected arange_step(const Arguments& a) {
  return count_up(a, a.number(0, "start", 0), a.number(2, "step", 1));
}

constexpr Definition kDefinitions[] = {
    {"aten.zeros", zeros},
    {"aten.zeros_like", zeros},
    {"aten.new_zeros", zeros},
    {"aten.zero", zeros},
    {"aten.ones", ones},
    {"aten.ones_like", ones},
    {"aten.new_ones", ones},
    {"aten.full", full},
    {"aten.full_like", full},
    {"aten.new_full", new_full},
    {"aten.fill", fill},
    {"aten.scalar_tensor", scalar_tensor},
    {"aten.arange.default", arange},
    {"aten.arange.start", arange_start},
    {"aten.arange.start_step", arange_step},
    {"aten.empty", nothing},
    {"aten.empty_like", nothing},
    {"aten.empty_strided", nothing},
    {"aten.new_empty", nothing},
    {"aten.new_empty_strided", nothing},
    {"aten.resize", nothing},
    {"aten.set", nothing},
    {"aten._local_scalar_dense", nothing},
    {"aten.is_same_size", nothing},
    {"aten.record_stream", nothing},
    {"profiler._record_function_enter_new.default", nothing},
    {"profiler._record_function_enter.default", nothing},
    {"profiler._record_function_exit._RecordFunction", nothing},
    {"profiler._record_function_exit.default", nothing},
};

}  // namespace

std::span<const Definition> creation_definitions() { return kDefinitions; }

}  // namespace twinrun::aten
