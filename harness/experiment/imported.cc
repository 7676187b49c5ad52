// Reads an imported step with its binding, state and batches, and checks that they fit together.
#include "harness/experiment/imported.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "checkpoints/interchange/weights.h"
#include "checkpoints/run.h"
#include "program/base/names.h"
#include "scenarios/keys.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

Result<std::string> text_of(const std::string& path) {
  TWINRUN_ASSIGN(const std::vector<std::byte> bytes, read_whole_file(path, kMaxHloBytes));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// The requested file, or STEM + ending if it exists, or the file of `twinrun convert --to stablehlo`.
std::string beside(const ProgramFiles& files, const std::string& asked, const char* ending,
                   const char* exported = nullptr) {
  if (!asked.empty()) return asked;
  std::vector<fs::path> guesses = {fs::path(files.program).replace_extension(ending)};
  if (exported != nullptr) guesses.push_back(fs::path(files.program).replace_filename(exported));
  std::error_code ignored;
  for (const fs::path& guess : guesses) {
    if (fs::is_regular_file(guess, ignored)) return guess.string();
  }
  return "";
}

constexpr const char* kExported = "arguments.safetensors";

using Arrays = std::map<std::string, NamedArray>;

// A checkpoint, or the last one of a run.
Result<Checkpoint> last_state_of(const std::string& path) {
  TWINRUN_ASSIGN(const std::string kind, file_kind(path));
  if (kind != "run") return read_checkpoint(path);
  TWINRUN_ASSIGN(RunFile run, read_run(path));
  if (run.checkpoints.empty())
    return Error{"the run holds no checkpoint", path, "give another file"};
  return std::move(run.checkpoints.back());
}

Result<Arrays> arrays_of(const std::string& path) {
  Arrays out;
  TWINRUN_ASSIGN(const bool ours, is_twinrun_file(path));
  if (ours) {
    TWINRUN_ASSIGN(const Checkpoint c, last_state_of(path));
    for (const auto& [name, tensor] : c.tensors) out[name] = to_array(name, tensor.value);
    return out;
  }
  TWINRUN_ASSIGN(ForeignWeights file, read_foreign_weights(path));
  for (NamedArray& array : file.arrays) out[array.name] = std::move(array);
  return out;
}

// Collects the arrays of a file that are missing, surplus or of another shape, into one error.
class Complaints {
 public:
  explicit Complaints(std::string file) : file_(std::move(file)) {}
  void add(std::string line) { lines_.push_back(std::move(line)); }
  void missing(const std::string& name, const TensorType& type, const Arrays& there) {
    std::vector<std::string> names;
    for (const auto& [other, array] : there) names.push_back(other);
    const std::string near = nearest(name, names);
    add(fmt::format("'{}' ({}) is missing{}", name, to_string(type),
                    near.empty() ? "" : fmt::format("; the nearest is '{}'", near)));
  }
  Status status(const std::string& fix) const {
    if (lines_.empty()) return Ok{};
    constexpr size_t kMax = 20;
    std::string what = "does not fit the program";
    for (size_t i = 0; i < std::min(lines_.size(), kMax); ++i) what += "\n  " + lines_[i];
    if (lines_.size() > kMax) what += fmt::format("\n  and {} more", lines_.size() - kMax);
    return Error{what, file_, fix};
  }

 private:
  std::string file_;
  std::vector<std::string> lines_;
};

// The bits of u32 are those of the program's i32, so that keys of jax.random can be fed.
Result<Tensor> tensor_for(NamedArray array, DType wanted, const std::string& path) {
  if (array.type == ElementType::kU32 && wanted == DType::kI32) array.type = ElementType::kI32;
  return to_tensor(array, wanted, path);
}

bool is_input(const Program& p, const std::string& name) {
  return std::ranges::find(p.inputs, name, &Input::name) != p.inputs.end();
}

// The dimensions of a user's array, of which each core may have its own part. Under pmap it may
// also be one core's array, which is then given to all.
Dims dims_of(ImportedStep& step, const std::string& name, const Dims& own, const Dims& found) {
  const auto part = step.parts.find(name);
  if (part == step.parts.end()) return own;
  const Dims whole = part->second.whole;
  const bool replicas = whole.size() == own.size() + 1;
  const bool steps = found.size() == whole.size() && found != whole;
  if (!replicas || (found.size() != own.size() && !steps)) return whole;
  step.parts.erase(part);
  return own;
}

// The arrays NAME@0, NAME@1, ... of single replicas, as `twinrun convert --to stablehlo` writes them, become one
// array with a leading axis over the replicas.
void join_replicas(Arrays& arrays, const ImportedStep& step) {
  for (const auto& [name, part] : step.parts) {
    const auto piece = [&, &name = name](int64_t i) {
      return arrays.find(fmt::format("{}@{}", name, i));
    };
    if (part.whole.empty() || arrays.contains(name) || piece(0) == arrays.end()) continue;
    NamedArray all = piece(0)->second;
    const Dims dims = all.dims;
    all.name = name;
    all.bytes.clear();
    all.dims.insert(all.dims.begin(), 0);
    for (auto at = piece(0); at != arrays.end() && at->second.dims == dims;
         at = piece(all.dims[0])) {
      all.bytes.insert(all.bytes.end(), at->second.bytes.begin(), at->second.bytes.end());
      ++all.dims[0];
      arrays.erase(at);
    }
    arrays[name] = std::move(all);
  }
}

// An array with a leading axis of equal copies, as pmap's state has, becomes one of them where one
// is what the step needs.
void first_copy(NamedArray& array, const Dims& dims) {
  if (array.dims.size() != dims.size() + 1 || array.dims[0] < 1 ||
      Dims(array.dims.begin() + 1, array.dims.end()) != dims)
    return;
  const size_t bytes = array.bytes.size() / static_cast<size_t>(array.dims[0]);
  for (size_t at = bytes; at < array.bytes.size(); at += bytes) {
    if (!std::equal(array.bytes.begin(), array.bytes.begin() + static_cast<std::ptrdiff_t>(bytes),
                    array.bytes.begin() + static_cast<std::ptrdiff_t>(at)))
      return;
  }
  array.bytes.resize(bytes);
  array.dims = dims;
}

// The same dimensions, or those and one in front, of steps.
bool fits(const Dims& found, const Dims& dims) {
  return found.size() <= dims.size() + 1 && found.size() >= dims.size() &&
         std::equal(dims.rbegin(), dims.rend(), found.rbegin());
}

// [.., cores, rows, ..] becomes [.., cores * rows, ..] where that is what the step needs.
void merge_rows(Dims& found, const Dims& dims) {
  for (size_t at = 0; at < 2 && at + 1 < found.size(); ++at) {
    Dims merged = found;
    merged[at] *= merged[at + 1];
    merged.erase(merged.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    if (merged.size() == dims.size() + at &&
        std::equal(dims.rbegin(), dims.rend(), merged.rbegin()))
      found = merged;
  }
}

Result<std::vector<Tensor>> read_state(const std::string& path, ImportedStep& imported) {
  TWINRUN_ASSIGN(Arrays arrays, arrays_of(path));
  join_replicas(arrays, imported);
  const Program& step = imported.program;
  std::vector<Tensor> state;
  Complaints complaints(path);
  for (const StateVar& var : step.state) {
    const auto found = arrays.find(var.name);
    const Dims dims = found == arrays.end()
                          ? var.type.dims
                          : dims_of(imported, var.name, var.type.dims, found->second.dims);
    if (found != arrays.end()) first_copy(found->second, dims);
    if (found == arrays.end()) {
      complaints.missing(var.name, var.type, arrays);
    } else if (found->second.dims != dims) {
      complaints.add(fmt::format("'{}' is {}; allowed: {}", var.name, describe(found->second),
                                 to_string(TensorType{var.type.dtype, dims})));
    } else if (const auto t = tensor_for(found->second, var.type.dtype, path); t) {
      state.push_back(*t);
    } else {
      complaints.add(fmt::format("'{}': {}", var.name, t.error().what));
    }
  }
  for (const auto& [name, array] : arrays) {
    // One file may hold both state and inputs.
    if (step.state_index(name) < 0 && !is_input(step, name))
      complaints.add(fmt::format("'{}' is not a state variable", name));
  }
  TWINRUN_RETURN_IF_ERROR(
      complaints.status("docs/guides/import.md#binding explains how state is named"));
  return state;
}

// An array with the shape of its input is fed at every step; one with an additional leading
// dimension has a value per step.
Result<std::vector<std::vector<Tensor>>> read_batches(const std::string& path, const char* option,
                                                      ImportedStep& step) {
  const Program& p = step.program;
  Arrays arrays;
  if (!path.empty()) {
    TWINRUN_ASSIGN(arrays, arrays_of(path));
    join_replicas(arrays, step);
  }
  Complaints complaints(path.empty() ? option : path);
  std::vector<Tensor> columns(p.inputs.size());
  std::vector<bool> counted(p.inputs.size(), false);
  std::vector<Dims> given(p.inputs.size());  // of one step
  int64_t steps = 0;
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const std::string& name = p.inputs[i].name;
    TensorType type = p.graph.type(p.inputs[i].id);
    if (p.inputs[i].per_core) {  // the core's number
      columns[i] = Tensor::scalar_i32(0);
      continue;
    }
    if (const auto literal = step.literals.find(name); literal != step.literals.end()) {
      columns[i] = literal->second;
      continue;
    }
    const auto found = arrays.find(name);
    if (found == arrays.end()) {
      complaints.missing(name, type, arrays);
      continue;
    }
    if (step.program.sharding.cores == 1 && !fits(found->second.dims, type.dims))
      merge_rows(found->second.dims, type.dims);
    const Dims& dims = found->second.dims;
    type.dims = dims_of(step, name, type.dims, dims);
    const bool leading = dims.size() == type.dims.size() + 1;
    if (!fits(dims, type.dims)) {
      complaints.add(
          fmt::format("'{}' is {}; allowed: {}, or the same with a leading dimension of steps",
                      name, describe(found->second), to_string(type)));
      continue;
    }
    if (leading && steps != 0 && dims[0] != steps)
      complaints.add(fmt::format("'{}' has {} steps; other inputs have {}", name, dims[0], steps));
    if (leading && dims[0] == 0) complaints.add(fmt::format("'{}' has 0 steps", name));
    if (leading) steps = dims[0];
    counted[i] = leading;
    given[i] = type.dims;
    const auto t = tensor_for(found->second, type.dtype, path);
    if (t)
      columns[i] = *t;
    else
      complaints.add(fmt::format("'{}': {}", name, t.error().what));
  }
  for (const auto& [name, array] : arrays) {
    if (!is_input(p, name) && p.state_index(name) < 0)
      complaints.add(fmt::format("'{}' is not an input", name));
  }
  TWINRUN_RETURN_IF_ERROR(complaints.status(
      path.empty() ? fmt::format("give the inputs with {} FILE (npz, safetensors)", option) : ""));
  std::vector<std::vector<Tensor>> batches;
  for (int64_t b = 0; b < std::max<int64_t>(1, steps); ++b) {
    auto& batch = batches.emplace_back();
    for (size_t i = 0; i < columns.size(); ++i)
      batch.push_back(counted[i] ? columns[i].rows(b, b + 1).reshaped(given[i]).clone()
                                 : columns[i]);
  }
  return batches;
}

bool is_set(const Overrides& overrides, std::string_view key) {
  return std::ranges::find(overrides, key, &Overrides::value_type::first) != overrides.end();
}

// Settings that apply without a model, checked by the rules of scenarios.
Result<Scenario> settings_of(const Overrides& overrides) {
  TWINRUN_RETURN_IF_ERROR(check_keys_of_program(overrides));
  TWINRUN_ASSIGN(const Scenario checked, load_scenario("digits_mlp", overrides));
  Scenario s;
  // By default 0: the batches in the order of their file.
  if (is_set(overrides, "seed")) s.seed = checked.seed;
  s.train = checked.train;
  s.tpu.precision = checked.tpu.precision;
  s.tpu.poison = checked.tpu.poison;
  s.diagnose = checked.diagnose;
  return s;
}

Digest digest_of(const std::vector<std::vector<Tensor>>& batches) {
  DigestBuilder all;
  for (const auto& batch : batches) {
    for (const Tensor& t : batch) all.add(digest_bytes(t.raw(), t.bytes()));
  }
  return all.finish();
}

// State names become paths in checkpoint files: words separated by slashes, and no name may be the
// folder of another. Words are what JAX, Flax and optax write: "state1/0/.mu/Dense_0/kernel".
bool is_state_name(std::string_view name) {
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view word = name.substr(begin, end - begin);
    if (word.empty() || word == "." || word == "..") return false;
    if (!std::ranges::all_of(word,
                             [](char c) { return c > ' ' && c < 0x7F && c != '\\' && c != '"'; }))
      return false;
    begin = end + 1;
  }
  return true;
}

