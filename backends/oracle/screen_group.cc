// Recomputes the ops of a fusion group on blocks that stay in cache. It shares no loop with
// backends/kernels.
#include "backends/oracle/screen_group.h"

#include <map>
#include <tuple>

#include "backends/kernels/float_mode.h"
#include "backends/oracle/screen_internal.h"

namespace twinrun {
namespace {

constexpr int64_t kMaxPeriod = 2048;  // of a broadcast that one block holds whole
constexpr int64_t kMaxPieces = 16;    // of a group with reductions, each with sums of its own

// Denormal operands and results are zero for this thread while in scope. The empty asm keeps the
// compiler from moving arithmetic out of it.
class DenormalsAreZero {
 public:
  explicit DenormalsAreZero(bool on) : saved_(float_mode()) {
    if (on) set_float_mode(saved_ | kDenormalsAreZero);
    asm volatile("" ::: "memory");
  }
  ~DenormalsAreZero() {
    asm volatile("" ::: "memory");
    set_float_mode(saved_);
  }
  DenormalsAreZero(const DenormalsAreZero&) = delete;
  DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

 private:
  FloatMode saved_;
};

bool computes(const Capabilities& declared, const Graph& graph, const FusedOp& fused) {
  const Op& op = graph.op(fused.id);
  if (unrounded_operands(declared, graph, fused.id) != 0) return false;
  const auto operand = [&](size_t i) { return graph.type(op.operands[i]).dtype; };
  const DType result = op.type.dtype;
  switch (op.kind) {
    case OpKind::kAdd:
    case OpKind::kSubtract:
    case OpKind::kMultiply:
    case OpKind::kDivide:
    case OpKind::kMaximum:
    case OpKind::kMinimum:
    case OpKind::kSqrt:
    case OpKind::kNegate:
    case OpKind::kAbs:
    case OpKind::kReduce:
      return result == DType::kF32;
    case OpKind::kAnd:
    case OpKind::kOr:
    case OpKind::kXor:
      return result == DType::kPred;
    case OpKind::kCompare:
      return operand(0) == DType::kF32 || operand(0) == DType::kI32;
    case OpKind::kSelect:
      return result == DType::kF32 || result == DType::kI32 || result == DType::kPred;
    case OpKind::kConvert:
      return (result == DType::kF32 && (operand(0) == DType::kPred || operand(0) == DType::kI32)) ||
             (result == DType::kPred && operand(0) == DType::kF32);
    default:
      return has_ulps(op.kind) && result == DType::kF32;
  }
}

// Elements [at, at + n) of a broadcast.
template <typename E>
void spread_elements(const E* from, const Access& access, int64_t at, E* to, int64_t n) {
  for (int64_t i = 0; i < n;) {
    const int64_t row = (at + i) / access.inner, place = row % access.period;
    if (access.inner == 1) {
      const int64_t run = std::min(access.period - place, n - i);
      std::copy_n(from + place, run, to + i);
      i += run;
    } else {
      const int64_t run = std::min(access.inner - (at + i) % access.inner, n - i);
      std::fill_n(to + i, run, from[place]);
      i += run;
    }
  }
}

template <typename F>
void each_of_two(const std::byte* a, const std::byte* b, std::byte* e, int64_t n, F f) {
  const auto *x = reinterpret_cast<const float*>(a), *y = reinterpret_cast<const float*>(b);
  auto* to = reinterpret_cast<float*>(e);
  for (int64_t i = 0; i < n; ++i) to[i] = f(x[i], y[i]);
}
template <typename T, typename F>
void each_holds(const std::byte* a, const std::byte* b, std::byte* e, int64_t n, F f) {
  const auto *x = reinterpret_cast<const T*>(a), *y = reinterpret_cast<const T*>(b);
  auto* to = reinterpret_cast<uint8_t*>(e);
  for (int64_t i = 0; i < n; ++i) to[i] = f(x[i], y[i]) ? 1 : 0;
}
template <typename T>
void compare_each(CompareKind kind, const std::byte* a, const std::byte* b, std::byte* e,
                  int64_t n) {
  switch (kind) {
    case CompareKind::kEq:
      return each_holds<T>(a, b, e, n, [](T x, T y) { return x == y; });
    case CompareKind::kNe:
      return each_holds<T>(a, b, e, n, [](T x, T y) { return x != y; });
    case CompareKind::kLt:
      return each_holds<T>(a, b, e, n, [](T x, T y) { return x < y; });
    case CompareKind::kLe:
      return each_holds<T>(a, b, e, n, [](T x, T y) { return x <= y; });
    case CompareKind::kGt:
      return each_holds<T>(a, b, e, n, [](T x, T y) { return x > y; });
    case CompareKind::kGe:
      return each_holds<T>(a, b, e, n, [](T x, T y) { return x >= y; });
  }
}
template <typename T>
void select_each(const std::byte* p, const std::byte* a, const std::byte* b, std::byte* e,
                 int64_t n) {
  const auto* mask = reinterpret_cast<const uint8_t*>(p);
  const auto *x = reinterpret_cast<const T*>(a), *y = reinterpret_cast<const T*>(b);
  auto* to = reinterpret_cast<T*>(e);
  for (int64_t i = 0; i < n; ++i) {
    const T yes = mask[i] != 0 ? static_cast<T>(~T{0}) : T{0};
    to[i] = static_cast<T>(((x[i] ^ y[i]) & yes) ^ y[i]);
  }
}
template <typename T, typename F>
void each_bits(const std::byte* a, const std::byte* b, std::byte* e, int64_t n, F f) {
  const auto *x = reinterpret_cast<const T*>(a), *y = reinterpret_cast<const T*>(b);
  auto* to = reinterpret_cast<T*>(e);
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(f(x[i], y[i]));
}
void convert_each(DType from, DType result, const std::byte* a, std::byte* e, int64_t n) {
  auto* to = reinterpret_cast<float*>(e);
  if (result == DType::kPred) {
    each_holds<float>(a, a, e, n, [](float x, float) { return x != 0; });
  } else if (from == DType::kPred) {
    const auto* x = reinterpret_cast<const uint8_t*>(a);
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(x[i]);
  } else {
    const auto* x = reinterpret_cast<const int32_t*>(a);
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(x[i]);
  }
}

// Whether n results have the bits that are expected; zeros of either sign are equal, and any two
// NaNs.
bool same_results(DType dtype, const std::byte* x, const std::byte* expected, int64_t n) {
  if (screen::same_bytes(x, expected, static_cast<size_t>(n) * size_of(dtype))) return true;
  if (dtype != DType::kF32) return false;
  const auto *a = reinterpret_cast<const uint32_t*>(x),
             *b = reinterpret_cast<const uint32_t*>(expected);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t p = a[i] & 0x7FFFFFFFu, q = b[i] & 0x7FFFFFFFu;
    const bool zeros = p == 0 && q == 0, nans = p > 0x7F800000u && q > 0x7F800000u;
    if (a[i] != b[i] && !zeros && !nans) return false;
  }
  return true;
}

using screen::D4;

// Adds n elements, rows of `columns`, to the sums and the sums of sizes of the columns. Few columns
// that divide 16 are added as rows of 16.
void add_rows(const float* x, int64_t n, int64_t columns, double* value, double* size) {
  constexpr int64_t kWide = 16;
  if (columns < kWide && kWide % columns == 0) {
    double lanes[kWide] = {}, sizes[kWide] = {};
    const int64_t whole = n / kWide * kWide;
    if (whole > 0) add_rows(x, whole, kWide, lanes, sizes);
    for (int64_t l = 0; l < kWide; ++l)
      value[l % columns] += lanes[l], size[l % columns] += sizes[l];
    for (int64_t i = whole; i < n; ++i) {
      value[i % columns] += static_cast<double>(x[i]);
      size[i % columns] += std::fabs(static_cast<double>(x[i]));
    }
    return;
  }
  int64_t c = 0;
  for (; c + kWide <= columns; c += kWide) {
    D4 v[4] = {D4::of(value + c), D4::of(value + c + 4), D4::of(value + c + 8),
               D4::of(value + c + 12)};
    D4 s[4] = {D4::of(size + c), D4::of(size + c + 4), D4::of(size + c + 8), D4::of(size + c + 12)};
    for (int64_t i = c; i < n; i += columns) {
      for (int k = 0; k < 4; ++k) {
        const D4 t = D4::of(x + i + 4 * k);
        v[k] = v[k] + t;
        s[k] = s[k] + abs(t);
      }
    }
    for (int k = 0; k < 4; ++k) v[k].store(value + c + 4 * k), s[k].store(size + c + 4 * k);
  }
  for (int64_t i = 0; i < n; i += columns) {
    for (int64_t j = c; j < columns; ++j) {
      const auto t = static_cast<double>(x[i + j]);
      value[j] += t;
      size[j] += std::fabs(t);
    }
  }
}
void larger_rows(const float* x, int64_t n, int64_t columns, double* most) {
  for (int64_t i = 0; i < n; i += columns) {
    for (int64_t j = 0; j < columns; ++j)
      most[j] = static_cast<double>(screen::larger(static_cast<float>(most[j]), x[i + j]));
  }
}

}  // namespace

