// Readers of HDF5 files. Foreign trees are read in a process of their own, as users' are; our own
// checkpoints and runs in this one. libhdf5 is not instrumented, so only its crashes show.
#include "checkpoints/checkpoint.h"
#include "checkpoints/interchange/weights.h"
#include "checkpoints/run.h"
#include "harness/foreign/curves.h"
#include "harness/gate/golden.h"
#include "tests/fuzz/reader.h"

namespace twinrun::fuzz {
namespace {

std::string written_checkpoint() {
  Checkpoint c;
  c.step = 3;
  c.scenario = "seed = 1\n";
  c.scenario_digest = "00112233445566778899aabbccddeeff";
  c.tensors["w"] = {Tensor::zeros({DType::kF32, {2, 3}}), "parameter", false};
  c.tensors["w.momentum"] = {Tensor::zeros({DType::kBF16, {2, 3}}), "slot", true};
  const std::string path = folder() + "/seed.h5";
  must(write_checkpoint(path, c), "the seed cannot be written");
  return file_text(path);
}

RunFile small_run() {
  RunFile run;
  run.engine = "cpu";
  run.batch = 8;
  run.scenario = "seed = 1\n";
  run.environment = {{"cpu", "some cpu"},        {"golden.engine", "cpu"},
                     {"golden.declares", "f32"}, {"golden.repeats", "yes"},
                     {"golden.noise", ""},       {"threads", ""}};
  run.steps = {{2.5F, 2.25F, 0.1F, 1}, {2, 2, 0.1F, 1}};
  run.state_digests = {{1, 2}, {3, 4}};
  run.evaluations = {{2, 0.5, 0.75}};
  run.trace = {{0, 0, "dense1/dot", {1, 2}, -1.5, 2.5, 0.125, 0, 1}};
  Checkpoint c;
  c.tensors["w"] = {Tensor::zeros({DType::kF32, {2}}), "parameter", false};
  run.checkpoints = {c};
  return run;
}

std::string written_run() {
  const std::string path = folder() + "/seed.h5";
  must(write_run(path, small_run()), "the seed cannot be written");
  return file_text(path);
}

void check_checkpoint(std::string_view bytes) {
  const std::string path = as_file("x.h5", bytes);
  const auto kind = file_kind(path);
  (void)accepted(kind);
  const auto opened = CheckpointFile::open(path);
  (void)accepted(opened);
  const auto checkpoint = read_checkpoint(path);
  if (!accepted(checkpoint)) return;
  const std::string copy = path + ".copy";
  must(write_checkpoint(copy, *checkpoint), "a checkpoint cannot be written");
  require(must(read_checkpoint(copy), "a written checkpoint is refused").root_digest() ==
              checkpoint->root_digest(),
          "a checkpoint changes when written and read");
}

void check_run(std::string_view bytes) {
  const std::string path = as_file("x.h5", bytes);
  const auto run = read_run(path);
  if (!accepted(run)) return;
  (void)curves_of(*run);
  (void)accepted(golden_facts(*run, path));
  const std::string copy = path + ".copy";
  must(write_run(copy, *run), "a run cannot be written");
  const RunFile again = must(read_run(copy), "a written run is refused");
  require(again.root_digest() == run->root_digest() && again.environment == run->environment &&
              again.scenario == run->scenario,
          "a run changes when written and read");
}

void check_weights(std::string_view bytes) {
  const auto weights = read_foreign_weights(as_file("x.weights", bytes));
  if (!accepted(weights)) return;
  for (const NamedArray& array : weights->arrays)
    require(checked_bytes(array.type, array.dims) == array.bytes.size(), "bytes and shape differ");
}

}  // namespace

std::vector<Reader> hdf5_readers() {
  return {
      {"checkpoint", Kind::kHdf5, "checkpoints (.h5)", 65536,
       [] { return std::vector<std::string>{written_checkpoint()}; }, &check_checkpoint},
      {"run", Kind::kHdf5, "runs, kept runs and golden runs (.h5)", 65536,
       [] { return std::vector<std::string>{written_run()}; }, &check_run},
      {"weights", Kind::kHdf5, "weights of Keras and others (HDF5 trees)", 65536,
       [] {
         return std::vector<std::string>{fixture("checkpoints/fixtures/keras2_weights.h5"),
                                         fixture("checkpoints/fixtures/keras3_bfloat16.weights.h5"),
                                         fixture("checkpoints/fixtures/keras3_adam.keras")};
       },
       &check_weights},
  };
}

}  // namespace twinrun::fuzz
