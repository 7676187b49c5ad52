// Unrolls loops whose conditions are known, and lowers conditionals.
#include "program/import/control_flow.h"

#include <fmt/format.h>

namespace twinrun {
namespace {

std::string name_here(const ControlFlow& f, std::string_view local) {
  return fmt::format("{}{}{}{}{}", f.scope.path.empty() ? f.in.name : f.scope.path, local,
                     f.shared.iteration, f.scope.source.empty() ? "" : "@", f.scope.source);
}

struct RestoredText {
  explicit RestoredText(std::string& text) : text(text), value(text) {}
  RestoredText(const RestoredText&) = delete;
  RestoredText& operator=(const RestoredText&) = delete;
  ~RestoredText() { text = value; }
  std::string& text;
  const std::string value;
};

// Carried counters become constants again, so that an iteration does not depend on the one before.
void fold(const ControlFlow& f, HloValue& v, const std::string& local) {
  for (size_t i = 0; i < v.parts.size(); ++i) fold(f, v.parts[i], fmt::format("{}.{}", local, i));
  if (v.id == kNoValue) return;
  const TensorType type = f.graph.type(v.id);
  const OpKind kind = f.graph.op(v.id).kind;
  if (is_floating(type.dtype) || !type.dims.empty() || kind == OpKind::kConstant) return;
  const auto value = f.shared.constants.integer(v.id);
  if (value)
    v.id = GraphBuilder(f.graph, "", f.graph.op(v.id).phase)
               .constant(static_cast<double>(*value), type.dtype, name_here(f, local));
}

bool same(const HloValue& a, const HloValue& b) {
  return a.id == b.id &&
         std::ranges::equal(a.parts, b.parts,
                            [](const HloValue& p, const HloValue& q) { return same(p, q); });
}

// Whether the body returned what it was given: one tuple, or `carried` separate values.
bool same(const HloValue& next, const std::vector<HloValue>& operands, size_t carried) {
  if (carried < 2) return same(next, operands[0]);
  return std::equal(next.parts.begin(), next.parts.end(), operands.begin(),
                    operands.begin() + static_cast<std::ptrdiff_t>(carried),
                    [](const HloValue& p, const HloValue& q) { return same(p, q); });
}

// The names in "{a, %b}".
std::vector<std::string> names_in(std::string_view list) {
  std::vector<std::string> out(1);
  for (const char c : list) {
    if (c == ',') out.emplace_back();
    if (c != ',' && c != '{' && c != '}' && c != '%' && !(c == ' ' && out.back().empty()))
      out.back() += c;
  }
  return out;
}

HloValue selected(const ControlFlow& f, ValueId p, const HloValue& yes, const HloValue& no) {
  if (yes.parts.size() != no.parts.size() || (yes.id == kNoValue) != (no.id == kNoValue))
    throw Unsupported{"branches with different results"};
  HloValue out;
  for (size_t i = 0; i < yes.parts.size(); ++i)
    out.parts.push_back(selected(f, p, yes.parts[i], no.parts[i]));
  if (yes.id == kNoValue || yes.id == no.id) return {yes.id, std::move(out.parts)};
  GraphBuilder b(
      f.graph, "",
      std::max({f.graph.op(p).phase, f.graph.op(yes.id).phase, f.graph.op(no.id).phase}));
  const Dims dims = b.type(yes.id).dims;
  const auto name = [&](std::string_view local) {
    std::string n = name_here(f, local);
    const int count = ++f.shared.names[n];
    return count > 1 ? fmt::format("{}:{}", n, count) : n;
  };
  if (!dims.empty()) p = b.broadcast(p, dims, {}, name(".predicate"));
  out.id = b.select(p, yes.id, no.id, name(".select"));
  return out;
}

}  // namespace

const HloComputation& ControlFlow::callee(const std::string& name) const {
  const HloComputation* c = module.find(name);
  if (c == nullptr || c == &module.entry())
    throw Unsupported{fmt::format("{} of '{}': no such computation", in.opcode, name)};
  if (c >= &caller)
    throw Unsupported{fmt::format("a {} of a computation that is defined later", in.opcode)};
  return *c;
}

HloValue lower_while(const ControlFlow& f, std::vector<HloValue> operands) {
  const HloComputation& condition = f.callee(text_attribute(f.in, "condition"));
  const HloComputation& body = f.callee(text_attribute(f.in, "body"));
  const bool separate = f.in.attributes.contains("carried");
  const auto carried = static_cast<size_t>(number_attribute(f.in, "carried", 1));
  if (operands.size() < carried || (!separate && operands.size() != 1) || carried < 1)
    throw Unsupported{fmt::format("while with {} operands", operands.size())};
  const RestoredText outer(f.shared.iteration);
  for (int64_t k = 0;; ++k) {
    f.shared.iteration = fmt::format("{}[{}]", outer.value, k);
    for (size_t i = 0; i < carried; ++i) fold(f, operands[i], fmt::format(".carry{}", i));
    const HloValue again = f.inlined(condition, operands);
    if (f.stopped()) return {};
    const auto known = again.id == kNoValue ? std::nullopt : f.shared.constants.integer(again.id);
    if (!known)
      throw Unsupported{fmt::format(
          "while whose condition (line {}) {}; allowed: a number of iterations that does not "
          "depend "
          "on data, as of jax.lax.scan, or fori_loop between constants",
          condition.instructions[static_cast<size_t>(condition.root)].line,
          k == 0 ? "depends on data" : fmt::format("depends on data from iteration {} on", k))};
    if (*known == 0) break;
    HloValue next = f.inlined(body, operands);
    if (f.stopped()) return {};
    if (separate && carried > 1 && next.parts.size() != carried)
      throw Unsupported{
          fmt::format("while of {} values whose body returns {}", carried, next.parts.size())};
    if (same(next, operands, separate ? carried : 0))
      throw Unsupported{"while that never ends: an iteration changes nothing"};
    if (!separate || carried == 1)
      operands[0] = std::move(next);
    else
      std::ranges::move(next.parts, operands.begin());
  }
  operands.resize(carried);
  if (carried == 1) return std::move(operands[0]);
  return {kNoValue, std::move(operands)};
}

HloValue lower_conditional(const ControlFlow& f, const std::vector<HloValue>& operands) {
  std::vector<std::string> names = names_in(text_attribute(f.in, "branch_computations"));
  if (f.in.attributes.contains("true_computation"))
    names = {text_attribute(f.in, "false_computation"), text_attribute(f.in, "true_computation")};
  const bool captured = f.in.attributes.contains("captured");
  const bool two = f.in.attributes.contains("true_computation");
  if (operands.empty() || operands[0].id == kNoValue ||
      f.graph.type(operands[0].id).elements() != 1 ||
      is_floating(f.graph.type(operands[0].id).dtype) ||
      (!captured && operands.size() != names.size() + 1))
    throw Unsupported{
        fmt::format("conditional of {} branches with {} operands", names.size(), operands.size())};
  const auto branch = [&](size_t i) {
    // The operand of the true computation comes first.
    const size_t own = two ? 2 - i : i + 1;
    const auto begin = operands.begin() + static_cast<std::ptrdiff_t>(captured ? 1 : own);
    return f.inlined(f.callee(names[i]), {begin, captured ? operands.end() : begin + 1});
  };
  const auto last = static_cast<int64_t>(names.size()) - 1;
  if (const auto known = f.shared.constants.integer(operands[0].id))
    return branch(static_cast<size_t>(*known < 0 || *known > last ? last : *known));
  ++f.shared.notes["a conditional that depends on data is computed in all branches, and selected"];
  HloValue out = branch(static_cast<size_t>(last));
  for (int64_t i = last - 1; i >= 0 && !f.stopped(); --i) {
    const HloValue other = branch(static_cast<size_t>(i));
    if (f.stopped() || !other.known() || !out.known()) return {};
    ValueId choice = operands[0].id;
    GraphBuilder b(f.graph, "", f.graph.op(choice).phase);
    const TensorType type = b.type(choice);
    if (!type.dims.empty()) choice = b.reshape(choice, {}, name_here(f, ".choice"));
    if (type.dtype == DType::kPred && i == 0) {
      out = selected(f, choice, out, other);
      continue;
    }
    const ValueId number =
        b.constant(static_cast<double>(i), type.dtype, name_here(f, fmt::format(".branch{}", i)));
    const ValueId taken =
        b.compare(CompareKind::kEq, choice, number, name_here(f, fmt::format(".takes{}", i)));
    out = selected(f, taken, other, out);
  }
  return f.stopped() ? HloValue{} : out;
}

}  // namespace twinrun
