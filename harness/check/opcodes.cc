// Tables of the names that a TPU's compiler knows.
#include "harness/check/opcodes.h"

#include <set>

namespace twinrun::check {
namespace {

using Names = std::set<std::string_view>;

const Names& known() {
  static const Names names = {
      "abs", "add", "add-dependency", "after-all", "all-gather", "all-gather-done",
      "all-gather-start", "all-reduce", "all-reduce-done", "all-reduce-start", "all-to-all", "and",
      "async-done", "async-start", "async-update", "atan2", "batch-norm-grad",
      "batch-norm-inference", "batch-norm-training", "bitcast", "bitcast-convert", "broadcast",
      "call", "cbrt", "ceil", "cholesky", "clamp", "collective-broadcast", "collective-permute",
      "collective-permute-done", "collective-permute-start", "compare", "complex", "composite",
      "concatenate", "conditional", "constant", "convert", "convolution", "copy", "copy-done",
      "copy-start", "cosine", "count-leading-zeros", "custom-call", "divide", "domain", "dot",
      "dynamic-slice", "dynamic-update-slice", "erf", "exponential", "exponential-minus-one", "fft",
      "floor", "fusion", "gather", "get-tuple-element", "imag", "infeed", "iota", "is-finite",
      "log", "log-plus-one", "logistic", "map", "maximum", "minimum", "multiply", "negate", "not",
      "opt-barrier", "or", "outfeed", "pad", "parameter", "partition-id", "popcnt", "power", "real",
      "recv", "recv-done", "reduce", "reduce-precision", "reduce-scatter", "reduce-window",
      "remainder", "replica-id", "reshape", "reverse", "rng", "rng-bit-generator",
      "rng-get-and-update-state", "round-nearest-afz", "round-nearest-even", "rsqrt", "scatter",
      "select", "select-and-scatter", "send", "send-done", "shift-left", "shift-right-arithmetic",
      "shift-right-logical", "sign", "sine", "slice", "sort", "sqrt", "stochastic-convert",
      "subtract", "tan", "tanh", "topk", "transpose", "triangular-solve", "tuple", "while", "xor",
      // Ops of StableHLO that HLO spells otherwise.
      "case", "if", "create-token", "cross-replica-sum", "torch-index-select", "einsum",
      "unary-einsum", "uniform-quantize", "uniform-dequantize", "return"};
  return names;
}

}  // namespace

std::vector<std::string_view> known_opcodes() { return {known().begin(), known().end()}; }

bool is_known(std::string_view opcode) {
  return known().contains(opcode) || opcode.starts_with("chlo.") ||
         opcode.starts_with("stablehlo.") || opcode.starts_with("mhlo.") ||
         opcode.starts_with("sdy.") || is_dynamic(opcode);
}

bool is_dynamic(std::string_view opcode) {
  static const Names names = {
      "set-dimension-size", "dynamic-reshape", "dynamic-pad",  "dynamic-broadcast-in-dim",
      "dynamic-iota",       "dynamic-gather",  "dynamic-conv", "real-dynamic-slice"};
  return names.contains(opcode);
}

bool sums_over_cores(std::string_view opcode) {
  static const Names names = {"all-reduce", "all-reduce-start", "reduce-scatter",
                              "cross-replica-sum"};
  return names.contains(opcode);
}

bool has_tpu_target(std::string_view target) {
  static const Names names = {"Sharding",
                              "SPMDFullToShardShape",
                              "SPMDShardToFullShape",
                              "xla.sdy.GlobalToLocalShape",
                              "xla.sdy.LocalToGlobalShape",
                              "annotate_device_placement",
                              "tpu_custom_call",
                              "TopK",
                              "PartialReduce",
                              "ApproxTopK",
                              "AllocateBuffer",
                              "AssumeGatherIndicesInBound",
                              "ConvolutionWithAbsoluteSpatialDimensions",
                              "Qr",
                              "ProductOfElementaryHouseholderReflectors",
                              "Eigh",
                              "LuDecomposition",
                              "MoveToHost",
                              "MoveToDevice",
                              "X64Combine",
                              "X64SplitLow",
                              "X64SplitHigh"};
  return names.contains(target);
}

}  // namespace twinrun::check
