// Hands the operands of a kernel case to peers that are processes, and compares what they computed
// with ours. Operands and results are files of plain binary32 values: FOLDER/0, FOLDER/1 in, and
// FOLDER/out, in our layouts.
//
//   add_processes(processes, "dot f32 2x3x4", "dot f32 2 3 4", ours, 1e-3, sides);
#pragma once

#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/child.h"

namespace twinrun {

inline constexpr const char* kOneDnnName = "oneDNN Debian";

// `line` is the case without the folder; `ours` has been run.
void add_processes(PeerProcesses& processes, const std::string& name, const std::string& line,
                   const KernelCase& ours, double most, std::vector<Side>& sides);

}  // namespace twinrun
