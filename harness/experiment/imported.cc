// Reads an imported step with its binding, state and batches, and checks that they fit together.
#include "harness/experiment/imported.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "checkpoints/interchange/weights.h"
#include "program/base/names.h"
#include "scenarios/keys.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

Result<std::string> text_of(const std::string& path) {
  TWINRUN_ASSIGN(const std::vector<std::byte> bytes, read_whole_file(path, kMaxHloBytes));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// The requested file, or STEM + ending if it exists, or the file of `twinrun export`.
std::string beside(const ImportRequest& request, const std::string& asked, const char* ending,
                   const char* exported = nullptr) {
  if (!asked.empty()) return asked;
  std::vector<fs::path> guesses = {fs::path(request.program).replace_extension(ending)};
  if (exported != nullptr) guesses.push_back(fs::path(request.program).replace_filename(exported));
  std::error_code ignored;
  for (const fs::path& guess : guesses) {
    if (fs::is_regular_file(guess, ignored)) return guess.string();
  }
  return "";
}

constexpr const char* kExported = "arguments.safetensors";

using Arrays = std::map<std::string, NamedArray>;

Result<Arrays> arrays_of(const std::string& path) {
  Arrays out;
  TWINRUN_ASSIGN(const bool ours, is_twinrun_file(path));
  if (ours) {
    TWINRUN_ASSIGN(const Checkpoint c, read_checkpoint(path));
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

Result<std::vector<Tensor>> read_state(const std::string& path, const Program& step) {
  TWINRUN_ASSIGN(const Arrays arrays, arrays_of(path));
  std::vector<Tensor> state;
  Complaints complaints(path);
  for (const StateVar& var : step.state) {
    const auto found = arrays.find(var.name);
    if (found == arrays.end()) {
      complaints.missing(var.name, var.type, arrays);
    } else if (found->second.dims != var.type.dims) {
      complaints.add(fmt::format("'{}' is {}; allowed: {}", var.name, describe(found->second),
                                 to_string(var.type)));
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
Result<std::vector<std::vector<Tensor>>> read_batches(const std::string& path,
                                                      const ImportedStep& step) {
  const Program& p = step.program;
  Arrays arrays;
  if (!path.empty()) {
    TWINRUN_ASSIGN(arrays, arrays_of(path));
  }
  Complaints complaints(path.empty() ? "--batch" : path);
  std::vector<Tensor> columns(p.inputs.size());
  std::vector<bool> counted(p.inputs.size(), false);
  int64_t steps = 0;
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const std::string& name = p.inputs[i].name;
    const TensorType& type = p.graph.type(p.inputs[i].id);
    if (const auto literal = step.literals.find(name); literal != step.literals.end()) {
      columns[i] = literal->second;
      continue;
    }
    const auto found = arrays.find(name);
    if (found == arrays.end()) {
      complaints.missing(name, type, arrays);
      continue;
    }
    const Dims& dims = found->second.dims;
    const bool leading = dims.size() == type.dims.size() + 1;
    if (!std::equal(
            type.dims.rbegin(), type.dims.rend(), dims.rbegin(),
            dims.rbegin() + static_cast<std::ptrdiff_t>(std::min(dims.size(), type.dims.size()))) ||
        dims.size() > type.dims.size() + 1) {
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
      path.empty() ? "give the inputs with --batch FILE (npz, safetensors)" : ""));
  std::vector<std::vector<Tensor>> batches;
  for (int64_t b = 0; b < std::max<int64_t>(1, steps); ++b) {
    auto& batch = batches.emplace_back();
    for (size_t i = 0; i < columns.size(); ++i)
      batch.push_back(
          counted[i] ? columns[i].rows(b, b + 1).reshaped(p.graph.type(p.inputs[i].id).dims).clone()
                     : columns[i]);
  }
  return batches;
}

// Settings that apply without a model, checked by the rules of scenarios.
Result<Scenario> settings_of(const Overrides& overrides) {
  static const std::vector<std::string> known = {
      "train.steps", "train.log_every", "train.checkpoint_every", "tpu.precision",
      "tpu.poison",  "diagnose.probe",  "diagnose.ensemble",      "diagnose.faults"};
  for (const auto& [key, value] : overrides) {
    if (std::ranges::find(known, key) == known.end())
      return Error{fmt::format("'{}' has no meaning for an imported program (allowed: {})", key,
                               join(known, ", ")),
                   "--set", fmt::format("did you mean '{}'?", nearest(key, known))};
  }
  TWINRUN_ASSIGN(const Scenario checked, load_scenario("digits_mlp", overrides));
  Scenario s;
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

Result<StepBinding> binding_of(const ImportRequest& request, const HloModule& module) {
  const std::string path = beside(request, request.binding, ".json");
  if (path.empty()) return default_binding(module);
  TWINRUN_ASSIGN(const std::string json, text_of(path));
  return parse_binding(json, path);
}

}  // namespace

Result<ProgramText> read_program_text(const ImportRequest& request) {
  ProgramText out;
  TWINRUN_ASSIGN(const std::string text, text_of(request.program));
  TWINRUN_ASSIGN(out.module, parse_program(text, request.program, HloUse::kLookAt));
  const Result<StepBinding> binding = binding_of(request, out.module);
  if (!binding && !beside(request, request.binding, ".json").empty()) return binding.error();
  out.state = binding ? binding->state.size() : out.module.entry().parameters.size();
  return out;
}

Result<ImportedStep> import_program(const ImportRequest& request) {
  TWINRUN_ASSIGN(const std::string text, text_of(request.program));
  TWINRUN_ASSIGN(const HloModule module, parse_program(text, request.program));
  TWINRUN_ASSIGN(const StepBinding binding, binding_of(request, module));
  TWINRUN_ASSIGN(ImportedStep step, import_step(module, binding));
  TWINRUN_RETURN_IF_ERROR(check_names(step.program));
  return step;
}

Result<Experiment> import_experiment(const ImportRequest& request) {
  TWINRUN_ASSIGN(ImportedStep step, import_program(request));
  const std::string state = beside(request, request.state, ".state.npz", kExported);
  if (state.empty()) {
    return Error{"the initial state is missing", "--state",
                 "a checkpoint, .npz or .safetensors file with " +
                     std::to_string(step.program.state.size()) + " arrays"};
  }
  ImportedRun run;
  TWINRUN_ASSIGN(run.state, read_state(state, step.program));
  TWINRUN_ASSIGN(run.batches,
                 read_batches(beside(request, request.batch, ".batch.npz", kExported), step));
  Experiment e;
  TWINRUN_ASSIGN(e.scenario, settings_of(request.overrides));
  const bool counted = std::ranges::any_of(request.overrides,
                                           [](const auto& o) { return o.first == "train.steps"; });
  Scenario& s = e.scenario;
  s.name = fs::path(request.program).stem().string();
  s.description = "imported from " + fs::path(request.program).filename().string();
  s.file = request.program;
  if (!counted) s.train.steps = static_cast<int64_t>(run.batches.size());
  s.train.batch = step.program.batch;
  s.tpu.cores = 1;
  DigestBuilder state_digest;
  for (const Tensor& t : run.state) state_digest.add(digest_bytes(t.raw(), t.bytes()));
  const Digest data = digest_of(run.batches);
  s.imported =
      fmt::format("format = \"hlo\"\nprogram = {}\nstate = {}\nbatches = {}\nbatches_digest = {}\n",
                  toml_string(digest(step.program).hex()), toml_string(state_digest.finish().hex()),
                  run.batches.size(), toml_string(data.hex()));
  Dataset dataset;
  dataset.digest = data;
  e.data = std::make_shared<const Dataset>(std::move(dataset));
  run.notes = step.notes;
  run.step = std::move(step.program);
  e.imported = std::make_shared<const ImportedRun>(std::move(run));
  return e;
}

}  // namespace twinrun