Status check_names(const Program& p) {
  std::set<std::string> folders;
  for (const StateVar& var : p.state) {
    for (size_t at = var.name.find('/'); at != std::string::npos; at = var.name.find('/', at + 1))
      folders.insert(var.name.substr(0, at));
  }
  for (const StateVar& var : p.state) {
    if (!is_state_name(var.name))
      return Error{fmt::format("'{}' is not a name; allowed: words with / between, other than . "
                               "and .., of printable ASCII characters without space, \\ and \"",
                               var.name),
                   "binding", ""};
    if (folders.contains(var.name))
      return Error{fmt::format("'{}' is a state variable and also the first part of another's name",
                               var.name),
                   "binding", "give one of them another prefix"};
  }
  return Ok{};
}

Result<StepBinding> binding_of(const ProgramFiles& files, const HloModule& module) {
  const std::string path = beside(files, files.binding, ".json");
  if (path.empty()) return default_binding(module);
  TWINRUN_ASSIGN(const std::string json, text_of(path));
  return parse_binding(json, path);
}

}  // namespace

Result<ProgramText> read_program_text(const ProgramFiles& files) {
  ProgramText out;
  TWINRUN_ASSIGN(const std::string text, text_of(files.program));
  TWINRUN_ASSIGN(out.module, parse_program(text, files.program, HloUse::kLookAt));
  const Result<StepBinding> binding = binding_of(files, out.module);
  if (!binding && !beside(files, files.binding, ".json").empty()) return binding.error();
  out.state = binding ? binding->state.size() : out.module.entry().parameters.size();
  return out;
}

