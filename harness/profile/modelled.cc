// Models the profile of a scenario on a modelled TPU core.
#include "harness/profile/modelled.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/core_model.h"
#include "device/hbm_plan.h"
#include "harness/experiment/experiment.h"
#include "harness/host/environment.h"
#include "harness/profile/describe.h"
#include "harness/profile/input_model.h"
#include "harness/profile/published.h"
#include "harness/run/engine_setup.h"
#include "reports/text.h"

namespace twinrun {
namespace {

constexpr int64_t kSteps = 20;           // shown in the step graph
constexpr size_t kExpressionLines = 16;  // shown for a fusion
constexpr double kUncertainty = 2;       // docs/guides/profile.md, "How good is it?"

int passes_of(const std::string& precision) {
  return precision == "default" ? 1 : precision == "high" ? 3 : 6;
}

std::string category_of(const Graph& graph, const tpu::StepModel& model, const tpu::UnitModel& u) {
  if (u.unit.group < 0) return category_of(graph.op(u.lead).kind);
  const FusionGroup& group = model.plan.groups[static_cast<size_t>(u.unit.group)];
  const bool reduces = std::ranges::any_of(
      group.ops, [&](const FusedOp& op) { return graph.op(op.id).kind == OpKind::kReduce; });
  return reduces ? "reduce fusion" : "loop fusion";
}

ProfileOp op_of(const Graph& graph, const tpu::StepModel& model, const tpu::UnitModel& u,
                const tpu::Generation& g) {
  const Op& lead = graph.op(u.lead);
  ProfileOp op;
  op.category = category_of(graph, model, u);
  op.name = lead.name;
  op.layer = framework_op_of(lead.name);
  op.phase = std::string(to_string(lead.phase));
  op.kind = std::string(name_of(lead.kind));
  op.layout = tpu::to_string(lead.type, tpu::smallest_layout(lead.type));
  if (u.unit.group >= 0) {
    const FusionGroup& group = model.plan.groups[static_cast<size_t>(u.unit.group)];
    op.ops = static_cast<int>(group.ops.size());
    for (size_t i = 0; i < std::min(group.ops.size(), kExpressionLines); ++i)
      op.expression += (i == 0 ? "" : "\n") + expression_of(graph, group.ops[i].id);
    if (group.ops.size() > kExpressionLines)
      op.expression += fmt::format("\n... {} more", group.ops.size() - kExpressionLines);
  } else {
    op.expression = expression_of(graph, u.lead);
  }
  if (const auto product = tpu::product_of(graph, u.lead); product && u.matrix_flops > 0) {
    const auto [k, n] = std::pair(product->k, product->n);
    const auto tiles = [](int64_t size) {
      return (size + tpu::kLanes - 1) / tpu::kLanes * tpu::kLanes;
    };
    const auto words = [&](const char* name, int64_t size) {
      return size == tiles(size) ? fmt::format("{} {} fits exactly", name, size)
                                 : fmt::format("{} {} padded to {}", name, size, tiles(size));
    };
    op.fit = words("k", k) + ", " + words("n", n);
    op.fill = static_cast<double>(k) * static_cast<double>(n) /
              (static_cast<double>(tiles(k)) * static_cast<double>(tiles(n)));
  }
  op.seconds = u.seconds;
  op.share = u.seconds / model.seconds;
  op.flops = u.flops;
  op.bytes = u.bytes;
  op.padding = u.unpadded_bytes > 0 ? u.bytes / u.unpadded_bytes : 1;
  op.limit = std::string(tpu::to_string(u.limit));
  op.matrix_utilisation = std::min(1.0, u.matrix_flops / u.seconds / g.peak_flops());
  op.utilisation = u.limit == tpu::Limit::kLinks
                       ? u.links / u.seconds
                       : std::max(op.matrix_utilisation,
                                  std::min(1.0, u.unpadded_bytes / u.seconds / g.hbm_bandwidth));
  return op;
}

// Consecutive steps around the end of a loop, or the first steps.
std::vector<ProfileStep> steps_of(const Profile& p, const Scenario& s) {
  const int64_t loop = p.iterations_per_loop, count = std::min(kSteps, s.train.steps);
  const int64_t first =
      loop > kSteps / 2 && loop + kSteps / 2 <= s.train.steps ? loop - count / 2 : 0;
  std::vector<ProfileStep> steps;
  for (int64_t i = first; i < first + count; ++i) {
    const bool ends = (i + 1) % loop == 0;
    steps.push_back(
        {i, p.average.compute, p.average.all_reduce, p.average.input, ends ? kLoopSeconds : 0});
  }
  return steps;
}

// The cores of a step in which one of them takes `factor` times as long for its own work.
std::vector<ProfileCore> cores_of(int cores, int slow, double factor, double compute,
                                  double all_reduce) {
  std::vector<ProfileCore> all;
  const double longest = slow < 0 ? compute : compute * factor;
  for (int core = 0; core < cores; ++core) {
    const double own = core == slow ? longest : compute;
    all.push_back({core, own, longest - own, all_reduce});
  }
  return all;
}

std::vector<std::string> notes_of(const Profile& p, const tpu::Generation& g) {
  return {
      fmt::format("modelled, not measured: one {} core of {:.1f} TFLOP/s and {:.0f} GB/s; {}",
                  g.name, g.peak_flops() / 1e12, g.hbm_bandwidth / 1e9,
                  p.slow_core < 0
                      ? "every core does the same, so the range over cores is a point"
                      : fmt::format("every core but core {} does the same", p.slow_core)),
      "fusion is this program's own (elementwise ops and their reductions): a TPU's compiler also "
      "fuses them into convolutions and dots, which saves traffic that is counted here",
      "rates of the host, the start of an op and the time between loops are assumptions; "
      "docs/guides/profile.md says how uncertain they are",
      "what the program stores as f32 moves as f32"};
}

}  // namespace

Result<Program> modelled_step(const Scenario& scenario) {
  TWINRUN_RETURN_IF_ERROR(check_cores(scenario, scenario.tpu.cores));
  const bool imported = !scenario.imported.empty();
  TWINRUN_ASSIGN(const Experiment e,
                 imported ? make_experiment(scenario) : experiment_on_paper(scenario));
  TWINRUN_RETURN_IF_ERROR(check_shares(e, e.sharding, /*alone=*/false));
  return imported ? e.whole() : e.sharded(e.sharding);
}

Result<Profile> modelled_profile(const Scenario& scenario, const ModelledOptions& options) {
  TWINRUN_ASSIGN(tpu::Generation g, tpu::find_generation(options.generation));
  g.link_factor = scenario.tpu.link_factor;
  const bool imported = !scenario.imported.empty();
  TWINRUN_ASSIGN(const Program step, modelled_step(scenario));
  const tpu::StepModel m =
      tpu::model_step(step, {g, passes_of(scenario.tpu.precision), options.bf16_activations});

  Profile p;
  p.scenario = scenario.name;
  p.source = "modelled";
  p.cores = step.sharding.cores;
  p.machine = fmt::format("TPU {}-{}", g.name, p.cores);
  p.batch = scenario.train.batch;
  p.iterations_per_loop = scenario.tpu.iterations_per_loop > 0 ? scenario.tpu.iterations_per_loop
                                                               : scenario.train.steps;
  p.peak_flops = g.peak_flops();
  p.peak_bandwidth = g.hbm_bandwidth;
  p.memory_used = static_cast<double>(
      tpu::plan_hbm(step, {.bf16_activations = options.bf16_activations}).used());
  p.memory_limit = static_cast<double>(g.hbm_usable());
  p.input = modelled_input(scenario, step);
  p.slow_core = scenario.tpu.slow_core < p.cores ? scenario.tpu.slow_core : -1;
  p.slow_core_factor = p.slow_core < 0 ? 1 : scenario.tpu.slow_core_factor;
  p.link_factor = g.link_factor;
  const double own = m.seconds - m.all_reduce;
  // What the other cores wait for the slow one. A single core waits for nobody.
  const double behind = own * (p.slow_core_factor - 1);
  const bool alone = p.cores == 1;
  const double device = m.seconds + behind;
  const double waits = p.input.overlapped ? std::max(0.0, p.input.host - device) : p.input.host;
  const auto steps_in_loop = static_cast<double>(p.iterations_per_loop);
  const double loop = kLoopSeconds / steps_in_loop;
  p.average = {0, own + (alone ? behind : 0), m.all_reduce + (alone ? 0 : behind), waits, loop};
  p.step_seconds = p.average.seconds();
  if (p.slow_core >= 0 || p.link_factor > 1)
    p.core_times = cores_of(p.cores, p.slow_core, p.slow_core_factor, own, m.all_reduce);
  p.flops = m.flops;
  p.matrix_flops = m.matrix_flops;
  p.bytes = m.bytes;
  p.unpadded_bytes = m.unpadded_bytes;
  p.matrix_utilisation = m.matrix_flops / p.step_seconds / g.peak_flops();
  p.memory_utilisation = m.bytes / p.step_seconds / g.hbm_bandwidth;
  p.idle_device = (waits + loop) / p.step_seconds;
  p.idle_host = std::max(0.0, 1 - (p.input.host + loop) / p.step_seconds);
  for (const tpu::UnitModel& u : m.units) p.ops.push_back(op_of(step.graph, m, u, g));
  if (alone) {
    for (ProfileOp& op : p.ops) op.seconds *= p.slow_core_factor;
  }
  p.steps = steps_of(p, scenario);
  set_input_shares(p);
  p.uncertainty = kUncertainty;
  p.notes = notes_of(p, g);
  const auto limited = [&](tpu::Limit limit) { return share_of_limit(p, tpu::to_string(limit)); };
  if (const double matrix = limited(tpu::Limit::kMatrix); matrix < 0.5 && !p.ops.empty())
    p.notes.insert(
        p.notes.begin(),
        fmt::format("not dominated by products: {} of the ops' time is limited by the "
                    "matrix unit, {} by HBM, {} "
                    "by the vector unit, {} by the start of ops, {} by links; a TPU "
                    "pays where products dominate",
                    text::percent(matrix, 1), text::percent(limited(tpu::Limit::kMemory), 1),
                    text::percent(limited(tpu::Limit::kVector), 1),
                    text::percent(limited(tpu::Limit::kStart), 1),
                    text::percent(limited(tpu::Limit::kLinks), 1)));
  if (!p.fits())
    p.notes.insert(p.notes.begin(),
                   "this step does not fit into a core's memory: twinrun check says what fills it, "
                   "twinrun check --fit what would fit");
  p.environment = environment();
  p.environment["precision"] = scenario.tpu.precision;
  p.published = published_figures(scenario, options.generation);
  p.even_step_seconds = p.step_seconds;
  if (!p.core_times.empty()) {
    Scenario even = scenario;
    even.tpu.slow_core = -1;
    even.tpu.link_factor = 1;
    ModelledOptions plain = options;
    plain.advice = false;
    TWINRUN_ASSIGN(const Profile other, modelled_profile(even, plain));
    p.even_step_seconds = other.step_seconds;
  }
  // Advice is about keys of a scenario.
  if (options.advice && !imported) {
    TWINRUN_ASSIGN(p.recommendations, recommendations(scenario, p, options));
    if (!p.published.empty() && !options.bf16_activations) {
      ModelledOptions bf16 = options;
      bf16.bf16_activations = true;
      bf16.advice = false;
      TWINRUN_ASSIGN(const Profile other, modelled_profile(scenario, bf16));
      p.notes.push_back(
          fmt::format("the published runs store activations as bf16; so stored, the model says "
                      "{:.0f} samples/s",
                      other.samples_per_second()));
    }
  }
  return p;
}

}  // namespace twinrun
