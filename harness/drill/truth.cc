// Decides what is true of a case: whether its fault is outside, what its cause changes.
#include "harness/drill/truth.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "backends/registry.h"
#include "harness/diagnose/pipeline.h"
#include "harness/drill/subject.h"
#include "harness/effect/effect.h"
#include "harness/experiment/engines.h"
#include "harness/run/evaluate.h"
#include "harness/run/run.h"
#include "harness/tensors/distance.h"
#include "program/base/distributions.h"

namespace twinrun::drill {
namespace {

constexpr uint64_t kFirstSeed = 1000;  // of the runs behind `matters`; no case's subject uses them
constexpr size_t kLooks = 24;          // at most so many activations are compared
constexpr size_t kStepLooks = 8;       // at most so many whole steps are compared

// One step of the subject: inputs and outputs of the faulty op, and the tensors of the step.
struct Seen {
  std::vector<std::vector<Tensor>> inputs;
  std::vector<Tensor> outputs;
  States before, after;
  StepInputs fed;
  StepOutputs results;
};

// Records the faulty op and the tensors of each step of the run.
class Witness : public StepObserver, public TraceSink {
 public:
  explicit Witness(std::string op) : op_(std::move(op)) {}
  TraceSink* begin_step(int64_t step, const States& before, const StepInputs& inputs) override {
    seen_[step].before = before;
    seen_[step].fed = inputs;
    return this;
  }
  void on_op(const OpEvent& event) override {
    if (event.op().name != op_) return;
    seen_[event.step].inputs = {event.inputs.begin(), event.inputs.end()};
    seen_[event.step].outputs = {event.outputs.begin(), event.outputs.end()};
  }
  void end_step(int64_t step, const States& after, const StepOutputs& outputs) override {
    seen_[step].after = after;
    seen_[step].results = outputs;
  }
  const Seen* at(int64_t step) const {
    const auto it = seen_.find(step);
    return it == seen_.end() || it->second.outputs.empty() ? nullptr : &it->second;
  }

