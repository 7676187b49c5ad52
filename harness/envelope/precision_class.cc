// The catalogue of precision classes, and their members: our own engines with rounding added around
// their ops.
#include "harness/envelope/precision_class.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "backends/core/wrapped.h"
#include "backends/variants/variant.h"
#include "program/base/bits.h"
#include "program/base/philox.h"
#include "program/ops/contraction.h"

namespace twinrun {
namespace {

using How = PrecisionClass::How;

// ---- rounding of one number

constexpr uint32_t kInfinite = 0x7f800000;

// Rounds to so many bits of significand and keeps the exponent range of binary32: float16 is used
// with a loss scale that keeps values within its range.
float nearest_even(float x, int bits) {
  const uint32_t b = to_bits(x), drop = static_cast<uint32_t>(kF32Bits - bits);
  if ((b & kInfinite) == kInfinite || drop == 0) return x;
  const uint32_t last = (b >> drop) & 1u;
  return from_bits((b + ((1u << (drop - 1)) - 1) + last) & ~((1u << drop) - 1));
}
float toward_zero(float x, int bits) {
  const uint32_t b = to_bits(x), drop = static_cast<uint32_t>(kF32Bits - bits);
  return (b & kInfinite) == kInfinite ? x : from_bits(b & ~((1u << drop) - 1));
}

// A rounding function drawn at random, a different one for each member. Thresholds are indexed by
// the leading bits of a value: those that the format keeps and three more. So a weight that a step
// hardly changes is rounded as before, as in a real engine, while neighbouring values are rounded
// independently. There are 2^16 thresholds, which cover a few binades; beyond those they repeat.
class DrawnRounding {
 public:
  explicit DrawnRounding(uint64_t member) : thresholds_(kThresholds) {
    constexpr uint64_t kKey = 0x6d69786564;
    const RandomKey key{kKey + member, kStreamVariant};
    for (size_t i = 0; i < kThresholds; i += 2) {
      const uint32_t word = draw(key, 0, 0, i);
      thresholds_[i] = static_cast<uint16_t>(word);
      thresholds_[i + 1] = static_cast<uint16_t>(word >> 16);
    }
  }
  float operator()(float x, int bits) const {
    const uint32_t b = to_bits(x), drop = static_cast<uint32_t>(kF32Bits - bits);
    if (drop == 0 || (b & kInfinite) == kInfinite) return x;
    const uint32_t mask = (1u << drop) - 1, rest = b & mask;
    if (rest == 0) return x;
    constexpr uint32_t kFiner = 3;
    const uint32_t threshold = thresholds_[(b >> (drop - kFiner)) & (kThresholds - 1)];
    const bool up =
        (static_cast<uint64_t>(rest) << 16) > (static_cast<uint64_t>(threshold) << drop);
    return from_bits((b & ~mask) + (up ? mask + 1 : 0));
  }

