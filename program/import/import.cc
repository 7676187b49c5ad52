// HloModule -> Program: calls are inlined, loops unrolled, tuples are taken apart, and every other
// instruction is lowered by the rule of its opcode.
#include "program/import/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "program/base/names.h"
#include "program/graph/core_groups.h"
#include "program/graph/liveness.h"
#include "program/import/control_flow.h"
#include "program/import/literal.h"
#include "program/import/names.h"
#include "program/import/site.h"

namespace twinrun {
namespace {

const LoweringTable& rules() {
  static const LoweringTable table = [] {
    LoweringTable t;
    for (const auto add :
         {add_elementwise, add_integers, add_functions, add_movement, add_slices, add_gather,
          add_scatter, add_dot, add_convolution, add_reductions, add_windows})
      add(t);
    return t;
  }();
  return table;
}

const ManyLoweringTable& many_rules() {
  static const ManyLoweringTable table = [] {
    ManyLoweringTable t;
    for (const auto add : {add_arg_extremes, add_sorts, add_random}) add(t);
    return t;
  }();
  return table;
}

// What to do instead of using an opcode that has no rule.
std::string advice(const std::string& opcode) {
  static const std::map<std::string_view, std::string_view> known = {
      {"rng", "draw random numbers outside of the step and pass them as inputs"},
      {"fusion",
       "export before XLA's optimisations (the *before_optimizations.txt of --xla_dump_to)"},
  };
  const auto found = known.find(opcode);
  return found == known.end() ? "docs/guides/import.md lists the opcodes"
                              : std::string(found->second);
}

class Importer {
 public:
  // `step`: false for a module that need not be a training step.
  Importer(const HloModule& module, bool step) : module_(module), step_(step), shared_(graph()) {}

  std::vector<ImportProblem> problems() const {
    std::vector<ImportProblem> all;
    for (const auto& [what, of] : problems_) {
      ImportProblem& problem = all.emplace_back(ImportProblem{what, {}});
      for (const HloInstruction* in : of) {
        if (std::pair at(in->name, in->line); std::ranges::find(problem.of, at) == problem.of.end())
          problem.of.push_back(std::move(at));
      }
    }
    return all;
  }

  Result<ImportedStep> run(const StepBinding& binding) {
    const HloComputation& entry = module_.entry();
    TWINRUN_RETURN_IF_ERROR(count_cores(binding));
    std::vector<HloValue> arguments(entry.parameters.size());
    for (size_t i = 0; i < entry.parameters.size(); ++i) {
      const HloInstruction& p = entry.instructions[static_cast<size_t>(entry.parameters[i])];
      const bool state = i < binding.state.size();
      const std::string& name = state ? binding.state[i] : binding.inputs[i - binding.state.size()];
      const auto dtype = p.shape.is_tuple() ? std::nullopt : dtype_of(p.shape.dtype);
      const bool empty = std::ranges::find(p.shape.dims, 0) != p.shape.dims.end();
      if (!dtype || empty || p.shape.dtype == "f64") {
        problem(p, fmt::format("parameter '{}' of {}; allowed: arrays of f32, bf16, integers, pred",
                               name, to_string(p.shape)));
        continue;
      }
      const TensorType type{*dtype, p.shape.dims};
      const ValueId id = GraphBuilder(graph()).parameter(name, type);
      arguments[i].id = id;
      note_part(p, name, type.dims);
      if (state) {
        out_.program.state.push_back({name, type, binding.roles[i], {}, id, kNoValue});
      } else {
        out_.program.inputs.push_back({name, id, false});
        if (out_.program.batch == 0 && !type.dims.empty()) out_.program.batch = type.dims[0];
      }
    }
    const int64_t cores = shared_.cores.count.cores();
    if (cores > 1) shared_.cores.replica_id = replica_id_of(out_.program);
    // The parameters of a shard_map hold the samples of all cores.
    if (cores > 1 && out_.parts.empty()) out_.program.batch /= cores;
    out_.program.batch = std::max<int64_t>(1, out_.program.batch);
    const HloValue root = inlined(entry, arguments, {});
    if (problems_.empty()) bind_results(entry, root, binding);
    if (!problems_.empty()) return all_problems();
    for (const auto& [note, count] : shared_.notes)
      out_.notes.push_back(count > 1 ? fmt::format("{} ({} times)", note, count) : note);
    out_.exchanges = std::move(shared_.cores.exchanges);
    drop_unread_literals();
    out_.program = prune(out_.program);
    return std::move(out_);
  }

