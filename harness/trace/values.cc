// Lists what the calls of a trace computed, and what none of them did.
#include "harness/trace/values.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace twinrun {
namespace {

using aten::Call;
using aten::TensorView;
using aten::Value;

// Whether a call gives new values to all that it writes, whatever was there.
bool overwrites(std::string_view op) {
  const std::string name = base_name(op);
  return draws_at_random(op) || name == "aten.zero" || name == "aten.fill" || name == "aten.copy" ||
         name == "aten._foreach_zero" || name == "aten._foreach_copy";
}

class Digests {
 public:
  Digest of(const TensorView& view) {
    const auto [at, fresh] = known_.try_emplace({view.data, view.dims, view.strides});
    if (fresh) at->second = digest_of(view);
    return at->second;
  }

 private:
  std::map<std::tuple<const std::byte*, Dims, Dims>, Digest> known_;
};

}  // namespace

const Value* named(const Call& call, std::string_view name) {
  for (const auto& [key, v] : call.kwargs)
    if (key == name) return &v;
  return nullptr;
}

std::vector<const TensorView*> named_tensors(const Call& call, std::string_view name) {
  std::vector<const TensorView*> all;
  if (const Value* v = named(call, name)) aten::collect(*v, all);
  return all;
}

bool is_followed(const Call& call, const std::vector<const TensorView*>& read) {
  return !call.without_gradient && std::ranges::any_of(read, &TensorView::requires_gradient);
}

int64_t reach_of(const TensorView& view) {
  int64_t last = view.first / aten::size_of(view.element);
  for (size_t d = 0; d < view.dims.size(); ++d) last += (view.dims[d] - 1) * view.strides[d];
  return last + 1;
}

std::vector<const TensorView*> read_by(const Call& call) {
  std::vector<const TensorView*> all;
  for (const Value& v : call.args) aten::collect(v, all);
  for (const auto& [name, v] : call.kwargs) aten::collect(v, all);
  return all;
}

Digest digest_of(const TensorView& view) {
  const int64_t size = aten::size_of(view.element), n = view.elements();
  const auto rank = static_cast<int64_t>(view.dims.size());
  if (view.is_dense() || n == 0) return digest_bytes(view.data, static_cast<size_t>(n * size));
  // In pieces: a tensor that is expanded has many more elements than bytes.
  std::array<std::byte, 1 << 14> piece;  // whose size is a multiple of every element's
  size_t filled = 0;
  DigestBuilder row_major;
  Dims at(view.dims.size(), 0);
  int64_t from = 0;
  for (int64_t i = 0; i < n; ++i) {
    std::memcpy(&piece[filled], view.data + from * size, static_cast<size_t>(size));
    filled += static_cast<size_t>(size);
    if (filled == piece.size()) row_major.add_bytes(piece.data(), std::exchange(filled, 0));
    for (int64_t d = rank - 1; d >= 0; --d) {
      const auto u = static_cast<size_t>(d);
      from += view.strides[u];
      if (++at[u] < view.dims[u]) break;
      from -= view.strides[u] * view.dims[u];
      at[u] = 0;
    }
  }
  row_major.add_bytes(piece.data(), filled);
  return row_major.finish();
}

std::vector<const TensorView*> computed_by(const Call& call,
                                           const std::vector<const TensorView*>& read) {
  std::vector<const TensorView*> all;
  std::unordered_set<uint64_t> known;
  for (const TensorView& w : call.written) {
    all.push_back(&w);
    known.insert(w.storage);
  }
  for (const TensorView* r : read) known.insert(r->storage);
  std::vector<const TensorView*> returned;
  aten::collect(call.result, returned);
  for (const TensorView* r : returned) {
    if (r->storage == 0 || !known.contains(r->storage)) all.push_back(r);
  }
  return all;
}

