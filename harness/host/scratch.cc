// Temporary folders that are removed with their object.
#include "harness/host/scratch.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace twinrun {

Result<Scratch> Scratch::make(const std::string& name) {
  std::error_code error;
  const auto base = std::filesystem::temp_directory_path(error);
  std::string folder = (base / (name + "-XXXXXX")).string();
  if (error || mkdtemp(folder.data()) == nullptr)
    return Error{fmt::format("cannot create a temporary folder ({})",
                             error ? error.message() : std::strerror(errno)),
                 folder, "set TMPDIR to a folder that can be written to"};
  return Scratch(std::move(folder));
}

Status new_folder(const std::string& path) {
  std::error_code error;
  if (std::filesystem::create_directory(path, error)) return Ok{};
  return Error{error ? fmt::format("cannot be created ({})", error.message()) : "exists already",
               path, "name a new folder inside an existing one"};
}

Scratch::~Scratch() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace twinrun
