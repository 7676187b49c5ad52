// Where a run happened: build, machine, instruction set, contract. Recorded in run files and
// reports.
#pragma once

#include <map>
#include <string>

namespace twinrun {

std::string version_text();  // "twinrun 0.1.0 (contract 1, isa avx512, Release build)"
// Keys: cpu, cores, isa, os, compiler, build, contract, version.
std::map<std::string, std::string> environment();

}  // namespace twinrun
