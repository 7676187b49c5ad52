// Tests program identification: which program a subject ran, found from its tensors alone.
#include "harness/identify/identify.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backends/core/wrapped.h"
#include "backends/faults/other_program.h"
#include "backends/variants/variant.h"
#include "harness/envelope/precision_class.h"
#include "harness/run/run.h"
#include "tests/harness/subjects.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

Identification match(const Experiment& e, Backend& subject, std::vector<int64_t> steps = {0, 3},
                     const IdentifyOptions& how = {}) {
  const Program asked = e.sharded(e.sharding);
  tiny::KeptStarts keeper(steps);
  RunOptions options;
  options.observer = &keeper;
  options.evaluate = false;
  options.steps = steps.back() + 1;
  tiny::must(train(e, asked, subject, options));
  return tiny::must(identify_program(e, asked, subject, keeper.states, how));
}

bool names(const Identification& m, const std::string& cause) {
  return std::ranges::any_of(m.explanations, [&](const Explanation& x) {
    return x.parts.size() == 1 && x.parts[0].cause == cause;
  });
}

std::string text_of(const Identification& m) {
  std::string out = "outcome " + std::to_string(static_cast<int>(m.outcome)) + ", ratio " +
                    std::to_string(m.ratio) + " of " + std::to_string(m.threshold);
  for (const Explanation& x : m.explanations) {
    out += "\n  explained by";
    for (const auto& part : x.parts) out += (part.introduced ? " +" : " -") + part.cause;
    out += " " + std::to_string(x.ratio);
  }
  for (const TensorMismatch& t : m.outside) {
    out += "\n  " + t.tensor + " on " + std::to_string(t.replica) + " at " +
           std::to_string(t.step) + ": " + std::to_string(t.ratio) + ", " + t.pattern;
  }
  return out;
}

// A model with all that a cause can act on; its sharded program means the same as the whole batch.
Experiment rich(int cores) {
  return tiny::experiment(tiny::kNormalized, {{"tpu.cores", std::to_string(cores)},
                                              {"tpu.batchnorm", "synced"},
                                              {"optimizer.clip", "value"},
                                              {"optimizer.clip_at", "0.02"},
                                              {"optimizer.l2", "0.01"}});
}

std::unique_ptr<Backend> hiding(const Experiment& e, const std::vector<std::string>& causes,
                                std::unique_ptr<Backend> conforming = tiny::backend("tpu")) {
  return with_other_program(std::move(conforming), [&e, causes](Sharding s) {
    for (const std::string& cause : causes) s = introduce(e, s, cause);
    return s;
  });
}

void expect_named(const Experiment& e, const std::string& cause, std::vector<int64_t> steps) {
  const Identification m = match(e, *hiding(e, {cause}), std::move(steps));
  EXPECT_EQ(m.outcome, Identification::Outcome::kExplained) << cause << ": " << text_of(m);
  EXPECT_TRUE(names(m, cause)) << cause << ": " << text_of(m);
  // Causes that cannot be distinguished give the same program, or the same feed of the cores.
  const std::vector<std::string> one_program = {"reduction", "unscaled"},
                                 one_feed = {"same_shard", "shard_twice"};
  const auto has = [&](const std::vector<std::string>& c) {
    return std::ranges::find(c, cause) != c.end();
  };
  const bool alike = has(one_program) || (has(one_feed) && e.sharding.cores == 2);
  EXPECT_EQ(m.explanations.size(), alike ? 2u : 1u) << cause << ": " << text_of(m);
}

// Each hidden cause alone is distinguished from all others, except from those that give the same
// program or feed.
class IdentifyProgramSlow : public testing::TestWithParam<int> {};
TEST_P(IdentifyProgramSlow, NamesEachHiddenCause) {
  const Experiment e = rich(GetParam());
  ASSERT_TRUE(sharding_causes(e).empty());
  ASSERT_GE(possible_causes(e).size(), 18u);
  for (const std::string& cause : possible_causes(e)) expect_named(e, cause, {0, 3});
}
INSTANTIATE_TEST_SUITE_P(Cores, IdentifyProgramSlow, testing::Values(2, 8));

