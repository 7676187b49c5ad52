// Tests every rule of `twinrun check`: what triggers it, and what only just does not.
#include "harness/check/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "harness/check/rules.h"
#include "program/graph/program.h"
#include "scenarios/library.h"
#include "tests/support/folder.h"
#include "tests/support/wire_bytes.h"

namespace twinrun {
namespace {

std::string file_with(const std::string& name, const std::string& text) {
  static const Folder folder;
  const std::string path = folder / name;
  std::ofstream(path) << text;
  return path;
}

std::string library_without(const char* name, const std::string& line) {
  const auto file = std::ranges::find(library_files(), name, &LibraryFile::name);
  std::istringstream in{std::string(file->text)};
  std::string out;
  for (std::string one; std::getline(in, one);) {
    if (!one.starts_with(line)) out += one + "\n";
  }
  return out;
}

// A step with one weight and one input; `body` is the part between them and the result.
std::string hlo(const std::string& input, const std::string& body, const std::string& header = "") {
  return "HloModule step" + header +
         "\n\nsum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, "
         "b)\n}\n\n"
         "ENTRY main {\n  w = f32[8] parameter(0)\n  x = " +
         input + " parameter(1)\n  " + body +
         "\n  w2 = f32[8] add(w, w)\n  loss = f32[] constant(1)\n"
         "  ROOT out = (f32[8], f32[]) tuple(w2, loss)\n}\n";
}

std::string mlir(const std::string& type) {
  return "module @step attributes {mhlo.num_replicas = 1 : i32} {\n"
         "  func.func public @main(%arg0: tensor<8xf32>, %arg1: " +
         type +
         ") -> (tensor<8xf32>, tensor<f32>) {\n    %0 = stablehlo.add %arg1, %arg1 : " + type +
         "\n    %1 = stablehlo.constant dense<1.0> : tensor<f32>\n"
         "    return %arg0, %1 : tensor<8xf32>, tensor<f32>\n  }\n}\n";
}

// A scenario of the library with overrides, the text of a program, or the bytes of a TensorFlow
// graph.
struct What {
  std::string scenario;
  Overrides overrides;
  std::string text;
  std::string graph;
};

// A graph of an input, and a node that reshapes it: to what another node gives, on a device.
std::string graph(const std::vector<int64_t>& input, const char* device,
                  const char* shape = "Const") {
  return wire::graph_def(
      {wire::node("x", "Placeholder", {},
                  {wire::type("dtype", "float"), wire::shape("shape", input)}),
       wire::node("s", shape, {}, {wire::type("dtype", "int32"), wire::shape("shape", {1})}),
       wire::node("y", "Reshape", {"x", "s"}, {wire::type("T", "float"), wire::device(device)})});
}

Checked checked(const What& what) {
  static int count = 0;
  auto c = !what.graph.empty() ? check_graph(file_with("check.pb", what.graph))
           : what.text.empty()
               ? check_scenario(what.scenario, what.overrides)
               : check_program(
                     {.program = file_with("check" + std::to_string(++count) + ".hlo", what.text)});
  if (!c) {
    ADD_FAILURE() << c.error().message();
    return {};
  }
  return *std::move(c);
}

const RuleFinding* found(const Checked& c, std::string_view id) {
  const auto at = std::ranges::find(c.findings, id, &RuleFinding::id);
  return at == c.findings.end() ? nullptr : &*at;
}

// A list of so many files of a byte each, as `--set data.files` takes it.
std::string small_files(int count) {
  std::string list;
  for (int i = 0; i < count; ++i)
    list += (i == 0 ? "[\"" : ", \"") + file_with("small" + std::to_string(i), "x") + "\"";
  return list + "]";
}

struct Case {
  const char* id;
  What triggers, spared;
  const char* says;   // in `found` or `stack_message`
  const char* where;  // in `where`
};

const std::vector<Case>& cases() {
  const std::string no_batch =
      file_with("no_batch.toml", library_without("digits_mlp", "batch = "));
  const std::string no_steps =
      file_with("no_steps.toml", library_without("digits_mlp", "steps = "));
  const std::string reduce = "g = f32[8] all-reduce(w), replica_groups={}, to_apply=sum";
  static const std::vector<Case> all = {
      {"batch-missing",
       {no_batch},
       {no_batch, {{"train.batch", "64"}}},
       "`train_batch_size` cannot be `None`",
       "train"},
      {"steps-missing",
       {no_steps},
       {no_steps, {{"train.steps", "1"}}},
       "one of `steps` or `max_steps` must be set",
       "train"},
      {"batch-not-divisible",
       {"digits_mlp", {{"train.batch", "100"}}},
       {"digits_mlp", {{"train.batch", "104"}}},
       "train batch size 100 must be divisible by number of replicas 8",
       "--set train.batch"},
      {"remainder-kept",
       {"digits_mlp", {{"data.drop_remainder", "false"}}},
       {"digits_mlp"},
       "The features to the model returned by input_fn must have static shape. Tensor: "
       "Tensor(\"IteratorGetNext:0\", shape=(?, 28, 28, 1), dtype=float32)",
       "--set data.drop_remainder"},
      {"unknown-shape",
       {"resnet50", {{"data.shape", "[]"}}},
       {"resnet50"},
       "shape=(1024, ?)",
       "data.shape"},
      {"dynamic-shape",
       {.text = hlo("f32[<=8,4]", "r = f32[<=32] reshape(x)")},
       {.text = hlo("f32[8,4]", "r = f32[32] reshape(x)")},
       "XLA can't infer the output dimension r",
       ".hlo:11: x"},
      {"data-runs-out",
       {"digits_mlp",
        {{"data.repeat", "false"},
         {"data.train", "256"},
         {"train.batch", "64"},
         {"train.steps", "5"}}},
       {"digits_mlp",
        {{"data.repeat", "false"},
         {"data.train", "256"},
         {"train.batch", "64"},
         {"train.steps", "4"}}},
       "256 samples are 4 batches of 64; train.steps is 5",
       "data.repeat"},
      {"infeed-type",
       {.text = hlo("u8[4]", "")},
       {.text = hlo("u32[4]", "")},
       "TypeError: x of u8 is not a supported TPU infeed type",
       ".hlo:11: x"},
      {"unsupported-dtype",
       {.text = hlo("f32[4]", "h = f16[4] convert(x)")},
       {.text = hlo("f32[4]", "h = bf16[4] convert(x)")},
       "f16: h",
       ".hlo:12: h"},
      {"wide-dtype",
       {.text = hlo("f32[4]", "h = f64[4] convert(x)")},
       {.text = hlo("f32[4]", "h = f32[4] copy(x)")},
       "this rewriting is not implemented: %h = f64[4] convert(...)",
       ".hlo:12: h"},
      {"wide-integer",
       {.text = hlo("s32[4]", "h = s64[4] convert(x)")},
       {.text = hlo("s32[4]", "h = s32[4] copy(x)")},
       "s64: h",
       ".hlo:12: h"},
      {"unsupported-op",
       {.text = hlo("f32[4,4]",
                    "h = f32[4,4] custom-call(x), custom_call_target=\"lapack_spotrf_ffi\"")},
       {.text = hlo("f32[4,4]", "h = f32[4,4] custom-call(x), custom_call_target=\"Sharding\"")},
       "on XLA_TPU_JIT: lapack_spotrf_ffi",
       ".hlo:12: h"},
      {"pinned-device",
       {.graph = graph({8}, "/gpu:0")},
       {.graph = graph({8}, "")},
       "Cannot assign a device for operation y: could not satisfy explicit device specification "
       "'/gpu:0'",
       ".pb: y"},
      {"not-constant",
       {.graph = graph({8}, "", "Placeholder")},
       {.graph = graph({8}, "")},
       "Input 1 to node `y` with op Reshape must be a compile-time constant",
       ".pb: y"},
      {"unknown-batch", {.graph = graph({-1}, "")}, {.graph = graph({8}, "")}, "(?)", ".pb: x"},
      {"no-all-reduce",
       {.text = hlo("f32[8]", "", ", replica_count=8")},
       {.text = hlo("f32[8]", reduce, ", replica_count=8")},
       "CrossShardOptimizer must be used for model training on TPUs.",
       ".hlo"},
      {"reduction-mismatch",
       {"digits_mlp", {{"loss.reduction", "sum"}}},
       {"digits_mlp", {{"loss.reduction", "sum"}, {"tpu.reduction", "sum"}}},
       "1/8 of the whole batch's sum",
       "tpu.reduction"},
      {"clip-before-all-reduce",
       {"digits_mlp",
        {{"optimizer.clip", "norm"},
         {"optimizer.clip_at", "1"},
         {"tpu.clipping", "before_all_reduce"}}},
       {"digits_mlp", {{"optimizer.clip", "norm"}, {"optimizer.clip_at", "1"}}},
       "(norm at 1)",
       "--set tpu.clipping"},
      {"small-batch-norm",
       {"mlp_bn", {{"train.batch", "248"}}},
       {"mlp_bn", {{"train.batch", "256"}}},
       "statistics of 31 samples",
       "--set train.batch"},
      {"batch-wise-per-core",
       {"drill_triplet", {{"tpu.batchwise", "per_core"}}},
       {"drill_triplet", {{"tpu.batchwise", "gathered"}}},
       "loss",
       "tpu.batchwise"},
      {"weighted-mean-per-core",
       {"triplet_phrases", {{"tpu.token_mean", "per_core"}}},
       {"triplet_phrases", {{"tpu.token_mean", "global"}}},
       "sum of weights",
       "tpu.token_mean"},
      {"stateful-random",
       {.text = hlo("f32[]", "r = f32[4] rng(x, x), distribution=rng_uniform")},
       {.text =
            hlo("u64[2]", "r = (u64[2], u32[4]) rng-bit-generator(x), algorithm=rng_three_fry")},
       "rng: r",
       ".hlo:12: r"},
      {"default-random",
       {.text = hlo("u64[2]", "r = (u64[2], u32[4]) rng-bit-generator(x), algorithm=rng_default")},
       {.text =
            hlo("u64[2]", "r = (u64[2], u32[4]) rng-bit-generator(x), algorithm=rng_three_fry")},
       "the default algorithm: r",
       ".hlo:12: r"},
      {"not-replayed",
       {.text = hlo("c64[4]", "")},
       {.text = hlo("u8[4]", "")},
       "parameter 'x' of c64[4]; allowed: arrays of f32, bf16, integers, pred",
       ".hlo:11: x"},
      {"local-files",
       {"resnet50"},
       {"resnet50", {{"data.dir", "gs://bucket/imagenet"}}},
       "File system scheme '[local]' not implemented (file: 'data/imagenet/train.tfrecord')",
       "data.dir"},
      {"file-cache",
       {"resnet50", {{"data.cache", "/tmp/imagenet.cache"}}},
       {"resnet50", {{"data.cache", "gs://bucket/imagenet.cache"}}},
       "not implemented (file: '/tmp/imagenet.cache')",
       "data.cache"},
      {"padding",
       {"resnet50", {{"train.batch", "512"}}},
       {"resnet50"},
       "64 samples per core",
       "model.layers"},
      {"narrow-layers",
       {"digits_cnn"},
       {"digits_cnn",
        {{"model.layers.0.filters", "128"},
         {"model.layers.4.filters", "128"},
         {"model.layers.9.units", "128"}}},
       "fewer than 128 features: conv1 (16), conv2 (32), dense1 (64)",
       "model.layers"},
      {"file-sizes",
       {"resnet50", {{"data.files", small_files(10)}}},
       {"resnet50", {{"data.files", small_files(9)}}},
       "10 files, half of them below 0.0 MB",
       "data.files"},
      {"no-prefetch",
       {"resnet50", {{"data.prefetch", "0"}}},
       {"resnet50", {{"data.prefetch", "1"}}},
       "prefetch is 0",
       "data.prefetch"},
      {"short-loops",
       {"resnet50", {{"tpu.iterations_per_loop", "99"}}},
       {"resnet50", {{"tpu.iterations_per_loop", "100"}}},
       "every 99 of 112590 steps",
       "tpu.iterations_per_loop"},
      {"several-passes",
       {"resnet50", {{"tpu.precision", "high"}}},
       {"resnet50", {{"tpu.precision", "default"}}},
       "3 passes",
       "tpu.precision"},
  };
  return all;
}

TEST(Check, EveryRuleHasACase) {
  std::set<std::string_view> tried;
  for (const Case& c : cases()) tried.insert(c.id);
  for (const Rule& r : rules()) EXPECT_TRUE(tried.contains(r.id)) << r.id;
  EXPECT_EQ(tried.size(), rules().size());
}

TEST(Check, EveryRuleIsTriggered) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.id);
    const Checked result = checked(c.triggers);
    const RuleFinding* f = found(result, c.id);
    ASSERT_NE(f, nullptr);
    EXPECT_EQ(f->severity, rule(c.id).severity);
    EXPECT_NE((f->found + "\n" + f->stack_message).find(c.says), std::string::npos)
        << f->found << "\n"
        << f->stack_message;
    EXPECT_NE(f->where.find(c.where), std::string::npos) << f->where;
    EXPECT_FALSE(f->why.empty());
    EXPECT_FALSE(f->fix.empty());
    EXPECT_EQ(f->stack_message.empty(), rule(c.id).message.empty());
  }
}