 private:
  static constexpr size_t kThresholds = size_t{1} << 16;
  std::vector<uint16_t> thresholds_;
};

// ---- which ops of a step are rounded

bool in_passes(const Op& op) { return op.phase == Phase::kForward || op.phase == Phase::kGradient; }
bool is_convolution(const Op& op) {
  return class_of(op.kind) == OpClass::kDot && op.kind != OpKind::kDotGeneral;
}
bool rounds(Rounded results, const Op& op) {
  if (results == Rounded::kNone || op.type.dtype != DType::kF32 || !in_passes(op)) return false;
  switch (class_of(op.kind)) {
    case OpClass::kDot:
    case OpClass::kElementwise:
    case OpClass::kWindow:
      return true;
    case OpClass::kReduce:
      return results == Rounded::kAll;
    default:
      return false;
  }
}

// True for weights, constants and inputs of the step, also behind moves. They reach an elementwise
// op unrounded, so a cast must precede the op; all other operands are results that are rounded
// already.
bool is_given(const Graph& graph, ValueId id) {
  for (;;) {
    const Op& op = graph.op(id);
    if (class_of(op.kind) == OpClass::kSource) return true;
    if (class_of(op.kind) != OpClass::kMove || op.operands.size() != 1) return false;
    id = op.operands[0];
  }
}

bool rounds_anything(const PrecisionClass& c) {
  return std::min({c.dot_bits, c.convolution_bits, c.result_bits, c.reduced_bits}) < kF32Bits ||
         c.dots != c.convolutions;
}

class RoundingHooks : public OpHooks {
 public:
  RoundingHooks(PrecisionClass of, uint64_t member, const Capabilities& declared)
      : of_(std::move(of)), drawn_(member) {
    Capabilities exact = declared;
    exact.precision = DotPrecision::kF32;
    exact_ = variant_within(member, exact);
    // A relu or a maximum whose decision depends on rounding changes a gradient by more than any
    // rounding does. Where that decision is two or three standard deviations away, it may occur in
    // none of 24 engines and yet in the subject. One member in three therefore rounds twice as
    // coarsely, which covers these cases.
    if (of_.how == How::kDrawn && member % 3 == 2) {
      for (int* bits : {&of_.dot_bits, &of_.convolution_bits, &of_.result_bits, &of_.reduced_bits})
        *bits -= *bits < kF32Bits ? 1 : 0;
    }
  }

  bool watches(const Program& program, ValueId id, int64_t) override {
    const Op& op = program.graph.op(id);
    if (op.type.dtype != DType::kF32) return false;
    if (op.kind == OpKind::kAllReduce) return of_.reduced_bits < kF32Bits;
    if (!in_passes(op)) return false;
    return (class_of(op.kind) == OpClass::kDot && (operand_bits(op) < kF32Bits || instead(op))) ||
           rounds(of_.results, op);
  }
  void before(const OpSite& site, std::vector<Tensor>& inputs) override {
    const Op& op = site.op();
    const bool product = class_of(op.kind) == OpClass::kDot, wire = op.kind == OpKind::kAllReduce;
    const int bits = wire ? of_.reduced_bits : product ? operand_bits(op) : of_.result_bits;
    if (bits == kF32Bits) return;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].dtype() != DType::kF32) continue;
      if (product && casts_back(op) &&
          site.program->graph.op(op.operands[i]).phase == Phase::kGradient)
        continue;
      if (product || wire || is_given(site.program->graph, op.operands[i])) round(inputs[i], bits);
    }
  }
  bool replace(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) override {
    const Op& op = site.op();
    if (op.kind == OpKind::kReduce && op.attrs.reducer == Reducer::kSum &&
        of_.results == Rounded::kAll && rounds(of_.results, op)) {
      sum_narrow(op, inputs, output);
      return true;
    }
    if (class_of(op.kind) != OpClass::kDot || !instead(op) || !variants::replaces(exact_, op))
      return false;
    variants::run_op(exact_, op, inputs, output);
    return true;
  }
  void after(const OpSite& site, const std::vector<Tensor>&, Tensor& output) override {
    const Op& op = site.op();
    if (op.kind == OpKind::kAllReduce) {
      round_in_place(output, of_.reduced_bits);
    } else if (class_of(op.kind) == OpClass::kDot && casts_back(op)) {
      round_in_place(output, operand_bits(op));
    } else if (rounds(of_.results, op)) {
      round_in_place(output, of_.result_bits);
    }
  }

 private:
  bool casts_back(const Op& op) const { return of_.casts && op.phase == Phase::kGradient; }
  int operand_bits(const Op& op) const {
    return is_convolution(op) ? of_.convolution_bits : of_.dot_bits;
  }
  // True for products that a class leaves in binary32 while it rounds the other kind (dots or
  // convolutions): the underlying engine would round both.
  bool instead(const Op& op) const {
    return of_.dots != of_.convolutions &&
           (is_convolution(op) ? of_.convolutions : of_.dots) == DotPrecision::kF32;
  }
  // Sums in one chain and rounds every partial sum: an engine whose results are narrow may
  // accumulate in that format (XLA on a CPU does).
  void sum_narrow(const Op& op, const std::vector<Tensor>& inputs, Tensor& output) const {
    const Contraction c = contraction_of(op, inputs);
    const float* x = inputs[0].as<float>().data();
    float* out = output.as<float>().data();
    for (int64_t p = 0; p < c.parts; ++p) {
      for (int64_t j = 0; j < c.n; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < c.k; ++k) {
          const int64_t at = c.b.at(p, j, k);
          if (at >= 0) sum = drawn_(sum + x[at], of_.result_bits);
        }
        out[c.result(p, 0, j)] = sum;
      }
    }
  }
  void round(Tensor& t, int bits) const {
    t = t.clone();
    round_in_place(t, bits);
  }
  void round_in_place(Tensor& t, int bits) const {
    if (bits == kF32Bits) return;
    for (float& x : t.as<float>()) {
      x = of_.how == How::kDrawn     ? drawn_(x, bits)
          : of_.how == How::kNearest ? nearest_even(x, bits)
                                     : toward_zero(x, bits);
    }
  }

  PrecisionClass of_;
  DrawnRounding drawn_;
  Variant exact_;
};

