// The random ops of a program: what an engine that does not draw our numbers itself is given them for.
#pragma once

#include <vector>

#include "program/graph/program.h"

namespace twinrun {

// In program order.
std::vector<ValueId> random_ops(const Program& program);

// The same inputs and state, and nothing computed but the random ops: they are its outputs, the state stays.
Program only_random(const Program& program);

}  // namespace twinrun
