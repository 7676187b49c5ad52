// A small fixed pool. The work is cut into numbered pieces whose results do not depend on who runs them.
//
//   ThreadPool pool(2);
//   pool.parallel_for(8, [&](int64_t i) { ... });     // the caller works too; returns when all are done
//   A parallel_for inside a piece runs in place: no oversubscription, no deadlock.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace twinrun {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // threads >= 1, the caller included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }
  void parallel_for(int64_t pieces, const std::function<void(int64_t)>& run);

 private:
  void work();
  void drain();

  int threads_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  const std::function<void(int64_t)>* run_ = nullptr;
  int64_t pieces_ = 0, next_ = 0, finished_ = 0;
  uint64_t round_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace twinrun
