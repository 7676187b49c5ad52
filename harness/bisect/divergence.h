// Where two engines, or two runs, begin to diverge: the step, and within it the op, the core and
// the element. These are the axes `step` and `op` of twinrun bisect.
//
//   // From the digests in the files, without running anything:
//   TWINRUN_ASSIGN(const StepDivergence p, part_of_runs(*read_run("a.h5"), *read_run("b.h5")));
//   const Twins twins{experiment, program_a, program_b, *a, *b};
//   TWINRUN_ASSIGN(const Diverged parted, part_of_engines(twins));     // side by side
//   TWINRUN_ASSIGN(const OpDivergence op, op_of_step(twins, parted.kept));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoints/run.h"
#include "harness/experiment/experiment.h"
#include "harness/host/progress.h"
#include "harness/lockstep/rerun.h"

namespace twinrun::bisect {

// A tensor whose bits differ between the two.
struct TensorGap {
  std::string name;
  int core = 0;            // the first core on which it differs; the members below are of this core
  std::vector<int> cores;  // all on which it differs
  int64_t different = 0, elements = 0;
  std::string first;           // index of the first element that differs
  std::string bits_a, bits_b;  // of that element, hexadecimal
  double value_a = 0, value_b = 0;
};

// Compares one tensor on every core. nullopt: the bits are the same everywhere.
std::optional<TensorGap> gap_of(const std::string& name, const std::vector<Tensor>& a,
                                const std::vector<Tensor>& b);

struct StepDivergence {
  std::optional<int64_t> step;   // the first step after which the states differ; nullopt: none
  std::optional<int64_t> meets;  // the first later step after which they are the same again
  int64_t first = 0, end = 0;    // steps that were compared: [first, end)
  int64_t executions = 0;        // engines that were started and run
  int64_t steps_run = 0;         // steps that they ran in all
  // Differences of the state after `step`, in the program's order; empty if the states are not
  // available.
  std::vector<TensorGap> tensors;
  std::vector<std::string> notes;
};

// Compares the digest chains of two run files. Error: there is no step of which both have a digest.
Result<StepDivergence> part_of_runs(const RunFile& a, const RunFile& b);

// Two engines for one experiment. Both programs have the same state variables; they may differ in
// formulas (as_computed_by).
struct Twins {
  const Experiment& experiment;
  const Program& program_a;
  const Program& program_b;
  Backend& a;
  Backend& b;
  Progress* progress = nullptr;
  const StopFlag* stop = nullptr;
};

struct Diverged {
  StepDivergence divergence;
  // The step after which they diverge, or the last one: its inputs, and the state before it, which
  // both share.
  KeptStep kept;
};

// Runs both engines step by step from the same state until their states differ. Compares bits, so
// it computes no digests and stores nothing. `start`: states and step to begin from (default: the
// seeded state, step 0). Errors: the engines'; interrupted.
Result<Diverged> part_of_engines(const Twins& twins,
                                 std::optional<std::pair<States, int64_t>> start = std::nullopt,
                                 std::optional<int64_t> end = std::nullopt);

// The first step at which engine `b` diverges from a run on file. If the file has checkpoints, its
// segments are searched: B runs about log2(segments) of them, each from the file's own state. This
// assumes that B diverges in every segment from the first such one on. If it does not diverge in
// the last segment, or with `scan`, B runs once from the first of these states until it diverges.
// Errors: the run holds no state to begin from, or its program differs; the engine's; interrupted.
Result<StepDivergence> part_of_run(const Experiment& experiment, const Program& program,
                                   const RunFile& run, Backend& b, bool scan, Progress* progress,
                                   const StopFlag* stop);

// Where two engines diverge within one step, from the same state.
struct OpDivergence {
  enum class By : uint8_t {
    kNothing,  // the same bits everywhere
    kOp,       // the first op in the order of execution whose result differs
    kTensor,   // no op shows it: the first output that differs, else the first state variable
  } by = By::kNothing;
  int64_t step = 0;
  std::string op, kind, phase;
  TensorGap gap;             // of the op's result, or of the tensor
  bool inputs_agree = true;  // both engines report the same bits as the op's inputs
  // Each engine gives the same bits there when the step is run again.
  bool repeats_a = true, repeats_b = true;
  int64_t ops = 0;  // ops that agree before it
  int64_t executions = 0;
  std::vector<TensorGap> tensors;  // outputs and state variables that differ after the step
  std::vector<std::string> notes;
};

// Each engine runs the step twice: first to find the op by digests, then to keep its values and to
// check that they repeat. (Once only, if nothing differs.)
Result<OpDivergence> op_of_step(const Twins& twins, const KeptStep& kept);

}  // namespace twinrun::bisect
