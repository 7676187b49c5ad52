#include "harness/drill/truth.h"

#include <algorithm>
#include <bit>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "harness/drill/subject.h"
#include "harness/pipeline.h"
#include "harness/run.h"
#include "program/base/philox.h"

namespace twinrun::drill {
namespace {

constexpr uint64_t kFirstHonest =
    0x400000;  // seeds of the honest engines that judge: no case's subject has them
constexpr uint64_t kFirstSeed = 1000;  // ... and of the runs behind `matters`
constexpr size_t kLooks = 24;          // activations compared at most
constexpr int64_t kElements = 4096;    // of one result

struct Seen {
  std::vector<std::vector<Tensor>> inputs;
  std::vector<Tensor> outputs;
};

// The injector's own eyes on one op.
class Witness : public StepObserver, public TraceSink {
 public:
  explicit Witness(std::string op) : op_(std::move(op)) {}
  TraceSink* begin_step(int64_t, const States&, const StepInputs&) override { return this; }
  void on_op(const OpEvent& event) override {
    if (event.op().name != op_) return;
    seen_[event.step] = {{event.inputs.begin(), event.inputs.end()},
                         {event.outputs.begin(), event.outputs.end()}};
  }
  const Seen* at(int64_t step) const {
    const auto it = seen_.find(step);
    return it == seen_.end() ? nullptr : &it->second;
  }

 private:
  std::string op_;
  std::map<int64_t, Seen> seen_;
};

double ulp(double x) {
  const auto f = static_cast<float>(std::fabs(x));
  return std::nextafter(f, std::numeric_limits<float>::infinity()) - static_cast<double>(f);
}

// What is compared of a large result: where it is farthest from one honest engine's, and elements at random.
std::vector<int64_t> chosen(const std::vector<float>& honest, std::span<const float> subject) {
  const auto n = static_cast<int64_t>(subject.size());
  std::vector<int64_t> all(subject.size());
  std::iota(all.begin(), all.end(), 0);
  if (n <= kElements) return all;
  const auto far = [&](int64_t i) {
    const auto e = static_cast<size_t>(i);
    const double d = std::fabs(static_cast<double>(subject[e]) - static_cast<double>(honest[e]));
    return std::isnan(d) ? std::numeric_limits<double>::infinity() : d / ulp(honest[e]);
  };
  std::ranges::partial_sort(all, all.begin() + kElements / 2, std::greater<>(), far);
  all.resize(kElements / 2);
  for (uint64_t i = 0; i < kElements / 2; ++i)
    all.push_back(bounded(draw({kFirstHonest, 0}, 0, 0, i), static_cast<uint32_t>(n)));
  return all;
}

// The case's own run, before anybody diagnoses it.
Status look_at_fault(const DrillCase& c, const Experiment& e, Truth& truth) {
  const auto log = std::make_shared<FaultLog>();
  // Intermittent faults differ from run to run: this is to be what a diagnosis does as T, after E1.
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

  const std::vector<Variant> honest = honest_judges(subject->capabilities());
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
    const Comparison found = compare(honest, program.graph.op(id), inputs, seen->outputs[replica]);
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
  return Ok{};
}

double distance(const Program& program, const States& a, const States& b, StateRole role) {
  double gap = 0, norm = 0;
  for (size_t i = 0; i < program.state.size(); ++i) {
    if (program.state[i].role != role) continue;
    const std::vector<double> y = as_doubles(b[0].vars[i]);
    for (const ReplicaState& replica : a) {
      const std::vector<double> x = as_doubles(replica.vars[i]);
      for (size_t k = 0; k < x.size(); ++k) {
        gap += (x[k] - y[k]) * (x[k] - y[k]);
        norm += y[k] * y[k];
      }
    }
  }
  return norm > 0 ? std::sqrt(gap / norm) : 0;
}

// The three first steps of both programs in binary64: weights, slots and statistics of every core.
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
    worst = std::max(worst, distance(whole, a.states, b.states, role));
  return std::isfinite(worst) ? worst : std::numeric_limits<double>::infinity();
}

// S - R in held-out loss over seeds, on the reference alone.
Result<std::string> matters(const DrillCase& c, const Experiment& e) {
  std::vector<double> differences;
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
  }
  const double n = kSeeds;
  const double mean = std::accumulate(differences.begin(), differences.end(), 0.0) / n;
  if (!std::isfinite(mean)) return std::string("outside");
  double square = 0;
  for (const double d : differences) square += (d - mean) * (d - mean);
  const double deviation = std::sqrt(square / (n - 1)), margin = e.scenario.diagnose.margin;
  // Would as many seeds as the scenario gives decide it, in 19 of 20 drawings of them?
  const double seeds = std::max(2, e.scenario.diagnose.seeds), error = deviation / std::sqrt(seeds);
  const boost::math::students_t t(seeds - 1);
  const double wide = boost::math::quantile(t, 0.975), narrow = boost::math::quantile(t, 0.95);
  if (std::fabs(mean) - margin > (wide + narrow) * error) return std::string("outside");
  return std::string(margin - std::fabs(mean) > 2 * narrow * error ? "equivalent" : "undetermined");
}

}  // namespace