TEST(Check, EveryRuleSparesWhatIsRight) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.id);
    const Checked result = checked(c.spared);
    const RuleFinding* f = found(result, c.id);
    EXPECT_EQ(f, nullptr) << f->found;
  }
}

// A --set line in a fix makes its finding go away.
TEST(Check, FixesFix) {
  int tried = 0;
  for (const Case& c : cases()) {
    if (c.triggers.scenario.empty()) continue;
    const Checked result = checked(c.triggers);
    const RuleFinding* f = found(result, c.id);
    ASSERT_NE(f, nullptr) << c.id;
    if (!f->fix.starts_with("--set ")) continue;
    const std::string setting = f->fix.substr(6, f->fix.find_first_of(", ", 6) - 6);
    const size_t equals = setting.find('=');
    Overrides overrides = c.triggers.overrides;
    overrides.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
    const auto again = check_scenario(c.triggers.scenario, overrides);
    ASSERT_TRUE(again) << c.id << ": " << setting << ": " << again.error().message();
    EXPECT_EQ(found(*again, c.id), nullptr) << c.id << ": " << setting;
    ++tried;
  }
  EXPECT_GE(tried, 10);
}

// Checkpoints, evaluation, summaries and the step counter run on the host between loops; infeed and
// outfeed are how the host communicates.
TEST(Check, WhatRunsOnTheHostIsNoFinding) {
  const Checked plain = checked({"digits_cnn"});
  const Checked busy = checked({"digits_cnn",
                                {{"train.log_every", "1"},
                                 {"train.eval_every", "1"},
                                 {"train.checkpoint_every", "1"},
                                 {"optimizer.ema", "0.9"},
                                 {"optimizer.ema_eval", "true"}}});
  EXPECT_EQ(plain.findings.size(), busy.findings.size());
  const Checked feeds = checked(
      {.text =
           hlo("f32[4]",
               "t = token[] after-all()\n  i = ((f32[4]), token[]) infeed(t)\n  o = token[] "
               "outfeed(x, t), outfeed_shape=f32[4]\n"
               "  s = (f32[4], u32[], token[]) send(x, t), channel_id=1, is_host_transfer=true")});
  for (const RuleFinding& f : feeds.findings) EXPECT_EQ(f.id, "not-replayed") << f.found;
}