// Chains a caller's hooks (faults) with the rounding: they see unrounded operands and rounded
// results.
class Chained : public OpHooks {
 public:
  Chained(OpHooks& rounding, OpHooks& theirs, const Program& program)
      : rounding_(rounding), theirs_(theirs), watched_(static_cast<size_t>(program.graph.size())) {}
  bool watches(const Program& program, ValueId id, int64_t step) override {
    Watched& w = watched_[static_cast<size_t>(id)];
    w = {rounding_.watches(program, id, step), theirs_.watches(program, id, step)};
    return w.rounding || w.theirs;
  }
  void before(const OpSite& site, std::vector<Tensor>& inputs) override {
    if (at(site).theirs) theirs_.before(site, inputs);
    if (at(site).rounding) rounding_.before(site, inputs);
  }
  bool replace(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) override {
    return (at(site).theirs && theirs_.replace(site, inputs, output)) ||
           (at(site).rounding && rounding_.replace(site, inputs, output));
  }
  void after(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) override {
    if (at(site).rounding) rounding_.after(site, inputs, output);
    if (at(site).theirs) theirs_.after(site, inputs, output);
  }
  void after_copy(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& copy) override {
    if (at(site).theirs) theirs_.after_copy(site, inputs, copy);
  }

 private:
  struct Watched {
    bool rounding = false, theirs = false;
  };
  Watched at(const OpSite& site) const { return watched_[static_cast<size_t>(site.id)]; }
  OpHooks &rounding_, &theirs_;
  std::vector<Watched> watched_;
};

class RoundingEngine : public WrappedEngine {
 public:
  RoundingEngine(std::unique_ptr<Engine> engine, std::shared_ptr<OpHooks> hooks)
      : WrappedEngine(std::move(engine)), hooks_(std::move(hooks)) {}
  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override {
    if (hooks == nullptr) return inner_->step(step, states, inputs, outputs, sink, hooks_.get());
    Chained both(*hooks_, *hooks, program());
    return inner_->step(step, states, inputs, outputs, sink, &both);
  }

 private:
  std::shared_ptr<OpHooks> hooks_;
};

class RoundingBackend : public WrappedBackend {
 public:
  RoundingBackend(std::unique_ptr<Backend> backend, const PrecisionClass& of, uint64_t member)
      : WrappedBackend(std::move(backend)),
        hooks_(std::make_shared<RoundingHooks>(of, member, inner_->capabilities())) {}
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    return wrap<RoundingEngine>(program, hooks_);
  }

 private:
  std::shared_ptr<OpHooks> hooks_;
};

// ---- the classes

