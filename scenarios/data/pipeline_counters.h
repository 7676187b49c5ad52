// Counters of the input pipeline, stage by stage, for finding its bottleneck. A plain struct; Feed
// and StepFeed fill it.
//
//   source -> read -> (cache) -> shuffle -> map -> batch -> prefetch -> enqueue -> training loop
//
//   const PipelineCounters c = feed.counters();  // any time, on the thread that takes batches
//   c.map.busy / steps                           // seconds of decoding per batch, over all threads
//   c.waited                                     // seconds that the training loop waited
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace twinrun {

// The clock of all times below, in seconds.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Counters of one stage, over the run so far. Times are in seconds.
struct StageCounters {
  int64_t elements = 0;  // samples; for batch, prefetch and enqueue: batches
  int64_t bytes = 0;     // bytes that the stage passed on
  double busy = 0;       // time in this stage only, summed over its threads
  double waiting = 0;    // time without input, or without room for output

  StageCounters& operator+=(const StageCounters& more) {
    elements += more.elements;
    bytes += more.bytes;
    busy += more.busy;
    waiting += more.waiting;
    return *this;
  }
};

struct PipelineCounters {
  // Opening the source, once: reading and parsing files, or drawing samples; held-out samples too.
  StageCounters read;
  StageCounters cache;    // data.cache = FILE: writing it, or reading it instead of the source
  StageCounters shuffle;  // choosing the samples of a batch, with the order of each epoch
  // Decoding samples (data.cache = "none") or copying them into batches. Its threads wait for the
  // slowest of them.
  StageCounters map;
  StageCounters batch;     // allocating batches and filling in their sample ids
  StageCounters prefetch;  // batches read ahead; it waits for room in the buffer
  StageCounters enqueue;   // cutting batches into the cores' rows

  int64_t parallel_calls = 1;  // threads of map
  int64_t depth = 0;           // capacity of the prefetch buffer, in batches

  // The requests that are kept one by one: the first ones, so that a run of any length takes
  // constant memory.
  static constexpr size_t kTimeline = 65'536;

  // One request of the training loop for a batch, in the order of the requests.
  struct Asked {
    int64_t step = 0;
    double waited = 0;  // seconds until the batch was there
    // Batches in the buffer at the request; 0: the batch was made on demand, else ahead of time.
    int64_t ready = 0;
  };
  std::vector<Asked> asked;
  double waited = 0;  // seconds that the training loop waited, over all requests

  void add(const Asked& request) {
    waited += request.waited;
    if (asked.size() < kTimeline) asked.push_back(request);
  }
};

}  // namespace twinrun