// A program that the compiler partitions (SPMD) gets its all-reduces there.
TEST(Check, PartitionsNeedNoAllReduce) {
  EXPECT_EQ(found(checked({.text = hlo("f32[8]", "", ", num_partitions=8")}), "no-all-reduce"),
            nullptr);
}

TEST(Check, AMissingAllReduceIsSeenInAProgram) {
  Checked c = checked({"digits_mlp"});
  Sharding without = c.experiment.sharding;
  without.reduce_gradients = false;
  std::vector<RuleFinding> findings;
  check::check_collectives(c.experiment.sharded(without), "here", findings);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].id, "no-all-reduce");
  findings.clear();
  check::check_collectives(*c.step, "here", findings);
  EXPECT_TRUE(findings.empty());
}

// A scenario that tries what a script without CrossShardOptimizer does.
TEST(Check, AScenarioWithoutAnAllReduce) {
  const Checked c = checked({"digits_mlp", {{"tpu.reduction", "none"}}});
  const RuleFinding* f = found(c, "no-all-reduce");
  ASSERT_NE(f, nullptr);
  EXPECT_NE(f->where.find("tpu.reduction"), std::string::npos) << f->where;
  EXPECT_TRUE(f->fix.starts_with("--set tpu.reduction=mean")) << f->fix;
  EXPECT_EQ(found(c, "reduction-mismatch"), nullptr);
}