 private:
  Graph& graph() { return out_.program.graph; }

  Status count_cores(const StepBinding& binding) {
    Cores& cores = shared_.cores;
    try {
      cores.count = cores_of(module_);
      if (cores.count.cores() > 1) out_.mesh_axes = mesh_axes(module_, cores.count);
    } catch (const Unsupported& u) {
      return Error{u.what, module_.file, ""};
    }
    out_.program.sharding.cores = static_cast<int>(cores.count.cores());
    cores.literal = [this](const std::string& name, Tensor t) {
      return literal(GraphBuilder(graph()), name, std::move(t));
    };
    for (const auto* names : {&binding.state, &binding.inputs}) {
      if (cores.count.cores() > 1 && std::ranges::find(*names, "replica_id") != names->end())
        return Error{"a parameter is called 'replica_id', which is the number of the core",
                     module_.file, "give it another name"};
    }
    return Ok{};
  }

  void note_part(const HloInstruction& p, const std::string& name, const Dims& dims) {
    try {
      if (auto part = part_of_parameter(module_, p, dims, shared_.cores.count))
        out_.parts[name] = std::move(*part);
    } catch (const Unsupported& u) {
      problem(p, u.what);
    }
  }

  // Literals of which nothing came, such as tables of numbers that other numbers follow from.
  void drop_unread_literals() {
    const std::vector<bool> dead = dead_values(out_.program);
    std::erase_if(out_.program.inputs, [&](const Input& input) {
      return dead[static_cast<size_t>(input.id)] && out_.literals.erase(input.name) > 0;
    });
  }

  void problem(const HloInstruction& in, std::string what) {
    problems_[std::move(what)].push_back(&in);
    ++refused_;
  }

  Error all_problems() const {
    std::vector<std::pair<int, std::string>> listed;
    size_t count = 0;
    for (const auto& [what, of] : problems_) {
      const int first = (*std::ranges::min_element(of, {}, &HloInstruction::line))->line;
      count += of.size();
      listed.emplace_back(first,
                          fmt::format("{}:{}: {}{}", module_.file, first, what,
                                      of.size() > 1 ? fmt::format(" ({} times)", of.size()) : ""));
    }
    std::ranges::sort(listed);
    constexpr size_t kMax = 60;
    std::string what =
        fmt::format("{} instruction{} cannot be imported", count, count == 1 ? "" : "s");
    for (size_t i = 0; i < listed.size() && i < kMax; ++i) what += "\n  " + listed[i].second;
    if (listed.size() > kMax) what += fmt::format("\n  and {} more", listed.size() - kMax);
    return {what, module_.file, ""};
  }

  HloValue inlined(const HloComputation& c, const std::vector<HloValue>& arguments,
                   const CallSite& scope) {
    constexpr int kMaxNested = 64;
    if (depth_ >= kMaxNested)
      throw Unsupported{fmt::format("calls nested more than {} deep", kMaxNested)};
    ++depth_;
    std::vector<HloValue> values(c.instructions.size());
    for (size_t i = 0; i < c.instructions.size(); ++i) {
      const HloInstruction& in = c.instructions[i];
      if (full_) break;
      try {
        values[i] = lowered(c, in, values, arguments, scope);
      } catch (const Unsupported& u) {
        problem(in, u.what);
      } catch (const GraphError& e) {
        problem(in, e.what());
      }
      // Loops may carry large tuples, which each instruction that passes them on copies.
      visited_ += 9 + values[i].size();
      if (!full_ &&
          (graph().size() > kMaxImportedOps || visited_ > 100 * int64_t{kMaxImportedOps})) {
        full_ = true;
        problem(in, fmt::format("more than {} ops once calls are inlined and loops are unrolled{}; "
                                "allowed: fewer layers or iterations",
                                kMaxImportedOps,
                                shared_.iteration.empty()
                                    ? ""
                                    : fmt::format(", reached in iteration {}", shared_.iteration)));
      }
    }
    --depth_;
    return values[static_cast<size_t>(c.root)];
  }