struct GroupScreen::Compiler {
  GroupScreen& s;
  const Graph& graph;
  const FusionGroup& group;
  std::map<ValueId, Place> places;
  std::map<std::tuple<ValueId, int64_t, int64_t>, Place> broadcasts;

  void choose_block() {
    int64_t period = 1;
    for (const FusedOp& op : group.ops) {
      if (graph.op(op.id).kind == OpKind::kReduce) s.columns_ = reduce_columns(graph, op.id);
      for (const Access& a : op.operands) {
        const int64_t p = a.inner * a.period;
        if (a.period > 1 && p <= kMaxPeriod && p < s.elements_) period = std::max(period, p);
      }
    }
    if (s.columns_ > 0) period = s.columns_;
    s.block_ = period * std::max<int64_t>(1, screen::kChunk / period);
    int64_t range = std::max<int64_t>(screen::kRange, s.block_);
    if (s.columns_ > 0) range = std::max(range, (s.elements_ + kMaxPieces - 1) / kMaxPieces);
    s.range_ = (range + s.block_ - 1) / s.block_ * s.block_;
  }

  int buffer() { return s.sources_ + s.stored_ + s.buffers_++; }

  Place operand(const Access& a) {
    if (const auto it = places.find(a.source); it != places.end()) return it->second;
    const auto source =
        static_cast<int>(std::ranges::find(group.sources, a.source) - group.sources.begin());
    const size_t size = size_of(graph.type(a.source).dtype);
    if (a.inner == 1 && a.period == s.elements_) return {source, size};
    const auto [it, is_new] = broadcasts.try_emplace({a.source, a.inner, a.period});
    if (!is_new) return it->second;
    const bool kept = a.period == 1 || s.block_ % (a.inner * a.period) == 0;
    it->second = {buffer(), 0};
    if (!kept) {
      s.nodes_.emplace_back();
      s.nodes_.back().view = static_cast<int>(s.views_.size());
      s.nodes_.back().out = it->second;
    }
    s.views_.push_back({source, a, size, it->second, kept});
    return it->second;
  }

