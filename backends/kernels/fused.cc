// Compiles a fusion group into block kernels that share buffers, and runs them block by block.
#include "backends/kernels/fused.h"

#include <atomic>
#include <cstring>
#include <map>
#include <tuple>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/reduce_lanes.h"
#include "backends/kernels/scratch.h"

namespace twinrun {
namespace {

constexpr int64_t kBlock = 1024, kLargestPeriod = 2048;
constexpr size_t kElement = 4;             // bytes per element of a buffer
constexpr size_t kNear = size_t{1} << 20;  // bytes of operands that may still be in L2

// Writes elements [at, at + n) of a broadcast to `to`.
template <typename E>
void expand(const E* from, int64_t inner, int64_t period, int64_t at, E* to, int64_t n) {
  if (period == 1) {
    std::fill(to, to + n, *from);
    return;
  }
  if (inner == 1) {
    for (int64_t i = 0; i < n;) {
      const int64_t place = (at + i) % period, run = std::min(period - place, n - i);
      std::copy(from + place, from + place + run, to + i);
      i += run;
    }
    return;
  }
  int64_t place = at / inner % period, run = std::min(inner - at % inner, n);
  for (int64_t i = 0; i < n; run = std::min(inner, n - i)) {
    std::fill(to + i, to + i + run, from[place]);
    i += run;
    if (++place == period) place = 0;
  }
}

void expand_bytes(size_t size, const std::byte* from, int64_t inner, int64_t period, int64_t at,
                  std::byte* to, int64_t n) {
  const auto as = [&]<typename E>(E) {
    expand(reinterpret_cast<const E*>(from), inner, period, at, reinterpret_cast<E*>(to), n);
  };
  size == 1 ? as(uint8_t{}) : size == 2 ? as(uint16_t{}) : as(uint32_t{});
}

}  // namespace

// Builds a FusedKernel. The table of pointers holds sources, then stored results, then buffers.
struct FusedKernel::Compiler {
  FusedKernel& k;
  const Graph& graph;
  const FusionGroup& group;
  const std::vector<bool>& over;
  std::map<ValueId, Place> places;                                    // results of the group's ops
  std::map<std::tuple<ValueId, int64_t, int64_t>, Place> broadcasts;  // those already expanded
  using Key = std::tuple<OpKind, DType, CompareKind, std::vector<std::pair<int, size_t>>>;
  std::map<Key, ValueId> computed;

  int source_index(ValueId id) const {
    return static_cast<int>(std::ranges::find(group.sources, id) - group.sources.begin());
  }
  bool periodic(const Access& a) const {
    return k.block_ % (a.inner * a.period) == 0 || a.period == 1;
  }

  void choose_block() {
    int64_t period = 1;
    for (const FusedOp& op : group.ops) {
      if (graph.op(op.id).kind == OpKind::kReduce) {
        k.columns_ = reduce_columns(graph, op.id);
        continue;
      }
      for (const Access& a : op.operands) {
        const int64_t p = a.inner * a.period;
        if (a.period > 1 && p <= kLargestPeriod && p < k.elements_) period = std::max(period, p);
      }
    }
    if (k.columns_ == 0) {
      k.unit_ = k.block_ = period * std::max<int64_t>(1, kBlock / period);
      return;
    }
    k.block_ = k.columns_;
    // A power of two of rows, so that a block divides a segment.
    while (k.block_ * 2 <= kBlock) k.block_ *= 2;
    k.unit_ = kReduceSegment * k.columns_;
  }

  int buffer() {
    k.buffers_ += 1;
    return static_cast<int>(group.sources.size() + group.stored.size()) + k.buffers_ - 1;
  }

  Place operand(const Access& a) {
    if (const auto it = places.find(a.source); it != places.end()) return it->second;
    const int source = source_index(a.source);
    const size_t size = size_of(graph.type(a.source).dtype);
    if (a.inner == 1 && a.period == k.elements_) {
      if (std::ranges::find(k.full_, source, &Place::index) == k.full_.end())
        k.full_.push_back({source, size});
      return {source, size};
    }
    const auto [it, is_new] = broadcasts.try_emplace({a.source, a.inner, a.period});
    if (!is_new) return it->second;
    View view{source, a.inner, a.period, size, {buffer(), 0}};
    it->second = view.out;
    if (periodic(a)) {
      k.kept_.push_back(view);
    } else {
      Node node;
      node.view = static_cast<int>(k.views_.size());
      k.views_.push_back(view);
      k.nodes_.push_back(node);
    }
    return view.out;
  }