Result<ImportedStep> import_program(const ProgramFiles& files,
                                    std::vector<ImportProblem>* problems) {
  TWINRUN_ASSIGN(const std::string text, text_of(files.program));
  TWINRUN_ASSIGN(const HloModule module, parse_program(text, files.program));
  TWINRUN_ASSIGN(const StepBinding binding, binding_of(files, module));
  TWINRUN_ASSIGN(ImportedStep step, import_step(module, binding, problems));
  TWINRUN_RETURN_IF_ERROR(check_names(step.program));
  return step;
}

namespace {

// The names of the files beside the program that were not given.
ProgramFiles found_files(ProgramFiles files) {
  files.binding = beside(files, files.binding, ".json");
  files.state = beside(files, files.state, ".state.npz", kExported);
  files.batch = beside(files, files.batch, ".batch.npz", kExported);
  return files;
}

// A step with its state and batches.
Result<ImportedRun> read_run(const ProgramFiles& files) {
  TWINRUN_ASSIGN(ImportedStep step, import_program(files));
  if (files.state.empty()) {
    return Error{
        "the initial state is missing", "--state",
        fmt::format("a checkpoint, .npz or .safetensors file with {} arrays; {} is found by "
                    "its name",
                    step.program.state.size(),
                    fs::path(files.program).replace_extension(".state.npz").string())};
  }
  ImportedRun run;
  TWINRUN_ASSIGN(run.state, read_state(files.state, step));
  TWINRUN_ASSIGN(run.batches, read_batches(files.batch, "--batch", step));
  if (!files.held_out.empty()) {
    TWINRUN_ASSIGN(run.held_out, read_batches(files.held_out, "--held-out", step));
  }
  run.notes = step.notes;
  for (const auto& [name, value] : step.literals) run.literals.insert(name);
  run.parts = std::move(step.parts);
  run.mesh_axes = std::move(step.mesh_axes);
  run.exchanges = std::move(step.exchanges);
  run.step = std::move(step.program);
  for (Input& input : run.step.inputs) {
    const auto part = run.parts.find(input.name);
    if (part != run.parts.end() && part->second.begin.front() != part->second.begin.back())
      input.per_core = true;
  }
  return run;
}

// The same step on one device. What has no file beside it is read from the sharded step's files.
Result<ImportedRun> read_whole(const ProgramFiles& sharded) {
  ProgramFiles whole;
  whole.program = sharded.whole;
  whole = found_files(std::move(whole));
  if (whole.binding.empty()) whole.binding = sharded.binding;
  if (whole.state.empty()) whole.state = sharded.state;
  if (whole.batch.empty()) whole.batch = sharded.batch;
  TWINRUN_ASSIGN(ImportedRun run, read_run(whole));
  if (run.step.sharding.cores > 1)
    return Error{
        fmt::format("a step of {} cores; allowed: the step on one device", run.step.sharding.cores),
        "--whole", "write it without shard_map, pmap and collectives"};
  return run;
}

}  // namespace

