// MlirModule -> HloModule: translates StableHLO's ops to HLO, as XLA itself does, so that one set
// of rules lowers both texts.
#include "program/import/from_stablehlo.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "program/import/text_cursor.h"

namespace twinrun {
namespace {

bool is_return(const MlirOp& op) {
  return op.name == "return" || op.name == "func.return" || op.name == "stablehlo.return" ||
         op.name == "sdy.return";
}

// "dense<1.0>" -> "1.0"; other literals stay.
std::string elements_of(const std::string& literal) {
  constexpr std::string_view kDense = "dense<";
  if (!literal.starts_with(kDense)) return literal;
  return literal.substr(kDense.size(), literal.size() - kDense.size() - 1);
}

class Translator {
 public:
  explicit Translator(const MlirModule& from) : from_(from) {
    for (size_t i = 0; i < from.functions.size(); ++i) by_name_[from.functions[i].name] = i;
    out_.name = from.name;
    out_.file = from.file;
    out_.replicas = from.replicas;
    out_.partitions = from.partitions;
    out_.meshes = from.meshes;
  }

  Result<HloModule> run() {
    const auto& functions = from_.functions;
    auto main = std::ranges::find(functions, "main", &MlirFunction::name);
    if (main == functions.end() &&
        std::ranges::count(functions, true, &MlirFunction::is_public) == 1)
      main = std::ranges::find(functions, true, &MlirFunction::is_public);
    if (main == functions.end())
      return Error{"the module has no function @main", from_.file,
                   "name the step's function @main"};
    main_ = &*main;
    TWINRUN_RETURN_IF_ERROR(function(*main_));
    out_.entry_index = static_cast<int>(out_.computations.size()) - 1;
    return std::move(out_);
  }

 private:
  using Values = std::unordered_map<std::string, std::vector<int>>;  // instruction of each result

  Error error(int line, std::string what, std::string fix = "") const {
    return {std::move(what), fmt::format("{}:{}", from_.file, line), std::move(fix)};
  }

  // "..mesh_axes<mesh = @mesh, axes = .." gets the mesh itself in the place of its name.
  void name_mesh(HloInstruction& in) const {
    const auto groups = in.attributes.find("replica_groups");
    if (groups == in.attributes.end()) return;
    std::string& text = groups->second;
    const size_t at = text.find("mesh = @");
    if (at == text.npos) return;
    const size_t begin = at + 7, end = std::min(text.find_first_of(",> ", begin), text.size());
    const auto mesh = out_.meshes.find(text.substr(begin + 1, end - begin - 1));
    if (mesh != out_.meshes.end()) text.replace(begin, end - begin, mesh->second);
  }

  // Translates a function, after the functions that it calls.
  Status function(const MlirFunction& f) {
    constexpr size_t kMaxNested = 64;
    if (open_.contains(&f)) return error(f.line, fmt::format("function @{} calls itself", f.name));
    if (open_.size() >= kMaxNested)
      return error(f.line, fmt::format("calls nested more than {} deep", kMaxNested));
    open_.insert(&f);
    TWINRUN_RETURN_IF_ERROR(callees(f.body));
    open_.erase(&f);
    return computation(f.name, f.body, f.line, "@" + f.name);
  }

  Status callees(const MlirRegion& r) {
    for (const MlirOp& op : r.ops) {
      for (const MlirRegion& inner : op.regions) TWINRUN_RETURN_IF_ERROR(callees(inner));
      if (hlo_opcode(op.name) != "call") continue;
      HloInstruction in;
      set_hlo_attributes(op, {}, in);
      const std::string& name = in.attributes["to_apply"];
      const auto found = by_name_.find(name);
      if (found == by_name_.end() || out_.by_name.contains(name)) continue;
      TWINRUN_RETURN_IF_ERROR(function(from_.functions[found->second]));
    }
    return Ok{};
  }

  // A value that a region reads from outside: the name, and the shapes of all results of its op.
  struct Captured {
    std::string name;
    std::vector<HloShape> shapes;
  };

