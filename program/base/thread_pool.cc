// The pool's rounds: lock-free distribution of pieces, and waiting that spins for a short time
// before it sleeps.
#include "program/base/thread_pool.h"

#include <chrono>
#include <limits>
#include <system_error>
#include <utility>

namespace twinrun {
namespace {

// How long a thread spins before it sleeps: longer than the serial work of a training step between
// two parallel loops, too short to be noticed.
constexpr auto kAwake = std::chrono::microseconds(100);

// As the next piece in ticket_: no piece can be taken yet.
constexpr uint32_t kClosed = std::numeric_limits<uint32_t>::max();

thread_local bool inside_piece = false;

// The pool of this process that had work last. Workers of other pools stop spinning and go to
// sleep.
std::atomic<const ThreadPool*> latest = nullptr;

// Tells the processor that this thread waits in a loop.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads)
    : threads_(threads < 1 ? 1 : threads),
      spins_(static_cast<unsigned>(threads_) <= std::thread::hardware_concurrency()) {
  workers_.reserve(static_cast<size_t>(threads_ - 1));
  try {
    for (int i = 1; i < threads_; ++i) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {  // a limit (ulimit -u), or no memory for another stack
    threads_ = static_cast<int>(workers_.size()) + 1;
  } catch (...) {
    end();
    throw;
  }
}

ThreadPool::~ThreadPool() { end(); }

void ThreadPool::end() {
  stop_ = true;
  ++round_;
  round_.notify_all();
  for (auto& worker : workers_) worker.join();
}

// Waking a thread costs more than a small matrix product: spin for a while, then sleep.
template <typename F>
void ThreadPool::wait_until(const std::atomic<uint32_t>& word, F happened) const {
  using Clock = std::chrono::steady_clock;
  for (const auto begin = Clock::now();
       spins_ && latest.load() == this && Clock::now() - begin < kAwake;) {
    for (int i = 0; i < 32; ++i) {
      if (happened(word.load())) return;
      relax();
    }
  }
  for (uint32_t value = word.load(); !happened(value); value = word.load()) word.wait(value);
}

void ThreadPool::drain() {
  inside_piece = true;
  for (uint64_t ticket = ticket_.load();;) {
    const auto piece = static_cast<uint32_t>(ticket);
    const uint32_t pieces = pieces_.load();
    const auto* run = run_.load();
    if (piece >= pieces) {
      const uint64_t now = ticket_.load();
      if (now == ticket) break;
      ticket = now;  // the ticket and pieces_ were of different rounds
      continue;
    }
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
    try {
      (*run)(piece);
    } catch (...) {
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
    if (finished_.fetch_add(1) + 1 == pieces) finished_.notify_all();
    ticket = ticket_.load();
  }
  inside_piece = false;
}

void ThreadPool::work() {
  for (uint32_t seen = 0;;) {
    wait_until(round_, [&](uint32_t round) { return round != seen; });
    seen = round_.load();
    if (stop_)
      return;  // checked after reading round_, since end() sets stop_ before the last round
    drain();
  }
}

void ThreadPool::parallel_for(int64_t pieces, const std::function<void(int64_t)>& run) {
  if (pieces <= 0) return;
  if (pieces == 1 || threads_ == 1 || inside_piece ||
      pieces > std::numeric_limits<int32_t>::max()) {
    for (int64_t i = 0; i < pieces; ++i) run(i);
    return;
  }
  latest = this;
  const auto count = static_cast<uint32_t>(pieces);
  const uint32_t round = round_.load() + 1;
  // No thread can take a piece while run_ and pieces_ change.
  ticket_ = uint64_t{round} << 32 | kClosed;
  run_ = &run;
  pieces_ = count;
  finished_ = 0;
  ticket_ = uint64_t{round} << 32;
  round_ = round;
  round_.notify_all();
  drain();
  wait_until(finished_, [&](uint32_t finished) { return finished == count; });
  if (failed_.exchange(false)) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace twinrun
