// twinrun bisect step and op: finds the first step, and in it the first op, that differs.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "harness/cli/bisect.h"
#include "harness/cli/program.h"
#include "harness/cli/progress_printer.h"
#include "harness/experiment/imported.h"
#include "harness/lockstep/lockstep.h"
#include "harness/run/engine_setup.h"
#include "harness/run/loop.h"
#include "reports/text.h"

namespace twinrun::cli {
namespace {

using bisect::OpDivergence;
using bisect::StepDivergence;
using bisect::TensorGap;
using Json = nlohmann::ordered_json;

// Two engines on one scenario, ready to run.
struct Pair {
  Experiment experiment;
  std::string name_a, name_b;
  EngineSetup a, b;
  bisect::Twins twins(Progress* progress, const StopFlag* stop) const {
    return {experiment, a.program, b.program, *a.backend, *b.backend, progress, stop};
  }
};

void add_engine_options(Options& options) {
  add_engine_option(options, "a", "engine A, the correct one", Engines::kWithForeign, "cpu");
  add_engine_option(options, "b", "engine B", Engines::kWithForeign, "tpu");
  options.number<int>("cores", "cores of both (default: tpu.cores); 1: the whole batch");
  add_fault_option(options, "fault", "engine B");
}

// Sets up both engines with B's program, each with the formulas that it declares. `cores`: their
// number; if unset, from the command line or the scenario.
Result<Pair> pair_of(const Parsed& parsed, Experiment experiment, Progress* progress,
                     std::optional<int> cores = std::nullopt) {
  const Scenario& scenario = experiment.scenario;
  TWINRUN_RETURN_IF_ERROR(check_data_lasts(experiment));
  EngineSpec a, b;
  a.engine = parsed.get<std::string>("a");
  b.engine = parsed.get<std::string>("b");
  TWINRUN_ASSIGN(b.threads, threads_of(parsed));
  a.threads = b.threads;
  if (!cores) cores = parsed.has("cores") ? parsed.get<int>("cores") : scenario.tpu.cores;
  a.cores = b.cores = cores;
  a.stack = stack_of(b);
  TWINRUN_ASSIGN(b.faults, faults_of(parsed));
  TWINRUN_RETURN_IF_ERROR(check_faults_begin(b.faults, scenario.train.steps));
  TWINRUN_ASSIGN(EngineSetup set_a, set_up(experiment, a, progress));
  TWINRUN_ASSIGN(EngineSetup set_b, set_up(experiment, b, progress));
  return Pair{std::move(experiment), a.engine, b.engine, std::move(set_a), std::move(set_b)};
}

Json json_of(const TensorGap& g) {
  return {{"name", g.name},           {"core", g.core},         {"cores", g.cores},
          {"different", g.different}, {"elements", g.elements}, {"first", g.first},
          {"bits_a", g.bits_a},       {"bits_b", g.bits_b}};
}

std::string cores_text(const TensorGap& g) {
  std::string text = g.cores.size() == 1 ? "core " : "cores ";
  const bool run = g.cores.size() > 2 &&
                   g.cores.back() - g.cores.front() + 1 == static_cast<int>(g.cores.size());
  if (run) return text + fmt::format("{}-{}", g.cores.front(), g.cores.back());
  for (size_t i = 0; i < g.cores.size(); ++i)
    text += fmt::format("{}{}", i > 0 ? ", " : "", g.cores[i]);
  return text;
}

std::string gap_text(const TensorGap& g) {
  if (g.bits_a.empty()) return g.first;
  return fmt::format("{} of {} elements, first {}: {} ({:.9g}) in A, {} ({:.9g}) in B",
                     text::count(g.different), text::count(g.elements), g.first, g.bits_a,
                     g.value_a, g.bits_b, g.value_b);
}

void print_tensors(const std::vector<TensorGap>& tensors) {
  constexpr size_t kShown = 4;
  for (size_t i = 0; i < tensors.size() && i < kShown; ++i)
    print("  {}, {}\n    {}\n", tensors[i].name, cores_text(tensors[i]), gap_text(tensors[i]));
  if (tensors.size() > kShown) print("  and {} more (--json has all)\n", tensors.size() - kShown);
}

int tell_step(const StepDivergence& p, bool json) {
  if (json) {
    Json tensors = Json::array();
    for (const TensorGap& g : p.tensors) tensors.push_back(json_of(g));
    const Json j = {{"schema", 1},
                    {"axis", "step"},
                    {"step", p.step ? Json(*p.step) : Json(nullptr)},
                    {"same_again", p.meets ? Json(*p.meets) : Json(nullptr)},
                    {"compared", {p.first, p.end}},
                    {"executions", p.executions},
                    {"steps_run", p.steps_run},
                    {"tensors", tensors},
                    {"notes", p.notes}};
    print_document(j.dump(2) + "\n");
  } else {
    if (p.step) {
      print("step {}: the first after which the states differ", *p.step);
      print("{}\n", p.meets ? fmt::format("; the same again after step {}", *p.meets) : "");
      print_tensors(p.tensors);
      print(
          "  bits are compared, which another order of sums changes, too; twinrun diagnose says "
          "what is beyond rounding\n");
    } else {
      print("no difference: the states after steps {} to {} are the same\n", p.first, p.end - 1);
    }
    for (const std::string& note : p.notes) print("  note: {}\n", note);
    print("  {}, {} in all\n", text::plural(p.executions, "execution"),
          text::plural(p.steps_run, "step"));
  }
  return p.step ? 0 : kExitUnavailable;
}

// Whether the argument names an existing .h5 file; its content is checked later.
bool names_file(const std::string& word) {
  std::error_code ignored;
  return word.ends_with(".h5") && std::filesystem::is_regular_file(word, ignored);
}

Result<int> run_and_engine(const Parsed& parsed, const std::string& path, Progress* progress,
                           const StopFlag& stop) {
  TWINRUN_ASSIGN(const auto run, read_run(path));
  TWINRUN_ASSIGN(const auto overrides, overrides_of(parsed));
  TWINRUN_ASSIGN(auto scenario, parse_scenario(run.scenario, path, overrides));
  if (std::ranges::find(overrides, "data.cache", &Overrides::value_type::first) == overrides.end())
    forget_cache_file(scenario);
  if (scenario_digest(scenario).hex() != run.scenario_digest && !overrides.empty())
    return Error{"the scenario is not that of the run", "--set", "only data.dir may change here"};
  TWINRUN_ASSIGN(const ProgramFiles files, program_files_of(parsed));
  TWINRUN_RETURN_IF_ERROR(find_program(files, run.environment, scenario));
  TWINRUN_ASSIGN(Experiment experiment, make_experiment(scenario));
  TWINRUN_ASSIGN(const auto pair, pair_of(parsed, std::move(experiment), progress, run.cores));
  TWINRUN_ASSIGN(
      const auto divergence,
      unless_stopped(bisect::part_of_run(pair.experiment, pair.b.program, run, *pair.b.backend,
                                         parsed.get<bool>("scan"), progress, &stop),
                     stop));
  return tell_step(divergence, parsed.get<bool>("json"));
}

// ---- op

int tell_op(const OpDivergence& p, const std::string& a, const std::string& b, int64_t executions,
            bool json) {
  const bool found = p.by != OpDivergence::By::kNothing;
  const bool repeats = p.repeats_a && p.repeats_b;
  if (json) {
    Json tensors = Json::array();
    for (const TensorGap& g : p.tensors) tensors.push_back(json_of(g));
    const Json j = {{"schema", 1},
                    {"axis", "op"},
                    {"by", p.by == OpDivergence::By::kOp ? Json("op")
                           : found                       ? Json("tensor")
                                                         : Json()},
                    {"step", p.step},
                    {"op", p.by == OpDivergence::By::kOp ? Json(p.op) : Json(nullptr)},
                    {"kind", p.kind},
                    {"phase", p.phase},
                    {"gap", found ? json_of(p.gap) : Json(nullptr)},
                    {"inputs_agree", p.inputs_agree},
                    {"repeats", {{"a", p.repeats_a}, {"b", p.repeats_b}}},
                    {"ops_before", p.ops},
                    {"executions", executions + p.executions},
                    {"tensors", tensors},
                    {"notes", p.notes}};
    print_document(j.dump(2) + "\n");
  } else {
    if (p.by == OpDivergence::By::kOp) {
      print("step {}, op {} ({}, {}), {}\n  {}\n  A = {}, B = {}; {} before it agree{}\n", p.step,
            p.op, p.kind, p.phase, cores_text(p.gap), gap_text(p.gap), a, b,
            text::plural(p.ops, "op"),
            p.inputs_agree ? ", and so do its operands" : "; its operands do not");
    } else if (found) {
      print("step {}, tensor {}, {}\n  {}\n  A = {}, B = {}\n", p.step, p.gap.name,
            cores_text(p.gap), gap_text(p.gap), a, b);
    } else {
      print("step {}: no difference between A = {} and B = {}\n", p.step, a, b);
    }
    for (const std::string& note : p.notes) print("  note: {}\n", note);
    if (!repeats) {
      print("  not reproducible: run again from the same state, {} gives different bits there\n",
            !p.repeats_a && !p.repeats_b ? "each"
            : p.repeats_a                ? "B"
                                         : "A");
    }
    if (p.by == OpDivergence::By::kOp || p.tensors.size() > 1) {
      print("  {} of the step's outputs and state differ in the end\n",
            text::plural(static_cast<int64_t>(p.tensors.size()), "tensor"));
    }
    print("  {}\n", text::plural(executions + p.executions, "execution"));
  }
  return found && repeats ? 0 : kExitUnavailable;
}

// Runs B alone and compares each op with the bound of B's own arithmetic, from step `first` on.
Result<int> by_bounds(const Pair& pair, int64_t first, int64_t last, std::optional<States> start,
                      int threads, bool json, Progress& progress, const StopFlag& stop) {
  if (!pair.b.backend->capabilities().op_trace)
    return Error{"shows no ops, so nothing can be compared with a bound", pair.name_b,
                 "twinrun bisect op without --tolerance bound compares tensors",
                 Error::Kind::kUnavailable};
  ThreadPool pool(threads);
  ProbePolicy policy;
  policy.bias = false;
  Lockstep probe(pair.b.program, pair.b.backend->capabilities(), policy, &pool);
  TWINRUN_ASSIGN(const auto engine, pair.b.backend->prepare(pair.b.program));
  StepFeed feed(pair.experiment, pair.b.program);
  States states = start ? *start : initial_states(pair.experiment, pair.b.program);
  StepOutputs outputs;
  progress.begin(pair.name_b + " against its bounds", last - first);
  int64_t done = first;
  // Not a StepLoop: batches that cannot be read and engines that fail exit with different codes.
  for (int64_t step = first; step < last && probe.violations().empty(); ++step, ++done) {
    if (stop.load())
      return Error{"interrupted", "", "run the same command to start again",
                   Error::Kind::kInterrupted};
    TWINRUN_ASSIGN(const auto inputs, feed.inputs(step));
    TraceSink* sink = probe.begin_step(step, states, inputs);
    TWINRUN_RETURN_IF_ERROR(engine->step(step, states, inputs, outputs, sink));
    probe.end_step(step, states, outputs);
    end_of_loop(pair.experiment.scenario, states, step);
    progress.step(step + 1 - first, "");
  }
  progress.end(probe.violations().empty() ? "every op is inside its bound" : "outside");
  const Violation* v = probe.violations().empty() ? nullptr : &probe.violations().front();
  if (json) {
    Json j = {{"schema", 1}, {"axis", "op"}, {"by", v ? Json("bound") : Json(nullptr)}};
    j["step"] = v ? Json(v->step) : Json(nullptr);
    if (v != nullptr) {
      j["op"] = v->op, j["kind"] = v->kind, j["phase"] = v->phase, j["core"] = v->replica;
      j["cores"] = v->replicas, j["elements"] = v->elements, j["link"] = v->link;
      j["times_the_bound"] = v->verdict.worst, j["fingerprint"] = v->fingerprint;
    }
    j["compared"] = {first, done};
    j["executions"] = 1;
    print_document(j.dump(2) + "\n");
  } else if (v != nullptr) {
    print("step {}, op {} ({}, {}), {}\n  {}\n", v->step, v->op, v->kind, v->phase,
          v->replica < 0 ? "the collective" : fmt::format("core {}", v->replica),
          v->link.empty()
              ? fmt::format("{}, {:.3g} times what rounding allows{}", v->elements,
                            v->verdict.worst, v->fingerprint.empty() ? "" : ": " + v->fingerprint)
              : v->link);
  } else {
    print("no op of steps {} to {} is outside its bound\n", first, done - 1);
  }
  return v != nullptr ? 0 : kExitUnavailable;
}

struct Begin {
  States states;
  int64_t step = 0;
};

// --from: the file's last state at or before --step; without --step, its first state.
Result<std::optional<Begin>> begin_of(const Parsed& parsed, const Program& program) {
  if (!parsed.has("from")) return std::optional<Begin>();
  const auto path = parsed.get<std::string>("from");
  TWINRUN_ASSIGN(const std::string kind, file_kind(path));
  std::vector<Checkpoint> all;
  if (kind == "run") {
    TWINRUN_ASSIGN(RunFile run, read_run(path));
    all = std::move(run.checkpoints);
  } else {
    TWINRUN_ASSIGN(Checkpoint one, read_checkpoint(path));
    all.push_back(std::move(one));
  }
  const Checkpoint* best = nullptr;
  for (const Checkpoint& c : all) {
    if (parsed.has("step") && c.step > parsed.get<int64_t>("step")) continue;
    if (best == nullptr || (parsed.has("step") ? c.step > best->step : c.step < best->step))
      best = &c;
  }
  if (best == nullptr)
    return Error{"holds no state at or before the step", path, "leave out --from"};
  TWINRUN_ASSIGN(States states, from_checkpoint(*best, program));
  return std::optional<Begin>(Begin{std::move(states), best->step});
}

// The two sides of a script are held against each other, call by call, by diagnose:
// [--a PYTHON] --b PYTHON SCRIPT [ARGS].
std::optional<Args> as_diagnosis(const Args& args, const Options& options) {
  const std::vector<size_t> at = arguments_at(args, options);
  const auto found = std::ranges::find_if(at, [&](size_t i) { return args[i].ends_with(".py"); });
  if (found == at.end()) return std::nullopt;
  const auto script = args.begin() + static_cast<int64_t>(*found);
  Args out, python;
  for (auto at = args.begin(); at != script; ++at) {
    const bool has_value = at + 1 != script;
    if (*at == "--a" && has_value) {
      python = {*++at};
    } else {
      out.push_back(*at == "--b" ? "--against" : *at);
    }
  }
  out.insert(out.end(), python.begin(), python.end());
  out.insert(out.end(), script, args.end());
  return out;
}

}  // namespace

Result<int> bisect_step(const Args& args) {
  if (fault_help(args)) return 0;
  Options options;
  add_program_options(options);
  add_engine_options(options);
  options.takes("?A", scenario_values());
  options.flag("scan", "RUN.h5: run engine B from the first state on, whatever is stored");
  add_common_options(options);
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(args,
            "twinrun bisect step A.h5 B.h5\n       twinrun bisect step RUN.h5 --b ENGINE\n       "
            "twinrun bisect step SCENARIO|--program FILE --a ENGINE --b ENGINE",
            "twinrun bisect step runs/R.h5 runs/T.h5", options, {"?A", "?B"}));
  if (parsed.help) return 0;
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  const auto first = parsed.has("?A") ? parsed.get<std::string>("?A") : "";
  if (parsed.has("?B")) {
    TWINRUN_ASSIGN(const auto a, read_run(first));
    TWINRUN_ASSIGN(const auto b, read_run(parsed.get<std::string>("?B")));
    TWINRUN_ASSIGN(const auto divergence, bisect::part_of_runs(a, b));
    return tell_step(divergence, parsed.get<bool>("json"));
  }
  if (names_file(first)) return run_and_engine(parsed, first, &printer, stop);
  TWINRUN_ASSIGN(Experiment experiment, experiment_of(parsed, "?A"));
  TWINRUN_ASSIGN(const auto pair, pair_of(parsed, std::move(experiment), &printer));
  TWINRUN_ASSIGN(const auto diverged,
                 unless_stopped(bisect::part_of_engines(pair.twins(&printer, &stop)), stop));
  return tell_step(diverged.divergence, parsed.get<bool>("json"));
}

