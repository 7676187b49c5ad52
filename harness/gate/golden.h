// A golden run: a run file with what a later run of the same scenario is held against. Beside the run itself it has the states
// that some steps start from, the digest of every op of these steps and of every loss, gradient and state variable of all others
// (the table /trace), and in its environment how it was asked for (checkpoints/FORMAT.md, "A golden run").
//
//   auto golden = record_golden(experiment, {.spec = {.engine = "tpu"}, .states = 4});
//   write_run("mlp.golden.h5", *golden);
//   auto facts = golden_facts(*golden, "mlp.golden.h5");         // facts->engine == "tpu"
#pragma once

#include <string>
#include <vector>

#include "checkpoints/run.h"
#include "harness/envelope/envelope.h"
#include "harness/run/engine_setup.h"
#include "harness/run/run.h"
#include "reports/gate.h"

namespace twinrun {

struct GoldenOptions {
  EngineSpec spec;
  int states = 4;  // of how many steps the state before it is kept, from the first to the last
  Progress* progress = nullptr;
  const StopFlag* stop = nullptr;
};

// Trains, runs the first steps once more (other threads and poisoned memory where the engine is ours), and asks of an engine whose
// bits are not defined whether its own steps lie inside the noise of honest engines. A run that did not complete is returned as it
// is: RunFile::ended says why. Errors: set_up's; data that end before the steps do.
Result<RunFile> record_golden(const Experiment& experiment, const GoldenOptions& options);

// How a golden run was asked for.
struct GoldenFacts {
  std::string engine;    // as typed: "cpu", "exec:python3 engine.py"
  std::string declares;  // declaration() of it
  bool repeats = true;   // its first steps gave the same bits twice
  std::string noise;     // why noise cannot decide about this engine; "": it can
};
// Errors: a run file that `twinrun record` did not write, or that lacks what it must have.
Result<GoldenFacts> golden_facts(const RunFile& golden, const std::string& path);

// The engine promises bits, and by a contract of ours: a difference is a change, whatever its size.
bool has_defined_bits(const std::string& engine, const Capabilities& declared);

// Of an engine of others the trace would be of another compilation of the step than the one that trains: its tensors are kept.
bool traces_ops(const std::string& engine, const Capabilities& declared);

// "precision=f32 split=nearest order=contract ...": what an engine declares of its arithmetic, as text.
std::string declaration(const Capabilities& declared);

// Rows of the trace while a run goes on, and the states of some steps with what the run made of them.
class StepRecorder : public StepObserver, public TraceSink {
 public:
  // kept: ascending; of these steps every op, where the engine shows its ops.
  StepRecorder(const Program& program, std::vector<int64_t> kept, bool shows_ops);
  bool needs_before(int64_t step) const override;
  TraceSink* begin_step(int64_t step, const States& before, const StepInputs& inputs) override;
  void end_step(int64_t step, const States& after, const StepOutputs& outputs) override;
  void on_op(const OpEvent& event) override;

  std::vector<OpTraceRow> rows;    // a replica's of its own only where it differs from replica 0's
  std::vector<MatchState> states;  // of the kept steps

 private:
  const Program& program_;
  std::vector<int64_t> kept_;
  bool shows_ops_;
  bool ops_ = false;  // of this step
  std::vector<Compared> tensors_;
};

// One step of the engine from each state against honest engines of the arithmetic that it declares (harness/identify/matching.h). Members
// are drawn from fixed seeds: the same states and bits give the same answer.
Result<Gate::Noise> noise_of(const Experiment& experiment, const Program& program, Backend& engine,
                             const std::vector<MatchState>& states, int threads);

}  // namespace twinrun