std::vector<Variant> honest_judges(const Capabilities& declared) {
  std::vector<Variant> honest;
  for (uint64_t i = 0; i < kHonest; ++i)
    honest.push_back(variant_within(kFirstHonest + i, declared));
  return honest;
}

Comparison compare(const std::vector<Variant>& honest, const Op& op,
                   const std::vector<Tensor>& inputs, const Tensor& output) {
  // Integers and predicates have one right value, and bits of it changed.
  if (output.dtype() != DType::kF32) return {std::numeric_limits<double>::infinity(), 0};
  const std::span<const float> subject = output.as<float>();
  std::vector<int64_t> elements(subject.size());
  std::iota(elements.begin(), elements.end(), 0);
  if (static_cast<int64_t>(subject.size()) > kElements)
    elements = chosen(variant_elements(honest[0], op, inputs, elements), subject);
  const std::vector<std::vector<float>> theirs = variants_elements(honest, op, inputs, elements);

  // An engine that declares it may fuse a product into the sum that takes it, unrounded. The judges are asked for this op alone
  // and have read the product rounded: half an ulp of it is what they miss.
  const bool fusable =
      honest[0].declared.contracts && (op.kind == OpKind::kAdd || op.kind == OpKind::kSubtract);
  const auto unrounded = [&](size_t e) {
    double sum = 0;
    for (const Tensor& operand : inputs)
      sum += ulp(operand.as<float>()[static_cast<size_t>(elements[e])]) / 2;
    return sum;
  };
  std::vector<double> middle, half;
  bool rounds = fusable;
  for (size_t e = 0; e < elements.size(); ++e) {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const auto& v : theirs) {
      low = std::min<double>(low, v[e]);
      high = std::max<double>(high, v[e]);
    }
    middle.push_back(low / 2 + high / 2);
    half.push_back(high / 2 - low / 2);
    rounds = rounds || half.back() > 0;
  }
  // Where the judges happen to agree on one element, they still show around it how far they can be apart.
  std::vector<double> apart;
  std::ranges::copy_if(half, std::back_inserter(apart), [](double h) { return h > 0; });
  std::ranges::sort(apart);
  const double typical = apart.empty() ? 0 : apart[apart.size() / 2];

  Comparison c;
  double own = 0;
  std::vector<double> leans(theirs.size(), 0);
  for (size_t e = 0; e < elements.size(); ++e) {
    const double x = subject[static_cast<size_t>(elements[e])];
    if (!std::isfinite(middle[e]) || !std::isfinite(half[e])) continue;  // honest engines overflow
    const double need =
        rounds ? std::max({half[e], typical, ulp(middle[e])}) + (fusable ? unrounded(e) : 0) : 0;
    const double gap = std::fabs(x - middle[e]);
    if (!std::isfinite(gap)) {
      c.distance = std::numeric_limits<double>::infinity();
    } else if (gap > 0) {
      c.distance = std::max(
          c.distance, need > 0 ? gap / (kFactor * need) : std::numeric_limits<double>::infinity());
    }
    if (need == 0 || !std::isfinite(gap)) continue;
    const double sign = middle[e] < 0 ? -1 : 1;
    own += std::clamp(sign * (x - middle[e]) / need, -1.0, 1.0);
    for (size_t v = 0; v < theirs.size(); ++v) leans[v] += sign * (theirs[v][e] - middle[e]) / need;
  }
  const double n = static_cast<double>(leans.size());
  const double mean = std::accumulate(leans.begin(), leans.end(), 0.0) / n;
  double square = 0;
  for (const double lean : leans) square += (lean - mean) * (lean - mean);
  const double deviation = std::sqrt(square / (n - 1));
  c.lean = deviation > 0 ? (own - mean) / deviation : 0;
  return c;
}

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
