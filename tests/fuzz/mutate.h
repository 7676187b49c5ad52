// Deterministic mutations of a good input, for fuzz_tests: of bytes, without knowledge of the
// format, of JSON, one value at a time, and of the calls in a trace.
#pragma once

#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace twinrun::fuzz {

using Random = std::mt19937_64;

inline size_t below(Random& random, size_t n) { return n == 0 ? 0 : random() % n; }

// Words of the formats, which a mutation may insert.
const std::vector<std::string>& words();
// Changes bits, bytes, lengths and positions.
void scramble(std::string& bytes, Random& random);
// Replaces a value of a line that is JSON, or nests it deeply; leaves other texts alone.
void edit_json(std::string& text, Random& random);
// The same for the header of a safetensors file, whose length is adjusted.
void edit_header(std::string& bytes, Random& random);
// Replaces integers, numbers, sizes, strides, types and lengths of lists in the calls of a trace
// (docs/reference/trace-format.md); checksums are not mended.
void edit_calls(std::string& bytes, Random& random);

}  // namespace twinrun::fuzz
