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

constexpr size_t kMostBytes = 1 << 20;

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
  std::string text(kMostBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMostBytes) {
    return Error{fmt::format("larger than {} bytes: not a scenario", kMostBytes), path, ""};
  }
  return text;
}

}  // namespace

Result<Scenario> load_scenario(std::string_view name_or_path, const Overrides& overrides) {
  if (const auto file = find_in_library(name_or_path)) {
    return parse_scenario(file->text, fmt::format("{}.toml", file->name), overrides);
  }
  const std::string path(name_or_path);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return Error{"this is a folder; allowed: a library scenario or a TOML file", path, ""};
  }
  if (!std::filesystem::exists(path, ignored)) {
    return not_found(name_or_path, path.find('/') != std::string::npos || path.ends_with(".toml"));
  }
  TWINRUN_ASSIGN(const std::string text, read_text(path));
  return parse_scenario(text, path, overrides);
}

Result<Scenario> parse_scenario(std::string_view text, std::string_view file,
                                const Overrides& overrides) {
  Source source;
  source.file = file;
  TWINRUN_ASSIGN(source.root, parse_toml(text, file));
  TWINRUN_RETURN_IF_ERROR(apply_overrides(source, overrides));
  TWINRUN_RETURN_IF_ERROR(check_names(source));
  Scenario scenario;
  TWINRUN_RETURN_IF_ERROR(read_values(source, scenario));
  TWINRUN_RETURN_IF_ERROR(validate(source, scenario));
  return scenario;
}

}  // namespace twinrun
