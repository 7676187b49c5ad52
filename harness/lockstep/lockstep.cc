// Replays or screens each op of a step, collects violations, and keeps what localisation needs.
#include "harness/lockstep/lockstep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backends/oracle/screen.h"
#include "harness/lockstep/conforming.h"
#include "harness/lockstep/fingerprint.h"
#include "harness/lockstep/stopwatch.h"
#include "harness/tensors/pattern.h"
#include "harness/tensors/picture.h"

namespace twinrun {
namespace {

constexpr int64_t kSmall = 1 << 20;  // elements of a result that is kept for fingerprints, at most
constexpr int64_t kKeptBytes = 256 << 20;  // bytes of all kept results, and of a state kept as lead
constexpr int64_t kPerOp = 8;              // violations of one op that are kept
constexpr size_t kResiduals = 64;          // samples of operand_residual per op
constexpr size_t kFlagged = 3;             // steps that are kept to be run again

double median(std::vector<double> v) {
  if (v.empty()) return -1;
  std::ranges::nth_element(v, v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2));
  return v[v.size() / 2];
}

std::string power_of_two(double x) { return x > 0 ? fmt::format("2^{:.1f}", std::log2(x)) : "0"; }

// Whether two programs have the same ops, compared as text.
bool same_ops(const Program& a, const Program& b) {
  const auto ops = [](const Program& p) {
    const std::string text = to_text(p);
    return text.substr(std::min(text.size(), text.find("\n%")));
  };
  return a.graph.size() == b.graph.size() && ops(a) == ops(b);
}

// The arithmetic assumed of an engine that declares none: any order of summation, operands of dots
// and convolutions rounded to bf16 or not, multiplies fused into adds or not, denormals flushed or
// kept, elementary functions as inaccurate as those of fast-math libraries (docs/method/bounds.md,
// "Nothing declared").
Capabilities judged_as(Capabilities declared) {
  if (declared.declares_arithmetic) return declared;
  declared.ours = declared.block32_order = false;
  declared.precision = DotPrecision::kF32;
  declared.flush = declared.contracts = true;
  declared.elementary_ulps = std::max(declared.elementary_ulps, 16.0);
  return declared;
}

}  // namespace

std::string ProbePolicy::text() const {
  if (every == 1) return "every step";
  const std::string rest = screen ? "; the others screened" : "";
  if (every == 0) return fmt::format("steps 0-{}{}", first - 1, rest);
  return fmt::format("steps 0-{} and every {}th{}", first - 1, every, rest);
}

Lockstep::Lockstep(const Program& program, Capabilities declared, ProbePolicy policy,
                   ThreadPool* pool)
    : program_(program),
      declared_(judged_as(std::move(declared))),
      policy_(policy),
      pool_(pool),
      links_(program, declared_.deterministic,
             [this](Violation v) {
               // Kept until the end of the step, to be sorted with the other violations of the
               // step.
               fresh_.push_back(std::move(v));
             }),
      bias_(policy.bias && declared_.declares_arithmetic ? conforming_engines(declared_, pool)
                                                         : ConformingElements{},
            /*seed=*/0),
      group_watch_(program, declared_, pool),
      followed_(&program) {}

bool Lockstep::probed(int64_t step) const {
  return step < policy_.first || (policy_.every > 0 && step % policy_.every == 0);
}

