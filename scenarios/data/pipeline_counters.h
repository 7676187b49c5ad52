// What the input pipeline did, stage by stage: the figures behind an analysis of it. A plain struct; Feed and StepFeed fill it.
//
//   source -> read -> (cache) -> shuffle -> map -> batch -> prefetch -> enqueue -> the training loop
//
//   const PipelineCounters c = feed.counters();      // any time, from the thread that asks for batches
//   c.map.busy / steps                               // seconds of decoding behind a batch, over all threads
//   c.waited()                                       // seconds in which the training loop had no batch
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace twinrun {

// What all times here count by.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Of one stage, over the run so far.
struct StageCounters {
  int64_t elements = 0;  // samples; of batch, prefetch and enqueue: batches
  int64_t bytes = 0;     // of what the stage gave on
  double busy = 0;       // self time, without the stages below it; summed over threads
  double waiting = 0;    // its threads had nothing to do, or no room for what they had done

  StageCounters& operator+=(const StageCounters& more) {
    elements += more.elements;
    bytes += more.bytes;
    busy += more.busy;
    waiting += more.waiting;
    return *this;
  }
};

struct PipelineCounters {
  StageCounters
      read;  // opening the source, once: files read and parsed, or samples drawn; held-out samples too
  StageCounters cache;    // data.cache = FILE: written, or read in the place of the source
  StageCounters shuffle;  // which samples a batch holds: the orders of epochs
  StageCounters
      map;  // samples decoded (data.cache = "none") or copied to their place; waiting: threads for the slowest
  StageCounters batch;     // memory for batches and their sample ids
  StageCounters prefetch;  // batches read ahead; waiting: for room in the buffer
  StageCounters enqueue;   // batches cut into the cores' rows

  int64_t parallel_calls = 1;  // threads of map
  int64_t depth = 0;           // room of the prefetch buffer, in batches

  // How the training loop came by each batch, in the order in which it asked.
  struct Asked {
    int64_t step = 0;
    double begin = 0;   // when it asked
    double waited = 0;  // seconds until it had the batch
    int64_t ready =
        0;  // batches in the buffer when it asked: 0 is "read on demand", else "read ahead"
  };
  std::vector<Asked> asked;
  // When each batch was made, by whoever made it.
  struct Made {
    int64_t step = 0;
    double begin = 0, end = 0;
  };
  std::vector<Made> made;

  double waited() const {
    double sum = 0;
    for (const Asked& a : asked) sum += a.waited;
    return sum;
  }
};

}  // namespace twinrun
