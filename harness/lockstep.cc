#include "harness/lockstep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backends/oracle/screen.h"
#include "harness/fingerprint.h"

namespace twinrun {
namespace {

std::string layer_of(const std::string& op) {
  const size_t slash = op.find('/');
  return slash == std::string::npos ? "" : op.substr(0, slash);
}

// Results of the step before are kept for fingerprints up to this size.
constexpr int64_t kSmall = 1 << 20;

double median(std::vector<double> v) {
  if (v.empty()) return -1;
  std::ranges::nth_element(v, v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2));
  return v[v.size() / 2];
}

std::string power_of_two(double x) { return x > 0 ? fmt::format("2^{:.1f}", std::log2(x)) : "0"; }

}  // namespace

std::string ProbePolicy::text() const {
  if (every == 1) return "every step";
  const std::string rest = screen ? "; the others screened" : "";
  if (every == 0) return fmt::format("steps 0-{}{}", first - 1, rest);
  return fmt::format("steps 0-{} and every {}th{}", first - 1, every, rest);
}

Lockstep::Lockstep(const Program& program, Capabilities declared, ProbePolicy policy,
                   ThreadPool* pool)
    : program_(program), declared_(std::move(declared)), policy_(policy), pool_(pool) {}

bool Lockstep::probed(int64_t step) const {
  return step < policy_.first || (policy_.every > 0 && step % policy_.every == 0);
}

TraceSink* Lockstep::begin_step(int64_t step, const States& before, const StepInputs& inputs) {
  // Where a fault begins is looked for between the last clean step and the first bad one.
  const bool looked = probed_steps_.contains(step - 1) || screened_steps_.contains(step - 1);
  if (violations_.empty() && (step == 0 || looked)) last_clean_ = {step, before};
  if (!probed(step)) {
    if (!policy_.screen) return nullptr;
    screened_steps_.insert(step);
    return this;
  }
  probed_steps_.insert(step);
  written_.assign(before.size(), std::vector<Tensor>(static_cast<size_t>(program_.graph.size())));
  for (size_t r = 0; r < before.size(); ++r) {
    for (size_t i = 0; i < program_.state.size(); ++i) {
      written_[r][static_cast<size_t>(program_.state[i].id)] = before[r].vars[i];
    }
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      written_[r][static_cast<size_t>(program_.inputs[i].id)] = inputs[r][i];
    }
  }
  return this;
}

void Lockstep::end_step(int64_t step, const States& after, const StepOutputs&) {
  if (!probed_steps_.contains(step)) return;
  // State out is what the update ops wrote.
  for (size_t r = 0; r < after.size(); ++r) {
    for (size_t i = 0; i < program_.state.size(); ++i) {
      const StateVar& var = program_.state[i];
      const ValueId source = var.next == kNoValue ? var.id : var.next;
      const Tensor& wrote = written_[r][static_cast<size_t>(source)];
      const Tensor& kept = after[r].vars[i];
      if (!wrote.valid() || wrote.raw() == kept.raw() || wrote.same_bits(kept)) continue;
      const Op& op = program_.graph.op(source);
      Violation v{step,
                  static_cast<int>(r),
                  1,
                  source,
                  op.name,
                  std::string(name_of(op.kind)),
                  std::string(to_string(op.phase)),
                  layer_of(op.name),
                  Violation::What::kLink};
      v.link = "the state after the step is not what this op wrote";
      violations_.push_back(std::move(v));
    }
  }
  written_.clear();
}

