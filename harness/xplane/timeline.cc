// Computes with intervals of time.
#include "harness/xplane/timeline.h"

#include <algorithm>

namespace twinrun {

void set_self_times(std::vector<OpSpan>& line) {
  std::ranges::sort(line, [](const OpSpan& a, const OpSpan& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::vector<size_t> open;
  for (size_t i = 0; i < line.size(); ++i) {
    OpSpan& span = line[i];
    span.self = span.end - span.begin;
    while (!open.empty() && line[open.back()].end <= span.begin) open.pop_back();
    if (!open.empty()) {
      OpSpan& parent = line[open.back()];
      parent.self = std::max(0.0, parent.self - (std::min(span.end, parent.end) - span.begin));
    }
    open.push_back(i);
  }
}

std::vector<Span> merged(std::vector<Span> spans) {
  std::ranges::sort(spans, {}, &Span::begin);
  std::vector<Span> out;
  for (const Span& span : spans) {
    if (!out.empty() && span.begin <= out.back().end)
      out.back().end = std::max(out.back().end, span.end);
    else if (span.end > span.begin)
      out.push_back(span);
  }
  return out;
}

double total(const std::vector<Span>& spans) {
  double sum = 0;
  for (const Span& span : spans) sum += span.end - span.begin;
  return sum;
}

std::vector<Span> intersection(const std::vector<Span>& a, const std::vector<Span>& b) {
  std::vector<Span> out;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Span both{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (both.end > both.begin) out.push_back(both);
    (a[i].end < b[j].end ? i : j) += 1;
  }
  return out;
}

}  // namespace twinrun
