// Whole training steps: against PyTorch in f32 and in mixed precision, against our own engines (tpu
// against cpu, eight cores against one, with digests against without), XLA's against ours, and
// their memory. Samples are random; the models are scenarios. PyTorch runs bench/torch_step.py in a
// child process, one step for every line it receives, so that its samples alternate with ours. It
// has its best settings, as far as this machine has them: channels_last, OpenBLAS built for OpenMP,
// an allocator that keeps its pages.
//
//   twinrun_bench --filter '^step'
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "backends/core/backend.h"
#include "bench/bench.h"
#include "bench/child.h"
#include "checkpoints/checkpoint.h"
#include "harness/experiment/engines.h"
#include "harness/experiment/experiment.h"
#include "program/base/digest.h"
#include "scenarios/model.h"

namespace twinrun {
namespace {

struct Model {
  std::string name;      // also in torch_step.py
  std::string scenario;  // a library name or a file
  int64_t batch;
  std::string text() const { return fmt::format("{} b{}", name, batch); }
};

std::vector<Model> models() {
  const std::string own = TWINRUN_BENCH_DIR "/scenarios/";
  return {{"mnist_tutorial", "mnist_tutorial", 128},
          {"use_tpus", own + "use_tpus.toml", 200},
          {"mlp_bn", own + "mlp_bn.toml", 128},
          {"mlp_bn", own + "mlp_bn.toml", 1024},
          {"resnet20", "resnet20", 128},
          {"gpt", own + "gpt.toml", 16}};
}

// A prepared engine with its state and the inputs of a step.
struct OurStep {
  Scenario scenario;
  Program program;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Engine> engine;
  States states;
  StepInputs inputs;
  StepOutputs outputs;
  int64_t step = 0;