PrecisionClass tight(Precision precision, DotPrecision dots, DotPrecision convolutions) {
  PrecisionClass c;
  c.precision = precision;
  c.does = row_of(precision).does;
  c.dots = dots;
  c.convolutions = convolutions;
  return c;
}
PrecisionClass rounding(Precision precision, How how, int dot_bits, int convolution_bits) {
  PrecisionClass c;
  c.precision = precision;
  c.does = row_of(precision).does;
  c.how = how;
  c.tight = how != How::kDrawn;
  c.dot_bits = dot_bits;
  c.convolution_bits = convolution_bits;
  return c;
}
PrecisionClass of_one_kind(PrecisionClass c, const char* kind) {
  c.does += std::string(", ") + kind + " alone";
  return c;
}
PrecisionClass here_and_there(PrecisionClass c) {
  c.does += ", not in all of them";
  return c;
}
PrecisionClass by_casts(PrecisionClass c) {
  c.casts = true;
  c.does += ", and the gradients with respect to them";
  return c;
}
PrecisionClass with_results(Precision precision) {
  const PrecisionRow& row = row_of(precision);
  PrecisionClass c = rounding(precision, How::kDrawn, row.operand_bits, row.operand_bits);
  c.result_bits = row.result_bits;
  c.results = row.results;
  return c;
}
PrecisionClass sending(PrecisionClass c, int bits) {
  c.reduced_bits = bits;
  c.does += bits == kBf16Bits ? "; gradients sent as bfloat16" : "; gradients sent as float16";
  c.how = How::kDrawn;
  c.tight = false;
  return c;
}

std::vector<PrecisionClass> catalogue(const Program& program) {
  using P = Precision;
  using D = DotPrecision;
  bool has_dots = false, has_convolutions = false;
  for (const Op& op : program.graph.ops()) {
    has_dots = has_dots || op.kind == OpKind::kDotGeneral;
    has_convolutions = has_convolutions || is_convolution(op);
  }
  std::vector<PrecisionClass> out = {tight(P::kF32, D::kF32, D::kF32),
                                     tight(P::kHighest, D::kBf16x6, D::kBf16x6),
                                     tight(P::kHigh, D::kBf16x3, D::kBf16x3),
                                     rounding(P::kTf32, How::kNearest, kF16Bits, kF16Bits),
                                     rounding(P::kTf32, How::kTowardZero, kF16Bits, kF16Bits)};
  out.back().does += ", toward zero";
  out.push_back(tight(P::kDefault, D::kBf16, D::kBf16));
  // Frameworks set the precision of dots and that of convolutions separately.
  if (has_dots && has_convolutions) {
    out.push_back(of_one_kind(tight(P::kHigh, D::kBf16x3, D::kF32), "of dots"));
    out.push_back(of_one_kind(tight(P::kHigh, D::kF32, D::kBf16x3), "of convolutions"));
    for (const auto& [precision, bits] :
         {std::pair(P::kTf32, kF16Bits), std::pair(P::kDefault, kBf16Bits)}) {
      out.push_back(of_one_kind(rounding(precision, How::kNearest, bits, kF32Bits), "of dots"));
      out.push_back(
          of_one_kind(rounding(precision, How::kNearest, kF32Bits, bits), "of convolutions"));
    }
  }
  out.push_back(by_casts(rounding(P::kDefault, How::kNearest, kBf16Bits, kBf16Bits)));
  for (const P precision : {P::kHigh, P::kTf32, P::kDefault}) {
    const int bits = row_of(precision).operand_bits;
    out.push_back(here_and_there(rounding(precision, How::kDrawn, bits, bits)));
  }
  for (const P precision : {P::kFloat16, P::kAutocast, P::kBf16})
    out.push_back(with_results(precision));
  return out;
}

// The classes, and after them those whose all-reduce sends `bits` bits.
std::vector<PrecisionClass> and_sending(std::vector<PrecisionClass> classes, int bits) {
  if (bits == kF32Bits) return classes;
  std::vector<PrecisionClass> out = classes;
  for (const PrecisionClass& c : classes) {
    // A class that sends narrow gradients draws all its roundings, those of products included. Of
    // the tight classes, those with split products (bf16x3, bf16x6) and with rounding toward zero
    // get no such class.
    if (c.tight && c.dots != DotPrecision::kF32 && c.dots != DotPrecision::kBf16) continue;
    if (c.how == How::kTowardZero) continue;
    out.push_back(sending(c, bits));
  }
  return out;
}

}  // namespace