 private:
  std::string op_;
  std::map<int64_t, Seen> seen_;
};

// The distance of the tensors on the steps on which the fault was active, up to the first step
// outside.
Result<double> distance_of_tensors(const std::vector<Variant>& conforming, const Program& program,
                                   const std::set<int64_t>& steps, const Witness& witness) {
  TWINRUN_ASSIGN(StepJudges judges, StepJudges::make(conforming, program));
  double worst = 0;
  size_t looked = 0;
  for (const int64_t step : steps) {
    const Seen* seen = witness.at(step);
    if (seen == nullptr) continue;
    TWINRUN_ASSIGN(const double distance,
                   judges.distance(step, seen->before, seen->fed, seen->after, seen->results));
    worst = std::max(worst, distance);
    if (worst > 1 || ++looked == kStepLooks) break;
  }
  return worst;
}

// Runs the case once, before any diagnosis, and compares each activation with the judges.
Status look_at_fault(const DrillCase& c, const Experiment& e, Truth& truth) {
  const auto log = std::make_shared<FaultLog>();
  // Intermittent faults differ from run to run. Number this run as the diagnosis numbers T, which
  // comes after E1 if there are several cores.
  log->prepared = e.sharding.cores > 1 ? 1 : 0;
  TWINRUN_ASSIGN(const auto subject, injected_engine(c, e, backend_options(e.scenario, 1), log));
  const Program program = as_computed_by(
      subject->capabilities(),
      e.sharding.cores > 1 ? e.sharded(e.sharding) : e.whole(Experiment::Stack::kTpu));
  Witness witness(c.op);
  RunOptions options;
  options.observer = &witness;
  options.evaluate = options.digest_states = false;
  TWINRUN_RETURN_IF_ERROR(train(e, program, *subject, options));
  if (log->runs.empty() || log->runs.front().empty()) return Ok{};
  const std::vector<Activation>& activations = log->runs.front();
  truth.activated = true;
  truth.first_activated = activations.front().step;
  truth.replica = activations.front().replica;
  for (const Activation& a : activations) {
    if (a.step == truth.first_activated && a.replica != truth.replica) truth.replica = -1;
  }

  const std::vector<Variant> conforming = conforming_judges(subject->capabilities());
  const ValueId id = program.graph.find(c.op);
  const bool collective = id != kNoValue && program.graph.op(id).kind == OpKind::kAllReduce;
  int leaning = 0, looked = 0, last = 0;
  for (size_t i = 0; i < std::min(activations.size(), kLooks); ++i) {
    const Activation& a = activations[i];
    const Seen* seen = witness.at(a.step);
    if (id == kNoValue || seen == nullptr) continue;
    const auto replica = static_cast<size_t>(std::max(0, a.replica));
    std::vector<Tensor> inputs;
    if (collective) {
      for (const auto& contribution : seen->inputs) inputs.push_back(contribution.front());
    } else {
      inputs = seen->inputs[replica];
    }
    const Comparison found =
        compare(conforming, program.graph.op(id), inputs, seen->outputs[replica]);
    truth.distance = std::max(truth.distance, found.distance);
    const int side = found.lean > kLean ? 1 : found.lean < -kLean ? -1 : 0;
    leaning += side != 0 && (looked == 0 || side == last) ? 1 : 0;
    last = side;
    ++looked;
    if (found.distance <= 1) continue;
    truth.outside = true;
    truth.first_outside = a.step;
    break;
  }
  truth.biased = !truth.outside && looked > 0 && leaning == looked;
  if (c.level != 'C' || !truth.outside) return Ok{};
  std::set<int64_t> steps;
  for (const Activation& a : activations) {
    if (a.step >= truth.first_outside) steps.insert(a.step);
  }
  TWINRUN_ASSIGN(truth.tensors, distance_of_tensors(conforming, program, steps, witness));
  return Ok{};
}

double relative_distance(const Program& program, const States& a, const States& b, StateRole role) {
  RelativeDistance distance;
  for (size_t i = 0; i < program.state.size(); ++i) {
    if (program.state[i].role != role) continue;
    for (const ReplicaState& replica : a) distance.add(replica.vars[i], b[0].vars[i]);
  }
  return distance.value();
}

// Distance of both programs after their first steps in binary64 (three without accumulation):
// weights, slots and statistics of every core.
Result<double> meaning_of(const DrillCase& c, const Experiment& e) {
  RunOptions options;
  options.evaluate = options.digest_states = false;
  options.steps = std::min<int64_t>(e.scenario.train.steps, 2 + e.scenario.train.accumulate);
  TWINRUN_ASSIGN(auto plain, make_backend("cpu:f64", {}));
  TWINRUN_ASSIGN(auto caused, make_backend("cpu:f64", {}));
  caused = with_hidden_program(std::move(caused), c, e);
  const Program whole = e.whole(Experiment::Stack::kTpu), sharded = e.sharded(e.sharding);
  TWINRUN_ASSIGN(const RunResult a, train(e, sharded, *caused, options));
  TWINRUN_ASSIGN(const RunResult b, train(e, whole, *plain, options));
  double worst = 0;
  for (const StateRole role : {StateRole::kParameter, StateRole::kSlot, StateRole::kStatistic})
    worst = std::max(worst, relative_distance(whole, a.states, b.states, role));
  return std::isfinite(worst) ? worst : std::numeric_limits<double>::infinity();
}

// Compares S - R in held-out loss, over seeds and on the reference alone, with the margin.
Result<std::string> matters(const DrillCase& c, const Experiment& e) {
  std::vector<double> differences;
  std::vector<Evaluation> references;
  RunOptions options;
  options.digest_states = false;
  for (uint64_t i = 0; i < kSeeds; ++i) {
    TWINRUN_ASSIGN(const Experiment other, with_seed(e, kFirstSeed + i));
    TWINRUN_ASSIGN(auto plain, make_backend("cpu", {}));
    TWINRUN_ASSIGN(auto caused, make_backend("cpu", {}));
    caused = with_hidden_program(std::move(caused), c, other);
    TWINRUN_ASSIGN(const RunResult s,
                   train(other, other.sharded(other.sharding), *caused, options));
    TWINRUN_ASSIGN(const RunResult r, train(other, other.whole(), *plain, options));
    differences.push_back(s.file.evaluations.back().loss - r.file.evaluations.back().loss);
    references.push_back(r.file.evaluations.back());
  }
  const double n = kSeeds;
  const double mean = std::accumulate(differences.begin(), differences.end(), 0.0) / n;
  if (!std::isfinite(mean)) return std::string("harmful");
  double square = 0;
  for (const double d : differences) square += (d - mean) * (d - mean);
  const double deviation = std::sqrt(square / (n - 1)), margin = e.scenario.diagnose.margin;
  // Would the scenario's maximum number of seeds decide it at the last look, in 19 of 20 draws?
  const DiagnoseSpec& asked = e.scenario.diagnose;
  const std::vector<int> looks = looks_of(asked.seeds, std::max(asked.seeds, asked.max_seeds));
  const double seeds = std::max(2, looks.back()), error = deviation / std::sqrt(seeds);
  const double tail = 0.025 / static_cast<double>(looks.size());
  const double reach =
      (student_quantile(seeds - 1, 1 - tail) + student_quantile(seeds - 1, 0.95)) * error;
  if (std::fabs(mean) - margin > reach) return std::string(mean > 0 ? "harmful" : "beneficial");
  const Program whole = e.whole();
  TWINRUN_ASSIGN(const Evaluation initial,
                 Evaluator(e, 1).evaluate(whole, initial_states(e, whole), 0));
  if (!judge_learning(e, initial, references).learnt) return std::string("open");
  return std::string(margin - std::fabs(mean) > reach ? "inside" : "open");
}

}  // namespace

std::optional<MeaningTruth> TruthCache::find(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto it = known_.find(key);
  if (it == known_.end()) return std::nullopt;
  return it->second;
}

void TruthCache::keep(const std::string& key, MeaningTruth truth) {
  const std::lock_guard lock(mutex_);
  known_[key] = std::move(truth);
}

Result<Truth> decide_truth(const DrillCase& c, const Experiment& e, TruthCache& cache) {
  Truth truth;
  if (!c.fault.empty()) TWINRUN_RETURN_IF_ERROR(look_at_fault(c, e, truth));
  if (e.sharding.cores < 2) return truth;
  const bool hidden = c.stratum == Stratum::kHidden;
  const std::string key = resolved_toml(e.scenario) + (hidden ? c.cause : "");
  std::optional<MeaningTruth> known = cache.find(key);
  if (!known) {
    known.emplace();
    TWINRUN_ASSIGN(known->drift, meaning_of(c, e));
    if (known->drift > kSameMeaning) {
      TWINRUN_ASSIGN(known->matters, matters(c, e));
    }
    cache.keep(key, *known);
  }
  truth.meaning = known->drift;
  truth.matters = known->matters;
  return truth;
}

}  // namespace twinrun::drill
