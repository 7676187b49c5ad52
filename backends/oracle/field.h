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
#include "program/graph/op.h"

namespace twinrun {

struct FieldPoint {
  uint64_t seed = 0;

  // The value of uninterpreted function `name` at `argument`: a random element.
  Field61 function(uint64_t name, uint64_t argument) const;
  Field61 function(uint64_t name, Field61 a, Field61 b) const;
  Field61 greater(Field61 a, Field61 b) const;  // a > b
  int64_t rank(Field61 x) const;                // in the random total order; of small integers their own
};

// One op on one replica; of an all-reduce the operands are the contributions of all. An error: the op has no value.
Result<Tensor> field_value(const FieldPoint& point, const Op& op, std::span<const Tensor> operands,
                           ThreadPool* pool);

// A bound on the degree of every value of a program as a polynomial in its inputs, its state, random numbers, reciprocals and what
// uninterpreted functions return: what the lemma of Schwartz and Zippel asks for.
std::vector<double> field_degrees(const class Graph& graph);

}  // namespace twinrun
