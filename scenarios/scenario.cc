// Finds and loads scenarios: from the library by name, else from a file.
#include "scenarios/scenario.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

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
          std::string(name), did_you_mean(stem, names)};
}

Result<std::string> read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{fmt::format("cannot open: {}", std::strerror(errno)), path, ""};
  std::string text(kMaxBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
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
  TWINRUN_ASSIGN(std::string text, read_text(path));
  return NamedText{std::move(text), path};
}

Result<Scenario> parse(Source& source, std::string_view text, const Overrides& overrides) {
  TWINRUN_ASSIGN(source.root, parse_toml(text, source.file));
  TWINRUN_RETURN_IF_ERROR(apply_overrides(source, overrides));
  TWINRUN_RETURN_IF_ERROR(check_names(source));
  Scenario scenario;
  TWINRUN_RETURN_IF_ERROR(read_values(source, scenario));
  TWINRUN_RETURN_IF_ERROR(validate(source, scenario));
  return scenario;
}

}  // namespace

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

}  // namespace twinrun
