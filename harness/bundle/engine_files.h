// The scripts of an engine of others that its command line names, packed into a bundle and run from there.
//
//   const PackedEngine packed = pack_engine("exec:python3 mine/engine.py --fast");    // engine/engine.py
//   std::string there = engine_from(command, packed.files, digests, "work");          // "exec:python3 work/engine/engine.py --fast"
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
  std::string word;    // of the command line: "mine/engine.py"
  std::string member;  // of the bundle: "engine/engine.py"
};

struct PackedEngine {
  std::vector<EngineFile> files;
  std::vector<ZipMember> members;
  std::vector<std::string>
      left_out;  // files that the command names and that are not packed, each with the reason
};

// The text files that the command of an exec: engine names, at most 1 MiB each. Programs are not packed, nor what scripts import.
PackedEngine pack_engine(const std::string& engine);

// Whether a member of that name may be an engine's file: one name of letters, digits, '.', '_' and '-' in the folder.
bool is_engine_member(std::string_view name);

// The engine's name with the packed files in the place of the words: those in `folder`, where the members have been written. A file that
// lies where the command says with the same bytes stays, with all that it imports.
std::string engine_from(const std::string& engine, const std::vector<EngineFile>& files,
                        const std::vector<ZipMember>& members, const std::string& folder);

}  // namespace twinrun