  void compile(const FusedOp& fused) {
    const Op& op = graph.op(fused.id);
    Node node;
    for (const Access& a : fused.operands) node.in[node.inputs++] = operand(a);
    const auto stored = std::ranges::find(group.stored, fused.id);
    const bool keep = stored != group.stored.end();
    const int target =
        static_cast<int>(group.sources.size()) + static_cast<int>(stored - group.stored.begin());
    if (op.kind == OpKind::kReduce) {
      k.folds_.push_back({node.in[0], op.type.dtype, op.attrs.reducer, k.elements_ / k.columns_,
                          static_cast<int>(stored - group.stored.begin())});
      return;
    }
    Key key{op.kind, op.type.dtype, op.attrs.compare, {}};
    for (int i = 0; i < node.inputs; ++i)
      std::get<3>(key).emplace_back(node.in[i].index, node.in[i].moves);
    const auto [same, is_new] = computed.try_emplace(key, fused.id);
    if (!is_new && !keep) {
      places[fused.id] = places[same->second];
      return;
    }
    const ValueId typed = op.operands[op.kind == OpKind::kSelect ? 1 : 0];
    node.kernel = block_kernel(op, graph.type(typed).dtype, k.flush_);
    const Place kept{target, size_of(op.type.dtype)};
    const bool late =
        keep && !over.empty() && over[static_cast<size_t>(stored - group.stored.begin())];
    node.out = keep && !late ? kept : Place{buffer(), 0};
    if (late) k.late_.push_back({node.out, kept});
    places[fused.id] = node.out;
    k.cost_ += block_cost(op.kind);
    k.nodes_.push_back(node);
  }

  // Gives buffers whose last reader has run to later nodes, so that few enough are left to stay in
  // L1.
  void share_buffers() {
    const int first = static_cast<int>(group.sources.size() + group.stored.size());
    std::map<int, size_t> last;
    std::map<int, int> name;
    for (size_t i = 0; i < k.nodes_.size(); ++i) {
      for (int j = 0; j < k.nodes_[i].inputs; ++j) last[k.nodes_[i].in[j].index] = i;
    }
    for (const Fold& fold : k.folds_) last[fold.in.index] = k.nodes_.size();
    for (const Late& late : k.late_) last[late.from.index] = k.nodes_.size();
    std::vector<int> free;
    int count = 0;
    const auto take = [&](Place& place) {
      if (place.index < first) return;
      if (free.empty()) free.push_back(first + count++);
      name[place.index] = free.back();
      free.pop_back();
      place.index = name[place.index];
    };
    const auto renamed = [&](Place& place) {
      if (place.index >= first) place.index = name[place.index];
    };
    for (View& view : k.kept_) take(view.out);
    std::vector<int> kept;
    for (const View& view : k.kept_) kept.push_back(view.out.index);
    for (size_t i = 0; i < k.nodes_.size(); ++i) {
      Node& node = k.nodes_[i];
      std::vector<int> over;
      for (int j = 0; j < node.inputs; ++j) {
        const int old = node.in[j].index;
        renamed(node.in[j]);
        const int now = node.in[j].index;
        if (old >= first && last[old] == i && std::ranges::find(kept, now) == kept.end() &&
            std::ranges::find(over, now) == over.end()) {
          over.push_back(now);
        }
      }
      // Taken before the operands' buffers are freed, since a result must not overlap them.
      take(node.view >= 0 ? k.views_[static_cast<size_t>(node.view)].out : node.out);
      free.insert(free.end(), over.begin(), over.end());
    }
    for (Fold& fold : k.folds_) renamed(fold.in);
    for (Late& late : k.late_) renamed(late.from);
    k.buffers_ = count;
  }
};

FusedKernel::FusedKernel(const Graph& graph, const FusionGroup& group, bool flush,
                         const std::vector<bool>& over)
    : flush_(flush),
      elements_(group.elements),
      sources_(static_cast<int>(group.sources.size())),
      stored_(static_cast<int>(group.stored.size())) {
  Compiler compiler{*this, graph, group, over, {}, {}, {}};
  compiler.choose_block();
  for (const FusedOp& op : group.ops) compiler.compile(op);
  compiler.share_buffers();
  size_t bytes = 0;
  for (const Place& place : full_) bytes += place.moves;
  far_ = bytes * static_cast<size_t>(elements_) > kNear;
}

// The arguments and the segments' sums of one call of run or agrees.
struct FusedKernel::Pass {
  std::span<const std::byte* const> sources;
  std::span<std::byte* const> stored;
  bool compares = false;  // results are compared with `stored` instead of being stored
  float* sums = nullptr;  // [job][fold][segment][columns]
  int64_t segments = 0;
  std::atomic<bool> differs = false;

