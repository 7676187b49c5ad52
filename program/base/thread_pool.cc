#include "program/base/thread_pool.h"

namespace twinrun {
namespace {

thread_local bool inside_piece = false;

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads < 1 ? 1 : threads) {
  for (int i = 1; i < threads_; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::drain() {
  inside_piece = true;
  std::unique_lock lock(mutex_);
  while (next_ < pieces_) {
    const int64_t piece = next_++;
    const auto* run = run_;
    lock.unlock();
    (*run)(piece);
    lock.lock();
    if (++finished_ == pieces_) done_.notify_all();
  }
  inside_piece = false;
}

void ThreadPool::work() {
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
    }
    drain();
  }
}

void ThreadPool::parallel_for(int64_t pieces, const std::function<void(int64_t)>& run) {
  if (pieces <= 0) return;
  if (pieces == 1 || threads_ == 1 || inside_piece) {
    for (int64_t i = 0; i < pieces; ++i) run(i);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    run_ = &run;
    pieces_ = pieces;
    next_ = finished_ = 0;
    ++round_;
  }
  start_.notify_all();
  drain();
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return finished_ == pieces_; });
  pieces_ = next_ = finished_ = 0;
  run_ = nullptr;
}

}  // namespace twinrun
