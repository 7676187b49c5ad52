// Axis `step`: finds the first step after which two runs, a run and an engine, or two engines
// differ.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>

#include "harness/bisect/divergence.h"
#include "harness/experiment/imported.h"
#include "harness/run/step_loop.h"
#include "harness/search/search.h"
#include "harness/tensors/element_diff.h"
#include "harness/tensors/pattern.h"
#include "program/base/element.h"

namespace twinrun::bisect {
namespace {

// This axis keeps no session, so an interrupted search starts again.
Error begin_again() {
  return {"interrupted", "", "run the same command to start again", Error::Kind::kInterrupted};
}

bool stopped(const StopFlag* stop) { return stop != nullptr && stop->load(); }

std::string hex_of(const Tensor& t, int64_t element) {
  const size_t size = size_of(t.dtype());
  std::string text = "0x";
  for (size_t i = size; i-- > 0;) {  // little-endian
    text += fmt::format("{:02x}",
                        static_cast<unsigned>(t.raw()[static_cast<size_t>(element) * size + i]));
  }
  return text;
}

// Keeps the states as a step left them. After end_of_loop, where the host makes replicas equal, a
// difference on a core other than 0 is gone.
struct StateAfter : StepObserver {
  States states;
  bool needs_before(int64_t) const override { return false; }
  TraceSink* begin_step(int64_t, const States&, const StepInputs&) override {
    states.clear();  // so that the engine can update its variables in place
    return nullptr;
  }
  void end_step(int64_t, const States& after, const StepOutputs&) override { states = after; }
};

bool same_states(const States& a, const States& b) {
  for (size_t r = 0; r < a.size(); ++r) {
    for (size_t i = 0; i < a[r].vars.size(); ++i) {
      if (!a[r].vars[i].same_bits(b[r].vars[i])) return false;
    }
  }
  return true;
}

std::vector<TensorGap> state_gaps(const Program& program, const States& a, const States& b) {
  std::vector<TensorGap> gaps;
  for (size_t i = 0; i < program.state.size(); ++i) {
    std::vector<Tensor> x, y;
    for (size_t r = 0; r < a.size(); ++r) {
      x.push_back(a[r].vars[i]);
      y.push_back(b[r].vars[i]);
    }
    if (auto gap = gap_of(program.state[i].name, x, y)) gaps.push_back(std::move(*gap));
  }
  return gaps;
}

Status check_same_state(const Program& a, const Program& b) {
  bool same = a.state.size() == b.state.size() && a.sharding.cores == b.sharding.cores;
  for (size_t i = 0; same && i < a.state.size(); ++i)
    same = a.state[i].name == b.state[i].name && a.state[i].type == b.state[i].type;
  if (same) return Ok{};
  return Error{"the programs of the two engines have different state variables", "", ""};
}

// Steps that B runs from a known state of the run, until a digest differs after step `parts`.
struct Segment {
  int64_t begin = 0, end = 0;
  std::optional<int64_t> parts;
};

class RunAndEngine {
 public:
  RunAndEngine(const Experiment& experiment, const Program& program, const RunFile& run,
               Backend& backend, Progress* progress, const StopFlag* stop)
      : experiment_(experiment),
        program_(program),
        run_(run),
        backend_(backend),
        progress_(progress),
        stop_(stop) {}

  StepDivergence divergence;

  int64_t end() const { return run_.first_step + static_cast<int64_t>(run_.state_digests.size()); }

  // Steps whose start state is known: step 0 (the seeded state) and the file's checkpoints.
  std::vector<int64_t> begins() const {
    std::vector<int64_t> steps;
    if (run_.first_step == 0) steps.push_back(0);
    for (const Checkpoint& c : run_.checkpoints) {
      if (c.step >= run_.first_step && c.step < end() && (steps.empty() || c.step > steps.back()))
        steps.push_back(c.step);
    }
    return steps;
  }

  Status run_segment(Segment& segment) {
    TWINRUN_ASSIGN(States states, state_at(segment.begin));
    TWINRUN_ASSIGN(const std::unique_ptr<Engine> engine, backend_.prepare(program_));
    StepLoop loop(experiment_, program_, *engine, std::move(states));
    ++divergence.executions;
    if (progress_ != nullptr)
      progress_->begin(fmt::format("steps {} to {}", segment.begin, segment.end - 1),
                       segment.end - segment.begin);
    for (int64_t step = segment.begin; step < segment.end && !segment.parts; ++step) {
      if (stopped(stop_)) return begin_again();
      TWINRUN_RETURN_IF_ERROR(loop.run(step));
      ++divergence.steps_run;
      const Checkpoint after = to_checkpoint(program_, loop.states, experiment_.scenario, step + 1);
      if (after.root_digest() != run_.state_digests[static_cast<size_t>(step - run_.first_step)]) {
        segment.parts = step;
        keep_gaps(step + 1, loop.states);
      }
      if (progress_ != nullptr) progress_->step(step + 1 - segment.begin, "");
    }
    if (progress_ != nullptr)
      progress_->end(segment.parts ? fmt::format("diverges after step {}", *segment.parts)
                                   : "the same states");
    return Ok{};
  }

