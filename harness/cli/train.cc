// twinrun train: one training run on one engine.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "checkpoints/container/atomic_file.h"
#include "harness/cli/program.h"
#include "harness/cli/progress_printer.h"
#include "harness/cli/unfinished_run.h"
#include "harness/experiment/imported.h"
#include "harness/run/engine_setup.h"
#include "harness/run/loop.h"
#include "harness/run/run.h"

namespace twinrun::cli {
namespace {

struct Start {
  States states;
  int64_t step = 0;
  std::optional<RunFile> history;  // the run that is resumed
  bool in_place = false;           // from the unfinished run of the same file
};

// Joins a resumed run and what came before, as if there had been no interruption: the evaluation
// and the checkpoint made only because of it are dropped.
RunFile joined(RunFile before, RunFile after, const TrainSpec& train, const HostLoop& loop) {
  const int64_t step = after.first_step;
  const auto drop_occasional = [&](auto& list, const auto& later, int64_t every) {
    std::erase_if(list, [&](const auto& one) {
      const bool again =
          std::ranges::any_of(later, [&](const auto& l) { return l.step == one.step; });
      return again || one.step > step ||
             (one.step == step && (step == 0 || !loop.expected(every, step)));
    });
  };
  drop_occasional(before.evaluations, after.evaluations, train.eval_every);
  drop_occasional(before.checkpoints, after.checkpoints, train.checkpoint_every);
  std::erase_if(before.trace, [&](const OpTraceRow& row) { return row.step >= step; });
  const auto done = static_cast<size_t>(step - before.first_step);
  before.steps.resize(std::min(done, before.steps.size()));
  before.state_digests.resize(std::min(done, before.state_digests.size()));
  const auto prepend = [](auto& to, auto& from) {
    to.insert(to.begin(), from.begin(), from.end());
  };
  prepend(after.steps, before.steps);
  prepend(after.state_digests, before.state_digests);
  prepend(after.evaluations, before.evaluations);
  prepend(after.trace, before.trace);
  prepend(after.checkpoints, before.checkpoints);
  after.first_step = before.first_step;
  const std::string key(kInitialState);
  after.environment.erase(key);
  if (before.environment.contains(key)) after.environment[key] = before.environment[key];
  return after;
}

// The length of a run and how often it reports may change when it resumes; settings that determine
// the bits may not.
Status check_same_scenario(const Checkpoint& checkpoint, const Scenario& now,
                           const std::string& path) {
  TWINRUN_ASSIGN(Scenario stored, parse_scenario(checkpoint.scenario, path));
  if (const std::string differ = differences(stored.imported, now.imported); !differ.empty())
    return Error{"the checkpoint was made with another program" + differ, path,
                 "resume with the same files"};
  stored.train.steps = now.train.steps;
  stored.train.log_every = now.train.log_every;
  stored.train.eval_every = now.train.eval_every;
  stored.train.checkpoint_every = now.train.checkpoint_every;
  stored.diagnose = now.diagnose;
  if (scenario_digest(stored) == scenario_digest(now)) return Ok{};
  return Error{"the checkpoint was made by another scenario (digest " + checkpoint.scenario_digest +
                   ", this one " + scenario_digest(now).hex() + ")",
               path,
               "resume with the same scenario and --set values (train.steps may grow); `twinrun "
               "inspect --resolved` shows the stored ones"};
}

std::string out_file(const Parsed& parsed) {
  return parsed.has("out") ? parsed.get<std::string>("out") : "run.h5";
}

// --init: training begins at the step of a snapshot or another checkpoint. --resume: at the last
// checkpoint of a run file, or at a checkpoint. A run of the same file that was cut off goes on: one
// without either, or one that began there, because the same command was typed again.
Result<std::optional<Start>> start_of(const Parsed& parsed, const Program& program,
                                      const Scenario& scenario, const std::string& settings) {
  const std::string out = out_file(parsed), unfinished_file = unfinished_path(out);
  if (parsed.has("resume") && parsed.has("init"))
    return Error{"both --init and --resume", "", "give one of them"};
  std::string path;  // of what is gone on with
  Checkpoint checkpoint;
  std::optional<RunFile> history;
  std::optional<States> states;
  const auto read_states = [&]() -> Status {
    auto read = from_checkpoint(checkpoint, program);
    if (!read) {
      Error error = read.error();
      error.where = path + ": " + error.where;
      return error;
    }
    states = *std::move(read);
    return Ok{};
  };
  if (parsed.has("resume")) {
    path = parsed.get<std::string>("resume");
    TWINRUN_ASSIGN(const std::string kind, file_kind(path));
    if (kind == "run") {
      TWINRUN_ASSIGN(RunFile run, read_with_earlier(path));
      if (run.checkpoints.empty())
        return Error{"the run holds no checkpoint", path, "start again without --resume"};
      checkpoint = run.checkpoints.back();
      history = std::move(run);
    } else {
      TWINRUN_ASSIGN(checkpoint, read_checkpoint(path));
    }
    TWINRUN_RETURN_IF_ERROR(check_same_scenario(checkpoint, scenario, path));
  } else if (parsed.has("init")) {
    path = parsed.get<std::string>("init");
    TWINRUN_ASSIGN(checkpoint, read_checkpoint(path));
  }
  const bool other = !path.empty();
  if (other) TWINRUN_RETURN_IF_ERROR(read_states());
  const auto fits = [&](const RunFile& run) -> std::string {
    if (path == unfinished_file) return "";
    const auto initial = run.environment.find(std::string(kInitialState));
    const bool began_there =
        went_through(run, checkpoint) ||
        (other && run.first_step == checkpoint.step && initial != run.environment.end() &&
         initial->second == digest_of_weights(program, states->front()).hex());
    if (other ? !began_there : run.first_step > 0) return "another beginning was given";
    if (parsed.has("fault")) return "faults are planted";
    if (run.engine_settings != settings)
      return fmt::format("it ran with {}, this one with {}", run.engine_settings, settings);
    const Status same = check_same_scenario(run.checkpoints.back(), scenario, out);
    return same ? "" : same.error().what;
  };
  TWINRUN_ASSIGN(auto unfinished, left_unfinished(out, parsed.get<bool>("restart"), fits));
  if (!unfinished && !other) return std::optional<Start>();
  if (unfinished && path != unfinished_file) {
    path = unfinished_file;
    checkpoint = unfinished->checkpoints.back();
    if (history) add_earlier(std::move(history->checkpoints), *unfinished);
    history = *std::move(unfinished);
    say(fmt::format(
        "{}: goes on after step {} of a run that was cut off (--restart begins again)\n", path,
        checkpoint.step));
    TWINRUN_RETURN_IF_ERROR(read_states());
  }
  return std::optional<Start>(
      Start{*states, checkpoint.step, std::move(history), path == unfinished_file});
}

// What faults changed. Each rank knows what they changed on its cores; collectives are changed on
// every rank, and what all cores share of them is counted by the first.
struct Changes {
  int64_t count = 0, first_step = 0;
  std::string first_op;
};
Changes changes_of(const std::vector<std::vector<Activation>>& runs, int cores) {
  std::vector<Activation> log = runs.empty() ? std::vector<Activation>() : runs.front();
  if (ranks() != nullptr) {
    const CoreBlock mine = block_of(ranks()->rank(), ranks()->ranks(), cores);
    std::erase_if(log, [&](const Activation& a) {
      const auto core = static_cast<size_t>(std::max(a.replica, 0));
      return core < mine.first || core >= mine.last;
    });
  }
  Changes all{static_cast<int64_t>(log.size()), log.empty() ? 0 : log.front().step,
              log.empty() ? "" : log.front().op};
  if (ranks() == nullptr) return all;
  struct Part {
    int64_t count, step;
    char op[240];
  };
  Part mine{all.count, all.first_step, {}};
  all.first_op.copy(mine.op, sizeof(mine.op) - 1);
  all = {};
  for (const auto& bytes : from_all_ranks(*ranks(), std::as_bytes(std::span(&mine, 1)))) {
    Part part;
    std::memcpy(&part, bytes.data(), sizeof(part));
    if (part.count == 0) continue;
    const bool earlier =
        std::pair(part.step, std::string(part.op)) < std::pair(all.first_step, all.first_op);
    if (all.count == 0 || earlier) all.first_step = part.step, all.first_op = part.op;
    all.count += part.count;
  }
  return all;
}

// What all ranks have sent by now; nothing for a process that is alone.
Traffic sent_by_all() {
  if (ranks() == nullptr) return {};
  const Traffic mine = ranks()->traffic();
  Traffic all;
  for (const auto& bytes : from_all_ranks(*ranks(), std::as_bytes(std::span(&mine, 1)))) {
    Traffic part;
    std::memcpy(&part, bytes.data(), sizeof(part));
    all.messages += part.messages;
    all.bytes += part.bytes;
  }
  return all;
}

// --snapshot: the seeded initial checkpoint, and no training.
Result<int> write_snapshot(const Parsed& parsed, const Experiment& experiment) {
  const Scenario& scenario = experiment.scenario;
  const Program program = experiment.whole();
  Checkpoint c = to_checkpoint(program, initial_states(experiment, program), scenario, 0);
  c.scenario = resolved_toml(scenario);
  c.scenario_digest = scenario_digest(scenario).hex();
  const std::string path = parsed.has("out") ? parsed.get<std::string>("out") : "init.h5";
  TWINRUN_RETURN_IF_ERROR(check_output(path));
  TWINRUN_RETURN_IF_ERROR(write_checkpoint(path, c));
  int64_t elements = 0;
  for (const auto& [name, t] : c.tensors) elements += t.value.elements();
  if (parsed.get<bool>("json")) {
    const nlohmann::ordered_json j = {{"schema", 1},
                                      {"file", path},
                                      {"root_digest", c.root_digest().hex()},
                                      {"tensors", c.tensors.size()},
                                      {"elements", elements}};
    print_document(j.dump() + "\n");
  } else {
    print("{}: {} tensors, {} elements, root digest {}\n", path, c.tensors.size(), elements,
          c.root_digest().hex());
  }
  return 0;
}

}  // namespace

Result<int> train_verb(const Args& args) {
  if (fault_help(args)) return 0;
  Options options;
  add_program_options(options);
  add_engine_option(options, "engine,e", "engine to train on", Engines::kWithDouble, "cpu");
  options.number<int>(
      "cores",
      "1: the whole batch on one core (default on cpu); N: sharded (default on tpu: tpu.cores)");
  options.text("init", "begin from this checkpoint instead of the seed");
  options.text("resume", "continue from the last checkpoint of a run (or from a checkpoint)");
  options.flag("restart", "give up a run of the same file that was cut off, and begin again");
  options.flag("snapshot", "train nothing: write the seeded initial checkpoint, for --init");
  options.text("out,o", "run file to write (default run.h5; of --snapshot init.h5)");
  add_fault_option(options, "fault", "engine");
  add_common_options(options);
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(args, "twinrun train SCENARIO|--program FILE --engine ENGINE [OPTIONS] -o run.h5",
            "twinrun train digits_mlp --engine tpu --cores 8 -o t.h5", options, {"?SCENARIO"}));
  if (parsed.help) return 0;
  TWINRUN_ASSIGN(const Experiment experiment, experiment_of(parsed));
  if (parsed.get<bool>("snapshot")) return write_snapshot(parsed, experiment);
  const Scenario& scenario = experiment.scenario;
  TWINRUN_ASSIGN(const auto threads, threads_of(parsed));
  const std::string engine = parsed.get<std::string>("engine");
  TWINRUN_ASSIGN(const auto faults, faults_of(parsed));
  TWINRUN_RETURN_IF_ERROR(check_faults_begin(faults, scenario.train.steps));
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  EngineSpec spec{.engine = engine, .threads = threads, .faults = faults};
  if (parsed.has("cores")) spec.cores = parsed.get<int>("cores");
  spec.ranks = ranks();
  TWINRUN_RETURN_IF_ERROR(check_splits("--engine", engine, cores_of(spec, scenario)));
  TWINRUN_ASSIGN(auto setup, set_up(experiment, spec, &printer));
  const Program& program = setup.program;
  const int cores = program.sharding.cores;

