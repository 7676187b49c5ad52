// Checks that involve several keys, and the defaults that depend on other keys.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "scenarios/model.h"
#include "scenarios/reader.h"
#include "scenarios/suggest.h"

namespace twinrun {
namespace {

constexpr int64_t kProceduralTrain = 4096, kProceduralEval = 1024;

// What a source requires beyond the table of keys. `max_files` 0: any number.
struct SourceRule {
  std::string_view source;
  Dims shape;  // the default; with `only_shape` the only one accepted
  bool only_shape = false;
  int64_t max_classes = 1 << 20;
  bool procedural = false;
  size_t min_files = 0, max_files = 0;
  std::string_view files_fix = {};
  int64_t window = 0, vocabulary = 0;  // the defaults
};

const SourceRule& rule_of(std::string_view source) {
  static const SourceRule rules[] = {
      {"digits", {28, 28, 1}, true, 10, true},
      {"idx", {28, 28, 1}, false, 256, false, 0, 2, "[\"IMAGES\", \"LABELS\"]"},
      {"cifar10", {32, 32, 3}, true, 10},
      {"images32", {32, 32, 3}, true, 10, true},
      {"tfrecord", {}, false, 1 << 20, false, 1, 0, "[\"train.tfrecord\"]"},
      {"npy", {}, false, 1 << 20, false, 2, 3, "[\"features.npy\", \"labels.npy\"]"},
      {"npz", {}, false, 1 << 20, false, 1, 1, "[\"data.npz\"]"},
      {"hdf5", {}, false, 1 << 20, false, 1, 1, "[\"data.h5\"]"},
      {"text", {}, false, 1 << 20, false, 1, 1, "[\"input.txt\"]", 64},
      {"text_synthetic", {}, false, 1 << 20, true, 0, 0, "", 64},
      {"phrases", {}, false, 64, true, 0, 0, "", 16, 64},
  };
  return *std::ranges::find(rules, source, &SourceRule::source);
}

Status validate_files(const Source& source, const DataSpec& data, const SourceRule& rule) {
  const auto check = [&](const char* key, const std::vector<std::string>& files,
                         size_t least) -> Status {
    const bool too_many = rule.max_files > 0 && files.size() > rule.max_files;
    if (files.size() >= least && !too_many) return Ok{};
    std::string allowed = fmt::format("{}", rule.min_files);
    if (rule.max_files == 0) allowed = fmt::format("at least {}", rule.min_files);
    if (rule.max_files > rule.min_files) allowed += fmt::format(" to {}", rule.max_files);
    if (data.source == "idx") allowed = "2";
    return Error{fmt::format("{} names {} files; allowed: {}", key, files.size(), allowed),
                 source.where("data", key), fmt::format("{} = {}", key, rule.files_fix)};
  };
  const size_t least = data.source == "idx" && !data.files.empty() ? 2 : rule.min_files;
  TWINRUN_RETURN_IF_ERROR(check("files", data.files, least));
  if (data.eval_files.empty()) return Ok{};
  return check("eval_files", data.eval_files, rule.min_files);
}

Status validate_data(const Source& source, Scenario& s) {
  DataSpec& data = s.data;
  const SourceRule& rule = rule_of(data.source);
  if (data.shape.empty()) data.shape = rule.shape;
  const bool image = !rule.shape.empty();
  if (image ? data.shape.size() != 3 : data.shape.size() > 8) {
    return Error{fmt::format("shape has {} sizes; allowed: {}", data.shape.size(),
                             image ? "3 (height, width, channels)" : "1 to 8"),
                 source.where("data", "shape"), image ? "shape = [28, 28, 1]" : ""};
  }
  if (rule.only_shape && data.shape != rule.shape) {
    return Error{fmt::format("shape is {}; source {} has {}", to_string(data.shape), data.source,
                             to_string(rule.shape)),
                 source.where("data", "shape"), "leave shape out"};
  }
  if (data.classes > rule.max_classes) {
    return Error{fmt::format("classes is {}; source {} has 2 to {}", data.classes, data.source,
                             rule.max_classes),
                 source.where("data", "classes"), fmt::format("classes = {}", rule.max_classes)};
  }
  TWINRUN_RETURN_IF_ERROR(validate_files(source, data, rule));
  if (data.source == "tfrecord" && data.window > 0 && data.vocabulary == 0) {
    return Error{"window is set, but vocabulary is not: only token ids are padded",
                 source.where("data", "window"), "set vocabulary, or remove window"};
  }
  if (rule.vocabulary == 0 && data.vocabulary > 0 && data.shape.size() > 1) {
    return Error{fmt::format("shape has {} sizes; token ids (vocabulary) have one, their number",
                             data.shape.size()),
                 source.where("data", "shape"), "leave shape out"};
  }
  // A path must contain '.' or '/', so that the typo "memroy" is an error and not a file name.
  if (data.cache != "none" && data.cache != "memory" &&
      data.cache.find_first_of("./") == std::string::npos) {
    return Error{
        fmt::format("cache is \"{}\"; allowed: none, memory, or the path of a file (with a "
                    "\".\" or \"/\" in it)",
                    data.cache),
        source.where("data", "cache"), suggested(data.cache, {"none", "memory"})};
  }
  if (data.window == 0) data.window = rule.window;
  if (data.vocabulary == 0) data.vocabulary = rule.vocabulary;
  if (data.eval_feature.empty() != data.eval_label.empty()) {
    const char* there = data.eval_feature.empty() ? "eval_label" : "eval_feature";
    const char* absent = data.eval_feature.empty() ? "eval_feature" : "eval_label";
    return Error{fmt::format("{} is set, but {} is not", there, absent),
                 source.where("data", there), fmt::format("set both, or remove {}", there)};
  }
  if (rule.procedural && data.train == 0) data.train = kProceduralTrain;
  if (rule.procedural && data.eval == 0) data.eval = kProceduralEval;
  return Ok{};
}

// A layer may read only earlier layers, and only `add` and `concat` may read several.
Status check_input(const Source& source, const Scenario& s, size_t i,
                   const std::map<std::string, int>& before) {
  const LayerSpec& layer = s.model.layers[i];
  const bool several = layer.kind == "add" || layer.kind == "concat";
  const std::string where = source.where_layer(i, layer, "input");
  if (several && layer.input.size() < 2) {
    return Error{fmt::format("\"{}\" ({}) reads {} layer(s); allowed: at least 2", layer.name,
                             layer.kind, layer.input.size()),
                 where, "input = [\"ONE\", \"OTHER\"]"};
  }
  if (!several && layer.input.size() > 1) {
    return Error{fmt::format("\"{}\" ({}) reads {} layers; allowed: 1", layer.name, layer.kind,
                             layer.input.size()),
                 where, "join them with a layer of kind \"add\" or \"concat\" first"};
  }
  for (const std::string& name : layer.input) {
    if (name == "data" || (name != layer.name && before.contains(name))) continue;
    std::vector<std::string_view> names{"data"};
    for (size_t k = 0; k < i; ++k) names.push_back(s.model.layers[k].name);
    return Error{fmt::format("\"{}\" reads \"{}\"; allowed: layers before it: {}", layer.name, name,
                             fmt::join(names, ", ")),
                 where, suggested(name, names)};
  }
  return Ok{};
}

// A GAN (loss `gan`) has a generator and a discriminator; other models have no parts.
Status check_parts(const Source& source, const Scenario& s) {
  const auto has = [&](std::string_view part) {
    return std::ranges::any_of(s.model.layers, [&](const LayerSpec& l) { return l.part == part; });
  };
  const bool gan = s.loss.kind == "gan";
  if (gan && (!has("generator") || !has("discriminator") || has(""))) {
    return Error{"a GAN's layers are its generator's and its discriminator's",
                 source.where("model", "layers"),
                 "give every layer part = \"generator\" or part = \"discriminator\""};
  }
  if (!gan && (has("generator") || has("discriminator"))) {
    return Error{fmt::format("layers have parts, but the loss is {}", s.loss.kind),
                 source.where("loss", "kind"), "loss.kind = \"gan\", or remove `part`"};
  }
  return Ok{};
}

Status validate_layers(const Source& source, Scenario& s) {
  if (s.model.layers.empty()) {
    return Error{
        "the model has no layers", source.where("model", "layers"),
        "add [[model.layers]] with kind = \"flatten\", then one with kind = \"dense\" and units"};
  }
  std::map<std::string, int> lines;
  for (size_t i = 0; i < s.model.layers.size(); ++i) {
    LayerSpec& layer = s.model.layers[i];
    if (layer.name.find_first_not_of(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") !=
            std::string::npos ||
        layer.name.size() > 64) {
      return Error{fmt::format("name is \"{}\"; allowed: up to 64 letters, digits, _ and -",
                               layer.name.substr(0, 80)),
                   source.where_layer(i, layer, "name"), ""};
    }
    const auto [first, fresh] = lines.emplace(layer.name, layer.line);
    if (!fresh) {
      return Error{
          fmt::format(
              "two layers are called \"{}\"{}", layer.name,
              first->second > 0 ? fmt::format("; the first is in line {}", first->second) : ""),
          source.where_layer(i, layer, "name"), "give this one another name"};
    }
    if (layer.stride == 0) layer.stride = layer.kind.ends_with("_pool") ? layer.window : 1;
    if (layer.init.empty()) {
      layer.init = layer.kind.ends_with("embedding") ? "random_uniform" : "glorot_uniform";
    }
    TWINRUN_RETURN_IF_ERROR(check_input(source, s, i, lines));
  }
  return check_parts(source, s);
}

Status validate_batch(const Source& source, const Scenario& s) {
  const int64_t batch = s.train.batch, cores = s.tpu.cores;
  if (batch % cores != 0) {
    const int64_t below = batch / cores * cores, above = below + cores;
    const std::string fix = below > 0 ? fmt::format("train.batch = {} or {}", below, above)
                                      : fmt::format("train.batch = {}", above);
    // Report the key that --set changed: the file's batch was right for the file's cores.
    const std::string by_cores = source.where("tpu", "cores");
    const std::string by_batch = source.where("train", "batch");
    const bool cores_set = by_cores.starts_with("--set") && !by_batch.starts_with("--set");
    TWINRUN_RETURN_IF_ERROR(source.refuse(
        Refusal::kUnevenBatch,
        {fmt::format("train.batch is {}, which {} cores (tpu.cores) cannot share evenly; allowed: "
                     "multiples of {}",
                     batch, cores, cores),
         cores_set ? by_cores : by_batch, fix}));
  }
  if (s.data.train > 0 && batch > s.data.train) {
    return source.refuse(
        Refusal::kNoFullBatch,
        {fmt::format("batch is {}, but data.train has {} samples: no batch is ever full", batch,
                     s.data.train),
         source.where("train", "batch"),
         fmt::format("batch = {}, or raise data.train", s.data.train / cores * cores)});
  }
  return Ok{};
}

Status validate_schedule(const Source& source, const Scenario& s) {
  const OptimizerConfig& c = s.optimizer;
  if (c.schedule != "piecewise") return Ok{};
  if (c.boundaries.empty() || c.boundaries.size() != c.values.size()) {
    return Error{fmt::format("values has {} rates for {} boundaries; allowed: one after each "
                             "boundary, and at least one",
                             c.values.size(), c.boundaries.size()),
                 source.where("optimizer", "values"),
                 "lr is the rate up to the first boundary and does not count"};
  }
  for (size_t i = 1; i < c.boundaries.size(); ++i) {
    if (c.boundaries[i] > c.boundaries[i - 1]) continue;
    return Error{fmt::format("boundaries has {} after {}; allowed: ascending steps",
                             c.boundaries[i], c.boundaries[i - 1]),
                 source.where("optimizer", "boundaries"), "sort them, each once"};
  }
  return Ok{};
}

Status validate_optimizer(const Source& source, Scenario& s) {
  fill_optimizer_defaults(s.optimizer);
  if (s.optimizer.ema_eval && s.optimizer.ema == 0) {
    return Error{"ema_eval is true, but ema is 0: no average of the weights is kept",
                 source.where("optimizer", "ema_eval"), "add ema = 0.999"};
  }
  if (s.train.steps > 0 && s.train.accumulate > s.train.steps) {
    return Error{fmt::format("accumulate is {}, but train.steps is {}: no update is ever made",
                             s.train.accumulate, s.train.steps),
                 source.where("train", "accumulate"),
                 fmt::format("accumulate = {} or less", s.train.steps)};
  }
  return Ok{};
}

// Whether a subject is an outlier is judged by the spread of the conforming engines; the spread of
// a few says nothing.
Status validate_ensemble(const Source& source, const Scenario& s) {
  constexpr int kFewest = 5;
  if (s.diagnose.ensemble == 0 || s.diagnose.ensemble >= kFewest) return Ok{};
  return Error{
      fmt::format("ensemble is {}; allowed: 0 (none), or {} to 1000", s.diagnose.ensemble, kFewest),
      source.where("diagnose", "ensemble"), fmt::format("ensemble = {}", kFewest)};
}

Status validate_slow_core(const Source& source, const Scenario& s) {
  if (s.tpu.slow_core < s.tpu.cores) return Ok{};
  return Error{fmt::format("slow_core is {}, but there are {} cores (tpu.cores); allowed: -1 "
                           "(none), or 0 to {}",
                           s.tpu.slow_core, s.tpu.cores, s.tpu.cores - 1),
               source.where("tpu", "slow_core"), fmt::format("slow_core = {}", s.tpu.cores - 1)};
}

}  // namespace

Status validate(const Source& source, Scenario& s) {
  s.file = source.file;
  if (s.name.empty()) s.name = std::filesystem::path(source.file).stem().string();
  TWINRUN_RETURN_IF_ERROR(validate_data(source, s));
  TWINRUN_RETURN_IF_ERROR(validate_layers(source, s));
  TWINRUN_RETURN_IF_ERROR(validate_schedule(source, s));
  TWINRUN_RETURN_IF_ERROR(validate_optimizer(source, s));
  TWINRUN_RETURN_IF_ERROR(validate_ensemble(source, s));
  TWINRUN_RETURN_IF_ERROR(validate_slow_core(source, s));
  return validate_batch(source, s);
}

}  // namespace twinrun