 private:
  Result<States> state_at(int64_t step) const {
    for (const Checkpoint& c : run_.checkpoints) {
      if (c.step == step) return from_checkpoint(c, program_);
    }
    return initial_states(experiment_, program_);
  }

  // Keeps the differences of the states if the run has a checkpoint of that state.
  void keep_gaps(int64_t done, const States& states) {
    divergence.tensors.clear();
    for (const Checkpoint& c : run_.checkpoints) {
      if (c.step != done) continue;
      if (const auto theirs = from_checkpoint(c, program_); theirs.ok())
        divergence.tensors = state_gaps(program_, *theirs, states);
    }
  }

  const Experiment& experiment_;
  const Program& program_;
  const RunFile& run_;
  Backend& backend_;
  Progress* progress_;
  const StopFlag* stop_;
};

}  // namespace

std::optional<TensorGap> gap_of(const std::string& name, const std::vector<Tensor>& a,
                                const std::vector<Tensor>& b) {
  std::optional<TensorGap> gap;
  for (size_t r = 0; r < a.size() && r < b.size(); ++r) {
    if (a[r].same_bits(b[r])) continue;
    if (gap) {
      gap->cores.push_back(static_cast<int>(r));
      continue;
    }
    gap = TensorGap{.name = name,
                    .core = static_cast<int>(r),
                    .cores = {static_cast<int>(r)},
                    .elements = a[r].elements()};
    if (a[r].type() != b[r].type()) {
      gap->different = gap->elements;
      gap->first = fmt::format("{} against {}", to_string(a[r].type()), to_string(b[r].type()));
      continue;
    }
    const ElementDiff d = diff_elements(a[r], b[r], 0, a[r].elements());
    gap->different = d.different;
    gap->first = index_text(a[r].dims(), d.first);
    gap->bits_a = hex_of(a[r], d.first), gap->bits_b = hex_of(b[r], d.first);
    gap->value_a = number_at(a[r], d.first), gap->value_b = number_at(b[r], d.first);
  }
  return gap;
}

Result<StepDivergence> part_of_runs(const RunFile& a, const RunFile& b) {
  StepDivergence p;
  if (a.scenario_digest != b.scenario_digest) {
    const auto of_program = [](const RunFile& run) {
      const auto scenario = parse_scenario(run.scenario, "run");
      return scenario ? scenario->imported : std::string();
    };
    const std::string differ = differences(of_program(a), of_program(b));
    p.notes.push_back(differ.empty()
                          ? "the runs were made by different scenarios"
                          : "the runs are of different programs; of B, and as A recorded it:" +
                                differ);
  }
  if (a.contract != b.contract)
    p.notes.push_back(fmt::format("contract {} against {}", a.contract, b.contract));
  const auto ends = [](const RunFile& r) {
    return r.first_step + static_cast<int64_t>(r.state_digests.size());
  };
  p.first = std::max(a.first_step, b.first_step);
  p.end = std::min(ends(a), ends(b));
  if (p.first >= p.end) {
    return Error{fmt::format("the runs have no step in common: A has digests of steps {} to {}, B "
                             "of steps {} to {}",
                             a.first_step, ends(a) - 1, b.first_step, ends(b) - 1),
                 "", "give runs that overlap"};
  }
  const auto digest = [](const RunFile& r, int64_t step) {
    return r.state_digests[static_cast<size_t>(step - r.first_step)];
  };
  for (int64_t step = p.first; step < p.end && !p.meets; ++step) {
    const bool same = digest(a, step) == digest(b, step);
    if (!same && !p.step) p.step = step;
    if (same && p.step) p.meets = step;
  }
  if (p.step == p.first && p.first > 0) {
    p.notes.push_back(fmt::format(
        "they may have diverged before: one of the files has no digests of the steps before {}",
        p.first));
  }
  if (ends(a) != ends(b)) {
    p.notes.push_back(
        fmt::format("A ends after step {}, B after step {}", ends(a) - 1, ends(b) - 1));
  }
  return p;
}

Result<Diverged> part_of_engines(const Twins& t, std::optional<std::pair<States, int64_t>> start,
                                 std::optional<int64_t> end) {
  TWINRUN_RETURN_IF_ERROR(check_same_state(t.program_a, t.program_b));
  TWINRUN_ASSIGN(const std::unique_ptr<Engine> a, t.a.prepare(t.program_a));
  TWINRUN_ASSIGN(const std::unique_ptr<Engine> b, t.b.prepare(t.program_b));
  Diverged diverged;
  StepDivergence& p = diverged.divergence;
  States state = start ? std::move(start->first) : initial_states(t.experiment, t.program_a);
  StepLoop loop_a(t.experiment, t.program_a, *a, state);
  StepLoop loop_b(t.experiment, t.program_b, *b, std::move(state));
  StateAfter end_a, end_b;
  p.first = start ? start->second : 0;
  const int64_t last = end.value_or(t.experiment.scenario.train.steps);
  p.executions = 2;
  p.end = p.first;
  if (t.progress != nullptr)
    t.progress->begin(
        fmt::format("{} and {} side by side", t.a.capabilities().name, t.b.capabilities().name),
        last - p.first);
  for (int64_t step = p.first; step < last && !p.step; ++step) {
    if (stopped(t.stop)) return begin_again();
    TWINRUN_RETURN_IF_ERROR(loop_a.run(step, &end_a, /*keep_before=*/true));
    TWINRUN_RETURN_IF_ERROR(loop_b.run(step, &end_b));
    KeptStep kept{step, loop_a.before, loop_a.inputs, std::nullopt};
    if (diverged.kept.step >= 0)
      kept.lead = {std::move(diverged.kept.before), std::move(diverged.kept.inputs)};
    diverged.kept = std::move(kept);
    p.steps_run += 2;
    p.end = step + 1;
    if (!same_states(end_a.states, end_b.states)) {
      p.step = step;
      p.tensors = state_gaps(t.program_a, end_a.states, end_b.states);
    }
    if (t.progress != nullptr) t.progress->step(step + 1 - p.first, "");
  }
  if (t.progress != nullptr)
    t.progress->end(p.step ? fmt::format("diverge after step {}", *p.step) : "the same states");
  return diverged;
}

Result<StepDivergence> part_of_run(const Experiment& experiment, const Program& program,
                                   const RunFile& run, Backend& b, bool scan, Progress* progress,
                                   const StopFlag* stop) {
  RunAndEngine pair(experiment, program, run, b, progress, stop);
  const std::vector<int64_t> begins = pair.begins();
  if (begins.empty() || run.state_digests.empty()) {
    return Error{"the run has no state to start from: it begins at step " +
                     std::to_string(run.first_step) + " and holds no checkpoint before its end",
                 "", "train it with --set train.checkpoint_every=N"};
  }
  StepDivergence& p = pair.divergence;
  p.first = begins.front();
  p.end = pair.end();
  if (p.first > run.first_step)
    p.notes.push_back(fmt::format(
        "steps before {} are not compared, because no state of them is stored", p.first));
  const int segments = static_cast<int>(begins.size());
  if (segments > 1 && !scan) {
    // Candidate i is bad if B diverges in the i-th segment; candidate 0 stands for no segment and
    // is good. The search relies on B diverging in every segment after the first such one.
    std::vector<std::string> names{"nothing"};
    std::map<std::string, Segment> made;
    for (int i = 0; i < segments; ++i) {
      const size_t k = static_cast<size_t>(i);
      const Segment s{begins[k], i + 1 < segments ? begins[k + 1] : p.end, std::nullopt};
      names.push_back(fmt::format("steps {} to {}", s.begin, s.end - 1));
      made[names.back()] = s;
    }
    Session session;
    std::map<std::string, std::vector<TensorGap>> gaps;
    Judge judge(
        [&](const std::string& name) -> Result<Execution> {
          Execution e{name, Outcome::kGood, "", 0, ""};
          const auto segment = made.find(name);
          if (segment == made.end()) return e;
          TWINRUN_RETURN_IF_ERROR(pair.run_segment(segment->second));
          gaps[name] = p.tensors;
          if (segment->second.parts) e.outcome = Outcome::kBad;
          return e;
        },
        {.agree = 1, .skips = 1}, session, nullptr, stop);
    TWINRUN_ASSIGN(const Found f, search(Lineage::line(names), 0, segments, judge));
    if (f.end == Found::End::kFound) {
      const std::string& name = names[static_cast<size_t>(f.first_bad)];
      p.step = made[name].parts;
      p.tensors = gaps[name];
      p.notes.push_back(fmt::format(
          "found by a search over {} stored states: it is the first only if the engine diverges "
          "from the run in every segment after that one as well (--scan runs them all)",
          segments));
      return p;
    }
    p.notes.push_back(f.why.find("now: lost") != std::string::npos
                          ? "not reproducible: " + f.why
                          : std::string("the last segment holds: searched from the first step on"));
  }
  Segment whole{p.first, p.end, std::nullopt};
  TWINRUN_RETURN_IF_ERROR(pair.run_segment(whole));
  p.step = whole.parts;
  if (!p.step) p.tensors.clear();
  return p;
}

}  // namespace twinrun::bisect
