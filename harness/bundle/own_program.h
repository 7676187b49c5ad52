// Writes the files of an imported program into a folder of its own, for bundles: its text and
// binding as they are, its state, and the batches that its steps use.
//
//   Scenario s = *with_own_program(scenario, "folder");     // s.program_files lie in "folder"
#pragma once

#include <string>
#include <vector>

#include "program/base/result.h"
#include "scenarios/scenario.h"

namespace twinrun {

// The files of the returned scenario, as members of a bundle. Which there are depends on the
// scenario: binding and held-out batches may be missing.
struct ProgramMember {
  std::string_view name;
  std::string ProgramFiles::*file;
};
inline constexpr ProgramMember kProgramMembers[] = {
    {"step.txt", &ProgramFiles::program},
    {"step.json", &ProgramFiles::binding},
    {"step.state.safetensors", &ProgramFiles::state},
    {"step.batch.safetensors", &ProgramFiles::batch},
    {"step.held_out.safetensors", &ProgramFiles::held_out},
    {"whole.txt", &ProgramFiles::whole}};
// What may lie beside whole.txt, as it lay beside the text that `--whole` named.
inline constexpr std::string_view kBesideWhole[] = {"whole.json", "whole.state.npz",
                                                    "whole.batch.npz"};

// With `only_used`, batches that no step of the scenario reads are left out, so that its digest
// changes; where seeds shuffle the batches, all are used. Errors: a file cannot be read or written.
Result<Scenario> with_own_program(const Scenario& scenario, const std::string& folder,
                                  bool only_used);

}  // namespace twinrun