Result<Experiment> import_experiment(const ProgramFiles& given, const Overrides& overrides) {
  Experiment e;
  TWINRUN_ASSIGN(e.scenario, settings_of(overrides));
  ProgramFiles files = found_files(given);
  TWINRUN_ASSIGN(ImportedRun run, read_run(files));
  const Program& program = run.step;
  if (!files.whole.empty()) {
    if (program.sharding.cores == 1)
      return Error{"the step runs on one core, and no other says what it means", "--whole",
                   "it is for steps that their user divided over cores"};
    TWINRUN_ASSIGN(ImportedRun unsharded, read_whole(files));
    e.unsharded = std::make_shared<const ImportedRun>(std::move(unsharded));
  }
  Scenario& s = e.scenario;
  s.name = fs::path(files.program).stem().string();
  s.description = "imported from " + fs::path(files.program).filename().string();
  s.file = files.program;
  if (!is_set(overrides, "train.steps")) s.train.steps = static_cast<int64_t>(run.batches.size());
  s.train.batch = program.batch * program.sharding.cores;
  s.tpu.cores = 1;
  if (!run.held_out.empty() && run.batches.size() < 2) {
    s.diagnose.seeds = 1;
    run.notes.emplace_back(
        "there is one batch, so no order of batches that seeds could change: whether a drift "
        "matters cannot be tested");
  }
  DigestBuilder state_digest;
  for (const Tensor& t : run.state) state_digest.add(digest_bytes(t.raw(), t.bytes()));
  const Digest data = digest_of(run.batches);
  s.imported =
      fmt::format("format = \"hlo\"\nprogram = {}\nstate = {}\nbatches = {}\nbatches_digest = {}\n",
                  toml_string(digest(program).hex()), toml_string(state_digest.finish().hex()),
                  run.batches.size(), toml_string(data.hex()));
  if (!run.held_out.empty())
    s.imported += fmt::format("held_out = {}\nheld_out_digest = {}\n", run.held_out.size(),
                              toml_string(digest_of(run.held_out).hex()));
  if (e.unsharded) {
    DigestBuilder all;
    all.add(digest(e.unsharded->step));
    all.add(digest_of(e.unsharded->batches));
    s.imported += fmt::format("whole = {}\n", toml_string(all.finish().hex()));
  }
  s.program_files = std::move(files);
  Dataset dataset;
  dataset.digest = data;
  e.data = std::make_shared<const Dataset>(std::move(dataset));
  e.imported = std::make_shared<const ImportedRun>(std::move(run));
  return e;
}

