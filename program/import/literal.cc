// Literals of HLO and MLIR text as tensors: lists of numbers, and blobs of bytes.
#include "program/import/literal.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "program/base/bits.h"
#include "program/base/element.h"
#include "program/import/integers.h"

namespace twinrun {
namespace {

[[noreturn]] void malformed(std::string_view word, const TensorType& type) {
  throw Unsupported{fmt::format("the literal '{}'; allowed: {} of {}", word.substr(0, 40),
                                type.elements(), to_string(type.dtype))};
}

// XLA prints the shortest text that reads back as the same float. MLIR prints a text that does, or
// for inf and NaN the bits: 0xFF800000.
float float_of(const std::string& word, const TensorType& type) {
  char* end = nullptr;
  if (const size_t digits = 2 * size_of(type.dtype); word.starts_with("0x")) {
    const auto bits = static_cast<uint32_t>(std::strtoul(word.c_str(), &end, 16));
    if (end != word.c_str() + word.size() || word.size() != 2 + digits) malformed(word, type);
    return canonical(type.dtype == DType::kBF16 ? bf16_to_f32(static_cast<uint16_t>(bits))
                                                : from_bits(bits));
  }
  const float value = std::strtof(word.c_str(), &end);
  if (end != word.c_str() + word.size()) malformed(word, type);
  return canonical(value);
}

float float_of_f64(const std::string& word, const TensorType& type) {
  char* end = nullptr;
  const bool bits = word.starts_with("0x");
  const double value = bits ? std::bit_cast<double>(std::strtoull(word.c_str(), &end, 16))
                            : std::strtod(word.c_str(), &end);
  if (end != word.c_str() + word.size() || (bits && word.size() != 18)) malformed(word, type);
  return canonical(static_cast<float>(value));
}

void put(Tensor& t, int64_t i, const std::string& word, std::string_view hlo) {
  const auto at = static_cast<size_t>(i);
  switch (t.dtype()) {
    case DType::kF32:
      t.as<float>()[at] = hlo == "f64" ? float_of_f64(word, t.type()) : float_of(word, t.type());
      return;
    case DType::kBF16:
      t.as<uint16_t>()[at] = bf16_round(float_of(word, t.type()));
      return;
    case DType::kPred:
      if (word != "true" && word != "false" && word != "0" && word != "1")
        malformed(word, t.type());
      t.as<uint8_t>()[at] = word == "true" || word == "1" ? 1 : 0;
      return;
    default: {
      char* end = nullptr;
      errno = 0;
      const long long value = std::strtoll(word.c_str(), &end, 10);
      const bool is_unsigned = hlo.starts_with('u');
      if (end != word.c_str() + word.size() || errno != 0 ||
          value < (is_unsigned ? 0 : INT32_MIN) ||
          value > (is_unsigned ? int64_t{UINT32_MAX} : INT32_MAX))
        malformed(word, t.type());
      t.as<int32_t>()[at] = static_cast<int32_t>(static_cast<uint32_t>(value));
    }
  }
}

// MLIR's "0x0000803F...": the bytes of all elements, little-endian. A predicate has one byte, a
// small integer one or two.
Tensor blob_of(std::string_view text, const HloInstruction& constant, const TensorType& type) {
  const std::string& hlo = constant.shape.dtype;
  const size_t size = is_integer(hlo) ? static_cast<size_t>(bits_of_integer(hlo)) / 8
                      : hlo == "f64"  ? 8
                                      : size_of(type.dtype);
  const auto elements = static_cast<size_t>(type.elements());
  text.remove_prefix(2);
  if (text.size() / 2 != elements * size || text.size() % 2 != 0) malformed(text, type);
  const auto digit = [&](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    malformed(text, type);
  };
  Tensor t = Tensor::zeros(type);
  for (size_t i = 0; i < elements; ++i) {
    uint32_t bits = 0, upper = 0;
    for (size_t byte = 0; byte < size; ++byte) {
      const size_t at = 2 * (i * size + byte);
      const auto value = static_cast<uint32_t>(16 * digit(text[at]) + digit(text[at + 1]));
      (byte < 4 ? bits : upper) |= value << (8 * (byte % 4));
    }
    const uint32_t sign = hlo == "s64" && bits >> 31 != 0 ? ~0u : 0;
    if (size == 8 && hlo != "f64" && upper != sign) malformed(text, type);
    switch (type.dtype) {
      case DType::kF32:
        t.as<float>()[i] = canonical(size == 4 ? from_bits(bits)
                                               : static_cast<float>(std::bit_cast<double>(
                                                     uint64_t{upper} << 32 | uint64_t{bits})));
        break;
      case DType::kBF16:
        t.as<uint16_t>()[i] = bf16_round(canonical(bf16_to_f32(static_cast<uint16_t>(bits))));
        break;
      case DType::kPred:
        t.as<uint8_t>()[i] = bits != 0 ? 1 : 0;
        break;
      default:
        t.as<int32_t>()[i] = hlo == "s8"    ? static_cast<int8_t>(bits)
                             : hlo == "s16" ? static_cast<int16_t>(bits)
                                            : static_cast<int32_t>(bits);
    }
  }
  return t;
}

}  // namespace

Tensor literal_of(const HloInstruction& constant, const TensorType& type) {
  const std::string& text = constant.literal;
  if (text.find("...") != std::string::npos)
    throw Unsupported{
        "an elided literal, constant({...}); print with large constants: as_text(\"hlo\", "
        "debug_info=True), or --xla_dump_hlo_as_text --xla_dump_large_constants"};
  if (text.starts_with("dense_resource"))
    throw Unsupported{
        "a literal that is stored elsewhere, dense_resource; make the array a parameter of the "
        "step"};
  if (text.starts_with("\"0x") && text.ends_with('"'))
    return blob_of(std::string_view(text).substr(1, text.size() - 2), constant, type);
  // Each element takes at least one word, so the length of the text limits what is allocated.
  if (type.elements() > 1 + static_cast<int64_t>(text.size())) malformed(text, type);
  Tensor t = Tensor::zeros(type);
  int64_t count = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (text.compare(at, 2, "/*") == 0) {
      const size_t end = text.find("*/", at);
      at = end == std::string::npos ? text.size() : end + 2;
    } else if (c == '{' || c == '}' || c == '[' || c == ']' || c == ',' ||
               std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++at;
    } else {
      const size_t end = std::min(text.find_first_of("{}[],/ \t\r\n", at), text.size());
      if (end == at) malformed(text, type);
      if (count >= type.elements()) malformed(text, type);
      put(t, count++, text.substr(at, end - at), constant.shape.dtype);
      at = end;
    }
  }
  if (count != type.elements()) malformed(text, type);
  return t;
}

std::optional<double> only_value(const Tensor& t) {
  const size_t size = size_of(t.dtype());
  if (t.elements() == 0) return std::nullopt;
  for (int64_t i = 1; i < t.elements(); ++i) {
    if (std::memcmp(t.raw(), t.raw() + static_cast<size_t>(i) * size, size) != 0)
      return std::nullopt;
  }
  return number_at(t, 0);
}

}  // namespace twinrun