  void compile(const FusedOp& fused) {
    Node node;
    node.op = &graph.op(fused.id);
    for (const Access& a : fused.operands) node.in[node.inputs++] = operand(a);
    node.operand = graph.type(fused.operands[0].source).dtype;
    const auto stored = std::ranges::find(group.stored, fused.id);
    if (stored != group.stored.end()) node.stored = static_cast<int>(stored - group.stored.begin());
    if (node.op->kind == OpKind::kReduce) {
      node.out.index = s.folds_++;
    } else if (has_ulps(node.op->kind)) {  // later ops read the engine's own result
      node.out = {s.sources_ + node.stored, size_of(node.op->type.dtype)};
    } else {
      node.out = {buffer(), 0};
    }
    places[fused.id] = node.out;
    s.nodes_.push_back(node);
  }

  // Gives buffers whose last reader has run to later nodes, so that they stay in L1.
  void share_buffers() {
    const int first = s.sources_ + s.stored_;
    std::map<int, size_t> last;
    std::map<int, int> name;
    for (size_t i = 0; i < s.nodes_.size(); ++i) {
      for (int j = 0; j < s.nodes_[i].inputs; ++j) last[s.nodes_[i].in[j].index] = i;
    }
    int count = first;
    for (View& view : s.views_) {
      if (view.kept) view.out.index = name[view.out.index] = count++;
    }
    const int shared = count;
    std::vector<int> free;
    for (size_t i = 0; i < s.nodes_.size(); ++i) {
      Node& node = s.nodes_[i];
      std::vector<int> over;
      for (int j = 0; j < node.inputs; ++j) {
        int& index = node.in[j].index;
        if (index < first) continue;
        const bool ends = last[index] == i;
        index = name[index];
        if (ends && index >= shared && std::ranges::find(over, index) == over.end())
          over.push_back(index);
      }
      const bool folds = node.op != nullptr && node.op->kind == OpKind::kReduce;
      if (!folds && node.out.index >= first) {
        if (free.empty()) free.push_back(count++);
        node.out.index = name[node.out.index] = free.back();
        free.pop_back();
        if (node.view >= 0) s.views_[static_cast<size_t>(node.view)].out = node.out;
      }
      free.insert(free.end(), over.begin(), over.end());
    }
    s.buffers_ = count - first;
  }
};

