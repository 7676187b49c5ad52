// The honest engines of each precision that a declaration allows, from exact binary32 to the coarsest: level C holds a subject
// against them one class after the other, and it conforms if one of them holds it.
//
//   for (const PrecisionClass& c : classes_within(Precision::kAutocast, declared, program)) ...
//   auto member = member_of(c, 3, declared, options);          // an engine of that class, another one for each number
//
// Roundings are of two kinds. `tight`: every engine of the class rounds the same operands to the same numbers, so the members lie
// close together, and an engine that rounds nothing lies far outside: it has a class of its own. Not tight: which values an
// engine rounds, and where its casts stand, is its own business (autocast, mixed_bfloat16). Each member then has a rounding function
// drawn at random: between two neighbours of the narrow format there is a threshold, uniform, below which a value goes down
// and above which it goes up. Errors are up to an ulp and on average nothing; their root mean square is 2^(1/2) times
// that of rounding to nearest. What is a number of the format already stays as it is, and the same value is rounded alike wherever
// it is used, on all replicas, as in a real engine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/core/backend.h"
#include "harness/envelope/envelope.h"

namespace twinrun {

struct PrecisionClass {
  enum class How : uint8_t {
    kNearest,     // operands of products, to nearest, ties to even
    kTowardZero,  // operands of products, cut off
    kDrawn  // operands of products and what `results` says, by a function drawn for each member
  };
  Precision precision = Precision::kF32;  // the word that it is a class of
  std::string does;                       // "operands of products rounded to bfloat16"
  bool tight = true;
  // As our own engines have them; these need no rounding from outside.
  DotPrecision dots = DotPrecision::kF32, convolutions = DotPrecision::kF32;
  // Rounding of its own.
  How how = How::kNearest;
  int dot_bits = kF32Bits, convolution_bits = kF32Bits, result_bits = kF32Bits;
  Rounded results = Rounded::kNone;
  int reduced_bits = kF32Bits;  // what an all-reduce sends, and gives
};

// Those that an engine of this precision may belong to: the precision's own tight classes first, then tight ones from the finest,
// then the others from the finest. `declared` says what its all-reduce may do.
std::vector<PrecisionClass> classes_within(Precision precision, const Capabilities& declared,
                                           const Program& program);
// All there are, for an engine that declares nothing.
std::vector<PrecisionClass> all_classes(const Capabilities& declared, const Program& program);
// Those that `precision` does not allow.
std::vector<PrecisionClass> classes_beyond(Precision precision, const Capabilities& declared,
                                           const Program& program);

// Are operands of products rounded, to the same numbers by all engines of the class?
bool rounds_operands(const PrecisionClass& c);

// The one of that word that rounds so; nullopt: there is none.
std::optional<PrecisionClass> class_of(std::string_view word, std::string_view does,
                                       const Capabilities& declared, const Program& program);

std::unique_ptr<Backend> member_of(const PrecisionClass& of, uint64_t member,
                                   const Capabilities& declared, const BackendOptions& options);
// By how much of itself, at most, the weights of odd members are moved (harness/envelope/envelope.h).
double weight_move(const Program& program, const PrecisionClass& of);

// Are the numbers that a step gives, loss and gradients, bfloat16 numbers in half of these tensors, every one of them? A binary32
// number is one by chance with probability 2^-16. Zeros say nothing, nor do tensors that have fewer than three other numbers.
bool results_in_bf16(const Observed& subject, const std::vector<Compared>& tensors);

}  // namespace twinrun
