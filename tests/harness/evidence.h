// Evidence made by hand, for the tests of verdicts and of the sentences that describe them.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "harness/diagnose/classify.h"

namespace twinrun::by_hand {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline Evidence clean() {
  Evidence e;
  e.subject.name = "tpu";
  e.subject.precision = DotPrecision::kBf16;
  e.cores = 8;
  e.command = "twinrun diagnose digits_mlp";
  e.controls = {{"R = R'", true, true, "", "", ControlKind::kReferenceRepeats},
                {"T = T'", true, true, "", "", ControlKind::kSubjectRepeats}};
  return e;
}

inline TrajectoryRow trajectory(const std::string& pair, PairedOutcome outcome,
                                double mean = 0.01) {
  TrajectoryRow row;
  row.pair = pair;
  row.metric = "held-out loss";
  row.differences = {mean, mean, mean};
  row.mean = mean;
  row.low = mean - 0.001;
  row.high = mean + 0.001;
  row.level = 0.99;
  row.detectable = 0.002;
  row.must_see = 0.05;
  row.seed_spread = 0.025;
  row.outcome = outcome;
  return row;
}

// Makes run S mean something else than run R; most of the drift is due to `reduction`.
inline void add_meaning(Evidence& e) {
  e.meaning.drift = 0.5;
  e.meaning.residual = 0;
  e.meaning.causes = {{"reduction", "the loss is summed", "set tpu.reduction = \"sum\""},
                      {"batch_norm", "own statistics", "set tpu.batchnorm = \"synced\""}};
  const auto row = [](const std::string& cause, const std::string& direction, double share) {
    return AblationRow{cause, direction, 0.5, 0.1, kMeaningThreshold, true, share, ""};
  };
  e.meaning.rows = {
      row("reduction", "restored in S", 0.9), row("reduction", "introduced alone", 0.9),
      row("batch_norm", "restored in S", 0.1), row("batch_norm", "introduced alone", 0.1)};
}

inline Violation violation(const std::string& op, int64_t step, int replica, int replicas) {
  Violation v;
  v.op = op;
  v.kind = "dot_general";
  v.phase = "gradient";
  v.step = step;
  v.replica = replica;
  v.replicas = replicas;
  v.verdict.worst = 1234;
  v.verdict.subject = 8;
  v.verdict.value = 1;
  v.verdict.radius = 1e-6;
  v.verdict.outside = 12;
  v.verdict.elements = 640;
  v.elements = "12 of 640 elements, worst at [2,0]";
  v.fingerprint = "8 times the expected value";
  return v;
}

inline Identification matched(Identification::Outcome outcome) {
  Identification m;
  m.outcome = outcome;
  m.ratio = 512;
  m.threshold = 40;
  m.false_alarm = 1e-6;
  TensorMismatch t;
  t.tensor = "dense1/kernel.grad";
  t.replica = 3;
  t.step = 8;
  t.ratio = 512;
  t.relative = 0.5;
  t.pattern = "8 times what was expected";
  m.outside = {t};
  if (outcome == Identification::Outcome::kExplained)
    m.explanations = {{{{"unscaled", true}}, 1.5}, {{{"rate_times_cores", true}}, 2}};
  return m;
}

inline void expect_verdict(const Judgement& j, VerdictClass verdict, int code) {
  EXPECT_EQ(to_string(j.verdict), to_string(verdict)) << j.headline;
  EXPECT_EQ(exit_code(j.verdict, j.effect), code);
  EXPECT_FALSE(j.effect_text.empty());
  EXPECT_FALSE(j.headline.empty());
  EXPECT_FALSE(j.confidence.empty());
}

}  // namespace twinrun::by_hand
