// Spans of time as a Chrome trace, which Perfetto and chrome://tracing draw: sections (the format's
// processes) of tracks (its threads), in the given order. Source: "Trace Event Format" (Chromium
// project); complete events (ph X), metadata events (ph M), times in microseconds.
//
//   ChromeTrace trace{{"tpu, 8 cores"}, {{"step"}, {"core 0"}}, {}, {}};
//   trace.spans.push_back({"dense1/matmul", "forward", 1, 12.5, 40.25, {{"kind", "dot_general"}}});
//   write_file_atomically("trace.json", to_chrome_trace(trace));
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace twinrun {

using TraceWords = std::vector<std::pair<std::string, std::string>>;

struct TraceSpan {
  std::string name, category;
  int track = 0;                   // index of ChromeTrace::tracks
  double begin = 0, duration = 0;  // microseconds
  TraceWords words;                // shown when the span is selected
};

struct TraceTrack {
  std::string name;
  int section = 0;  // index of ChromeTrace::sections
};

struct ChromeTrace {
  std::vector<std::string> sections;  // from top to bottom
  std::vector<TraceTrack> tracks;     // within their sections
  std::vector<TraceSpan> spans;       // spans of one track are disjoint or nested
  TraceWords notes;                   // describe what the times are
};

// Writes one event per line. The events of a track are sorted by begin, longer ones first, so that
// an enclosing span precedes the spans within it.
std::string to_chrome_trace(const ChromeTrace& trace);

}  // namespace twinrun