TraceSink* Lockstep::begin_step(int64_t step, const States& before, const StepInputs& inputs) {
  if (run_began_ == 0) run_began_ = Stopwatch::now();
  const Stopwatch watch(seconds_);
  // Localisation searches between the last clean step and the first bad one.
  const bool looked = probed_steps_.contains(step - 1) || screened_steps_.contains(step - 1);
  if (violations_.empty() && (step == 0 || looked)) last_clean_ = {step, before};
  KeptStep next{step, before, inputs, std::nullopt};
  int64_t bytes = 0;
  for (const ReplicaState& replica : before) {
    for (const Tensor& var : replica.vars) bytes += static_cast<int64_t>(var.bytes());
  }
  if (step_.step >= 0 && step_.step == step - 1 && bytes <= kKeptBytes)
    next.lead = {std::move(step_.before), std::move(step_.inputs)};
  step_ = std::move(next);
  if (probed(step)) {
    probed_steps_.insert(step);
  } else if (policy_.screen) {
    screened_steps_.insert(step);
  }
  const bool watched = probed(step) || policy_.screen;
  links_.begin_step(step, before, inputs, watched);
  seen_.assign(static_cast<size_t>(followed_->graph.size()), Seen::kNot);
  return watched ? this : nullptr;
}

void Lockstep::end_step(int64_t step, const States& after, const StepOutputs&) {
  {
    const Stopwatch watch(seconds_);
    if (group_watch_.stands()) {
      if (const auto wrong = group_watch_.wrong_state(after)) {
        const StateVar& var = program_.state[wrong->first];
        const ValueId id = var.next == kNoValue ? var.id : var.next;
        Violation v =
            violation_at(step, wrong->second, id, program_.graph.op(id), Violation::What::kLink);
        v.link = "the state after the step is not what was written";
        fresh_.push_back(std::move(v));
        links_.noticed();
      }
    }
    group_watch_.end_step();
    links_.end_step(after);
    if (!fresh_.empty()) {
      const bool statistic = std::ranges::all_of(
          fresh_, [](const Violation& v) { return v.what == Violation::What::kStatistic; });
      if (!statistic && flagged_.size() < kFlagged) flagged_.push_back(step_);
      std::ranges::stable_sort(fresh_, {}, &Violation::id);
      for (Violation& v : fresh_) {
        if (++rows_[v.id].violations > kPerOp) continue;
        // A bias begins at its first observation, before this step.
        const auto place = std::ranges::upper_bound(violations_, v.step, {}, &Violation::step);
        violations_.insert(place, std::move(v));
      }
      fresh_.clear();
    }
    if (probed_steps_.contains(step) || screened_steps_.contains(step)) {
      previous_ = std::move(current_);
    } else {
      previous_.clear();
    }
    current_.clear();
    kept_bytes_ = 0;
  }
  run_seconds_ = Stopwatch::now() - run_began_;
}

// Switches to the program that the engine reports, if its ops differ from those checked so far.
void Lockstep::follow(const Program* reported) {
  if (reported == reported_ || reported == nullptr) return;
  reported_ = reported;
  if (reported == followed_ || same_ops(*reported, *followed_)) return;
  executed_ = std::make_unique<Program>(*reported);
  followed_ = executed_.get();
  rows_.clear();
  seen_.assign(static_cast<size_t>(followed_->graph.size()), Seen::kNot);
}

// The nearest op upstream whose result was checked and lies inside its bound: the latest in program
// order among the operands, or their operands.
std::string Lockstep::last_good(ValueId id) const {
  std::set<ValueId> front(followed_->graph.op(id).operands.begin(),
                          followed_->graph.op(id).operands.end());
  while (!front.empty()) {
    const ValueId latest = *front.rbegin();
    const Op& op = followed_->graph.op(latest);
    front.erase(latest);
    const bool computed = class_of(op.kind) != OpClass::kSource;
    if (computed && seen_[static_cast<size_t>(latest)] == Seen::kInside) return op.name;
    front.insert(op.operands.begin(), op.operands.end());
  }
  return "";
}

void Lockstep::keep_result(ValueId id, int replica, const Tensor& output) {
  const auto bytes = static_cast<int64_t>(output.bytes());
  if (output.elements() > kSmall || kept_bytes_ + bytes > kKeptBytes) return;
  current_[{id, replica}] = output;
  kept_bytes_ += bytes;
}

// The finding of this step about an op's result, or nullptr.
Violation* Lockstep::found_already(ValueId id) {
  const auto same = std::ranges::find_if(
      fresh_, [&](const Violation& v) { return v.id == id && v.what == Violation::What::kResult; });
  return same == fresh_.end() ? nullptr : &*same;
}