  // A result of `bytes` bytes that is complete.
  void store(std::byte* to, const std::byte* from, size_t bytes) {
    if (!compares) {
      std::memcpy(to, from, bytes);
    } else if (std::memcmp(to, from, bytes) != 0) {
      differs.store(true, std::memory_order_relaxed);
    }
  }
};

void FusedKernel::fold_block(const Fold& fold, float* lanes, const std::byte* x, int64_t at,
                             int64_t n) const {
  dispatch_float(fold.dtype, flush_, [&]<typename T, bool kFlush>(T, std::bool_constant<kFlush>) {
    const auto* from = reinterpret_cast<const typename T::type*>(x);
    if (fold.reducer == Reducer::kMax) {
      lane_add<T, kFlush, JoinMax>(lanes, columns_, at, from, n);
    } else {
      lane_add<T, kFlush, JoinSum>(lanes, columns_, at, from, n);
    }
  });
}

void FusedKernel::fold_tree(const Fold& fold, float* lanes, int64_t rows) const {
  const int64_t exist = std::min(rows, kReduceLanes);
  fold.reducer == Reducer::kMax ? lane_tree<JoinMax>(lanes, exist, columns_)
                                : lane_tree<JoinSum>(lanes, exist, columns_);
}

void FusedKernel::finish(Pass& pass, int64_t job) const {
  std::vector<std::byte> own(pass.compares ? static_cast<size_t>(columns_) * kElement : 0);
  const auto folds = static_cast<int64_t>(folds_.size());
  for (int64_t f = 0; f < folds; ++f) {
    const Fold& fold = folds_[static_cast<size_t>(f)];
    const float* sums = pass.sums + (job * folds + f) * pass.segments * columns_;
    std::byte* const stored = pass.stored[static_cast<size_t>(job * stored_ + fold.stored)];
    std::byte* const out = pass.compares ? own.data() : stored;
    const int64_t mean_of = fold.reducer == Reducer::kMean ? fold.rows : 0;
    dispatch_float(fold.dtype, flush_, [&]<typename T, bool kFlush>(T, std::bool_constant<kFlush>) {
      auto* to = reinterpret_cast<typename T::type*>(out);
      if (fold.reducer == Reducer::kMax) {
        finish_sums<T, kFlush, JoinMax>(sums, pass.segments, columns_, 0, to, 0, columns_);
      } else {
        finish_sums<T, kFlush, JoinSum>(sums, pass.segments, columns_, mean_of, to, 0, columns_);
      }
    });
    if (pass.compares) pass.store(stored, out, static_cast<size_t>(columns_) * size_of(fold.dtype));
  }
}

// Prefetches node i's share of the next block's operands. A block is a page, and the hardware's own
// prefetchers stop at page boundaries.
void FusedKernel::fetch(std::byte* const* table, int64_t at, int64_t n, size_t i) const {
  if (n <= 0) return;
  for (const Place& place : full_) {
    const std::byte* from = table[place.index] + static_cast<size_t>(at) * place.moves;
    const size_t lines = place.moves * static_cast<size_t>(n) / 64;
    for (size_t line = lines * i / nodes_.size(); line < lines * (i + 1) / nodes_.size(); ++line) {
      __builtin_prefetch(from + line * 64, 0, 3);
    }
  }
}

// Runs elements [begin, end) of one job: whole blocks, and whole segments where there are
// reductions.
void FusedKernel::piece(Pass& pass, int64_t job, int64_t begin, int64_t end) const {
  const int first = sources_ + stored_;
  const size_t buffer_bytes = (static_cast<size_t>(block_) * kElement + 63) / 64 * 64;
  const size_t table_bytes =
      (static_cast<size_t>(first + buffers_) * sizeof(std::byte*) + 63) / 64 * 64;
  const size_t lanes_size = static_cast<size_t>(kReduceLanes * columns_);
  auto* memory = scratch<std::byte>(Scratch::kBlocks,
                                    table_bytes + static_cast<size_t>(buffers_) * buffer_bytes +
                                        lanes_size * folds_.size() * sizeof(float));
  auto** table = reinterpret_cast<std::byte**>(memory);
  auto* lanes =
      reinterpret_cast<float*>(memory + table_bytes + static_cast<size_t>(buffers_) * buffer_bytes);
  for (int i = 0; i < sources_; ++i) {  // never written: no node's result is a source
    table[i] = const_cast<std::byte*>(pass.sources[static_cast<size_t>(job * sources_ + i)]);
  }
  for (int i = 0; i < stored_; ++i)
    table[sources_ + i] = pass.stored[static_cast<size_t>(job * stored_ + i)];
  for (int i = 0; i < buffers_; ++i)
    table[first + i] = memory + table_bytes + static_cast<size_t>(i) * buffer_bytes;

  const auto pointer = [&](const Place& place, int64_t at) {
    return table[place.index] + static_cast<size_t>(at) * place.moves;
  };
  for (const View& view : kept_) {
    expand_bytes(view.size, table[view.source], view.inner, view.period, begin,
                 table[view.out.index], std::min(block_, end - begin));
  }
  for (int64_t at = begin; at < end; at += block_) {
    if (pass.differs.load(std::memory_order_relaxed)) return;
    const int64_t n = std::min(block_, end - at);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const Node& node = nodes_[i];
      if (far_) fetch(table, at + n, std::min(block_, end - at - n), i);
      if (node.view >= 0) {
        const View& view = views_[static_cast<size_t>(node.view)];
        expand_bytes(view.size, table[view.source], view.inner, view.period, at,
                     table[view.out.index], n);
        continue;
      }
      BlockArgs block;
      for (int i = 0; i < node.inputs; ++i) block.in[i] = pointer(node.in[i], at);
      block.out = pointer(node.out, at);
      block.n = n;
      node.kernel(block);
    }
    const int64_t segment = at / unit_, start = segment * unit_;
    const auto folds = static_cast<int64_t>(folds_.size());
    for (int64_t f = 0; f < folds; ++f) {
      const Fold& fold = folds_[static_cast<size_t>(f)];
      float* lane = lanes + static_cast<int64_t>(lanes_size) * f;
      fold_block(fold, lane, pointer(fold.in, at), at - start, n);
      if (at + n != std::min(start + unit_, elements_)) continue;
      fold_tree(fold, lane, (at + n - start) / columns_);
      std::copy_n(lane, columns_,
                  pass.sums + ((job * folds + f) * pass.segments + segment) * columns_);
    }
    for (const Late& late : late_) {
      pass.store(pointer(late.to, at), table[late.from.index],
                 static_cast<size_t>(n) * late.to.moves);
    }
  }
}