std::vector<const TensorView*> compared_views(const Call& call, size_t results) {
  std::vector<const TensorView*> actual;
  const bool lists = call.result.kind == Value::Kind::kList;
  const size_t returned = lists ? call.result.items.size() : 1;
  std::vector<const TensorView*> given;
  aten::collect(call.result, given);
  const bool in_place =
      !call.written.empty() &&
      (given.empty() ||
       (given.size() == call.written.size() && given[0]->storage == call.written[0].storage) ||
       results == call.written.size());
  if (in_place) {
    for (const TensorView& w : call.written) actual.push_back(&w);
  } else {
    for (size_t i = 0; i < returned; ++i) {
      const Value& v = lists ? call.result.items[i] : call.result;
      actual.push_back(v.kind == Value::Kind::kTensor ? &v.tensor : nullptr);
    }
    for (const TensorView& w : call.written) actual.push_back(&w);
  }
  return actual;
}

std::string base_name(std::string_view op) {
  if (!op.starts_with("aten.")) return std::string(op);
  std::string_view name = op.substr(5);
  name = name.substr(0, name.find('.'));
  while (name.size() > 1 && name.ends_with('_')) name.remove_suffix(1);
  return "aten." + std::string(name);
}

bool gives_no_values(const std::string& name) {
  static constexpr std::array<std::string_view, 6> kEmpty = {
      "aten.empty",         "aten.empty_like",        "aten.new_empty",
      "aten.empty_strided", "aten.new_empty_strided", "aten.empty_permuted"};
  return std::ranges::find(kEmpty, name) != kEmpty.end();
}
bool draws_at_random(std::string_view op) {
  static constexpr std::array<std::string_view, 19> kDraws = {
      "bernoulli",    "rand",        "randn",          "rand_like",       "randn_like",
      "uniform",      "normal",      "randint",        "randperm",        "random",
      "exponential",  "multinomial", "geometric",      "cauchy",          "log_normal",
      "randint_like", "poisson",     "native_dropout", "rrelu_with_noise"};
  const std::string name = base_name(op);
  return name.starts_with("aten.") &&
         std::ranges::find(kDraws, std::string_view(name).substr(5)) != kDraws.end();
}

TraceValues values_of(const TraceFile& trace) {
  TraceValues out;
  Digests digests;
  std::unordered_set<uint64_t> known;   // storages that a call has computed or read
  std::unordered_set<uint64_t> copied;  // storages that came by aten.set_
  for (const Call& call : trace.calls) {
    const bool sets = base_name(call.op) == "aten.set";
    const auto read = read_by(call);
    const bool random = draws_at_random(call.op), fresh_values = overwrites(call.op);
    std::unordered_set<uint64_t> written;
    for (const TensorView& w : call.written) written.insert(w.storage);
    auto& reads = out.reads.emplace_back();
    for (size_t i = 0; i < read.size(); ++i) {
      const TensorView& t = *read[i];
      const bool fresh = t.storage != 0 && known.insert(t.storage).second;
      if (t.data == nullptr || (fresh_values && written.contains(t.storage))) continue;
      reads.push_back(digests.of(t));
      if (fresh || t.changed_unseen)
        out.inputs.push_back({&call, &t, i, copied.contains(t.storage), reads.back()});
    }
    const size_t first = out.results.size();
    if (sets) {
      for (const TensorView& w : call.written) copied.insert(w.storage);
    } else if (!call.failed && !call.op.starts_with("profiler.")) {  // which note no value
      size_t which = 0;
      for (const TensorView* t : computed_by(call, read)) {
        if (t->storage != 0) known.insert(t->storage);
        if (t->data != nullptr) out.results.push_back({&call, t, which, digests.of(*t), random});
        ++which;
      }
      std::vector<const TensorView*> returned;
      aten::collect(call.result, returned);
      for (const TensorView* t : returned) known.insert(t->storage);
    }
    out.of_call.emplace_back(first, out.results.size());
    out.has_nodes = out.has_nodes || !call.node.empty();
  }
  // Of a dropout with a mask, only the mask is drawn.
  for (const auto& [begin, end] : out.of_call) {
    const auto is_mask = [](const TraceResult& r) { return aten::is_integer(r.view->element); };
    const auto from = out.results.begin() + static_cast<int64_t>(begin);
    const auto to = out.results.begin() + static_cast<int64_t>(end);
    if (end - begin < 2 || std::none_of(from, to, is_mask)) continue;
    for (auto at = from; at != to; ++at) at->draw = at->draw && is_mask(*at);
  }
  return out;
}

}  // namespace twinrun
