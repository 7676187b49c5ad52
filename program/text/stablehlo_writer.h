// What the files of the StableHLO text share: types and attributes as text, and the lines of a function's body.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <string_view>

#include "program/text/stablehlo.h"

namespace twinrun::stablehlo {

std::string type_text(const TensorType& type);      // "tensor<8x4xf32>"
std::string location_text(std::string_view name);   // "loc(\"conv1/convolution\")"
std::string list_text(const Dims& dims);            // "1, 2": of a list in brackets
std::string array_text(const Dims& dims);           // "array<i64: 1, 2>"
std::string splat_text(DType dtype, double value);  // "dense<0x3F800000>": one element, its bits
std::string window_text(
    const Window& w);  // "window_dimensions = .., window_strides = .., padding = .."
std::string padding_text(const Dims& low,
                         const Dims& high);  // "dense<[[0, 1], ..]> : tensor<4x2xi64>"

// The body of @main: one op a line, %vN is value N of the program, %vN_name a helper of it.
class Writer {
 public:
  Writer(const Graph& graph, int cores, const StableHloOptions& options)
      : graph_(graph), cores_(cores), options_(options) {}

  void write(ValueId id);
  std::string take() { return std::move(body_); }

 private:
  static std::string ref(ValueId id) { return fmt::format("%v{}", id); }
  const TensorType& type(ValueId id) const { return graph_.type(id); }
  // "%v7 = TEXT": a line. Where values are results, too, each stands behind a barrier, so that what is returned is what the
  // next op reads: XLA would join constants across ops, and leave out conversions.
  template <typename... Args>
  void line(const std::string& result, fmt::format_string<Args...> format, Args&&... args) {
    const bool shown = options_.values && result == ref(at_);
    body_ += "    " + result + (shown ? "_own = " : " = ");
    fmt::format_to(std::back_inserter(body_), format, std::forward<Args>(args)...);
    end_line();
    if (!shown) return;
    body_ += fmt::format("    {0} = stablehlo.optimization_barrier {0}_own : {1}", result,
                         type_text(type(at_)));
    end_line();
  }
  void end_line();
  // "stablehlo.NAME operands : type": all of one type.
  void plain(ValueId id, std::string_view name);
  // A helper value of `id` that holds a constant.
  std::string constant(ValueId id, std::string_view name, const TensorType& type, double value);
  // A constant to divide by. Behind a barrier: XLA would multiply by its rounded reciprocal instead, an ulp away.
  std::string divisor(ValueId id, std::string_view name, const TensorType& type, double value);
  // "({ ^bb0(..): .. })": a region that folds two scalars.
  std::string region(DType dtype, std::string_view op) const;
  // The number of taps inside the image for each window over [h, w], as a helper of type `as` ([n, oh, ow, c]).
  std::string tap_counts(ValueId id, const Dims& image, const Window& w, const TensorType& as);

  void source(ValueId id, const Op& op);
  void movement(ValueId id, const Op& op);
  void elementwise(ValueId id, const Op& op);
  void dot(ValueId id, const Op& op);
  void convolution(ValueId id, const std::string& lhs, const TensorType& lhs_type,
                   const std::string& rhs, const TensorType& rhs_type, std::string_view numbers,
                   std::string_view window, int64_t feature_groups, int64_t batch_groups);
  void input_grad(ValueId id, const Op& op);
  void kernel_grad(ValueId id, const Op& op);
  void reduce(ValueId id, const Op& op);
  void scatter_add(ValueId id, const Op& op);
  void reduce_window(ValueId id, const Op& op);
  void select_and_scatter(ValueId id, const Op& op);
  void avg_pool_grad(ValueId id, const Op& op);
  void all_reduce(ValueId id, const Op& op);

  const Graph& graph_;
  int cores_;
  const StableHloOptions& options_;
  std::string body_;
  ValueId at_ = kNoValue;  // the op at work
  std::string location_;   // its
};

}  // namespace twinrun::stablehlo
