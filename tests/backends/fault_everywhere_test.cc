// Tests every kind of fault on every kind of op that it can act on: bits change where the log says
// so and nowhere else, only in the steps and on the cores that were set, and the same bits each
// time.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "backends/faults/faulty_backend.h"
#include "backends/kernels/kernels.h"
#include "backends/registry.h"
#include "program/graph/liveness.h"
#include "tests/backends/fault_trials.h"

namespace twinrun::fault_everywhere_test {
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

// An op as the target of a fault.
struct Target {
  const Program* program;
  std::string fault;  // "KIND@OP"
  std::string op;
};
// The ops that the fault can act on, by kind of op. The last ones of a program come first: updates
// and gradients.
std::map<OpKind, std::vector<Target>> targets(const FaultKind& kind) {
  std::map<OpKind, std::vector<Target>> out;
  for (const Program* p : {&image_net(), &token_net()}) {
    const std::vector<bool> dead = dead_values(*p);
    for (ValueId id = p->graph.size(); id-- > 0;) {
      const Op& op = p->graph.op(id);
      if (dead[static_cast<size_t>(id)] || !applies(kind, *p, id)) continue;
      out[op.kind].push_back({p, std::string(kind.name) + "@" + op.name, op.name});
    }
  }
  return out;
}
// Fault "lane" gets a smaller magnitude, since most tensors here have fewer than 128 elements.
std::string keys_of(const FaultKind& kind) { return kind.name == "lane" ? ",magnitude=2" : ""; }

int64_t different(const Tensor& a, const Tensor& b) {
  const size_t size = size_of(a.dtype());
  int64_t n = 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    const size_t at = static_cast<size_t>(i) * size;
    n += std::memcmp(a.raw() + at, b.raw() + at, size) != 0 ? 1 : 0;
  }
  return n;
}

// The numbers of changed elements in the log, by (step, replica). The shared result of a collective
// counts on every replica.
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

// Runs with the fault and counts the elements that differ from a correct op on the same inputs.
// With `all`, every other op is checked, too.
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
      const auto conforming = small::replayed("cpu", *t.program, name, seen.seen.at(name), s);
      for (int r = 0; r < small::kCores; ++r) {
        const auto& output = seen.output(name, static_cast<size_t>(r));
        const int64_t n = different(conforming[static_cast<size_t>(r)], output);
        if (name == t.op && n != 0) out[{s, r}] = n;
        if (name == t.op) continue;
        EXPECT_EQ(n, 0) << fault << " also changed " << name << " in step " << s;
      }
    }
  }
  log = hooks->activations();
  return out;
}

// Whether the fault cannot show in these programs: they have no denormals, and their masks and
// one-hot rows are not changed by truncation. fault_effects_test.cc tests what such a kind does.
bool inert(const FaultKind& kind, OpKind op) {
  if (kind.name == "denormals") return true;
  return kind.name == "truncate_bf16" && op == OpKind::kConvert;
}

class EveryFault : public testing::TestWithParam<const FaultKind*> {};

TEST_P(EveryFault, ChangesWhatTheLogSaysAndNothingElse) {
  const FaultKind& kind = *GetParam();
  const auto all = targets(kind);
  ASSERT_FALSE(all.empty()) << "no op of these nets";
  bool first = true;
  for (const auto& [op, candidates] : all) {
    bool lively = false;
    for (size_t i = 0; i < candidates.size() && !lively; ++i) {
      const std::string fault = candidates[i].fault + keys_of(kind);
      std::vector<Activation> log;
      const Changes seen = struck(candidates[i], fault, std::exchange(first, false), log);
      EXPECT_EQ(seen, of_log(log, candidates[i].op, fault)) << fault;
      lively = !seen.empty();
    }
    EXPECT_EQ(lively, !inert(kind, op)) << kind.name << " on " << name_of(op);
  }
}

// The log of a run whose every step starts from the initial state, since a NaN left in the state
// would hide the effect of the next strike.
std::vector<Activation> log_of(const Target& t, const std::string& fault, int64_t steps,
                               uint64_t run = 0) {
  Trial trial("cpu", *t.program);
  const States initial = trial.states;
  const auto hooks = hooks_of(*t.program, {fault}, {.run = run});
  for (int64_t s = 0; s < steps; ++s) {
    feed(trial, s);
    trial.states = initial;
    trial.step(s, nullptr, hooks.get());
  }
  return hooks->activations();
}

