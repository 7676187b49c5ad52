// Opens a bundle with checks, runs its diagnosis again and compares the finding and the bits.
#include "harness/bundle/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "checkpoints/container/array.h"
#include "checkpoints/container/atomic_file.h"
#include "checkpoints/container/zip.h"
#include "harness/bundle/module_bundle.h"
#include "harness/bundle/own_data.h"
#include "harness/bundle/own_program.h"
#include "harness/bundle/private_paths.h"
#include "harness/bundle/reduce.h"
#include "harness/bundle/step_bundle.h"
#include "harness/experiment/engines.h"
#include "harness/host/environment.h"
#include "program/base/json_checksum.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNames[] = {kManifest, kScenario, kOwnData,      kInitial,      kBefore,
                                       kProgram,  kReadMe,   kOriginalJson, kOriginalText, kTrace,
                                       kModule,   kValues,   kRepro,        kReproExport};

struct Opened {
  Manifest manifest;
  std::vector<ZipMember> members;
  const ZipMember* find(std::string_view name) const {
    const auto it = std::ranges::find(members, name, &ZipMember::name);
    return it == members.end() ? nullptr : &*it;
  }
};

std::string_view text_of(const ZipMember& member) {
  return {reinterpret_cast<const char*>(member.bytes.data()), member.bytes.size()};
}

// Reads a bundle. Checks that every member has an allowed name and the size and digest that the
// manifest gives.
Result<Opened> open(const std::string& path) {
  TWINRUN_ASSIGN(const auto bytes, read_whole_file(path, kLargestBundle));
  Opened out;
  TWINRUN_ASSIGN(out.members,
                 read_zip(
                     bytes, path, [](const std::string&) { return true; }, kLargestBundle));
  const char* kDamaged = "the bundle is damaged or was changed: ask for it again";
  for (const ZipMember& member : out.members) {
    if (std::ranges::find(kNames, member.name) == std::end(kNames) &&
        std::ranges::find(kProgramMembers, member.name, &ProgramMember::name) ==
            std::end(kProgramMembers) &&
        std::ranges::find(kBesideWhole, member.name) == std::end(kBesideWhole) &&
        !is_engine_member(member.name))
      return Error{fmt::format("member '{}' does not belong in a bundle", member.name), path,
                   kDamaged};
  }
  const ZipMember* manifest = out.find(kManifest);
  if (manifest == nullptr)
    return Error{fmt::format("has no {}", kManifest), path, "it is not a bundle of twinrun"};
  TWINRUN_ASSIGN(out.manifest, manifest_from_json(text_of(*manifest), path));
  for (const BundledFile& file : out.manifest.files) {
    const ZipMember* member = out.find(file.name);
    if (member == nullptr || file.name == kManifest)
      return Error{fmt::format("member '{}' is missing", file.name), path, kDamaged};
    const Digest is = digest_bytes(member->bytes.data(), member->bytes.size());
    if (member->bytes.size() != file.size || is != file.digest)
      return Error{fmt::format("member '{}' does not match the manifest: XXH3-128 {}; expected {}",
                               file.name, is.hex(), file.digest.hex()),
                   path, kDamaged};
  }
  if (out.manifest.files.size() + 1 != out.members.size())
    return Error{"has members that its manifest does not name", path, kDamaged};
  const auto lacks = [&](std::string_view name) {
    return Error{fmt::format("has no {}", name), path, kDamaged};
  };
  if (out.manifest.kind == "recorded step") {
    if (out.find(kTrace) == nullptr) return lacks(kTrace);
    return out;
  }
  if (out.manifest.kind == "module") {
    for (const std::string_view name : {kModule, kValues}) {
      if (out.find(name) == nullptr) return lacks(name);
    }
    return out;
  }
  if (out.find(kScenario) == nullptr) return lacks(kScenario);
  if (out.manifest.own_data && out.find(kOwnData) == nullptr) return lacks(kOwnData);
  return out;
}