TEST(Check, SyncedBatchNormCountsItsGroup) {
  const auto seen = [](Overrides o) {
    const Checked c = checked({"mlp_bn", std::move(o)});
    const RuleFinding* f = found(c, "small-batch-norm");
    return f == nullptr ? std::string() : f->found;
  };
  EXPECT_EQ(seen({{"train.batch", "64"}, {"tpu.batchnorm", "synced"}}), "");
  EXPECT_NE(seen({{"train.batch", "64"}, {"tpu.batchnorm", "synced"}, {"tpu.batchnorm_group", "2"}})
                .find("16 samples"),
            std::string::npos);
  EXPECT_EQ(seen({{"train.batch", "64"}, {"tpu.cores", "1"}}), "");
}

TEST(Check, EveryLayerIsNamed) {
  const Checked c = checked({"resnet20"});
  const RuleFinding* f = found(c, "small-batch-norm");
  ASSERT_NE(f, nullptr);
  size_t norms = 0;
  for (const LayerSpec& layer : c.experiment.scenario.model.layers)
    norms += layer.kind == "batch_norm" ? 1 : 0;
  EXPECT_EQ(f->ops.size(), norms);
  EXPECT_GT(norms, 15U);
}

TEST(Check, AllFindingsAtOnceAndTheWorstFirst) {
  const Checked c = checked(
      {"mlp_bn",
       {{"train.batch", "100"}, {"loss.reduction", "sum"}, {"data.drop_remainder", "false"}}});
  ASSERT_GE(c.findings.size(), 4U);
  EXPECT_EQ(c.findings[0].id, "batch-not-divisible");
  EXPECT_EQ(c.findings[1].id, "remainder-kept");
  EXPECT_TRUE(std::ranges::is_sorted(c.findings, {}, &RuleFinding::severity));
  ASSERT_TRUE(c.step);  // of the nearest batch that can be divided among the cores
  EXPECT_EQ(c.step->batch, 12);
}

