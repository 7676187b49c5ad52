// A whole training step, engine cpu, against PyTorch: the MNIST tutorial's CNN (scenario
// mnist_tutorial: two 5x5 convolutions, two dense layers, dropout, SGD) at batch 128 on random
// images. PyTorch runs bench/torch_step.py in a child process, a step for every line it is sent, so
// that its samples alternate with ours; it is in channels_last layout.
//
//   twinrun_bench --filter '^step'
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "backends/backend.h"
#include "bench/bench.h"
#include "harness/experiment.h"
#include "scenarios/model.h"

namespace twinrun {
namespace {

constexpr int64_t kBatch = 128;

// A child that answers a line with a line. If it cannot be started, its first answer is missing.
class Child {
 public:
  Child(const char* script, int threads) {
    int to[2], from[2];
    if (pipe(to) != 0) return;
    if (pipe(from) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      dup2(to[0], 0);
      dup2(from[1], 1);
      for (const int fd : {to[0], to[1], from[0], from[1]}) close(fd);
      const std::string count = std::to_string(threads);
      setenv("OMP_NUM_THREADS", count.c_str(), 1);
      setenv("OPENBLAS_NUM_THREADS", count.c_str(), 1);
      execl("/usr/bin/python3", "python3", script, count.c_str(), nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    to_ = fdopen(to[1], "w");
    from_ = fdopen(from[0], "r");
  }
  ~Child() {
    if (to_ != nullptr) fclose(to_);
    if (from_ != nullptr) fclose(from_);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool answers() {
    char line[64];
    return from_ != nullptr && std::fgets(line, sizeof line, from_) != nullptr;
  }
  bool step() {
    std::fputs("step\n", to_);
    std::fflush(to_);
    return answers();
  }

 private:
  pid_t pid_ = -1;
  FILE *to_ = nullptr, *from_ = nullptr;
};

struct OurStep {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Engine> engine;
  States states;
  StepInputs inputs;
  StepOutputs outputs;
  int64_t step = 0;

  void run() {
    if (!engine->step(step++, states, inputs, outputs).ok()) std::abort();
  }
};

Result<OurStep> prepare_step(int threads) {
  TWINRUN_ASSIGN(const Scenario scenario,
                 load_scenario("mnist_tutorial",
                               {{"train.batch", std::to_string(kBatch)}, {"tpu.cores", "1"}}));
  TWINRUN_ASSIGN(const Program forward, build_training(scenario, {28, 28, 1}));
  const Program program = training_step(forward);
  OurStep ours;
  TWINRUN_ASSIGN(ours.backend, make_backend("cpu", {.threads = threads}));
  TWINRUN_ASSIGN(ours.engine, ours.backend->prepare(program));
  ours.states = initial_states(program, scenario.seed);
  Batch batch;
  batch.images = random_tensor({DType::kF32, {kBatch, 28, 28, 1}}, 1);
  batch.labels = Tensor::empty({DType::kI32, {kBatch}});
  batch.sample_ids = Tensor::empty({DType::kI32, {kBatch}});
  for (int32_t i = 0; i < kBatch; ++i) {
    batch.labels.as<int32_t>()[static_cast<size_t>(i)] = i % 10;
    batch.sample_ids.as<int32_t>()[static_cast<size_t>(i)] = i;
  }
  TWINRUN_ASSIGN(ours.inputs, step_inputs(program, scenario, batch, 0));
  return ours;
}

}  // namespace

void bench_step(Suite& suite) {
  suite.section("step: mnist_tutorial at batch 128, engine cpu; peer: PyTorch, channels_last");
  std::signal(SIGPIPE, SIG_IGN);
  for (const int threads : suite.threads()) {
    if (!suite.begin({.name = "step mnist_tutorial batch 128",
                      .threads = threads,
                      .unit = "step/s",
                      .scale = 1})) {
      continue;
    }
    Child torch(TWINRUN_BENCH_DIR "/torch_step.py", threads);
    if (!torch.answers()) {
      suite.skip("step mnist_tutorial batch 128", "no PyTorch (python3-torch)");
      continue;
    }
    Result<OurStep> ours = prepare_step(threads);
    if (!ours.ok()) {
      suite.skip("step mnist_tutorial batch 128", ours.error().what);
      continue;
    }
    suite.measure([&] { ours->run(); }, [&] { torch.step(); });
  }
}

}  // namespace twinrun
