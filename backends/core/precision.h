// The words in which an engine declares its arithmetic, and what each of them rounds: one table, of which the reader of a hello,
// the honest engines of level C (harness/envelope/precision_class.h), the findings and docs/precision.md are made.
//
//   const PrecisionRow* row = find_precision("autocast");      // null: no such word
//   row->operand_bits, row->result_bits;                       // bits of significand that it keeps, the leading one included
//   auto declared = declared_precision(engine->capabilities());// nullopt: nothing was declared
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

// Bits of significand: binary32, bfloat16, and what float16 and TF32 have. Half of 2^(1 - bits) is the unit roundoff.
inline constexpr int kF32Bits = 24, kF16Bits = 11, kBf16Bits = 8;

// Which results are rounded, in the forward pass and in its gradients alike.
enum class Rounded : uint8_t {
  kNone,
  kNotSums,  // of products, of elementwise ops and of windows; softmax, norms and losses sum in binary32
  kAll
};

struct PrecisionRow {
  Precision precision;
  std::string_view word;  // of the hello
  DotPrecision
      dots;  // the coarsest operands of products that it allows, in the terms of our own engines
  int operand_bits;  // that it keeps of an operand of a product
  int result_bits;   // that it keeps of a result
  Rounded results;
  std::string_view does;  // "results rounded to bfloat16"
};
std::span<const PrecisionRow> precision_rows();  // finest first

const PrecisionRow* find_precision(std::string_view word);
const PrecisionRow& row_of(Precision precision);
// "\"f32\", \"highest\", ...": what a hello may say.
std::string precision_words();

// What an engine declares, of ours and of others; nullopt: nothing.
std::optional<Precision> declared_precision(const Capabilities& capabilities);
// Its word, for reports: "autocast", "nothing".
std::string_view declared_word(const Capabilities& capabilities);

// An engine that declares `declared` may compute as `other`: no rounding of that is coarser.
bool allows(Precision declared, Precision other);

}  // namespace twinrun
