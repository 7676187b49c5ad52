// Evaluates both programs at random points of the field, shares products between them, and names
// the first value that differs.
#include "harness/sharding/field_proof.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

#include "backends/oracle/field.h"
#include "backends/oracle/replica_walk.h"
#include "program/base/digest.h"
#include "program/graph/liveness.h"
#include "program/graph/shard_plan.h"

namespace twinrun {
namespace field_proof {
namespace {

using Values = ReplicaWalk::Values;

constexpr size_t kRemembered = size_t{2} << 30;  // bytes of products to keep

uint64_t name_of(const std::string& text) { return digest_bytes(text.data(), text.size()).low; }

// A random element for every float of a tensor, keyed by its name; other tensors stay as they are.
Tensor random_like(const FieldPoint& point, const std::string& name, const Tensor& t) {
  if (!is_floating(t.dtype())) return t;
  Tensor out = Tensor::empty({DType::kF64, t.dims()});
  uint64_t i = 0;
  const FieldPoint::Function drawn = point.function(name_of(name));
  for (Field61& x : out.as<Field61>()) x = drawn(i++);
  return out;
}

// The digests of `parts` equal parts of a tensor; one digest if it cannot be cut into so many.
std::vector<Digest> digests_of_parts(const Tensor& t, size_t parts) {
  if (t.elements() % static_cast<int64_t>(parts) != 0) parts = 1;
  std::vector<Digest> out;
  const size_t bytes = t.bytes() / parts;
  for (size_t i = 0; i < parts; ++i) out.push_back(digest_bytes(t.raw() + i * bytes, bytes));
  return out;
}

// ---- products that occur in both programs

// How the product of a batch is made of the products of its parts: which operands are cut along
// their rows, and whether the parts' results are concatenated or added up.
struct Cut {
  bool left = false, right = false, adds_up = false;
};
Cut cut_of(const Op& op) {
  switch (op.kind) {
    case OpKind::kDotGeneral:
      if (op.attrs.batch_dims > 0) return {true, true, false};
      if (op.attrs.lhs_contract == 1) return {true, false, false};
      return op.attrs.rhs_contract == 0 ? Cut{true, true, true} : Cut{};
    case OpKind::kConvolution:
    case OpKind::kConvolutionInputGrad:
      return {true, false, false};
    case OpKind::kConvolutionKernelGrad:
      return {true, true, true};
    default:
      return {};
  }
}

Tensor part_of(const Tensor& t, int64_t i, int64_t parts) {
  const int64_t rows = t.dims()[0] / parts;
  return t.rows(i * rows, (i + 1) * rows);
}

// Products, keyed by op and operands. Those of the whole batch are split by cores, so that a
// sharded program of the same meaning finds its own products here.
class Products {
 public:
  Products(const FieldPoint& point, ThreadPool& pool) : point_(point), pool_(pool) {}

  Result<Tensor> of(const Op& op, std::span<const Tensor> operands, int64_t parts) {
    const Cut cut = cut_of(op);
    const auto divides = [&](bool is_cut, size_t i) {
      return !is_cut || operands[i].dims()[0] % parts == 0;
    };
    if (!cut.left || parts == 1 || !divides(cut.left, 0) || !divides(cut.right, 1))
      return one(op, operands);
    Op own = op;
    if (!cut.adds_up) own.type.dims[0] /= parts;
    const auto of_part = [&](int64_t i) {
      return std::array{part_of(operands[0], i, parts),
                        cut.right ? part_of(operands[1], i, parts) : operands[1]};
    };
    if (!cut.adds_up) {
      TWINRUN_ASSIGN(const Tensor all, field_value(point_, op, operands, &pool_));
      for (int64_t i = 0; i < parts; ++i) keep(key_of(own, of_part(i)), part_of(all, i, parts));
      return all;
    }
    Tensor out = Tensor::zeros({DType::kF64, op.type.dims});
    const auto to = out.as<Field61>();
    for (int64_t i = 0; i < parts; ++i) {
      TWINRUN_ASSIGN(const Tensor part, one(own, of_part(i)));
      const auto from = part.as<const Field61>();
      for (size_t e = 0; e < to.size(); ++e) to[e] = to[e] + from[e];
    }
    return out;
  }

