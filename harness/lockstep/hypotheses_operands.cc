// Hypotheses that recompute the op with the oracle: with other operands, in another arithmetic, or
// by another formula.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "harness/lockstep/hypotheses.h"
#include "program/ops/terms.h"

namespace twinrun {
namespace {

class Trials {
 public:
  Trials(const Suspect& s, std::vector<OpSignature>& out) : s_(s), out_(out) {}

  // Whether one hypothesis explains everything. Each trial costs as much as a replay, so stop then.
  bool done() const { return done_; }

  void values(std::string text, const std::function<double(int64_t)>& value,
              const std::function<double(int64_t)>& radius) {
    // Elements that are right must agree with the hypothesis, too: a sum without its last terms
    // lacks them in every element.
    int64_t explained = 0, contradicted = 0;
    size_t next = 0;
    for (int64_t i = 0; i < s_.op.type.elements(); ++i) {
      const bool agrees = oracle::ratio(s_.got(i), {value(i), radius(i)}) <= 1;
      const bool wrong = next < s_.wrong.size() && s_.wrong[next] == i;
      next += wrong ? 1 : 0;
      explained += wrong && agrees ? 1 : 0;
      contradicted += !wrong && !agrees ? 1 : 0;
    }
    const double share = static_cast<double>(explained) /
                         static_cast<double>(static_cast<int64_t>(s_.wrong.size()) + contradicted);
    done_ = done_ || share == 1;
    out_.push_back({std::move(text), share});
  }
  void result(std::string text, const OracleResult& r) {
    values(
        std::move(text), [&](int64_t i) { return r.value[static_cast<size_t>(i)]; },
        [&](int64_t i) {
          // An infinite radius would agree with anything and explains nothing.
          const double radius = r.radius[static_cast<size_t>(i)];
          return std::isfinite(radius) ? radius : -1;
        });
  }
  void as(std::string text, const Capabilities& declared, const Op& op,
          const std::vector<Tensor>& inputs) {
    if (!done_) result(std::move(text), eval_op(declared, op, inputs, s_.pool));
  }
  void with(std::string text, const std::vector<Tensor>& inputs) {
    as(std::move(text), s_.declared, s_.op, inputs);
  }

 private:
  const Suspect& s_;
  std::vector<OpSignature>& out_;
  bool done_ = false;
};

Tensor mapped(const Tensor& t, float (*f)(float)) {
  if (t.dtype() != DType::kF32) return t;
  Tensor out = t.clone();
  for (float& v : out.as<float>()) v = f(v);
  return out;
}
float cut(float x) { return bf16_to_f32(bf16_truncate(x)); }
float narrow(float x) { return bf16_to_f32(bf16_round(x)); }

void stale_operands(const Suspect& s, Trials& trials) {
  for (size_t i = 0; i < s.past.operands.size() && i < s.inputs.size(); ++i) {
    const Tensor& old = s.past.operands[i];
    if (!old.valid() || old.type() != s.inputs[i].type() || old.same_bits(s.inputs[i])) continue;
    std::vector<Tensor> inputs = s.inputs;
    inputs[i] = old;
    trials.with(
        s.op.kind == OpKind::kAllReduce
            ? fmt::format("the sum with core {}'s part of the step before (stale)", i)
            : fmt::format("a result computed from operand {} of the step before (stale)", i),
        inputs);
  }
}

// The memory of a matrix read along the other dimension: for a square matrix, its transpose.
Tensor misread(const Tensor& t) {
  const int64_t rows = t.dims()[0], columns = t.dims()[1];
  Tensor out = t.clone();
  const auto from = t.as<const float>();
  const auto to = out.as<float>();
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j)
      to[static_cast<size_t>(i * columns + j)] = from[static_cast<size_t>(j * rows + i)];
  }
  return out;
}