std::optional<GroupScreen> GroupScreen::make(const Capabilities& declared, const Graph& graph,
                                             const FusionGroup& group) {
  if (!declared.declares_arithmetic) return std::nullopt;
  GroupScreen s(declared);
  s.elements_ = group.elements;
  s.sources_ = static_cast<int>(group.sources.size());
  s.stored_ = static_cast<int>(group.stored.size());
  for (const FusedOp& op : group.ops) {
    const bool shown = std::ranges::find(group.stored, op.id) != group.stored.end();
    if (!computes(declared, graph, op) || (has_ulps(graph.op(op.id).kind) && !shown))
      return std::nullopt;
  }
  Compiler compiler{s, graph, group, {}, {}};
  compiler.choose_block();
  for (const FusedOp& op : group.ops) compiler.compile(op);
  compiler.share_buffers();
  return s;
}

bool GroupScreen::run_node(const Node& node, std::byte* const* table, int64_t at, int64_t n) const {
  const std::byte* in[3] = {};
  for (int j = 0; j < node.inputs; ++j) in[j] = pointer(table, node.in[j], at);
  std::byte* const e = table[node.out.index];
  const DType result = node.op->type.dtype;
  const bool flushes = declared_.flush;
  using screen::flush_all;
  switch (node.op->kind) {
    case OpKind::kAdd:
      each_of_two(in[0], in[1], e, n, [](float a, float b) { return a + b; });
      break;
    case OpKind::kSubtract:
      each_of_two(in[0], in[1], e, n, [](float a, float b) { return a - b; });
      break;
    case OpKind::kMultiply:
      each_of_two(in[0], in[1], e, n, [](float a, float b) { return multiplied(a, b); });
      break;
    case OpKind::kDivide:
      each_of_two(in[0], in[1], e, n, [](float a, float b) { return a / b; });
      break;
    case OpKind::kMaximum:
      each_of_two(in[0], in[1], e, n, [](float a, float b) { return screen::largest(a, b); });
      if (flushes) flush_all(reinterpret_cast<float*>(e), reinterpret_cast<float*>(e), n);
      break;
    case OpKind::kMinimum:
      each_of_two(in[0], in[1], e, n, [](float a, float b) { return -screen::largest(-a, -b); });
      if (flushes) flush_all(reinterpret_cast<float*>(e), reinterpret_cast<float*>(e), n);
      break;
    case OpKind::kSqrt:
      screen::square_roots(reinterpret_cast<const float*>(in[0]), reinterpret_cast<float*>(e), n);
      break;
    case OpKind::kNegate:
      each_bits<uint32_t>(in[0], in[0], e, n, [](uint32_t a, uint32_t) { return a ^ 0x80000000u; });
      break;
    case OpKind::kAbs:
      each_bits<uint32_t>(in[0], in[0], e, n, [](uint32_t a, uint32_t) { return a & 0x7FFFFFFFu; });
      break;
    case OpKind::kAnd:
      each_bits<uint8_t>(in[0], in[1], e, n, [](uint8_t a, uint8_t b) { return a & b; });
      break;
    case OpKind::kOr:
      each_bits<uint8_t>(in[0], in[1], e, n, [](uint8_t a, uint8_t b) { return a | b; });
      break;
    case OpKind::kXor:
      each_bits<uint8_t>(in[0], in[1], e, n, [](uint8_t a, uint8_t b) { return a ^ b; });
      break;
    case OpKind::kCompare:
      node.operand == DType::kF32
          ? compare_each<float>(node.op->attrs.compare, in[0], in[1], e, n)
          : compare_each<int32_t>(node.op->attrs.compare, in[0], in[1], e, n);
      break;
    case OpKind::kSelect:
      size_of(result) == 1 ? select_each<uint8_t>(in[0], in[1], in[2], e, n)
                           : select_each<uint32_t>(in[0], in[1], in[2], e, n);
      break;
    case OpKind::kConvert:
      convert_each(node.operand, result, in[0], e, n);
      break;
    default: {  // has_ulps: compare the engine's result, which stays
      const auto* x = reinterpret_cast<const float*>(pointer(table, node.out, at));
      for (int64_t i = 0; i < n; i += screen::kChunk) {
        if (!screen::function_agrees(declared_, node.op->kind, result,
                                     reinterpret_cast<const float*>(in[0]) + i, x + i,
                                     std::min(screen::kChunk, n - i)))
          return false;
      }
      return true;
    }
  }
  if (node.stored < 0) return true;
  const Place stored{sources_ + node.stored, size_of(result)};
  return same_results(result, pointer(table, stored, at), e, n);
}