// The bundle's scenario with its source of data: the bundle's own file, the folder that the user
// named, or generated data.
Result<Scenario> scenario_of(const Opened& bundle, const std::string& path,
                             const ReplayOptions& options) {
  const std::string where = fmt::format("{}: {}", path, kScenario);
  TWINRUN_ASSIGN(Scenario s, parse_scenario(text_of(*bundle.find(kScenario)), where));
  forget_cache_file(s);
  if (!s.imported.empty()) {
    for (const auto& [name, file] : kProgramMembers) {
      if (bundle.find(name) != nullptr)
        s.program_files.*file = (fs::path(options.folder) / name).string();
    }
    if (s.program_files.program.empty() || s.program_files.state.empty())
      return Error{"is of an imported program that is not in the bundle", where,
                   "the bundle is damaged or was changed: ask for it again"};
    return s;
  }
  if (bundle.manifest.own_data) {
    if (s.data.source != "npz" || s.data.files != std::vector<std::string>{kOwnData} ||
        !s.data.eval_files.empty())
      return Error{"reads other files than the bundle's data", where,
                   "the bundle is damaged or was changed: ask for it again"};
    s.data.dir = options.folder;
    return s;
  }
  std::vector<std::string> files = s.data.files;
  files.insert(files.end(), s.data.eval_files.begin(), s.data.eval_files.end());
  for (const std::string& file : files) {
    const fs::path name(file);
    if (name.is_absolute() || file.starts_with(kElsewhere) ||
        std::ranges::find(name, fs::path("..")) != name.end())
      return Error{fmt::format("data.files names '{}', outside of data.dir", file), where,
                   "a bundle may only name files below the folder that you give"};
  }
  if (options.data_dir.empty() && (!files.empty() || !s.data.dir.empty()))
    return Error{fmt::format("its data ('{}') are not in the bundle", s.data.source), where,
                 "give their folder: --data DIR"};
  s.data.dir = options.data_dir;
  return s;
}

// Writes the bundle's scripts to the folder, points the engines to them, and starts each foreign
// engine once, so that one that cannot run fails here.
Status set_up_engines(const Opened& bundle, const Scenario& scenario, const std::string& folder,
                      DiagnoseOptions& o) {
  for (const EngineFile& file : bundle.manifest.engine_files) {
    const ZipMember* member = bundle.find(file.member);
    if (member == nullptr)
      return Error{fmt::format("has no '{}'", file.member), o.subject, "ask for the bundle again"};
    const fs::path path = fs::path(folder) / file.member;
    std::error_code failed;
    fs::create_directories(path.parent_path(), failed);
    TWINRUN_RETURN_IF_ERROR(write_file_atomically(path.string(), member->bytes));
    fs::permissions(path, fs::perms::owner_exec, fs::perm_options::add, failed);
  }
  for (std::string* engine : {&o.baseline, &o.subject}) {
    if (!is_foreign_engine(*engine)) continue;
    const bool elsewhere = engine->find(kElsewhere) != std::string::npos;
    *engine = engine_from(*engine, bundle.manifest.engine_files, bundle.members, folder);
    if (const auto starts = make_engine(*engine, scenario, {}); !starts) {
      Error error = starts.error();
      if (elsewhere)
        error.fix = fmt::format(
            "the engine's command is '{}', and the bundle does not say in which folder its program "
            "was: put one that has what the engine needs first in $PATH, or ask for a bundle made "
            "with --with-paths",
            *engine);
      return error;
    }
  }
  return Ok{};
}

std::string finding_text(const Finding& f) {
  std::string out = fmt::format("{}, {}", to_string(f.verdict), f.cause);
  if (!f.op.empty()) out += fmt::format(", op {}", f.op);
  if (f.step) out += fmt::format(", step {}", *f.step);
  if (f.core) out += fmt::format(", core {}", *f.core);
  return out;
}

void compare(const Manifest& m, const Report& report, Replay& out) {
  const Finding found = report.findings.empty() ? Finding{} : report.findings.front();
  out.rows.push_back({"verdict", std::string(to_string(m.verdict)),
                      std::string(to_string(report.verdict)), m.verdict == report.verdict});
  out.rows.push_back({"finding", finding_text(m.finding), finding_text(found),
                      same_failure(m.finding, found) && m.finding.step == found.step});
  const std::vector<ExpectedRun> runs = expected_runs(report);
  for (const ExpectedRun& expected : m.runs) {
    const auto run = std::ranges::find(runs, expected.name, &ExpectedRun::name);
    const bool foreign = is_foreign_engine(
        expected.name == "T" || expected.name == "E1" ? m.asked.subject : m.asked.baseline);
    const bool there = run != runs.end();
    out.rows.push_back(
        {fmt::format("{}: state after {} steps", expected.name, expected.steps),
         expected.root_digest, there ? run->root_digest : "not run",
         there && run->root_digest == expected.root_digest && run->steps == expected.steps,
         !foreign});
    out.rows.push_back({fmt::format("{}: last loss", expected.name), expected.loss,
                        there ? run->loss : "not run", there && run->loss == expected.loss,
                        !foreign});
  }
}