  TWINRUN_ASSIGN(auto start, start_of(parsed, program, scenario,
                                      settings_of(program, setup.backend->capabilities())));
  const std::string path = out_file(parsed);
  if (first_rank()) {
    TWINRUN_RETURN_IF_ERROR(check_output(path));
  }
  TWINRUN_RETURN_IF_ERROR(check_data_lasts(experiment).with_kind(Error::Kind::kRun));
  RunOptions o;
  o.name = fmt::format("{}, {} core{}", engine, cores, cores == 1 ? "" : "s");
  o.threads = threads;
  o.progress = &printer;
  o.stop = &stop;
  if (start) {
    o.start = start->states;
    o.first_step = start->step;
    if (o.first_step >= scenario.train.steps) {
      return Error{fmt::format("the checkpoint is after step {}, the scenario ends at {}",
                               o.first_step, scenario.train.steps),
                   parsed.has("resume") ? "--resume" : "--init", "raise train.steps"};
    }
  }
  const HostLoop loop(scenario, cores, setup.backend->capabilities().name);
  const auto continued = [&](RunFile run) {
    if (!start || !start->history || start->history->engine != run.engine ||
        start->history->engine_settings != run.engine_settings)
      return run;
    return joined(*start->history, std::move(run), scenario.train, loop);
  };
  // Periodic checkpoints are written to disk at once, with the losses so far, beside the run file,
  // so that a crash does not lose the run.
  UnfinishedWriter unfinished(path,
                              start && start->in_place ? std::optional(start->step) : std::nullopt);
  o.ranks = ranks();
  if (first_rank()) o.spill_folder = std::filesystem::path(path).parent_path().string();
  o.on_checkpoint = [&](const RunFile& so_far, const Checkpoint& c) {
    RunFile partial = so_far;
    partial.checkpoints.push_back(c);
    partial.ended = {RunEnd::Kind::kInterrupted, ""};
    unfinished.write(continued(std::move(partial)));
  };
  auto result = train(experiment, program, *setup.backend, o).with_kind(Error::Kind::kRun);
  if (!result) return result.error();
  const Changes changes = changes_of(setup.faults->runs, cores);
  const Traffic sent = sent_by_all();
  if (!first_rank()) return 0;
  unfinished.finish();
  result->file = continued(std::move(result->file));
  TWINRUN_RETURN_IF_ERROR(write_run(path, result->file));
  unfinished.remove();

