// Prints progress on stderr.
#include "harness/cli/progress_printer.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "harness/cli/cli.h"
#include "reports/text.h"

namespace twinrun::cli {

std::string duration_text(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

namespace {

// A live line is erased and rewritten, which a dumb terminal cannot do.
bool erasable() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && term != nullptr && std::string_view(term) != "dumb";
}

// A line that wraps could not be erased.
std::string cut_to_terminal(std::string line) {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 && line.size() >= size.ws_col)
    line.resize(size.ws_col - 1);
  return line;
}

}  // namespace

ProgressPrinter::ProgressPrinter(bool quiet, bool verbose)
    : quiet_(quiet), verbose_(verbose && !quiet), terminal_(erasable()) {
  if (terminal_ && !quiet_) clock_ = std::jthread([this](std::stop_token stop) { tick(stop); });
}

ProgressPrinter::~ProgressPrinter() {
  if (clock_.joinable()) {
    clock_.request_stop();
    clock_.join();
  }
  if (live_) say_over("");
}

void ProgressPrinter::show(const std::string& line) {
  live_ = true;
  shown_ = Clock::now();
  say_over(cut_to_terminal(line));
}

// Shows that a stage still runs which has shown nothing for two seconds.
void ProgressPrinter::tick(const std::stop_token& stop) {
  constexpr std::chrono::seconds kEach{1}, kSilent{2};
  std::unique_lock lock(mutex_);
  while (!stops_.wait_for(lock, stop, kEach, [] { return false; }) && !stop.stop_requested()) {
    const auto now = Clock::now();
    if (!running_ || now - shown_ < kSilent) continue;
    const auto shown = shown_;
    show(fmt::format("  {}  {}", what_,
                     duration_text(std::chrono::duration<double>(now - begin_).count())));
    shown_ = shown;  // it stays silent
  }
}

void ProgressPrinter::write(const std::string& line) const {
  if (terminal_) {
    say_over(line);
  } else {
    say(line);
  }
}

void ProgressPrinter::log(const std::string& line) {
  const std::scoped_lock lock(mutex_);
  if (verbose_) write(fmt::format("    {}\n", text::clean(line)));
}

void ProgressPrinter::note(const std::string& line) {
  const std::scoped_lock lock(mutex_);
  if (quiet_ || !notes_.insert(line).second) return;  // several runs of a verb may repeat a note
  write(fmt::format("  note: {}\n", text::clean(line)));
}

void ProgressPrinter::begin(const std::string& what, int64_t total) {
  const std::scoped_lock lock(mutex_);
  what_ = text::clean(what);
  total_ = total;
  running_ = true;
  begin_ = shown_ = Clock::now();
  // A stage of one step has nothing to show before its end but its name.
  if (!quiet_ && terminal_ && total == 1) show(fmt::format("  {} ...", what_));
}

void ProgressPrinter::step(int64_t done, const std::string& detail) {
  const std::scoped_lock lock(mutex_);
  const auto now = Clock::now();
  if (quiet_ || !terminal_ || now - shown_ < std::chrono::milliseconds(100)) return;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double rate = static_cast<double>(done) / seconds;
  if (total_ < 1)  // it is not known how many there are
    return show(fmt::format("  {}  {} in {}  {}", what_, done, duration_text(seconds),
                            text::clean(detail)));
  show(fmt::format("  {}  {}/{}  {} steps/s  {} left  {}", what_, done, total_,
                   rate < 100 ? fmt::format("{:.3g}", rate) : fmt::format("{:.0f}", rate),
                   duration_text(static_cast<double>(total_ - done) / rate), text::clean(detail)));
}

// At most ten times a second on a terminal, once in ten seconds elsewhere.
void ProgressPrinter::alive(const std::string& what) {
  const std::scoped_lock lock(mutex_);
  const auto now = Clock::now();
  if (quiet_ || now - logged_ < std::chrono::milliseconds(terminal_ ? 100 : 10'000)) return;
  logged_ = now;
  const std::string said =
      fmt::format("  {}  the engine says: {}", what_.empty() ? "start" : what_, text::clean(what));
  if (terminal_) {
    show(said);
  } else {
    say(fmt::format("{}\n", said));
  }
}

void ProgressPrinter::end(const std::string& result) {
  const std::scoped_lock lock(mutex_);
  running_ = false;
  if (quiet_) return;
  live_ = false;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  write(fmt::format("  {:<52} {:>9}  {}\n", what_, duration_text(seconds), text::clean(result)));
}

}  // namespace twinrun::cli