void note_differences(const Manifest& m, Replay& out) {
  if (!m.has_checksum) out.notes.push_back(fmt::format("{} {}", kManifest, kNoChecksum));
  if (version_text() != m.twinrun)
    out.notes.push_back(fmt::format("made by {}; this is {}", m.twinrun, version_text()));
}

}  // namespace

void Replay::row(std::string what, std::string expected, std::string found) {
  const bool same = expected == found;
  if (same && found.empty()) return;
  rows.push_back({std::move(what), std::move(expected), std::move(found), same});
}

void Replay::compare_finding(const std::string& op_name) {
  const Finding first = report.findings.empty() ? Finding{} : report.findings.front();
  row("verdict", std::string(to_string(manifest.verdict)), std::string(to_string(report.verdict)));
  row(op_name, manifest.finding.op, first.op);
  row("elements", manifest.finding.elements, first.elements);
}

bool Replay::reproduced() const {
  return !interrupted &&
         std::ranges::all_of(rows, [](const ReplayRow& row) { return row.same || !row.must; });
}

Result<Manifest> open_bundle(const std::string& path) {
  TWINRUN_ASSIGN(Opened opened, open(path));
  return std::move(opened.manifest);
}

Result<Replay> replay(const std::string& path, const ReplayOptions& options, Progress* progress,
                      const StopFlag* stop) {
  TWINRUN_ASSIGN(const Opened opened, open(path));
  const Manifest& m = opened.manifest;
  const auto unpack = [&](std::string_view name) {
    return write_file_atomically((fs::path(options.folder) / name).string(),
                                 opened.find(name)->bytes);
  };
  if (m.kind == "recorded step" || m.kind == "module") {
    const bool module = m.kind == "module";
    TWINRUN_RETURN_IF_ERROR(unpack(module ? kModule : kTrace));
    if (module) TWINRUN_RETURN_IF_ERROR(unpack(kValues));
    TWINRUN_ASSIGN(Replay out, module ? replay_module(m, options.folder, options.threads)
                                      : replay_step(m, (fs::path(options.folder) / kTrace).string(),
                                                    options.threads, stop));
    note_differences(m, out);
    return out;
  }
  for (const std::string& engine : {m.asked.baseline, m.asked.subject}) {
    if (is_foreign_engine(engine) && !options.allow_exec)
      return Error{
          fmt::format("contains third-party code to run: {}", engine), path,
          m.engine_files.empty()
              ? "read it, then give --allow-exec"
              : "read it and the scripts below engine/ in the bundle, then give --allow-exec"};
  }
  TWINRUN_ASSIGN(const Scenario scenario, scenario_of(opened, path, options));
  if (m.own_data) TWINRUN_RETURN_IF_ERROR(unpack(kOwnData));
  for (const auto& [name, file] : kProgramMembers) {
    if (!(scenario.program_files.*file).empty()) TWINRUN_RETURN_IF_ERROR(unpack(name));
  }
  for (const std::string_view name : kBesideWhole) {
    if (opened.find(name) != nullptr) TWINRUN_RETURN_IF_ERROR(unpack(name));
  }
  TWINRUN_ASSIGN(DiagnoseOptions o, asked_again(m.asked, options.threads));
  o.directory = (fs::path(options.folder) / "results").string();
  TWINRUN_RETURN_IF_ERROR(set_up_engines(opened, scenario, options.folder, o));
  Replay out;
  out.manifest = m;
  TWINRUN_ASSIGN(Diagnosis again, diagnose(scenario, o, progress, stop));
  out.interrupted = again.interrupted;
  out.report = std::move(again.report);
  const auto failed = [](const Finding& f) { return f.cause == "engine_failed"; };
  if (std::ranges::any_of(out.report.findings, failed) && !failed(m.finding)) {
    const std::string& said = std::ranges::find_if(out.report.findings, failed)->sentence;
    return Error{fmt::format("fails on this machine, so nothing can be compared: {}", said),
                 o.subject,
                 "install or set what the engine needs, then replay again; twinrun doctor --engine "
                 "ENGINE tests the engine alone",
                 Error::Kind::kForeignEngine};
  }
  if (!out.interrupted) compare(m, out.report, out);
  note_differences(m, out);
  return out;
}

}  // namespace twinrun