  void run(TraceSink* sink = nullptr) {
    if (!engine->step(step++, states, inputs, outputs, sink).ok()) std::abort();
  }
};

// A tensor with leading dimension `batch`, filled with 0, 1, ..., end - 1 repeatedly.
Tensor counted(Dims dims, int64_t batch, int64_t end) {
  dims.insert(dims.begin(), batch);
  Tensor t = Tensor::empty({DType::kI32, dims});
  int64_t i = 0;
  for (int32_t& v : t.as<int32_t>()) v = static_cast<int32_t>(i++ % end);
  return t;
}

Batch random_batch(const SampleType& sample, int64_t batch) {
  Dims features = sample.features;
  features.insert(features.begin(), batch);
  return {.features = sample.dtype == DType::kI32
                          ? counted(sample.features, batch, sample.vocabulary)
                          : random_tensor({DType::kF32, features}, 1),
          .labels = counted(sample.labels, batch, sample.classes),
          .weights = {},
          .sample_ids = counted({}, batch, batch)};
}

Result<OurStep> prepare_step(const Model& model, const std::string& engine, int cores,
                             int threads) {
  OurStep ours;
  TWINRUN_ASSIGN(ours.scenario,
                 load_scenario(model.scenario, {{"train.batch", std::to_string(model.batch)},
                                                {"tpu.cores", std::to_string(cores)}}));
  TWINRUN_ASSIGN(const SampleType sample, sample_on_paper(ours.scenario));
  TWINRUN_ASSIGN(const Experiment experiment, experiment_on_paper(ours.scenario));
  ours.program = cores > 1 ? experiment.sharded(experiment.sharding) : experiment.whole();
  TWINRUN_ASSIGN(ours.backend, make_engine(engine, ours.scenario, {.threads = threads}));
  TWINRUN_ASSIGN(ours.engine, ours.backend->prepare(ours.program));
  ours.states = initial_states(ours.program, ours.scenario.seed);
  TWINRUN_ASSIGN(ours.inputs,
                 step_inputs(ours.program, ours.scenario, random_batch(sample, model.batch), 0));
  return ours;
}

PeerProcess torch_of(const Model& model, const std::string& precision, int threads) {
  const std::string count = std::to_string(threads);
  std::vector<std::pair<std::string, std::string>> environment = {
      {"OMP_NUM_THREADS", count},
      {"OPENBLAS_NUM_THREADS", count},
      {"GLIBC_TUNABLES",
       "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=4000000000:"
       "glibc.malloc.top_pad=268435456"}};
  const char* const blas = "/usr/lib/x86_64-linux-gnu/openblas-openmp";
  if (std::filesystem::exists(blas)) environment.emplace_back("LD_LIBRARY_PATH", blas);
  return PeerProcess({"/usr/bin/python3", TWINRUN_BENCH_DIR "/torch_step.py", model.name,
                      std::to_string(model.batch), precision, count},
                     environment);
}

void against_torch(Suite& suite, const std::string& engine, const std::string& precision,
                   double target) {
  suite.section(fmt::format("step, engine {}; peer: PyTorch {}", engine, precision));
  for (const Model& model : models()) {
    for (const int threads : suite.threads()) {
      const std::string name = fmt::format("step {} {}", engine, model.text());
      if (!suite.begin(
              {.name = name, .threads = threads, .unit = "step/s", .target = target, .scale = 1}))
        continue;
      PeerProcess torch = torch_of(model, precision, threads);
      if (!torch.answer()) {
        suite.skip(name, "no PyTorch (python3-torch)");
        continue;
      }
      Result<OurStep> ours = prepare_step(model, engine, 1, threads);
      if (!ours.ok()) {
        suite.skip(name, ours.error().what);
        continue;
      }
      suite.measure([&] { ours->run(); }, [&] { torch.ask(); });
    }
  }
}

// An engine and its number of cores.
struct Setup {
  std::string engine;
  int cores = 1;
};

// Measures a row per model and thread count: `run` on the engine `ours` against a plain step of
// `peer`. XLA chooses its own number of threads, as many as the machine has, so it gets no rows
// with fewer.
void rows(Suite& suite, const std::string& name, const std::vector<Model>& models,
          const std::function<std::optional<double>(const Model&)>& target, const Setup& ours,
          const Setup& peer, const std::function<void(OurStep&)>& run) {
  const std::vector<int> all = suite.threads();
  for (const Model& model : models) {
    for (const int threads : ours.engine == "xla" ? std::vector{all.back()} : all) {
      const BenchCase what{.name = fmt::format("step {} {}", name, model.text()),
                           .threads = threads,
                           .unit = "step/s",
                           .target = target(model),
                           .scale = 1};
      if (!suite.begin(what)) continue;
      Result<OurStep> a = prepare_step(model, ours.engine, ours.cores, threads);
      Result<OurStep> b = prepare_step(model, peer.engine, peer.cores, threads);
      if (a.ok() && b.ok()) {
        suite.measure([&] { run(*a); }, [&] { b->run(); });
      } else {
        suite.skip(what.name, (a.ok() ? b : a).error().what);
      }
    }
  }
}

// Digests every op's result, to measure the cost of recording them.
class DigestSink : public TraceSink {
 public:
  void on_op(const OpEvent& event) override {
    const std::byte* last = nullptr;
    for (const Tensor& t : event.outputs) {
      if (t.raw() != last)
        benchmark::DoNotOptimize(digest(t).low);  // replicas that share storage count once
      last = t.raw();
    }
  }
};

void against_ourselves(Suite& suite) {
  const std::vector<Model> all = models();
  const auto plain = [](OurStep& step) { step.run(); };
  const auto target = [](double value) {
    return [value](const Model&) { return std::optional(value); };
  };

  suite.section("step, engine tpu x1; peer: our own cpu");
  const auto tiles = [](const Model& model) -> std::optional<double> {
    if (!machine_has_amx()) return std::nullopt;
    return model.name == "use_tpus" ? 3.0 : 1.5;
  };
  rows(suite, "tpu/cpu", {all[0], all[1]}, tiles, {"tpu"}, {"cpu"}, plain);

  suite.section("step, engine tpu x8; peer: tpu x1 at the same total batch");
  std::vector<Model> large = {all[0], all[3]};
  for (Model& model : large) model.batch = 1024;
  rows(suite, "tpu8/tpu1", large, target(1 / 1.15), {"tpu", 8}, {"tpu"}, plain);

  suite.section("step with the digests of all states, engine cpu; peer: the step alone");
  rows(suite, "digests", all, target(0.98), {"cpu"}, {"cpu"}, [](OurStep& step) {
    step.run();
    to_checkpoint(step.program, step.states, step.scenario, step.step).root_digest();
  });

  suite.section(
      "step with the digests of all ops' results, engine cpu, op by op; peer: the step alone");
  rows(suite, "op digests", {all[0], all[3]}, target(1 / 1.1), {"cpu"}, {"cpu"}, [](OurStep& step) {
    DigestSink sink;
    step.run(&sink);
  });
}

// The engine `xla` as it is used: its tensors go to the device and back at every step
// (docs/guides/xla.md).
void of_xla(Suite& suite) {
  suite.section("step, engine xla; peer: our own cpu or tpu on as many cores, all threads");
  for (const int cores : {1, 8}) {
    for (const char* const peer : {"cpu", "tpu"}) {
      rows(
          suite, fmt::format("xla/{} x{}", peer, cores),
          {{"digits_cnn", "digits_cnn", 256}, {"mnist_tutorial", "mnist_tutorial", 1024}},
          [](const Model&) { return std::nullopt; }, {"xla", cores}, {peer, cores},
          [](OurStep& step) { step.run(); });
    }
  }
}

int64_t peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib;
  }
  return 0;
}