// Dots: wrong operand rounding, a part of k left out or added twice, an operand read in transposed
// order.
void of_dot(const Suspect& s, Trials& trials) {
  std::vector<Tensor> operands;
  for (const Tensor& t : s.inputs) operands.push_back(mapped(t, cut));
  trials.with("operands cut toward zero to bfloat16 instead of rounded to nearest", operands);
  for (const DotPrecision precision :
       {DotPrecision::kBf16, DotPrecision::kBf16x3, DotPrecision::kBf16x6, DotPrecision::kF32}) {
    if (precision == s.declared.precision) continue;
    Capabilities other = s.declared;
    other.precision = precision;
    trials.as(fmt::format("a result computed at precision '{}' where '{}' is declared",
                          to_string(precision), to_string(s.declared.precision)),
              other, s.op, s.inputs);
  }
  if (s.op.attrs.batch_dims == 0 && s.op.attrs.groups == 1) {
    const int64_t k = k_size(s.op, s.inputs);
    for (const int64_t tile : {128, 64, 32, 16, 8, 1}) {
      if (trials.done()) return;
      const int64_t tail = k % tile != 0 ? k % tile : std::min<int64_t>(k, tile);
      const OracleResult without =
          eval_op(s.declared, s.op, without_k_tail(s.op, s.inputs, tail), s.pool);
      trials.result(fmt::format("the last {} of {} terms of the sum are missing", tail, k),
                    without);
      if (trials.done()) return;
      trials.values(
          fmt::format("the last {} of {} terms of the sum are counted twice", tail, k),
          [&](int64_t i) { return 2 * s.expected(i) - without.value[static_cast<size_t>(i)]; },
          [&](int64_t i) { return 2 * s.radius(i) + without.radius[static_cast<size_t>(i)]; });
      // Padding cells at the end of a tile that hold the first terms of the sum.
      const int64_t cells = (tile - k % tile) % tile;
      if (trials.done() || cells == 0 || cells >= k) continue;
      const OracleResult head =
          eval_op(s.declared, s.op, without_k_tail(s.op, s.inputs, k - cells), s.pool);
      trials.values(
          fmt::format("the first {} of {} terms of the sum are counted twice (a tile of {})", cells,
                      k, tile),
          [&](int64_t i) { return s.expected(i) + head.value[static_cast<size_t>(i)]; },
          [&](int64_t i) { return 2 * s.radius(i) + head.radius[static_cast<size_t>(i)]; });
    }
  }
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    const Tensor& t = s.inputs[i];
    if (t.type().rank() != 2 || t.dtype() != DType::kF32) continue;
    operands = s.inputs;
    operands[i] = misread(t);
    trials.with(fmt::format("operand {} read in transposed order", i), operands);
  }
}

// All-reduce: a core's contribution is missing, doubled or replaced, or sent in bfloat16.
void of_all_reduce(const Suspect& s, Trials& trials) {
  for (size_t core = 0; core < s.inputs.size() && !trials.done(); ++core) {
    std::vector<Tensor> parts = s.inputs;
    parts[core] = Tensor::zeros(parts[core].type());
    trials.with(fmt::format("the sum without core {}", core), parts);
    parts = s.inputs;
    parts.push_back(parts[core]);
    trials.with(fmt::format("the sum with core {} counted twice", core), parts);
    for (size_t other = 0; other < s.inputs.size() && !trials.done(); ++other) {
      if (other == core) continue;
      parts = s.inputs;
      parts[core] = parts[other];
      trials.with(fmt::format("the sum with core {} instead of core {}", other, core), parts);
    }
  }
  if (trials.done() || s.subject.dtype() != DType::kF32) return;
  // If the result is in bfloat16, every hop may have rounded the running sum; otherwise only the
  // contributions were rounded.
  std::vector<Tensor> parts;
  for (const Tensor& t : s.inputs) parts.push_back(mapped(t, narrow));
  Op narrow_op = s.op;
  const OracleResult narrowed = eval_op(s.declared, narrow_op, parts, s.pool);
  std::vector<double> magnitude(narrowed.value.size(), 0.0);
  for (const Tensor& t : parts) {
    for (size_t i = 0; i < magnitude.size(); ++i) magnitude[i] += std::fabs(t.as<const float>()[i]);
  }
  const bool bf16_result = s.share([&](int64_t i) {
    return (to_bits(static_cast<float>(s.got(i))) & 0xFFFFu) == 0;
  }) == 1;
  if (bf16_result) {
    trials.values(
        "bfloat16 on the wire", [&](int64_t i) { return narrowed.value[static_cast<size_t>(i)]; },
        [&](int64_t i) {
          return static_cast<double>(parts.size()) * 0x1p-8 * magnitude[static_cast<size_t>(i)];
        });
  } else {
    trials.result("contributions rounded to bfloat16 on the wire", narrowed);
  }
}