  CallSite scope_of(const HloInstruction& in, const CallSite& outer) const {
    const SourcePath own = source_path(in.op_name);
    CallSite s{own.path, in.source.empty() ? outer.source : in.source,
               own.gradient || outer.gradient};
    if (!own.absolute && !outer.path.empty())
      s.path = own.path.empty() ? outer.path : outer.path + "/" + own.path;
    constexpr size_t kMax = 300;
    if (s.path.size() > kMax) s.path = s.path.substr(s.path.size() - kMax);
    return s;
  }

  HloValue lowered(const HloComputation& c, const HloInstruction& in,
                   const std::vector<HloValue>& values, const std::vector<HloValue>& arguments,
                   const CallSite& scope) {
    if (in.opcode == "parameter") {
      const auto i = static_cast<size_t>(std::stoll(in.literal));
      if (i >= arguments.size()) throw Unsupported{"a call with too few operands"};
      check_shape(in.shape, arguments[i]);
      return arguments[i];
    }
    if (in.opcode == "get-tuple-element") {
      const int64_t index = number_attribute(in, "index");
      const HloValue* of =
          in.operands.size() == 1 ? &values[static_cast<size_t>(in.operands[0])] : nullptr;
      if (of != nullptr && !of->known()) return {};
      if (of == nullptr || index < 0 || index >= static_cast<int64_t>(of->parts.size()))
        throw Unsupported{fmt::format("element {} of a tuple that does not have it", index)};
      return of->parts[static_cast<size_t>(index)];
    }
    std::vector<HloValue> operands;
    for (int o : in.operands) {
      operands.push_back(values[static_cast<size_t>(o)]);
      // An operand was refused and has been reported; report its readers only if they have no rule.
      if (!operands.back().known() && in.opcode != "tuple") {
        check_opcode(in);
        return {};
      }
    }
    if (in.opcode == "tuple") return {kNoValue, std::move(operands)};
    if (in.opcode == "opt-barrier" || (is_mark(in))) {
      if (operands.size() != 1) throw Unsupported{in.opcode + " of several operands"};
      return operands[0];
    }
    if (in.opcode.ends_with("-done") && operands.size() == 1)
      return operands[0].parts.size() > 1 ? operands[0].parts[1] : operands[0];
    const CallSite here = scope_of(in, scope);
    if (in.opcode == "call") {
      return inlined(flow(c, in, here, here).callee(text_attribute(in, "to_apply")), operands,
                     here);
    }
    if (in.opcode == "while" || in.opcode == "conditional") {
      // Places in regions are relative to the function that contains them.
      const ControlFlow f = flow(c, in, here, scope);
      HloValue out = in.opcode == "while" ? lower_while(f, std::move(operands))
                                          : lower_conditional(f, operands);
      if (out.known()) check_shape(in.shape, out);
      return out;
    }
    HloValue out = instruction(c, in, operands, here);
    check_shape(in.shape, out);
    return out;
  }

  ControlFlow flow(const HloComputation& c, const HloInstruction& in, const CallSite& here,
                   const CallSite& inner) {
    const int64_t before = refused_;
    return {module_,
            c,
            in,
            here,
            graph(),
            shared_,
            [this, &inner](const HloComputation& callee, const std::vector<HloValue>& arguments) {
              return inlined(callee, arguments, inner);
            },
            [this, before] { return full_ || refused_ > before; }};
  }