TEST(Check, HostileScenariosAndTextsAreErrors) {
  EXPECT_FALSE(check_scenario("no_such"));
  EXPECT_FALSE(check_scenario("digits_mlp", {{"train.batches", "1"}}));
  EXPECT_FALSE(check_scenario("digits_mlp", {{"train.batch", "0"}}));
  EXPECT_FALSE(check_program({.program = file_with("not.hlo", "hello")}));
  EXPECT_FALSE(check_program({.program = file_with("cut.hlo", hlo("f32[4", ""))}));
  EXPECT_FALSE(check_program({.program = "/nowhere/absent.hlo"}));
}

// A text that is cut anywhere, or has one character changed, gives an error or a judgement, and
// never a crash.
TEST(Check, DamagedTexts) {
  const std::string texts[] = {hlo("f32[<=8,4]",
                                   "h = f16[8,4] custom-call(x), custom_call_target=\"y\", "
                                   "metadata={op_name=\"jit(f)/a/b\"}",
                                   ", replica_count=8, num_partitions=2"),
                               mlir("tensor<?x8xf32>")};
  int judged = 0;
  for (const std::string& whole : texts) {
    for (size_t at = 0; at < whole.size(); at += 11) {
      std::string changed = whole;
      changed[at] = "?<[{\"=\n9"[at % 8];
      for (const std::string& text : {whole.substr(0, at), changed})
        judged += check_program({.program = file_with("damaged.hlo", text)}).ok() ? 1 : 0;
    }
    EXPECT_TRUE(check_program({.program = file_with("damaged.hlo", whole)}));
  }
  EXPECT_GT(judged, 5);
}

// Loading a scenario or a program elsewhere is as strict as before.
TEST(Check, LoadingIsAsStrictAsBefore) {
  const auto uneven = load_scenario("digits_mlp", {{"train.batch", "100"}});
  ASSERT_FALSE(uneven);
  EXPECT_EQ(uneven.error().where, "--set train.batch");
  EXPECT_FALSE(parse_program(mlir("tensor<?x8xf32>"), "x.mlir"));
}

