// The table of precisions that an engine may declare, the lookup of their words, and which allows
// which.
#include "backends/core/precision.h"

#include <algorithm>
#include <array>

#include "backends/core/backend.h"

namespace twinrun {
namespace {

constexpr std::array kRows = {
    PrecisionRow{Precision::kF32, "f32", DotPrecision::kF32, kF32Bits, kF32Bits, Rounded::kNone,
                 "float32 throughout"},
    PrecisionRow{Precision::kHighest, "highest", DotPrecision::kBf16x6, 3 * kBf16Bits, kF32Bits,
                 Rounded::kNone, "products of six bfloat16 passes"},
    PrecisionRow{Precision::kHigh, "high", DotPrecision::kBf16x3, 2 * kBf16Bits, kF32Bits,
                 Rounded::kNone, "products of three bfloat16 passes"},
    PrecisionRow{Precision::kTf32, "tf32", DotPrecision::kBf16, kF16Bits, kF32Bits, Rounded::kNone,
                 "operands of products rounded to TF32"},
    PrecisionRow{Precision::kDefault, "default", DotPrecision::kBf16, kBf16Bits, kF32Bits,
                 Rounded::kNone, "operands of products rounded to bfloat16"},
    PrecisionRow{Precision::kFloat16, "float16", DotPrecision::kBf16, kF16Bits, kF16Bits,
                 Rounded::kAll, "results rounded to float16"},
    PrecisionRow{Precision::kAutocast, "autocast", DotPrecision::kBf16, kBf16Bits, kBf16Bits,
                 Rounded::kNotSums, "results rounded to bfloat16"},
    PrecisionRow{Precision::kBf16, "bf16", DotPrecision::kBf16, kBf16Bits, kBf16Bits, Rounded::kAll,
                 "results rounded to bfloat16, those of sums too"},
    PrecisionRow{Precision::kBf16Params, "bf16_params", DotPrecision::kBf16, kBf16Bits, kBf16Bits,
                 Rounded::kAll,
                 "results rounded to bfloat16, and weights used as bfloat16 with a float32 copy"},
};

// Frameworks choose where the casts of mixed precision stand, so kNotSums and kAll count as equal.
Rounded as_free_as(const PrecisionRow& row) {
  return row.results == Rounded::kNone ? Rounded::kNone : Rounded::kAll;
}

}  // namespace

std::span<const PrecisionRow> precision_rows() { return kRows; }

const PrecisionRow* find_precision(std::string_view word) {
  const auto found = std::ranges::find(kRows, word, &PrecisionRow::word);
  return found == kRows.end() ? nullptr : &*found;
}

const PrecisionRow& row_of(Precision precision) { return kRows[static_cast<size_t>(precision)]; }

std::string precision_words() {
  std::string out;
  for (const PrecisionRow& row : kRows)
    out += (out.empty() ? "\"" : ", \"") + std::string(row.word) + "\"";
  return out;
}

std::optional<Precision> declared_precision(const Capabilities& c) {
  if (!c.declares_arithmetic) return std::nullopt;
  if (c.vocabulary) return c.vocabulary;
  switch (c.precision) {
    case DotPrecision::kF32:
      return Precision::kF32;
    case DotPrecision::kBf16:
      return Precision::kDefault;
    case DotPrecision::kBf16x3:
      return Precision::kHigh;
    case DotPrecision::kBf16x6:
      return Precision::kHighest;
  }
  return std::nullopt;
}

std::string_view declared_word(const Capabilities& c) {
  const auto declared = declared_precision(c);
  return declared ? row_of(*declared).word : "nothing";
}

bool allows(Precision declared, Precision other) {
  if (declared == other) return true;
  // Six bfloat16 passes keep as many bits as binary32 but are not binary32 arithmetic: an engine
  // that declares "f32" must compute in binary32.
  if (declared == Precision::kF32) return false;
  const PrecisionRow &d = row_of(declared), &o = row_of(other);
  return o.operand_bits >= d.operand_bits && o.result_bits >= d.result_bits &&
         as_free_as(o) <= as_free_as(d);
}

}  // namespace twinrun