// Pairs of samples across cores, and means over unequal numbers of tokens.
TEST(IdentifyProgram, NamesCausesOfPairsAndTokens) {
  const auto phrases = [](const char* batchwise) {
    return tiny::must(
        make_experiment(tiny::must(load_scenario("triplet_phrases", {{"tpu.cores", "2"},
                                                                     {"tpu.batchwise", batchwise},
                                                                     {"tpu.token_mean", "global"},
                                                                     {"train.batch", "16"},
                                                                     {"data.train", "256"},
                                                                     {"data.eval", "64"}}))));
  };
  const Experiment gathered = phrases("gathered");
  ASSERT_TRUE(sharding_causes(gathered).empty());
  expect_named(gathered, "batch_wise", {0});
  // A loss that sees the samples of all cores divides by the tokens of all cores.
  expect_named(phrases("per_core"), "token_mean", {0});
}

TEST(IdentifyProgram, NamesAHiddenCause) {
  const Experiment e = rich(2);
  for (const char* cause : {"unscaled", "statistics", "same_shard", "rate_over_cores"})
    expect_named(e, cause, {0});
}

// A script without the all-reduce, and an engine that does not perform it, show the same tensors.
TEST(IdentifyProgram, SaysWhichEngineFaultLooksTheSame) {
  const Experiment e = tiny::experiment(tiny::kDense);
  const Identification m = match(e, *hiding(e, {"no_all_reduce"}), {0, 2});
  EXPECT_EQ(m.outcome, Identification::Outcome::kExplained) << text_of(m);
  EXPECT_TRUE(names(m, "no_all_reduce")) << text_of(m);
  ASSERT_EQ(m.twins.size(), 1u);
  EXPECT_NE(m.twins[0].find("does not perform the all-reduce"), std::string::npos);
  EXPECT_GT(m.outside.back().replica, 0) << "every replica is compared";
}

// The requested program normalises per core, the subject's over all cores: the subject lacks a
// cause of the requested program.
TEST(IdentifyProgram, NamesACauseThatTheSubjectHasNot) {
  const Experiment e = tiny::experiment(tiny::kNormalized, {{"tpu.cores", "2"}});
  const auto subject = with_other_program(tiny::backend("tpu"), [](Sharding s) {
    s.batchnorm = BatchNormSync::kSynced;
    return s;
  });
  const Identification m = match(e, *subject, {0});
  EXPECT_EQ(m.outcome, Identification::Outcome::kExplained) << text_of(m);
  ASSERT_FALSE(m.explanations.empty());
  EXPECT_EQ(m.explanations[0].parts[0].cause, "batch_norm");
  EXPECT_FALSE(m.explanations[0].parts[0].introduced);
}

TEST(IdentifyProgram, NamesTwoHiddenCauses) {
  const Experiment e = tiny::experiment(tiny::kDense, {{"tpu.cores", "2"}});
  const Identification m = match(e, *hiding(e, {"no_all_reduce", "rate_over_cores"}), {0});
  EXPECT_EQ(m.outcome, Identification::Outcome::kExplained) << text_of(m);
  EXPECT_TRUE(std::ranges::any_of(m.explanations, [](const Explanation& x) {
    return x.parts.size() == 2 && x.parts[0].cause == "rate_over_cores" &&
           x.parts[1].cause == "no_all_reduce";
  })) << text_of(m);
}

// A fault that no cause predicts is not explained by one. The mismatch nearest to the fault is
// reported first, with its signature.
TEST(IdentifyProgram, AnEngineFaultIsNoCause) {
  const Experiment e = tiny::experiment(tiny::kDense, {{"tpu.cores", "2"}});
  const auto scaled =
      tiny::faulty(tiny::backend("tpu"), "scale@dense1/kernel.grad.all_reduce,magnitude=1.5");
  const Identification m = match(e, *scaled, {0});
  EXPECT_EQ(m.outcome, Identification::Outcome::kUnexplained) << text_of(m);
  ASSERT_FALSE(m.outside.empty());
  EXPECT_EQ(m.outside[0].tensor, "dense1/kernel.grad");
  EXPECT_NEAR(std::stod(m.outside[0].pattern), 1.5, 1e-3) << m.outside[0].pattern;
  const auto tail = tiny::faulty(tiny::backend("tpu"), "drop_k_tail@dense1/dot_general");
  const Identification t = match(e, *tail, {0});
  EXPECT_EQ(t.outcome, Identification::Outcome::kUnexplained) << text_of(t);
  ASSERT_FALSE(t.outside.empty());
  EXPECT_EQ(t.outside[0].tensor, "loss") << "a fault of the forward pass shows there first";
}

