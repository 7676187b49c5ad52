// Initializers by their Keras names: from the name in a scenario to the settings from which
// initial_state draws.
//
//   auto init = named_initializer("he_normal", {3, 3, 16, 32});   // with the fans of that kernel
//   if (!init) return init.error();                               // unknown name, unsuitable shape
//   init->scale = 1.5;                                            // others: Keras's defaults
#pragma once

#include <string_view>

#include "program/base/result.h"
#include "program/graph/program.h"

namespace twinrun {

// Separated by "|", as the table of scenario keys expects them.
inline constexpr std::string_view kInitializerNames =
    "zeros|ones|constant|random_uniform|random_normal|truncated_normal|variance_scaling|"
    "glorot_uniform|glorot_normal|glorot_normal_uncorrected|he_uniform|he_normal|"
    "he_normal_uncorrected|lecun_uniform|lecun_normal|lecun_normal_uncorrected|orthogonal|identity";

// As Keras's compute_fans: in and out of [in, out]; of [.., in, out], both times the receptive
// field; for a vector, both are its length; for a scalar, both are 1.
struct Fans {
  int64_t in = 1, out = 1;
};
Fans fans_of(const Dims& dims);

// The initializer for a variable of these dimensions, with its fans filled in. Errors do not say
// where; the caller adds that.
Result<Initializer> named_initializer(std::string_view name, const Dims& dims);

// Checks that the initializer can fill such a variable: orthogonal needs at least two dimensions,
// identity exactly two; settings must be finite, stddev and scale not negative, low <= high.
Status check_initializer(const Initializer& init, const Dims& dims);

}  // namespace twinrun
