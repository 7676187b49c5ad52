// Windows of pooling and of columns along one axis, and sums by element.
#pragma once

#include <algorithm>
#include <vector>

#include "backends/aten/definitions.h"
#include "backends/aten/totals.h"

namespace twinrun::aten {

using Totals = Checked<Total>;
inline Totals totals_of(const Dims& dims) {
  return Totals(static_cast<size_t>(allowed_count(dims)));
}
inline void add(Totals& totals, int64_t i, Estimate e) { totals[static_cast<size_t>(i)].add(e); }
inline Array array_from(const Arithmetic& m, const Totals& totals, Dims dims, double half) {
  Array out = empty_array(std::move(dims));
  in_ranges(m, out.size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out.set(i, totals[static_cast<size_t>(i)].of(m, half));
  });
  return out;
}

// One axis of a window: which inputs an output reads, and how many with the padding.
struct Span {
  int64_t begin = 0, end = 0, step = 1, padded = 0;
};
using Spans = Checked<Span>;
inline Spans windows(int64_t in, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation,
                     bool ceil) {
  if (kernel < 1 || stride < 1 || dilation < 1) throw Undefined("a window without elements");
  const int64_t room = in + 2 * pad - dilation * (kernel - 1) - 1 + (ceil ? stride - 1 : 0);
  if (room < 0) throw Undefined("a window that does not fit");
  int64_t out = room / stride + 1;
  // The last window has to begin within the input or the padding before it.
  if (ceil && (out - 1) * stride >= in + pad) --out;
  Spans spans;
  spans.reserve(static_cast<size_t>(allowed_count({out})));
  for (int64_t o = 0; o < out; ++o) {
    Span s;
    const int64_t first = o * stride - pad;
    s.padded = std::min(first + kernel, in + pad) - first;  // counted for averages: no dilation
    s.begin = first < 0 ? first + (-first + dilation - 1) / dilation * dilation : first;
    s.end = std::max(s.begin, std::min(first + dilation * (kernel - 1) + 1, in));
    s.step = dilation;
    spans.push_back(s);
  }
  return spans;
}
inline Spans adaptive(int64_t in, int64_t out) {
  Spans spans;
  spans.reserve(static_cast<size_t>(allowed_count({out})));
  for (int64_t o = 0; o < out; ++o)
    spans.push_back({o * in / out, ((o + 1) * in + out - 1) / out, 1, 0});
  return spans;
}
inline int64_t length(const Spans& s) { return static_cast<int64_t>(s.size()); }
// The most inputs that an output reads.
inline double most_read(const Spans& spans) {
  int64_t most = 0;
  for (const Span& s : spans) most = std::max(most, (s.end - s.begin + s.step - 1) / s.step);
  return static_cast<double>(most);
}

}  // namespace twinrun::aten
