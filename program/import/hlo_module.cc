// Shapes of HLO, and the choice between HLO text and StableHLO text.
#include "program/import/hlo_module.h"

#include <fmt/format.h>

#include <algorithm>

#include "program/import/text_cursor.h"

namespace twinrun {

bool HloShape::append(int64_t size) {
  int64_t elements = 1;
  for (int64_t d : dims) elements *= std::max<int64_t>(d, 1);
  if (size < 0 || size > kMaxHloElements / elements || dims.size() >= kMaxHloRank) return false;
  dims.push_back(size);
  return true;
}

bool HloShape::append_unknown() {
  if (dims.size() >= kMaxHloRank) return false;
  dynamic = true;
  dims.push_back(kUnknownSize);
  return true;
}

std::string HloShape::refusal(std::string_view size) {
  return fmt::format(
      "a shape with a dimension of '{}'; allowed: static sizes, at most {} elements in all, at "
      "most {} dimensions",
      size, kMaxHloElements, kMaxHloRank);
}

std::string to_string(const HloShape& shape) {
  std::string out = shape.dtype + "[";
  if (!shape.is_tuple()) {
    for (int64_t size : shape.dims)
      out += (out.ends_with('[') ? "" : ",") + (size == kUnknownSize ? "?" : std::to_string(size));
    return out + "]";
  }
  out = "(";
  for (const HloShape& part : shape.parts) out += (out.size() > 1 ? ", " : "") + to_string(part);
  return out + ")";
}

const HloComputation* HloModule::find(const std::string& computation) const {
  const auto found = by_name.find(computation);
  return found == by_name.end() ? nullptr : &computations[found->second];
}

Result<HloModule> parse_program(std::string_view text, const std::string& file, HloUse use) {
  if (text.size() > kMaxHloBytes) {
    return Error{fmt::format("{} bytes; allowed: {}", text.size(), kMaxHloBytes), file,
                 "literals in the text make it large: pass arrays as inputs"};
  }
  constexpr std::string_view kBytecode = "ML\xefR";
  if (text.starts_with(kBytecode)) {
    return Error{"MLIR bytecode; allowed: HLO text or StableHLO text", file,
                 "in JAX: jax.jit(step).lower(...).as_text(debug_info=True)"};
  }
  TextCursor at(text);
  const std::string word = at.peek_word();
  at.skip();
  const bool mlir = word == "module" || word == "func.func" || at.peek() == '#' ||
                    at.peek() == '!' || at.peek() == '"';
  return mlir ? parse_stablehlo(text, file, use) : parse_hlo(text, file, use);
}

}  // namespace twinrun
