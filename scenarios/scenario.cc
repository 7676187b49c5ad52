// Finds and loads scenarios: from the library by name, else from a file.
#include "scenarios/scenario.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include "program/base/names.h"
#include "program/base/os_error.h"
#include "scenarios/keys.h"
#include "scenarios/library.h"
#include "scenarios/reader.h"
#include "scenarios/suggest.h"

namespace twinrun {
namespace {

constexpr size_t kMaxBytes = 1 << 20;

std::optional<LibraryFile> find_in_library(std::string_view name) {
  for (const LibraryFile& file : library_files()) {
    if (file.name == name) return file;
  }
  return std::nullopt;
}

Error not_found(std::string_view name, bool is_path) {
  std::vector<std::string_view> names;
  for (const LibraryFile& file : library_files()) names.push_back(file.name);
  const std::string stem = std::filesystem::path(name).stem().string();
  return {fmt::format("{}; library scenarios: {}",
                      is_path ? "no such file" : "no scenario and no file of this name",
                      fmt::join(names, ", ")),
          std::string(name), suggested(stem, names)};
}

Result<std::string> read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const auto failure = [&](const char* action, int code) {
    return Error{fmt::format("cannot {}: {}", action, std::strerror(code)), path, "",
                 kind_of_failure(code)};
  };
  if (!in) return failure("open", errno);
  std::string text(kMaxBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return failure("read", EIO);  // what came before would be another scenario
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxBytes) {
    return Error{
        fmt::format("the file is larger than {} bytes and cannot be a scenario", kMaxBytes), path,
        ""};
  }
  return text;
}

struct NamedText {
  std::string text, file;
};

Result<NamedText> find_text(std::string_view name_or_path) {
  if (const auto file = find_in_library(name_or_path))
    return NamedText{std::string(file->text), fmt::format("{}.toml", file->name)};
  const std::string path(name_or_path);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return Error{"this is a folder; allowed: a library scenario or a TOML file", path, ""};
  }
  if (!std::filesystem::exists(path, ignored)) {
    return not_found(name_or_path, path.find('/') != std::string::npos || path.ends_with(".toml"));
  }
  // Opening a pipe would wait for somebody to write into it.
  if (!std::filesystem::is_regular_file(path, ignored))
    return Error{"is not a regular file; allowed: a library scenario or a TOML file", path, ""};
  TWINRUN_ASSIGN(std::string text, read_text(path));
  return NamedText{std::move(text), path};
}

// The lines of [program], in the order in which harness/experiment/imported.cc writes them. The
// last ones are there only where held-out batches, or the step on one device, were given.
constexpr std::string_view kProgramKeys[] = {"format",          "program",        "state",
                                             "batches",         "batches_digest", "held_out",
                                             "held_out_digest", "whole"};

// A text that has [program] is that of a run of an imported program: no rule about data, model,
// loss and optimizer applies. Takes the table out of the tree and returns its lines.
Result<std::string> take_program(Source& source) {
  const auto wrong = [&](const Node& node, std::string_view key) {
    return Error{fmt::format("{} is {}; [program] is written by twinrun and has {}", key,
                             describe(node), fmt::join(kProgramKeys, ", ")),
                 source.where(node, fmt::format("program.{}", key)),
                 "to run a program: twinrun train --program FILE"};
  };
  auto& members = source.root.members;
  const auto found = std::ranges::find(members, "program", &Member::name);
  if (found == members.end()) return std::string();
  if (found->node.kind != Node::Kind::kTable) return wrong(found->node, "program");
  std::string lines;
  std::set<std::string_view> taken;
  for (const std::string_view key : kProgramKeys) {
    const Node* node = found->node.find(key);
    if (node == nullptr) continue;
    const bool count = key == "batches" || key == "held_out";
    if (node->kind != (count ? Node::Kind::kInteger : Node::Kind::kString))
      return wrong(*node, key);
    lines += fmt::format("{} = {}\n", key,
                         count ? std::to_string(node->integer) : toml_string(node->text));
    taken.insert(key);
  }
  for (const auto& [key, node] : found->node.members) {
    if (std::ranges::find(kProgramKeys, key) == std::end(kProgramKeys)) return wrong(node, key);
  }
  // The held-out batches and the step on one device are there only where they were given.
  const bool pair = taken.contains("held_out") == taken.contains("held_out_digest");
  const auto optional =
      taken.count("held_out") + taken.count("held_out_digest") + taken.count("whole");
  if (!pair || taken.size() != 5 + optional) return wrong(found->node, "program");
  members.erase(found);
  return lines;
}

Result<Scenario> parse(Source& source, std::string_view text, const Overrides& overrides) {
  TWINRUN_ASSIGN(source.root, parse_toml(text, source.file));
  Scenario scenario;
  TWINRUN_ASSIGN(scenario.imported, take_program(source));
  if (!scenario.imported.empty()) TWINRUN_RETURN_IF_ERROR(check_keys_of_program(overrides));
  TWINRUN_RETURN_IF_ERROR(apply_overrides(source, overrides));
  TWINRUN_RETURN_IF_ERROR(check_names(source));
  TWINRUN_RETURN_IF_ERROR(read_values(source, scenario));
  if (!scenario.imported.empty()) {
    scenario.file = source.file;
    return scenario;
  }
  TWINRUN_RETURN_IF_ERROR(validate(source, scenario));
  return scenario;
}

}  // namespace

Status check_keys_of_program(const Overrides& overrides) {
  static const std::vector<std::string> known = {"seed",
                                                 "train.steps",
                                                 "train.log_every",
                                                 "train.eval_every",
                                                 "train.checkpoint_every",
                                                 "tpu.precision",
                                                 "tpu.poison",
                                                 "diagnose.probe",
                                                 "diagnose.ensemble",
                                                 "diagnose.faults",
                                                 "diagnose.margin",
                                                 "diagnose.seeds",
                                                 "diagnose.max_seeds"};
  for (const auto& [key, value] : overrides) {
    if (std::ranges::find(known, key) == known.end())
      return Error{fmt::format("'{}' has no meaning for an imported program (allowed: {})", key,
                               join(known, ", ")),
                   "--set", did_you_mean(key, known)};
  }
  return Ok{};
}

Result<Scenario> load_scenario(std::string_view name_or_path, const Overrides& overrides) {
  TWINRUN_ASSIGN(const NamedText found, find_text(name_or_path));
  return parse_scenario(found.text, found.file, overrides);
}

Result<Scenario> parse_scenario(std::string_view text, std::string_view file,
                                const Overrides& overrides) {
  Source source;
  source.file = file;
  return parse(source, text, overrides);
}

Result<ReadScenario> read_scenario(std::string_view name_or_path, const Overrides& overrides) {
  TWINRUN_ASSIGN(const NamedText found, find_text(name_or_path));
  ReadScenario read;
  read.source.file = found.file;
  read.source.refused = &read.refused;
  TWINRUN_ASSIGN(read.scenario, parse(read.source, found.text, overrides));
  read.source.refused = nullptr;
  return read;
}

std::vector<size_t> hidden_layers(const ModelSpec& model) {
  std::vector<size_t> found;
  for (size_t i = 0; i < model.layers.size(); ++i)
    if (model.layers[i].features() > 0) found.push_back(i);
  if (!found.empty()) found.pop_back();
  return found;
}

}  // namespace twinrun