namespace {
constexpr std::pair<const char*, std::string ProgramFiles::*> kFileKeys[] = {
    {"program.file", &ProgramFiles::program},      {"program.binding", &ProgramFiles::binding},
    {"program.state", &ProgramFiles::state},       {"program.batch", &ProgramFiles::batch},
    {"program.held_out", &ProgramFiles::held_out}, {"program.whole", &ProgramFiles::whole}};
}  // namespace

void keep_files(const ProgramFiles& files, std::map<std::string, std::string>& environment) {
  for (const auto& [key, member] : kFileKeys) {
    if (!(files.*member).empty()) environment[key] = files.*member;
  }
}

ProgramFiles files_in(const std::map<std::string, std::string>& environment) {
  ProgramFiles files;
  for (const auto& [key, member] : kFileKeys) {
    if (const auto found = environment.find(key); found != environment.end())
      files.*member = found->second;
  }
  return files;
}

Status find_program(const ProgramFiles& given,
                    const std::map<std::string, std::string>& environment, Scenario& scenario) {
  if (!given.program.empty() && scenario.imported.empty())
    return Error{fmt::format("is of the scenario '{}', not of an imported program", scenario.name),
                 scenario.file, "leave out --program"};
  scenario.program_files = given.program.empty() ? files_in(environment) : given;
  return Ok{};
}