// A cause and a fault at once: the cause that leaves the fewest tensors outside is named, and the
// fault is described in the rest.
TEST(IdentifyProgram, TellsAFaultBesideACause) {
  const Experiment e = tiny::experiment(tiny::kDense, {{"tpu.cores", "4"}});
  const auto subject = hiding(
      e, {"same_shard"},
      tiny::faulty(tiny::backend("tpu"), "scale@dense2/kernel.grad.all_reduce,magnitude=1.5"));
  const Identification m = match(e, *subject, {0});
  EXPECT_EQ(m.outcome, Identification::Outcome::kUnexplained) << text_of(m);
  ASSERT_TRUE(m.beside) << text_of(m);
  EXPECT_EQ(m.beside->parts[0].cause, "same_shard");
  ASSERT_EQ(m.outside.size(), 2u) << text_of(m);
  EXPECT_EQ(m.outside[0].tensor, "dense2/kernel.grad");
  EXPECT_NEAR(std::stod(m.outside[0].pattern), 1.5, 1e-2) << m.outside[0].pattern;
  EXPECT_EQ(m.outside[1].tensor, "dense2/kernel");
}

TEST(IdentifyProgram, TellsACoreThatIsLeftOut) {
  const Experiment e = tiny::experiment(tiny::kDense);
  const auto dropped =
      tiny::faulty(tiny::backend("tpu"), "drop_core@dense2/kernel.grad.all_reduce,core=3");
  const Identification m = match(e, *dropped, {0});
  EXPECT_EQ(m.outcome, Identification::Outcome::kUnexplained) << text_of(m);
  ASSERT_FALSE(m.outside.empty());
  EXPECT_EQ(m.outside[0].pattern, "what was expected without core 3's part");
}

// The first tensor that is named must come with its wrong elements, its signature and the cores.
struct Told {
  const char* fault;
  std::vector<int64_t> steps;
  const char *tensor, *elements, *pattern;  // must be contained in the description
  std::vector<int> cores;
};
void expect_told(const Experiment& e, const Told& t) {
  const Identification m =
      match(e, *tiny::faulty(tiny::backend("tpu"), t.fault), t.steps, {.explain = false});
  ASSERT_FALSE(m.outside.empty()) << t.fault;
  const TensorMismatch& first = m.outside.front();
  EXPECT_EQ(first.tensor, t.tensor) << t.fault << text_of(m);
  EXPECT_NE(first.elements.find(t.elements), std::string::npos) << t.fault << first.elements;
  EXPECT_NE(first.pattern.find(t.pattern), std::string::npos) << t.fault << text_of(m);
  EXPECT_EQ(first.cores, t.cores) << t.fault << text_of(m);
}
TEST(IdentifyProgram, DescribesWhatIsOutside) {
  const Experiment e = tiny::experiment(tiny::kDense, {{"tpu.cores", "4"}});
  const std::vector<int> all = {0, 1, 2, 3};
  for (const Told& t : {
           Told{"zero_rows@dense1/kernel.grad.all_reduce",
                {0},
                "dense1/kernel.grad",
                "row",
                "zero",
                all},
           Told{"drop_core@dense1/kernel.grad.all_reduce,core=3",
                {0},
                "dense1/kernel.grad",
                "",
                "without core 3's part",
                all},
           Told{"no_reduce@dense1/kernel.grad.all_reduce,core=2",
                {0},
                "dense1/kernel.grad",
                "",
                "core 2's part alone: not reduced",
                {2}},
           Told{"first_core_only@dense1/kernel.grad.all_reduce",
                {0},
                "dense1/kernel.grad",
                "",
                "core 0's part alone: not reduced",
                all},
           Told{"stale_weights@dense1/kernel.grad.all_reduce,step=3",
                {2, 3},
                "dense1/kernel.grad",
                "",
                "what was expected at the step before (stale)",
                all},
           Told{"wrong_stride@dense1/kernel.update,step=0", {0}, "dense1/kernel", "", "", all},
           Told{"stale_weights@dense2/kernel.update,step=2",
                {1, 2},
                "dense2/kernel",
                "",
                "unchanged",
                all},
           Told{"scale@dense2/dot_general,magnitude=1.5", {0}, "loss", "", "", {0}},
       })
    expect_told(e, t);
}

// Gradients computed late in the backward pass are wrong and early ones are right: the first wrong
// one in the order of computation is named.
TEST(IdentifyProgram, NamesTheFirstOfTheBackwardPass) {
  const Experiment e = tiny::experiment(tiny::kConvolutional, {{"tpu.cores", "2"}});
  const Identification m =
      match(e, *tiny::faulty(tiny::backend("tpu"), "scale@max_pool1/*.grad*,magnitude=1.5"), {0},
            {.explain = false});
  ASSERT_FALSE(m.outside.empty());
  EXPECT_EQ(m.outside.front().tensor.substr(0, 11), "batch_norm1") << text_of(m);
}