constexpr OpKind kBinary[] = {OpKind::kAdd,    OpKind::kSubtract, OpKind::kMultiply,
                              OpKind::kDivide, OpKind::kMaximum,  OpKind::kMinimum};

bool splat(const Tensor& t) {
  if (t.dtype() != DType::kF32 || t.elements() < 2) return false;
  const auto x = t.as<const float>();
  return std::ranges::all_of(x, [&](float v) { return to_bits(v) == to_bits(x[0]); });
}

// The value that the constant operand `which` must have for the op to give the subject's element i.
double solved(const Suspect& s, size_t which, int64_t i) {
  const double got = s.got(i), other = number_at(s.inputs[1 - which], i);
  switch (s.op.kind) {
    case OpKind::kAdd:
      return got - other;
    case OpKind::kSubtract:
      return which == 0 ? got + other : other - got;
    case OpKind::kMultiply:
      return got / other;
    default:
      return which == 0 ? got * other : other / got;
  }
}

// a + f b in place of a + b: an update of another size.
void part_of_operand(const Suspect& s, Trials& trials) {
  const double sign = s.op.kind == OpKind::kAdd ? 1 : -1;
  double sb = 0, bb = 0;
  for (const int64_t i : s.wrong) {
    const double b = sign * number_at(s.inputs[1], i), moved = s.got(i) - number_at(s.inputs[0], i);
    if (!std::isfinite(b) || !std::isfinite(moved)) continue;
    sb += moved * b;
    bb += b * b;
  }
  if (!(bb > 0) || s.wrong.size() < 3) return;
  for (const double f : {std::stod(fmt::format("{:.2g}", sb / bb)), sb / bb}) {
    // Rounding alone changes the factor by this much.
    if (f == 0 || std::fabs(f - 1) < 1e-3) continue;
    trials.values(
        fmt::format("its second input times {:.4g}", f),
        [&](int64_t i) { return number_at(s.inputs[0], i) + f * sign * number_at(s.inputs[1], i); },
        [&](int64_t i) {
          const double b = std::fabs(f * number_at(s.inputs[1], i));
          return s.radius(i) + 0x1p-23 * (b + std::fabs(s.got(i)));
        });
    if (trials.done()) return;
  }
}

// Sums over dimensions: the first or the last term is missing.
void of_reduce(const Suspect& s, Trials& trials) {
  if (s.op.attrs.reducer == Reducer::kMax || s.inputs[0].dtype() != DType::kF32) return;
  for (const bool last : {false, true}) {
    std::vector<int64_t> ends(static_cast<size_t>(s.op.type.elements()), -1);
    for_each_term(s.op, s.inputs, [&](const SumTerm& t) {
      int64_t& end = ends[static_cast<size_t>(t.result)];
      if (last || end < 0) end = t.b;
    });
    Tensor x = s.inputs[0].clone();
    for (const int64_t end : ends) {
      if (end >= 0) x.as<float>()[static_cast<size_t>(end)] = 0;
    }
    trials.with(fmt::format("the {} term of the sum is missing", last ? "last" : "first"), {x});
  }
}

