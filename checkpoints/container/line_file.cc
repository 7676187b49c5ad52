// Adds lines to a file so that a crash or a loss of power can only spoil the last one.
#include "checkpoints/container/line_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "checkpoints/container/atomic_file.h"
#include "program/base/os_error.h"

namespace twinrun {
namespace {

Error cannot_write(int code, const std::string& path) {
  return {fmt::format("cannot write: {}", std::strerror(code)), path,
          "free space, or choose another folder with -o", kind_of_failure(code)};
}

}  // namespace

std::vector<std::string_view> whole_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t end; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1))
    lines.push_back(text.substr(0, end));
  const bool zeros = !lines.empty() && lines.back().find('\0') != std::string_view::npos;
  if (zeros && text.empty()) lines.pop_back();
  return lines;
}

Result<LineFile> LineFile::begin(const std::string& path, std::string_view lines) {
  TWINRUN_RETURN_IF_ERROR(write_file_atomically(path, lines));
  Descriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (file.get() < 0) return cannot_write(errno, path);
  return LineFile(std::move(file), path);
}

Status LineFile::add(std::string_view line) {
  const std::string text = std::string(line) + "\n";
  if (const int code = write_all(file_.get(), std::as_bytes(std::span(text)))) {
    return cannot_write(code, path_);
  }
  if (::fsync(file_.get()) != 0 && errno != EINVAL && errno != ENOTSUP)
    return cannot_write(errno, path_);
  return Ok{};
}

}  // namespace twinrun