TEST(IdentifyProgram, AFactorFarBelowTheNoiseOfANormIsSeen) {
  const Experiment e = tiny::experiment(
      tiny::kDense, {{"tpu.cores", "2"}, {"tpu.precision", "f32"}, {"optimizer.kind", "momentum"}});
  const auto f32 = [] { return tiny::backend("tpu", 1, DotPrecision::kF32); };
  const auto scaled = tiny::faulty(f32(), "scale@dense1/kernel.grad.all_reduce,magnitude=1.00002");
  const Identification a = match(e, *scaled);
  ASSERT_EQ(a.outcome, Identification::Outcome::kUnexplained) << text_of(a);
  EXPECT_EQ(a.outside[0].tensor, "dense1/kernel.grad") << text_of(a);
  // A constant that is rounded in another order conforms.
  const auto close = tiny::faulty(f32(), "scale@dense1/kernel.grad.all_reduce,magnitude=1.0000002");
  const Identification c = match(e, *close);
  EXPECT_EQ(c.outcome, Identification::Outcome::kInside) << text_of(c);
}

// Conforming engines whose declaration is drawn as well.
int outside_of(int first, int last, const Experiment& e) {
  int flagged = 0;
  for (int seed = first; seed < last; ++seed) {
    const DotPrecision precision = seed % 3 == 0 ? DotPrecision::kF32 : DotPrecision::kBf16;
    const auto subject =
        make_variant_backend(draw_variant(1000 + static_cast<uint64_t>(seed), precision), {});
    const Identification m = match(e, *subject, {0, 2});
    flagged += m.outcome != Identification::Outcome::kInside;
    EXPECT_EQ(m.outcome, Identification::Outcome::kInside) << seed << ": " << text_of(m);
  }
  return flagged;
}
TEST(IdentifyProgram, ConformingEnginesAreInside) {
  const Experiment e = rich(2);
  EXPECT_EQ(outside_of(0, 4, e), 0);
  const Identification m = match(e, *tiny::backend("tpu"), {0, 2});
  EXPECT_EQ(m.outcome, Identification::Outcome::kInside) << text_of(m);
  EXPECT_TRUE(m.explanations.empty());
  EXPECT_GT(m.comparisons, 30);
}
// Where not all elements fit, each tensor keeps a part of its elements; small tensors keep all.
TEST(IdentifyProgram, ASampleHasElementsOfEveryTensor) {
  const Experiment e = rich(2);
  const Program program = e.sharded(e.sharding);
  int64_t all = 0;
  for (const Compared& c : compared_tensors(program)) {
    EXPECT_EQ(c.kept, c.elements) << c.tensor;
    all += c.elements;
  }
  for (const int64_t most : {all, all - 1, all / 2, all / 10, int64_t{100}}) {
    int64_t kept = 0, largest = 0;
    for (const Compared& c : compared_tensors(program, most)) {
      EXPECT_GE(c.kept, 1) << c.tensor;
      kept += c.kept;
      largest = std::max(largest, c.kept);
    }
    for (const Compared& c : compared_tensors(program, most))
      EXPECT_TRUE(c.kept == c.elements || c.kept == largest) << c.tensor << " of " << most;
    EXPECT_LE(kept, most);
    EXPECT_GT(kept, most - static_cast<int64_t>(compared_tensors(program).size()));
  }
}

// An engine that reports its gradients before it clips them computes the step that was asked for.
TEST(IdentifyProgram, GradientsMayBeReportedBeforeTheyAreClipped) {
  const Experiment e = rich(2);
  const auto engine = with_other_program(tiny::backend("tpu"), [](Sharding s) {
    s.shows_unclipped = true;
    return s;
  });
  const Identification m = match(e, *engine, {0, 3});
  EXPECT_EQ(m.outcome, Identification::Outcome::kExplained) << text_of(m);
  EXPECT_TRUE(names(m, "unclipped_gradients")) << text_of(m);
  ASSERT_FALSE(m.explanations.empty());
  EXPECT_TRUE(m.explanations.front().harmless()) << text_of(m);
}

