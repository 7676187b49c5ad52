// Runs a script and has its steps recorded.
#include "harness/trace/side.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "harness/host/command.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

// The folder of the Python package `twinrun`: of a checkout, or of the environment that this
// program is installed in. "" if there is none: then the interpreter must have its own.
std::string package_folder() {
  std::error_code failed;
  const fs::path self = fs::read_symlink("/proc/self/exe", failed);
  if (failed) return "";
  const fs::path checkout = self.parent_path() / "../../adapters/twinrun";
  if (fs::exists(checkout / "__main__.py", failed)) return fs::canonical(checkout).string();
  for (const auto& version :
       fs::directory_iterator(self.parent_path().parent_path() / "lib", failed)) {
    const fs::path installed = version.path() / "site-packages/twinrun";
    if (fs::exists(installed / "__main__.py", failed)) return fs::canonical(installed).string();
  }
  return "";
}

// PYTHONPATH with the package alone, so that nothing else of its folder comes before the
// interpreter's own packages.
std::string python_path(const std::string& folder) {
  const char* given = std::getenv("PYTHONPATH");
  const std::string rest = given != nullptr ? given : "";
  const std::string package = package_folder();
  if (package.empty()) return rest;
  std::error_code failed;
  fs::create_directory(folder + "/package", failed);
  fs::create_directory_symlink(package, folder + "/package/twinrun", failed);
  if (failed) return rest;
  return folder + "/package" + (rest.empty() ? "" : ":" + rest);
}

std::string last_lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  const size_t from = lines.size() > 8 ? lines.size() - 8 : 0;
  std::string out;
  for (size_t i = from; i < lines.size(); ++i) out += "\n  " + lines[i];
  return out;
}

}  // namespace

bool is_python(const std::string& word) {
  const std::string name = fs::path(word).filename().string();
  return name.starts_with("python") || name.starts_with("pypy");
}

Error become_package(const std::vector<std::string>& words) {
  const char* named = std::getenv("TWINRUN_PYTHON");
  const std::string python = named != nullptr && *named != '\0' ? named : "python3";
  // The package comes last, so that nothing else of its folder is imported before the interpreter's.
  const std::string package = package_folder();
  const std::string run =
      "import sys; sys.path.append(sys.argv.pop(1)); "
      "from twinrun.command import main; sys.exit(main())";
  std::vector<std::string> all = {python, "-c", run, fs::path(package).parent_path().string()};
  all.insert(all.end(), words.begin(), words.end());
  std::error_code ignored;
  if (const fs::path self = fs::read_symlink("/proc/self/exe", ignored); !ignored)
    ::setenv("TWINRUN", self.c_str(), 0);
  std::vector<char*> argv;
  for (std::string& word : all) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  return Error{fmt::format("cannot run: {}", std::strerror(errno)), python,
               "name a Python in TWINRUN_PYTHON", Error::Kind::kMachine};
}

Result<RecordedSide> record_side(const std::vector<std::string>& words, const SideOptions& o) {
  const std::string text = fmt::format("{}", fmt::join(words, " "));
  // What starts the interpreter may come before it: env, taskset, numactl. The script is the first
  // word after it that is no option of it.
  const auto python = std::ranges::find_if(words, is_python);
  auto script = static_cast<size_t>(python - words.begin()) + 1;
  while (script < words.size() && words[script].starts_with("-") && words[script] != "-m" &&
         words[script] != "-c")
    script += words[script] == "-W" || words[script] == "-X" ? 2 : 1;
  std::error_code ignored;
  const bool module = script + 1 < words.size() && words[script] == "-m";
  if (!module && (script >= words.size() || !fs::is_regular_file(words[script], ignored))) {
    return script < words.size() && python != words.end()
               ? Error{"no such file", words[script], "check the script's name"}
               : Error{"this is not a Python and a script", text, "give [PYTHON] SCRIPT ARGS"};
  }
  const std::string& interpreter = *python;
  if (interpreter.find('/') != std::string::npos && !fs::exists(interpreter, ignored))
    return Error{"no such file", interpreter, "give the path of a Python"};
  RecordedSide side{text, o.trace, ""};
  CommandOptions command;
  command.log = o.folder + "/log";
  command.on_kill = o.folder;
  std::vector<std::string> before = {"env", "PYTHONPATH=" + python_path(o.folder)};
  const std::string diagnosis = o.report.empty() ? o.folder + "/diagnosis" : o.report;
  const std::string report = diagnosis + "/report.json";
  fs::remove(report, ignored);  // an earlier run's
  before.push_back("TWINRUN_OUT=" + diagnosis);
  before.push_back("TWINRUN_ALLOW=" + o.allowed);
  const fs::path self = fs::read_symlink("/proc/self/exe", ignored);
  if (!ignored) before.push_back("TWINRUN=" + self.string());
  const auto run = [&](const std::vector<std::string>& watch) {
    std::vector<std::string> all = before;
    all.insert(all.end(), words.begin(), words.begin() + static_cast<int64_t>(script));
    all.insert(all.end(), watch.begin(), watch.end());
    all.insert(all.end(), words.begin() + static_cast<int64_t>(script), words.end());
    return run_command(all, command, o.stop);
  };
  if (o.progress != nullptr) o.progress->begin("running " + text, 1);
  TWINRUN_ASSIGN(CommandResult ran,
                 run({"-m", "twinrun", "watch", "--stop", "--steps", std::to_string(o.steps),
                      "--first", std::to_string(o.first), "-o", side.trace}));
  constexpr int kNoTorch = 2;  // of `watch`, where the interpreter has no PyTorch
  const bool unwatched = ran.ended == CommandResult::Ended::kExit && ran.code == kNoTorch &&
                         !fs::exists(side.trace, ignored);
  if (unwatched) {
    TWINRUN_ASSIGN(ran, run({}));
    side.trace.clear();
  }
  if (o.progress != nullptr) o.progress->end(ran.text());
  if (ran.ended == CommandResult::Ended::kInterrupted)
    return Error{"interrupted", text, "", Error::Kind::kInterrupted};
  // A script that has diagnosed itself may say so by its exit status.
  if (fs::exists(report, ignored)) return RecordedSide{text, "", report};
  if (ran.ended != CommandResult::Ended::kExit || ran.code != 0) {
    const std::string said = last_lines(command.log);
    return Error{fmt::format("the command failed ({}){}", ran.text(), said), text,
                 said.ends_with("No module named twinrun")
                     ? "the package twinrun is not where this program lies: install the wheel, or "
                       "put adapters/ of the checkout on PYTHONPATH"
                 : said.ends_with("No module named 'jax'")
                     ? "name a Python that has JAX before the script, or in TWINRUN_PYTHON"
                 : unwatched
                     ? "name a Python that has PyTorch before the script, or in TWINRUN_PYTHON; "
                       "`python3 -m twinrun environment torch==2.15.0` makes one"
                     : "run it by itself first; options of twinrun come before the script",
                 Error::Kind::kForeignEngine};
  }
  if (unwatched) {
    return Error{
        "it left neither a trace nor a report: this Python has no PyTorch to watch, and "
        "the script does not call twinrun.diagnose",
        text, "docs/guides/pytorch.md", Error::Kind::kForeignEngine};
  }
  return side;
}

}  // namespace twinrun
