// A small thread pool of fixed size. Work is cut into numbered pieces, whose results do not depend
// on the thread that runs them.
//
//   ThreadPool pool(2);
//   pool.parallel_for(8, [&](int64_t i) { ... });  // the caller works too; returns at the end
//
// An exception of a piece is thrown again by parallel_for, after all pieces have ended. A
// parallel_for inside a piece runs on the piece's thread: no oversubscription, no deadlock.
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
  // threads >= 1, the caller included; fewer where the system starts no more.
  explicit ThreadPool(int threads);
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

  int threads_;
  // True if there is a hardware thread for each thread of the pool, so that busy waiting takes no
  // time from others.
  const bool spins_;
  // A round is one call of parallel_for. A thread that takes a piece (increments ticket_) has read
  // run_ and pieces_ before. They belong to the ticket's round, because the caller changes them
  // only while ticket_ offers no piece.
  std::atomic<const std::function<void(int64_t)>*> run_ = nullptr;
  std::atomic<uint32_t> pieces_ = 0;
  std::atomic<uint64_t> ticket_ = 0;    // upper 32 bits: round; lower 32 bits: next piece
  std::atomic<uint32_t> round_ = 0;     // workers wait until it changes
  std::atomic<uint32_t> finished_ = 0;  // finished pieces of this round; the caller waits for them
  std::atomic<bool> failed_ = false;
  std::exception_ptr failure_;  // of the first piece that failed; for the caller, after the round
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> workers_;
};

// parallel_for, or a loop if there is no pool.
inline void in_pieces(ThreadPool* pool, int64_t pieces, const std::function<void(int64_t)>& run) {
  if (pool != nullptr) return pool->parallel_for(pieces, run);
  for (int64_t i = 0; i < pieces; ++i) run(i);
}

}  // namespace twinrun
