// Tests of the thread pool: every piece runs exactly once, for any number of threads and rounds,
// and an exception reaches the caller.
#include "program/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <new>
#include <set>
#include <vector>

namespace twinrun {
namespace {

TEST(ThreadPoolThreads, EveryPieceOnceForAnyCount) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t pieces : {0, 1, 2, 3, 7, 8, 100, 1000}) {
      std::vector<int> runs(static_cast<size_t>(pieces), 0);
      pool.parallel_for(pieces, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
      // These are plain ints: parallel_for must make all writes of the pieces visible on return.
      for (int n : runs) ASSERT_EQ(n, 1);
    }
  }
}

TEST(ThreadPoolThreads, FewerThanOneIsOne) {
  ThreadPool pool(0);
  EXPECT_EQ(pool.threads(), 1);
  int ran = 0;
  pool.parallel_for(3, [&](int64_t) { ++ran; });
  EXPECT_EQ(ran, 3);
}

TEST(ThreadPoolThreads, ManyShortRounds) {
  ThreadPool pool(3);
  int64_t total = 0;
  for (int round = 0; round < 5000; ++round) {
    int64_t part[4] = {};
    pool.parallel_for(4, [&](int64_t i) { part[i] = round + i; });
    for (int64_t p : part) total += p;
  }
  EXPECT_EQ(total, 4 * (int64_t{4999} * 5000 / 2) + 5000 * 6);
}

TEST(ThreadPoolThreads, NestedRunsInPlaceWithoutDeadlock) {
  ThreadPool pool(4);
  std::vector<int> runs(8 * 50, 0);
  pool.parallel_for(8, [&](int64_t outer) {
    const std::thread::id me = std::this_thread::get_id();
    pool.parallel_for(50, [&](int64_t inner) {
      EXPECT_EQ(std::this_thread::get_id(), me);
      ++runs[static_cast<size_t>(outer * 50 + inner)];
    });
  });
  for (int n : runs) ASSERT_EQ(n, 1);
  // The pool still works afterwards.
  std::atomic<int> after = 0;
  pool.parallel_for(64, [&](int64_t) { ++after; });
  EXPECT_EQ(after, 64);
}

// Each piece waits until both have begun, which needs two threads at work.
TEST(ThreadPoolThreads, PiecesRunAtTheSameTime) {
  ThreadPool pool(2);
  std::atomic<int> begun = 0;
  std::atomic<bool> met = true;
  pool.parallel_for(2, [&](int64_t) {
    ++begun;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (begun < 2) {
      if (std::chrono::steady_clock::now() > deadline) {
        met = false;
        return;
      }
      std::this_thread::yield();
    }
  });
  EXPECT_TRUE(met);
}

// The caller finds no piece left to run, but must wait for the piece that a worker still runs.
TEST(ThreadPoolThreads, ReturnsAfterTheLastPiece) {
  ThreadPool pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> begun = 0, finished = 0;
  pool.parallel_for(2, [&](int64_t) {
    ++begun;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (begun < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (std::this_thread::get_id() != caller)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ++finished;
  });
  EXPECT_EQ(finished, 2);
}

TEST(ThreadPoolThreads, TwoPoolsDoNotMix) {
  ThreadPool a(2), b(3);
  std::vector<int> runs(20, 0);
  a.parallel_for(10, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
  b.parallel_for(10, [&](int64_t i) { ++runs[static_cast<size_t>(10 + i)]; });
  for (int n : runs) EXPECT_EQ(n, 1);
}

TEST(ThreadPoolThreads, MadeAndDestroyedIdle) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

// A worker or the caller may throw while other threads still use variables of the caller, so the
// exception must not leave parallel_for before all pieces are done.
TEST(ThreadPoolThreads, WhatAPieceThrowsReachesTheCaller) {
  ThreadPool pool(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> ran(16, 0);
    EXPECT_THROW(pool.parallel_for(16,
                                   [&](int64_t i) {
                                     ran[static_cast<size_t>(i)] = 1;
                                     if (i % 5 == round % 5) throw std::bad_alloc();
                                   }),
                 std::bad_alloc);
    for (int n : ran) ASSERT_EQ(n, 1);
  }
  std::atomic<int> after = 0;
  pool.parallel_for(64, [&](int64_t) { ++after; });
  EXPECT_EQ(after, 64);
}

// A worker that is late for its first round meets the shutdown of the pool instead. A worker that
// took the shutdown signal for that round used to sleep forever, in one of some thousand pools of
// four threads.
TEST(ThreadPoolThreads, DestroyedRightAfterWork) {
  for (int i = 0; i < 20000; ++i) {
    ThreadPool pool(4);
    int ran[4] = {};
    pool.parallel_for(4, [&](int64_t piece) { ran[piece] = 1; });
  }
}

}  // namespace
}  // namespace twinrun
