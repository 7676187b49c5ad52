// The correctly rounded value of a function of one variable: MPFR's result, rounded once to
// binary32, with denormals and canonical NaN. Used by the naive interpreter, by the proof of the
// elementary functions (tests/prove), and by the test that samples their arguments.
//
//   const CorrectlyRounded truth(mpfr_exp);     // one per thread: it sets the exponent range
//   truth(1.0f) == 2.7182817f;   truth.flushed(-88.0f) == 0;
#pragma once

#include <mpfr.h>

#include "program/base/bits.h"

namespace twinrun {

class CorrectlyRounded {
 public:
  using Function = int (*)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t);

  explicit CorrectlyRounded(Function f) : f_(f), emin_(mpfr_get_emin()), emax_(mpfr_get_emax()) {
    mpfr_set_emin(-148);  // with 24 bits: binary32, whose denormals mpfr_subnormalize makes
    mpfr_set_emax(128);
    mpfr_inits2(24, x_, y_, static_cast<mpfr_ptr>(nullptr));
  }
  ~CorrectlyRounded() {
    mpfr_clears(x_, y_, static_cast<mpfr_ptr>(nullptr));
    mpfr_set_emin(emin_);
    mpfr_set_emax(emax_);
  }
  CorrectlyRounded(const CorrectlyRounded&) = delete;
  CorrectlyRounded& operator=(const CorrectlyRounded&) = delete;

  float operator()(float x) const {
    mpfr_set_flt(x_, x, MPFR_RNDN);
    const int ternary = f_(y_, x_, MPFR_RNDN);
    mpfr_subnormalize(y_, ternary, MPFR_RNDN);
    return canonical(mpfr_get_flt(y_, MPFR_RNDN));
  }

  // The value under FTZ and DAZ: the function of the flushed argument, replaced by a signed zero if
  // it is tiny after rounding with unbounded exponent.
  float flushed(float x) const {
    mpfr_set_flt(x_, flush(x), MPFR_RNDN);
    const mpfr_exp_t emin = mpfr_get_emin(), emax = mpfr_get_emax();
    mpfr_set_emin(emin_);
    mpfr_set_emax(emax_);
    f_(y_, x_, MPFR_RNDN);
    const bool tiny = mpfr_regular_p(y_) && mpfr_get_exp(y_) < -125;
    const float result = tiny ? (mpfr_signbit(y_) ? -0.0f : 0.0f) : mpfr_get_flt(y_, MPFR_RNDN);
    mpfr_set_emin(emin);
    mpfr_set_emax(emax);
    return canonical(result);
  }

 private:
  Function f_;
  mpfr_exp_t emin_, emax_;
  mutable mpfr_t x_, y_;
};

}  // namespace twinrun