  static int add_parameter(HloComputation& c, HloInstruction p, int line) {
    p.opcode = "parameter";
    p.literal = std::to_string(c.parameters.size());
    p.line = line;
    c.parameters.push_back(static_cast<int>(c.instructions.size()));
    c.instructions.push_back(std::move(p));
    return c.parameters.back();
  }

  Status computation(const std::string& name, const MlirRegion& body, int line,
                     const std::string& what, const std::vector<Captured>& captured = {}) {
    HloComputation c;
    Values values;
    c.name = name;
    for (const MlirArgument& a : body.arguments) {
      HloInstruction p;
      p.name = a.name;
      p.shape = a.shape;
      p.op_name = place(a.location).op_name;
      TWINRUN_RETURN_IF_ERROR(define(values, a.name, {add_parameter(c, std::move(p), line)}, line));
    }
    for (const Captured& from : captured) {
      std::vector<int> of;
      for (const HloShape& shape : from.shapes) {
        HloInstruction p;
        p.name = from.name;
        p.shape = shape;
        of.push_back(add_parameter(c, std::move(p), line));
      }
      TWINRUN_RETURN_IF_ERROR(define(values, from.name, std::move(of), line));
    }
    for (size_t i = 0; i < body.ops.size(); ++i) {
      const MlirOp& op = body.ops[i];
      if (is_return(op) != (i + 1 == body.ops.size()))
        return error(op.line,
                     fmt::format("'{}' in {}; allowed: one return, at the end", op.name, what));
      if (is_return(op)) {
        TWINRUN_RETURN_IF_ERROR(returned(c, values, op));
      } else {
        TWINRUN_RETURN_IF_ERROR(instruction(c, values, op));
      }
    }
    if (c.root < 0) return error(line, fmt::format("{} returns nothing", what));
    if (!out_.by_name.emplace(name, out_.computations.size()).second)
      return error(line, fmt::format("function @{} is defined twice", name));
    out_.computations.push_back(std::move(c));
    return Ok{};
  }

  // A single returned value is the root itself; several form a tuple. The results of the step
  // always form a tuple.
  Status returned(HloComputation& c, const Values& values, const MlirOp& op) {
    HloInstruction tuple;
    TWINRUN_ASSIGN(tuple.operands, operands(values, op));
    if (tuple.operands.size() == 1 && c.name != main_->name) {
      c.root = tuple.operands[0];
      return Ok{};
    }
    tuple.name = "results";
    tuple.opcode = "tuple";
    tuple.line = op.line;
    for (int o : tuple.operands)
      tuple.shape.parts.push_back(c.instructions[static_cast<size_t>(o)].shape);
    c.root = static_cast<int>(c.instructions.size());
    c.instructions.push_back(std::move(tuple));
    return Ok{};
  }

  Result<std::vector<int>> operands(const Values& values, const MlirOp& op) const {
    std::vector<int> out;
    for (const std::string& ref : op.operands) {
      const size_t hash = std::min(ref.find('#'), ref.size());
      const auto found = values.find(ref.substr(0, hash));
      const int64_t i = hash == ref.size() ? 0 : number(ref.substr(hash + 1)).value_or(-1);
      const bool there = found != values.end() && i >= 0 &&
                         i < static_cast<int64_t>(found->second.size()) &&
                         (hash < ref.size() || found->second.size() == 1);
      if (!there) return error(op.line, fmt::format("'%{}' is not defined before this line", ref));
      out.push_back(found->second[static_cast<size_t>(i)]);
    }
    return out;
  }

  Status define(Values& values, const std::string& name, std::vector<int> of, int line) const {
    if (values.emplace(name, std::move(of)).second) return Ok{};
    return error(line, fmt::format("'%{}' is defined twice", name));
  }

