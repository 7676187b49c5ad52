// What an op means, without any number's size: its value over the prime field of 2^61 - 1 elements (program/base/field61.h).
//
// Every floating value is an element of the field. A tensor of them has the dtype f64 and holds their words (Tensor::as<Field61>()).
// Integers, and predicates that come from integers, stay what they are: they are places in a tensor.
//
// - add, subtract, multiply, divide, negate, dots, convolutions, sums, means, the all-reduce: exact, in whatever order.
//   x / 0 is 0. Rounding is not there: convert between float types does nothing, a constant is the fraction that was meant.
// - exp, log, sqrt, tanh, erf are uninterpreted functions: equal arguments, equal random value. log1p(x) is log(1 + x), rsqrt is
//   1 / sqrt, logistic is 1 / (1 + exp(-x)); no other identity is known: exp(a) exp(b) is not exp(a + b), sqrt(x)^2 is not x.
// - a > b is an uninterpreted number g with g(a, b) + g(b, a) = 1, and 0 of equals; the other comparisons follow from it, == is
//   exact. A predicate of floats is such a number; select(p, a, b) = b + p (a - b), maximum(a, b) = b + (a > b) (a - b): both branches
//   are in the value, so that none is missed. Of two integers of at most 31 bits a > b is 0 or 1, as it is.
// - the maximum of many (reduce, pooling and its gradient) is the first in a random total order: associative, commutative,
//   idempotent, and an element of the set, wherever it is taken.
// - rng_uniform is a random element of (seed, stream, step, sample, element). convert to an integer truncates the fraction that
//   the element is, and fails where it is none of small numbers: that is the one op that has no value here.
//
//   const FieldPoint point{seed};                       // which functions the uninterpreted ones are
//   Result<Tensor> y = field_value(point, op, operands, pool);
#pragma once

#include <span>

#include "program/base/field61.h"
#include "program/base/result.h"
#include "program/base/tensor.h"
#include "program/base/thread_pool.h"
#include "program/ops/graph.h"

namespace twinrun {

class FieldPoint {
 public:
  // An uninterpreted function: a random element for every argument.
  class Function {
   public:
    explicit Function(uint64_t key) : key_(key) {}
    Field61 operator()(uint64_t argument) const { return Field61::reduced(mixed(argument ^ key_)); }
    Field61 operator()(Field61 x) const { return (*this)(x.word); }
    Field61 operator()(Field61 a, Field61 b) const {
      return (*this)(mixed(a.word + key_) ^ b.word);
    }

   private:
    uint64_t key_;
  };

  explicit FieldPoint(uint64_t seed) : seed_(seed), order_(key_of(kOrder)) {}
  Function function(uint64_t name) const { return Function(key_of(name)); }

  Field61 greater(Field61 a, Field61 b) const {  // a > b
    if (a == b) return {0};
    const auto m = a.small_integer(), n = b.small_integer();
    if (m && n) return {*m > *n ? 1u : 0u};
    return a.word < b.word ? order_(a, b) : Field61{1} - order_(b, a);
  }
  // In the random total order; of small integers their own.
  int64_t rank(Field61 x) const {
    if (const auto n = x.small_integer()) return *n;
    return static_cast<int64_t>(mixed(x.word ^ seed_));  // as good as never that of a small integer
  }
  // 64 well mixed bits of 64 (the finalizer of MurmurHash3).
  static constexpr uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
  }

 private:
  static constexpr uint64_t kOrder = 0x6f72646572;
  uint64_t key_of(uint64_t name) const { return mixed(mixed(name) + mixed(seed_ + 1)); }

  uint64_t seed_;
  Function order_;
};

// One op on one replica; of an all-reduce the operands are the contributions of all. An error: the op has no value.
Result<Tensor> field_value(const FieldPoint& point, const Op& op, std::span<const Tensor> operands,
                           ThreadPool* pool);

// A bound on the degree of every value of a program as a polynomial in its inputs, its state, random numbers, reciprocals and what
// uninterpreted functions return: what the lemma of Schwartz and Zippel asks for.
std::vector<double> field_degrees(const Graph& graph);

}  // namespace twinrun
