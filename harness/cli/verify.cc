// twinrun verify: compares golden runs with what the engine computes now.
#include "harness/gate/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "checkpoints/container/atomic_file.h"
#include "harness/cli/known.h"
#include "harness/cli/program.h"
#include "harness/cli/progress_printer.h"
#include "harness/trace/trace_file.h"

namespace twinrun::cli {
namespace {

namespace fs = std::filesystem;
constexpr const char* kEnding = ".golden.h5";

// Files as given; a folder stands for all golden runs below it, sorted by name.
Result<std::vector<std::string>> goldens_of(const std::vector<std::string>& named) {
  std::vector<std::string> out;
  for (const std::string& path : named) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      out.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    for (fs::recursive_directory_iterator at(path, error), end; !error && at != end;
         at.increment(error)) {
      if (at->path().string().ends_with(kEnding)) found.push_back(at->path().string());
    }
    if (error) return Error{"cannot read the folder: " + error.message(), path, ""};
    if (found.empty())
      return Error{fmt::format("the folder has no file whose name ends in {}", kEnding), path,
                   "make one: twinrun record SCENARIO -o FILE.golden.h5"};
    std::ranges::sort(found);
    out.insert(out.end(), found.begin(), found.end());
  }
  return out;
}

Gate failed(const std::string& path, const Error& error) {
  Gate gate;
  gate.golden = path;
  gate.outcome = error.of_foreign_engine() ? GateOutcome::kUnavailable : GateOutcome::kBadInput;
  gate.headline = (error.where.empty() ? "" : error.where + ": ") + error.what +
                  (error.fix.empty() ? "" : "; " + error.fix);
  return gate;
}

}  // namespace

Result<int> verify_verb(const Args& args) {
  if (fault_help(args)) return 0;
  Options options;
  add_engine_option(options, "engine,e",
                    "another engine than that of the golden run, compared with noise",
                    Engines::kWithForeign);
  options.flag("bits", "compare bits, whatever the engine");
  options.flag("noise", "compare with noise, even where bits are defined");
  options.text("junit", "JUnit XML, a test case for each golden run");
  options.text("jsonl", "JSON lines, one object for each golden run");
  options.flag("update", "record again what moved");
  options.text("out,o FOLDER", "of a known step: folder for its report (default: none)");
  add_key_option(options, "set", "a key that does not change bits: data.dir=FOLDER");
  add_program_of_run(options);
  add_fault_option(options, "fault", "engine");
  add_common_options(options);
  if (const auto failed = given_to_python("verify", args, options)) return *failed;
  TWINRUN_ASSIGN(const Parsed parsed,
                 parse(args,
                       "twinrun verify GOLDEN.. [OPTIONS]\n"
                       "       twinrun verify known.json SCRIPT|TRACE   a step of PyTorch: is this "
                       "device right?",
                       "twinrun verify goldens/ --junit verify.xml", options, {"GOLDEN.."}));
  if (parsed.help) return 0;
  const auto words = parsed.get<std::vector<std::string>>("GOLDEN..");
  if (words.size() == 2 && is_trace(words[1])) return verify_known_step(parsed, words[0], words[1]);
  if (parsed.has("out"))
    return Error{"only a known step has a report in a folder", "--out",
                 "golden runs: --junit FILE, --jsonl FILE, --json"};
  TWINRUN_ASSIGN(const auto paths, goldens_of(words));
  const bool bits = parsed.get<bool>("bits"), noise = parsed.get<bool>("noise");
  if (bits && noise) return Error{"both --bits and --noise", "", "give one of them"};
  for (const char* option : {"junit", "jsonl"}) {
    if (!parsed.has(option)) continue;
    TWINRUN_RETURN_IF_ERROR(check_output(parsed.get<std::string>(option)));
  }
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  VerifyOptions o;
  if (parsed.has("engine")) o.engine = parsed.get<std::string>("engine");
  TWINRUN_ASSIGN(o.threads, threads_of(parsed));
  o.decides = bits    ? VerifyOptions::Decides::kBits
              : noise ? VerifyOptions::Decides::kNoise
                      : VerifyOptions::Decides::kDefault;
  TWINRUN_ASSIGN(o.faults, faults_of(parsed));
  TWINRUN_ASSIGN(o.overrides, overrides_of(parsed));
  TWINRUN_ASSIGN(o.program, program_files_of(parsed));
  o.update = parsed.get<bool>("update");
  if (o.update && (o.engine || !o.faults.empty()))
    return Error{"writes what the recorded engine does now", "--update",
                 "leave out --engine and --fault"};
  o.progress = &printer;
  o.stop = &stop;

  std::vector<Gate> gates;
  std::string lines;
  for (const std::string& path : paths) {
    if (stop.load()) {
      gates.push_back(
          {.golden = path, .outcome = GateOutcome::kInterrupted, .headline = "Not run."});
    } else {
      const auto gate = verify_golden(path, o);
      gates.push_back(gate ? *gate : failed(path, gate.error()));
    }
    lines += to_json_line(gates.back()) + "\n";
    if (!parsed.get<bool>("json")) print_text(to_terminal(gates.back(), terminal_width()));
  }
  if (parsed.get<bool>("json")) {
    std::string all;
    for (const Gate& gate : gates) all += (all.empty() ? "" : ",\n") + to_json_line(gate);
    print_document(fmt::format("{{\"schema\":1,\"exit_code\":{},\"goldens\":[\n{}\n]}}\n",
                               exit_code(gates), all));
  }
  if (parsed.has("junit")) {
    TWINRUN_RETURN_IF_ERROR(
        write_file_atomically(parsed.get<std::string>("junit"), to_junit(gates)));
  }
  if (parsed.has("jsonl")) {
    TWINRUN_RETURN_IF_ERROR(write_file_atomically(parsed.get<std::string>("jsonl"), lines));
  }
  return exit_code(gates);
}

}  // namespace twinrun::cli
