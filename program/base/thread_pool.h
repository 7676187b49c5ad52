// A small fixed pool. The work is cut into numbered pieces whose results do not depend on who runs them.
//
//   ThreadPool pool(2);
//   pool.parallel_for(8, [&](int64_t i) { ... });     // the caller works too; returns when all are done
//   What a piece throws is thrown again there, when all have ended.
//   A parallel_for inside a piece runs in place: no oversubscription, no deadlock.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
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
  void end();
  void work();
  void drain();
  template <typename F>
  void wait_until(const std::atomic<uint32_t>& word, F happened) const;

  const int threads_;
  const bool spins_;  // there is a core for each thread: waiting awake takes nothing from anybody
  // A round is one parallel_for. Who takes a piece (moves ticket_ on) has read run_ and pieces_ before; they belong to
  // that round, because the caller changes them only while ticket_ offers nothing.
  std::atomic<const std::function<void(int64_t)>*> run_ = nullptr;
  std::atomic<uint32_t> pieces_ = 0;
  std::atomic<uint64_t> ticket_ = 0;    // round, next piece
  std::atomic<uint32_t> round_ = 0;     // what workers wait for
  std::atomic<uint32_t> finished_ = 0;  // pieces of this round; what the caller waits for
  std::atomic<bool> failed_ = false;
  std::exception_ptr failure_;  // of the piece that failed first; the caller's after the round
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace twinrun