  // sdy.manual_computation becomes what XLA makes of it: its shards are cut from global arrays, its
  // region is called, and the results are global arrays again.
  Status manual_computation(HloComputation& c, Values& values, const MlirOp& op) {
    if (op.regions.size() != 1)
      return error(op.line, fmt::format("{} with {} regions", op.name, op.regions.size()));
    const std::string body = fmt::format("region {}", ++regions_);
    TWINRUN_RETURN_IF_ERROR(computation(body, op.regions[0], op.line, "a region of " + op.name));
    const HloComputation& callee = out_.computations.back();
    TWINRUN_ASSIGN(std::vector<int> given, operands(values, op));
    HloInstruction in;
    in.line = op.line;
    in.opcode = "custom-call";
    for (const auto& [key, value] : op.attributes) in.attributes[key] = value;
    HloInstruction out = in, call = in;
    // The elements of a tuple with this shape, or the instruction itself if it is no tuple.
    const auto parts_of = [&](int tuple) {
      std::vector<int> parts;
      const HloInstruction from = c.instructions[static_cast<size_t>(tuple)];
      for (size_t i = 0; i < from.shape.parts.size(); ++i) {
        HloInstruction part;
        part.name = fmt::format("{}.{}", from.name, i);
        part.opcode = "get-tuple-element";
        part.shape = from.shape.parts[i];
        part.operands = {tuple};
        part.attributes["index"] = std::to_string(i);
        part.line = op.line;
        parts.push_back(static_cast<int>(c.instructions.size()));
        c.instructions.push_back(std::move(part));
      }
      return from.shape.is_tuple() ? parts : std::vector<int>{tuple};
    };
    const auto add = [&](HloInstruction one) {
      c.instructions.push_back(std::move(one));
      return parts_of(static_cast<int>(c.instructions.size()) - 1);
    };
    if (!given.empty()) {
      in.name = "global_to_local";
      in.attributes["custom_call_target"] = "\"xla.sdy.GlobalToLocalShape\"";
      in.operands = given;
      for (int p : callee.parameters)
        in.shape.parts.push_back(callee.instructions[static_cast<size_t>(p)].shape);
      given = add(in);
    }
    call.name = "manual_computation";
    call.opcode = "call";
    call.op_name = place(op.location).op_name;
    call.attributes = {{"to_apply", body}};
    call.shape = callee.instructions[static_cast<size_t>(callee.root)].shape;
    call.operands = given;
    out.name = "local_to_global";
    out.attributes["custom_call_target"] = "\"xla.sdy.LocalToGlobalShape\"";
    out.operands = add(std::move(call));
    out.shape.parts = op.types;
    const std::vector<int> results = add(std::move(out));
    size_t next = 0;
    for (const MlirOp::Result& r : op.results) {
      const auto begin = results.begin() + static_cast<std::ptrdiff_t>(next);
      next += r.count;
      TWINRUN_RETURN_IF_ERROR(define(
          values, r.name, {begin, results.begin() + static_cast<std::ptrdiff_t>(next)}, op.line));
    }
    return Ok{};
  }

  Status instruction(HloComputation& c, Values& values, const MlirOp& op) {
    if (op.name == "sdy.manual_computation") return manual_computation(c, values, op);
    HloInstruction in;
    in.opcode = hlo_opcode(op.name);
    in.line = op.line;
    TWINRUN_ASSIGN(in.operands, operands(values, op));
    if (in.opcode == "opt-barrier" && in.operands.size() == op.types.size()) {
      size_t next = 0;
      for (const MlirOp::Result& r : op.results) {
        const auto begin = in.operands.begin() + static_cast<std::ptrdiff_t>(next);
        next += r.count;
        std::vector<int> same(begin, in.operands.begin() + static_cast<std::ptrdiff_t>(next));
        TWINRUN_RETURN_IF_ERROR(define(values, r.name, std::move(same), op.line));
      }
      return Ok{};
    }
    if (op.name == "chlo.square" && in.operands.size() == 1) in.operands.push_back(in.operands[0]);
    const std::string name = op.results.empty() ? "" : op.results[0].name;
    const bool numbered = number(name).has_value();
    in.name = numbered || name.empty() ? in.opcode + "." + name : name;
    const MlirPlace at = place(op.location);
    in.op_name = at.op_name;
    in.source = at.source;
    in.shape.parts = op.types;
    if (op.types.size() == 1) in.shape = HloShape(op.types[0]);
    std::vector<const HloShape*> shapes;
    for (int o : in.operands) shapes.push_back(&c.instructions[static_cast<size_t>(o)].shape);
    set_hlo_attributes(op, shapes, in);
    name_mesh(in);
    // In text without locations the name of the function that is called serves as one.
    if (in.opcode == "call" && op.location.empty()) in.op_name = in.attributes["to_apply"];
    if (in.opcode == "while" || in.opcode == "conditional") {
      TWINRUN_RETURN_IF_ERROR(control_flow(c, values, op, in));
    } else {
      TWINRUN_RETURN_IF_ERROR(regions(op, in));
    }
    if (in.opcode == "constant") {
      const auto value = op.attributes.find("value");
      in.literal = elements_of(value == op.attributes.end() ? op.literal : value->second);
      in.op_name.clear();  // JAX gives it the name of the op that reads it
      if (!in.shape.dims.empty() && in.literal.find_first_of("[\"<") == std::string::npos &&
          !in.literal.empty())
        in = splat(c, std::move(in));
    }
    return push(c, values, op, std::move(in));
  }