// Elements [begin, end) of one job. sums[fold][value, size][column]
bool GroupScreen::piece(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                        int64_t begin, int64_t end, double* sums) const {
  constexpr size_t kElement = 4;  // bytes of an element of a buffer
  thread_local std::vector<std::byte> memory;
  const size_t bytes = (static_cast<size_t>(block_) * kElement + 63) / 64 * 64;
  memory.resize(std::max(memory.size(), static_cast<size_t>(buffers_) * bytes));
  std::vector<std::byte*> table;
  for (const Tensor& t : inputs) table.push_back(const_cast<std::byte*>(t.raw()));
  for (const Tensor& t : outputs) table.push_back(const_cast<std::byte*>(t.raw()));
  for (int i = 0; i < buffers_; ++i)
    table.push_back(memory.data() + static_cast<size_t>(i) * bytes);

  const DenormalsAreZero scope(declared_.flush);
  const auto expand = [&](const View& view, int64_t at, int64_t n) {
    const auto* from = table[static_cast<size_t>(view.source)];
    auto* to = table[static_cast<size_t>(view.out.index)];
    if (view.size == 1) {
      spread_elements(reinterpret_cast<const uint8_t*>(from), view.access, at,
                      reinterpret_cast<uint8_t*>(to), n);
    } else {
      spread_elements(reinterpret_cast<const uint32_t*>(from), view.access, at,
                      reinterpret_cast<uint32_t*>(to), n);
    }
  };
  for (const View& view : views_) {
    if (view.kept) expand(view, begin, std::min(block_, end - begin));
  }
  for (int64_t at = begin; at < end; at += block_) {
    const int64_t n = std::min(block_, end - at);
    for (const Node& node : nodes_) {
      if (node.view >= 0) {
        expand(views_[static_cast<size_t>(node.view)], at, n);
      } else if (node.op->kind == OpKind::kReduce) {
        const auto* x = reinterpret_cast<const float*>(pointer(table.data(), node.in[0], at));
        double* const value = sums + 2 * node.out.index * columns_;
        if (node.op->attrs.reducer == Reducer::kMax) {
          larger_rows(x, n, columns_, value);
        } else {
          add_rows(x, n, columns_, value, value + columns_);
        }
      } else if (!run_node(node, table.data(), at, n)) {
        return false;
      }
    }
  }
  return true;
}

