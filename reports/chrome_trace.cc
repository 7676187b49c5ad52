// Writes a ChromeTrace in the Trace Event Format.
#include "reports/chrome_trace.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;

Json arguments_of(const TraceWords& words) {
  Json out = Json::object();
  for (const auto& [key, value] : words) out[key] = value;
  return out;
}

// Process ids start at 1, because viewers take process 0 for the kernel.
Json metadata(const char* what, int section, int track, const char* key, const Json& value) {
  return {
      {"name", what}, {"ph", "M"}, {"pid", section + 1}, {"tid", track}, {"args", {{key, value}}}};
}

// Rounds to nanoseconds, which is finer than any clock used here.
double rounded(double microseconds) { return std::round(microseconds * 1000) / 1000; }

}  // namespace

std::string to_chrome_trace(const ChromeTrace& trace) {
  std::string events;
  const auto add = [&](const Json& event) {
    events +=
        (events.empty() ? "" : ",\n") + event.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  for (size_t i = 0; i < trace.sections.size(); ++i) {
    const int section = static_cast<int>(i);
    add(metadata("process_name", section, 0, "name", trace.sections[i]));
    add(metadata("process_sort_index", section, 0, "sort_index", section));
  }
  for (size_t i = 0; i < trace.tracks.size(); ++i) {
    const int track = static_cast<int>(i), section = trace.tracks[i].section;
    add(metadata("thread_name", section, track, "name", trace.tracks[i].name));
    add(metadata("thread_sort_index", section, track, "sort_index", track));
  }
  std::vector<const TraceSpan*> spans;
  for (const TraceSpan& span : trace.spans) spans.push_back(&span);
  std::ranges::stable_sort(spans, [](const TraceSpan* a, const TraceSpan* b) {
    return std::tuple(a->track, a->begin, -a->duration) <
           std::tuple(b->track, b->begin, -b->duration);
  });
  for (const TraceSpan* span : spans) {
    // Round both ends alike, so that nested spans stay nested.
    const double begin = rounded(span->begin);
    add({{"name", span->name},
         {"cat", span->category},
         {"ph", "X"},
         {"ts", begin},
         {"dur", rounded(rounded(span->begin + span->duration) - begin)},
         {"pid", trace.tracks[static_cast<size_t>(span->track)].section + 1},
         {"tid", span->track},
         {"args", arguments_of(span->words)}});
  }
  return "{\"traceEvents\": [\n" + events + "\n],\n\"displayTimeUnit\": \"ms\",\n\"otherData\": " +
         arguments_of(trace.notes).dump(-1, ' ', false, Json::error_handler_t::replace) + "}\n";
}

}  // namespace twinrun