// The first target on which the fault changes bits in each of the steps 1, 2 and 3.
const Target* lively(const FaultKind& kind, const std::map<OpKind, std::vector<Target>>& all) {
  for (const auto& [op, candidates] : all) {
    for (const Target& t : candidates) {
      std::set<int64_t> steps;
      for (const Activation& a : log_of(t, t.fault + keys_of(kind) + ",from=1", 4))
        steps.insert(a.step);
      if (steps.size() == 3) return &t;
    }
  }
  return nullptr;
}

TEST_P(EveryFault, KeepsToItsStepsAndCores) {
  const FaultKind& kind = *GetParam();
  if (kind.name == "denormals") return;  // these programs have no denormals
  const auto all = targets(kind);
  const Target* t = lively(kind, all);
  ASSERT_NE(t, nullptr);
  const auto steps = [&](const std::string& keys) {
    std::set<int64_t> out;
    for (const Activation& a : log_of(*t, t->fault + keys_of(kind) + keys, 4)) out.insert(a.step);
    return out;
  };
  using Steps = std::set<int64_t>;
  EXPECT_EQ(steps(",step=1"), (Steps{1}));
  EXPECT_EQ(steps(",from=2"), (Steps{2, 3}));
  EXPECT_EQ(steps(",every=3").count(3), 1u);
  EXPECT_EQ(steps(",every=3").count(1) + steps(",every=3").count(2), 0u);
  // For faults of collectives `core` names the contribution that goes wrong, unless the kind makes
  // the cores differ.
  const bool shared =
      kind.group == FaultGroup::kCollectives && kind.place != FaultKind::Place::kEachCopy;
  const auto log = log_of(*t, t->fault + keys_of(kind) + ",core=1,from=1", 4);
  EXPECT_FALSE(log.empty());
  for (const Activation& a : log) EXPECT_EQ(a.replica, shared ? -1 : 1);
}

std::string bits(const FaultKind& kind, int threads) {
  DigestBuilder out;
  for (const auto& [op, candidates] : targets(kind)) {
    const Target& t = candidates.front();
    Trial run("cpu", *t.program, {.threads = threads});
    const auto hooks = hooks_of(*t.program, {t.fault + ",every=1"});
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

TEST(FaultCatalogue, IsInTheDocumentation) {
  std::ifstream file(std::string(TWINRUN_SOURCE_DIR) + "/docs/reference/scenarios.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const size_t kinds = page.find("### Kinds of faults");
  ASSERT_NE(kinds, std::string::npos);
  const std::string text = page.substr(kinds, page.find("\n## ", kinds) - kinds);
  for (const FaultKind& kind : fault_catalogue()) {
    EXPECT_NE(text.find("`" + std::string(kind.name) + "`"), std::string::npos)
        << "docs/reference/scenarios.md does not name the fault " << kind.name;
  }
}

// ---- on other engines

// A fault obtains the correct result from the engine itself. With a fault that changes nothing, a
// variant must therefore give its own bits.
TEST(FaultOnVariants, LeavesTheEngineItsWay) {
  for (const std::string engine :
       {"honest:1", "honest:2", "honest:3", "honest:4", "honest:5", "tpu"}) {
    Trial clean(engine, image_net()), watched(engine, image_net()), struck(engine, image_net());
    const auto nothing = hooks_of(image_net(), {"scale@*,magnitude=1"});
    const auto hooks = hooks_of(image_net(), {"scale@dense1/kernel.grad.all_reduce,core=1"});
    for (int64_t s = 0; s < 2; ++s) {
      for (Trial* t : {&clean, &watched, &struck}) feed(*t, s);
      clean.step(s);
      watched.step(s, nullptr, nothing.get());
      struck.step(s, nullptr, hooks.get());
    }
    EXPECT_EQ(watched.digest(), clean.digest()) << engine;
    EXPECT_NE(struck.digest(), clean.digest()) << engine;
    EXPECT_TRUE(nothing->activations().empty()) << engine;
    EXPECT_EQ(hooks->activations().size(), 2u) << engine;
  }
}

// ---- rate

std::set<int64_t> steps_hit(double rate, uint64_t run) {
  const Target t = {&image_net(), "", "dense1/dot_general"};
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
  // 60 draws at 0.3 give 18 with a standard deviation of 3.55; allow five of them either way.
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
  for (int b = 0; b < 2; ++b) {  // two backends that share a log share the count of runs
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
}  // namespace twinrun::fault_everywhere_test
