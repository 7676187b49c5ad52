// Initialisers by their Keras names: from a scenario's word to what initial_state draws.
//
//   auto init = named_initializer("he_normal", {3, 3, 16, 32});   // with the fans of that kernel
//   if (!init) return init.error();                               // unknown name, unfit shape
//   init->scale = 1.5;                                            // parameters have Keras's defaults
#pragma once

#include <string_view>

#include "program/base/result.h"
#include "program/graph/program.h"

namespace twinrun {

// Separated by "|", as the table of scenario keys takes them.
inline constexpr std::string_view kInitializerNames =
    "zeros|ones|constant|random_uniform|random_normal|truncated_normal|variance_scaling|"
    "glorot_uniform|glorot_normal|glorot_normal_uncorrected|he_uniform|he_normal|"
    "he_normal_uncorrected|lecun_uniform|lecun_normal|lecun_normal_uncorrected|orthogonal|identity";

// Keras's compute_fans: [in, out]; [.., in, out] times the receptive field; of a vector its length,
// twice; of a scalar 1.
struct Fans {
  int64_t in = 1, out = 1;
};
Fans fans_of(const Dims& dims);

// The initialiser for a variable of these dimensions, fans filled in. Errors have no place; the caller
// knows it.
Result<Initializer> named_initializer(std::string_view name, const Dims& dims);

// Whether it can fill such a variable: orthogonal has at least two dimensions, identity exactly two,
// parameters are finite, stddev and scale not negative, low <= high.
Status check_initializer(const Initializer& init, const Dims& dims);

}  // namespace twinrun
