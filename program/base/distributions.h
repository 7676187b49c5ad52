// Quantiles and tails of the distributions that decisions are made by, from Boost.Math. They have a source of their own because one
// quantile of Student's takes a compiler fifteen seconds.
//
//   student_quantile(9, 0.975);          // 2.262
//   student_upper(9, 0.025);             // the same, exact for small tails as well
//
// Arguments outside a distribution's range throw std::domain_error, as Boost's functions do.
#pragma once

namespace twinrun {

// The t of which a draw with `freedom` degrees of freedom stays below with probability p, in (0, 1).
double student_quantile(double freedom, double p);
// The t that a draw exceeds with probability `tail`.
double student_upper(double freedom, double tail);
double chi_squared_quantile(double freedom, double p);
// The probability of at least `count` successes in `trials`, each with probability p.
double binomial_at_least(double trials, double p, double count);
// The lowest success rate that `successes` of `trials` leave possible: the lower end of a one-sided interval of confidence 1 - alpha
// (Clopper and Pearson).
double binomial_low_rate(double trials, double successes, double alpha);

}  // namespace twinrun