std::string ids(const Checked& c, const std::set<std::string_view>& without = {}) {
  std::string out;
  for (const RuleFinding& f : c.findings) {
    if (!without.contains(f.id)) out += (out.empty() ? "" : " ") + std::string(f.id);
  }
  return out;
}

// The message that a TPU's stack prints is one about a Reshape.
TEST(Check, OnlyAReshapeOfUnknownSizeIsToldAboutAReshape) {
  const Checked c = checked({.text = mlir("tensor<?x16xf32>")});
  const RuleFinding* f = found(c, "dynamic-shape");
  ASSERT_NE(f, nullptr);
  EXPECT_EQ(f->stack_message, "");
  EXPECT_NE(f->found.find("f32[?,16]"), std::string::npos) << f->found;
}

// All rules that propose a batch propose the same one, and with it none of them has a finding.
TEST(Check, RulesAgreeOnOneBatch) {
  for (const char* batch : {"100", "36", "7"}) {
    const Checked c = checked({"mlp_bn", {{"train.batch", batch}}});
    std::set<std::string> proposed, rules;
    for (const RuleFinding& f : c.findings) {
      if (!f.fix.starts_with("--set train.batch=")) continue;
      proposed.insert(f.fix.substr(18, f.fix.find_first_of(", ", 18) - 18));
      rules.insert(std::string(f.id));
    }
    EXPECT_TRUE(rules.contains("batch-not-divisible"));
    EXPECT_TRUE(rules.contains("small-batch-norm"));
    ASSERT_EQ(proposed.size(), 1U) << batch;
    const Checked again = checked({"mlp_bn", {{"train.batch", *proposed.begin()}}});
    for (const RuleFinding& f : again.findings)
      EXPECT_FALSE(f.fix.starts_with("--set train.batch=")) << f.id << ": " << f.fix;
  }
}

TEST(Check, TheLibrary) {
  // The rules that these scenarios break, on purpose or otherwise. All others break none but
  // the rules of thumb about sizes.
  const std::map<std::string_view, std::string> expected = {
      {"gan_digits", "batch-wise-per-core"},
      {"gpt_shakespeare", "local-files"},
      {"litmus_batchnorm_small", "small-batch-norm"},
      {"litmus_clip_before_reduce", "clip-before-all-reduce"},
      {"litmus_reduction_sum", "reduction-mismatch"},
      {"drill_cnn", "small-batch-norm"},
      {"mlp_bn", "small-batch-norm"},
      {"mnist_quick", "local-files"},
      {"mnist_tutorial", "local-files short-loops"},
      {"resnet20", "small-batch-norm"},
      {"resnet50", "local-files"},
      {"triplet_phrases", "batch-wise-per-core weighted-mean-per-core"},
  };
  for (const LibraryFile& file : library_files()) {
    const Checked c = checked({std::string(file.name)});
    const auto row = expected.find(file.name);
    EXPECT_TRUE(c.step) << file.name << ": " << c.no_step;
    EXPECT_EQ(ids(c, {"narrow-layers", "padding"}), row == expected.end() ? "" : row->second)
        << file.name;
  }
}

// The 32 samples per core are from the troubleshooting guide; "Use TPUs" does not mention them.
TEST(Check, SmallBatchNormIsOfTheGuideThatSaysIt) {
  const auto rule = std::ranges::find(rules(), "small-batch-norm", &Rule::id);
  ASSERT_NE(rule, rules().end());
  EXPECT_EQ(rule->source, "Cloud TPU's troubleshooting guide");
}

// The table in docs/guides/check.md has each rule with its severity and meaning.
TEST(Check, TheDocumentationHasTheRules) {
  std::ifstream in(TWINRUN_SOURCE_DIR "/docs/guides/check.md");
  std::map<std::string, std::string> rows;
  int count = 0;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("| <a id=\"")) continue;
    rows[line.substr(9, line.find('"', 9) - 9)] = line;
    ++count;
  }
  EXPECT_EQ(count, static_cast<int>(rules().size()));
  for (const Rule& r : rules()) {
    const std::string& row = rows[std::string(r.id)];
    for (const std::string_view part : {r.id, to_string(r.severity), r.meaning})
      EXPECT_NE(row.find(part), std::string::npos) << r.id << ": " << part;
  }
}

}  // namespace
}  // namespace twinrun
