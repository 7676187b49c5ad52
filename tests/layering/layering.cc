// The table of layers (which folder may include which), and the checks of the sources against it
// and against the other rules of docs/developers/architecture.md.
#include "tests/layering/layering.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <sstream>

namespace twinrun::layering {
namespace {

constexpr int kMaxLines = 600;

// A folder of the tree. It may include itself, the folders in `stands_on` and those that these
// stand on in turn, and the folders in `sees` with all folders below them.
struct Layer {
  std::string_view folder;
  std::vector<std::string_view> stands_on;
  std::vector<std::string_view> sees;
};

// The top-level folders of the library that harness stands on.
const std::vector<std::string_view>& rooms_below_harness() {
  static const std::vector<std::string_view> rooms = {"program",  "device",      "scenarios",
                                                      "backends", "checkpoints", "reports"};
  return rooms;
}

const std::vector<Layer>& layers() {
  const std::vector<std::string_view>& rooms = rooms_below_harness();
  static const std::vector<Layer> all = {
      {"program/base", {}, {}},
      {"program", {}, {}},  // ops.def
      {"program/ops", {"program/base", "program"}, {}},
      {"program/graph", {"program/ops"}, {}},
      {"program/analysis", {"program/graph"}, {}},
      {"program/text", {"program/graph"}, {}},
      {"program/import", {"program/graph"}, {}},
      {"device", {"program/analysis"}, {}},
      {"checkpoints/container", {"program/base"}, {}},
      {"checkpoints", {"checkpoints/container", "program/graph"}, {}},
      {"checkpoints/interchange", {"checkpoints"}, {}},
      {"scenarios/data", {"program/base"}, {"checkpoints/container"}},
      {"scenarios", {"program/graph", "scenarios/data"}, {}},
      {"backends/kernels", {"program/analysis"}, {}},
      {"backends/core", {"backends/kernels"}, {}},
      {"backends/cpu", {"backends/core"}, {}},
      {"backends/tpu", {"backends/core", "device"}, {}},
      {"backends/oracle", {"backends/core"}, {}},
      {"backends/aten", {"backends/oracle"}, {}},
      {"backends/radii", {"backends/oracle"}, {}},
      {"backends/variants", {"backends/core"}, {}},
      {"backends/faults", {"backends/core", "device"}, {}},
      {"backends/skeleton", {"backends/core"}, {}},
      {"backends", {"backends/cpu", "backends/tpu", "backends/oracle", "backends/variants"}, {}},
      {"backends/exec", {"backends", "program/text"}, {"checkpoints"}},
      {"backends/mpi", {"backends/core"}, {}},
      {"reports", {"program/base", "checkpoints/container"}, {}},
      {"harness/host", {}, rooms},
      {"harness/experiment", {"harness/host"}, rooms},
      {"harness/tensors", {"harness/experiment"}, rooms},
      {"harness/effect", {"harness/experiment"}, rooms},
      {"harness/run", {"harness/tensors"}, rooms},
      {"harness/lockstep", {"harness/run"}, rooms},
      {"harness/sharding", {"harness/lockstep"}, rooms},
      {"harness/envelope", {"harness/lockstep"}, rooms},
      {"harness/identify", {"harness/envelope", "harness/sharding"}, rooms},
      {"harness/search", {"harness/host"}, rooms},
      {"harness/diagnose", {"harness/effect", "harness/identify"}, rooms},
      {"harness/gate", {"harness/effect", "harness/identify"}, rooms},
      {"harness/trace", {"harness/tensors"}, rooms},
      {"harness/bisect", {"harness/diagnose", "harness/search", "harness/trace"}, rooms},
      {"harness/bundle", {"harness/diagnose", "harness/module", "harness/trace"}, rooms},
      {"harness/drill", {"harness/diagnose"}, rooms},
      {"harness/profile", {"harness/lockstep"}, rooms},
      {"harness/xplane", {"harness/host"}, rooms},
      {"harness/module", {"harness/tensors"}, rooms},
      {"harness/doctor", {"harness/run"}, rooms},
      {"harness/check", {"harness/experiment"}, rooms},
      {"harness/foreign", {"harness/run"}, rooms},
      {"harness/diff", {"harness/foreign"}, rooms},
      {"harness/cli",
       {"harness/bisect", "harness/bundle", "harness/check", "harness/diff", "harness/doctor",
        "harness/gate", "harness/module", "harness/profile", "harness/trace", "harness/xplane"},
       rooms},
      {"harness/developers", {"harness/cli", "harness/drill"}, rooms},
      {"tests/reference", {"program/graph"}, {}},
  };
  return all;
}

bool is_below(std::string_view path, std::string_view folder) {
  return path == folder || (path.starts_with(folder) && path[folder.size()] == '/');
}

// The row of the longest folder that the path is in.
const Layer* find_layer(std::string_view path) {
  const Layer* found = nullptr;
  for (const Layer& layer : layers()) {
    if (is_below(path, layer.folder) && (!found || layer.folder.size() > found->folder.size()))
      found = &layer;
  }
  return found;
}

bool stands_on(const Layer& from, const Layer& to) {
  if (from.folder == to.folder) return true;
  return std::ranges::any_of(from.stands_on, [&](std::string_view folder) {
    const Layer* const next = find_layer(folder);
    return next != nullptr && stands_on(*next, to);
  });
}

bool may_include(const Layer& from, const Layer& to) {
  return stands_on(from, to) || std::ranges::any_of(from.sees, [&](std::string_view room) {
           return is_below(to.folder, room);
         });
}

bool is_cpp(std::string_view path) {
  return path.ends_with(".h") || path.ends_with(".cc") || path.ends_with(".def");
}

// Whether a path is in a top-level folder of the library, not in tests/, bench/ or adapters/.
bool is_room(std::string_view path) {
  return is_below(path, "harness") ||
         std::ranges::any_of(rooms_below_harness(),
                             [&](std::string_view room) { return is_below(path, room); });
}

std::string folder_of(const std::string& path) {
  return std::filesystem::path(path).parent_path().generic_string();
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

struct Include {
  int line = 0;
  bool quoted = false;
  std::string path;
};

std::vector<Include> includes_of(std::string_view text) {
  std::vector<Include> found;
  std::istringstream lines(strip(text, true));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    size_t at = line.find_first_not_of(" \t");
    if (at == std::string::npos || line[at] != '#') continue;
    at = line.find_first_not_of(" \t", at + 1);
    if (at == std::string::npos || line.compare(at, 7, "include") != 0) continue;
    at = line.find_first_of("\"<", at + 7);
    if (at == std::string::npos) continue;
    const bool quoted = line[at] == '"';
    const size_t end = line.find(quoted ? '"' : '>', at + 1);
    if (end != std::string::npos)
      found.push_back({number, quoted, line.substr(at + 1, end - at - 1)});
  }
  return found;
}

// The path from the root that an include in the file `from` refers to, if it is one of our files.
// The include may be written from the root or from the file's own folder.
std::optional<std::string> resolve(const Files& files, const std::string& from,
                                   const Include& include) {
  if (find_layer(include.path) || include.path.starts_with("tests/") ||
      include.path.starts_with("bench/")) {
    return include.path;
  }
  const std::string beside = (std::filesystem::path(from).parent_path() / include.path)
                                 .lexically_normal()
                                 .generic_string();
  if (include.quoted && files.contains(beside)) return beside;
  return std::nullopt;
}

// The lines of `code` on which `word` occurs as a whole identifier (it may contain "::"). With
// `called`, only calls count.
std::vector<int> lines_with_word(const std::string& code, std::string_view word, bool called) {
  std::vector<int> found;
  for (size_t at = code.find(word); at != std::string::npos; at = code.find(word, at + 1)) {
    if (at > 0 && is_word(code[at - 1])) continue;
    size_t end = at + word.size();
    if (end < code.size() && is_word(code[end])) continue;
    if (called) {
      // A member function such as `loop.exit(...)` is not the function of the C library.
      if (at > 0 && (code[at - 1] == '.' || (at > 1 && code[at - 2] == '-' && code[at - 1] == '>')))
        continue;
      while (end < code.size() && std::isspace(static_cast<unsigned char>(code[end]))) ++end;
      if (end >= code.size() || code[end] != '(') continue;
    }
    found.push_back(1 + static_cast<int>(std::count(
                            code.begin(), code.begin() + static_cast<int64_t>(at), '\n')));
  }
  return found;
}

bool is_isa_file(std::string_view path) {
  return path.starts_with("backends/kernels/") &&
         (path.ends_with("_avx2.cc") || path.ends_with("_avx512.cc") ||
          path.ends_with("_avx512bf16.cc") || path.ends_with("_amx.cc"));
}

}  // namespace

Files read_tree(const std::string& root) {
  namespace fs = std::filesystem;
  Files files;
  std::vector<std::string_view> tops = rooms_below_harness();
  tops.insert(tops.end(), {"harness", "tests", "bench", "adapters"});
  for (const std::string_view room : tops) {
    const fs::path top = fs::path(root) / room;
    if (!fs::is_directory(top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(top)) {
      const std::string path = entry.path().lexically_relative(root).generic_string();
      if (!entry.is_regular_file() || !(is_cpp(path) || path.ends_with(".py"))) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      files[path] = std::string(std::istreambuf_iterator<char>(in), {});
    }
  }
  return files;
}

std::string strip(std::string_view text, bool keep_strings) {
  std::string out(text);
  const auto blank = [&](size_t from, size_t to) {
    for (size_t i = from; i < std::min(to, out.size()); ++i) {
      if (out[i] != '\n') out[i] = ' ';
    }
  };
  size_t i = 0;
  while (i < text.size()) {
    const std::string_view rest = text.substr(i);
    const bool in_word = i > 0 && is_word(text[i - 1]);
    if (rest.starts_with("//")) {
      const size_t end = std::min(text.find('\n', i), text.size());
      blank(i, end);
      i = end;
    } else if (rest.starts_with("/*")) {
      const size_t close = text.find("*/", i + 2);
      const size_t end = close == std::string_view::npos ? text.size() : close + 2;
      blank(i, end);
      i = end;
    } else if (rest.starts_with("R\"") && !in_word && rest.find('(') != std::string_view::npos) {
      const size_t open = rest.find('(');
      const std::string close = ")" + std::string(rest.substr(2, open - 2)) + "\"";
      const size_t found = rest.find(close, open);
      const size_t end = found == std::string_view::npos ? text.size() : i + found + close.size();
      if (!keep_strings) blank(i + 2, end - 1);
      i = end;
    } else if (rest[0] == '"' || (rest[0] == '\'' && !in_word)) {  // 1'000 is a number
      size_t end = i + 1;
      while (end < text.size() && text[end] != rest[0] && text[end] != '\n')
        end += text[end] == '\\' ? 2 : 1;
      if (!keep_strings) blank(i + 1, end);
      i = end + 1;
    } else {
      ++i;
    }
  }
  return out;
}

std::string_view layer_of(std::string_view path) {
  const Layer* layer = find_layer(path);
  return layer ? layer->folder : "";
}

std::vector<Violation> check_arrows(const Files& files) {
  std::vector<Violation> out;
  for (const auto& [file, text] : files) {
    const Layer* from = find_layer(file);
    if (!from || !is_cpp(file)) continue;
    for (const Include& include : includes_of(text)) {
      const auto target = resolve(files, file, include);
      if (!target) {
        if (include.quoted) {
          out.push_back(
              {file, include.line,
               "\"" + include.path +
                   "\" is no file of ours: <> for libraries, else the path from the root"});
        }
        continue;
      }
      const Layer* to = find_layer(*target);
      if (!to) {
        out.push_back(
            {file, include.line, "a room includes " + *target + ", which is outside the rooms"});
      } else if (!may_include(*from, *to)) {
        out.push_back({file, include.line,
                       std::string(from->folder) + " may not include " + std::string(to->folder) +
                           ": " + *target});
      } else if (file.starts_with("harness/diagnose/classify") && is_below(*target, "backends") &&
                 *target != "backends/core/backend.h" && *target != "backends/oracle/oracle.h") {
        out.push_back({file, include.line,
                       "the classifier knows an engine by its capabilities only: " + *target});
      }
    }
  }
  return out;
}

std::vector<Violation> check_rows(const Files& files) {
  std::vector<Violation> out;
  for (const auto& [file, text] : files) {
    const std::string folder = folder_of(file);
    if (is_cpp(file) && is_room(file) && layer_of(file) != folder)
      out.push_back({file, 0, folder + " has no row of its own in the table of layers"});
  }
  return out;
}

std::vector<Violation> check_circles(const Files& files) {
  // includes[a][b]: a file of folder a that includes a file of folder b.
  std::map<std::string, std::map<std::string, std::string>> includes;
  for (const auto& [file, text] : files) {
    if (!is_cpp(file) || !is_room(file)) continue;
    const std::string from = folder_of(file);
    for (const Include& include : includes_of(text)) {
      const auto target = resolve(files, file, include);
      if (!target || !is_room(*target)) continue;
      const std::string to = folder_of(*target);
      if (to != from) includes[from].try_emplace(to, file);
    }
  }
  std::vector<Violation> out;
  std::vector<std::string> way;
  std::set<std::string> done;
  const std::function<void(const std::string&)> visit = [&](const std::string& folder) {
    if (const auto seen = std::ranges::find(way, folder); seen != way.end()) {
      std::string circle;
      for (auto it = seen; it != way.end(); ++it) circle += *it + " -> ";
      out.push_back({includes[way.back()][folder], 0, "a circle of folders: " + circle + folder});
      return;
    }
    if (done.contains(folder)) return;
    way.push_back(folder);
    for (const auto& [to, file] : includes[folder]) visit(to);
    way.pop_back();
    done.insert(folder);
  };
  std::vector<std::string> folders;
  for (const auto& [folder, to] : includes) folders.push_back(folder);
  for (const std::string& folder : folders) visit(folder);
  return out;
}

std::vector<Violation> check_speech(const Files& files) {
  struct Word {
    std::string_view text;
    bool called;
  };
  // Not listed, hence allowed: std::snprintf, which writes to a buffer, and _exit, which ends a
  // forked child.
  static constexpr std::array<Word, 17> kWords = {{{"std::cout", false},
                                                   {"std::cerr", false},
                                                   {"std::clog", false},
                                                   {"std::cin", false},
                                                   {"stdout", false},
                                                   {"stderr", false},
                                                   {"printf", true},
                                                   {"vprintf", true},
                                                   {"puts", true},
                                                   {"putchar", true},
                                                   {"fmt::print", false},
                                                   {"fmt::println", false},
                                                   {"exit", true},
                                                   {"quick_exit", true},
                                                   {"getopt", true},
                                                   {"getopt_long", true},
                                                   {"argc", false}}};
  std::vector<Violation> out;
  for (const auto& [file, text] : files) {
    const std::string_view layer = layer_of(file);
    if (layer.empty() || !is_cpp(file)) continue;
    if (layer == "harness/cli" || layer == "harness/developers") {
      // The printable form of what is printed is made in one file.
      if (file.starts_with("harness/cli/output.")) continue;
      const std::string code = strip(text, false);
      for (const std::string_view word :
           {"std::cout", "std::cerr", "std::clog", "printf", "fprintf", "vprintf", "vfprintf",
            "puts", "fputs", "putchar", "putc", "fputc", "fwrite", "fmt::print", "fmt::println"}) {
        for (int line : lines_with_word(code, word, !word.starts_with("std::")))
          out.push_back({file, line, "only harness/cli/output.cc prints: " + std::string(word)});
      }
      continue;
    }
    for (const Include& include : includes_of(text)) {
      // backends/exec uses this library to split its command into shell words.
      const bool options =
          include.path.starts_with("boost/program_options") && layer != "backends/exec";
      if (include.path == "iostream" || options || include.path == "getopt.h") {
        out.push_back({file, include.line, "only harness/cli may include <" + include.path + ">"});
      }
    }
    const std::string code = strip(text, false);
    for (const Word& word : kWords) {
      for (int line : lines_with_word(code, word.text, word.called)) {
        out.push_back({file, line,
                       "only harness/cli prints, parses argv or exits: " + std::string(word.text)});
      }
    }
  }
  return out;
}

std::vector<Violation> check_isa(const Files& files) {
  // SIMDe takes the place of immintrin.h on processors for which these files are not compiled.
  static const std::set<std::string_view> plain = {"immintrin.h", "stdint.h", "stddef.h",
                                                   "simde/x86/avx2.h"};
  std::vector<Violation> out;
  for (const auto& [file, text] : files) {
    if (!is_isa_file(file)) continue;
    std::set<std::string> seen = {file};
    std::vector<std::string> todo = {file};
    while (!todo.empty()) {
      const std::string here = todo.back();
      todo.pop_back();
      const auto found = files.find(here);
      if (found == files.end()) continue;
      for (const Include& include : includes_of(found->second)) {
        if (const auto target = resolve(files, here, include)) {
          if (seen.insert(*target).second) todo.push_back(*target);
        } else if (!plain.contains(include.path)) {
          out.push_back({here, include.line,
                         "<" + include.path + "> reaches " + file +
                             ", whose instruction set would leak through its inline functions"});
        }
      }
    }
  }
  return out;
}

std::vector<Violation> check_length(const Files& files) {
  std::vector<Violation> out;
  for (const auto& [file, text] : files) {
    const auto lines = std::count(text.begin(), text.end(), '\n');
    if (lines > kMaxLines)
      out.push_back(
          {file, 0,
           std::to_string(lines) + " lines; the house allows " + std::to_string(kMaxLines)});
  }
  return out;
}

std::vector<Violation> check_layering(const Files& files) {
  std::vector<Violation> out;
  for (auto* check :
       {check_arrows, check_rows, check_circles, check_speech, check_isa, check_length}) {
    auto found = check(files);
    out.insert(out.end(), found.begin(), found.end());
  }
  return out;
}

}  // namespace twinrun::layering
