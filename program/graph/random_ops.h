// The random ops of a program. Engines that do not implement our random numbers are given the
// values of these ops as inputs.
#pragma once

#include <vector>

#include "program/graph/program.h"

namespace twinrun {

// Their ids, in program order.
std::vector<ValueId> random_ops(const Program& program);

// A program with the same inputs and state that computes only the random ops, which are its
// outputs. Its state does not change.
Program only_random(const Program& program);

}  // namespace twinrun
