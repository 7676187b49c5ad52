// Converts weights between checkpoints of twinrun and files of other frameworks.
#include "harness/foreign/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "checkpoints/container/atomic_file.h"
#include "checkpoints/run.h"
#include "harness/experiment/experiment.h"
#include "program/base/names.h"

namespace twinrun {
namespace {

// The Keras class of a layer kind, as Keras's files spell it.
constexpr std::pair<std::string_view, std::string_view> kKerasClasses[] = {
    {"dense", "dense"},
    {"conv2d", "conv2d"},
    {"depthwise_conv2d", "depthwise_conv2d"},
    {"conv2d_transpose", "conv2d_transpose"},
    {"batch_norm", "batch_normalization"},
    {"layer_norm", "layer_normalization"},
    {"group_norm", "group_normalization"},
    {"embedding", "embedding"}};

struct Model {
  ModelOutline outline;
  Checkpoint initial;  // at step 0
};

Result<Model> model_of(const Scenario& scenario) {
  TWINRUN_ASSIGN(const Experiment experiment, make_experiment(scenario));
  const Program program = experiment.whole();
  Model model;
  for (const StateVar& var : program.state) model.outline.names.push_back(var.name);
  for (const LayerSpec& layer : scenario.model.layers) {
    for (const auto& [kind, name] : kKerasClasses) {
      if (layer.kind == kind) model.outline.classes[layer.name] = name;
    }
    // Ours is [k, k, 1, channels x multiplier], Keras's [k, k, channels, multiplier]: the same
    // order in memory.
    const StateVar* kernel = program.find_state(layer.name + "/kernel");
    if (layer.kind == "depthwise_conv2d" && kernel != nullptr) {
      const Dims& dims = kernel->type.dims;
      model.outline.keras_dims[kernel->name] = {dims[0], dims[1], dims[3] / layer.multiplier,
                                                layer.multiplier};
    }
  }
  model.initial = to_checkpoint(program, initial_states(program, scenario.seed), scenario, 0);
  model.initial.scenario = resolved_toml(scenario);
  model.initial.scenario_digest = scenario_digest(scenario).hex();
  return model;
}

Result<WeightsFormat> target_of(const ConvertOptions& options, bool from_ours) {
  if (options.format) return *options.format;
  if (const auto format = format_of_name(options.out)) return *format;
  const bool h5 = options.out.ends_with(".h5");
  if (h5 && !from_ours) return WeightsFormat::kTwinrun;
  return Error{h5 ? "a name that ends in .h5 could be a checkpoint's or a legacy Keras file's"
                  : "the format cannot be determined from this name",
               options.out,
               h5 ? "use --to keras_h5, or end it in .weights.h5 for Keras 3"
                  : "end it in .npz, .npy, .safetensors, .weights.h5 or .h5, or use --to " +
                        join(weights_format_names(), "|")};
}

}  // namespace

Result<Checkpoint> read_ours(const std::string& path, std::string& kind) {
  TWINRUN_ASSIGN(kind, file_kind(path));
  if (kind != "run") return read_checkpoint(path);
  TWINRUN_ASSIGN(RunFile run, read_run(path));
  if (run.checkpoints.empty())
    return Error{"the run holds no checkpoint", path, "name another run"};
  return std::move(run.checkpoints.back());
}

Result<ModelOutline> outline_of(const Checkpoint& checkpoint, const ConvertOptions& options,
                                WeightsFormat format) {
  ModelOutline outline;
  if (format == WeightsFormat::kKerasH5 || format == WeightsFormat::kKeras3) {
    Scenario scenario;
    if (options.scenario) {
      scenario = *options.scenario;
    } else {
      TWINRUN_ASSIGN(scenario, parse_scenario(checkpoint.scenario, options.in));
    }
    TWINRUN_ASSIGN(Model model, model_of(scenario));
    for (const std::string& name : model.outline.names) {
      if (checkpoint.tensors.contains(name)) continue;
      return Error{fmt::format("the checkpoint lacks '{}' of the scenario", name), options.in,
                   "give the scenario that it belongs to"};
    }
    outline = std::move(model.outline);
  }
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (std::ranges::count(outline.names, name) == 0) outline.names.push_back(name);
  }
  return outline;
}