// Adds up the sums of the pieces of one job and compares them with the results of the reductions.
bool GroupScreen::sums_hold(std::span<const Tensor> outputs, const double* sums,
                            int64_t pieces) const {
  const auto columns = static_cast<size_t>(columns_);
  const auto terms = static_cast<double>(elements_) / static_cast<double>(columns_);
  for (const Node& node : nodes_) {
    if (node.op == nullptr || node.op->kind != OpKind::kReduce) continue;
    const bool max = node.op->attrs.reducer == Reducer::kMax;
    std::vector<double> value(columns, max ? -screen::kInfinity : 0), size(columns);
    for (int64_t p = 0; p < pieces; ++p) {
      const double* part = sums + 2 * (p * folds_ + node.out.index) * columns_;
      for (size_t c = 0; c < columns; ++c) {
        if (max) {
          value[c] = static_cast<double>(
              screen::larger(static_cast<float>(value[c]), static_cast<float>(part[c])));
        } else {
          value[c] += part[c];
          size[c] += part[columns + c];
        }
      }
    }
    const Tensor& output = outputs[static_cast<size_t>(node.stored)];
    if (max) {
      std::vector<float> most(value.begin(), value.end());
      if (!screen::same_numbers(output.as<float>().data(), most.data(), columns_)) return false;
    } else if (!screen::sums_agree({declared_, *node.op, {}, output, nullptr}, terms, value,
                                   size)) {
      return false;
    }
  }
  return true;
}

bool GroupScreen::plausible(std::span<const std::vector<Tensor>> inputs,
                            std::span<const std::vector<Tensor>> outputs, ThreadPool* pool) const {
  const auto jobs = static_cast<int64_t>(inputs.size());
  const int64_t pieces = (elements_ + range_ - 1) / range_, held = 2 * folds_ * columns_;
  std::vector<double> sums(static_cast<size_t>(jobs * pieces * held));
  for (const Node& node : nodes_) {
    if (node.op == nullptr || node.op->kind != OpKind::kReduce ||
        node.op->attrs.reducer != Reducer::kMax)
      continue;
    for (int64_t p = 0; p < jobs * pieces; ++p)
      std::fill_n(sums.data() + p * held + 2 * node.out.index * columns_, columns_,
                  -screen::kInfinity);
  }
  const bool small = jobs * elements_ < screen::kRange;
  if (!screen::all_pieces(small ? nullptr : pool, jobs * pieces, [&](int64_t i) {
        const auto job = static_cast<size_t>(i / pieces);
        const int64_t begin = i % pieces * range_;
        return piece(inputs[job], outputs[job], begin, std::min(elements_, begin + range_),
                     sums.data() + i * held);
      }))
    return false;
  for (int64_t job = 0; folds_ > 0 && job < jobs; ++job) {
    if (!sums_hold(outputs[static_cast<size_t>(job)], sums.data() + job * pieces * held, pieces))
      return false;
  }
  return true;
}

}  // namespace twinrun
