// Shared by the files that write StableHLO text (stablehlo.h): types and attributes as text, and
// the lines of a function's body.
//
//   Writer writer(graph, cores, options);
//   for (ValueId id = 0; id < graph.size(); ++id) writer.write(id);
//   writer.take();                      // "    %v3 = stablehlo.add %v1, %v2 : tensor<8x4xf32> ..."
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <string_view>

#include "program/text/stablehlo.h"

namespace twinrun::stablehlo {

std::string type_text(const TensorType& type);      // "tensor<8x4xf32>"
std::string location_text(std::string_view name);   // "loc(\"conv1/convolution\")"
std::string list_text(const Dims& dims);            // "1, 2"
std::string array_text(const Dims& dims);           // "array<i64: 1, 2>"
std::string splat_text(DType dtype, double value);  // "dense<0x3F800000>": one element, its bits
// "window_dimensions = .., window_strides = .., padding = .."
std::string window_text(const Window& w);
// "dense<[[0, 1], ..]> : tensor<4x2xi64>"
std::string padding_text(const Dims& low, const Dims& high);

// The body of @main: one op per line; %vN is value N of the program, %vN_name a helper value of it.
class Writer {
 public:
  Writer(const Graph& graph, int cores, const StableHloOptions& options)
      : graph_(graph), cores_(cores), options_(options) {}

  void write(ValueId id);
  std::string take() { return std::move(body_); }

 private:
  static std::string ref(ValueId id) { return fmt::format("%v{}", id); }
  const TensorType& type(ValueId id) const { return graph_.type(id); }
  // Adds the line "%v7 = TEXT". Where values are results as well, each passes an optimization
  // barrier, so that the value returned is the one that the next op reads: XLA would fold constants
  // across ops and drop conversions.
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
  // "NAME operands : type", where operands and result have one type.
  void plain(ValueId id, std::string_view name);
  // Adds a helper value of `id` that holds a constant.
  std::string constant(ValueId id, std::string_view name, const TensorType& type, double value);
  // Adds a constant to divide by, behind an optimization barrier: otherwise XLA would multiply by
  // its rounded reciprocal, an ulp away.
  std::string divisor(ValueId id, std::string_view name, const TensorType& type, double value);
  // "({ ^bb0(..): .. })": a region that combines two scalars by `op`.
  std::string region(DType dtype, std::string_view op) const;
  // Adds a helper of type `as` ([n, oh, ow, c]): for each window over [h, w], the number of taps
  // inside the image.
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
  void sort_order(ValueId id, const Op& op);
  void all_reduce(ValueId id, const Op& op);

  const Graph& graph_;
  int cores_;
  const StableHloOptions& options_;
  std::string body_;
  ValueId at_ = kNoValue;  // the op that is being written
  std::string location_;   // its location
};

}  // namespace twinrun::stablehlo