namespace {

Status write_foreign(const Checkpoint& checkpoint, const ConvertOptions& options,
                     WeightsFormat format, const NameMap& map, Conversion& report) {
  TWINRUN_ASSIGN(const ModelOutline outline, outline_of(checkpoint, options, format));
  TWINRUN_ASSIGN(ForeignWeights weights, export_weights(checkpoint, outline, format, map, report));
  weights.metadata = {{"format", "twinrun"},
                      {"contract", std::to_string(checkpoint.contract)},
                      {"engine", checkpoint.engine},
                      {"scenario_digest", checkpoint.scenario_digest},
                      {"seed", std::to_string(checkpoint.seed)},
                      {"step", std::to_string(checkpoint.step)}};
  TWINRUN_ASSIGN(const auto bytes, foreign_bytes(weights, options.out));
  return write_file_atomically(options.out, bytes);
}

// Converts between foreign formats without a model: names and types stay.
Status pass_on(ForeignWeights weights, const ConvertOptions& options, WeightsFormat format,
               Conversion& report) {
  const bool plain = format == WeightsFormat::kNpz || format == WeightsFormat::kNpy ||
                     format == WeightsFormat::kSafetensors;
  if (!plain || options.map) {
    return Error{plain ? "--map needs a model whose weights it names, and none is given"
                       : "the model that these weights belong to is not known",
                 plain ? *options.map : options.in, "add --scenario NAME"};
  }
  if (format != weights.format) weights.metadata.clear();
  weights.format = format;
  for (const NamedArray& array : weights.arrays) {
    const bool widened = array.type == ElementType::kBF16 && format != WeightsFormat::kSafetensors;
    report.rows.push_back({array.name, array.name, describe(array), describe(array), "same name",
                           widened ? "bfloat16 to float32, exact" : ""});
  }
  if (!weights.optimizer.empty()) {
    report.notes.push_back(
        fmt::format("not converted: Keras's {} optimizer variables", weights.optimizer.size()));
  }
  for (const std::string& what : weights.ignored) {
    report.notes.push_back("not understood: " + what);
  }
  TWINRUN_ASSIGN(const auto bytes, foreign_bytes(weights, options.out));
  return write_file_atomically(options.out, bytes);
}

// The step from --step, else from Keras's optimizer, else from the metadata of a file of ours, else
// 0.
int64_t step_of(const ConvertOptions& options, const ForeignWeights& weights) {
  if (options.step) return *options.step;
  if (weights.iterations) return *weights.iterations;
  const auto& metadata = weights.metadata;
  const auto format = metadata.find("format"), step = metadata.find("step");
  int64_t value = 0;
  if (format == metadata.end() || format->second != "twinrun" || step == metadata.end()) return 0;
  const char* end = step->second.data() + step->second.size();
  const auto [at, code] = std::from_chars(step->second.data(), end, value);
  return code == std::errc() && at == end && value >= 0 ? value : 0;
}

}  // namespace

Result<Converted> convert(const ConvertOptions& options) {
  std::error_code ignored;
  if (std::filesystem::equivalent(options.in, options.out, ignored)) {
    return Error{"is both IN and OUT", options.out, "write to another file"};
  }
  TWINRUN_ASSIGN(const bool from_ours, is_twinrun_file(options.in));
  TWINRUN_ASSIGN(const WeightsFormat format, target_of(options, from_ours));
  NameMap map;
  if (options.map) {
    TWINRUN_ASSIGN(map, read_name_map(*options.map));
  }
  Converted done{"", std::string(to_string(format)), {}, std::nullopt};
  if (from_ours) {
    TWINRUN_ASSIGN(Checkpoint checkpoint, read_ours(options.in, done.from));
    done.from = "twinrun " + done.from;
    if (options.step) checkpoint.step = *options.step;
    if (format != WeightsFormat::kTwinrun) {
      TWINRUN_RETURN_IF_ERROR(write_foreign(checkpoint, options, format, map, done.conversion));
      return done;
    }
    if (options.map) {
      return Error{"a conversion between checkpoints renames nothing", *options.map,
                   "leave out --map"};
    }
    for (const auto& [name, tensor] : checkpoint.tensors) {
      const std::string type = to_string(tensor.value.type());
      done.conversion.rows.push_back({name, name, type, type, "same name", ""});
    }
    TWINRUN_RETURN_IF_ERROR(write_checkpoint(options.out, checkpoint));
    done.checkpoint = std::move(checkpoint);
    return done;
  }
  TWINRUN_ASSIGN(ForeignWeights theirs, read_foreign_weights(options.in));
  done.from = to_string(theirs.format);
  if (!options.scenario) {
    if (format == WeightsFormat::kTwinrun) {
      return Error{"a checkpoint belongs to a scenario, and none is given", options.in,
                   "add --scenario NAME"};
    }
    TWINRUN_RETURN_IF_ERROR(pass_on(std::move(theirs), options, format, done.conversion));
    return done;
  }
  TWINRUN_ASSIGN(Model model, model_of(*options.scenario));
  model.initial.step = step_of(options, theirs);
  TWINRUN_ASSIGN(Checkpoint checkpoint,
                 import_weights(std::move(model.initial), model.outline, std::move(theirs), map,
                                options.in, done.conversion));
  if (format == WeightsFormat::kTwinrun) {
    TWINRUN_RETURN_IF_ERROR(write_checkpoint(options.out, checkpoint));
    done.checkpoint = std::move(checkpoint);
    return done;
  }
  Conversion out;
  TWINRUN_RETURN_IF_ERROR(write_foreign(checkpoint, options, format, {}, out));
  for (const Conversion::Row& row : out.rows) {
    const auto it = std::ranges::find(done.conversion.rows, row.ours, &Conversion::Row::ours);
    if (it == done.conversion.rows.end()) continue;
    it->change += (it->change.empty() ? "" : ", ") + ("written as " + row.theirs);
  }
  done.conversion.notes.insert(done.conversion.notes.end(), out.notes.begin(), out.notes.end());
  return done;
}

}  // namespace twinrun
