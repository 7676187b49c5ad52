#include "reports/chrome_trace.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace twinrun {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kProcess = 1;

Json words(const TraceWords& words) {
  Json out = Json::object();
  for (const auto& [key, value] : words) out[key] = value;
  return out;
}

Json metadata(const char* what, int track, const char* key, const Json& value) {
  return {{"name", what}, {"ph", "M"}, {"pid", kProcess}, {"tid", track}, {"args", {{key, value}}}};
}

// Nanoseconds are more than any clock has here.
double rounded(double microseconds) { return std::round(microseconds * 1000) / 1000; }

}  // namespace

std::string to_chrome_trace(const ChromeTrace& trace) {
  Json events = Json::array();
  events.push_back(metadata("process_name", 0, "name", trace.process));
  for (size_t i = 0; i < trace.tracks.size(); ++i) {
    const int track = static_cast<int>(i);
    events.push_back(metadata("thread_name", track, "name", trace.tracks[i]));
    events.push_back(metadata("thread_sort_index", track, "sort_index", track));
  }
  for (const TraceSpan& span : trace.spans) {
    // Both ends are rounded alike, so that what lay within still does.
    const double begin = rounded(span.begin);
    events.push_back({{"name", span.name},
                      {"cat", span.category},
                      {"ph", "X"},
                      {"ts", begin},
                      {"dur", rounded(rounded(span.begin + span.duration) - begin)},
                      {"pid", kProcess},
                      {"tid", span.track},
                      {"args", words(span.words)}});
  }
  const Json all = {{"traceEvents", std::move(events)},
                    {"displayTimeUnit", "ms"},
                    {"otherData", words(trace.notes)}};
  return all.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace twinrun
