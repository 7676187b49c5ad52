// Tests report.json: keys and their order, lists, exact numbers, non-finite values; and the names
// and exit codes of verdicts.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "program/base/bits.h"
#include "tests/reports/examples.h"

namespace twinrun {
namespace {

using nlohmann::ordered_json;

std::vector<std::string> keys_of(const ordered_json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

using Keys = std::vector<std::string>;

TEST(Json, KeysAreThoseOfTheSchemaInOrder) {
  Report r = examples::sharding();
  const ordered_json j = ordered_json::parse(to_json(r));
  EXPECT_EQ(keys_of(j),
            (Keys{"schema",       "kind",      "verdict",        "answers",      "open",
                  "scenario",     "command",   "asked",          "injected",     "findings",
                  "runs",         "loss_band", "state_partings", "weight_drift", "step_coverage",
                  "controls",     "probes",    "switches",       "proofs",       "many_cores",
                  "trajectories", "cures",     "ensembles",      "unexplained",  "smallest_effect",
                  "ruled_out",    "checklist", "next_steps",     "remarks",      "notes",
                  "program",      "counts",    "numbers",        "details",      "figure",
                  "environment",  "directory", "checksum"}));
  EXPECT_EQ(keys_of(j["verdict"]), (Keys{"class", "side", "row", "effect", "metric", "effect_text",
                                         "subject", "confidence", "exit_code", "headline"}));
  EXPECT_EQ(keys_of(j["scenario"]), (Keys{"name", "description", "digest", "toml"}));
  EXPECT_EQ(keys_of(j["findings"][0]),
            (Keys{"class",   "cause",     "sentence",    "step",         "phase", "op",
                  "op_kind", "core",      "elements",    "fingerprint",  "share", "level",
                  "number",  "bound",     "number_text", "bound_source", "hex",   "evidence",
                  "facts",   "reproduce", "picture",     "call",         "place", "module",
                  "outside", "composed"}));
  EXPECT_EQ(keys_of(j["runs"][0]),
            (Keys{"name", "engine", "settings", "meaning", "root_digest", "steps", "train_loss",
                  "train_loss_hex", "eval_loss", "eval_loss_hex", "eval_accuracy", "seconds",
                  "kept", "ended", "losses", "core_digests"}));
  EXPECT_EQ(keys_of(j["loss_band"]), (Keys{"source", "low", "high"}));
  EXPECT_EQ(keys_of(j["state_partings"][0]), (Keys{"pair", "steps", "first_step"}));
  EXPECT_TRUE(j["state_partings"][0]["first_step"].is_null());
  EXPECT_EQ(keys_of(j["weight_drift"]), (Keys{"pair", "steps", "rows"}));
  EXPECT_EQ(keys_of(j["weight_drift"]["rows"][0]), (Keys{"variable", "distance"}));
  EXPECT_EQ(keys_of(j["step_coverage"]), (Keys{"steps", "screened", "judged", "set_aside",
                                               "outside", "left_out", "not_exercised"}));
  r.many_cores = {{{512, true}}, {"words"}};
  const ordered_json many = ordered_json::parse(to_json(r))["many_cores"];
  EXPECT_EQ(keys_of(many), (Keys{"rows", "sentences"}));
  EXPECT_EQ(keys_of(many["rows"][0]),
            (Keys{"cores", "asked", "samples", "gradient", "normalised", "statistic_noise",
                  "additions", "rounding_bound", "rounding_typical"}));
  EXPECT_TRUE(many["rows"][0]["gradient"].is_null());
  EXPECT_TRUE(j["findings"][0]["picture"].is_null());
  const ordered_json bug = ordered_json::parse(to_json(examples::engine_bug()));
  EXPECT_EQ(keys_of(bug["findings"][0]["picture"]), (Keys{"dims", "across", "cells"}));
  EXPECT_EQ(keys_of(j["controls"][0]), (Keys{"name", "run", "passed", "detail", "failure"}));
  EXPECT_EQ(keys_of(j["probes"][0]),
            (Keys{"pair", "engine", "policy", "steps_probed", "steps", "ops", "elements",
                  "untestable", "dot_residual", "dot_residual_text", "rows"}));
  EXPECT_EQ(keys_of(j["probes"][0]["rows"][0]),
            (Keys{"op", "kind", "phase", "worst_ratio", "elements", "outside", "untestable",
                  "operand_residual"}));
  EXPECT_EQ(keys_of(j["switches"][0]), (Keys{"cause", "direction", "drift_before", "drift_after",
                                             "envelope", "explains", "share", "note"}));
  EXPECT_EQ(keys_of(j["proofs"][0]),
            (Keys{"program", "gradient", "update", "statistics", "points", "degree", "log2_error",
                  "parts_at", "parts_reads", "unproven"}));
  EXPECT_EQ(keys_of(j["trajectories"][0]),
            (Keys{"pair", "meaning", "metric", "differences", "mean", "low", "high", "level",
                  "detectable", "must_see", "seed_spread", "would_decide", "margin",
                  "margin_source", "outcome"}));
  EXPECT_EQ(j["schema"], kReportSchema);
  EXPECT_EQ(j["verdict"]["class"], "SHARDING");
  EXPECT_EQ(j["verdict"]["exit_code"], 10);
  EXPECT_EQ(j["environment"]["contract"], "0");
}

TEST(Json, ListsAreListsWhenShortOrEmpty) {
  Report r;
  const ordered_json empty = ordered_json::parse(to_json(r));
  for (const char* key : {"findings", "runs", "controls", "probes", "switches", "proofs",
                          "trajectories", "state_partings", "ruled_out", "next_steps", "notes"}) {
    EXPECT_TRUE(empty[key].is_array()) << key;
  }
  EXPECT_TRUE(empty["environment"].is_object());
  // nlohmann's initializer lists could take a list of two strings for a key and its value.
  r.notes = {"a", "b"};
  r.findings.resize(1);
  r.findings[0].evidence = {"c", "d"};
  const ordered_json two = ordered_json::parse(to_json(r));
  EXPECT_EQ(two["notes"], ordered_json::array({"a", "b"}));
  EXPECT_EQ(two["findings"][0]["evidence"], ordered_json::array({"c", "d"}));
  EXPECT_TRUE(two["findings"][0]["step"].is_null());
  EXPECT_TRUE(two["findings"][0]["core"].is_null());
  EXPECT_TRUE(two["findings"][0]["share"].is_null());
}

TEST(Json, NumbersReadBackBitForBit) {
  Report r;
  RunSummary run;
  run.losses = {0.1f, 1e-45f, 3.4028235e38f, -0.0f, 0.33333334f, 16777217.0f, 1.17549435e-38f};
  run.train_loss = run.losses.back();
  run.eval_loss = 0.1 + 0.2;
  r.runs = {run};
  const std::string text = to_json(r);
  const ordered_json j = ordered_json::parse(text);
  for (size_t i = 0; i < run.losses.size(); ++i) {
    EXPECT_EQ(to_bits(j["runs"][0]["losses"][i].get<float>()), to_bits(run.losses[i])) << i;
  }
  EXPECT_EQ(std::bit_cast<uint64_t>(j["runs"][0]["eval_loss"].get<double>()),
            std::bit_cast<uint64_t>(run.eval_loss));
  EXPECT_EQ(j["runs"][0]["eval_loss_hex"], "0x3fd3333333333334");
  EXPECT_EQ(j["runs"][0]["train_loss_hex"], "0x00800000");
  EXPECT_NE(text.find(" 0.1,"), std::string::npos) << "shortest form of binary32, not of binary64";
}

TEST(Json, EveryBinary32ReadsBack) {
  Report r;
  r.runs.resize(1);
  for (uint32_t bits = 1; bits < 0x7F800000u; bits += 104729) {
    r.runs[0].losses.push_back(from_bits(bits));
  }
  const ordered_json j = ordered_json::parse(to_json(r));
  const auto back = j["runs"][0]["losses"].get<std::vector<float>>();
  ASSERT_EQ(back.size(), r.runs[0].losses.size());
  for (size_t i = 0; i < back.size(); ++i) {
    ASSERT_EQ(to_bits(back[i]), to_bits(r.runs[0].losses[i]));
  }
}

TEST(Json, WhatIsNotFiniteIsAString) {
  Report r = examples::hostile();
  r.runs[0].losses = {std::numeric_limits<float>::quiet_NaN(),
                      -std::numeric_limits<float>::infinity()};
  const ordered_json j = ordered_json::parse(to_json(r));
  EXPECT_EQ(j["findings"][0]["number"], "-inf");
  EXPECT_EQ(j["findings"][0]["bound"], "nan");
  EXPECT_EQ(j["runs"][0]["eval_loss"], "inf");
  EXPECT_EQ(j["runs"][0]["losses"], ordered_json::array({"nan", "-inf"}));
  EXPECT_EQ(j["probes"][0]["rows"][2]["operand_residual"], nullptr);
}

TEST(Verdict, NamesAndExitCodes) {
  using enum VerdictClass;
  const std::vector<std::tuple<VerdictClass, std::string, int>> all = {
      {kIdentical, "IDENTICAL", 0},
      {kNoise, "NOISE", 0},
      {kSharding, "SHARDING", 10},
      {kEngineBug, "ENGINE_BUG", 20},
      {kNondeterministic, "NONDETERMINISTIC", 30},
      {kInconclusive, "INCONCLUSIVE", 125}};
  for (const auto& [verdict, name, code] : all) {
    EXPECT_EQ(to_string(verdict), name);
    EXPECT_EQ(exit_code(verdict), code) << name;
  }
}

TEST(Formats, EachRendersUnderItsOwnName) {
  std::vector<std::string_view> names, files;
  for (const ReportFormat& format : report_formats()) {
    EXPECT_FALSE(format.render(examples::noise()).empty()) << format.name;
    EXPECT_EQ(std::ranges::count(names, format.name), 0);
    EXPECT_EQ(std::ranges::count(files, format.file), 0);
    names.push_back(format.name);
    files.push_back(format.file);
  }
}

}  // namespace
}  // namespace twinrun