 private:
  static Digest key_of(const Op& op, std::span<const Tensor> operands) {
    DigestBuilder key;
    const Attrs& a = op.attrs;
    const int64_t numbers[] = {static_cast<int64_t>(op.kind), a.lhs_contract, a.rhs_contract,
                               a.batch_dims, a.groups};
    key.add_bytes(numbers, sizeof numbers);
    key.add_bytes(&a.window, sizeof a.window);
    key.add(to_string(op.type.dims));
    for (const Tensor& t : operands) {
      key.add(to_string(t.dims()));
      key.add(digest_bytes(t.raw(), t.bytes()));
    }
    return key.finish();
  }
  void keep(const Digest& key, const Tensor& result) {
    if (bytes_ + result.bytes() > kRemembered) return;
    bytes_ += result.bytes();
    known_.emplace(key, result);
  }
  Result<Tensor> one(const Op& op, std::span<const Tensor> operands) {
    const Digest key = key_of(op, operands);
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    TWINRUN_ASSIGN(Tensor result, field_value(point_, op, operands, &pool_));
    keep(key, result);
    return result;
  }

  const FieldPoint& point_;
  ThreadPool& pool_;
  std::map<Digest, Tensor> known_;
  size_t bytes_ = 0;
};

// ---- the first value whose meaning differs

// How a value of the sharded program relates to the whole batch's value of the same name: not at
// all; equal on every core; the core's rows; a part that adds up, or averages, to it over the
// cores.
enum class Share : uint8_t { kNothing, kSame, kRows, kPart };

class Trace {
 public:
  explicit Trace(int cores) : cores_(static_cast<size_t>(cores)) {}

  void whole(const std::string& name, const Tensor& value) {
    whole_[name] = {value.type(), digests_of_parts(value, cores_)};
  }
  bool knows(const std::string& name) const { return whole_.contains(name); }

  Share share(const std::string& name, const std::vector<Tensor>& cores) const {
    const Value& whole = whole_.at(name);
    if (cores[0].dtype() != whole.type.dtype) return Share::kNothing;
    const auto each_core = [&](auto holds) {
      for (size_t r = 0; r < cores.size(); ++r) {
        if (!holds(r)) return false;
      }
      return true;
    };
    if (cores[0].dims() != whole.type.dims) {
      const bool fits = whole.parts.size() == cores_ &&
                        cores[0].elements() * static_cast<int64_t>(cores_) == whole.type.elements();
      return fits && each_core([&](size_t r) {
               return digests_of_parts(cores[r], 1)[0] == whole.parts[r];
             })
                 ? Share::kRows
                 : Share::kNothing;
    }
    if (each_core([&](size_t r) {
          return (r > 0 && cores[r].raw() == cores[0].raw()) ||
                 digests_of_parts(cores[r], cores_) == whole.parts;
        }))
      return Share::kSame;
    return adds_up(whole.parts, cores) ? Share::kPart : Share::kNothing;
  }

 private:
  struct Value {
    TensorType type;
    std::vector<Digest> parts;
  };

  // Whether the cores' values add up to `whole`, or their mean is equal to it.
  bool adds_up(const std::vector<Digest>& whole, const std::vector<Tensor>& cores) const {
    if (cores[0].dtype() != DType::kF64) return false;
    Tensor sum = Tensor::zeros(cores[0].type());
    const auto to = sum.as<Field61>();
    for (const Tensor& core : cores) {
      for (size_t i = 0; i < to.size(); ++i) to[i] = to[i] + core.as<const Field61>()[i];
    }
    if (digests_of_parts(sum, cores_) == whole) return true;
    const Field61 share = Field61::of(static_cast<int64_t>(cores_)).inverse();
    for (Field61& x : to) x = x * share;
    return digests_of_parts(sum, cores_) == whole;
  }

  size_t cores_;
  std::unordered_map<std::string, Value> whole_;
};

// Finds the first value of the sharded program that is not related to the whole batch's value.
class FirstDivergence {
 public:
  FirstDivergence(const Program& program, const Trace& trace, FieldProof& proof)
      : program_(program),
        trace_(trace),
        proof_(proof),
        constant_(constant_values(program)),
        shares_(static_cast<size_t>(program.graph.size()), Share::kSame) {}

  void see(ValueId id, const std::vector<Tensor>& cores) {
    const Op& op = program_.graph.op(id);
    // Constants may depend on the shapes alone, which differ between the programs.
    if (!proof_.diverges_at.empty() || !trace_.knows(op.name) || constant_[static_cast<size_t>(id)])
      return;
    Share& share = shares_[static_cast<size_t>(id)];
    share = trace_.share(op.name, cores);
    // Inputs and state are not parts that are added up later.
    const bool given = op.kind == OpKind::kParameter;
    if (share != Share::kNothing && !(given && share == Share::kPart)) return;
    proof_.diverges_at = op.name;
    for (ValueId operand : op.operands) {
      if (shares_[static_cast<size_t>(operand)] == Share::kPart && proof_.diverging_operand.empty())
        proof_.diverging_operand = program_.graph.op(operand).name;
    }
  }

