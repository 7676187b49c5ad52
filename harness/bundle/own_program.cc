// Copies text and binding of an imported program, and writes state and batches as safetensors.
#include "harness/bundle/own_program.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "checkpoints/container/array.h"
#include "checkpoints/container/atomic_file.h"
#include "checkpoints/container/safetensors.h"
#include "harness/experiment/imported.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

Status write_arrays(const ArrayFile& file, const std::string& path) {
  TWINRUN_ASSIGN(const std::vector<std::byte> bytes, to_safetensors(file, path));
  return write_file_atomically(path, bytes);
}

Status copy(const std::string& from, const std::string& to) {
  TWINRUN_ASSIGN(const auto bytes, read_whole_file(from));
  return write_file_atomically(to, bytes);
}

// The first `count` batches: one more dimension in front for the inputs that change.
ArrayFile arrays_of(const ImportedRun& run, const std::vector<std::vector<Tensor>>& batches,
                    size_t count) {
  ArrayFile file;
  for (size_t i = 0; i < run.step.inputs.size(); ++i) {
    const std::string& name = run.step.inputs[i].name;
    if (run.literals.contains(name)) continue;  // they are in the text
    const Tensor& first = batches.front()[i];
    const bool same = count > 1 && std::all_of(batches.begin(), batches.end(), [&](const auto& b) {
                        return b[i].raw() == first.raw();
                      });
    NamedArray array = to_array(name, first);
    if (!same) {
      array.dims.insert(array.dims.begin(), static_cast<int64_t>(count));
      for (size_t b = 1; b < count; ++b) {
        const NamedArray next = to_array(name, batches[b][i]);
        array.bytes.insert(array.bytes.end(), next.bytes.begin(), next.bytes.end());
      }
    }
    file.arrays.push_back(std::move(array));
  }
  return file;
}

}  // namespace

Result<Scenario> with_own_program(const Scenario& scenario, const std::string& folder,
                                  bool only_used) {
  TWINRUN_ASSIGN(const Experiment e, make_experiment(scenario));
  const ImportedRun& run = *e.imported;
  ProgramFiles own;
  for (const auto& [name, file] : kProgramMembers) {
    if (!(scenario.program_files.*file).empty() || !(e.scenario.program_files.*file).empty())
      own.*file = (fs::path(folder) / name).string();
  }
  for (const auto file : {&ProgramFiles::program, &ProgramFiles::binding, &ProgramFiles::whole}) {
    if (!(own.*file).empty())
      TWINRUN_RETURN_IF_ERROR(copy(e.scenario.program_files.*file, own.*file));
  }
  const fs::path whole(e.scenario.program_files.whole);
  for (const std::string_view name : kBesideWhole) {
    const std::string ending(name.substr(name.find('.')));
    const fs::path from = fs::path(whole).replace_extension(ending);
    std::error_code ignored;
    if (whole.empty() || !fs::exists(from, ignored)) continue;
    TWINRUN_RETURN_IF_ERROR(copy(from.string(), (fs::path(folder) / name).string()));
  }
  ArrayFile state;
  for (size_t i = 0; i < run.state.size(); ++i)
    state.arrays.push_back(to_array(run.step.state[i].name, run.state[i]));
  TWINRUN_RETURN_IF_ERROR(write_arrays(state, own.state));
  size_t count = run.batches.size();
  if (only_used && scenario.seed == 0 && scenario.train.steps < static_cast<int64_t>(count))
    count = static_cast<size_t>(scenario.train.steps);
  if (!own.batch.empty())
    TWINRUN_RETURN_IF_ERROR(write_arrays(arrays_of(run, run.batches, count), own.batch));
  if (!own.held_out.empty())
    TWINRUN_RETURN_IF_ERROR(
        write_arrays(arrays_of(run, run.held_out, run.held_out.size()), own.held_out));
  TWINRUN_ASSIGN(const Experiment again, import_experiment(own));
  Scenario out = scenario;
  out.program_files = again.scenario.program_files;
  if (count < run.batches.size()) out.imported = again.scenario.imported;
  // What was written must be what was read.
  TWINRUN_RETURN_IF_ERROR(make_experiment(out));
  return out;
}

}  // namespace twinrun