Result<int> bisect_op(const Args& args) {
  if (fault_help(args)) return 0;
  Options options;
  add_program_options(options);
  add_engine_options(options);
  options.number<int64_t>("step",
                          "search in this step (default: the first after which they differ)");
  options.text(
      "from",
      "a run or checkpoint: begin from its last state at or before --step, instead of the seed");
  options.one_of("tolerance", "",
                 {{"bits", "the first op whose bits differ"},
                  {"bound", "the first of B's outside its rounding bound"}},
                 "bits");
  add_common_options(options);
  if (const auto sides = as_diagnosis(args, options)) return diagnose_verb(*sides);
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(args, "twinrun bisect op SCENARIO|--program FILE --a ENGINE --b ENGINE [--step N]",
            "twinrun bisect op drill_mlp --a tpu --b tpu --fault "
            "'bit_flip@dense1/kernel.grad,step=3'",
            options, {"?SCENARIO"}));
  if (parsed.help) return 0;
  const auto tolerance = parsed.get<std::string>("tolerance");
  TWINRUN_ASSIGN(Experiment experiment, experiment_of(parsed));
  const int64_t steps = experiment.scenario.train.steps;
  if (parsed.has("step")) {
    const int64_t step = parsed.get<int64_t>("step");
    if (step < 0 || step >= steps)
      return Error{fmt::format("step {}", step), "--step",
                   fmt::format("allowed: 0 to {} (train.steps = {})", steps - 1, steps)};
  }
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  const bool json = parsed.get<bool>("json");
  TWINRUN_ASSIGN(const auto pair, pair_of(parsed, std::move(experiment), &printer));
  TWINRUN_ASSIGN(auto begin, begin_of(parsed, pair.a.program));
  std::optional<std::pair<States, int64_t>> start;
  if (begin) start = {std::move(begin->states), begin->step};
  const int64_t end = parsed.has("step") ? parsed.get<int64_t>("step") + 1 : steps;
  if (tolerance == "bound") {
    const int64_t first = start ? start->second : 0;
    return by_bounds(pair, first, end, start ? std::optional(start->first) : std::nullopt,
                     *threads_of(parsed), json, printer, stop);
  }
  const bisect::Twins twins = pair.twins(&printer, &stop);
  TWINRUN_ASSIGN(const auto diverged,
                 unless_stopped(bisect::part_of_engines(twins, std::move(start), end), stop));
  if (parsed.has("step") && diverged.divergence.step && *diverged.divergence.step + 1 < end) {
    return Error{
        fmt::format("the engines' states differ already after step {}", *diverged.divergence.step),
        "--step", fmt::format("leave it out, or give --step {}", *diverged.divergence.step),
        Error::Kind::kUnavailable};
  }
  TWINRUN_ASSIGN(const auto op, unless_stopped(bisect::op_of_step(twins, diverged.kept), stop));
  return tell_op(op, pair.name_a, pair.name_b, diverged.divergence.executions, json);
}

}  // namespace twinrun::cli
