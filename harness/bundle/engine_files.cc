// Packs the script files of an exec: engine, and puts their paths into its command when a bundle is
// replayed.
#include "harness/bundle/engine_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <regex>
#include <sstream>

#include "backends/exec/exec_backend.h"
#include "checkpoints/container/array.h"
#include "harness/bundle/private_paths.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxOfAFile = uint64_t{1} << 20;
constexpr size_t kMaxFiles = 16;
constexpr size_t kMaxLine = 1000;  // of an import; the library's search recurs along a line
constexpr std::string_view kOfNames =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

std::string member_of(const std::string& word) {
  std::string name = fs::path(word).filename().string();
  for (char& c : name) {
    if (kOfNames.find(c) == std::string_view::npos) c = '_';
  }
  return std::string(kEngineFolder) + name;
}

// The word without kElsewhere, so that a program is searched beside this one, then in $PATH.
std::string found_here(std::string word) {
  const bool elsewhere = word.starts_with(kElsewhere);
  for (size_t at; (at = word.find(kElsewhere)) != word.npos;) word.erase(at, kElsewhere.size());
  std::error_code unknown;
  const fs::path beside = fs::read_symlink("/proc/self/exe", unknown).parent_path() / word;
  return elsewhere && fs::path(word).filename() == word && fs::is_regular_file(beside, unknown)
             ? beside.string()
             : word;
}

// The files beside a script of Python that its lines import: "import a, b" and "from c import d".
std::vector<std::string> imported_by(const std::string& script, std::string_view text) {
  std::vector<std::string> out;
  static const std::regex import("^[ \\t]*(?:import|from)[ \\t]+([A-Za-z0-9_, \\t]+)");
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (line.size() > kMaxLine || !std::regex_search(line, match, import)) continue;
    std::istringstream names(match[1]);
    for (std::string name; names >> name;) {
      if (name.ends_with(',')) name.pop_back();
      const fs::path file = fs::path(script).parent_path() / (name + ".py");
      std::error_code ignored;
      if (fs::is_regular_file(file, ignored)) out.push_back(file.string());
    }
  }
  return out;
}

}  // namespace

std::string command_word(const std::string& word) {
  if (!word.empty() && word.find_first_of(" \t\"'\\") == std::string::npos) return word;
  std::string out = "\"";
  for (const char c : word) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

PackedEngine pack_engine(const std::string& engine) {
  PackedEngine out;
  if (!engine.starts_with(kExecPlace)) return out;
  std::vector<std::string> words = command_words(engine.substr(kExecPlace.size()));
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string word = words[i];
    std::error_code ignored;
    const bool known = std::ranges::find(out.files, word, &EngineFile::word) != out.files.end();
    if (known || !fs::is_regular_file(word, ignored)) continue;
    const std::string member = member_of(word);
    const auto leave_out = [&](const std::string& why) {
      out.left_out.push_back(fmt::format("{} ({})", word, why));
    };
    if (fs::file_size(word, ignored) > kMaxOfAFile) {
      leave_out("it is larger than 1 MiB");
      continue;
    }
    auto bytes = read_whole_file(word, kMaxOfAFile);
    if (!bytes) {
      leave_out(bytes.error().what);
    } else if (std::ranges::find(*bytes, std::byte{0}) != bytes->end()) {
      leave_out("it is a binary, or not text");
    } else if (!is_engine_member(member) || out.files.size() == kMaxFiles ||
               std::ranges::find(out.files, member, &EngineFile::member) != out.files.end()) {
      leave_out("another file has its name, or there are too many");
    } else {
      if (word.ends_with(".py"))
        std::ranges::move(
            imported_by(word, {reinterpret_cast<const char*>(bytes->data()), bytes->size()}),
            std::back_inserter(words));
      out.files.push_back({word, member});
      out.members.push_back({member, std::move(*bytes), true});
    }
  }
  return out;
}

bool is_engine_member(std::string_view name) {
  if (!name.starts_with(kEngineFolder)) return false;
  name.remove_prefix(kEngineFolder.size());
  return !name.empty() && name != "." && name != ".." && name.size() <= 255 &&
         name.find_first_not_of(kOfNames) == std::string_view::npos;
}

std::string engine_from(const std::string& engine, const std::vector<EngineFile>& files,
                        const std::vector<ZipMember>& members, const std::string& folder) {
  if (!engine.starts_with(kExecPlace)) return engine;
  std::string command;
  for (const std::string& word : command_words(engine.substr(kExecPlace.size()))) {
    std::string now = found_here(word);
    const auto file = std::ranges::find(files, word, &EngineFile::word);
    if (file != files.end()) {
      const auto packed = std::ranges::find(members, file->member, &ZipMember::name);
      const auto here = read_whole_file(word, kMaxOfAFile);
      const bool same = here.ok() && packed != members.end() && *here == packed->bytes;
      now = word;
      if (!same) now = (fs::path(folder) / file->member).string();
    }
    command += (command.empty() ? "" : " ") + command_word(now);
  }
  return std::string(kExecPlace) + command;
}

}  // namespace twinrun