// With a sample of elements, as of a large model, conforming engines stay inside and causes are
// named as from all elements.
TEST(IdentifyProgram, ASampleTellsWhatAllElementsTell) {
  const Experiment e = rich(2);
  IdentifyOptions few;
  few.max_elements = 4 * 300;  // two states, two cores
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto conforming =
        make_variant_backend(draw_variant(1000 + seed, DotPrecision::kBf16), {});
    const Identification m = match(e, *conforming, {0, 3}, few);
    EXPECT_EQ(m.outcome, Identification::Outcome::kInside) << seed << ": " << text_of(m);
    EXPECT_LE(m.elements_kept, 300);
    EXPECT_GT(m.elements, 900);
  }
  const Identification m = match(e, *hiding(e, {"clipping"}), {0, 3}, few);
  EXPECT_EQ(m.outcome, Identification::Outcome::kExplained) << text_of(m);
  EXPECT_TRUE(names(m, "clipping")) << text_of(m);
}

// This engine rounds one activation to the other bfloat16 neighbour than all summation orders of
// the contract do. That changes a gradient by 1e-3 of its size, ten thousand times the spread of
// the members if their weights round alike.
TEST(IdentifyProgram, AnOperandRoundedTheOtherWayIsConforming) {
  const Experiment e = tiny::experiment(
      tiny::kNormalized, {{"seed", "242"}, {"tpu.cores", "1"}, {"optimizer.kind", "momentum"}});
  const auto subject = make_variant_backend(draw_variant(5241, DotPrecision::kBf16), {});
  const Identification m = match(e, *subject, {0, 2, 5});
  EXPECT_EQ(m.outcome, Identification::Outcome::kInside) << text_of(m);
}
// ---- precision

// A number that no matching uses for a member.
constexpr uint64_t kSubject = 9001;
// An engine that computes as a member of a class does, and declares something else.
std::unique_ptr<Backend> computing_as(Precision precision, std::optional<Precision> declares,
                                      const Experiment& e, const std::string& fault = "") {
  const Capabilities declared = draw_variant(kSubject, DotPrecision::kF32).declared;
  const Program program = e.sharded(e.sharding);
  const std::vector<PrecisionClass> classes = classes_within(precision, declared, program);
  const auto own = std::ranges::find(classes, precision, &PrecisionClass::precision);
  PrecisionClass c = *own;
  // Round to nearest, as real engines do.
  if (c.how == PrecisionClass::How::kDrawn) c.how = PrecisionClass::How::kNearest;
  auto backend = member_of(c, kSubject, declared, {});
  if (!fault.empty()) backend = tiny::faulty(std::move(backend), fault);
  return std::make_unique<WrappedBackend>(std::move(backend), tiny::as_declaring(declares));
}

// Casts before each product, x.astype(bfloat16) @ w.astype(bfloat16) with float32 results, round the
// gradients with respect to the operands too: an arithmetic of its own, within "default".
TEST(IdentifyProgram, CastsBeforeEachProductAreInside) {
  const Experiment e = tiny::experiment(tiny::kDense, {{"tpu.cores", "2"}});
  const Capabilities exact = draw_variant(kSubject, DotPrecision::kF32).declared;
  const std::vector<PrecisionClass> classes =
      classes_within(Precision::kDefault, exact, e.sharded(e.sharding));
  const PrecisionClass& casts = *std::ranges::find(classes, true, &PrecisionClass::casts);
  const auto subject = [&](std::optional<Precision> declares, const char* fault) {
    auto backend = member_of(casts, kSubject, exact, {});
    if (fault != nullptr) backend = tiny::faulty(std::move(backend), fault);
    return std::make_unique<WrappedBackend>(std::move(backend), tiny::as_declaring(declares));
  };
  for (const std::optional<Precision> declares :
       {std::optional(Precision::kDefault), std::optional<Precision>()}) {
    const Identification m = match(e, *subject(declares, nullptr), {0, 1, 2, 3});
    EXPECT_EQ(m.outcome, Identification::Outcome::kInside) << text_of(m);
    EXPECT_EQ(m.computes, casts.does);
    const Identification wrong =
        match(e, *subject(declares, "scale@dense1/kernel.grad,magnitude=1.003"), {0, 1, 2, 3});
    EXPECT_EQ(wrong.outcome, Identification::Outcome::kUnexplained) << text_of(wrong);
    EXPECT_EQ(wrong.outside[0].tensor, "dense1/kernel.grad") << text_of(wrong);
  }
}

