// The rules by what they read. Each appends what it finds; check.cc puts it in order. Used by harness/check alone.
#pragma once

#include <fmt/format.h>

#include "harness/check/check.h"

namespace twinrun::check {

using Findings = std::vector<RuleFinding>;

// A finding of a rule; `arguments` are put into its message.
template <typename... Arguments>
RuleFinding finding(std::string_view id, std::string where, std::string found, std::string why,
                    std::string fix, const Arguments&... arguments) {
  const Rule& r = rule(id);
  return {r.id,
          r.severity,
          std::move(where),
          std::move(found),
          std::move(why),
          std::move(fix),
          fmt::format(fmt::runtime(r.message), arguments...)};
}

// Keys alone: batch, steps, data, reductions, clipping, sizes of layers.
void check_keys(const ReadScenario& read, Findings& out);
// Where samples meet, of the program before it is shared out.
void check_couplings(const ReadScenario& read, const Program& forward, Findings& out);
// The program of one of several cores.
void check_collectives(const Program& step, const std::string& where, Findings& out);
// How findings call an instruction of a text: "fft.3:41", as names may repeat from function to function.
std::string op_id(const HloInstruction& in);
// A text: element types, sizes, opcodes, random numbers, all-reduces. The first `state` parameters are fed once, the others at
// every step.
void check_text(const HloModule& module, size_t state, Findings& out);

}  // namespace twinrun::check
