// manifest.json of a bundle: its files, how the diagnosis was requested, and the results that a
// replay must reproduce. Written by bundle.h, read by replay.h.
//
//   std::string text = to_json(manifest);   auto back = manifest_from_json(text, "fault.zip");
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/bundle/engine_files.h"
#include "harness/diagnose/pipeline.h"
#include "program/base/digest.h"
#include "program/base/result.h"
#include "reports/report.h"

namespace twinrun {

inline constexpr int kBundleSchema = 1;
// Bytes of its members, which a replay holds in memory.
inline constexpr uint64_t kLargestBundle = uint64_t{1} << 30;

// The members that a bundle may have, besides an engine's files; anything else is an error.
inline constexpr std::string_view kManifest = "manifest.json", kScenario = "scenario.toml",
                                  kInitial = "init.h5", kBefore = "before.h5",
                                  kProgram = "program.txt", kReadMe = "REPRODUCE.txt",
                                  kOriginalJson = "original/report.json",
                                  kOriginalText = "original/report.md", kTrace = "trace.twin",
                                  kModule = "module.txt", kValues = "values.safetensors",
                                  kRepro = "repro.py", kReproExport = "repro.jax_export";

struct BundledFile {
  std::string name;
  uint64_t size = 0;
  Digest digest;  // of its bytes
};

struct ExpectedRun {
  std::string name;         // "T"
  std::string root_digest;  // of its last state
  int64_t steps = 0;
  std::string loss;  // of the last step, its bits as hex
};

struct Manifest {
  std::string kind = "scenario";  // or "recorded step", "module"
  std::string twinrun;            // version and contract of the twinrun that made it
  std::string headline;
  AskedOf asked;
  bool own_data = false;  // data.npz is inside
  Finding finding;        // class, cause, op, phase, core, step, level; of a call, elements
  VerdictClass verdict = VerdictClass::kInconclusive;
  std::vector<ExpectedRun> runs;
  std::map<std::string, std::string> settings;  // of a module: settings_of(ModuleRequest)
  std::vector<std::string> reduction;
  std::vector<EngineFile> engine_files;  // scripts that the engines' command lines name
  std::vector<BundledFile> files;        // all but the manifest itself
  bool has_checksum = true;              // as read: false for one of an older version
};

// Options that request the same diagnosis again; the caller sets the directory. Error: the text of
// a fault cannot be parsed.
Result<DiagnoseOptions> asked_again(const AskedOf& asked, int threads);

// The runs of a report, as a replay must reproduce them.
std::vector<ExpectedRun> expected_runs(const Report& report);

std::vector<std::byte> bytes_of(std::string_view text);  // of a member
std::string to_json(const Manifest& manifest);
Result<Manifest> manifest_from_json(std::string_view text, const std::string& where);

}  // namespace twinrun
