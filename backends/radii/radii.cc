// Walks a program op by op, with intervals, and holds what was found against them.
#include "backends/radii/radii.h"

#include <fmt/format.h>

#include <bit>

#include "backends/radii/internal.h"

namespace twinrun {
namespace radii {

Known fresh(const Op& op) {
  const TensorType type{DType::kF64, op.type.dims};
  Known out;
  out.value = Tensor::empty(type), out.low = Tensor::empty(type), out.high = Tensor::empty(type);
  return out;
}

std::string stem_of(const Op& op) {
  const size_t end = op.name.find_last_not_of("0123456789:");
  return op.name.substr(0, end == std::string::npos ? 0 : end + 1);
}
bool Known::one_sum_with(const Op& op) const { return mass.valid() && stem == stem_of(op); }

namespace {

// The finalizer of MurmurHash3.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

// Predicates and integers of binary64 planes in their own type. An integer that may be beyond its
// type has wrapped, so it may be any.
Tensor narrowed(const Tensor& t, DType to) {
  if (t.dtype() == to) return t;
  Tensor out = Tensor::empty({to, t.dims()});
  const auto from = t.as<const double>();
  for (size_t i = 0; i < from.size(); ++i) {
    if (to == DType::kPred) {
      out.as<uint8_t>()[i] = from[i] != 0 ? 1 : 0;
    } else {
      out.as<int32_t>()[i] = static_cast<int32_t>(std::clamp(from[i], -0x1p31, 0x1p31 - 1));
    }
  }
  return out;
}
void narrow(Known& k, DType to) {
  if (is_floating(to) || k.value.dtype() != DType::kF64) return;
  if (to == DType::kI32 && !k.exact()) {
    const radii::Planes p = planes_of(k);
    for (int64_t i = 0; i < k.value.elements(); ++i) {
      if (p.low[i] < -0x1p31 || p.high[i] >= 0x1p31) p.low[i] = -0x1p31, p.high[i] = 0x1p31 - 1;
    }
  }
  k.value = narrowed(k.value, to);
  if (!k.exact()) k.low = narrowed(k.low, to), k.high = narrowed(k.high, to);
}

// Leaves out ends that say nothing, and says why some elements are not known.
void settle(Known& k, const Site& site) {
  k.why = k.why.empty() ? "" : k.why;
  if (k.exact()) return;
  bool exact = true, lost = false;
  const radii::Planes p = planes_of(k);
  for (int64_t i = 0; i < k.value.elements(); ++i) {
    const Interval e{p.value[i], p.low[i], p.high[i]};
    exact = exact && certain(e);
    lost = lost || e.anything();
  }
  if (exact) k.low = {}, k.high = {};
  if (!lost) {
    if (site.floats()) k.why.clear();
    return;
  }
  if (!k.why.empty()) return;
  for (const Known* x : site.x) {
    if (k.why.empty()) k.why = x->why;
  }
  if (k.why.empty()) k.why = site.op.name + ": within the radii it may overflow or have no value";
}

Known unknown(const Op& op, std::string why) {
  Known k = fresh(op);
  std::ranges::fill(k.value.as<double>(), 0.0);
  std::ranges::fill(k.low.as<double>(), -kInfinity);
  std::ranges::fill(k.high.as<double>(), kInfinity);
  k.why = std::move(why);
  return k;
}

Known source(const Site& site) {
  Known out = by_oracle(site);
  if (!site.floats()) return out;
  const Tensor given = out.value;
  out = fresh(site.op);
  const Planes to = planes_of(out);
  for (int64_t i = 0; i < given.elements(); ++i) to.set(i, site.rules().read(number_at(given, i)));
  return out;
}

Known evaluated(const Site& site) {
  switch (class_of(site.op.kind)) {
    case OpClass::kSource:
    case OpClass::kRandom:
      if (!site.all_exact()) return {};
      return source(site);
    case OpClass::kMove:
      if (site.op.kind == OpKind::kSelect || site.op.kind == OpKind::kNegate ||
          site.op.kind == OpKind::kAbs)
        return eval_pointwise(site);
      return eval_move(site);
    case OpClass::kElementwise:
      return eval_pointwise(site);
    case OpClass::kDot:
      return eval_product(site);
    case OpClass::kReduce:
      return eval_sum(site);
    case OpClass::kWindow:
      return eval_window(site);
    case OpClass::kCollective:  // of one core
      return *site.x[0];
  }
  return {};
}

// Of a parameter.
Known given_value(const Tensor& t, const Op& op, const FusedArithmetic& may) {
  Known k;
  k.value = t;
  if (!is_floating(op.type.dtype)) return k;
  k = fresh(op);
  const Rules rules(may, op.type.dtype);
  const Planes to = planes_of(k);
  bool exact = true;
  for (int64_t i = 0; i < t.elements(); ++i) {
    const Interval e = rules.read(number_at(t, i));
    exact = exact && certain(e);
    to.set(i, e);
  }
  if (exact) k.low = {}, k.high = {};
  return k;
}

// Moves each element by 1 to 1.5 times its error (so that errors of equal size cannot cancel in all
// samples), up or down, as the number and the op decide: equal numbers err alike. Sample 0 moves
// none. What may have overflowed has no likely value.
void perturb(Known& k, ValueId id, uint64_t sample, ThreadPool* pool) {
  if (k.exact()) return;
  const radii::Planes p = planes_of(k);
  const uint64_t key = mixed(mixed(sample + 1) + static_cast<uint64_t>(id));
  oracle::for_each_element(pool, k.value.elements(), [&](int64_t i) {
    const Interval e{p.value[i], p.low[i], p.high[i]};
    if (!oracle::finite(e.low) || !oracle::finite(e.high)) {
      if (!e.exact()) p.value[i] = std::nan("");
    } else if (sample > 0) {
      const uint64_t drawn = mixed(std::bit_cast<uint64_t>(e.value) ^ key);
      const double times = 1 + 0.5 * static_cast<double>(drawn >> 40) * 0x1p-24;
      p.value[i] += times * ((drawn & 1) != 0 ? e.high - e.value : e.low - e.value);
    }
  });
  k.low = {}, k.high = {};
}

struct Draw {
  uint64_t sample = 0;
  std::map<ValueId, Tensor> errors;  // of products, which change little from sample to sample
};

class Walk {
 public:
  Walk(const Program& program, const ReplayArguments& given, const FusedArithmetic& may,
       ThreadPool* pool, Draw* draw = nullptr)
      : draw_(draw),
        program_(program),
        graph_(program.graph),
        given_(given),
        may_(may),
        pool_(pool),
        values_(static_cast<size_t>(graph_.size())) {}