  // Reports an opcode without a rule, even where an operand was refused before it.
  static void check_opcode(const HloInstruction& in) {
    static const std::set<std::string_view> plumbing = {
        "constant", "tuple",       "get-tuple-element", "call",
        "while",    "conditional", "opt-barrier",       "custom-call"};
    if (!rules().contains(in.opcode) && !many_rules().contains(in.opcode) &&
        !plumbing.contains(in.opcode) && !is_across_cores(in))
      throw Unsupported{
          fmt::format("{} ({}); {}", in.opcode, to_string(in.shape), advice(in.opcode))};
  }

  // The phase of what an all-reduce sums.
  Phase phase_of(ValueId id) const {
    while (out_.program.graph.op(id).kind == OpKind::kAllReduce)
      id = out_.program.graph.op(id).operands[0];
    return out_.program.graph.op(id).phase;
  }

  HloValue instruction(const HloComputation& c, const HloInstruction& in,
                       const std::vector<HloValue>& operands, const CallSite& here) {
    std::vector<ValueId> ids;
    Phase phase = here.gradient ? Phase::kGradient : Phase::kForward;
    for (const HloValue& v : operands) {
      if (v.id == kNoValue) throw Unsupported{in.opcode + " of a tuple"};
      ids.push_back(v.id);
      // An instruction that depends on gradients and is not part of them belongs to the update.
      const Phase theirs = phase_of(v.id);
      if (phase == Phase::kForward && theirs != Phase::kForward) phase = Phase::kUpdate;
    }
    const auto is_pair = [&](ValueId id) { return shared_.pairs.contains(id); };
    if (in.opcode != "bitcast-convert" && in.opcode != "rng-bit-generator" &&
        std::ranges::any_of(ids, is_pair))
      throw Unsupported{
          fmt::format("{} of u64 that are made of u32; allowed: rng-bit-generator", in.opcode)};
    std::string path = path_of(in, here);
    if (here.gradient) path += ".grad";
    Site site(module_, c, in, ids, graph(), phase, std::move(path), here.source, shared_);
    const auto results = [&](const std::vector<ValueId>& each) {
      HloValue all;
      for (const ValueId id : each) all.parts.push_back({id, {}});
      return in.shape.is_tuple() ? all : all.parts.at(0);
    };
    if (const auto each = lower_across_cores(site); !each.empty()) return results(each);
    if (in.opcode == "custom-call")
      throw Unsupported{fmt::format("custom-call of {}; allowed: marks of sharding",
                                    text_attribute(in, "custom_call_target"))};
    check_opcode(in);
    check_f64(c, in);
    const auto many = many_rules().find(in.opcode);
    if (many != many_rules().end() && (in.shape.is_tuple() || !rules().contains(in.opcode)))
      return results(many->second(site));
    const auto rule = rules().find(in.opcode);
    const TensorType type = site.result();
    if (type.elements() == 0) return {empty_array(site, type), {}};
    const auto is_empty = [&](ValueId id) { return graph().type(id).elements() == 0; };
    if (in.opcode != "concatenate" && in.opcode != "pad" && std::ranges::any_of(ids, is_empty))
      throw Unsupported{fmt::format(
          "{} of an empty array; allowed: in concatenate and pad, which leave it out", in.opcode)};
    return {in.opcode == "constant" ? constant(site, type) : rule->second(site), {}};
  }

  // The name of an instruction: its position in the source, or its own name. JAX gives a broadcast
  // that it inserts for an op the name of that op, so the name of an instruction that only moves or
  // converts elements gets its opcode appended.
  static std::string path_of(const HloInstruction& in, const CallSite& here) {
    static const std::set<std::string_view> moves = {"broadcast", "reshape", "transpose",
                                                     "convert"};
    if (here.path.empty()) return in.name;
    if (in.op_name.empty()) return here.path + "/" + in.name;
    const size_t last = here.path.rfind('/');
    const std::string word = last == std::string::npos ? here.path : here.path.substr(last + 1);
    return moves.contains(in.opcode) && !word.starts_with(in.opcode) ? here.path + "." + in.opcode
                                                                     : here.path;
  }

