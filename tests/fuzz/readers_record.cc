// Readers of records: curves, reports, bundles, sessions, drill cases, known steps, traces, and the
// answers of foreign engines.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "backends/exec/messages.h"
#include "checkpoints/container/zip.h"
#include "harness/bundle/replay.h"
#include "harness/drill/record.h"
#include "harness/foreign/curves.h"
#include "harness/foreign/event_file.h"
#include "harness/search/session.h"
#include "harness/trace/judge_trace.h"
#include "harness/xplane/compare.h"
#include "harness/xplane/read.h"
#include "harness/xplane/write.h"
#include "reports/known.h"
#include "reports/text.h"
#include "reports/trace_verdict.h"
#include "reports/two_reports.h"
#include "tests/fuzz/calls.h"
#include "tests/fuzz/reader.h"
#include "tests/fuzz/repair.h"
#include "tests/reports/examples.h"
#include "tests/reports/profile_examples.h"

namespace twinrun::fuzz {
namespace {

void require_sound(const Curve& curve) {
  require(curve.steps.size() == curve.values.size() && !curve.steps.empty(), "an uneven curve");
  for (size_t i = 1; i < curve.steps.size(); ++i)
    require(curve.steps[i - 1] < curve.steps[i], "steps that do not ascend");
}

void check_curve(const std::string& name, std::string_view bytes) {
  const auto curve = read_curve(as_file(name, bytes), "");
  if (accepted(curve)) require_sound(curve->curve);
  (void)accepted(read_curve(folder_path() + "/" + name, "lss"));
}

void check_events(std::string_view bytes) {
  const auto events = read_events(as_file("x.tfevents.1", with_record_checksums(bytes)));
  if (!accepted(events)) return;
  for (const Curve& curve : events->curves) require_sound(curve);
  const std::string written = event_file(events->curves);
  const auto again =
      must(read_events(as_file("y.tfevents.1", written)), "a written event file is refused");
  require(again.curves.size() == events->curves.size(), "an event file with other curves");
}

// A profile of ours, small and whole, and a real capture.
std::vector<std::string> capture_seeds() {
  Profile small = examples::profile();
  small.cores = 1;
  small.ops.resize(1);
  small.input.stages.clear();
  return {to_xplane(small), to_xplane(examples::profile()),
          fixture("harness/xplane/fixtures/jax_cpu.xplane.pb")};
}

void check_capture(std::string_view bytes) {
  auto capture = read_xplane_bytes(bytes, "x.xplane.pb");
  if (!accepted(capture)) return;
  require(!capture->ops.empty() || capture->wall_seconds >= 0, "a capture of nothing");
  for (const double share : {capture->busy_share, capture->input_share, capture->idle_share})
    require(share >= 0 && share <= 1 + 1e-9, "a share outside of the whole");
  for (const CaptureOp& op : capture->ops)
    require(std::isfinite(op.seconds) && op.seconds >= 0 && op.count > 0, "an op without a time");
  compare_with(*capture, examples::profile());
  const std::string shown = to_capture_text(*capture, 80);
  require_same(text::printable(shown), shown, "a capture is shown with control characters");
  require(nlohmann::json::accept(to_capture_json(*capture)), "a capture that is no JSON");
}

// Reports with short lists, so that an execution takes little time.
std::vector<std::string> report_seeds() {
  std::vector<std::string> out;
  for (Report r : {examples::noise(), examples::engine_bug()}) {
    r.runs.resize(2);
    for (RunSummary& run : r.runs) {
      run.losses.resize(2);
      run.core_digests.resize(1);
    }
    out.push_back(to_json(r));
  }
  return out;
}

void check_report(std::string_view mutated) {
  const std::string bytes = with_json_checksums(mutated);
  const auto report = report_from_json(bytes, "report.json");
  if (!accepted(report)) return;
  const std::string written = to_json(*report);
  const Report again = must(report_from_json(written, "y"), "a written report is refused");
  require_same(to_json(again), written, "a report that was written and read");
  (void)accepted(read_side_report(as_file("report.json", bytes), "A"));
}

Manifest manifest() {
  Manifest m;
  m.twinrun = "twinrun 0.1.0";
  m.headline = "an engine bug";
  m.asked = {"cpu", "tpu", {"scale@dense1/dot"}, true};
  m.verdict = m.finding.verdict = VerdictClass::kEngineBug;
  m.finding.cause = "engine:dense1/dot";
  m.finding.step = 3;
  m.finding.level = 'A';
  m.runs = {{"T", "0011", 4, "0x3f800000"}};
  m.files = {{"scenario.toml", 9, digest_bytes("seed = 1\n", 9)}};
  return m;
}

void check_manifest(std::string_view mutated) {
  const auto read = manifest_from_json(with_json_checksums(mutated), "x.zip");
  if (!accepted(read)) return;
  const std::string written = to_json(*read);
  const auto again = must(manifest_from_json(written, "y.zip"), "a written manifest is refused");
  require_same(to_json(again), written, "a manifest that was written and read");
  (void)accepted(asked_again(read->asked, 1));
}

std::vector<std::byte> raw(std::string_view text) {
  const auto bytes = bytes_of(text);
  return {bytes.begin(), bytes.end()};
}

void check_bundle(std::string_view bytes) { (void)accepted(open_bundle(as_file("x.zip", bytes))); }

std::vector<std::string> bundle_seeds() {
  return {text_of(*to_zip({{"manifest.json", raw(to_json(manifest())), true},
                           {"scenario.toml", raw("seed = 1\n"), true}},
                          "x.zip"))};
}

std::vector<std::string> reply_seeds() {
  return {R"({"hello":{"protocol":1,"name":"e","version":"1","settings":"threads=1","max_cores":8,)"
          R"("precision":"high","elementary_ulps":2,"flush":true,"contracts":false,)"
          R"("deterministic":true,"gradients":"bf16","programs":true,)"
          R"("devices":[{"name":"A_0","kind":"a","memory":8,"used":1,"trouble":""}]}})",
          R"({"prepared":"program-1.json"})", R"({"stepped":0,"result":"result-0.safetensors"})",
          R"({"alive":"compiling"})", R"({"error":"no layer kind 'gather'"})"};
}

void check_reply(std::string_view bytes) {
  const std::string line(bytes);
  for (const auto& [key, is] :
       {std::pair("hello", ""), {"prepared", "\"program-1.json\""}, {"stepped", "0"}}) {
    const auto reply = exec::parse_reply(line, key, is, "exec:e");
    if (!accepted(reply)) require(reply.error().where == "exec:e", "an error without its engine");
  }
  const auto hello = exec::parse_hello(line, "exec:e");
  if (!accepted(hello)) return;
  require(!hello->name.empty() && !hello->op_trace, "a hello without a name");
  require(hello->max_cores >= 1 && hello->max_cores <= 1 << 20, "a number of cores");
  const auto devices = exec::parse_devices(line, "exec:e");
  if (accepted(devices))
    require(devices->size() <= exec::kMaxDevices, "more devices than are read");
  require(hello->elementary_ulps >= 0.5 && hello->elementary_ulps <= 1 << 20, "ulps");
}

std::vector<std::string> session_seeds() {
  return {
      R"({"session":"twinrun bisect","schema":1,"axis":"rev","identity":{"good":"a"},"command":"x"})"
      "\n"
      R"({"execution":1,"candidate":"b","outcome":"bad","why":"exit 1","seconds":1.5,"log":"1.txt"})"
      "\n"
      R"({"result":{"first_bad":"b"}})"
      "\n"};
}

void check_session(std::string_view bytes) {
  const std::string path =
      as_file(std::string(bisect::kSessionFile), with_json_checksums(bytes, true));
  const auto record = bisect::read_session(path);
  if (!accepted(record)) return;
  // Resuming rewrites the file with what is complete.
  {
    const auto session = bisect::Session::open(folder_path(), record->head, true);
    require(accepted(session), "a session that was read does not resume");
  }
  const auto again = must(bisect::read_session(path), "a rewritten session is refused");
  require(again.executions.size() == record->executions.size(), "executions are lost");
  require_same(again.head.command, record->head.command, "the command of a session");
}

std::vector<std::string> case_seeds() {
  drill::CaseRecord r;
  r.injected.id = "engine.drill_mlp.1.17";
  r.injected.overrides = {{"seed", "2"}, {"tpu.cores", "4"}};
  r.injected.fault = "scale@a/b";
  r.injected.magnitude = 1.5;
  r.truth.tensors = 0.25;
  r.findings = {{VerdictClass::kEngineBug, "engine:a/b", "a/b", 4, 2}};
  r.sealed = {4, 4};
  return {drill::to_line(r)};
}

void check_case(std::string_view bytes) {
  const auto record = drill::from_line(with_json_checksums(bytes));
  if (!accepted(record)) return;
  (void)drill::score(*record);
  const std::string written = drill::to_line(*record);
  require_same(drill::to_line(must(drill::from_line(written), "a written case is refused")),
               written, "a case that was written and read");
}

std::vector<std::string> known_seeds() {
  KnownStep step;
  step.framework = "torch";
  step.script = "train.py";
  step.steps = 1;
  step.settings = {{"threads", "2"}};
  step.calls = {{0,
                 "aten.relu",
                 "net.0",
                 "train.py:3",
                 false,
                 true,
                 {1, 2},
                 Digest{3, 4},
                 Digest{7, 8},
                 {{"float32[4]", {5, 6}}}}};
  return {to_json(step)};
}

// The digest over all calls is made right.
void check_known(std::string_view bytes) {
  const auto known = read_known(as_file("x.json", with_json_checksums(bytes)));
  if (!accepted(known)) return;
  const auto again =
      must(read_known(as_file("y.json", to_json(*known))), "is refused when written");
  require(again.root() == known->root(), "a known step changes when written and read");
}

void check_trace(std::string_view bytes) {
  const std::string path = as_file("x.twin", with_trace_checksums(bytes));
  auto whole = read_trace(path, false);
  const auto part = read_trace(path, true);
  if (!accepted(whole)) return;
  require(accepted(part), "a whole trace is refused as a part");
  whole->given_ranks = 1 + static_cast<int64_t>(bytes.size() % 3);  // one of a folder of ranks
  const TraceVerdict verdict = judge_trace(*whole, nullptr);
  const Report report = report_of(verdict);
  require(!to_terminal(report, {}).empty() && !to_markdown(report).empty(), "no report");
  must(report_from_json(to_json(report), "report.json"), "its report is refused");
}

}  // namespace

std::vector<Reader> record_readers() {
  return {
      {"csv", Kind::kText, "curves in CSV", 2048,
       [] {
         return std::vector<std::string>{"step,loss\n0,2.5\n1,1.25\n2,nan\n",
                                         "epoch;\"train; loss\"\n1;2,5\n", "loss\n1\n2\n"};
       },
       [](std::string_view bytes) { check_curve("x.csv", bytes); }},
      {"json_lines", Kind::kJson, "curves in JSON lines", 2048,
       [] {
         return std::vector<std::string>{
             "{\"step\": 0, \"loss\": 2.5}\n{\"step\": 1, \"loss\": NaN}\n",
             "{\"loss\": \"inf\", \"x\": [1]}\n{\"loss\": null}\n"};
       },
       [](std::string_view bytes) { check_curve("x.jsonl", bytes); }},
      {"events", Kind::kBinary, "TensorBoard's event files", 2048,
       [] {
         return std::vector<std::string>{event_file({{"loss", {0, 1, 5}, {2.5, 0.125, 1}, true}})};
       },
       &check_events},
      {"capture", Kind::kBinary, "recorded profiles (*.xplane.pb)", 32768, &capture_seeds,
       &check_capture},
      {"report", Kind::kJson, "report.json", 16384, &report_seeds, &check_report},
      {"manifest", Kind::kJson, "manifests of bundles", 4096,
       [] { return std::vector<std::string>{to_json(manifest())}; }, &check_manifest},
      {"bundle", Kind::kBinary, "bundles (.zip)", 8192, &bundle_seeds, &check_bundle},
      {"reply", Kind::kJson, "lines of a foreign engine", 4096, &reply_seeds, &check_reply},
      {"session", Kind::kJson, "sessions of bisect (session.jsonl)", 4096, &session_seeds,
       &check_session},
      {"case", Kind::kJson, "cases of a drill (cases.jsonl)", 4096, &case_seeds, &check_case},
      {"known", Kind::kJson, "known steps", 4096, &known_seeds, &check_known},
      {"trace", Kind::kTrace, "traces of watch, which are judged", 4096, &traces_of_calls,
       &check_trace},
  };
}

}  // namespace twinrun::fuzz