  const RunFile& file = result->file;
  // Without held-out samples nothing is evaluated.
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const Evaluation e =
      file.evaluations.empty() ? Evaluation{0, kNone, kNone} : file.evaluations.back();
  const double last_loss = file.steps.empty() ? kNone : file.steps.back().loss;
  if (parsed.get<bool>("json")) {
    // NaN and infinities become null, because JSON has no such numbers.
    nlohmann::ordered_json j = {{"schema", 1},
                                {"file", path},
                                {"engine", file.engine},
                                {"cores", file.cores},
                                {"steps", file.steps.size()},
                                {"last_loss", last_loss},
                                {"eval_loss", e.loss},
                                {"eval_accuracy", e.accuracy},
                                {"root_digest", file.root_digest().hex()},
                                {"state_digest", file.checkpoints.back().root_digest().hex()},
                                {"ended", to_string(file.ended)}};
    if (ranks() != nullptr) {
      j["ranks"] = ranks()->ranks();
      j["messages"] = sent.messages;
      j["bytes"] = sent.bytes;
    }
    print_document(j.dump() + "\n");
  } else {
    const std::string part =
        file.ended.interrupted() ? outcome(file, scenario.train.steps) + "; " : "";
    const std::string learnt = !std::isnan(e.loss) || !experiment.imported
                                   ? fmt::format("held-out loss {:.5f}", e.loss)
                                   : fmt::format("last loss {:.6g}", last_loss);
    print("{}: {}{} steps on {} ({}), {}{}\n  state digest {}  run digest {}\n", path, part,
          file.steps.size(), file.engine, file.engine_settings, learnt,
          experiment.imported ? "" : fmt::format(", accuracy {:.2f} %", 100 * e.accuracy),
          file.checkpoints.back().root_digest().hex(), file.root_digest().hex());
    if (ranks() != nullptr) {
      const double done = static_cast<double>(
          std::max<int64_t>(1, file.first_step + std::ssize(file.steps) - o.first_step));
      print("  {} ranks; a step: {:.0f} messages and {:.0f} bytes from each rank, on average\n",
            ranks()->ranks(), static_cast<double>(sent.messages) / ranks()->ranks() / done,
            static_cast<double>(sent.bytes) / ranks()->ranks() / done);
    }
    if (!faults.empty()) {
      print("  faults changed bits {} times{}\n", changes.count,
            changes.count == 0
                ? ""
                : fmt::format(", first in {} at step {}", changes.first_op, changes.first_step));
    }
  }
  if (file.ended.interrupted()) {
    say(fmt::format("interrupted after step {}; go on with --resume {}\n",
                    file.first_step + static_cast<int64_t>(file.steps.size()), path));
    return kExitInterrupted;
  }
  if (result->first_non_finite)
    return Error{to_string(file.ended), path, "lower optimizer.lr", Error::Kind::kRun};
  return 0;
}

}  // namespace twinrun::cli
