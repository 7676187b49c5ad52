// The exact value of an op over the prime field of 2^61 - 1 elements (program/base/field61.h).
// Programs that differ only in rounding, in the order of evaluation or by the algebra of + - * /
// have equal values here. Used to prove that a sharding computes the same function
// (harness/sharding/field_proof.h).
//
// Every floating-point value becomes an element of the field. A tensor of them has dtype f64 and
// holds their words (Tensor::as<Field61>()). Integers, and predicates computed from integers, keep
// their values, because they index tensors.
//
// - add, subtract, multiply, divide, negate, dots, convolutions, sums, means and the all-reduce are
//   exact, so their order does not matter. x / 0 is 0. There is no rounding: convert between float
//   types does nothing, and a constant is the fraction that was meant.
// - exp, log, sqrt, tanh, erf, sin and cos are uninterpreted functions: equal arguments give equal, random
//   values. log1p(x) is log(1 + x), rsqrt is 1 / sqrt, logistic is 1 / (1 + exp(-x)). No other
//   identity holds: exp(a) exp(b) is not exp(a + b), sqrt(x)^2 is not x.
// - a > b is an uninterpreted number g(a, b) with g(a, b) + g(b, a) = 1, and 0 if a = b. The other
//   comparisons follow from it; == is exact. A predicate of floats is such a number, and
//   select(p, a, b) = b + p (a - b), maximum(a, b) = b + (a > b) (a - b): the value contains both
//   branches, so a difference in either shows. For integers of at most 31 bits, a > b is 0 or 1.
// - The maximum of many values (reduce, pooling and its gradient) is the largest in a random total
//   order: associative, commutative, idempotent, and always an element of the set.
// - bitcast_convert of integers is the number whose bits they are; of floats it has no value.
// - rng_uniform is a random element that depends on (seed, stream, step, sample, element).
// - convert to an integer truncates the fraction that the element represents. It fails if the
//   element is no fraction of small numbers: then the op has no value here.
//
//   const FieldPoint point{seed};                       // draws the uninterpreted functions
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
  // An uninterpreted function: maps every argument to a random element.
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
  // The position in the random total order. Small integers keep their own order.
  int64_t rank(Field61 x) const {
    if (const auto n = x.small_integer()) return *n;
    return static_cast<int64_t>(mixed(x.word ^ seed_));  // practically never a small integer's rank
  }
  // A mixing permutation of 64-bit words (the finalizer of MurmurHash3).
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

// The value of one op on one replica; for an all-reduce the operands are the contributions of all
// replicas. An error means that the op has no value over the field.
Result<Tensor> field_value(const FieldPoint& point, const Op& op, std::span<const Tensor> operands,
                           ThreadPool* pool);

// For every value of a program, a bound on its degree as a polynomial in the inputs, the state,
// random numbers, reciprocals and the results of uninterpreted functions. The Schwartz-Zippel lemma
// needs these degrees.
std::vector<double> field_degrees(const Graph& graph);

}  // namespace twinrun