  static void check_f64(const HloComputation& c, const HloInstruction& in) {
    if (!keeps_f64_to_constants(c, in))
      throw Unsupported{
          fmt::format("{} of f64; allowed: constants that are converted to f32; compute without "
                      "jax_enable_x64",
                      in.opcode)};
  }

  // Stands for an array without elements. No op reads it.
  ValueId empty_array(Site& site, const TensorType& type) {
    const ValueId zero = site.b.constant(0, type.dtype, site.name("zero"));
    return site.b.broadcast(zero, type.dims, {}, site.name("empty"));
  }

  ValueId constant(Site& site, const TensorType& type) {
    const Tensor t = literal_of(site.in, type);
    if (const auto value = only_value(t)) return site.splat(*value, type, "");
    // A literal in the body of a loop is one input.
    const auto [at, fresh] = literal_ids_.try_emplace(&site.in, kNoValue);
    if (!fresh) return at->second;
    return at->second = literal(site.b, "literal/" + site.in.name, t);
  }

  ValueId literal(GraphBuilder b, std::string name, Tensor t) {
    while (out_.literals.contains(name)) name += "'";
    const ValueId id = b.parameter(name, t.type());
    out_.program.inputs.push_back({name, id, false});
    shared_.constants.declare(id, t);
    out_.literals[name] = std::move(t);
    return id;
  }

  void check_shape(const HloShape& declared, const HloValue& value) const {
    if (declared.is_tuple()) {
      if (declared.parts.size() != value.parts.size())
        throw Unsupported{fmt::format("a tuple of {} where {} is declared", value.parts.size(),
                                      to_string(declared))};
      for (size_t i = 0; i < declared.parts.size(); ++i)
        check_shape(declared.parts[i], value.parts[i]);
      return;
    }
    if (value.id == kNoValue) {
      if (value.parts.empty()) return;  // its instruction was refused and reported before
      throw Unsupported{fmt::format("a tuple where {} is declared", to_string(declared))};
    }
    const TensorType& type = out_.program.graph.type(value.id);
    if (dtype_of(declared.dtype) != type.dtype || declared.dims != type.dims)
      throw Unsupported{fmt::format("declares {}, but its operands give {}", to_string(declared),
                                    to_string(type))};
  }

  void bind_results(const HloComputation& entry, const HloValue& root, const StepBinding& binding) {
    const HloInstruction& in = entry.instructions[static_cast<size_t>(entry.root)];
    const std::vector<HloValue> results =
        root.id == kNoValue ? root.parts : std::vector<HloValue>{root};
    std::set<ValueId> taken;
    for (size_t i = 0; i < out_.program.state.size(); ++i) {
      StateVar& var = out_.program.state[i];
      const int64_t r = binding.results[i];
      if (r < 0) continue;
      ValueId next =
          r < static_cast<int64_t>(results.size()) ? results[static_cast<size_t>(r)].id : kNoValue;
      if (next == kNoValue || graph().type(next) != var.type) {
        problem(in, fmt::format("result {} is not a next value of state '{}', {}", r, var.name,
                                to_string(var.type)));
        continue;
      }
      if (next == var.id) continue;
      // Each state variable needs a next value that is no parameter and that no other variable has:
      // a reshape provides one.
      if (graph().op(next).kind == OpKind::kParameter || !taken.insert(next).second)
        next = GraphBuilder(graph(), "", Phase::kUpdate)
                   .reshape(next, var.type.dims, var.name + ".next");
      var.next = next;
    }
    if (!step_) {
      for (size_t r = 0; r < results.size(); ++r) {
        if (results[r].id == kNoValue) {
          problem(in, fmt::format("result {} is a tuple; allowed: arrays", r));
        } else {
          out_.program.outputs.push_back({fmt::format("result/{}", r), results[r].id});
        }
      }
      return;
    }
    const int64_t l = binding.loss;
    ValueId loss = l >= 0 && l < static_cast<int64_t>(results.size())
                       ? results[static_cast<size_t>(l)].id
                       : kNoValue;
    GraphBuilder b(graph());
    const int64_t cores = shared_.cores.count.cores();
    // Under pmap each core has a loss of its own.
    if (loss != kNoValue && cores > 1 && graph().type(loss).dims == Dims{cores})
      loss = b.gather(loss, b.reshape(shared_.cores.replica_id, {1}, "loss.core"), "loss.of_core");
    const auto is_float = [&] {
      const DType t = graph().type(loss).dtype;
      return is_floating(t) && graph().type(loss).elements() == 1;
    };
    if (loss == kNoValue || !is_float()) {
      problem(in, fmt::format("result {} is not a loss; allowed: a float scalar{}", l,
                              cores > 1 ? ", or one of each core" : ""));
      return;
    }
    if (graph().type(loss).dtype != DType::kF32) loss = b.convert(loss, DType::kF32, "loss.as_f32");
    if (!graph().type(loss).dims.empty()) loss = b.reshape(loss, {}, "loss.scalar");
    out_.program.loss = loss;
    out_.program.outputs.push_back({"loss", loss});
    for (size_t r = 0; r < results.size(); ++r) {
      const auto at = static_cast<int64_t>(r);
      if (at == l || std::ranges::find(binding.results, at) != binding.results.end() ||
          results[r].id == kNoValue)
        continue;
      out_.program.outputs.push_back({fmt::format("result{}", r), results[r].id});
    }
  }

