// A golden run: a run file with the values that later runs of the same scenario are compared with.
// Besides the run itself it has the states from which some steps start, the digest of every op of
// these steps and of every loss, gradient and state variable of all other steps (the table /trace),
// and in its environment the engine and its declaration (checkpoints/FORMAT.md, "A golden run").
// verify.h reads it.
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
  int states = 4;  // steps whose initial state is kept, from the first to the last
  Progress* progress = nullptr;
  const StopFlag* stop = nullptr;
};

// Trains, runs the first steps again (where bits are defined with another number of threads and
// poisoned memory), and, for an engine whose bits are not defined, checks whether its own steps lie
// inside the noise of conforming engines. A run that did not complete is returned as it is;
// RunFile::ended says why. Errors: those of set_up; data that ends before the steps do; an engine
// that fails.
Result<RunFile> record_golden(const Experiment& experiment, const GoldenOptions& options);

// How a golden run was recorded.
struct GoldenFacts {
  std::string engine;    // as typed: "cpu", "exec:python3 engine.py"
  std::string declares;  // declaration() of the engine
  bool repeats = true;   // whether its first steps gave the same bits twice
  std::string noise;     // why noise cannot decide for this engine; "": it can
};
// Errors: `twinrun record` did not write the file, or the file is incomplete.
Result<GoldenFacts> golden_facts(const RunFile& golden, const std::string& path);

// Whether the engine is ours and deterministic, so that a contract defines its bits: any difference
// is then a change, whatever its size.
bool has_defined_bits(const std::string& engine, const Capabilities& declared);

// Whether the trace has every op. Of a foreign engine only the tensors are recorded.
bool traces_ops(const std::string& engine, const Capabilities& declared);

// "precision=f32 split=nearest order=contract ...": what an engine declares of its arithmetic, as
// text.
std::string declaration(const Capabilities& declared);

// Records the rows of the trace during a run, and the states of some steps with the values that the
// run computed from them.
class StepRecorder : public StepObserver, public TraceSink {
 public:
  // `kept`: the steps to keep, ascending. If the engine shows its ops, every op of these steps is
  // recorded.
  StepRecorder(const Program& program, std::vector<int64_t> kept, bool shows_ops);
  bool needs_before(int64_t step) const override;
  TraceSink* begin_step(int64_t step, const States& before, const StepInputs& inputs) override;
  void end_step(int64_t step, const States& after, const StepOutputs& outputs) override;
  void on_op(const OpEvent& event) override;

  // A replica other than 0 has a row only where it differs from replica 0.
  std::vector<OpTraceRow> rows;
  std::vector<ProbedState> states;  // one for each kept step

 private:
  const Program& program_;
  std::vector<int64_t> kept_;
  bool shows_ops_;
  bool ops_ = false;  // whether the ops of the current step are recorded
  std::vector<Compared> tensors_;
};

// Compares one step of the engine from each state with conforming engines of the arithmetic that it
// declares (harness/identify/identify.h). These are drawn from fixed seeds: the same states and
// bits give the same answer. Errors: an engine cannot be prepared or fails.
Result<Gate::Noise> noise_of(const Experiment& experiment, const Program& program, Backend& engine,
                             const std::vector<ProbedState>& states, int threads);

}  // namespace twinrun