  Result<std::vector<Bounded>> run(const std::vector<ValueId>& wanted) {
    plan(wanted);
    TWINRUN_RETURN_IF_ERROR(bind());
    std::vector<Bounded> out(wanted.size());
    for (ValueId id = 0; id < graph_.size(); ++id) {
      if (!needed_[at_(id)]) continue;
      Known& k = values_[at_(id)];
      const Op& op = graph_.op(id);
      if (op.kind != OpKind::kParameter) k = evaluate(id);
      if (draw_ != nullptr) k.low = {}, k.high = {};  // of a parameter
      for (size_t w = 0; w < wanted.size(); ++w) {
        if (wanted[w] == id) out[w] = k, out[w].type = op.type;
      }
      for (const ValueId operand : read_by(op)) {
        if (last_[at_(operand)] == id) values_[at_(operand)] = {};
      }
      if (last_[at_(id)] == id) k = {};
    }
    return out;
  }

 private:
  static size_t at_(ValueId id) { return static_cast<size_t>(id); }
  std::vector<ValueId> read_by(const Op& op) const {
    std::vector<ValueId> out = op.operands;
    for (const ValueId id : also_read(graph_, op)) out.push_back(id);
    return out;
  }

  void plan(const std::vector<ValueId>& wanted) {
    needed_.assign(values_.size(), false);
    last_.resize(values_.size());
    later_.assign(values_.size(), 1);
    for (const ValueId id : wanted) needed_[at_(id)] = true;
    for (ValueId id = 0; id < graph_.size(); ++id) last_[at_(id)] = id;
    for (ValueId id = graph_.size(); id-- > 0;) {
      if (!needed_[at_(id)]) continue;
      const Op& op = graph_.op(id);
      for (const ValueId operand : read_by(op)) {
        needed_[at_(operand)] = true;
        last_[at_(operand)] = std::max(last_[at_(operand)], id);
        later_[at_(operand)] = std::max(later_[at_(operand)], later_through(op, id));
      }
    }
  }
  // Reductions of reductions, with moves between them, may become one.
  double later_through(const Op& op, ValueId id) const {
    const double later = later_[at_(id)];
    if (op.kind == OpKind::kReduce && op.attrs.reducer != Reducer::kMax)
      return later * static_cast<double>(graph_.type(op.operands[0]).elements()) /
             static_cast<double>(std::max<int64_t>(1, op.type.elements()));
    const bool moves = class_of(op.kind) == OpClass::kMove && op.kind != OpKind::kSelect;
    return moves || op.kind == OpKind::kConvert ? later : 1;
  }