  // dense<0.0> : tensor<4x4xf32> becomes a scalar constant and its broadcast.
  static HloInstruction splat(HloComputation& c, HloInstruction in) {
    HloInstruction all = in;
    all.name += ".splat";
    all.opcode = "broadcast";
    all.literal.clear();
    all.attributes["dimensions"] = "{}";
    all.operands = {static_cast<int>(c.instructions.size())};
    in.shape.dims.clear();
    c.instructions.push_back(std::move(in));
    return all;
  }

  // Adds the instruction. If the op has several results, they become the elements of a tuple.
  Status push(HloComputation& c, Values& values, const MlirOp& op, HloInstruction in) {
    const int tuple = static_cast<int>(c.instructions.size());
    const bool several = in.shape.is_tuple();
    const std::vector<HloShape> parts = in.shape.parts;
    const HloInstruction like = in;
    c.instructions.push_back(std::move(in));
    size_t next = 0;
    for (const MlirOp::Result& r : op.results) {
      std::vector<int> of;
      for (size_t i = 0; i < r.count; ++i, ++next) {
        of.push_back(several ? static_cast<int>(c.instructions.size()) : tuple);
        if (!several) continue;
        HloInstruction element;
        element.name = fmt::format("{}.{}", like.name, next);
        element.opcode = "get-tuple-element";
        element.shape = parts[next];
        element.operands = {tuple};
        element.attributes["index"] = std::to_string(next);
        element.line = like.line;
        c.instructions.push_back(std::move(element));
      }
      TWINRUN_RETURN_IF_ERROR(define(values, r.name, std::move(of), op.line));
    }
    return Ok{};
  }

  // Makes computations of the functions that an op applies: its regions, or the op that "applies
  // stablehlo.add" names.
  Status regions(const MlirOp& op, HloInstruction& in) {
    static const std::map<std::string_view, std::vector<std::string>> keys = {
        {"reduce", {"to_apply"}},
        {"reduce-window", {"to_apply"}},
        {"scatter", {"to_apply"}},
        {"sort", {"to_apply"}},
        {"all-reduce", {"to_apply"}},
        {"reduce-scatter", {"to_apply"}},
        {"select-and-scatter", {"select", "scatter"}}};
    const auto found = keys.find(in.opcode);
    if (found == keys.end()) return Ok{};
    const auto applies = std::ranges::find(op.words, "applies");
    if (applies != op.words.end() && applies + 1 != op.words.end()) {
      in.attributes["to_apply"] = applied(*(applies + 1), op.line);
      return Ok{};
    }
    for (size_t i = 0; i < found->second.size() && i < op.regions.size(); ++i) {
      const std::string name = fmt::format("region {}", ++regions_);
      TWINRUN_RETURN_IF_ERROR(computation(name, op.regions[i], op.line, "a region of " + op.name));
      in.attributes[found->second[i]] = name;
    }
    return Ok{};
  }

