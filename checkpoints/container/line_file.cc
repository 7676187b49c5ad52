// Adds lines to a file so that a crash or a loss of power can only spoil the last one.
#include "checkpoints/container/line_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "program/base/os_error.h"

namespace twinrun {
namespace {

Error cannot_write(const std::string& path) {
  const int code = errno;
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

Result<std::unique_ptr<LineFile>> LineFile::open(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file < 0) return cannot_write(path);
  return std::unique_ptr<LineFile>(new LineFile(file, path));
}

LineFile::~LineFile() { ::close(file_); }

Status LineFile::add(std::string_view line) {
  const std::string text = std::string(line) + "\n";
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(file_, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return cannot_write(path_);
    at += static_cast<size_t>(n);
  }
  if (::fsync(file_) != 0 && errno != EINVAL && errno != ENOTSUP) return cannot_write(path_);
  return Ok{};
}

}  // namespace twinrun