  Status bind_one(ValueId id, const Tensor* tensor, const std::string& name) {
    if (!needed_[at_(id)]) return Ok{};
    const Op& op = graph_.op(id);
    if (tensor == nullptr || !tensor->valid())
      return Error{fmt::format("argument '{}' is missing", name), "", ""};
    if (tensor->type() != op.type)
      return Error{fmt::format("argument '{}' is {}; the program takes {}", name,
                               to_string(tensor->type()), to_string(op.type)),
                   "", ""};
    values_[at_(id)] = given_value(*tensor, op, may_);
    return Ok{};
  }
  Status bind() {
    if (program_.sharding.cores > 1)
      return Error{fmt::format("a program for {} cores; allowed: one", program_.sharding.cores), "",
                   ""};
    for (size_t i = 0; i < program_.state.size(); ++i) {
      TWINRUN_RETURN_IF_ERROR(bind_one(program_.state[i].id,
                                       i < given_.state.size() ? &given_.state[i] : nullptr,
                                       program_.state[i].name));
    }
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const std::string& name = program_.inputs[i].name;
      const Tensor* tensor = i < given_.inputs.size() ? &given_.inputs[i] : nullptr;
      const auto literal = given_.literals.find(name);
      if ((tensor == nullptr || !tensor->valid()) && literal != given_.literals.end())
        tensor = &literal->second;
      TWINRUN_RETURN_IF_ERROR(bind_one(program_.inputs[i].id, tensor, name));
    }
    return Ok{};
  }

  Known evaluate(ValueId id) {
    const Op& op = graph_.op(id);
    std::vector<const Known*> operands;
    for (const ValueId operand : read_by(op)) operands.push_back(&values_[at_(operand)]);
    Site site{graph_, op, may_, pool_, std::move(operands), later_[at_(id)]};
    if (draw_ != nullptr && class_of(op.kind) == OpClass::kDot) site.error = &draw_->errors[id];
    Known k = evaluated(site);
    if (!k.value.valid()) k = unknown(op, op.name + ": no rule for this op");
    if (draw_ != nullptr && k.value.dtype() == DType::kF64) {
      perturb(k, id, draw_->sample, pool_);
    } else if (k.value.dtype() == DType::kF64) {
      settle(k, site);
    }
    narrow(k, op.type.dtype);
    return k;
  }

  Draw* const draw_;  // nullptr: with intervals; else exact values that a sample perturbs
  const Program& program_;
  const Graph& graph_;
  const ReplayArguments& given_;
  const FusedArithmetic& may_;
  ThreadPool* pool_;
  std::vector<Known> values_;
  std::vector<bool> needed_;
  std::vector<ValueId> last_;
  std::vector<double> later_;
};

}  // namespace
}  // namespace radii

double Bounded::radius(int64_t i) const {
  const radii::Interval e = radii::at(*this, i);
  if (radii::certain(e)) return 0;
  const double r = std::fmax(e.value - e.low, e.high - e.value);
  return r == r ? r : radii::kInfinity;
}

Result<std::vector<Bounded>> replay_values(const Program& program, const ReplayArguments& given,
                                           const std::vector<ValueId>& wanted,
                                           const FusedArithmetic& may, ThreadPool* pool) {
  return radii::Walk(program, given, may, pool).run(wanted);
}