  // Names that the region reads and does not define, in order.
  static void free_names(const MlirRegion& r, std::set<std::string>& seen,
                         std::vector<std::string>& out) {
    std::vector<std::string> own;
    const auto define = [&](const std::string& name) {
      if (seen.insert(name).second) own.push_back(name);
    };
    for (const MlirArgument& a : r.arguments) define(a.name);
    for (const MlirOp& op : r.ops) {
      for (const std::string& ref : op.operands) {
        std::string name = ref.substr(0, ref.find('#'));
        if (seen.insert(name).second) out.push_back(std::move(name));
      }
      for (const MlirRegion& inner : op.regions) free_names(inner, seen, out);
      for (const MlirOp::Result& result : op.results) define(result.name);
    }
    for (const std::string& name : own) seen.erase(name);
  }

  // Regions of loops and conditionals read values from outside. These become additional operands,
  // and additional parameters of every region.
  Status control_flow(const HloComputation& c, const Values& values, const MlirOp& op,
                      HloInstruction& in) {
    std::vector<std::string> names;
    std::set<std::string> seen;
    for (const MlirRegion& r : op.regions) free_names(r, seen, names);
    if (in.opcode == "while") in.attributes["carried"] = std::to_string(in.operands.size());
    std::vector<Captured> captured;
    for (const std::string& name : names) {
      const auto found = values.find(name);
      if (found == values.end()) continue;  // an error in the region
      captured.push_back({name, {}});
      for (const int i : found->second) {
        in.operands.push_back(i);
        captured.back().shapes.push_back(c.instructions[static_cast<size_t>(i)].shape);
      }
    }
    in.attributes["captured"] = "true";
    std::vector<std::string> branches;
    for (const MlirRegion& r : op.regions) {
      branches.push_back(fmt::format("region {}", ++regions_));
      TWINRUN_RETURN_IF_ERROR(
          computation(branches.back(), r, op.line, "a region of " + op.name, captured));
    }
    const bool two = in.opcode == "while" || op.name == "stablehlo.if";
    if (branches.empty() || (two && branches.size() != 2))
      return error(op.line, fmt::format("{} with {} regions", op.name, branches.size()));
    if (two) {
      in.attributes[in.opcode == "while" ? "condition" : "true_computation"] = branches[0];
      in.attributes[in.opcode == "while" ? "body" : "false_computation"] = branches[1];
    } else {
      in.attributes["branch_computations"] = fmt::format("{}", fmt::join(branches, ","));
    }
    return Ok{};
  }

  std::string applied(const std::string& op, int line) {
    HloComputation c;
    c.name = "applies " + op;
    if (out_.by_name.contains(c.name)) return c.name;
    for (const char* name : {"a", "b"}) {
      HloInstruction p;
      p.name = name;
      p.opcode = "parameter";
      p.shape.dtype = "f32";
      p.literal = std::to_string(c.parameters.size());
      p.line = line;
      c.parameters.push_back(static_cast<int>(c.instructions.size()));
      c.instructions.push_back(std::move(p));
    }
    HloInstruction root = c.instructions[0];
    root.opcode = hlo_opcode(op);
    root.operands = {0, 1};
    c.root = 2;
    c.instructions.push_back(std::move(root));
    out_.by_name[c.name] = out_.computations.size();
    out_.computations.push_back(std::move(c));
    return out_.computations.back().name;
  }

  const MlirPlace& place(const std::string& location) {
    const auto [at, fresh] = places_.try_emplace(location);
    if (fresh) at->second = place_of(from_, location);
    return at->second;
  }

  const MlirModule& from_;
  HloModule out_;
  std::unordered_map<std::string, size_t> by_name_;
  const MlirFunction* main_ = nullptr;
  int regions_ = 0;
  std::set<const MlirFunction*> open_;  // functions whose callees are being translated
  std::unordered_map<std::string, MlirPlace> places_;
};

}  // namespace

Result<HloModule> parse_stablehlo(std::string_view text, const std::string& file, HloUse use) {
  TWINRUN_ASSIGN(const MlirModule module, parse_mlir(text, file, use));
  return Translator(module).run();
}

}  // namespace twinrun
