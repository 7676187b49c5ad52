// The scripts of an exec: engine, packed into a bundle (bundle.h) and
// run from there (replay.h).
//
//   // Packs engine/engine.py:
//   const PackedEngine packed = pack_engine("exec:python3 mine/engine.py --fast");
//   // "exec:python3 work/engine/engine.py --fast":
//   std::string there = engine_from(engine, packed.files, packed.members, "work");
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoints/container/zip.h"
#include "program/base/result.h"

namespace twinrun {

inline constexpr std::string_view kEngineFolder = "engine/";

struct EngineFile {
  std::string word;    // of the command line, "mine/engine.py", or beside it: "mine/model.py"
  std::string member;  // of the bundle: "engine/engine.py"
};

struct PackedEngine {
  std::vector<EngineFile> files;
  std::vector<ZipMember> members;
  // Files that the command names but that are not packed, each with the reason.
  std::vector<std::string> left_out;
};

// Packs the text files that the command of an exec: engine names, and the files beside a script of
// Python that it imports: at most 16, of 1 MiB each. Executables, packages and what is imported from
// elsewhere are not packed.
PackedEngine pack_engine(const std::string& engine);

// Quotes a word for a command line that is split like shell words.
std::string command_word(const std::string& word);

// Whether a member of that name may be an engine's file: directly in kEngineFolder, with a name of
// letters, digits, '.', '_' and '-'.
bool is_engine_member(std::string_view name);

// The engine's name with each packed file's word replaced by its path below `folder`, where the
// members were written. If the command's own path holds a file with the same bytes, the word stays,
// so that the script finds what it imports. Of a path whose folder was left out of the bundle
// (private_paths.h) the name stays, which $PATH or this program then has to be.
std::string engine_from(const std::string& engine, const std::vector<EngineFile>& files,
                        const std::vector<ZipMember>& members, const std::string& folder);

}  // namespace twinrun