 private:
  const Program& program_;
  const Trace& trace_;
  FieldProof& proof_;
  std::vector<bool> constant_;
  std::vector<Share> shares_;
};

// ---- one program at one point

struct Judgeable {
  StepKind kind;
  std::string name;
  ValueId id;
};

std::vector<Judgeable> judgeables(const Program& program) {
  std::vector<Judgeable> out;
  for (const Output& output : program.outputs) {
    if (output.name.ends_with(".grad") && !output.of_layer)
      out.push_back({StepKind::kGradient, output.name, output.id});
  }
  for (const StateVar& var : program.state) {
    const bool statistic = var.role == StateRole::kStatistic;
    out.push_back({statistic ? StepKind::kStatistics : StepKind::kUpdate, var.name,
                   var.next == kNoValue ? var.id : var.next});
  }
  return out;
}

// Inputs and state of the whole batch by name, as elements of the field.
using Given = std::map<std::string, Tensor>;

Values values_of(const FieldPoint& point, const Program& program, const Given& given) {
  const auto cores = static_cast<size_t>(program.sharding.cores);
  StepInputs inputs(cores);
  for (size_t r = 0; r < cores; ++r) {
    for (const Input& input : program.inputs) {
      if (input.name == "replica_id") {
        inputs[r].push_back(Tensor::scalar_i32(static_cast<int32_t>(r)));
        continue;
      }
      const Tensor& all = given.at(input.name);
      const auto core = static_cast<int64_t>(r);
      inputs[r].push_back(
          input.per_core && cores > 1 ? part_of(all, core, static_cast<int64_t>(cores)) : all);
    }
  }
  Program fed;
  fed.inputs = program.inputs;
  fed.sharding = program.sharding;
  fed.sharding.feeding.rate = Feeding::Rate::kAsGiven;  // the rate is scaled below, in the field
  misfeed(fed, inputs);
  const Field61 times = Field61::of(static_cast<int64_t>(cores));
  const Feeding::Rate rate = program.sharding.feeding.rate;
  Values values(cores, std::vector<Tensor>(static_cast<size_t>(program.graph.size())));
  for (size_t r = 0; r < cores; ++r) {
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      Tensor& value = values[r][static_cast<size_t>(program.inputs[i].id)];
      value = inputs[r][i];
      if (program.inputs[i].name != "learning_rate" || rate == Feeding::Rate::kAsGiven) continue;
      value = r == 0 ? value.clone() : values[0][static_cast<size_t>(program.inputs[i].id)];
      Field61& x = value.as<Field61>()[0];
      if (r == 0) x = rate == Feeding::Rate::kTimesCores ? x * times : x / times;
    }
    for (const StateVar& var : program.state) {
      const auto known = given.find(var.name);
      values[r][static_cast<size_t>(var.id)] =
          r > 0                  ? values[0][static_cast<size_t>(var.id)]
          : known != given.end() ? known->second
                                 : random_like(point, var.name, Tensor::zeros(var.type));
    }
  }
  return values;
}

// Inputs and state of the whole batch's step at a point of the field.
Result<Given> given_at(const FieldPoint& point, const Experiment& e, const Program& whole,
                       int64_t step) {
  Given given;
  StepFeed feed(e, whole);
  TWINRUN_ASSIGN(const StepInputs inputs, feed.inputs(step));
  for (size_t i = 0; i < whole.inputs.size(); ++i)
    given[whole.inputs[i].name] = random_like(point, whole.inputs[i].name, inputs[0][i]);
  for (const StateVar& var : whole.state)
    given[var.name] = random_like(point, var.name, Tensor::zeros(var.type));
  return given;
}

using See = std::function<void(size_t program, ValueId id, const std::vector<Tensor>&)>;

// The values of several programs at the point.
Result<std::vector<Values>> evaluate(const FieldPoint& point,
                                     std::span<const Program* const> programs, const Given& given,
                                     Products& products, int64_t parts, ThreadPool& pool,
                                     const See& see) {
  std::vector<Values> values;
  for (size_t p = 0; p < programs.size(); ++p) {
    const Graph& graph = programs[p]->graph;
    values.push_back(values_of(point, *programs[p], given));
    for (ValueId id = 0; id < graph.size(); ++id) {
      if (graph.op(id).kind != OpKind::kParameter) continue;
      std::vector<Tensor> cores;
      for (const auto& replica : values.back()) cores.push_back(replica[static_cast<size_t>(id)]);
      see(p, id, cores);
    }
  }
  TWINRUN_RETURN_IF_ERROR(walk_together(
      programs, values,
      [&](const Op& op, std::span<const Tensor> operands) -> Result<Tensor> {
        return class_of(op.kind) == OpClass::kDot ? products.of(op, operands, parts)
                                                  : field_value(point, op, operands, &pool);
      },
      [&](size_t p, ValueId id, const Values&, const std::vector<Tensor>& results) {
        see(p, id, results);
      }));
  return values;
}

double degree_of(const Program& program) {
  const std::vector<double> degrees = field_degrees(program.graph);
  double most = 1;
  for (const Judgeable& j : judgeables(program))
    most = std::max(most, degrees[static_cast<size_t>(j.id)]);
  return most;
}

}  // namespace
}  // namespace field_proof