// Exact results are inside for every declared precision, and so are those of any precision finer
// than the declared one.
TEST(IdentifyProgram, FinerThanDeclaredIsInside) {
  const Experiment e = tiny::experiment(tiny::kNormalized, {{"tpu.cores", "2"}});
  using P = Precision;
  struct Case {
    P computes;
    std::optional<P> declares;
  };
  for (const Case c :
       {Case{P::kF32, std::nullopt}, Case{P::kF32, P::kDefault}, Case{P::kF32, P::kAutocast},
        Case{P::kTf32, P::kDefault}, Case{P::kTf32, std::nullopt}, Case{P::kDefault, P::kBf16}}) {
    const Identification m = match(e, *computing_as(c.computes, c.declares, e), {0, 2});
    EXPECT_EQ(m.outcome, Identification::Outcome::kInside) << text_of(m);
    EXPECT_EQ(m.computes_as, row_of(c.computes).word);
  }
}

// Engines of mixed precision are inside, also where a penalty, clipping and an all-reduce act on
// rounded values.
TEST(IdentifyProgram, MixedPrecisionIsInside) {
  const Experiment e = rich(2);
  using P = Precision;
  for (const P precision : {P::kAutocast, P::kBf16, P::kFloat16}) {
    for (const std::optional<P> declares : {std::optional<P>(precision), std::optional<P>()}) {
      const Identification m = match(e, *computing_as(precision, declares, e), {0, 2});
      EXPECT_EQ(m.outcome, Identification::Outcome::kInside)
          << row_of(precision).word << ": " << text_of(m);
    }
  }
}

void expect_fault_under_mixed_precision(std::optional<Precision> declares) {
  const Experiment e = tiny::experiment(tiny::kDense, {{"tpu.cores", "2"}});
  const std::string fault = "scale@dense1/kernel.grad.all_reduce,magnitude=1.05";
  const Identification m =
      match(e, *computing_as(Precision::kAutocast, declares, e, fault), {0, 1, 2, 3});
  ASSERT_EQ(m.outcome, Identification::Outcome::kUnexplained) << text_of(m);
  EXPECT_EQ(m.outside[0].tensor, "dense1/kernel.grad") << text_of(m);
}
TEST(IdentifyProgram, AFaultUnderMixedPrecisionIsFound) {
  expect_fault_under_mixed_precision(Precision::kAutocast);
}
TEST(IdentifyProgramSlow, AFaultUnderMixedPrecisionThatNobodyDeclaresIsFound) {
  expect_fault_under_mixed_precision(std::nullopt);
}

// An engine that computes in float32 is held to float32, although its declaration would allow
// coarser results.
TEST(IdentifyProgram, TheClassOfMostTensorsIsHeldAgainstTheRest) {
  const Experiment e = tiny::experiment(tiny::kDense, {{"tpu.cores", "2"}});
  const std::string fault = "scale@dense1/kernel.grad.all_reduce,magnitude=1.003";
  for (const std::optional<Precision> declares :
       {std::optional(Precision::kAutocast), std::optional<Precision>()}) {
    const Identification m =
        match(e, *computing_as(Precision::kF32, declares, e, fault), {0, 1, 2, 3});
    ASSERT_EQ(m.outcome, Identification::Outcome::kUnexplained) << text_of(m);
    EXPECT_EQ(m.computes_as, "f32");
    EXPECT_EQ(m.outside[0].tensor, "dense1/kernel.grad") << text_of(m);
  }
}

TEST(IdentifyProgram, CoarserThanDeclaredIsNamed) {
  const Experiment e = tiny::experiment(tiny::kDense, {{"tpu.cores", "2"}});
  using P = Precision;
  for (const P precision : {P::kTf32, P::kDefault, P::kAutocast}) {
    const Identification m = match(e, *computing_as(precision, P::kF32, e), {0, 2});
    EXPECT_EQ(m.outcome, Identification::Outcome::kUnexplained) << text_of(m);
    EXPECT_FALSE(m.undeclared.empty()) << row_of(precision).word << ": " << text_of(m);
    if (precision != P::kAutocast) {
      EXPECT_EQ(m.computes_as, row_of(precision).word);
    }
  }
}

TEST(IdentifyProgramSlowClean, ManyConformingEnginesAreInside) {
  EXPECT_EQ(outside_of(4, 44, rich(2)), 0);
  EXPECT_EQ(outside_of(44, 64, tiny::experiment(tiny::kConvolutional)), 0);
  EXPECT_EQ(outside_of(64, 84,
                       tiny::experiment(tiny::kDense,
                                        {{"optimizer.kind", "adam"}, {"optimizer.lr", "0.001"}})),
            0);
}

}  // namespace
}  // namespace twinrun
