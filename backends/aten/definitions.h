// What the calls of PyTorch are defined to compute: a table from the name of an operation to a
// function that gives its results in binary64 with bounds, from the arguments that were recorded.
// None uses a kernel of the framework.
//
//   Expected e = expected_of(call, arithmetic);   // throws Undefined
//   e.results[0]->value, e.results[0]->radius
#pragma once

#include <cmath>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "backends/aten/array.h"
#include "backends/aten/call.h"

namespace twinrun::aten {

struct Expected {
  // In the order of the call's results; of a call that writes its arguments, of what it wrote.
  // nullopt: not defined (a workspace, uninitialised memory, a random result): taken as given.
  Checked<std::optional<Array>> results;
  // Something that is wrong with the call though no element can be compared: "dropped 9 % of 4096
  // elements at p = 0.5"; "" if nothing is.
  std::string problem;
  Expected() = default;
  Expected(Array one) { results.emplace_back(std::move(one)); }  // NOLINT
};

// The arguments of one call by position and name. A missing argument and None are the same.
class Arguments {
 public:
  Arguments(const Call& call, const Arithmetic& arithmetic) : m(arithmetic), call_(call) {}
  const Arithmetic& m;

  const Call& call() const { return call_; }
  const Value* find(size_t position, std::string_view name = {}) const;
  bool has(size_t position, std::string_view name = {}) const {
    return find(position, name) != nullptr;
  }
  // A tensor or a number as an array. Undefined if it is missing, its bytes were left out, or it is
  // complex.
  Array array(size_t position, std::string_view name = {}) const;
  std::optional<Array> maybe(size_t position, std::string_view name = {}) const;
  const TensorView& view(size_t position, std::string_view name = {}) const;
  Checked<Array> arrays(size_t position, std::string_view name = {}) const;
  double number(size_t position, std::string_view name, double otherwise) const;
  int64_t integer(size_t position, std::string_view name, int64_t otherwise) const;
  bool flag(size_t position, std::string_view name, bool otherwise) const;
  std::string text(size_t position, std::string_view name, std::string otherwise) const;
  Dims integers(size_t position, std::string_view name, Dims otherwise) const;
  // A list of one or two integers for height and width; one counts for both.
  std::pair<int64_t, int64_t> pair(size_t position, std::string_view name, int64_t otherwise) const;
  // What the call returned: its tensors in order. Undefined if there is no result i.
  const TensorView& result(size_t i) const;
  Array result_array(size_t i) const;
  // Whether result i was asked for (output_mask) and is there.
  bool has_result(size_t i) const;

 private:
  const Call& call_;
};

// Undefined if the bytes were left out. Of integers beyond 2^53 the nearest numbers.
Array array_of(const TensorView& view, ThreadPool* pool);
Array held_array_of(const TensorView& view, ThreadPool* pool);  // Undefined if it has such integers
Checked<int64_t> integers_of(const TensorView& view);
// A number with which the elements of a tensor are compared. Kernels turn it into float32 where the
// tensor is that; where it has half precision they may turn it into its type or not, so that it is
// open on which side of it those elements are that are as near as this rounding.
struct Limit {
  double at = 0, reach = -1;
  bool is_open(double x) const { return std::fabs(x - at) <= reach; }
};
Limit limit_of(const Arguments& a, double number, Element of);
// The second operand of a comparison or a remainder, as such a number if it is one.
Array exact_operand(const Arguments& a);
// The number of bfloat16 or binary16 that is nearest to x, of two the even one.
double nearest(double x, Element half);
// How an element type stores an estimate: one more rounding.
Estimate stored(Estimate e, Element as);
Array stored(const Arithmetic& m, const Array& x, Element as);
// Numbers as another element type holds them: truncated to integers, true where they are not zero.
// Rounding to a shorter floating-point type is left to `stored`.
Array converted(Array x, Element to);
// Whether a type of integers, other than bool, holds a number without its fraction.
bool fits(double x, Element to);

using Define = Expected (*)(const Arguments& a);
struct Definition {
  std::string_view name;  // "aten.add" for all overloads, or "aten.add.Tensor"
  Define define;
};
// Definitions for arguments that are known up to a radius: those that other definitions do not give.
std::span<const Definition> uncertain_definitions();
// One table a family, a file each. A name with a trailing underscore (written in place), `.out`
// overloads and `_foreach_` need no entry of their own: they follow from the plain name's.
std::span<const Definition> pointwise_definitions();
std::span<const Definition> activation_definitions();
std::span<const Definition> movement_definitions();
std::span<const Definition> indexing_definitions();
std::span<const Definition> creation_definitions();
std::span<const Definition> reduction_definitions();
std::span<const Definition> product_definitions();  // mm, addmm, bmm
std::span<const Definition> convolution_definitions();
std::span<const Definition> normalization_definitions();
std::span<const Definition> row_normalization_definitions();
std::span<const Definition> pooling_definitions();
std::span<const Definition> interpolation_definitions();  // and padding
std::span<const Definition> loss_definitions();
std::span<const Definition> attention_definitions();  // softmax, attention
std::span<const Definition> embedding_definitions();
std::span<const Definition> recurrent_definitions();
std::span<const Definition> optimizer_definitions();  // fused optimizers, loss scaling
std::span<const Definition> random_definitions();
std::span<const Definition> ctc_definitions();
std::span<const Definition> sampling_definitions();  // grid_sample, affine_grid
std::span<const Definition> distance_definitions();
std::span<const Definition> pooling3d_definitions();
std::span<const Definition> linear_algebra_definitions();
std::span<const Definition> searching_definitions();
std::span<const Definition> vision_definitions();  // torchvision's
std::span<const Definition> prim_definitions();    // what compilers add: prims

// Calls on integers, where the usual definition `define` would lose some: arithmetic modulo 2 to the
// number of bits, and moves and comparisons of integers beyond 2^53. `name` is without overload.
std::optional<Expected> expected_of_integers(const Call& call, std::string_view name, Define define,
                                             const Arithmetic& m);

// Whether any definition has the operation's name.
bool is_defined(std::string_view op);

// Numbers that are known of tensors, from the trace or from what was computed of them; what is
// expanded counts once. And how many numbers one array may hold that is computed from so many.
int64_t held_elements(const std::vector<const TensorView*>& tensors);
int64_t most_elements_for(int64_t held);
Expected expected_of(const Call& call, const Arithmetic& arithmetic);
// The same where an argument has a radius; Undefined if the definition holds for exact ones only.
Expected expected_of_uncertain(const Call& call, const Arithmetic& arithmetic);

}  // namespace twinrun::aten
