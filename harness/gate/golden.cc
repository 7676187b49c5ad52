// Records golden runs: the run, the trace of its steps, and whether its bits repeat.
#include "harness/gate/golden.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backends/variants/variant.h"
#include "harness/experiment/engines.h"
#include "harness/identify/identify.h"
#include "harness/run/run.h"
#include "reports/text.h"

namespace twinrun {
namespace {

// Keys of RunFile::environment.
constexpr const char* kEngine = "golden.engine";
constexpr const char* kDeclares = "golden.declares";
constexpr const char* kRepeats = "golden.repeats";
constexpr const char* kNoise = "golden.noise";

OpTraceRow row_of(int64_t step, size_t replica, const std::string& name, const Tensor& value) {
  OpTraceRow row;
  row.step = step;
  row.replica = static_cast<int32_t>(replica);
  row.op = name;
  row.digest = digest(value);
  double sum = 0;
  int64_t finite = 0;
  for (const double v : as_doubles(value)) {
    row.nans += std::isnan(v);
    row.infs += std::isinf(v);
    if (!std::isfinite(v)) continue;
    row.minimum = finite == 0 ? v : std::min(row.minimum, v);
    row.maximum = finite == 0 ? v : std::max(row.maximum, v);
    sum += v;
    ++finite;
  }
  if (finite > 0) row.mean = sum / static_cast<double>(finite);
  return row;
}

// One row for value(0), and one for each further replica whose value differs from it.
template <typename Value>
void add_rows(std::vector<OpTraceRow>& rows, int64_t step, const std::string& name, size_t replicas,
              Value value) {
  for (size_t r = 0; r < replicas; ++r) {
    if (r == 0 || !value(r).same_bits(value(0))) rows.push_back(row_of(step, r, name, value(r)));
  }
}

// Runs the first steps again, with another number of threads and on poisoned memory where bits are
// defined. Returns whether the states are the same.
Result<bool> repeats(const Experiment& e, const GoldenOptions& o, const EngineSetup& setup,
                     const RunFile& file) {
  RunOptions again;
  again.name = "the first steps again";
  again.steps = std::min<int64_t>(3, e.scenario.train.steps);
  again.evaluate = false;
  again.threads = o.spec.threads;
  again.progress = o.progress;
  RunResult repeated;
  if (!has_defined_bits(o.spec.engine, setup.backend->capabilities())) {
    TWINRUN_ASSIGN(repeated, train(e, setup.program, *setup.backend, again));
  } else {
    EngineSpec other = o.spec;
    ++other.threads;
    other.poison_memory = true;
    TWINRUN_ASSIGN(const EngineSetup second, set_up(e, other, o.progress));
    TWINRUN_ASSIGN(repeated, train(e, second.program, *second.backend, again));
  }
  return !first_difference(repeated.file, file).has_value();
}

std::string why_noise_cannot(const Gate::Noise& noise) {
  if (!noise.unusable.empty()) return noise.unusable;
  if (noise.inside) return "";
  return fmt::format(
      "the golden run itself lies outside the noise of conforming engines: {} at step {} "
      "({})",
      noise.outside->tensor, noise.outside->step.value_or(0), noise.outside->now);
}

}  // namespace

bool has_defined_bits(const std::string& engine, const Capabilities& declared) {
  return !is_foreign_engine(engine) && declared.deterministic;
}

bool traces_ops(const std::string& engine, const Capabilities& declared) {
  return !is_foreign_engine(engine) && declared.op_trace;
}

std::string declaration(const Capabilities& c) {
  if (!c.declares_arithmetic) return "nothing";
  const std::string order = c.block32_order ? "block32" : c.ours ? "contract" : "any";
  return fmt::format(
      "precision={} split={} order={} denormals={} elementary_ulps={} contracts={} "
      "one_pass_variance={} deterministic={}",
      declared_word(c), c.split == DotSplit::kNearest ? "nearest" : "truncated", order,
      c.flush ? "zero" : "kept", c.elementary_ulps, c.contracts, c.one_pass_variance,
      c.deterministic);
}

StepRecorder::StepRecorder(const Program& program, std::vector<int64_t> kept, bool shows_ops)
    : program_(program), kept_(std::move(kept)), shows_ops_(shows_ops) {
  tensors_ = compared_tensors(program);
  std::ranges::stable_sort(tensors_, {}, &Compared::id);  // in the order of computation
}

bool StepRecorder::needs_before(int64_t step) const {
  return std::ranges::binary_search(kept_, step);
}

TraceSink* StepRecorder::begin_step(int64_t step, const States& before, const StepInputs&) {
  const bool kept = needs_before(step);
  if (kept) states.push_back({step, before});
  ops_ = kept && shows_ops_;
  return ops_ ? this : nullptr;
}

void StepRecorder::on_op(const OpEvent& event) {
  add_rows(rows, event.step, event.op().name, event.outputs.size(),
           [&](size_t r) -> const Tensor& { return event.outputs[r]; });
}

void StepRecorder::end_step(int64_t step, const States& after, const StepOutputs& outputs) {
  if (!states.empty() && states.back().step == step) {
    states.back().after = after;
    states.back().outputs = outputs;
  }
  if (ops_) return;
  for (const Compared& c : tensors_) {
    add_rows(rows, step, c.tensor, after.size(), [&](size_t r) -> const Tensor& {
      return c.is_state ? after[r].vars[c.index] : outputs[r][c.index];
    });
  }
}

Result<Gate::Noise> noise_of(const Experiment& e, const Program& program, Backend& engine,
                             const std::vector<ProbedState>& states, int threads) {
  IdentifyOptions o;
  o.threads = threads;
  o.explain = false;
  TWINRUN_ASSIGN(const Identification m, identify_program(e, program, engine, states, o));
  Gate::Noise noise;
  noise.inside = m.outcome == Identification::Outcome::kInside;
  noise.ratio = m.ratio;
  noise.threshold = m.threshold;
  noise.false_alarm = m.false_alarm;
  noise.states = m.states;
  noise.elements = m.elements;
  noise.elements_kept = m.elements_kept;
  noise.unusable = m.why;
  if (m.outside.empty()) return noise;
  const TensorMismatch& first = m.outside.front();
  noise.outside = GateSite{first.step, first.tensor, {}, "", ""};
  // A value that all replicas share has one distance, reported for replica 0.
  if (first.replica > 0) noise.outside->core = first.replica;
  noise.outside->now = fmt::format(
      "{} times as far away as conforming engines, by {}{}", text::magnitude(first.ratio),
      text::relative(std::fabs(first.relative)), first.pattern.empty() ? "" : "; " + first.pattern);
  return noise;
}

Result<RunFile> record_golden(const Experiment& e, const GoldenOptions& o) {
  TWINRUN_RETURN_IF_ERROR(check_data_lasts(e));
  TWINRUN_ASSIGN(const EngineSetup setup, set_up(e, o.spec, o.progress));
  const Capabilities declared = setup.backend->capabilities();
  StepRecorder recorder(setup.program, spread_steps(e.scenario.train.steps, std::max(o.states, 1)),
                        traces_ops(o.spec.engine, declared));
  RunOptions run;
  run.name =
      fmt::format("{}, {}", declared.name, text::plural(setup.program.sharding.cores, "core"));
  run.threads = o.spec.threads;
  run.observer = &recorder;
  run.progress = o.progress;
  run.stop = o.stop;
  TWINRUN_ASSIGN(RunResult result, train(e, setup.program, *setup.backend, run));
  RunFile& file = result.file;
  if (!file.ended.completed()) return std::move(file);
  file.trace = std::move(recorder.rows);
  Checkpoint last = std::move(file.checkpoints.back());
  file.checkpoints.clear();
  for (const ProbedState& at : recorder.states) {
    Checkpoint c = to_checkpoint(setup.program, at.states, e.scenario, at.step);
    c.scenario = last.scenario;
    c.scenario_digest = last.scenario_digest;
    c.engine = last.engine;
    file.checkpoints.push_back(std::move(c));
  }
  file.checkpoints.push_back(std::move(last));

  file.environment[kEngine] = o.spec.engine;
  file.environment[kDeclares] = declaration(declared);
  TWINRUN_ASSIGN(const bool same, repeats(e, o, setup, file));
  file.environment[kRepeats] = same ? "yes" : "no";
  file.environment[kNoise] = "";
  if (!has_defined_bits(o.spec.engine, declared)) {
    TWINRUN_ASSIGN(const Gate::Noise noise,
                   noise_of(e, setup.program, *setup.backend, recorder.states, o.spec.threads));
    file.environment[kNoise] = why_noise_cannot(noise);
  }
  return std::move(file);
}

Result<GoldenFacts> golden_facts(const RunFile& golden, const std::string& path) {
  for (const char* key : {kEngine, kDeclares, kRepeats, kNoise}) {
    if (!golden.environment.contains(key))
      return Error{"is a run file but not a golden one", path,
                   "make one: twinrun record SCENARIO --engine ENGINE -o FILE.golden.h5"};
  }
  const auto& text = golden.environment;
  const std::string fix = "record it again: twinrun record";
  if (!golden.ended.completed() || golden.steps.empty() || golden.first_step != 0)
    return Error{fmt::format("its run is incomplete ({}, {} steps from step {})",
                             to_string(golden.ended), golden.steps.size(), golden.first_step),
                 path, fix};
  if (golden.checkpoints.empty() || golden.checkpoints.front().step != 0)
    return Error{"it lacks the state before step 0", path, fix};
  if (golden.state_digests.size() != golden.steps.size())
    return Error{fmt::format("it has {} state digests for {} steps", golden.state_digests.size(),
                             golden.steps.size()),
                 path, fix};
  return GoldenFacts{text.at(kEngine), text.at(kDeclares), text.at(kRepeats) == "yes",
                     text.at(kNoise)};
}

}  // namespace twinrun