void Lockstep::found(const OpEvent& event, size_t replica, const OracleVerdict& verdict,
                     const OracleResult& oracle, const std::vector<Tensor>& inputs) {
  const Op& op = event.op();
  const Tensor& output = event.outputs[replica];
  if (Violation* const same = found_already(event.id)) {
    ++same->replicas;
    return;
  }
  const bool collective = op.kind == OpKind::kAllReduce;
  Violation v = violation_at(event.step, collective ? -1 : static_cast<int>(replica), event.id, op,
                             Violation::What::kResult);
  v.verdict = verdict;
  v.bits = digest(output);
  v.elements = fmt::format("{} of {} elements, worst at {}", verdict.outside, verdict.elements,
                           index_text(op.type.dims, verdict.worst_element));
  v.last_good = last_good(event.id);
  // Search for a signature only for the first violation of an op.
  if (rows_[event.id].violations == 0) {
    Past past;
    past.cores = static_cast<int>(event.outputs.size());
    const auto before = [&](ValueId id, size_t core) -> Tensor {
      const auto kept = previous_.find({id, static_cast<int>(core)});
      if (kept != previous_.end()) return kept->second;
      const auto shared = previous_.find({id, 0});
      return shared != previous_.end() ? shared->second : Tensor();
    };
    past.result = before(event.id, replica);
    for (size_t core = 0; collective && core < event.inputs.size(); ++core)
      past.operands.push_back(before(op.operands[0], core));
    for (const ValueId operand : op.operands) {
      if (collective) break;
      const StateVar* var = nullptr;
      for (const StateVar& s : followed_->state) var = s.id == operand ? &s : var;
      const int i = var == nullptr ? -1 : program_.state_index(var->name);
      past.operands.push_back(i >= 0 && step_.lead
                                  ? step_.lead->first[replica].vars[static_cast<size_t>(i)]
                                  : before(operand, replica));
    }
    const std::vector<OpSignature> all =
        op_signatures(declared_, op, output, oracle, inputs, pool_, past);
    if (!all.empty()) v.fingerprint = all[0].text;
    for (size_t i = 1; i < all.size() && v.also.size() < 2; ++i) v.also.push_back(all[i].text);
    v.pattern = element_pattern(op.type.dims, wrong_elements(oracle, output));
    v.picture = picture_of(op.type.dims, oracle, output);
  }
  fresh_.push_back(std::move(v));
}

void Lockstep::biased(const OpEvent& event, int replica, const OracleVerdict& verdict,
                      BiasFinding finding) {
  Violation v =
      violation_at(finding.first_step, replica, event.id, event.op(), Violation::What::kStatistic);
  v.replicas = replica < 0 ? static_cast<int>(event.outputs.size()) : 1;
  v.verdict = verdict;
  v.elements = fmt::format("all {} elements inside their bounds, worst {:.2g} of it",
                           verdict.elements, verdict.worst);
  v.fingerprint = finding.text();
  if (std::fabs(finding.factor - 1) > 1e-6)
    v.also.push_back(fmt::format("on average {:.7g} times the expected value", finding.factor));
  v.last_good = last_good(event.id);
  // The bias began before it could be reported; the state of its first step was not kept.
  const int64_t first = finding.first_step;
  if (violations_.empty() && last_clean_ && last_clean_->first > first) {
    if (first == 0 || probed_steps_.contains(first - 1)) {
      last_clean_ = {first, {}};
    } else {
      last_clean_.reset();
    }
  }
  v.bias = std::move(finding);
  fresh_.push_back(std::move(v));
}