double FieldProof::log2_error() const { return kFieldPoints * (std::log2(degree) - 61); }

ProofRow row_of(const std::string& program, const FieldProof& proof) {
  return {program,
          proof.proves(StepKind::kGradient),
          proof.proves(StepKind::kUpdate),
          proof.proves(StepKind::kStatistics),
          kFieldPoints,
          proof.degree,
          proof.log2_error(),
          proof.diverges_at,
          proof.diverging_operand,
          proof.unproven};
}

Result<std::vector<FieldProof>> prove_meaning(const Experiment& e,
                                              const std::vector<Sharding>& shardings, int threads,
                                              int64_t step) {
  using namespace field_proof;
  ThreadPool pool(threads);
  const Program whole = e.whole(Experiment::Stack::kTpu);
  std::vector<Program> programs;
  std::vector<FieldProof> proofs(shardings.size());
  for (size_t i = 0; i < shardings.size(); ++i) {
    programs.push_back(e.sharded(shardings[i]));
    proofs[i].degree = std::max(degree_of(whole), degree_of(programs.back()));
  }
  const std::vector<Judgeable> expected = judgeables(whole);
  for (int p = 0; p < kFieldPoints; ++p) {
    const FieldPoint point(e.scenario.seed * kFieldPoints + static_cast<uint64_t>(p));
    TWINRUN_ASSIGN(const Given given, given_at(point, e, whole, step));
    Products products(point, pool);
    Trace trace(e.sharding.cores);
    const Program* const reference[] = {&whole};
    const auto evaluated = evaluate(point, reference, given, products, e.sharding.cores, pool,
                                    [&](size_t, ValueId id, const std::vector<Tensor>& values) {
                                      if (p == 0) trace.whole(whole.graph.op(id).name, values[0]);
                                    });
    if (!evaluated) {
      for (FieldProof& proof : proofs) proof.unproven = evaluated.error().message();
      return proofs;
    }
    // Compares the programs of these indices, evaluated together, with the whole batch's.
    const auto compare = [&](const std::vector<size_t>& set) -> Status {
      std::vector<const Program*> some;
      std::vector<FieldProof> found;
      for (const size_t i : set) {
        some.push_back(&programs[i]);
        found.push_back(proofs[i]);
      }
      std::vector<FirstDivergence> divergences;
      for (size_t i = 0; i < set.size(); ++i) divergences.emplace_back(*some[i], trace, found[i]);
      TWINRUN_ASSIGN(const std::vector<Values> sharded,
                     evaluate(point, some, given, products, 1, pool,
                              [&](size_t i, ValueId id, const std::vector<Tensor>& values) {
                                if (p == 0) divergences[i].see(id, values);
                              }));
      for (size_t i = 0; i < set.size(); ++i) {
        for (const Judgeable& own : judgeables(*some[i])) {
          const auto theirs = std::ranges::find_if(expected, [&](const Judgeable& x) {
            return x.name == own.name && x.kind == own.kind;
          });
          const bool same =
              theirs != expected.end() && std::ranges::all_of(sharded[i], [&](const auto& replica) {
                return replica[static_cast<size_t>(own.id)].same_bits(
                    (*evaluated)[0][0][static_cast<size_t>(theirs->id)]);
              });
          if (!same) found[i].same[static_cast<size_t>(own.kind)] = false;
        }
        proofs[set[i]] = found[i];
      }
      return Ok{};
    };
    std::vector<size_t> open;
    std::vector<const Program*> all;
    for (size_t i = 0; i < programs.size(); ++i) {
      if (!proofs[i].unproven.empty()) continue;
      open.push_back(i);
      all.push_back(&programs[i]);
    }
    for (const std::vector<size_t>& alike_ones : alike(all)) {
      std::vector<size_t> set;
      for (const size_t i : alike_ones) set.push_back(open[i]);
      if (compare(set)) continue;
      // One of them cannot be evaluated: which one, and why.
      for (const size_t i : set) {
        if (const Status alone = compare({i}); !alone) proofs[i].unproven = alone.error().message();
      }
    }
  }
  for (FieldProof& proof : proofs) {
    if (proof.equal()) proof.diverges_at = proof.diverging_operand = "";
  }
  return proofs;
}

}  // namespace twinrun
