// The roofline of each fusion unit: work of the matrix and vector units, padded bytes, all-reduces.
#include "device/core_model.h"

#include <algorithm>
#include <cmath>

#include "program/graph/liveness.h"
#include "program/ops/op_def.h"

namespace twinrun::tpu {
namespace {

// Assumptions of ours, with their uncertainty in docs/guides/profile.md.
constexpr double kStart = 1e-6;      // start of a unit: instructions, first bytes out of HBM
constexpr double kHop = 1e-6;        // latency from chip to chip
constexpr double kPhiloxOps = 30;    // per random number: ten rounds give four numbers
constexpr double kPooledTapOps = 2;  // compare and select, or divide and add

double tiles(int64_t n) { return static_cast<double>(padded(n, kLanes) / kLanes); }

int64_t size_at(const Dims& dims, int64_t i) { return dims[static_cast<size_t>(i)]; }

Product of_dot(const Graph& graph, const Op& op) {
  const Dims &a = graph.type(op.operands[0]).dims, &b = graph.type(op.operands[1]).dims;
  const int64_t shared = op.attrs.batch_dims;
  Product p;
  for (int64_t i = 0; i < shared; ++i) p.batch *= size_at(a, i);
  p.k = size_at(a, shared + op.attrs.lhs_contract);
  p.m = size_at(a, shared + 1 - op.attrs.lhs_contract);
  p.n = size_at(b, shared + 1 - op.attrs.rhs_contract);
  return p;
}

// Padded and plain bytes of a tensor in HBM.
struct Stored {
  double padded = 0, plain = 0;
};

class Modeller {
 public:
  Modeller(const Program& step, const ModelOptions& options)
      : step_(step), graph_(step.graph), options_(options) {
    constant_ = constant_values(step);
    find_kept();
    model_.plan = plan_fusion(step, constant_);
  }
  StepModel run();

 private:
  static size_t at(ValueId id) { return static_cast<size_t>(id); }
  double elements(ValueId id) const { return static_cast<double>(graph_.type(id).elements()); }

  // State stays in f32, whatever the option for activations says.
  void find_kept() {
    kept_.assign(at(graph_.size()), false);
    for (const StateVar& var : step_.state) {
      kept_[at(var.id)] = true;
      if (var.next != kNoValue) kept_[at(var.next)] = true;
    }
  }

  Stored stored(ValueId id) const {
    // A splat of a constant takes no memory in HBM.
    if (constant_[at(id)] && class_of(graph_.op(id).kind) != OpClass::kMove &&
        graph_.op(id).kind != OpKind::kIota)
      return {};
    TensorType type = graph_.type(id);
    if (options_.bf16_activations && type.dtype == DType::kF32 && !kept_[at(id)] &&
        graph_.op(id).phase != Phase::kUpdate && graph_.op(id).phase != Phase::kCollective)
      type.dtype = DType::kBF16;
    return {static_cast<double>(padded_bytes(type, smallest_layout(type))),
            static_cast<double>(type.bytes())};
  }
  void move(UnitModel& u, ValueId id) const {
    const Stored s = stored(id);
    u.bytes += s.padded;
    u.unpadded_bytes += s.plain;
  }
  // Number of elements including padding, which the vector unit processes as well.
  double padded_elements(ValueId id) const {
    const TensorType& type = graph_.type(id);
    return static_cast<double>(padded_bytes(type, smallest_layout(type))) /
           static_cast<double>(size_of(type.dtype));
  }

  double vector_work(ValueId id) const;
  void add_op(UnitModel& u, ValueId id) const;
  void finish(UnitModel& u) const;
  UnitModel of_op(ValueId id) const;
  UnitModel of_group(const FusionGroup& group) const;

