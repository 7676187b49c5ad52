// Where a run happened, for reports: build, machine, instruction set, contract.
#pragma once

#include <map>
#include <string>

namespace twinrun {

std::string version_text();  // "twinrun 0.1.0 (contract 1, isa avx512, Release)"
std::map<std::string, std::string>
environment();  // cpu, cores, isa, os, compiler, build, contract, version

}  // namespace twinrun
