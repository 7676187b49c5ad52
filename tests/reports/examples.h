// Example reports for tests: four as a diagnosis of a small CNN on digits would leave them, and one
// with hostile strings.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "reports/report.h"

namespace twinrun::examples {

// A falling loss, computed without libm so that it is the same on every machine.
inline std::vector<float> curve(int steps, float shift, int from = 0) {
  std::vector<float> out;
  for (int i = 0; i < steps; ++i) {
    const float ripple = static_cast<float>((i * 7) % 5) * 0.015625f;
    const float loss = 0.125f + 2.1875f / (1.0f + 0.25f * static_cast<float>(i)) + ripple;
    out.push_back(i >= from ? loss + shift : loss);
  }
  return out;
}

inline Report base(const std::string& cores = "8") {
  Report r;
  r.scenario_name = "digits-cnn";
  r.scenario_description = "two convolutions and a dense layer on drawn digits";
  r.scenario_digest = "8f3a21b0c4d5e6f708192a3b4c5d6e7f";
  r.scenario_toml =
      "seed = 1\n[data]\nsource = \"digits\"\ntrain = 4096\n[train]\nbatch = 256\nsteps = 40\n"
      "[tpu]\ncores = 8\nreduction = \"mean\"\n";
  r.subject = "tpu, " + cores + " cores, precision default";
  r.command = "twinrun diagnose digits-cnn";
  r.directory = "twinrun-results/digits-cnn-8f3a21b0";
  r.runs = {
      {"R", "cpu", "batch 256", "reference, whole batch", "8f3a21b05d0e4c11", 40, 0, 0.231145,
       0.9297, 12.4, RunEnd{}, curve(40, 0)},
      {"R2", "cpu", "batch 256, other threads", "reference again", "8f3a21b05d0e4c11", 40, 0,
       0.231145, 0.9297, 12.9, RunEnd{}, curve(40, 0)},
      {"R1", "cpu", "batch 32", "reference, batch of one core", "77a0b1c2d3e4f506", 40, 0, 0.310011,
       0.9012, 2.1, RunEnd{}, curve(40, 0.0625f)},
      {"E1", "tpu", "batch 32", "subject, one core", "51c3aa02be9d7704", 40, 0, 0.310019, 0.9012,
       3.0, RunEnd{}, curve(40, 0.06250766f)},
      {"S", "cpu", "8 cores x 32, reduction mean", "reference, sharded", "9e0d3f5540aa1b2c", 40, 0,
       0.231146, 0.9297, 13.3, RunEnd{}, curve(40, 2e-6f, 1)},
      {"T", "tpu", "8 cores x 32, reduction mean", "what you see", "c0ffee00d15ea5e5", 40, 0,
       0.231172, 0.9297, 18.8, RunEnd{}, curve(40, 3.1e-5f, 1)},
  };
  for (RunSummary& run : r.runs) {
    run.train_loss = run.losses.back();
    const size_t cores = run.name == "S" || run.name == "T" ? 8 : 1;
    run.core_digests.assign(cores, run.root_digest + run.root_digest);
  }
  r.state_divergences = {
      {"R2 - R", 40, {}}, {"E1 - R1", 40, 0}, {"S - R", 40, 1}, {"T - S", 40, 0}};
  r.weight_drift = {"T - R",
                    {0, 13, 26, 39},
                    {{"conv1/kernel", {0, 1.2e-6, 3.4e-5, 2.1e-4}},
                     {"conv1/bias", {2e-8, 1.2e-4, 3.4e-4, 7.7e-3}},
                     {"dense1/kernel", {0, 0, 0, 0}}}};
  r.controls = {
      {"R = R2", true, true, "2 threads, poisoned memory, same digests on all 40 steps"},
      {"T = T'", true, true, "steps 0-2 and 17 again, same bits"},
      {"R1 repeats", true, true, "first 3 steps"},
  };
  r.checklist = {{"one core", true, "run E1, 40 steps on one core: the reference's bits", ""},
                 {"a job that is known to be good, on the same machine", false,
                  "not part of a diagnosis", "twinrun doctor --engine 'tpu'"}};
  r.environment = {{"twinrun", "0.1.0"},     {"contract", "0"}, {"isa", "avx512"},
                   {"compiler", "g++ 12.2"}, {"threads", "2"},  {"os", "Linux 6.1 x86_64"}};
  r.smallest_effect = "an error of 2^-8 in one element of a dot product, 0.002 of held-out loss";
  return r;
}

inline EngineProbe probe(double worst, int64_t outside) {
  EngineProbe p;
  p.pair = "T";
  p.engine = "tpu";
  p.steps_probed = 7;
  p.steps = 40;
  p.ops = 96;
  p.elements = 31457280;
  p.untestable = 12;
  p.policy = "steps 0-2 and every 10th";
  p.rows = {
      {"conv1/kernel.grad", "convolution_kernel_grad", "gradient", worst, 258048, outside, 0,
       0.0037},
      {"dense1/matmul", "dot_general", "forward", 0.41, 71680, 0, 0, 0.0018},
      {"loss/softmax", "softmax", "forward", 0.22, 71680, 0, 12, -1},
  };
  p.dot_residual = 0.0018;
  p.dot_residual_text = "2^-9.1 (one bf16 pass predicts about 2^-9)";
  return p;
}

inline Report noise() {
  Report r = base();
  r.verdict = VerdictClass::kNoise;
  using enum Answer::Outcome;
  r.answers = {{kYes, "reference and engine give the same bits again"},
               {kYes, "41,200,000 elements of 61 ops are within their bounds"},
               {kYes, "the engine ran the requested program, op by op"},
               {kYes, "proven exactly, modulo a prime: the sharded step is the whole batch's"},
               {kOpen, "undecided"}};
  r.loss_band = {"least and largest of 5 seeds of R", curve(40, -0.03125f), curve(40, 0.046875f)};
  r.headline =
      "tpu on 8 cores differs from the CPU reference by no more than its bfloat16 matrix units "
      "explain; held-out accuracy is equivalent.";
  r.confidence = "95%: equivalent within the margin on 5 seeds; every probed op inside its bound";
  Finding f;
  f.verdict = VerdictClass::kNoise;
  f.cause = "precision";
  f.sentence =
      "Matrix products round their operands to bfloat16, as the engine declares; with precision "
      "highest the drift falls from 1.9e-03 to 2.2e-07.";
  f.share = 0.998;
  f.level = 'A';
  f.number = 0.41;
  f.bound = 1;
  f.bound_source =
      "worst |error| / bound over 96 ops; bound: f32 accumulation, docs/method/bounds.md#dots";
  f.evidence = {"0 of 31,457,280 elements outside", "operand residual 2^-9.1, declared 2^-9"};
  f.reproduce = "twinrun diagnose digits-cnn --set tpu.precision=highest";
  r.findings = {f};
  r.probes = {probe(0.47, 0)};
  r.ablations = {{"precision", "restored in T", 1.9e-3, 2.2e-7, 4.1e-7, true, 0.998, ""},
                 {"reduction", "restored in S", 3.0e-7, 3.0e-7, 4.1e-7, false, 0, ""},
                 {"batch_norm", "restored in S", 3.0e-7, 3.0e-7, 4.1e-7, false, 0, ""}};
  r.trajectories = {{"T - R",
                     "what you see",
                     "held-out loss",
                     {2.7e-5, -1.1e-5, 4.0e-6, 1.9e-5, -8.0e-6},
                     6.2e-6,
                     -1.2e-5,
                     2.4e-5,
                     0.99,
                     0,
                     "",
                     PairedOutcome::kNoneDetected,
                     1.6e-5,
                     2e-3,
                     1e-3}};
  r.ruled_out = {"SUM for MEAN: the gradient's best-fit scalar is 1.0000",
                 "batch norm per core: the model has none"};
  r.next_steps = {"Nothing to file. To see the remaining bits agree: --set tpu.precision=highest"};
  return r;
}

inline Report sharding() {
  Report r = base();
  r.verdict = VerdictClass::kSharding;
  r.answers.sharding = {Answer::Outcome::kNo, "the gradient on 8 cores is 8 times the reference's"};
  r.headline =
      "The gradient on 8 cores is 8 times the reference's: the loss is averaged per core and the "
      "cores are summed.";
  r.confidence = "certain: op trace and declared contract; restoring MEAN removes the drift";
  r.command = "twinrun diagnose digits-cnn --set tpu.reduction=sum";
  r.subject = "tpu, 8 cores, reduction sum, precision default";
  r.runs[4].losses = curve(40, 0.4375f, 1);
  r.runs[4].settings = r.runs[5].settings = "8 cores x 32, reduction sum";
  r.runs[5].losses = curve(40, 0.43752f, 1);
  r.runs[4].eval_loss = 0.9121, r.runs[4].eval_accuracy = 0.7109;
  r.runs[5].eval_loss = 0.9123, r.runs[5].eval_accuracy = 0.7109;
  for (RunSummary& run : r.runs) run.train_loss = run.losses.back();
  Finding f;
  f.verdict = VerdictClass::kSharding;
  f.cause = "reduction";
  f.sentence =
      "The all-reduce sums where the loss already averages per core, so every gradient is 8 times "
      "too large; the engine does what the program says.";
  f.step = 0;
  f.phase = "collective";
  f.op = "conv1/kernel.allreduce";
  f.op_kind = "all_reduce";
  f.elements = "all 288";
  f.fingerprint = "x8 of the expected value";
  f.share = 0.9996;
  f.level = 'A';
  f.number = 7.0;
  f.bound = 4.1e-7;
  f.bound_source = "rounding envelope of one step, conforming variants of the reference";
  f.hex = "sharded 0x3d23d70a (0.04), whole batch 0x3ba3d70a (0.005)";
  f.evidence = {
      "restored in S: relative drift 7.00 -> 3.0e-07",
      "introduced in R: T matches inside the bound",
      "cannot be told from a learning rate times 8 by the update alone; the gradient shows it"};
  f.reproduce = "twinrun diagnose digits-cnn --set tpu.reduction=mean";
  r.findings = {f};
  r.probes = {probe(0.47, 0)};
  r.ablations = {{"batch_norm", "restored in S", 7.0, 7.0, 4.1e-7, false, 0, ""},
                 {"reduction", "restored in S", 7.0, 3.0e-7, 4.1e-7, true, 0.9996, ""},
                 {"reduction", "introduced alone", 2.8e-7, 7.0, 4.1e-7, true, 0.9996, ""},
                 {"clip", "restored in S", 7.0, 7.0, 4.1e-7, false, 0, "model clips nothing"}};
  r.proofs = {{"sharded", false, false, true, 2, 58, -110.3, "loss/value.grad", "loss/value", ""},
              {"without reduction", true, true, true, 2, 58, -110.3, "", "", ""}};
  r.trajectories = {{"S - R",
                     "sharding alone",
                     "held-out loss",
                     {0.68, 0.71, 0.66},
                     0.683,
                     0.62,
                     0.745,
                     0.99,
                     0,
                     "",
                     PairedOutcome::kHarmful,
                     0.08,
                     2e-3,
                     1e-3},
                    {"T - S",
                     "the engine",
                     "held-out loss",
                     {2e-4, -1e-4, 1e-4},
                     6.7e-5,
                     -3.1e-4,
                     4.4e-4,
                     0.99,
                     0,
                     "",
                     PairedOutcome::kNoneDetected,
                     4.5e-4,
                     2e-3,
                     1e-3}};
  r.ruled_out = {"engine fault: every probed op inside its bound on the subject's own inputs"};
  r.next_steps = {"Divide the loss by the number of cores, or set tpu.reduction = \"mean\"",
                  "Then: twinrun diagnose digits-cnn --set tpu.reduction=mean"};
  return r;
}

inline Report engine_bug() {
  Report r = base();
  r.verdict = VerdictClass::kEngineBug;
  r.answers.operations = {Answer::Outcome::kNo, "conv1/kernel.grad is wrong on core 5"};
  r.headline =
      "tpu computes conv1/kernel.grad wrongly on core 5 from step 3 on: 12 of 4608 elements lie "
      "up to 4130 times outside what its declared arithmetic can produce.";
  r.confidence = "certain: op trace and declared contract, shown again on replay";
  r.command =
      "twinrun diagnose digits-cnn --fault 'drop_k_tail@conv1/kernel.grad,core=5,from=3' "
      "-o twinrun-results/tail --set train.steps=40";
  r.directory = "twinrun-results/tail";
  for (size_t i = 3; i < 40; ++i) r.runs[5].losses[i] += 0.03125f;
  r.runs[5].eval_loss = 0.2624, r.runs[5].eval_accuracy = 0.9141;
  r.runs[5].train_loss = r.runs[5].losses.back();
  Finding f;
  f.verdict = VerdictClass::kEngineBug;
  f.cause = "engine:conv1/kernel.grad";
  f.sentence =
      "Recomputed in f64 from the subject's own inputs, the kernel gradient of conv1 misses the "
      "last partial tile of its sum.";
  f.step = 3;
  f.phase = "gradient";
  f.op = "conv1/kernel.grad";
  f.op_kind = "convolution_kernel_grad";
  f.core = 5;
  f.elements = "12 of 4608, first [0,3,1,7]";
  f.fingerprint = "the last 17 of 25,088 terms are missing";
  f.share = 0.93;
  f.level = 'A';
  f.number = 0.03125;
  f.bound = 7.567e-6;
  f.bound_source = "gamma of f32 accumulation over 25,088 terms, docs/method/bounds.md#dots";
  f.number_text = "error 0.0312; allowed 7.57e-06 (4130 times)";
  f.hex = "engine 1.01 (0x3f8147ae), expected 1.04125 (0x3f8547ae)";
  f.evidence = {"inside its bound on cores 0-4 and 6-7 in the same step",
                "flagged on each of the 5 probed steps from 3 on; clean on steps 0-2",
                "no sharding switch explains it: least drift left 1.4e-02"};
  f.reproduce =
      "twinrun bisect op digits-cnn --fault 'drop_k_tail@conv1/kernel.grad,core=5,from=3' --step 3";
  f.picture = {{3, 3, 32, 16},
               2,
               {"................", "..1.............", "...49.......2...", ".....!..........",
                "................"}};
  Finding other = f;
  other.picture.reset();
  other.cause = "engine:conv2/kernel.grad";
  other.op = "conv2/kernel.grad";
  other.number_text = "error 0.0107; allowed 3.10e-06 (3450 times)";
  Finding second;
  second.verdict = VerdictClass::kNoise;
  second.cause = "precision";
  second.sentence = "The rest of the drift is the declared rounding of operands to bfloat16.";
  second.share = 0.07;
  second.number = 0.41;
  second.bound = 1;
  second.bound_source = "worst |error| / bound over the other 95 ops";
  second.reproduce = "twinrun diagnose digits-cnn --set tpu.precision=highest";
  r.findings = {f, other, second};
  r.probes = {probe(4130, 60)};
  r.ablations = {{"reduction", "restored in S", 1.5e-2, 1.4e-2, 4.1e-7, false, 0, ""},
                 {"precision", "restored in T", 1.5e-2, 1.4e-2, 4.1e-7, false, 0, ""}};
  r.ruled_out = {"dropped core in the all-reduce: its inputs and outputs agree on all cores",
                 "transient fault: step 3 again gives the same wrong bits"};
  r.injected =
      "Injected on purpose: drop_k_tail@conv1/kernel.grad,core=5,from=3; it changed bits from step "
      "3 on.";
  r.next_steps = {"Nothing to file: the fault was put there on purpose",
                  "Until it is fixed: pad the batch so that N*OH*OW is a multiple of 32"};
  r.trajectories = {{"T - R",
                     "what you see",
                     "held-out loss",
                     {0.0313},
                     0.0313,
                     0.0313,
                     0.0313,
                     0.95,
                     2e-3,
                     "diagnose.margin",
                     PairedOutcome::kUndecided}};
  r.program_excerpt =
      "%12 = reshape(%3) : f32[32,28,28,1]  # conv1/input forward\n"
      "%41 = select(%39, %40, %7) : f32[32,28,28,16]  # relu1.grad gradient\n"
      "%42 = convolution_kernel_grad(%12, %41) window=3x3 pad=1_1x1_1 : f32[3,3,1,16]  "
      "# conv1/kernel.grad gradient\n";
  return r;
}

inline Report inconclusive() {
  Report r = base();
  r.verdict = VerdictClass::kInconclusive;
  r.subject = "exec:python3 adapters/pytorch/engine.py, 8 cores";
  r.headline =
      "The subject's weights drift from step 1 on, but it left no op trace and no known cause "
      "accounts for 62% of the drift.";
  r.confidence = "none: evidence of tensors only";
  r.command = "twinrun diagnose digits-cnn --subject 'exec:python3 adapters/pytorch/engine.py'";
  r.runs.resize(3);
  r.runs.push_back({"T",
                    "exec",
                    "8 cores x 32",
                    "what you see",
                    "",
                    17,
                    0,
                    std::numeric_limits<double>::quiet_NaN(),
                    std::numeric_limits<double>::quiet_NaN(),
                    61.5,
                    {RunEnd::Kind::kDiverged, "NaN at step 17"},
                    curve(18, 0.0078125f, 1)});
  r.runs.back().losses.back() = std::numeric_limits<float>::quiet_NaN();
  r.runs.back().train_loss = std::numeric_limits<double>::quiet_NaN();
  r.controls[0] = {"R = R2", false, true, "states part after step 2"};
  r.controls[1] = {"T = T'", false, true, "states part after step 2",
                   "The engine gave different bits when run twice (T = T' failed at step 2). The "
                   "verdict does not depend on this."};
  r.controls[2] = {"R1 repeats", false, true, "digests part at step 2"};
  Finding f;
  f.verdict = VerdictClass::kInconclusive;
  f.cause = "unknown";
  f.sentence =
      "The first update of dense1/kernel is outside the rounding envelope; 38% of it is "
      "explained by local gradient clipping.";
  f.step = 1;
  f.phase = "update";
  f.op = "dense1/kernel";
  f.level = 'C';
  f.number = 0.0123;
  f.bound = 4.1e-7;
  f.bound_source = "rounding envelope of one step, 64 conforming variants";
  f.reproduce =
      "twinrun diff twinrun-results/digits-cnn-8f3a21b0/runs/T.h5 "
      "twinrun-results/digits-cnn-8f3a21b0/runs/S.h5";
  r.findings = {f};
  r.unexplained = 0.62;
  r.next_steps = {"Run the subject with the op trace on: adapters/pytorch/engine.py --trace",
                  "Repeat with 5 seeds: --set diagnose.seeds=5"};
  return r;
}

// A string such as a scenario file, a foreign engine or a damaged run could contain.
inline std::string poison() {
  return std::string(
             "a|b`c``d\n# e\r\n\x1b[31mred\x1b[0m \x07 \xff\xfe\xc3( </details> @me #1 "
             "\xe2\x80\xae\xc2\x9b"
             "31m 漢字 ```\n~~~ ") +
         std::string(1, '\0') + std::string(200, 'x');
}

// Of a recorded step.
inline Report recorded() {
  Report r;
  r.kind = "recorded step";
  r.scenario_name = "train.py";
  r.subject = "torch 2.15.0";
  r.verdict = VerdictClass::kInconclusive;
  r.headline =
      "aten.nextafter.default has no definition here; every result of the 98 judged calls "
      "is within its bound";
  r.confidence = "98 of 99 calls in 1 step, 12,288 elements compared";
  r.answers.operations = {Answer::Outcome::kOpen, "aten.nextafter.default has no definition here"};
  r.answers.sharding = {Answer::Outcome::kNotApplicable, "one process"};
  r.open = {{"aten.nextafter.default has no definition here", "add one (CONTRIBUTING.md)",
             "train.py:31 in step: x = torch.nextafter(x, y)", 1}};
  Finding f;
  f.verdict = VerdictClass::kEngineBug;
  f.cause = "engine:aten.mm.default";
  f.sentence = "aten.mm.default at train.py:31: 2 of 640 elements are outside their bound";
  f.step = 0;
  f.call = 40;
  f.op = "aten.mm.default";
  f.place = "train.py:31 in forward: x = self.fc(x)\ntrain.py:52 in <module>: loss = f(x)";
  f.module = "fc";
  f.outside = 2;
  f.level = ' ';
  f.evidence = {"argument 0 float32[64, 10]: 0.25 at [3,7]"};
  r.findings = {f};
  r.counts = {{"calls", 99}, {"judged", 98}};
  r.numbers = {{"uncertain_update", 0.25}};
  r.details = {{"operations",
                "Operations",
                "The largest error / bound first.",
                {{"op", "operation"}, {"calls", "calls"}, {"worst", "largest"}},
                {{"aten.mm.default", int64_t{9}, 0.25},
                 {"aten.relu.default", int64_t{3}, std::numeric_limits<double>::quiet_NaN()}}}};
  r.figure = {"Error over bound", "A dot is a call.", "largest", {{"mm.default", {0.25, 0.5, 2}}}};
  r.notes = {"No update of a weight is in the trace, so every call counts."};
  r.directory = "twinrun-results/train";
  return r;
}

inline Report hostile() {
  Report r = engine_bug();
  const std::string p = poison();
  r.kind = r.side = p;
  for (const Question& q : questions()) r.answers.*q.answer = {Answer::Outcome::kOpen, p};
  r.open = {{p, p, p, -1}};
  r.counts = {{p, -1}};
  r.numbers = {{p, 1e300}};
  r.details = {{"hostile", p, p, {{p, p}, {p, p}}, {{p, int64_t{-1}}, {1e300, p}}}};
  r.figure = {p, p, p, {{p, {1e300, -1, std::numeric_limits<double>::quiet_NaN()}}, {p, {}}}};
  r.scenario_name = r.scenario_description = r.scenario_digest = r.scenario_toml = p;
  r.injected = p;
  r.subject = r.command = r.headline = r.confidence = r.smallest_effect = p;
  r.program_excerpt = r.directory = p;
  r.environment = {{p, p}};
  r.next_steps = r.ruled_out = r.notes = {p, p};
  r.checklist = {{p, true, p, p}, {p, false, p, p}};
  for (RunSummary& run : r.runs) {
    run.name += p;
    run.engine = run.settings = run.meaning = run.root_digest = p;
    run.ended = {RunEnd::Kind::kDiverged, p};
    run.eval_loss = std::numeric_limits<double>::infinity();
    run.core_digests = {p, "", p};
  }
  r.loss_band = {p, {1, 2}, {std::numeric_limits<float>::quiet_NaN()}};
  r.state_divergences = {{p, -1, -1}};
  r.weight_drift = {p, {0, -1}, {{p, {1e300}}, {p, {-1, 0, 1}}}};
  r.step_coverage = {-1, 2, 3, 4, {5, -1}, {6}, {p}};
  r.many_cores = {{{-1, true, -2, 1e300, 3, 1e300, -1, -1, 1e300}, {1, false}}, {p, p}};
  for (Control& c : r.controls) c.name = c.detail = c.failure = p, c.passed = false;
  for (Finding& f : r.findings) {
    f.cause = f.sentence = f.phase = f.op = f.op_kind = f.elements = f.fingerprint = p;
    f.number_text = f.bound_source = f.hex = f.reproduce = p;
    f.evidence = {p, p, p, p, p};
    f.place = f.module = p;
    f.call = -1;
    f.picture = {{-1, 0}, 7, {p, "", "<script>"}};
    f.level = '\xff';
    f.number = -std::numeric_limits<double>::infinity();
    f.bound = std::numeric_limits<double>::quiet_NaN();
  }
  for (EngineProbe& e : r.probes) {
    e.pair = e.engine = e.policy = e.dot_residual_text = p;
    for (ProbeRow& row : e.rows) row.op = row.kind = row.phase = p;
  }
  for (AblationRow& s : r.ablations) s.cause = s.direction = s.note = p;
  for (ProofRow& proof : r.proofs)
    proof.program = proof.diverges_at = proof.diverging_operand = proof.unproven = p;
  r.trajectories = {
      {p, p, p, {1e300}, 1e300, -1e300, 1e300, 0.95, 1e300, p, PairedOutcome::kUndecided}};
  return r;
}

}  // namespace twinrun::examples