  const Program& step_;
  const Graph& graph_;
  const ModelOptions& options_;
  std::vector<bool> constant_, kept_;
  StepModel model_;
};

double Modeller::vector_work(ValueId id) const {
  const Op& op = graph_.op(id);
  const auto taps = static_cast<double>(op.attrs.window.size[0] * op.attrs.window.size[1]);
  switch (class_of(op.kind)) {
    case OpClass::kElementwise:
      return vector_ops(op) * padded_elements(id);
    case OpClass::kMove:
      return op.kind == OpKind::kReshape ? 0 : padded_elements(id);
    case OpClass::kReduce:
      return padded_elements(op.operands.back());
    case OpClass::kWindow:
      // A gradient iterates over the windows of the forward pooling.
      return kPooledTapOps * taps *
             padded_elements(op.kind == OpKind::kReduceWindow ? id : op.operands.back());
    case OpClass::kRandom:
      return kPhiloxOps * padded_elements(id);
    default:
      return 0;
  }
}

void Modeller::add_op(UnitModel& u, ValueId id) const {
  u.flops += flops(graph_, id);
  u.vector += vector_work(id) / options_.generation.vector_rate();
  if (const auto product = product_of(graph_, id)) {
    u.matrix_flops += product->flops();
    u.matrix_cycles += options_.passes * matrix_cycles(*product);
    // Grouped products with few channels do not fill a tile. The model assumes that the compiler
    // uses the vector unit if that is faster.
    const double by_vector = product->flops() / options_.generation.vector_rate();
    const double by_matrix =
        u.matrix_cycles / options_.generation.matrix_units / options_.generation.clock;
    if (product->batch > 1 && by_vector < by_matrix) {
      u.vector += by_vector;
      u.matrix_cycles = u.matrix_flops = 0;
    }
  }
}

void Modeller::finish(UnitModel& u) const {
  const Generation& g = options_.generation;
  u.matrix = u.matrix_cycles / g.matrix_units / g.clock;
  u.memory = u.bytes / g.hbm_bandwidth;
  const std::pair<double, Limit> limits[] = {{u.matrix, Limit::kMatrix},
                                             {u.vector, Limit::kVector},
                                             {u.memory, Limit::kMemory},
                                             {u.links, Limit::kLinks}};
  const auto& worst = *std::ranges::max_element(
      limits, [](const auto& a, const auto& b) { return a.first < b.first; });
  u.seconds = worst.first + kStart;
  u.limit = worst.first > kStart ? worst.second : Limit::kStart;
}

UnitModel Modeller::of_op(ValueId id) const {
  const Op& op = graph_.op(id);
  UnitModel u{.unit = {id, -1}, .lead = id};
  add_op(u, id);
  // A gather reads rows, not the whole table, and a slice reads only what it keeps: as many bytes
  // as the result has.
  const bool part = op.kind == OpKind::kGather || op.kind == OpKind::kSlice;
  for (ValueId operand : op.operands) {
    if (!part) move(u, operand);
  }
  if (part) move(u, id);
  move(u, id);
  if (op.kind == OpKind::kAllReduce)
    u.links = all_reduce_seconds(static_cast<double>(op.type.bytes()), step_.sharding.cores,
                                 options_.generation);
  finish(u);
  return u;
}

UnitModel Modeller::of_group(const FusionGroup& group) const {
  UnitModel u;
  for (const FusedOp& op : group.ops) add_op(u, op.id);
  for (ValueId id : group.sources) move(u, id);
  for (ValueId id : group.stored) {
    move(u, id);
    if (u.lead == kNoValue || elements(id) >= elements(u.lead)) u.lead = id;
  }
  finish(u);
  return u;
}

StepModel Modeller::run() {
  for (const FusionUnit& unit : model_.plan.order) {
    if (unit.group < 0) {
      // Constants are computed once, and a reshape moves no bytes.
      if (constant_[at(unit.op)] || graph_.op(unit.op).kind == OpKind::kReshape) continue;
    }
    UnitModel u = unit.group >= 0 ? of_group(model_.plan.groups[static_cast<size_t>(unit.group)])
                                  : of_op(unit.op);
    u.unit = unit;
    model_.seconds += u.seconds;
    model_.flops += u.flops;
    model_.matrix_flops += u.matrix_flops;
    model_.bytes += u.bytes;
    model_.unpadded_bytes += u.unpadded_bytes;
    if (graph_.op(u.lead).kind == OpKind::kAllReduce) {
      model_.all_reduce += u.seconds;
      model_.all_reduced_bytes += static_cast<double>(graph_.type(u.lead).bytes());
    }
    model_.units.push_back(u);
  }
  return std::move(model_);
}

}  // namespace

std::optional<Product> product_of(const Graph& graph, ValueId id) {
  const Op& op = graph.op(id);
  if (op.kind == OpKind::kDotGeneral) return of_dot(graph, op);
  if (class_of(op.kind) != OpClass::kDot) return std::nullopt;
  const int64_t groups = op.attrs.groups;
  const bool forward = op.kind == OpKind::kConvolution;
  const bool kernel = op.kind == OpKind::kConvolutionKernelGrad;
  const Dims& w = kernel ? op.type.dims : graph.type(op.operands[1]).dims;
  const Dims& y = forward ? op.type.dims : graph.type(op.operands[kernel ? 1 : 0]).dims;
  const int64_t pixels = y[0] * y[1] * y[2], taps = w[0] * w[1] * w[2], outputs = w[3] / groups;
  if (forward) return Product{groups, pixels, taps, outputs};
  if (kernel) return Product{groups, taps, pixels, outputs};
  return Product{groups, pixels, outputs, taps};
}

double matrix_cycles(const Product& p) {
  const auto cycles = [&](int64_t stationary, int64_t streamed) {
    const double rows = static_cast<double>(std::max(padded(streamed, kSublanes), kLanes));
    return static_cast<double>(p.batch) * tiles(p.k) * tiles(stationary) * rows;
  };
  return std::min(cycles(p.n, p.m), cycles(p.m, p.n));
}

double vector_ops(const Op& op) {
  switch (op.kind) {
    case OpKind::kDivide:
    case OpKind::kRemainder:
    case OpKind::kSine:
    case OpKind::kCosine:
    case OpKind::kSqrt:
    case OpKind::kRsqrt:
    case OpKind::kExponential:
    case OpKind::kLog:
    case OpKind::kTanh:
    case OpKind::kLog1p:
      return kMediumOps;
    case OpKind::kLogistic:
    case OpKind::kErf:
      return 2 * kMediumOps;
    default:
      return 1;
  }
}

std::string_view to_string(Limit limit) {
  switch (limit) {
    case Limit::kMatrix:
      return "matrix unit";
    case Limit::kVector:
      return "vector unit";
    case Limit::kMemory:
      return "HBM";
    case Limit::kLinks:
      return "links";
    case Limit::kStart:
      return "start";
  }
  return "start";
}

double all_reduce_seconds(double bytes, int cores, const Generation& g) {
  if (cores <= 1) return 0;
  const int chips = (cores + kCoresPerChip - 1) / kCoresPerChip;
  // The two cores of a chip first add their values in its HBM: two reads and a write.
  const double on_chip = 3 * bytes / g.hbm_bandwidth;
  if (chips == 1) return on_chip;
  const int axes = chips >= 4 ? 2 : 1;
  const double wires = axes * 2 * g.link_bandwidth;  // links in both directions along each axis
  const double side = axes == 2 ? std::ceil(std::sqrt(chips)) : chips;
  return on_chip + g.link_factor * (2 * bytes / wires + 2 * axes * (side - 1) * kHop);
}

StepModel model_step(const Program& step, const ModelOptions& options) {
  return Modeller(step, options).run();
}

}  // namespace twinrun::tpu
