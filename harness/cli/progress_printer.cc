#include "harness/cli/progress_printer.h"

#include <fmt/format.h>
#include <unistd.h>

namespace twinrun::cli {

std::string duration_text(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

ProgressPrinter::ProgressPrinter(bool quiet) : quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {}

void ProgressPrinter::begin(const std::string& what, int64_t total) {
  what_ = what;
  total_ = total;
  begin_ = shown_ = Clock::now();
}

void ProgressPrinter::step(int64_t done, const std::string& detail) {
  const auto now = Clock::now();
  if (quiet_ || !terminal_ || now - shown_ < std::chrono::milliseconds(100)) return;
  shown_ = now;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double rate = static_cast<double>(done) / seconds;
  fmt::print(stderr, "\r\x1b[K  {}  {}/{}  {:.3g} steps/s  {} left  {}", what_, done, total_, rate,
             duration_text(static_cast<double>(total_ - done) / rate), detail);
  std::fflush(stderr);
}

void ProgressPrinter::end(const std::string& result) {
  if (quiet_) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  fmt::print(stderr, "{}  {:<34} {:>9}  {}\n", terminal_ ? "\r\x1b[K" : "", what_, duration_text(seconds), result);
}

}  // namespace twinrun::cli