  const HloModule& module_;
  const bool step_;
  ImportedStep out_;
  std::map<std::string, std::vector<const HloInstruction*>> problems_;
  Shared shared_;
  std::unordered_map<const HloInstruction*, ValueId> literal_ids_;
  bool full_ = false;
  int depth_ = 0;
  int64_t refused_ = 0;  // instructions, counted each time
  int64_t visited_ = 0;  // the work so far: instructions, and values that they copied
};

}  // namespace

bool keeps_f64_to_constants(const HloComputation& c, const HloInstruction& in) {
  static const std::set<std::string_view> moves = {"constant", "broadcast", "reshape", "convert"};
  const auto is_f64 = [&](int o) {
    return c.instructions[static_cast<size_t>(o)].shape.dtype == "f64";
  };
  const bool reads = std::ranges::any_of(in.operands, is_f64), writes = in.shape.dtype == "f64";
  return (!reads && !writes) || (moves.contains(in.opcode) && !(writes && in.opcode == "convert"));
}

namespace {

Status check_binding(const HloModule& module, const StepBinding& binding) {
  const size_t parameters = module.entry().parameters.size();
  if (binding.state.size() + binding.inputs.size() != parameters ||
      binding.roles.size() != binding.state.size() ||
      binding.results.size() != binding.state.size())
    return Error{
        fmt::format("{} state variables and {} inputs are named; the program has {} parameters",
                    binding.state.size(), binding.inputs.size(), parameters),
        module.file, "in JAX, jit(step, keep_unused=True) keeps parameters that are not read"};
  std::set<std::string_view> seen;
  for (const auto* names : {&binding.state, &binding.inputs}) {
    for (const std::string& name : *names) {
      if (name.empty())
        return Error{"a state variable or input has an empty name", module.file, ""};
      if (!seen.insert(name).second)
        return Error{fmt::format("two parameters are called '{}'", name), module.file, ""};
    }
  }
  return Ok{};
}

}  // namespace

Result<ImportedStep> import_step(const HloModule& module, const StepBinding& binding,
                                 std::vector<ImportProblem>* problems) {
  TWINRUN_RETURN_IF_ERROR(check_binding(module, binding));
  Importer importer(module, true);
  Result<ImportedStep> step = importer.run(binding);
  if (problems != nullptr) *problems = importer.problems();
  return step;
}

Result<ImportedStep> import_module(const HloModule& module) {
  StepBinding binding;
  for (size_t i = 0; i < module.entry().parameters.size(); ++i)
    binding.inputs.push_back(fmt::format("argument/{}", i));
  return Importer(module, false).run(binding);
}

}  // namespace twinrun