void Lockstep::check_links(const OpEvent& event) {
  const Op& op = event.op();
  for (size_t r = 0; r < event.inputs.size(); ++r) {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const Tensor& wrote = written_[r][static_cast<size_t>(op.operands[i])];
      const Tensor& read = event.inputs[r][i];
      if (wrote.valid() && (wrote.raw() == read.raw() || wrote.same_bits(read))) continue;
      Violation v{event.step,
                  static_cast<int>(r),
                  1,
                  event.id,
                  op.name,
                  std::string(name_of(op.kind)),
                  std::string(to_string(op.phase)),
                  layer_of(op.name),
                  Violation::What::kLink};
      v.link =
          fmt::format("operand {} is not what {} wrote", i, program_.graph.op(op.operands[i]).name);
      violations_.push_back(std::move(v));
    }
  }
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
  const OracleVerdict verdict = replay(declared_, op, inputs, output, pool_);
  Row& row = rows_[event.id];
  row.worst = std::max(row.worst, verdict.worst);
  row.elements += verdict.elements;
  row.outside += verdict.outside;
  row.untestable += verdict.untestable;
  if (class_of(op.kind) == OpClass::kDot && replica == 0 && verdict.outside == 0) {
    row.residuals.push_back(operand_residual(op, inputs, output, pool_));
  }
  const auto key = std::pair(event.id, static_cast<int>(replica));
  if (verdict.outside > 0) {
    const bool seen = !violations_.empty() && violations_.back().id == event.id &&
                      violations_.back().step == event.step;
    if (seen) {
      ++violations_.back().replicas;
    } else {
      Violation v{event.step,
                  collective ? -1 : static_cast<int>(replica),
                  1,
                  event.id,
                  op.name,
                  std::string(name_of(op.kind)),
                  std::string(to_string(op.phase)),
                  layer_of(op.name)};
      v.verdict = verdict;
      const auto before = previous_.find(key);
      const OracleResult oracle = eval_op(declared_, op, inputs, pool_);
      v.fingerprint = fingerprint(declared_, op, output, oracle, inputs, pool_,
                                  before != previous_.end() && previous_step_ == event.step - 1
                                      ? &before->second
                                      : nullptr);
      v.elements = fmt::format("{} of {} elements, worst at {}", verdict.outside, verdict.elements,
                               index_text(op.type.dims, verdict.worst_element));
      violations_.push_back(std::move(v));
    }
  }
  if (output.elements() <= kSmall) previous_[key] = output;
}

void Lockstep::screen(const OpEvent& event, size_t replica) {
  std::vector<Tensor> contributions;
  if (event.op().kind == OpKind::kAllReduce) {
    for (const auto& in : event.inputs) contributions.push_back(in[0]);
  }
  const std::vector<Tensor>& inputs = contributions.empty() ? event.inputs[replica] : contributions;
  if (!plausible(declared_, event.op(), inputs, event.outputs[replica], pool_))
    check_result(event, replica);
}

void Lockstep::on_op(const OpEvent& event) {
  const bool in_full = probed_steps_.contains(event.step);
  if (in_full) check_links(event);
  const bool source = class_of(event.op().kind) == OpClass::kSource;
  for (size_t r = 0; r < event.outputs.size(); ++r) {
    if (in_full) written_[r][static_cast<size_t>(event.id)] = event.outputs[r];
    // One object on all replicas, from one set of inputs, is judged once.
    bool same = r > 0 && event.outputs[r].raw() == event.outputs[0].raw();
    if (same && event.op().kind != OpKind::kAllReduce) {
      for (size_t i = 0; i < event.inputs[r].size(); ++i)
        same = same && event.inputs[r][i].raw() == event.inputs[0][i].raw();
    }
    if (same || (source && rows_.contains(event.id))) continue;
    if (in_full) {
      check_result(event, r);
    } else {
      screen(event, r);
    }
  }
  if (event.id + 1 == program_.graph.size()) previous_step_ = event.step;
}

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
  std::vector<double> residuals;
  for (const auto& [id, row] : rows_) {
    const Op& op = program_.graph.op(id);
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
        "f32 operands: accumulation only", "1 bf16 pass: about 2^-9", "3 bf16 passes: about 2^-16",
        "6 bf16 passes: accumulation only"};
    p.dot_residual_text = fmt::format("{} (declared {})", power_of_two(p.dot_residual),
                                      kExpected[static_cast<size_t>(declared_.precision)]);
  }
  return p;
}

}  // namespace twinrun
