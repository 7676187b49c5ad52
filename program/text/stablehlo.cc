// The StableHLO module around the ops: arguments, results, and the attributes that a loader reads.
#include "program/text/stablehlo.h"

#include "program/graph/random_ops.h"
#include "program/text/stablehlo_writer.h"

namespace twinrun {
using stablehlo::location_text;
using stablehlo::type_text;

std::string stablehlo_precision(std::string_view precision) {
  return precision == "default" ? "DEFAULT" : precision == "high" ? "HIGH" : "HIGHEST";
}

StableHlo to_stablehlo(const Program& program, const StableHloOptions& options) {
  StableHlo out;
  const Graph& graph = program.graph;
  const auto argument = [&](const std::string& name, ValueId id) {
    out.arguments.push_back({name, graph.type(id), id});
  };
  const auto result = [&](const std::string& name, ValueId id) {
    out.results.push_back({name, graph.type(id), id});
  };
  for (const StateVar& var : program.state) argument("state/" + var.name, var.id);
  for (const Input& input : program.inputs) argument("input/" + input.name, input.id);
  for (const ValueId id : random_ops(program)) argument("random/" + graph.op(id).name, id);
  for (const StateVar& var : program.state) {
    if (var.next != kNoValue) result("state/" + var.name, var.next);
  }
  for (const Output& output : program.outputs) result("output/" + output.name, output.id);
  for (ValueId id = 0; options.values && id < graph.size(); ++id) {
    if (graph.op(id).kind != OpKind::kParameter) result("value/" + graph.op(id).name, id);
  }

  std::string arguments, types, values;
  for (const StableHlo::Value& a : out.arguments) {
    arguments += fmt::format("{}\n    %v{}: {} {}", arguments.empty() ? "" : ",", a.id,
                             type_text(a.type), location_text(a.name));
  }
  for (const StableHlo::Value& r : out.results) {
    types += (types.empty() ? "" : ", ") + type_text(r.type);
    values += fmt::format("{}%v{}", values.empty() ? "" : ", ", r.id);
  }
  stablehlo::Writer writer(graph, program.sharding.cores, options);
  for (ValueId id = 0; id < graph.size(); ++id) writer.write(id);
  out.text = fmt::format(
      "module @step attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = {} : i32}} {{\n"
      "  func.func public @main({}) -> ({}) {{\n{}    return {} : {}\n  }}\n}}\n",
      program.sharding.cores, arguments, types, writer.take(), values, types);
  return out;
}

}  // namespace twinrun
