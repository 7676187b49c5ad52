// Runs whose cores are split over ranks have the bits of one process: losses, digests, evaluations,
// with statistics of their own or common ones, with faults, with traces, interrupted and resumed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "backends/faults/faulty_backend.h"
#include "harness/lockstep/lockstep.h"
#include "program/base/bits.h"
#include "tests/harness/tiny.h"
#include "tests/support/thread_ranks.h"

namespace twinrun::split_runs {
namespace {

constexpr int kRankCounts[] = {2, 3, 4};

struct Setting {
  const char* name;
  const char* model;
  Overrides overrides;
  std::vector<std::string> faults = {};
};

std::ostream& operator<<(std::ostream& out, const Setting& s) { return out << s.name; }

std::unique_ptr<Backend> engine(const Setting& s, uint64_t seed, Communicator* ranks,
                                std::shared_ptr<FaultLog> log) {
  BackendOptions how;
  how.ranks = ranks;
  std::vector<FaultSpec> faults;
  for (const std::string& text : s.faults) faults.push_back(tiny::must(parse_fault(text)));
  return with_faults(tiny::must(make_backend("tpu", how)), faults, seed, std::move(log));
}

RunResult run(const Setting& s, Communicator* ranks, RunOptions options = {},
              std::shared_ptr<FaultLog> log = nullptr) {
  const Experiment e = tiny::experiment(s.model, s.overrides);
  const Program program = tiny::program(e, true);
  const auto backend = engine(s, e.scenario.seed, ranks, std::move(log));
  options.ranks = ranks;
  return tiny::must(train(e, program, *backend, options));
}

void expect_same_run(const RunFile& split, const RunFile& whole) {
  EXPECT_EQ(split.root_digest(), whole.root_digest());
  ASSERT_EQ(split.state_digests.size(), whole.state_digests.size());
  for (size_t i = 0; i < whole.steps.size(); ++i) {
    EXPECT_EQ(split.state_digests[i], whole.state_digests[i]) << "step " << i;
    EXPECT_EQ(to_bits(split.steps[i].loss), to_bits(whole.steps[i].loss)) << "step " << i;
    EXPECT_EQ(to_bits(split.steps[i].gradient_norm), to_bits(whole.steps[i].gradient_norm));
  }
  ASSERT_EQ(split.evaluations.size(), whole.evaluations.size());
  EXPECT_EQ(split.evaluations.back().loss, whole.evaluations.back().loss);
  EXPECT_EQ(split.checkpoints.back().root_digest(), whole.checkpoints.back().root_digest());
}

class RanksThread : public testing::TestWithParam<Setting> {};

TEST_P(RanksThread, HaveTheBitsOfOneProcess) {
  const auto log = std::make_shared<FaultLog>();
  const RunResult whole = run(GetParam(), nullptr, {}, log);
  if (!GetParam().faults.empty()) {
    EXPECT_FALSE(log->runs.at(0).empty()) << "the fault changed nothing";
  }
  for (const int ranks : kRankCounts) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    std::mutex mutex;
    run_on_ranks(ranks, [&](Communicator& mine) {
      const RunResult split = run(GetParam(), &mine);
      const std::lock_guard lock(mutex);
      if (mine.rank() == 0) expect_same_run(split.file, whole.file);
      // Every rank has the states of all cores.
      EXPECT_EQ(split.file.checkpoints.back().root_digest(),
                whole.file.checkpoints.back().root_digest())
          << "rank " << mine.rank();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, RanksThread,
    testing::Values(
        Setting{"Dense", tiny::kDense, {}},
        Setting{"SumOfLosses", tiny::kDense, {{"loss.reduction", "sum"}}},
        Setting{"StatisticsOfEachCore", tiny::kNormalized, {}},
        Setting{"SyncedStatistics", tiny::kNormalized, {{"tpu.batchnorm", "synced"}}},
        Setting{"AveragedStatistics", tiny::kNormalized, {{"tpu.batchnorm", "averaged"}}},
        Setting{"Loops", tiny::kNormalized, {{"tpu.iterations_per_loop", "5"}}},
        Setting{"Clipping",
                tiny::kDense,
                {{"optimizer.clip", "global_norm"}, {"optimizer.clip_at", "0.1"}}},
        Setting{"Convolutions", tiny::kConvolutional, {}},
        Setting{"FaultOnOneCore", tiny::kNormalized, {}, {"scale@dense2/*,core=3,magnitude=2"}},
        Setting{"CoresDiverge",
                tiny::kDense,
                {},
                {"no_reduce@dense1/kernel.grad.all_reduce,core=1,from=3"}},
        Setting{"FaultOfTheSum",
                tiny::kDense,
                {},
                {"double_core@dense1/kernel.grad.all_reduce,core=2"}}),
    [](const auto& info) { return std::string(info.param.name); });

// The values that a sink sees of every op, on all cores.
class Digests : public TraceSink {
 public:
  void on_op(const OpEvent& event) override {
    for (const auto& operands : event.inputs) {
      for (const Tensor& operand : operands) builder_.add(digest(operand));
    }
    for (const Tensor& output : event.outputs) builder_.add(digest(output));
  }
  std::string hex() { return builder_.finish().hex(); }

 private:
  DigestBuilder builder_;
};

class Watched : public StepObserver {
 public:
  TraceSink* begin_step(int64_t step, const States&, const StepInputs&) override {
    return step % 2 == 1 ? &digests : nullptr;
  }
  Digests digests;
};

TEST(RanksTraceThread, ShowsTheValuesOfAllCoresToEveryRank) {
  const Setting setting{"", tiny::kNormalized, {}, {"scale@dense2/*,core=3,from=4,magnitude=2"}};
  Watched one;
  const RunResult whole = run(setting, nullptr, {.observer = &one});
  const std::string expected = one.digests.hex();
  run_on_ranks(4, [&](Communicator& mine) {
    Watched watched;
    const RunResult split = run(setting, &mine, {.observer = &watched});
    EXPECT_EQ(watched.digests.hex(), expected) << "rank " << mine.rank();
    EXPECT_EQ(split.file.checkpoints.back().root_digest(),
              whole.file.checkpoints.back().root_digest());
  });
}

// What lockstep says of a run whose steps are replayed or screened, the screened ones in groups.
// Which replicas share a tensor decides how often an op is checked, so counts are compared, too.
std::string seen(const Setting& setting, Communicator* ranks) {
  const Experiment e = tiny::experiment(setting.model, setting.overrides);
  const Program program = tiny::program(e, true);
  const auto backend = engine(setting, e.scenario.seed, ranks, nullptr);
  ThreadPool pool(1);
  Lockstep probe(program, backend->capabilities(), {.first = 2, .every = 5, .screen = true}, &pool);
  tiny::must(train(e, program, *backend, {.observer = &probe, .ranks = ranks}));
  std::string out;
  for (const Violation& v : probe.violations())
    out += fmt::format("{} of step {} on core {}, {} cores: {} {} {}\n", v.op, v.step, v.replica,
                       v.replicas, v.fingerprint, v.elements, v.bits.hex());
  const EngineProbe summary = probe.summary("T", 12);
  for (const ProbeRow& row : summary.rows)
    out += fmt::format("{}: {} of {}, {} untestable, worst {}\n", row.op, row.outside, row.elements,
                       row.untestable, row.worst_ratio);
  return out + fmt::format("{} replicas diverge\n", probe.divergences().size());
}

class RanksLockstepThread : public testing::TestWithParam<Setting> {};

TEST_P(RanksLockstepThread, FindsTheSameOnEveryRank) {
  const std::string whole = seen(GetParam(), nullptr);
  EXPECT_EQ(GetParam().faults.empty(), whole.find(" of step ") == std::string::npos) << whole;
  for (const int ranks : kRankCounts) {
    run_on_ranks(ranks, [&](Communicator& mine) {
      EXPECT_EQ(seen(GetParam(), &mine), whole) << "rank " << mine.rank() << " of " << ranks;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, RanksLockstepThread,
    testing::Values(
        Setting{"Conforming", tiny::kNormalized, {}},
        Setting{"Convolutions", tiny::kConvolutional, {}},
        Setting{"OneCore", tiny::kNormalized, {}, {"scale@dense2/*,core=3,from=4,magnitude=2"}},
        Setting{"ACopyOfTheSum",
                tiny::kDense,
                {},
                {"one_core_wrong@dense1/kernel.grad.all_reduce,core=1,from=3"}},
        Setting{"TheSum", tiny::kDense, {}, {"double_core@dense1/kernel.grad.all_reduce,core=2"}},
        Setting{"StaleCore", tiny::kDense, {}, {"stale_core@dense2/*all_reduce,core=1,step=6"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(RanksStopThread, AllStopAfterTheSameStep) {
  std::array<size_t, 4> steps{};
  run_on_ranks(4, [&](Communicator& mine) {
    // The signal reaches one rank only.
    StopFlag stop{false};
    struct Late : Progress {
      StopFlag* stop;
      void step(int64_t done, const std::string&) override { *stop = *stop || done == 7; }
    } late;
    late.stop = &stop;
    RunOptions options;
    if (mine.rank() == 2) options.progress = &late, options.stop = &stop;
    const RunResult split = run({"", tiny::kDense, {}}, &mine, options);
    EXPECT_TRUE(split.file.ended.interrupted());
    steps[static_cast<size_t>(mine.rank())] = split.file.steps.size();
  });
  EXPECT_EQ(steps, (std::array<size_t, 4>{7, 7, 7, 7}));
}

TEST(RanksDisagreeThread, IsAnErrorOnAllRanks) {
  std::atomic<int> errors{0};
  run_on_ranks(2, [&](Communicator& mine) {
    const Experiment e = tiny::experiment(tiny::kDense, {{"seed", mine.rank() == 0 ? "1" : "2"}});
    BackendOptions how;
    how.ranks = &mine;
    const auto result =
        train(e, tiny::program(e, true), *tiny::must(make_backend("tpu", how)), {.ranks = &mine});
    if (!result.ok() && result.error().what.find("rank 1 has another") != std::string::npos)
      ++errors;
  });
  EXPECT_EQ(errors, 2);
}

TEST(RanksCountThread, MoreThanCoresIsAnError) {
  run_on_ranks(3, [&](Communicator& mine) {
    const Experiment e = tiny::experiment(tiny::kDense, {{"tpu.cores", "2"}});
    BackendOptions how;
    how.ranks = &mine;
    const auto engine = tiny::must(make_backend("tpu", how))->prepare(tiny::program(e, true));
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.error().what, "3 ranks for 2 cores");
  });
}

}  // namespace
}  // namespace twinrun::split_runs
