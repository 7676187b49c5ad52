// The precision classes: the conforming engines of each precision that a declaration allows, from
// exact binary32 to the coarsest. Level C (an engine that shows tensors only) compares a subject
// with one class after the other; it conforms if one of them contains it.
//
//   for (const PrecisionClass& c : classes_within(Precision::kAutocast, declared, program)) ...
//   auto member = member_of(c, 3, declared, options);  // engine number 3 of that class
//
// Rounding comes in two kinds. `tight`: every engine of the class rounds the same operands to the
// same numbers. The members then lie close together, and an engine that rounds nothing lies far
// outside; it has a class of its own. Not tight: which values an engine rounds, and where it casts,
// is up to the engine (autocast, mixed_bfloat16). Each member then has a rounding function drawn at
// random: between two neighbouring numbers of the narrow format lies a threshold, uniform, below
// which a value is rounded down and above which it is rounded up. Errors are up to one ulp and zero
// on average; their root mean square is 2^(1/2) times that of rounding to nearest. A number of the
// format stays as it is, and the same value is rounded alike wherever it is used, on all replicas,
// as in a real engine.
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
    kTowardZero,  // operands of products, toward zero
    // Operands of products, and the results that `results` names, by a function drawn per member.
    kDrawn
  };
  Precision precision = Precision::kF32;  // the declared precision that this is a class of
  std::string does;                       // "operands of products rounded to bfloat16"
  bool tight = true;
  // Products that our own engines compute in this precision; they need no added rounding.
  DotPrecision dots = DotPrecision::kF32, convolutions = DotPrecision::kF32;
  // Rounding that is added around the ops of an engine.
  How how = How::kNearest;
  int dot_bits = kF32Bits, convolution_bits = kF32Bits, result_bits = kF32Bits;
  Rounded results = Rounded::kNone;
  // The operands are cast before each product and its result is not, as a script with
  // x.astype(bfloat16) does: the gradients with respect to them are then rounded alike, and the
  // gradient that comes in is not.
  bool casts = false;
  int reduced_bits = kF32Bits;  // bits of significand that an all-reduce sends and returns
};

// The classes that an engine of this precision may belong to: first the tight classes of the
// precision itself, then the other tight ones from the finest, then the rest from the finest.
// `declared` says what its all-reduce may send.
std::vector<PrecisionClass> classes_within(Precision precision, const Capabilities& declared,
                                           const Program& program);
// All classes, for an engine that declares no precision.
std::vector<PrecisionClass> all_classes(const Capabilities& declared, const Program& program);
// The classes that a declaration of `precision` does not allow: a coarser rounding, or a coarser
// all-reduce than `declared` has.
std::vector<PrecisionClass> classes_beyond(Precision precision, const Capabilities& declared,
                                           const Program& program);

// True for tight classes that round operands of products: all engines of the class round them to
// the same numbers.
bool rounds_operands(const PrecisionClass& c);

// The class of the precision named `word` whose description is `does`; nullopt: there is none.
std::optional<PrecisionClass> class_of(std::string_view word, std::string_view does,
                                       const Capabilities& declared, const Program& program);

// An engine of the class; each number gives a different one.
std::unique_ptr<Backend> member_of(const PrecisionClass& of, uint64_t member,
                                   const Capabilities& declared, const BackendOptions& options);
// The largest relative amount by which the weights of odd members are moved
// (harness/envelope/envelope.h).
double weight_move(const Program& program, const PrecisionClass& of);

// Whether the results of a step, loss and gradients, are bfloat16 numbers: all numbers of at least
// half of these tensors are. A binary32 number is one by chance with probability 2^-16. Zeros do
// not count, nor do tensors with fewer than three other numbers if all of these are.
bool results_in_bf16(const Observed& subject, const std::vector<Compared>& tensors);

}  // namespace twinrun