// Binary ops: another operation, exchanged operands, another constant.
void of_binary(const Suspect& s, Trials& trials) {
  if (s.subject.dtype() != DType::kF32) return;
  for (size_t i = 0; i < 2; ++i) {
    const bool solvable = s.op.kind != OpKind::kMaximum && s.op.kind != OpKind::kMinimum;
    if (!solvable || !splat(s.inputs[i]) || s.wrong.size() < 3 || trials.done()) continue;
    std::vector<double> wanted;
    for (const int64_t e : s.wrong) {
      const double c = solved(s, i, e);
      if (std::isfinite(c)) wanted.push_back(c);
    }
    if (wanted.empty()) continue;
    const auto middle = wanted.begin() + static_cast<std::ptrdiff_t>(wanted.size() / 2);
    std::nth_element(wanted.begin(), middle, wanted.end());
    // Constants in source code have few digits: try three digits first.
    for (const double c : {std::stod(fmt::format("{:.3g}", *middle)), *middle}) {
      std::vector<Tensor> inputs = s.inputs;
      inputs[i] = inputs[i].clone();
      std::ranges::fill(inputs[i].as<float>(), static_cast<float>(c));
      trials.with(
          fmt::format("its constant taken for {:.3g} (it is {:.3g})", c, number_at(s.inputs[i], 0)),
          inputs);
    }
  }
  if (s.op.kind == OpKind::kAdd || s.op.kind == OpKind::kSubtract) part_of_operand(s, trials);
  for (const OpKind kind : kBinary) {
    if (kind == s.op.kind || trials.done()) continue;
    Op other = s.op;
    other.kind = kind;
    trials.as(fmt::format("{} instead of {}", name_of(kind), name_of(s.op.kind)), s.declared, other,
              s.inputs);
  }
  trials.with("its operands exchanged", {s.inputs[1], s.inputs[0]});
}

// scatter_add: the last contribution to a row, or the first, in place of their sum.
void of_scatter_add(const Suspect& s, Trials& trials) {
  for (const bool last : {true, false}) {
    std::vector<double> kept(static_cast<size_t>(s.op.type.elements()), 0.0);
    std::vector<bool> taken(kept.size(), false);
    for_each_term(s.op, s.inputs, [&](const SumTerm& t) {
      const auto i = static_cast<size_t>(t.result);
      if (last || !taken[i]) kept[i] = number_at(s.inputs[1], t.b);
      taken[i] = true;
    });
    trials.values(
        fmt::format("assignment instead of addition: the {} contribution only",
                    last ? "last" : "first"),
        [&](int64_t i) { return kept[static_cast<size_t>(i)]; }, [](int64_t) { return 0.0; });
  }
}

// Gradient of max pooling: assigned instead of added, or ties resolved differently.
void of_select_and_scatter(const Suspect& s, Trials& trials) {
  struct Way {
    const char* text;
    bool add;
    Ties ties;
  };
  for (const Way& way :
       {Way{"assignment instead of addition where windows overlap", false, Ties::kFirst},
        Way{"ties go to the last maximum of a window, not to the first", true, Ties::kLast},
        Way{"every maximum of a window that ties gets the gradient", true, Ties::kAll}}) {
    std::vector<double> dx(static_cast<size_t>(s.op.type.elements()), 0.0), size(dx.size(), 0.0);
    for_each_term(
        s.op, s.inputs,
        [&](const SumTerm& t) {
          const double dy = number_at(s.inputs[1], t.b);
          double& sum = dx[static_cast<size_t>(t.result)];
          sum = way.add ? sum + dy : dy;
          size[static_cast<size_t>(t.result)] += std::fabs(dy);
        },
        way.ties);
    // At most as many binary32 additions as windows contain an element.
    const Window& w = s.op.attrs.window;
    const auto depth = static_cast<double>(w.size[0] * w.size[1]);
    trials.values(
        way.text, [&](int64_t i) { return dx[static_cast<size_t>(i)]; },
        [&](int64_t i) { return way.add ? depth * 0x1p-24 * size[static_cast<size_t>(i)] : 0.0; });
    if (trials.done()) return;
  }
}

}  // namespace

std::vector<OpSignature> from_operands(const Suspect& s) {
  std::vector<OpSignature> out;
  if (s.subject.dtype() != DType::kF32 || s.wrong.empty()) return out;
  Trials trials(s, out);
  stale_operands(s, trials);
  if (trials.done()) return out;
  if (class_of(s.op.kind) == OpClass::kDot) of_dot(s, trials);
  if (s.op.kind == OpKind::kAllReduce) of_all_reduce(s, trials);
  if (std::ranges::find(kBinary, s.op.kind) != std::end(kBinary) && s.inputs.size() == 2)
    of_binary(s, trials);
  if (s.op.kind == OpKind::kReduce) of_reduce(s, trials);
  if (s.op.kind == OpKind::kScatterAdd) of_scatter_add(s, trials);
  if (s.op.kind == OpKind::kSelectAndScatter) of_select_and_scatter(s, trials);
  return out;
}

}  // namespace twinrun