// The increase of the peak resident size of a fresh process by five steps, in MiB.
std::optional<double> added_mib(PeerProcess child) {
  const std::optional<std::string> before = child.answer();
  if (!before) return std::nullopt;
  std::optional<std::string> after;
  for (int i = 0; i < 5; ++i) after = child.ask();
  if (!after) return std::nullopt;
  const auto kib = [](const std::string& line) {
    return std::atof(line.substr(line.find(' ') + 1).c_str());
  };
  return (kib(*after) - kib(*before)) / 1024;
}

void memory(Suite& suite) {
  suite.section(
      "peak memory of training, less what the process used before; peer: PyTorch "
      "f32 (ratio: MiB of PyTorch / MiB of twinrun)");
  const int threads = suite.threads().back();
  for (const Model& model : models()) {
    const BenchCase what{
        .name = "memory cpu " + model.text(), .threads = threads, .unit = "MiB", .target = 1 / 0.7};
    if (!suite.begin(what)) continue;
    const std::optional<double> ours =
        added_mib(PeerProcess({"/proc/self/exe", "--steps", model.name, std::to_string(model.batch),
                               std::to_string(threads)},
                              {}));
    const std::optional<double> peer = added_mib(torch_of(model, "f32", threads));
    if (ours && peer) {
      suite.record(*ours, *peer, *peer / *ours);
    } else {
      suite.skip(what.name, peer ? "our own process failed" : "no PyTorch (python3-torch)");
    }
  }
}

}  // namespace

int bench_steps_on_request(const std::string& name, int64_t batch, int threads) {
  fmt::print("ready {}\n", peak_kib());
  std::fflush(stdout);
  for (const Model& model : models()) {
    if (model.name != name || model.batch != batch) continue;
    Result<OurStep> ours = prepare_step(model, "cpu", 1, threads);
    if (!ours.ok()) return 1;
    while (std::getchar() != EOF) {
      for (int c = 0; c != '\n' && c != EOF;) c = std::getchar();
      ours->run();
      fmt::print("{} {}\n", ours->step, peak_kib());
      std::fflush(stdout);
    }
    return 0;
  }
  return 1;
}

void bench_step(Suite& suite) {
  std::signal(SIGPIPE, SIG_IGN);
  against_torch(suite, "cpu", "f32", 1.2);
  against_torch(suite, "tpu", "amp", 1.0);
  against_ourselves(suite);
  of_xla(suite);
  memory(suite);
}

}  // namespace twinrun
