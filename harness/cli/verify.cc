// twinrun verify: compares golden runs with what the engine computes now.
#include "harness/gate/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "checkpoints/container/atomic_file.h"
#include "harness/cli/cli.h"
#include "harness/cli/progress_printer.h"
#include "harness/experiment/engines.h"

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
  gate.outcome = of_foreign_engine(error) ? GateOutcome::kUnavailable : GateOutcome::kBadInput;
  gate.headline = error.message();
  return gate;
}

}  // namespace

int verify_verb(const Args& args) {
  if (const auto done = fault_help(args)) return *done;
  po::options_description options("options");
  options.add_options()("engine,e", po::value<std::string>(),
                        "another engine than the golden run's: noise decides")(
      "bits", po::bool_switch(), "bits decide, whatever the engine")(
      "noise", po::bool_switch(), "noise decides, even where bits are defined")(
      "junit", po::value<std::string>(), "FILE: JUnit XML, a test case for each golden run")(
      "jsonl", po::value<std::string>(), "FILE: JSON lines, one object for each golden run")(
      "update", po::bool_switch(), "record anew what moved")(
      "set", po::value<std::vector<std::string>>()->composing(),
      "KEY=VALUE of a key that decides no bits: data.dir=FOLDER");
  add_plugin_option(options);
  add_fault_option(options, "engine");
  add_common_options(options);
  const Parsed parsed = parse(args, "twinrun verify GOLDEN.. [OPTIONS]",
                              "twinrun verify goldens/ --junit verify.xml", options, {"GOLDEN.."});
  if (parsed.exit) return *parsed.exit;
  const auto paths = goldens_of(parsed.get<std::vector<std::string>>("GOLDEN.."));
  if (!paths) return fail(paths.error());
  const auto threads = threads_of(parsed);
  if (!threads) return fail(threads.error());
  const auto faults = faults_of(parsed);
  if (!faults) return fail(faults.error());
  const auto overrides = overrides_of(parsed);
  if (!overrides) return fail(overrides.error());
  const bool bits = parsed.get<bool>("bits"), noise = parsed.get<bool>("noise");
  if (bits && noise) return fail({"both --bits and --noise", "", "give one of them"});
  for (const char* option : {"junit", "jsonl"}) {
    if (!parsed.has(option)) continue;
    if (const Status writable = check_output(parsed.get<std::string>(option)); !writable)
      return fail(writable.error());
  }
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  VerifyOptions o;
  if (parsed.has("engine")) o.engine = engine_of(parsed, "engine");
  o.threads = *threads;
  o.decides = bits    ? VerifyOptions::Decides::kBits
              : noise ? VerifyOptions::Decides::kNoise
                      : VerifyOptions::Decides::kDefault;
  o.faults = *faults;
  o.overrides = *overrides;
  o.update = parsed.get<bool>("update");
  if (o.update && (o.engine || !o.faults.empty()))
    return fail(
        {"writes what the recorded engine does now", "--update", "leave out --engine and --fault"});
  o.progress = &printer;
  o.stop = &stop;

  std::vector<Gate> gates;
  std::string lines;
  for (const std::string& path : *paths) {
    if (stop.load()) {
      gates.push_back(
          {.golden = path, .outcome = GateOutcome::kInterrupted, .headline = "Not run."});
    } else {
      const auto gate = verify_golden(path, o);
      gates.push_back(gate ? *gate : failed(path, gate.error()));
    }
    lines += to_json_line(gates.back()) + "\n";
    if (!parsed.get<bool>("json")) fmt::print("{}", to_terminal(gates.back(), terminal_width()));
  }
  if (parsed.get<bool>("json")) {
    std::string all;
    for (const Gate& gate : gates) all += (all.empty() ? "" : ",\n") + to_json_line(gate);
    fmt::print("{{\"schema\":1,\"exit_code\":{},\"goldens\":[\n{}\n]}}\n", exit_code(gates), all);
  }
  if (parsed.has("junit")) {
    if (const Status s = write_file_atomically(parsed.get<std::string>("junit"), to_junit(gates));
        !s)
      return fail(s.error());
  }
  if (parsed.has("jsonl")) {
    if (const Status s = write_file_atomically(parsed.get<std::string>("jsonl"), lines); !s)
      return fail(s.error());
  }
  return exit_code(gates);
}

}  // namespace twinrun::cli
