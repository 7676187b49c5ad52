// Sorts the ops of a program or a text into phases and layers, and has them laid out.
#include "harness/check/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "device/layout.h"
#include "harness/check/rules.h"
#include "program/analysis/fusion.h"
#include "program/graph/liveness.h"
#include "program/import/names.h"

namespace twinrun {
namespace check {
namespace {

// In points: room for a name of 20 letters and a line below it.
constexpr double kBoxWidth = 158, kBoxHeight = 40;

// Where an op is drawn: its phase, and within it its layer.
struct Place {
  int phase = 0;
  std::string group;
};

constexpr const char* kPhases[] = {"Forward", "Gradient", "Update"};

std::string first_part(const std::string& path) {
  const size_t slash = path.find('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

class Sorter {
 public:
  Sorter() { page_.phases = {{kPhases[0], {}, {}}, {kPhases[1], {}, {}}, {kPhases[2], {}, {}}}; }

  int add(DrawnOp op, Place place) {
    const int index = static_cast<int>(page_.ops.size());
    page_.ops.push_back(std::move(op));
    auto& groups = page_.phases[static_cast<size_t>(place.phase)].groups;
    const auto [at, fresh] = known_.try_emplace({place.phase, place.group}, groups.size());
    if (fresh) groups.push_back({place.group, {}, {}});
    groups[at->second].ops.push_back(index);
    return index;
  }

  int add_fusion(std::string name, std::string what) {
    page_.fusions.emplace_back(std::move(name), std::move(what));
    return static_cast<int>(page_.fusions.size()) - 1;
  }
  DrawnOp& op(int index) { return page_.ops[static_cast<size_t>(index)]; }
  void reads(int op, int operand) {
    page_.ops[static_cast<size_t>(op)].operands.push_back(operand);
  }

  Result<GraphPage> laid_out() {
    std::erase_if(page_.phases, [](const DrawnPhase& p) { return p.groups.empty(); });
    std::vector<int> phase_of(page_.ops.size()), group_of(page_.ops.size()),
        within(page_.ops.size());
    for (size_t p = 0; p < page_.phases.size(); ++p) {
      for (size_t g = 0; g < page_.phases[p].groups.size(); ++g) {
        const std::vector<int>& ops = page_.phases[p].groups[g].ops;
        for (size_t i = 0; i < ops.size(); ++i) {
          const auto op = static_cast<size_t>(ops[i]);
          phase_of[op] = static_cast<int>(p);
          group_of[op] = static_cast<int>(g);
          within[op] = static_cast<int>(i);
        }
      }
    }
    std::vector<Sketch> sketches;
    for (const DrawnPhase& phase : page_.phases) {
      sketches.push_back(boxes(phase.groups.size()));
      for (const DrawnGroup& g : phase.groups) {
        sketches.push_back(boxes(g.ops.size()));
        for (const int op : g.ops)
          sketches.back().fusions.push_back(page_.ops[static_cast<size_t>(op)].fusion);
      }
    }
    std::vector<size_t> first;  // index of each phase's sketch; those of its groups follow it
    for (size_t p = 0, at = 0; p < page_.phases.size(); ++p) {
      first.push_back(at);
      at += 1 + page_.phases[p].groups.size();
    }
    for (size_t to = 0; to < page_.ops.size(); ++to) {
      for (const int operand : page_.ops[to].operands) {
        const auto from = static_cast<size_t>(operand);
        if (phase_of[from] != phase_of[to]) continue;
        const size_t at = first[static_cast<size_t>(phase_of[to])];
        if (group_of[from] == group_of[to]) {
          sketches[at + 1 + static_cast<size_t>(group_of[to])].arrows.emplace_back(within[from],
                                                                                   within[to]);
        } else {
          sketches[at].arrows.emplace_back(group_of[from], group_of[to]);
        }
      }
    }
    for (Sketch& s : sketches) {
      std::ranges::sort(s.arrows);
      s.arrows.erase(std::unique(s.arrows.begin(), s.arrows.end()), s.arrows.end());
    }
    TWINRUN_ASSIGN(std::vector<Drawing> drawings, lay_out(sketches));
    for (size_t p = 0; p < page_.phases.size(); ++p) {
      DrawnPhase& phase = page_.phases[p];
      phase.drawing = std::move(drawings[first[p]]);
      for (size_t g = 0; g < phase.groups.size(); ++g)
        phase.groups[g].inside = std::move(drawings[first[p] + 1 + g]);
    }
    return std::move(page_);
  }

 private:
  static Sketch boxes(size_t count) {
    return {std::vector<Drawing::Box>(count, {0, 0, kBoxWidth, kBoxHeight}), {}, {}};
  }

  GraphPage page_;
  std::map<std::pair<int, std::string>, size_t> known_;
};

// The fusion units in which the step runs (program/analysis/fusion.h), as the profile has them.
void add_plan(const Program& program, Sorter& to) {
  const FusionPlan plan = plan_fusion(program, constant_values(program));
  for (const FusionGroup& group : plan.groups) {
    if (group.ops.size() < 2) continue;
    const int fusion = to.add_fusion(
        program.graph.op(group.ops.back().id).name,
        fmt::format("{} ops in one pass over {} elements: {} arrays read, {} written",
                    group.ops.size(), group.elements, group.sources.size(), group.stored.size()));
    for (const FusedOp& op : group.ops) {
      // What several fusions compute, each for itself, is drawn in the first.
      if (to.op(op.id).fusion < 0) to.op(op.id).fusion = fusion;
    }
  }
}

void add_program(const Program& program, Sorter& to) {
  for (const Op& op : program.graph.ops()) {
    const bool of_gradient =
        op.phase == Phase::kGradient ||
        (op.phase == Phase::kCollective && op.name.find(".grad") != std::string::npos);
    Place place{op.phase == Phase::kUpdate ? 2 : of_gradient ? 1 : 0, first_part(op.name)};
    if (place.group.empty()) place.group = op.kind == OpKind::kParameter ? "inputs" : "step";
    to.add({op.name,
            std::string(name_of(op.kind)),
            to_string(op.type),
            tpu::to_string(op.type, tpu::default_layout(op.type)),
            true,
            "",
            {op.operands.begin(), op.operands.end()}},
           std::move(place));
  }
  add_plan(program, to);
}

// The errors, by the ops that they name.
using WrongOps = std::map<std::string, const RuleFinding*>;

WrongOps wrong_ops(const std::vector<RuleFinding>& findings) {
  WrongOps wrong;
  for (const RuleFinding& f : findings) {
    if (f.severity != Severity::kError) continue;
    for (const std::string& op : f.ops) wrong.try_emplace(op, &f);
  }
  return wrong;
}

void colour(DrawnOp& op, const std::string& id, const WrongOps& wrong) {
  const auto found = wrong.find(id);
  if (found == wrong.end()) return;
  op.compatible = false;
  op.why = found->second->found;
}

// Adds the instructions of a text, grouped by their path in the source if the text gives one, else
// by computation. The instructions of a computation that a `fusion` calls are that fusion.
void add_text(const HloModule& module, const WrongOps& wrong, Sorter& to) {
  std::map<std::string, const HloInstruction*> fused;  // by the computation that is called
  for (const HloComputation& c : module.computations) {
    for (const HloInstruction& in : c.instructions) {
      if (in.opcode != "fusion") continue;
      const auto calls = in.attributes.find("calls");
      if (calls == in.attributes.end()) continue;
      fused.try_emplace(calls->second.substr(calls->second.starts_with('%') ? 1 : 0), &in);
    }
  }
  for (const HloComputation& c : module.computations) {
    const bool entry = &c == &module.entry();
    int fusion = -1;
    if (const auto by = fused.find(c.name); by != fused.end()) {
      const auto kind = by->second->attributes.find("kind");
      fusion = to.add_fusion(
          by->second->name,
          fmt::format("{} instructions, {}", c.instructions.size(),
                      kind == by->second->attributes.end() ? "of no kind" : kind->second));
    }
    std::vector<int> drawn;
    for (const HloInstruction& in : c.instructions) {
      const SourcePath source = source_path(in.op_name);
      Place place{source.gradient ? 1 : 0, first_part(source.path)};
      if (place.group.empty())
        place.group = !entry ? c.name : in.opcode == "parameter" ? "inputs" : "main";
      // A fusion is drawn together, wherever its instructions come from.
      if (fusion >= 0) place = {place.phase, fused.at(c.name)->name};
      DrawnOp op;
      op.fusion = fusion;
      op.name = place.group + "/" + in.name;
      op.kind = in.opcode;
      op.shape = to_string(in.shape);
      if (const auto dtype = parse_dtype(in.shape.dtype == "s32" ? "i32" : in.shape.dtype);
          dtype && !in.shape.dynamic) {
        const TensorType type{*dtype, in.shape.dims};
        op.layout = tpu::to_string(type, tpu::default_layout(type));
      }
      colour(op, op_id(in), wrong);
      for (const int o : in.operands) op.operands.push_back(drawn[static_cast<size_t>(o)]);
      drawn.push_back(to.add(std::move(op), std::move(place)));
    }
  }
}

// The scope that most nodes with a scope share, "model/": it is left out.
std::string common_scope(const TfBody& body) {
  std::map<std::string, size_t> counts;
  size_t scoped = 0;
  for (const TfNode& n : body.nodes) {
    const std::string first = first_part(std::string(n.name));
    if (first.empty()) continue;
    ++scoped;
    if (n.name.find('/', first.size() + 1) != std::string_view::npos) ++counts[first];
  }
  for (const auto& [scope, count] : counts) {
    if (2 * count > scoped) return scope + "/";
  }
  return "";
}

// Adds what of a TensorFlow graph runs on the TPU, grouped by the scopes of its names, else by
// function.
void add_graph(const TfStep& step, const WrongOps& wrong, Sorter& to) {
  for (const TfBody& body : step.bodies) {
    const std::string scope = common_scope(body);
    std::map<std::string_view, int> drawn;
    for (size_t i = 0; i < body.nodes.size(); ++i) {
      if (!body.on_tpu[i]) continue;
      const TfNode& n = body.nodes[i];
      std::string name(n.name);
      const bool gradient = name.find("gradient") != std::string::npos;
      const bool update = n.op.find("Apply") != std::string_view::npos ||
                          (n.op.starts_with("Assign") && n.op.ends_with("VariableOp"));
      if (name.starts_with(scope)) name.erase(0, scope.size());
      Place place{update ? 2 : gradient ? 1 : 0, first_part(name)};
      if (place.group.empty())
        place.group = !body.name.empty() ? body.name : n.op == "Placeholder" ? "inputs" : "main";
      DrawnOp op;
      op.name = first_part(name).empty() ? place.group + "/" + name : name;
      op.kind = n.op;
      if (const TfAttribute* shapes = n.find("_output_shapes"); shapes && !shapes->shapes.empty())
        op.shape = to_string(shapes->shapes[0]);
      colour(op, tf_node_id(body, n), wrong);
      drawn[n.name] = to.add(std::move(op), std::move(place));
    }
    for (const TfNode& n : body.nodes) {
      const auto reader = drawn.find(n.name);
      if (reader == drawn.end()) continue;
      for (const std::string_view input : n.inputs) {
        if (input.starts_with('^')) continue;
        const auto read = drawn.find(node_of(input));
        if (read != drawn.end()) to.reads(reader->second, read->second);
      }
    }
  }
}

}  // namespace
}  // namespace check

Result<GraphPage> draw(const Checked& checked) {
  check::Sorter sorter;
  if (checked.text) {
    check::add_text(*checked.text, check::wrong_ops(checked.findings), sorter);
  } else if (checked.graph) {
    check::add_graph(checked.tf_step, check::wrong_ops(checked.findings), sorter);
  } else if (checked.step) {
    check::add_program(*checked.step, sorter);
  } else {
    return Error{"there is no program to draw: " + checked.no_step, checked.name, ""};
  }
  TWINRUN_ASSIGN(GraphPage page, sorter.laid_out());
  page.title = checked.name;
  if (checked.graph)
    page.about = fmt::format("what of this {} runs on the TPU", checked.graph->kind);
  if (checked.step)
    page.about = checked.step->sharding.cores == 1
                     ? "the step of one core"
                     : fmt::format("the step of each of {} cores", checked.step->sharding.cores);
  if (checked.step && checked.batch > 0) {
    const int64_t drawn = checked.step->batch * checked.step->sharding.cores;
    if (drawn != checked.batch)
      page.about += fmt::format(
          ", with a batch of {} in place of the {} given, which they cannot "
          "share",
          drawn, checked.batch);
  }
  for (const RuleFinding& f : checked.findings)
    page.remarks.push_back(
        {std::string(to_string(f.severity)), std::string(f.id), f.where, f.found, f.fix});
  return page;
}

}  // namespace twinrun
