// Where two engines, or two runs, begin to differ: the step, and inside of it the op, the core and the element.
//
//   StepParting p = part_of_runs(*read_run("a.h5"), *read_run("b.h5"));        // by the digests in the files: nothing is run
//   const Twins twins{experiment, program_a, program_b, *a, *b};
//   TWINRUN_ASSIGN(const Parted parted, part_of_engines(twins));               // side by side, until they differ
//   TWINRUN_ASSIGN(const OpParting op, op_of_step(twins, parted.kept));
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

// A tensor of both on one core, whose bits differ.
struct TensorGap {
  std::string name;
  int core = 0;
  std::vector<int> cores;  // all on which it differs
  int64_t different = 0, elements = 0;
  std::string first;           // index of the first element that differs
  std::string bits_a, bits_b;  // of that, hexadecimal
  double value_a = 0, value_b = 0;
};

// Compares one tensor on every core; none: the same bits everywhere.
std::optional<TensorGap> gap_of(const std::string& name, const std::vector<Tensor>& a,
                                const std::vector<Tensor>& b);

struct StepParting {
  std::optional<int64_t> step;   // the first after which states differ; none: they never do
  std::optional<int64_t> meets;  // the first step after that after which they are the same again
  int64_t first = 0, end = 0;    // steps that were compared: [first, end)
  int64_t executions = 0;        // engines that were started and run
  int64_t steps_run = 0;         // steps that they ran in all
  std::vector<TensorGap>
      tensors;  // of the state after `step`, in the program's order; none where states are not at hand
  std::vector<std::string> notes;
};

// By the digest chain of two run files. Errors: no step that both have a digest of.
Result<StepParting> part_of_runs(const RunFile& a, const RunFile& b);

// Two engines for one experiment. The programs have the same state: they may differ in formulas (as_computed_by).
struct Twins {
  const Experiment& experiment;
  const Program& program_a;
  const Program& program_b;
  Backend& a;
  Backend& b;
  Progress* progress = nullptr;
  const StopFlag* stop = nullptr;
};

struct Parted {
  StepParting parting;
  KeptStep
      kept;  // the step after which they part, or the last one: its inputs, and A's state before it, which is B's too
};

// Both, step by step from the same state, until their states differ: what is compared is bits, so no digest is computed, and
// nothing is stored. `start`: states and step to begin from (default: the seeded ones). Errors: the engines'; interrupted.
Result<Parted> part_of_engines(const Twins& twins,
                               std::optional<std::pair<States, int64_t>> start = std::nullopt,
                               std::optional<int64_t> end = std::nullopt);

// The first step at which `b` does otherwise than a run on file. Where the file has checkpoints, its segments are searched: B runs each
// from the file's own state, about log2(segments) of them; that rests on B parting in every segment from the first one on. Unless
// it does in the last one, or with `scan`, B runs once from the first state, until it parts. Errors: a run of no program like this.
Result<StepParting> part_of_run(const Experiment& experiment, const Program& program,
                                const RunFile& run, Backend& b, bool scan, Progress* progress,
                                const StopFlag* stop);

// Where two engines part inside of one step, from the same state.
struct OpParting {
  enum class By : uint8_t {
    kNothing,  // the same bits everywhere
    kOp,       // the first op in the order of execution whose result differs
    kTensor,  // one of them shows no ops: the first output, then state, in the order of the program
  } by = By::kNothing;
  int64_t step = 0;
  std::string op, kind, phase;
  TensorGap gap;                            // of the op's result
  bool inputs_agree = true;                 // what both say that it read there has the same bits
  bool repeats_a = true, repeats_b = true;  // run again, the same bits come out there
  int64_t ops = 0;                          // that were compared before it
  int64_t executions = 0;
  std::vector<TensorGap> tensors;  // outputs and state variables that differ after the step
  std::vector<std::string> notes;
};

// Each engine runs the step twice: to find the op by digests, and to hold its values and see them again.
Result<OpParting> op_of_step(const Twins& twins, const KeptStep& kept);

}  // namespace twinrun::bisect