Result<std::vector<Bounded>> likely_values(const Program& program, const ReplayArguments& given,
                                           const std::vector<ValueId>& wanted,
                                           const FusedArithmetic& may, ThreadPool* pool,
                                           int samples) {
  FusedArithmetic likely = may;
  likely.independent = true;
  radii::Draw draw;
  TWINRUN_ASSIGN(std::vector<Bounded> out,
                 radii::Walk(program, given, likely, pool, &draw).run(wanted));
  std::vector<std::vector<double>> squares(out.size());
  for (size_t w = 0; w < out.size(); ++w)
    squares[w].assign(static_cast<size_t>(out[w].value.elements()), 0.0);
  for (int s = 1; s <= samples; ++s) {
    draw.sample = static_cast<uint64_t>(s);
    TWINRUN_ASSIGN(const std::vector<Bounded> drawn,
                   radii::Walk(program, given, likely, pool, &draw).run(wanted));
    for (size_t w = 0; w < out.size(); ++w) {
      for (size_t i = 0; i < squares[w].size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        const double moved = number_at(drawn[w].value, at) - number_at(out[w].value, at);
        squares[w][i] += moved * moved;
      }
    }
  }
  for (size_t w = 0; w < out.size(); ++w) {
    Bounded& b = out[w];
    const radii::Rules rules(may, b.type.dtype);
    const TensorType planes{DType::kF64, b.type.dims};
    b.low = Tensor::empty(planes), b.high = Tensor::empty(planes);
    bool lost = false;
    for (size_t i = 0; i < squares[w].size(); ++i) {
      const double v = number_at(b.value, static_cast<int64_t>(i));
      const double deviation = std::sqrt(squares[w][i] / samples);
      const double r =
          deviation != 0 ? 32 * deviation + rules.unit() * std::fabs(v) + oracle::kMinNormal : 0;
      const bool known = oracle::finite(v) && oracle::finite(r);
      lost = lost || !known;
      b.low.as<double>()[i] = known ? v - r : -radii::kInfinity;
      b.high.as<double>()[i] = known ? v + r : radii::kInfinity;
    }
    if (!lost) b.why.clear();
    if (lost && b.why.empty()) b.why = "it may overflow or have no value";
  }
  return out;
}

namespace {

// Adds up which part of a change is undecided.
class Undecided {
 public:
  void add(double change, double radius) {
    if (change == 0) return;
    ++moved_;
    if (!oracle::finite(change)) {
      // NaN, or an infinity: as decided as its interval is certain.
      open_ += radius == 0 ? 0 : 1;
      ++without_size_;
      return;
    }
    // Scaled, so that squares of tiny changes are no zeros.
    largest_ = std::fmax(largest_, change);
    changes_.push_back(change);
    radii_.push_back(std::fmin(radius, change));
  }
  int64_t moved() const { return moved_; }
  double share() const {
    if (moved_ == 0) return 0;
    double all = 0, open = 0;
    for (size_t i = 0; i < changes_.size(); ++i) {
      all += (changes_[i] / largest_) * (changes_[i] / largest_);
      open += (radii_[i] / largest_) * (radii_[i] / largest_);
    }
    const double sized = static_cast<double>(moved_ - without_size_);
    const double part = all > 0 ? open / all * sized : 0;
    return std::sqrt((part + static_cast<double>(open_)) / static_cast<double>(moved_));
  }

 private:
  int64_t moved_ = 0, without_size_ = 0, open_ = 0;
  double largest_ = 0;
  std::vector<double> changes_, radii_;
};

}  // namespace

FoundVerdict compare(const Bounded& expected, const Tensor& found, const Tensor* before) {
  FoundVerdict v;
  Undecided undecided;
  const bool is_float = expected.value.dtype() == DType::kF64;
  v.elements = found.elements();
  std::vector<double> radii;
  double largest = 0;
  for (int64_t i = 0; i < v.elements; ++i) {
    const radii::Interval e = radii::at(expected, i);
    const double x = number_at(found, i);
    const bool open = !radii::certain(e) && (!oracle::finite(e.low) || !oracle::finite(e.high));
    if (oracle::finite(e.value)) largest = std::fmax(largest, std::fabs(e.value));
    if (is_float) {
      const double old = before != nullptr ? number_at(*before, i) : 0;
      // A NaN on one side counts as an infinite change.
      const double a = std::fabs(x - old), b = std::fabs(e.value - old);
      undecided.add(a == a && b == b ? std::fmax(a, b) : radii::kInfinity, expected.radius(i));
    }
    if (open && (e.anything() || !oracle::finite(x))) {
      ++v.untestable;
      continue;
    }
    const double radius = e.nan() ? 0 : x > e.value ? e.high - e.value : e.value - e.low;
    if (oracle::finite(radius)) radii.push_back(expected.radius(i));
    // The ends decide; the ratio is rounded.
    const double near = oracle::ratio(x, {e.value, radius});
    const bool inside = near == 0 || e.has(x);
    const double ratio = inside ? std::fmin(near, 1) : std::fmax(near, 1 + 0x1p-40);
    if (!inside) v.wrong.push_back(i);
    v.note(i, x, {e.value, radius}, ratio);
  }
  if (!radii.empty() && largest > 0) {
    std::ranges::nth_element(radii, radii.begin() + static_cast<std::ptrdiff_t>(radii.size() / 2));
    v.median_relative_radius = radii[radii.size() / 2] / largest;
  }
  v.undecided = undecided.share();
  v.moved = undecided.moved();
  return v;
}

}  // namespace twinrun
