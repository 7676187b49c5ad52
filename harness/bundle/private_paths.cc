// Finds paths in texts and shortens those that tell where the maker of a bundle keeps files.
#include "harness/bundle/private_paths.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "backends/exec/exec_backend.h"
#include "harness/bundle/engine_files.h"
#include "program/base/json_checksum.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

constexpr char kHome = '\1';  // stands for the path of $HOME while a text is searched
constexpr std::array<std::string_view, 8> kOfTheSystem = {"/usr/", "/bin/",   "/sbin/", "/lib/",
                                                          "/dev/", "/lib64/", "/proc/", "/sys/"};
constexpr std::string_view kEndsAPath = " \t\r\n\"'`,;:()[]{}<>|\\";

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Replaces `what` where it is not part of a longer word.
void replace_words(std::string& text, std::string_view what, std::string_view by) {
  for (size_t at = 0; (at = text.find(what, at)) != text.npos;) {
    const size_t end = at + what.size();
    const bool apart = (at == 0 || !is_word(text[at - 1])) &&
                       (end == text.size() || !is_word(what.back()) || !is_word(text[end]));
    if (apart) text.replace(at, what.size(), by);
    at += apart ? by.size() : 1;
  }
}

// Whether a path may begin at `at`: at the begin of a word, after an option's letter ("-o/tmp"), or
// after "file://".
bool may_begin(std::string_view text, size_t at) {
  if (at == 0) return true;
  const char before = text[at - 1];
  if (text.substr(0, at).ends_with("file://")) return true;
  if (at > 1 && text[at - 2] == '-' && (at == 2 || text[at - 3] == ' ') && is_word(before))
    return true;
  return !is_word(before) &&
         std::string_view("/.-~+%$*)]}>").find(before) == std::string_view::npos &&
         static_cast<unsigned char>(before) < 0x80;
}

// Whether the text from `at` on begins like a path outside of the current folder.
bool begins_outside(std::string_view rest) {
  if (rest.front() == kHome || rest.starts_with("../")) return true;
  if (rest.size() < 2) return false;
  if (rest.front() == '~')
    return rest[1] == '/' || std::isalpha(static_cast<unsigned char>(rest[1])) != 0;
  return rest.front() == '/' && (is_word(rest[1]) || rest[1] == '.');
}

std::string shortened(std::string_view path) {
  const auto of_the_system = [&](std::string_view folder) { return path.starts_with(folder); };
  if (std::ranges::any_of(kOfTheSystem, of_the_system) && path.find("/../") == path.npos)
    return std::string(path);
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == path.npos) return "…";  // "~", "~ann", the home folder
  const std::string_view parent = path.substr(0, slash), name = path.substr(slash + 1);
  if (name == ".." || name.empty() || parent == "/home" || parent == "/Users" || path == "/root")
    return "…";
  return std::string(kElsewhere) + std::string(name);
}

}  // namespace

PrivatePaths PrivatePaths::of_this_process() {
  Here here;
  std::error_code ignored;
  here.project = fs::current_path(ignored).string();
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  here.home = variable("HOME");
  here.user = variable("LOGNAME").empty() ? variable("USER") : variable("LOGNAME");
  std::array<char, HOST_NAME_MAX + 1> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0) here.host = host.data();
  return PrivatePaths(std::move(here));
}

std::string PrivatePaths::without_paths(std::string_view given) const {
  std::string text(given);
  std::erase(text, kHome);
  // A root folder would match everywhere.
  const auto known = [](const std::string& folder) {
    return folder.size() > 1 && folder.front() == '/';
  };
  if (known(here_.project)) {
    replace_words(text, here_.project + "/", "");
    replace_words(text, here_.project, ".");
  }
  if (known(here_.home)) replace_words(text, here_.home, std::string(1, kHome));
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = std::string_view(text).substr(at);
    if (rest.front() != kHome && !(may_begin(text, at) && begins_outside(rest))) {
      out += text[at++];
      continue;
    }
    const size_t end = std::min(rest.find_first_of(kEndsAPath), rest.size());
    out += shortened(rest.substr(0, end));
    at += end;
  }
  if (!here_.user.empty()) replace_words(out, here_.user + "@", "…@");
  for (size_t at = 0; !here_.host.empty() && (at = out.find("@" + here_.host, at)) != out.npos;)
    out.replace(at, here_.host.size() + 1, "@…");
  return out;
}

std::string PrivatePaths::text(std::string_view given) const {
  std::string out = without_paths(given);
  // "data" may be the name of a host, too, but "node-3" is no other word.
  if (here_.host.find_first_of("0123456789-.") != std::string::npos)
    replace_words(out, here_.host, "…");
  return out;
}

std::string PrivatePaths::path(const std::string& path) const {
  if (path.empty()) return path;
  const std::string normal = fs::path(path).lexically_normal().string();
  const bool elsewhere =
      normal.front() == '/' || normal.front() == '~' || normal == ".." || normal.starts_with("../");
  if (!elsewhere) return path;
  if (here_.project.size() > 1 && (normal + "/").starts_with(here_.project + "/")) {
    const std::string inside = normal.substr(std::min(here_.project.size() + 1, normal.size()));
    return inside.empty() ? "." : inside;
  }
  return shortened(normal == here_.home ? std::string(1, kHome) : normal);
}

std::string PrivatePaths::word(const std::string& word) const {
  std::error_code ignored;
  // A file whose name has blanks is one path.
  return without_paths(word.starts_with('/') || fs::exists(word, ignored) ? path(word) : word);
}

std::string PrivatePaths::engine(const std::string& engine) const {
  if (!engine.starts_with(kExecPlace)) return without_paths(engine);
  std::string command;
  for (const std::string& each : command_words(engine.substr(kExecPlace.size())))
    command += (command.empty() ? "" : " ") + command_word(word(each));
  return std::string(kExecPlace) + command;
}

Report PrivatePaths::report(const Report& report) const {
  using Json = nlohmann::ordered_json;
  Json all = Json::parse(to_json(report));
  const auto each = [&](const auto& self, Json& value) -> void {
    if (value.is_string()) value = text(value.get<std::string>());
    if (value.is_structured()) {
      for (Json& inner : value) self(self, inner);
    }
  };
  each(each, all);
  for (const auto& [key, engine] :
       {std::pair{"subject", &report.asked.subject}, std::pair{"baseline", &report.asked.baseline}})
    all["asked"][key] = this->engine(*engine);
  all.erase("checksum");
  const auto read = report_from_json(with_checksum(all.dump()), "report.json");
  return read ? *read : Report{};
}

Scenario PrivatePaths::scenario(Scenario s) const {
  s.description = text(s.description);
  s.data.dir = path(s.data.dir);
  for (std::vector<std::string>* files : {&s.data.files, &s.data.eval_files}) {
    for (std::string& file : *files) file = path(file);
  }
  return s;
}

}  // namespace twinrun