void FusedKernel::run_pass(const KernelContext& context, int64_t jobs, Pass& pass) const {
  const int64_t units = (elements_ + unit_ - 1) / unit_;
  if (columns_ > 0) {
    pass.segments = units;
    pass.sums = scratch<float>(Scratch::kPartials,
                               static_cast<size_t>(jobs * units * columns_) * folds_.size());
  }
  for_ranges(context, jobs * units, std::min(unit_, elements_) * cost_,
             [&](int64_t begin, int64_t end) {
               const FlushScope scope(flush_);
               for (int64_t u = begin; u < end;) {
                 const int64_t job = u / units, last = std::min(end, (job + 1) * units);
                 piece(pass, job, (u - job * units) * unit_,
                       std::min(elements_, (last - job * units) * unit_));
                 u = last;
               }
             });
  if (columns_ == 0 || pass.differs.load()) return;
  const FlushScope scope(flush_);
  for (int64_t job = 0; job < jobs; ++job) finish(pass, job);
}

void FusedKernel::run(const KernelContext& context, int64_t jobs,
                      std::span<const std::byte* const> sources,
                      std::span<std::byte* const> stored) const {
  Pass pass{sources, stored};
  run_pass(context, jobs, pass);
}

bool FusedKernel::agrees(const KernelContext& context, int64_t jobs,
                         std::span<const std::byte* const> sources,
                         std::span<const std::byte* const> stored) const {
  // A pass that compares does not write to them.
  std::vector<std::byte*> held;
  for (const std::byte* p : stored) held.push_back(const_cast<std::byte*>(p));
  Pass pass{sources, held, true};
  run_pass(context, jobs, pass);
  return !pass.differs.load();
}

}  // namespace twinrun
