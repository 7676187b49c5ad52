// Tests the proof of equal meaning: whether the sharded program and the whole batch's are the same
// function, and where they diverge; compared with the ablation in binary64.
#include "harness/sharding/field_proof.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "harness/sharding/ablation.h"
#include "harness/sharding/causes.h"
#include "program/graph/liveness.h"
#include "scenarios/library.h"
#include "tests/harness/tiny.h"

namespace twinrun::field_proofs {  // a namespace of its own: the tests are compiled together
namespace {

std::vector<FieldProof> prove(const Experiment& e, const std::vector<Sharding>& shardings) {
  return tiny::must(prove_meaning(e, shardings, 1));
}
FieldProof prove(const Experiment& e) { return prove(e, {e.sharding})[0]; }

FieldProof alone(const Experiment& e, const std::string& cause) {
  return prove(e, {introduce(e, faithful(e), cause)})[0];
}

// How much a cause changes in each kind of value, by the proof over the field and in binary64.
struct Compared {
  std::string cause;
  FieldProof proof;
  std::array<double, 3> drift = {};
};

// Introduces every possible cause into the program that means what the whole batch does. The first
// entry has no cause.
std::vector<Compared> compare(const Experiment& e, bool with_causes = true) {
  std::vector<Compared> all = {{"", {}, {}}};
  std::vector<Sharding> shardings = {faithful(e)};
  for (const std::string& cause : with_causes ? possible_causes(e) : std::vector<std::string>()) {
    all.push_back({cause, {}, {}});
    shardings.push_back(introduce(e, faithful(e), cause));
  }
  const std::vector<FieldProof> proofs = prove(e, shardings);
  for (size_t i = 0; i < all.size(); ++i) all[i].proof = proofs[i];
  Experiment clean = e;
  clean.sharding = faithful(e);
  const Program whole = e.whole();
  const ProbeState start{
      0, to_checkpoint(whole, initial_states(whole, e.scenario.seed), e.scenario, 0)};
  const MeaningResult none = tiny::must(probe_meaning(clean, {start}, 1));
  for (size_t k = 0; k < 3; ++k) all[0].drift[k] = none.kinds[k].drift;
  if (!with_causes) return all;
  const Catalogue listed = tiny::must(catalogue(e, {start}, 1));
  for (const CauseEffect& effect : listed.effects) {
    const auto it = std::ranges::find(all, effect.cause, &Compared::cause);
    if (effect.kind != StepKind::kEvaluation)
      it->drift[static_cast<size_t>(effect.kind)] = effect.alone;
  }
  return all;
}

// Causes that may leave the gradient of this step unchanged although they are another function: on
// cores that hold equal numbers of tokens or the same samples, below the norm at which gradients
// are clipped, or by a factor above it.
bool depends_on_data(const Experiment& e, const std::string& cause) {
  using Clip = OptimizerSpec::Clip;
  const Clip clip = e.forward.optimizer.clip;
  return cause == "token_mean" || cause == "clipping" || cause.starts_with("remainder") ||
         cause == "shard_twice" || cause == "same_shard" || clip == Clip::kNorm ||
         clip == Clip::kGlobalNorm;
}

// Where the drift in binary64 is far from its threshold, the proof must agree with it.
void expect_agreement(const Experiment& e, const std::vector<Compared>& all) {
  const double threshold = meaning_threshold(e.sharding.cores);
  for (const Compared& c : all) {
    SCOPED_TRACE(e.scenario.name + ", " + (c.cause.empty() ? "no cause" : c.cause));
    ASSERT_EQ(c.proof.unproven, "");
    EXPECT_LT(c.proof.log2_error(), -100);
    for (size_t k = 0; k < 3; ++k) {
      if (c.drift[k] > 100 * threshold) {
        EXPECT_FALSE(c.proof.same[k]) << to_string(kStepKinds[k]) << " differs by " << c.drift[k];
      }
      if (c.drift[k] < threshold / 100 && !c.proof.same[k] && !depends_on_data(e, c.cause)) {
        // Adam divides by the gradient's size, and statistics may not be read yet.
        EXPECT_FALSE(c.cause.empty())
            << to_string(kStepKinds[k]) << ", parts at " << c.proof.diverges_at;
        EXPECT_NE(k, 0u) << "the gradient differs by " << c.drift[k] << ", parts at "
                         << c.proof.diverges_at;
      }
    }
    EXPECT_EQ(c.proof.equal(), c.proof.diverges_at.empty());
  }
}

Experiment rich(const Overrides& more = {}, const char* layers = tiny::kNormalized) {
  Overrides o = {{"tpu.batchnorm", "synced"},
                 {"optimizer.clip", "value"},
                 {"optimizer.clip_at", "0.02"},
                 {"optimizer.l2", "0.01"}};
  o.insert(o.end(), more.begin(), more.end());
  return tiny::experiment(layers, o);
}

TEST(FieldProof, ProgramsThatMeanTheSameAreTheSameFunction) {
  for (const char* layers : {tiny::kDense, tiny::kNormalized, tiny::kConvolutional}) {
    const Experiment e = rich({}, layers);
    const FieldProof proof = prove(e);
    EXPECT_TRUE(proof.equal()) << layers << proof.diverges_at;
    EXPECT_LT(proof.log2_error(), -100);
    EXPECT_EQ(proof.diverges_at, "");
  }
}

// 1/3 is not a float32 number; the proof needs no larger threshold for it.
TEST(FieldProof, ThreeCoresMeanTheSame) {
  const Experiment e = tiny::must(make_experiment(
      tiny::must(load_scenario("drill_cnn", {{"tpu.cores", "3"}, {"tpu.batchnorm", "synced"}}))));
  const FieldProof proof = prove(e);
  EXPECT_TRUE(proof.equal()) << proof.diverges_at;
}

TEST(FieldProof, EveryOptimizerMeansTheSame) {
  for (const char* kind : {"sgd", "momentum", "adam", "adagrad", "adadelta", "rmsprop", "adamax",
                           "adamw", "adafactor", "lars", "lamb"}) {
    for (const char* clip : {"none", "norm", "global_norm"}) {
      Overrides o = {{"optimizer.kind", kind}, {"optimizer.clip", clip}};
      if (std::string(clip) != "none") o.push_back({"optimizer.clip_at", "0.5"});
      const FieldProof proof = prove(tiny::experiment(tiny::kDense, o));
      EXPECT_TRUE(proof.equal()) << kind << ", clip " << clip << ": " << proof.diverges_at;
    }
  }
}

TEST(FieldProof, EachCauseIsAnotherFunctionAsBinary64Says) {
  for (const Overrides& more :
       {Overrides{}, Overrides{{"loss.reduction", "sum"}, {"tpu.reduction", "sum"}},
        Overrides{{"optimizer.clip", "global_norm"}, {"train.accumulate", "2"}}}) {
    const Experiment e = rich(more);
    const std::vector<Compared> all = compare(e);
    EXPECT_GE(all.size(), 15u);
    EXPECT_TRUE(all[0].proof.equal());
    expect_agreement(e, all);
    for (size_t i = 1; i < all.size(); ++i) EXPECT_FALSE(all[i].proof.equal()) << all[i].cause;
  }
}

TEST(FieldProof, TheFirstOtherValueIsWhereTheMeaningParts) {
  const Experiment e = rich();
  const FieldProof norm = alone(e, "batch_norm");
  EXPECT_EQ(norm.diverges_at, "batch_norm1/mean_broadcast");
  EXPECT_EQ(norm.diverging_operand, "batch_norm1/mean");
  EXPECT_EQ(alone(e, "same_shard").diverges_at, "images");
  EXPECT_EQ(alone(e, "rate_times_cores").diverges_at, "learning_rate");
  EXPECT_EQ(alone(e, "rate_over_cores").diverges_at, "learning_rate");
  EXPECT_EQ(alone(e, "one_stream").diverges_at, "sample_ids");
  const FieldProof unreduced = alone(e, "no_all_reduce");
  EXPECT_TRUE(unreduced.diverging_operand.ends_with(".grad")) << unreduced.diverging_operand;
  // Only running statistics differ: no gradient, no weight.
  const FieldProof statistics = alone(e, "statistics");
  EXPECT_TRUE(statistics.same[0] && statistics.same[1]);
  EXPECT_FALSE(statistics.same[2]);
}

// Clipping each core's gradient is another function than clipping the reduced one, even below the
// norm at which it clips.
TEST(FieldProof, ClippingIsSeenWhereNothingIsClipped) {
  const Experiment e = tiny::experiment(tiny::kDense, {{"optimizer.clip", "global_norm"},
                                                       {"optimizer.clip_at", "1000"},
                                                       {"tpu.clipping", "before_all_reduce"}});
  const FieldProof proof = prove(e);
  EXPECT_FALSE(proof.same[0]);
  EXPECT_TRUE(proof.diverging_operand.ends_with(".grad"))
      << proof.diverges_at << proof.diverging_operand;
}

TEST(FieldProof, ThreadsAndSeedsDoNotMatter) {
  const Experiment e = rich();
  for (const std::string& cause : {std::string("batch_norm"), std::string("l2")}) {
    const Sharding how = introduce(e, faithful(e), cause);
    const auto one = tiny::must(prove_meaning(e, {how}, 1));
    const auto three = tiny::must(prove_meaning(e, {how}, 3));
    EXPECT_EQ(one[0].same, three[0].same);
    EXPECT_EQ(one[0].diverges_at, three[0].diverges_at);
  }
}

// All library scenarios whose data are available, and one whose weighted mean is over a core's own
// items. If a step is too long to test every cause, only the program that means the same and the
// scenario's own are tested.
TEST(FieldProof, AgreesWithBinary64OnTheWholeLibrarySlow) {
  std::set<std::string> found;
  int proven = 0;
  std::vector<std::pair<std::string, Overrides>> all_of_them = {
      {"drill_attention", {{"loss.weights", "tokens"}}}};
  for (const LibraryFile& entry : library_files())
    all_of_them.push_back({std::string(entry.name), {}});
  for (const auto& [name, overrides] : all_of_them) {
    const auto scenario = load_scenario(name, overrides);
    ASSERT_TRUE(scenario.ok()) << name;
    const auto experiment = make_experiment(*scenario);
    if (!experiment) continue;  // needs data of the user's own
    const Experiment& e = *experiment;
    const double flops = step_flops(e.sharded(e.sharding)) * e.sharding.cores;
    if (flops > 2e11) continue;
    const std::vector<Compared> all = compare(e, flops < 1e9);
    EXPECT_TRUE(all[0].proof.equal()) << name << ": " << all[0].proof.diverges_at;
    expect_agreement(e, all);
    ++proven;
    for (const Compared& c : all) {
      if (!c.proof.equal()) found.insert(c.cause);
    }
    const FieldProof own = prove(e);
    EXPECT_EQ(own.equal(), present_causes(e, e.sharding).empty()) << name;
  }
  EXPECT_GE(proven, 15);
  for (const std::string& cause : cause_names())
    EXPECT_TRUE(found.contains(cause)) << cause << " was found in no scenario";
}

}  // namespace
}  // namespace twinrun::field_proofs