std::string differences(const std::string& recorded, const std::string& given) {
  const auto lines = [](const std::string& text) {
    std::map<std::string, std::string> out;
    for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
      const size_t equals = text.find(" = ", at);
      out[text.substr(at, equals - at)] = text.substr(equals + 3, end - equals - 3);
    }
    return out;
  };
  static const std::vector<std::pair<std::string, std::string>> kinds = {
      {"program", "the program"},
      {"state", "the initial state"},
      {"batches", "the number of batches"},
      {"batches_digest", "the batches"},
      {"held_out", "the number of held-out batches"},
      {"held_out_digest", "the held-out batches"},
      {"whole", "the step on one device"}};
  auto was = lines(recorded), is = lines(given);
  std::string out;
  for (const auto& [key, what] : kinds) {
    if (was[key] == is[key]) continue;
    const auto shown = [](std::string value) {
      std::erase(value, '"');
      return value.empty() ? "none" : value;
    };
    out += fmt::format("\n  {}: {}; recorded: {}", what, shown(is[key]), shown(was[key]));
  }
  return out;
}

Result<Experiment> reopen_imported(const Scenario& s) {
  if (s.program_files.program.empty())
    return Error{"is of an imported program, whose files are not given", s.file,
                 "--program FILE, and --state, --batch, --binding, --held-out where these do not "
                 "lie beside it"};
  TWINRUN_ASSIGN(Experiment e, import_experiment(s.program_files));
  if (const std::string differ = differences(s.imported, e.scenario.imported); !differ.empty())
    return Error{fmt::format("is not what {} records:{}", s.file, differ), s.program_files.program,
                 "give the files with which it was made, or make it again"};
  Scenario kept = s;
  kept.program_files = e.scenario.program_files;
  e.scenario = std::move(kept);
  return e;
}

}  // namespace twinrun