void Lockstep::check_result(const OpEvent& event, size_t replica) {
  const Op& op = event.op();
  const bool collective = op.kind == OpKind::kAllReduce;
  std::vector<Tensor> contributions;
  if (collective) {
    for (const auto& in : event.inputs) contributions.push_back(in[0]);
  }
  const std::vector<Tensor>& inputs = collective ? contributions : event.inputs[replica];
  const Tensor& output = event.outputs[replica];
  const unsigned unrounded = unrounded_operands(declared_, followed_->graph, event.id);
  const bool scored = BiasWatch::scored(op);
  OracleResult oracle;
  OracleVerdict verdict;
  if (scored) {
    oracle = eval_op(declared_, op, inputs, pool_, unrounded);
    verdict = judge(oracle, output, pool_);
  } else {
    verdict = replay(declared_, op, inputs, output, pool_, unrounded);
  }
  Row& row = rows_[event.id];
  row.worst = std::max(row.worst, verdict.worst);
  row.elements += verdict.elements;
  row.outside += verdict.outside;
  row.untestable += verdict.untestable;
  Seen& seen = seen_[static_cast<size_t>(event.id)];
  if (verdict.outside > 0) {
    seen = Seen::kOutside;
    if (oracle.value.empty()) oracle = eval_op(declared_, op, inputs, pool_, unrounded);
    found(event, replica, verdict, oracle, inputs);
    return;
  }
  if (seen == Seen::kNot) seen = Seen::kInside;
  if (class_of(op.kind) == OpClass::kDot && replica == 0 && row.residuals.size() < kResiduals) {
    const double residual = operand_residual(op, inputs, output, pool_);
    // Skip residuals of 0, which operands that are zero give.
    if (residual > 0) row.residuals.push_back(residual);
  }
  if (!scored || row.outside > 0) return;  // an op that was outside already needs no statistic
  const int core = collective ? -1 : static_cast<int>(replica);
  if (auto finding = bias_.observe({event.step, core, static_cast<int>(event.outputs.size()),
                                    event.id, &op, inputs, &output, &oracle}))
    biased(event, core, verdict, std::move(*finding));
}

void Lockstep::screen(const OpEvent& event, size_t replica) {
  // An op under suspicion is replayed on every step until the suspicion is settled.
  if (bias_.suspects(event.id)) return check_result(event, replica);
  std::vector<Tensor> contributions;
  if (event.op().kind == OpKind::kAllReduce) {
    for (const auto& in : event.inputs) contributions.push_back(in[0]);
  }
  const std::vector<Tensor>& inputs = contributions.empty() ? event.inputs[replica] : contributions;
  if (!plausible(declared_, event.op(), inputs, event.outputs[replica], pool_,
                 unrounded_operands(declared_, followed_->graph, event.id))) {
    check_result(event, replica);
  } else if (seen_[static_cast<size_t>(event.id)] == Seen::kNot) {
    seen_[static_cast<size_t>(event.id)] = Seen::kInside;
  }
}

// A screened step runs fused if every step before showed that the engine runs the requested program
// and no op is under suspicion.
GroupSink* Lockstep::groups(const Program& program, std::span<const FusionGroup> groups) {
  if (!policy_.screen || probed(step_.step) || !declared_.deterministic || &program != reported_ ||
      followed_ != &program_ || bias_.suspects_any() || !group_watch_.accepts(groups))
    return nullptr;
  group_watch_.begin_step(step_.before, step_.inputs);
  return &group_watch_;
}

// Compares the op of a step that runs again with what it wrote in the fused step.
void Lockstep::check_again(const OpEvent& event) {
  const std::span<const Tensor> wrote = group_watch_.doubted(event.id);
  OpEvent before = event;
  before.outputs = wrote;
  for (size_t r = 0; r < wrote.size(); ++r) {
    if (wrote[r].same_bits(event.outputs[r])) continue;
    const size_t found = fresh_.size();
    check_result(before, r);
    if (fresh_.size() == found) {
      Violation v = violation_at(event.step, static_cast<int>(r), event.id, event.op(),
                                 Violation::What::kLink);
      v.link = "the step, run again from the same state, wrote other bits here";
      fresh_.push_back(std::move(v));
    }
    links_.noticed();
    return;
  }
}