std::vector<PrecisionClass> classes_within(Precision precision, const Capabilities& declared,
                                           const Program& program) {
  std::vector<PrecisionClass> out;
  for (PrecisionClass& c : catalogue(program)) {
    if (allows(precision, c.precision)) out.push_back(std::move(c));
  }
  std::ranges::stable_sort(out, {}, [&](const PrecisionClass& c) {
    return !c.tight ? 2 : c.precision == precision ? 0 : 1;
  });
  return and_sending(std::move(out), declared.reduced_bits);
}

std::vector<PrecisionClass> all_classes(const Capabilities& declared, const Program& program) {
  std::vector<PrecisionClass> out = catalogue(program);
  std::ranges::stable_sort(out, {}, [](const PrecisionClass& c) { return !c.tight; });
  const int sent = program.sharding.cores > 1 ? std::min(declared.reduced_bits, kBf16Bits)
                                              : declared.reduced_bits;
  return and_sending(std::move(out), sent);
}

std::vector<PrecisionClass> classes_beyond(Precision precision, const Capabilities& declared,
                                           const Program& program) {
  std::vector<PrecisionClass> out = all_classes(declared, program);
  std::erase_if(out, [&](const PrecisionClass& c) {
    return allows(precision, c.precision) && c.reduced_bits >= declared.reduced_bits;
  });
  return out;
}

std::optional<PrecisionClass> class_of(std::string_view word, std::string_view does,
                                       const Capabilities& declared, const Program& program) {
  for (PrecisionClass& c : all_classes(declared, program)) {
    if (row_of(c.precision).word == word && c.does == does) return std::move(c);
  }
  return std::nullopt;
}

std::unique_ptr<Backend> member_of(const PrecisionClass& of, uint64_t member,
                                   const Capabilities& declared, const BackendOptions& options) {
  Capabilities base = declared;
  base.precision = of.dots == DotPrecision::kF32 ? of.convolutions : of.dots;
  auto backend = make_variant_backend(variant_within(member, base), options);
  if (!rounds_anything(of)) return backend;
  return std::make_unique<RoundingBackend>(std::move(backend), of, member);
}

bool rounds_operands(const PrecisionClass& c) {
  return c.tight && (std::min(c.dot_bits, c.convolution_bits) < kF32Bits ||
                     c.dots != DotPrecision::kF32 || c.convolutions != DotPrecision::kF32);
}

double weight_move(const Program& program, const PrecisionClass& of) {
  constexpr double kFourUlps = 0x1p-22;
  if (of.how == How::kDrawn) return kFourUlps;
  const int own = std::min(of.dot_bits, of.convolution_bits);
  const bool bf16 = of.dots == DotPrecision::kBf16 || of.convolutions == DotPrecision::kBf16;
  return weight_move(program, bf16 ? kBf16Bits : own);
}

bool results_in_bf16(const Observed& subject, const std::vector<Compared>& tensors) {
  constexpr uint64_t kFewest = 3;
  uint64_t looked_at = 0, rounded = 0;
  const size_t stride = tensors.size() * subject.replicas;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].is_state) continue;
    uint64_t numbers = 0;
    bool all = true;
    for (size_t v = t * subject.replicas; all && v < subject.values.size(); v += stride) {
      for (const float x : *subject.values[v].data) {
        if (x == 0 || !std::isfinite(x)) continue;  // every format has these
        ++numbers;
        all = all && (to_bits(x) & 0xffffu) == 0;
      }
    }
    if (all && numbers < kFewest) continue;
    ++looked_at;
    rounded += all ? 1 : 0;
  }
  return looked_at > 0 && 2 * rounded >= looked_at;
}

}  // namespace twinrun
