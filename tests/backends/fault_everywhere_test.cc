// Every kind of the catalogue, on every kind of op that it can act on: bits change where the log says so and nowhere else, when
// and where it was told, and the same bits each time.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "backends/faults/faulty_backend.h"
#include "backends/kernels/kernels.h"
#include "tests/backends/fault_trials.h"

namespace twinrun {
namespace {

using small::feed;
using small::hooks_of;
using small::Recorder;
using small::Trial;

constexpr int64_t kSteps = 3;

const Program& image_net() {
  static const Program p = small::image_net();
  return p;
}
const Program& token_net() {
  static const Program p = small::token_net();
  return p;
}

struct Target {
  const Program* program;
  std::string op;
  OpKind kind;
};
// For each kind of op, the last one of a net that the fault can act on: gradients and updates rather than the forward pass.
std::vector<Target> targets(const FaultKind& kind) {
  std::map<OpKind, Target> by_kind;
  for (const Program* p : {&token_net(), &image_net()}) {
    for (ValueId id = 0; id < p->graph.size(); ++id) {
      const Op& op = p->graph.op(id);
      const std::vector<FaultSpec> spec = {small::fault(std::string(kind.name) + "@" + op.name)};
      if (applies(kind, *p, id) && FaultHooks::make(*p, spec, 1).ok())
        by_kind[op.kind] = {p, op.name, op.kind};
    }
  }
  std::vector<Target> out;
  for (auto& [op, target] : by_kind) out.push_back(std::move(target));
  return out;
}

int64_t different(const Tensor& a, const Tensor& b) {
  const size_t size = size_of(a.dtype());
  int64_t n = 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    const size_t at = static_cast<size_t>(i) * size;
    n += std::memcmp(a.raw() + at, b.raw() + at, size) != 0 ? 1 : 0;
  }
  return n;
}

// Changed elements by (step, replica), as the log has them; a collective's shared result counts on every replica.
using Changes = std::map<std::pair<int64_t, int>, int64_t>;
Changes of_log(const std::vector<Activation>& log, const std::string& op,
               const std::string& fault) {
  Changes out;
  for (const Activation& a : log) {
    EXPECT_EQ(a.op, op);
    EXPECT_EQ(a.fault, fault);
    for (int r = 0; r < small::kCores; ++r) {
      if (a.replica < 0 || a.replica == r) out[{a.step, r}] += a.elements;
    }
  }
  return out;
}

// Runs with the fault; what changed according to an honest op on the same inputs. With `all`, every other op is looked at too.
Changes struck(const Target& t, const std::string& fault, bool all, std::vector<Activation>& log) {
  Trial run("cpu", *t.program);
  const auto hooks = hooks_of(*t.program, {fault});
  Changes out;
  for (int64_t s = 0; s < kSteps; ++s) {
    feed(run, s);
    Recorder seen;
    run.step(s, &seen, hooks.get());
    for (const std::string& name : seen.order) {
      if (name != t.op && !all) continue;
      const auto honest = small::replayed("cpu", *t.program, name, seen.seen.at(name), s);
      for (int r = 0; r < small::kCores; ++r) {
        const int64_t n =
            different(honest[static_cast<size_t>(r)], seen.output(name, static_cast<size_t>(r)));
        if (name != t.op) EXPECT_EQ(n, 0) << fault << " also changed " << name << " in step " << s;
        if (name == t.op && n != 0) out[{s, r}] = n;
      }
    }
  }
  log = hooks->activations();
  return out;
}

// Inert by the numbers of these nets, on every op or on those; what they do is shown by hand (fault_effects_test.cc).
bool inert(const FaultKind& kind, OpKind op) {
  const std::string_view name = kind.name;
  return name == "denormals";  // no denormals here
}

class EveryFault : public testing::TestWithParam<const FaultKind*> {};

TEST_P(EveryFault, ChangesWhatTheLogSaysAndNothingElse) {
  const FaultKind& kind = *GetParam();
  const std::vector<Target> all = targets(kind);
  ASSERT_FALSE(all.empty()) << "no op of these nets";
  for (const Target& t : all) {
    const std::string fault = std::string(kind.name) + "@" + t.op;
    std::vector<Activation> log;
    const Changes seen = struck(t, fault, &t == &all.front(), log);
    EXPECT_EQ(seen, of_log(log, t.op, fault)) << fault;
    EXPECT_EQ(seen.empty(), inert(kind, t.kind)) << fault;
  }
}

// A target on which the kind changes bits in every step it strikes.
std::optional<Target> lively(const FaultKind& kind) {
  for (const Target& t : targets(kind)) {
    std::vector<Activation> log;
    if (struck(t, std::string(kind.name) + "@" + t.op + ",every=1", false, log).size() >=
        2 * (kSteps - 1))
      return t;
  }
  return std::nullopt;
}

std::vector<Activation> log_of(const Target& t, const std::string& fault, int64_t steps,
                               uint64_t run = 0) {
  Trial trial("cpu", *t.program);
  const auto hooks = hooks_of(*t.program, {fault}, {.run = run});
  for (int64_t s = 0; s < steps; ++s) {
    feed(trial, s);
    trial.step(s, nullptr, hooks.get());
  }
  return hooks->activations();
}

TEST_P(EveryFault, KeepsToItsStepsAndCores) {
  const FaultKind& kind = *GetParam();
  const std::optional<Target> t = lively(kind);
  if (!t) {
    EXPECT_TRUE(kind.name == "denormals" || kind.name == "untied" ||
                kind.name == "one_core_wrong" || kind.name == "no_reduce")
        << "never changes both cores";
    if (kind.name == "denormals") return;
  }
  const Target target = t ? *t : targets(kind).front();
  const std::string at = std::string(kind.name) + "@" + target.op;
  const auto steps = [&](const std::string& keys) {
    std::set<int64_t> out;
    for (const Activation& a : log_of(target, at + keys, 4)) out.insert(a.step);
    return out;
  };
  using Steps = std::set<int64_t>;
  EXPECT_EQ(steps(",step=1"), (Steps{1}));
  EXPECT_EQ(steps(",from=2"), (Steps{2, 3}));
  EXPECT_EQ(steps(",every=3").count(3), 1u);
  EXPECT_EQ(steps(",every=3").count(1) + steps(",every=3").count(2), 0u);
  // On a collective most kinds of that group change what all cores get: there `core` names a part.
  for (const Activation& a : log_of(target, at + ",core=1,from=1", 3)) {
    if (kind.group == FaultGroup::kCollectives && kind.place != FaultKind::Place::kEachCopy) {
      EXPECT_EQ(a.replica, -1);
    } else {
      EXPECT_EQ(a.replica, 1);
    }
  }
}

std::string bits(const FaultKind& kind, int threads) {
  DigestBuilder out;
  for (const Target& t : targets(kind)) {
    Trial run("cpu", *t.program, {.threads = threads});
    const auto hooks = hooks_of(*t.program, {std::string(kind.name) + "@" + t.op + ",every=1"});
    for (int64_t s = 0; s < 2; ++s) {
      feed(run, s);
      run.step(s, nullptr, hooks.get());
    }
    out.add(run.digest());
  }
  return out.finish().hex();
}

TEST_P(EveryFault, GivesTheSameBitsOnThreadsAndInstructionSets) {
  const std::string first = bits(*GetParam(), 1);
  EXPECT_EQ(bits(*GetParam(), 3), first);
  const Isa best = active_isa();
  force_isa(Isa::kScalar);
  EXPECT_EQ(bits(*GetParam(), 1), first);
  force_isa(best);
}

std::vector<const FaultKind*> all_kinds() {
  std::vector<const FaultKind*> out;
  for (const FaultKind& kind : fault_catalogue()) out.push_back(&kind);
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, EveryFault, testing::ValuesIn(all_kinds()),
                         [](const auto& p) { return std::string(p.param->name); });

// ---- the catalogue itself

TEST(FaultCatalogue, IsOne) {
  std::set<std::string_view> names;
  std::set<FaultGroup> groups;
  for (const FaultKind& kind : fault_catalogue()) {
    EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
    groups.insert(kind.group);
    EXPECT_FALSE(kind.does.empty() || kind.acts_on.empty()) << kind.name;
    const bool none = kind.magnitude.unit == FaultMagnitude::Unit::kNone;
    EXPECT_EQ(none, kind.magnitude.means.empty()) << kind.name;
    for (double m : kind.magnitude.grid) {
      const std::string text = std::string(kind.name) + "@x,magnitude=" + std::to_string(m);
      EXPECT_TRUE(parse_fault(text).ok()) << text;
    }
  }
  EXPECT_GE(names.size(), 36u);
  EXPECT_EQ(groups.size(), 6u);
}

TEST(FaultCatalogue, IsShownAsATable) {
  const std::string table = fault_table(80);
  for (const FaultKind& kind : fault_catalogue())
    EXPECT_NE(table.find("  " + std::string(kind.name) + " "), std::string::npos) << kind.name;
  for (size_t begin = 0; begin < table.size();) {
    const size_t end = table.find('\n', begin);
    EXPECT_LE(end - begin, 80u) << table.substr(begin, end - begin);
    begin = end + 1;
  }
}

// ---- rate

const Target kDense = {nullptr, "dense1/dot_general", OpKind::kDotGeneral};

std::set<int64_t> steps_hit(double rate, uint64_t run) {
  Target t = kDense;
  t.program = &image_net();
  std::set<int64_t> steps;
  for (const Activation& a :
       log_of(t, "scale@dense1/dot_general,rate=" + std::to_string(rate), 60, run))
    steps.insert(a.step);
  return steps;
}

TEST(FaultRate, StrikesSomeStepsAndOthersInAnotherRun) {
  const auto first = steps_hit(0.3, 0);
  EXPECT_EQ(first, steps_hit(0.3, 0));
  EXPECT_NE(first, steps_hit(0.3, 1));
  // 60 draws at 0.3: 18, standard deviation 3.55; five of them either way.
  EXPECT_GE(first.size(), 1u);
  EXPECT_LE(first.size(), 36u);
  EXPECT_EQ(steps_hit(1, 0).size(), 60u);
}

TEST(FaultRate, ASecondEngineOfABackendIsAnotherRun) {
  const auto log = std::make_shared<FaultLog>();
  const auto run = [&](Backend& backend) {
    auto engine = *backend.prepare(image_net());
    Trial t("cpu", image_net());
    for (int64_t s = 0; s < 30; ++s) {
      feed(t, s);
      t.set("step", Tensor::scalar_i32(static_cast<int32_t>(s)));
      EXPECT_TRUE(engine->step(s, t.states, t.inputs, t.outputs).ok());
    }
  };
  for (int b = 0; b < 2; ++b) {  // two backends that share a log count on
    const auto backend = with_faults(*make_backend("cpu", {}),
                                     {small::fault("scale@dense1/dot_general,rate=0.5")}, 7, log);
    run(*backend);
    run(*backend);
  }
  ASSERT_EQ(log->runs.size(), 4u);
  std::set<std::set<int64_t>> different_runs;
  for (const auto& r : log->runs) {
    std::set<int64_t> steps;
    for (const Activation& a : r) steps.insert(a.step);
    different_runs.insert(steps);
  }
  EXPECT_EQ(different_runs.size(), 4u);
  EXPECT_TRUE(log->first_step().has_value());
}

}  // namespace
}  // namespace twinrun
