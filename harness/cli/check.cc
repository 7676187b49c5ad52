// twinrun check: prints the findings of harness/check as text or JSON.
#include "harness/check/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "device/machine.h"
#include "harness/cli/check.h"
#include "harness/cli/options.h"
#include "harness/experiment/memory.h"
#include "reports/text.h"

namespace twinrun::cli {

void print_line(std::string label, const std::string& words) {
  constexpr int kLabel = 13;
  const int width = std::max(40, terminal_width() - kLabel);
  if (words.empty()) return;
  for (const std::string& part : text::wrap(text::clean(words, unicode_wanted()), width)) {
    print("  {:<{}}{}\n", label, kLabel - 2, part);
    label.clear();
  }
}

std::optional<MemoryReport> memory_of(const Checked& c, const tpu::Generation& generation,
                                      bool fit) {
  if (!c.step) return std::nullopt;
  const Experiment* experiment = c.text ? nullptr : &c.experiment;
  return report_memory(*c.step, generation, experiment, {.fit = fit, .host = true});
}

namespace {

using Json = nlohmann::ordered_json;

Json json_of(const RuleFinding& f) {
  return {{"id", f.id},
          {"severity", to_string(f.severity)},
          {"where", f.where},
          {"found", f.found},
          {"why", f.why},
          {"fix", f.fix},
          {"stack_message", f.stack_message},
          {"ops", f.ops},
          {"doc", fmt::format("docs/guides/check.md#{}", f.id)}};
}

Json json_of(const Checked& c, const tpu::Generation& generation,
             const std::optional<MemoryReport>& memory) {
  Json rules = Json::array();
  for (const RuleFinding& f : c.findings) rules.push_back(json_of(f));
  const OpCount ops = count_ops(c);
  return {{"schema", 1},
          {"kind", "check"},
          {"name", c.name},
          {"generation", generation.name},
          {"cores", c.step ? Json(c.step->sharding.cores) : Json()},
          {"batch_per_core", c.step ? Json(c.step->batch) : Json()},
          {"no_step", c.no_step},
          {"errors", c.count(Severity::kError)},
          {"warnings", c.count(Severity::kWarning)},
          {"notes", c.count(Severity::kNote)},
          {"rules", rules},
          {"ops", ops.all > 0 ? Json({{"count", ops.all}, {"on_tpu", ops.on_tpu}}) : Json()},
          {"graph", c.graph ? Json({{"kind", c.graph->kind},
                                    {"tensorflow", c.graph->version},
                                    {"built_for_tpus", c.tf_step.marked}})
                            : Json()},
          {"memory", memory ? Json::parse(memory_json(*memory)) : Json()}};
}

// "mlp: SavedModel of TensorFlow 2.21.0, 40 nodes of 61 run on the TPU, in 2 functions"
std::string graph_line(const Checked& c) {
  const TfGraph& graph = *c.graph;
  size_t all = graph.nodes.size(), on_tpu = 0;
  for (const TfFunction& f : graph.functions) all += f.nodes.size();
  for (const TfBody& body : c.tf_step.bodies)
    on_tpu += static_cast<size_t>(std::ranges::count(body.on_tpu, true));
  return fmt::format(
      "{}: {}{}, {} of {} nodes are of the step{}", text::clean(c.name), graph.kind,
      graph.version.empty() ? "" : fmt::format(" of TensorFlow {}", text::clean(graph.version)),
      on_tpu, all, c.tf_step.marked ? ", as the graph says" : "");
}

void show(const RuleFinding& f) {
  print("\n{} {}  {}\n", to_string(f.severity), f.id, text::clean(f.where));
  print_line("found", f.found);
  print_line("why", f.why);
  print_line("fix", f.fix);
  print_line("a TPU says", f.stack_message);
}

void show(const Checked& c) {
  if (c.text) {
    size_t count = 0;
    for (const HloComputation& part : c.text->computations) count += part.instructions.size();
    print("{}: {} instructions{}\n", c.name, count,
          c.text->replicas > 1 ? fmt::format(" on each of {} cores", c.text->replicas) : "");
    if (!c.step) print("not imported: {}\n", text::clean(c.no_step));
  } else if (c.graph) {
    print("{}\n", graph_line(c));
  } else if (c.step) {
    const int cores = c.step->sharding.cores;
    print("{}: {} ops on {}, {} samples each\n", c.name, c.step->graph.size(),
          cores == 1 ? "one core" : fmt::format("each of {} cores", cores), c.step->batch);
  } else {
    print("{}: no program to look at: {}\n", c.name, text::clean(c.no_step));
  }
  for (const RuleFinding& f : c.findings) show(f);
  const auto counted = [&](Severity s) {
    const size_t n = c.count(s);
    return fmt::format("{} {}{}", n, to_string(s), n == 1 ? "" : "s");
  };
  const OpCount ops = count_ops(c);
  print("\n{}, {}, {}{}\n", counted(Severity::kError), counted(Severity::kWarning),
        counted(Severity::kNote),
        ops.all > 0 ? fmt::format("; {} of {} ops run on a TPU", ops.on_tpu, ops.all) : "");
}

void show(const MemoryReport& memory) {
  print("\n");
  for (const std::string& line : text::clean_lines(memory_text(memory), unicode_wanted()))
    print("{}\n", line);
}

Result<Checked> checked(const Parsed& parsed) {
  TWINRUN_ASSIGN(const Overrides overrides, overrides_of(parsed));
  const bool scenario = parsed.has("?SCENARIO"), graph = parsed.has("graph");
  const int given = scenario + parsed.has("program") + graph;
  if (given != 1)
    return Error{given > 1 ? "two of a scenario, a program and a graph"
                           : "neither a scenario nor a program nor a graph",
                 "",
                 "usage: twinrun check SCENARIO, or twinrun check with one of --program FILE, "
                 "--graph FILE|DIR and --log FILE"};
  if (scenario) return check_scenario(parsed.get<std::string>("?SCENARIO"), overrides);
  if (!overrides.empty())
    return Error{fmt::format("a {} has no keys", graph ? "graph" : "program"), "--set",
                 "leave --set out, or check a scenario"};
  if (graph) return check_graph(parsed.get<std::string>("graph"));
  ProgramFiles files;
  files.program = parsed.get<std::string>("program");
  if (parsed.has("binding")) files.binding = parsed.get<std::string>("binding");
  return check_program(files);
}

}  // namespace

Result<int> check_verb(const Args& args) {
  Options options;
  add_scenario_options(options);
  options.text("program", "instead of a scenario: a training step as HLO or StableHLO text");
  options.text("binding", "of that program: what each parameter is");
  options.text("graph",
               "a TensorFlow graph: a SavedModel's folder, or a GraphDef or MetaGraphDef file");
  options.text("log", "an error or a log of the software around a TPU, - for stdin: what it means");
  options.one_of("generation", "the TPU", generation_choices(), "v2");
  options.one_of("fail-on", "exit with 1 if there is a finding of this severity or worse",
                 choices(severity_names()), "error");
  options.flag("fit", "find the largest batch that fits into a core's memory");
  options.flag("json", "one JSON document on stdout");
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(args, "twinrun check SCENARIO|--program FILE|--graph PATH|--log FILE [OPTIONS]",
            "twinrun check resnet50 --set train.batch=100", options, {"?SCENARIO"}));
  if (parsed.help) return 0;
  TWINRUN_ASSIGN(const auto generation,
                 tpu::find_generation(parsed.get<std::string>("generation")));
  TWINRUN_ASSIGN(const auto fail_on, find_severity(parsed.get<std::string>("fail-on")));
  if (parsed.has("log")) {
    const bool alone = !parsed.has("?SCENARIO") && !parsed.has("program") && !parsed.has("graph");
    if (alone && parsed.has("set"))
      return Error{
          "a log has no keys", "--set",
          "leave it out, or check the scenario that the log is of: twinrun check SCENARIO"};
    std::optional<Checked> beside;
    if (!alone) {
      TWINRUN_ASSIGN(beside, checked(parsed));
    }
    return print_log(parsed.get<std::string>("log"), beside, generation, parsed.get<bool>("json"));
  }
  TWINRUN_ASSIGN(const auto c, checked(parsed));
  const std::optional<MemoryReport> memory = memory_of(c, generation, parsed.get<bool>("fit"));
  if (parsed.get<bool>("json")) {
    print_document(
        json_of(c, generation, memory).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } else {
    show(c);
    if (memory) show(*memory);
  }
  const bool bad = (!c.findings.empty() && c.findings.front().severity <= fail_on) ||
                   (memory && !memory->fits());
  return bad ? 1 : 0;
}

}  // namespace twinrun::cli
