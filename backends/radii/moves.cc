// Moves: the values, the ends of the intervals and the sizes of sums go the same way, by the
// oracle's own moves.
#include "backends/radii/internal.h"

namespace twinrun::radii {
namespace {

Tensor moved(const Site& site, const std::vector<Tensor>& operands) {
  static const Capabilities kPlain;  // flushes nothing
  return eval_value(kPlain, site.op, operands, site.pool);
}
const Tensor& low_of(const Known& k) { return k.exact() ? k.value : k.low; }
const Tensor& high_of(const Known& k) { return k.exact() ? k.value : k.high; }

Tensor sizes_of(const Known& k) {
  if (k.mass.valid()) return k.mass;
  Tensor out = Tensor::empty({DType::kF64, k.value.dims()});
  const auto to = out.as<double>();
  for (size_t i = 0; i < to.size(); ++i) to[i] = at(k, static_cast<int64_t>(i)).size();
  return out;
}

// Rows of which the index is not known: any of those that it may be.
Known gathered(const Site& site) {
  const Known &x = *site.x[0], &ids = *site.x[1];
  const int64_t rows = x.value.dims()[0], width = rows == 0 ? 0 : x.value.elements() / rows;
  constexpr int64_t kMost = int64_t{1} << 24;  // elements to look at
  const auto row = [&](double id) {
    return static_cast<int64_t>(std::clamp(id, 0.0, static_cast<double>(rows - 1)));
  };
  Known out = fresh(site.op);
  const Planes to = planes_of(out);
  int64_t looked_at = 0;
  for (int64_t i = 0; i < ids.value.elements(); ++i) {
    const Interval id = at(ids, i);
    const int64_t first = row(id.low), last = row(id.high);
    looked_at += (last - first + 1) * width;
    for (int64_t c = 0; c < width; ++c) {
      Interval e = at(x, row(id.value) * width + c);
      if (looked_at > kMost) {
        e = anything(e.value);
      } else {
        for (int64_t r = first; r <= last; ++r) e = either(e, at(x, r * width + c));
      }
      to.set(i * width + c, e);
    }
  }
  if (looked_at > kMost) out.why = site.op.name + ": too many rows may be meant";
  return out;
}

}  // namespace

Known by_oracle(const Site& site) {
  std::vector<Tensor> values;
  for (const Known* k : site.x) values.push_back(k->value);
  Known out;
  out.value = moved(site, values);
  return out;
}

Known eval_move(const Site& site) {
  if (site.op.kind == OpKind::kSortOrder && !site.x[0]->exact()) {  // any order
    Known out = by_oracle(site);
    out.low = Tensor::zeros(out.value.type()), out.high = Tensor::empty(out.value.type());
    std::ranges::fill(out.high.as<int32_t>(), static_cast<int32_t>(site.op.type.dims.back() - 1));
    return out;
  }
  if (site.op.kind == OpKind::kGather && !site.x[1]->exact()) return gathered(site);
  Known out = by_oracle(site);
  std::vector<Tensor> low, high, mass;
  double terms = 1;
  // The indices of a gather are exact here, and have no size.
  const size_t operands = site.op.kind == OpKind::kGather ? 1 : site.x.size();
  bool exact = true;
  for (size_t i = 0; i < operands; ++i) {
    exact = exact && site.x[i]->exact();
    terms = std::max(terms, site.x[i]->terms);
    out.reduced = out.reduced || site.x[i]->reduced;
    if (site.x[i]->terms > 1) out.stem = site.x[i]->stem;
  }
  if (exact && terms == 1) return out;
  for (size_t i = 0; i < site.x.size(); ++i) {
    const Known& k = *site.x[i];
    low.push_back(low_of(k));
    high.push_back(high_of(k));
    if (terms > 1) mass.push_back(i < operands ? sizes_of(k) : k.value);
  }
  if (!exact) out.low = moved(site, low), out.high = moved(site, high);
  if (terms > 1) out.mass = moved(site, mass);
  out.terms = terms;
  return out;
}

}  // namespace twinrun::radii