void Lockstep::on_op(const OpEvent& event) {
  const Stopwatch watch(seconds_);
  traced_ = true;
  follow(event.program);
  check_again(event);
  const bool in_full = probed_steps_.contains(event.step);
  const bool source = class_of(event.op().kind) == OpClass::kSource;
  links_.on_op(event, *followed_);
  for (size_t r = 0; r < event.outputs.size(); ++r) {
    // If replicas share one tensor computed from the same operands, check it once. An all-reduce
    // has the operands of all replicas, so only its result counts.
    bool same = r > 0 && event.outputs[r].raw() == event.outputs[0].raw();
    if (same && event.op().kind != OpKind::kAllReduce) {
      for (size_t i = 0; i < event.inputs[r].size(); ++i)
        same = same && event.inputs[r][i].raw() == event.inputs[0][i].raw();
    }
    if (!same) keep_result(event.id, static_cast<int>(r), event.outputs[r]);
    if (same) {
      Violation* const shown =
          event.op().kind == OpKind::kAllReduce ? nullptr : found_already(event.id);
      if (shown != nullptr && shown->replica == 0) ++shown->replicas;
      continue;
    }
    if (source) {  // the same at every step: checked again only if its bits change
      Tensor& judged = sources_[{event.id, static_cast<int>(r)}];
      if (judged.valid() && judged.same_bits(event.outputs[r])) continue;
      judged = event.outputs[r];
    }
    const size_t before = fresh_.size();
    if (in_full) {
      check_result(event, r);
    } else {
      screen(event, r);
    }
    if (fresh_.size() > before) links_.noticed();
  }
}

char Lockstep::level() const { return !traced_ ? 'C' : declared_.declares_arithmetic ? 'A' : 'B'; }

double Lockstep::worst_ratio() const {
  double worst = 0;
  for (const auto& [id, row] : rows_) worst = std::max(worst, row.worst);
  return worst;
}

EngineProbe Lockstep::summary(const std::string& pair, int64_t steps) const {
  EngineProbe p;
  p.pair = pair;
  p.engine = declared_.name + " " + declared_.settings;
  p.steps = steps;
  p.steps_probed = static_cast<int64_t>(probed_steps_.size());
  p.policy = policy_.text();
  p.seconds = seconds_ + group_watch_.seconds;
  p.share = run_seconds_ > 0 ? p.seconds / run_seconds_ : 0;
  std::vector<double> residuals;
  for (const auto& [id, row] : rows_) {
    if (row.elements == 0) continue;
    const Op& op = followed_->graph.op(id);
    ProbeRow r;
    r.op = op.name;
    r.kind = name_of(op.kind);
    r.phase = to_string(op.phase);
    r.worst_ratio = row.worst;
    r.elements = row.elements;
    r.outside = row.outside;
    r.untestable = row.untestable;
    r.operand_residual = median(row.residuals);
    if (r.operand_residual >= 0) residuals.push_back(r.operand_residual);
    p.elements += row.elements;
    p.untestable += row.untestable;
    p.rows.push_back(std::move(r));
  }
  p.ops = static_cast<int64_t>(p.rows.size());
  std::ranges::stable_sort(p.rows, std::greater<>(), &ProbeRow::worst_ratio);
  p.dot_residual = median(residuals);
  if (p.dot_residual >= 0) {
    constexpr std::string_view kExpected[] = {
        "float32 operands are not rounded: only the order of summation remains",
        "one bf16 pass predicts about 2^-9", "three bf16 passes predict about 2^-16",
        "six bf16 passes round no operand: only the order of summation remains"};
    p.dot_residual_text = fmt::format("{} ({})", power_of_two(p.dot_residual),
                                      declared_.declares_arithmetic
                                          ? kExpected[static_cast<size_t>(declared_.precision)]
                                          : "the engine declares none");
  }
  return p;
}

}  // namespace twinrun
