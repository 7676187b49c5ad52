// A recorded call of a framework: its name, its arguments and what it returned. Made by the reader
// of traces (harness/trace/trace_file.h), read by the definitions of this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/aten/checked.h"
#include "program/base/types.h"

namespace twinrun::aten {

struct Array;
struct Graph;

// Element types of PyTorch, in the order of the trace format.
enum class Element : uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kComplex64,
  kComplex128,
  kOther
};
std::string_view name_of(Element e);  // "float32"
int64_t size_of(Element e);           // bytes; 0 for kOther
inline bool is_float(Element e) { return e >= Element::kF16 && e <= Element::kF64; }
inline bool is_half(Element e) { return e == Element::kF16 || e == Element::kBF16; }
inline bool is_integer(Element e) { return e <= Element::kI64; }  // bool included
double f16_to_double(uint16_t bits);
// The number at `p`; NaN for elements that are not real numbers.
double element_at(const std::byte* p, Element element);

// A strided view of recorded bytes. `data` is element 0; nullptr if the bytes were left out.
struct TensorView {
  const std::byte* data = nullptr;
  // Instead of bytes, a value that was computed in the graph of a region.
  const Array* estimate = nullptr;
  Element element = Element::kOther;
  bool changed_unseen = false;  // since its last use, without a recorded call
  bool of_evaluation = false;   // computed by a call that was left out, of an evaluation
  bool parameter = false;
  bool requires_gradient = false;
  bool on_device = false;  // in the memory of an accelerator
  uint64_t storage = 0;
  uint32_t version = 0;
  int64_t first = -1;  // where in the storage its first byte is; -1: not known
  Dims dims, strides;
  int64_t elements() const;
  double at(int64_t flat) const;  // NaN where the bytes were left out
  std::string type() const;       // "float32[128, 10]"
  bool is_dense() const;          // one element behind the other, the last dimension innermost
};

struct Value {
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInteger,
    kNumber,
    kText,
    kTensor,
    kList,
    kElement,
    kOther,
    kComplex,
    kGraphValue  // number `integer` of the graph; in graphs only
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;  // bool and dtype too
  double number = 0;
  std::string text;
  TensorView tensor;
  std::vector<Value> items;
};

struct Call {
  int64_t index = 0;
  std::string op;        // "aten.addmm.default"
  std::string place;     // lines of the user's source, outermost frame last
  std::string module;    // "features.0"
  std::string node;      // "AddmmBackward0" for calls of the backward pass
  int64_t forward = -1;  // the forward call that this one is the gradient of
  int32_t step = 0;
  bool left_out = false, failed = false, optimizer = false, composed = false;
  bool without_gradient = false;  // autograd was switched off, as by torch.no_grad()
  std::vector<Value> args;
  std::vector<std::pair<std::string, Value>> kwargs;
  Value result;
  std::vector<TensorView> written;
  std::shared_ptr<const Graph> graph;  // of a compiled region

  const char* phase() const {
    return optimizer ? "optimizer" : node.empty() ? "forward" : "backward";
  }
};

// All tensors inside of a value, in order.
void collect(const Value& value, std::vector<const TensorView*>& to);

}  // namespace twinrun::aten
