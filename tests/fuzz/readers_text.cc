// Readers of what people type and write: scenarios, --set, faults, program texts, bindings, maps.
#include <algorithm>

#include "backends/faults/faults.h"
#include "checkpoints/interchange/name_map.h"
#include "harness/experiment/imported.h"
#include "program/base/toml_text.h"
#include "program/import/import.h"
#include "scenarios/library.h"
#include "scenarios/scenario.h"
#include "tests/fuzz/reader.h"

namespace twinrun::fuzz {
namespace {

std::vector<std::string> program_fixtures(const char* ending) {
  std::vector<std::string> out;
  for (const char* name : {"mlp_sgd", "jit_named", "shard_forms"})
    out.push_back(fixture(std::string("program/import/fixtures/") + name + ending));
  return out;
}

void check_toml(std::string_view bytes) {
  const auto table = parse_toml_text(bytes, "x.toml");
  if (!accepted(table))
    require(table.error().where.starts_with("x.toml:"), "an error without its place");
}

std::vector<std::string> toml_seeds() {
  return {"[model]\nname = \"mlp\"\nlayers = [{units = 16, act = 'relu'}, {units = 4}]\n",
          "seed = 7\n[train]\nsteps = 1_000\nrate = 1e-3\n[[drill]]\nat = 1979-05-27T07:32:00Z\n",
          "a.b.\"c d\" = \"\\u00e9\\n\"\ns = '''x\ny'''\nt = \"\"\"x\\\n  y\"\"\"\nh = 0x1F\ni = "
          "-inf\n",
          "deep = [[[[{a = {b = [true, false]}}]]]]\ntime = 07:32:00.5\n"};
}

std::vector<std::string> scenario_seeds() {
  std::vector<std::string> out;
  for (const LibraryFile& file : library_files()) out.emplace_back(file.text);
  return out;
}

void require_resolves(const Scenario& scenario) {
  const std::string text = resolved_toml(scenario);
  const Scenario again = must(parse_scenario(text, "y.toml"), "a resolved scenario is refused");
  require_same(text, resolved_toml(again), "a scenario that was resolved and read again");
  require(scenario_digest(scenario) == scenario_digest(again), "another digest when read again");
}

void check_scenario(std::string_view bytes) {
  const auto scenario = parse_scenario(bytes, "x.toml");
  if (accepted(scenario)) require_resolves(*scenario);
}

// Lines of KEY=VALUE, applied to a scenario of the library in turn.
void check_set(std::string_view bytes) {
  Overrides overrides;
  while (!bytes.empty() && overrides.size() < 8) {
    const std::string_view line = bytes.substr(0, bytes.find('\n'));
    bytes.remove_prefix(std::min(bytes.size(), line.size() + 1));
    const size_t sign = std::min(line.find('='), line.size());
    overrides.emplace_back(line.substr(0, sign), line.substr(std::min(sign + 1, line.size())));
  }
  const auto scenario = load_scenario("drill_mlp", overrides);
  if (accepted(scenario)) require_resolves(*scenario);
}

void check_fault(std::string_view bytes) {
  const auto fault = parse_fault(bytes);
  if (!accepted(fault)) return;
  require(fault->kind != nullptr, "a fault without a kind");
  require_same(fault->text, bytes, "the text of a fault");
  require(fault->core.value_or(0) >= 0 && fault->step.value_or(0) >= 0, "a negative core or step");
  require(!fault->rate || (*fault->rate >= 0 && *fault->rate <= 1), "a rate outside of 0 to 1");
}

void check_program(std::string_view bytes, bool hlo) {
  const auto module = hlo ? parse_hlo(bytes, "x.hlo") : parse_stablehlo(bytes, "x.mlir");
  if (!accepted(module)) return;
  const auto binding = default_binding(*module);
  if (accepted(binding)) (void)accepted(import_step(*module, *binding));
  (void)accepted(import_module(*module));
}

void check_binding(std::string_view bytes) {
  const auto binding = parse_binding(std::string(bytes), "x.json");
  if (!accepted(binding)) return;
  require(binding->state.size() == binding->roles.size() &&
              binding->state.size() == binding->results.size(),
          "a binding of unequal lists");
}

void check_name_map(std::string_view bytes) {
  const bool json = bytes.starts_with('{');
  const auto map = parse_name_map(std::string(bytes), json ? "x.json" : "x.toml");
  if (!accepted(map)) return;
  NamedArray array{"a", ElementType::kU8, {2, 3, 4}, std::vector<std::byte>(24)};
  for (size_t i = 0; i < array.bytes.size(); ++i) array.bytes[i] = std::byte(i);
  for (const auto& [ours, entry] : map->entries) {
    const auto theirs = to_their_layout(array, entry, "x");
    if (!accepted(theirs)) continue;
    const auto back = to_our_layout(*theirs, entry, array.dims, "x");
    // With other dimensions it is refused where it is used.
    if (accepted(back) && back->dims == array.dims)
      require(back->bytes == array.bytes, "a layout is not undone for " + ours);
  }
}

}  // namespace

std::vector<Reader> text_readers() {
  return {
      {"toml", Kind::kText, "TOML text", 4096, &toml_seeds, &check_toml},
      {"scenario", Kind::kText, "scenario files", 8192, &scenario_seeds, &check_scenario},
      {"set", Kind::kText, "--set KEY=VALUE", 512,
       [] {
         return std::vector<std::string>{"train.batch=64\ntpu.cores=4",
                                         "model.layers.dense1.units=32", "data.shape=[28, 28, 1]",
                                         "loss.reduction=sum\noptimizer.kind=\"adam\""};
       },
       &check_set},
      {"fault", Kind::kText, "--fault", 96,
       [] {
         return std::vector<std::string>{
             "truncate_bf16@dense1/*,core=3,from=5", "scale@*.grad,magnitude=1.5,every=3",
             "drop_k_tail@conv2/kernel.grad,rate=0.25", "permuted_shards@*,step=7"};
       },
       &check_fault},
      {"hlo", Kind::kText, "HLO text", 4096, [] { return program_fixtures(".hlo"); },
       [](std::string_view bytes) { check_program(bytes, true); }},
      {"stablehlo", Kind::kText, "StableHLO text", 4096, [] { return program_fixtures(".mlir"); },
       [](std::string_view bytes) { check_program(bytes, false); }},
      {"binding", Kind::kJson, "bindings of an imported step", 4096,
       [] { return program_fixtures(".json"); }, &check_binding},
      {"name_map", Kind::kText, "maps of names (convert --map)", 4096,
       [] {
         return std::vector<std::string>{
             fixture("checkpoints/fixtures/torch_names.toml"),
             R"({"a": "b", "c": {"name": "d", "transpose": [2, 0, 1], "reshape": [4, 2, 3]}})"};
       },
       &check_name_map},
  };
}

}  // namespace twinrun::fuzz
