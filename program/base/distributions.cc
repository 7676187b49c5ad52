// Compiles what is used of Boost.Math, once.
#include "program/base/distributions.h"

#include <boost/math/distributions/binomial.hpp>
#include <boost/math/distributions/chi_squared.hpp>
#include <boost/math/distributions/students_t.hpp>

namespace twinrun {

namespace math = boost::math;

double student_quantile(double freedom, double p) {
  return math::quantile(math::students_t(freedom), p);
}

double student_upper(double freedom, double tail) {
  return math::quantile(math::complement(math::students_t(freedom), tail));
}

double chi_squared_quantile(double freedom, double p) {
  return math::quantile(math::chi_squared(freedom), p);
}

double binomial_at_least(double trials, double p, double count) {
  return math::cdf(math::complement(math::binomial(trials, p), count - 1));
}

double binomial_low_rate(double trials, double successes, double alpha) {
  return math::binomial::find_lower_bound_on_p(trials, successes, alpha);
}

}  // namespace twinrun
