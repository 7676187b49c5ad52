// The names that an engine may declare for its precision, and which values each precision rounds,
// and to how many bits. The same table serves the parser of the hello message, the conforming
// engines of evidence level C (harness/envelope/precision_class.h) and the findings. See
// docs/method/numerics.md, "Precisions of other engines".
//
//   const PrecisionRow* row = find_precision("autocast");  // null: no such word
//   row->operand_bits, row->result_bits;                   // significand bits that it keeps
//   auto declared = declared_precision(engine->capabilities());  // nullopt: nothing was declared
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace twinrun {

struct Capabilities;
enum class DotPrecision : uint8_t;

enum class Precision : uint8_t {
  kF32,
  kHighest,
  kHigh,
  kTf32,
  kDefault,
  kFloat16,
  kAutocast,
  kBf16,
  kBf16Params
};

// Bits of significand, the leading one included: of binary32, of float16 and TF32, of bfloat16. The
// unit roundoff is half of 2^(1 - bits).
inline constexpr int kF32Bits = 24, kF16Bits = 11, kBf16Bits = 8;

// Which results are rounded, in the forward pass and in its gradients alike.
enum class Rounded : uint8_t {
  kNone,
  // All but sums: products, elementwise ops and windows; softmax, norms and losses sum in binary32.
  kNotSums,
  kAll
};

struct PrecisionRow {
  Precision precision;
  std::string_view word;  // as in the hello message
  // The coarsest operand handling of products that it allows, as our own engines name it.
  DotPrecision dots;
  int operand_bits;  // significand bits kept of an operand of a product
  int result_bits;   // significand bits kept of a result
  Rounded results;
  std::string_view does;  // "results rounded to bfloat16"
};
std::span<const PrecisionRow> precision_rows();  // finest first

const PrecisionRow* find_precision(std::string_view word);
const PrecisionRow& row_of(Precision precision);
// "\"f32\", \"highest\", ...": the words that a hello message may use.
std::string precision_words();

// The precision that an engine declares, ours or foreign; nullopt if it declares none.
std::optional<Precision> declared_precision(const Capabilities& capabilities);
// The word of that precision, for reports: "autocast", or "nothing".
std::string_view declared_word(const Capabilities& capabilities);

// Whether an engine that declares `declared` may compute as `other`: no rounding of `other` is
// coarser.
bool allows(Precision declared, Precision other);

}  // namespace twinrun
