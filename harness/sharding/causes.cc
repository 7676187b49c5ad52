// The catalogue of sharding causes as a table: conditions, settings, and their description in
// words.
#include "harness/sharding/causes.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/machine.h"
#include "program/graph/shard_plan.h"

namespace twinrun {
namespace {

using E = const Experiment&;
using S = const Sharding&;

// The layers in which samples of the batch interact in the way that the cause acts on: "mbstd1,
// loss".
std::string coupled_by(E e, std::string_view cause) {
  std::string layers;
  for (const Coupling& c : e.forward.couplings) {
    if (c.cause == cause) layers += (layers.empty() ? "" : ", ") + c.layer;
  }
  return layers;
}
bool has_batch_norm(E e) { return !coupled_by(e, "batch_norm").empty(); }
bool mean_loss(E e) { return e.scenario.loss.reduction == LossReduction::kMean; }
Reduction fitting(E e) { return mean_loss(e) ? Reduction::kMean : Reduction::kSum; }
std::string samples(int64_t n) { return n == 1 ? "1 sample" : fmt::format("{} samples", n); }
int64_t per_core(E e) { return e.scenario.train.batch / e.sharding.cores; }
// "4 samples are": the rows of the last core that are not real under a remainder.
std::string last_rows(E e) {
  const int64_t n = per_core(e) - real_rows(per_core(e));
  return samples(n) + (n == 1 ? " is" : " are");
}
bool draws(E e) {
  return std::ranges::any_of(e.forward.graph.ops(),
                             [](const Op& op) { return op.kind == OpKind::kRngUniform; });
}
bool takes_rate(E e) {
  const OptimizerSpec& o = e.forward.optimizer;
  return !(o.kind == OptimizerSpec::Kind::kAdafactor && o.relative_step);
}

// A row of the catalogue. Causes with the same `field` overwrite each other. `meaning` describes
// the scenario's own sharding as it is.
struct Row {
  const char* name;
  const char* field;
  bool (*possible)(E);
  bool (*present)(E, S);
  void (*undo)(E, Sharding&);
  void (*introduce)(E, Sharding&);
  std::string (*meaning)(E);
  std::string (*cure)(E);
  const char* divergence;
  const char* twin;
  Overrides (*settings)(E) = nullptr;  // scenario keys that apply `cure`
};

bool always(E) { return true; }

constexpr const char* kScaleTwin =
    "an engine that scales the gradients by the number of cores where the program does not";
constexpr const char* kGradient =
    "the gradient before clipping to a norm and before an update rule that divides by its size";
constexpr const char* kFed = "a step whose shards differ";

bool feeds(S s, Feeding::Shards v) { return s.feeding.shards == v; }
bool feeds(S s, Feeding::Remainder v) { return s.feeding.remainder == v; }
bool feeds(S s, Feeding::Streams v) { return s.feeding.streams == v; }
bool feeds(S s, Feeding::Rate v) { return s.feeding.rate == v; }
void own_shards(E, Sharding& s) { s.feeding.shards = Feeding::Shards::kOwn; }
void real_remainder(E, Sharding& s) { s.feeding.remainder = Feeding::Remainder::kReal; }
void global_streams(E, Sharding& s) { s.feeding.streams = Feeding::Streams::kGlobal; }
void given_rate(E, Sharding& s) { s.feeding.rate = Feeding::Rate::kAsGiven; }
void scale_as_reduction(E, Sharding& s) { s.scaling = Scaling::kByReduction; }
void synced(E, Sharding& s) {
  s.batchnorm = BatchNormSync::kSynced;
  s.batchnorm_group = 0;
}
// Per-core layers update running statistics from the samples of their own core. This is a cause of
// its own, beside the statistics by which they normalise.
bool own_statistics(E, S s) {
  return s.statistics == Statistics::kPerCore ||
         (s.statistics == Statistics::kAsNormalised && s.batchnorm == BatchNormSync::kPerCore);
}

bool in_groups(E e) {
  const Sharding& s = e.sharding;
  return s.batchnorm == BatchNormSync::kSynced && s.batchnorm_group > 0 &&
         s.batchnorm_group < s.cores;
}
// Advise only what changes something here. A scenario that is synced has another key to set, or
// none if it is the subject's script that differs; a larger batch is no advice where the batch is
// large enough, or where there are too few samples for it.
std::string batch_norm_cure(E e) {
  const bool synced = e.sharding.batchnorm == BatchNormSync::kSynced;
  if (synced && !in_groups(e))
    return "normalise by the statistics of all cores, as tpu.batchnorm = \"synced\" has it";
  std::string cure = synced ? "set " : "set tpu.batchnorm = \"synced\"";
  if (e.sharding.batchnorm_group > 0)
    cure += fmt::format("{}tpu.batchnorm_group = 0", synced ? "" : " and ");
  const int64_t together = synced ? e.sharding.batchnorm_group : 1;
  const int64_t enough = (tpu::kSmallBatchPerCore + together - 1) / together * e.sharding.cores;
  const int64_t there = e.scenario.data.train;  // samples; 0: as many as the files have
  if (e.scenario.train.batch >= enough || (there > 0 && enough > there)) return cure;
  return cure + fmt::format(
                    ", or raise train.batch to {} (fewer than {} samples per core may reduce "
                    "accuracy, says Cloud TPU's troubleshooting guide)",
                    enough, tpu::kSmallBatchPerCore);
}

Overrides batch_norm_settings(E e) {
  Overrides out = {{"tpu.batchnorm", "synced"}};
  if (e.sharding.batchnorm_group > 0) out.emplace_back("tpu.batchnorm_group", "0");
  return out;
}

const Row kRows[] = {
    {"reduction", "scale", always,
     // Where nothing is reduced, that is another cause.
     [](E e, S s) { return s.reduce_gradients && s.reduction != fitting(e); },
     [](E e, Sharding& s) { s.reduction = fitting(e); },
     [](E e, Sharding& s) { s.reduction = mean_loss(e) ? Reduction::kSum : Reduction::kMean; },
     [](E e) {
       const int n = e.sharding.cores;
       return mean_loss(e)
                  ? fmt::format(
                        "each replica's loss is a mean, and the {} replicas' gradients are "
                        "summed, so the gradient is {} times the whole batch's",
                        n, n)
                  : fmt::format(
                        "the loss is summed over the batch, but each replica's is scaled "
                        "by 1/{}, so the gradient is 1/{} of the whole batch's",
                        n, n);
     },
     [](E e) -> std::string {
       return mean_loss(e) ? "set tpu.reduction = \"mean\" (or divide the loss by the total batch "
                             "and keep the sum)"
                           : "set tpu.reduction = \"sum\" (or make the loss a mean)";
     },
     kGradient, kScaleTwin,
     [](E e) {
       return Overrides{{"tpu.reduction", mean_loss(e) ? "mean" : "sum"}};
     }},
    {"unscaled", "scale",
     [](E e) { return mean_loss(e) && e.sharding.reduction == Reduction::kMean; },
     [](E, S s) { return s.scaling == Scaling::kNever && s.reduction == Reduction::kMean; },
     scale_as_reduction, [](E, Sharding& s) { s.scaling = Scaling::kNever; },
     [](E e) {
       return fmt::format("the replicas' gradients are summed and never divided by {}",
                          e.sharding.cores);
     },
     [](E e) { return fmt::format("scale each replica's loss by 1/{}", e.sharding.cores); },
     kGradient, kScaleTwin,
     [](E) {
       return Overrides{{"tpu.scaling", "by_reduction"}};
     }},
    {"scaled_twice", "scale", always, [](E, S s) { return s.scaling == Scaling::kOnceMore; },
     scale_as_reduction, [](E, Sharding& s) { s.scaling = Scaling::kOnceMore; },
     [](E e) {
       return fmt::format("the gradients are divided by {} once more than the reduction does it",
                          e.sharding.cores);
     },
     [](E) -> std::string { return "divide once: by the optimizer or in the loss, not in both"; },
     kGradient, kScaleTwin,
     [](E) {
       return Overrides{{"tpu.scaling", "by_reduction"}};
     }},
    {"batch_norm", "batchnorm", has_batch_norm,
     [](E e, S s) {
       return has_batch_norm(e) && (s.batchnorm == BatchNormSync::kPerCore ||
                                    (s.batchnorm == BatchNormSync::kSynced &&
                                     s.batchnorm_group > 0 && s.batchnorm_group < s.cores));
     },
     synced,
     [](E, Sharding& s) {
       s.batchnorm = BatchNormSync::kPerCore;
       s.batchnorm_group = 0;
     },
     [](E e) {
       return in_groups(e)
                  ? fmt::format(
                        "each group of {} cores normalises by the statistics of its own "
                        "{}, not of all {}",
                        e.sharding.batchnorm_group,
                        samples(e.sharding.batchnorm_group * per_core(e)), e.scenario.train.batch)
                  : fmt::format(
                        "each core normalises by the statistics of its own {}, not of all {}",
                        samples(per_core(e)), e.scenario.train.batch);
     },
     batch_norm_cure, "a step whose cores hold different samples",
     "an engine that leaves out the all-reduce of batch statistics that the program has",
     batch_norm_settings},
    {"averaged_variance", "batchnorm", has_batch_norm,
     [](E e, S s) { return has_batch_norm(e) && s.batchnorm == BatchNormSync::kAveraged; }, synced,
     [](E, Sharding& s) { s.batchnorm = BatchNormSync::kAveraged; },
     [](E) -> std::string {
       return "the variance is the mean of the cores' variances, which leaves out how far their "
              "means lie apart";
     },
     [](E) -> std::string {
       return "add the variance of the cores' means, or reduce the mean of squares";
     },
     "a step whose cores' means differ", "",
     [](E) {
       return Overrides{{"tpu.batchnorm", "synced"}};
     }},
    {"statistics", "statistics", has_batch_norm,
     [](E e, S s) { return has_batch_norm(e) && own_statistics(e, s); },
     [](E, Sharding& s) { s.statistics = Statistics::kGlobal; },
     [](E, Sharding& s) { s.statistics = Statistics::kPerCore; },
     [](E e) {
       return fmt::format(
           "running statistics are of each core's own {}, and only replica 0's are evaluated",
           samples(per_core(e)));
     },
     [](E) -> std::string { return "average the running statistics over the cores"; },
     "the running statistics after the step, or held-out samples evaluated by them",
     "an engine that leaves out the all-reduce of batch statistics that the program has",
     // Statistics that follow the layer are cured with it.
     [](E e) {
       return e.sharding.statistics == Statistics::kPerCore
                  ? Overrides{{"tpu.statistics", "global"}}
                  : Overrides();
     }},
    {"averaged_statistics", "statistics", has_batch_norm,
     [](E e, S s) { return has_batch_norm(e) && s.statistics == Statistics::kAveraged; },
     [](E, Sharding& s) { s.statistics = Statistics::kGlobal; },
     [](E, Sharding& s) { s.statistics = Statistics::kAveraged; },
     [](E e) {
       return fmt::format(
           "running statistics are averaged over the cores, each core's being of its own {}, so "
           "that "
           "the variance leaves out how far the cores' means lie apart",
           samples(per_core(e)));
     },
     [](E) -> std::string {
       return "nothing, if held-out samples are evaluated as well as they should be; else take the "
              "variance over all cores' samples, or let each core keep its own statistics";
     },
     "the running statistics after the step, or held-out samples evaluated by them", "",
     [](E) {
       return Overrides{{"tpu.statistics", "global"}};
     }},
    {"batch_wise", "batchwise", [](E e) { return !coupled_by(e, "batch_wise").empty(); },
     [](E e, S s) {
       return !coupled_by(e, "batch_wise").empty() && s.batchwise == Scope::kPerCore;
     },
     [](E, Sharding& s) { s.batchwise = Scope::kGlobal; },
     [](E, Sharding& s) { s.batchwise = Scope::kPerCore; },
     [](E e) {
       return fmt::format(
           "what is compared across samples (in {}) sees only the {} of one core, not all {}",
           coupled_by(e, "batch_wise"), samples(per_core(e)), e.scenario.train.batch);
     },
     [](E) -> std::string {
       return "set tpu.batchwise = \"gathered\" (a cross-replica gather before it)";
     },
     "a step whose cores hold different samples", "",
     [](E) {
       return Overrides{{"tpu.batchwise", "gathered"}};
     }},
    {"token_mean", "token_mean",
     [](E e) { return !coupled_by(e, "token_mean").empty() && mean_loss(e); },
     [](E e, S s) {
       return !coupled_by(e, "token_mean").empty() && mean_loss(e) &&
              s.token_mean == Scope::kPerCore;
     },
     [](E, Sharding& s) { s.token_mean = Scope::kGlobal; },
     [](E, Sharding& s) { s.token_mean = Scope::kPerCore; },
     [](E) -> std::string {
       return "each core divides by the weights of its own tokens, which gives a mean of means "
              "where cores "
              "hold unequal numbers of tokens";
     },
     [](E) -> std::string {
       return "set tpu.token_mean = \"global\" (all-reduce the number of tokens first)";
     },
     "a step whose cores hold unequal numbers of tokens", "",
     [](E) {
       return Overrides{{"tpu.token_mean", "global"}};
     }},
    {"clipping", "clipping",
     [](E e) { return e.forward.optimizer.clip != OptimizerSpec::Clip::kNone; },
     [](E e, S s) {
       return e.forward.optimizer.clip != OptimizerSpec::Clip::kNone &&
              s.clipping == Clipping::kBeforeAllReduce;
     },
     [](E, Sharding& s) { s.clipping = Clipping::kAfterAllReduce; },
     [](E, Sharding& s) { s.clipping = Clipping::kBeforeAllReduce; },
     [](E e) {
       return fmt::format(
           "each core clips its own gradient{} before the all-reduce, where the whole "
           "batch's gradient is to be clipped after it",
           e.sharding.reduction == Reduction::kMean
               ? fmt::format(", already scaled by 1/{},", e.sharding.cores)
               : std::string());
     },
     [](E) -> std::string { return "set tpu.clipping = \"after_all_reduce\""; },
     "a step whose gradient is above optimizer.clip_at", "",
     [](E) {
       return Overrides{{"tpu.clipping", "after_all_reduce"}};
     }},
    {"l2", "l2", [](E e) { return e.forward.optimizer.l2 > 0; },
     // With a mean loss, the matching reduction counts the L2 term once.
     [](E e, S s) {
       return e.forward.optimizer.l2 > 0 && (mean_loss(e) ? s.l2_every_core : !s.l2_once);
     },
     [](E e, Sharding& s) {
       s.l2_once = !mean_loss(e);
       s.l2_every_core = false;
     },
     [](E e, Sharding& s) {
       s.l2_once = false;
       s.l2_every_core = mean_loss(e);
     },
     [](E e) {
       return fmt::format(
           "each core's loss has the whole L2 term, and in the sum of gradients it "
           "counts {} times",
           e.sharding.cores);
     },
     [](E e) {
       return fmt::format("divide optimizer.l2 by {}, or make the loss a mean", e.sharding.cores);
     },
     "a step from weights that are not zero", "",
     [](E e) {
       return Overrides{{"tpu.l2_terms", mean_loss(e) ? "by_reduction" : "once"}};
     }},
    {"rate_times_cores", "rate", takes_rate,
     [](E, S s) { return feeds(s, Feeding::Rate::kTimesCores); }, given_rate,
     [](E, Sharding& s) { s.feeding.rate = Feeding::Rate::kTimesCores; },
     [](E e) {
       return fmt::format("the learning rate is {} times what the total batch was given",
                          e.sharding.cores);
     },
     [](E) -> std::string {
       return "give the optimizer the rate of the total batch: a mean over the cores needs no "
              "larger one";
     },
     "the update; the gradient is the same", kScaleTwin,
     [](E) {
       return Overrides{{"tpu.rate_scaling", "none"}};
     }},
    {"rate_over_cores", "rate", takes_rate,
     [](E, S s) { return feeds(s, Feeding::Rate::kOverCores); }, given_rate,
     [](E, Sharding& s) { s.feeding.rate = Feeding::Rate::kOverCores; },
     [](E e) {
       return fmt::format("the learning rate is 1/{} of what the total batch was given",
                          e.sharding.cores);
     },
     [](E) -> std::string {
       return "give the optimizer the rate of the total batch: a mean over the cores needs no "
              "smaller one";
     },
     "the update; the gradient is the same", kScaleTwin,
     [](E) {
       return Overrides{{"tpu.rate_scaling", "none"}};
     }},
    {"one_stream", "streams", draws, [](E, S s) { return feeds(s, Feeding::Streams::kOne); },
     global_streams, [](E, Sharding& s) { s.feeding.streams = Feeding::Streams::kOne; },
     [](E) -> std::string { return "all cores draw the same random numbers"; },
     [](E) -> std::string {
       return "fold the core's number into the seed, so that cores draw different numbers";
     },
     "a step with random ops", "an engine that seeds every core alike",
     [](E) {
       return Overrides{{"tpu.streams", "global"}};
     }},
    {"stream_per_core", "streams", draws,
     [](E, S s) { return feeds(s, Feeding::Streams::kPerCore); }, global_streams,
     [](E, Sharding& s) { s.feeding.streams = Feeding::Streams::kPerCore; },
     [](E) -> std::string {
       return "each core draws from a stream of its own, which the whole batch does not have";
     },
     [](E) -> std::string {
       return "draw for the whole batch and hand each core its rows, or compare means over several "
              "seeds";
     },
     "a step with random ops; means over many steps agree",
     "an engine that seeds every core by its number",
     [](E) {
       return Overrides{{"tpu.streams", "global"}};
     }},
    {"same_shard", "shards", always, [](E, S s) { return feeds(s, Feeding::Shards::kFirst); },
     own_shards, [](E, Sharding& s) { s.feeding.shards = Feeding::Shards::kFirst; },
     [](E e) {
       return fmt::format("every core is fed the first {} of the batch, so the data is not sharded",
                          samples(per_core(e)));
     },
     [](E) -> std::string {
       return "give each core its own rows of the batch (shard the input by the core's number)";
     },
     kFed, "a feed that hands one buffer to all cores",
     [](E) {
       return Overrides{{"tpu.shards", "own"}};
     }},
    {"shard_twice", "shards", always, [](E, S s) { return feeds(s, Feeding::Shards::kFirstTwice); },
     own_shards, [](E, Sharding& s) { s.feeding.shards = Feeding::Shards::kFirstTwice; },
     [](E) -> std::string { return "core 1 is fed core 0's samples, and its own are lost"; },
     [](E) -> std::string {
       return "give core 1 its own rows: look at how the input function maps cores to shards";
     },
     kFed, "a feed that hands core 0's buffer to core 1",
     [](E) {
       return Overrides{{"tpu.shards", "own"}};
     }},
    {"remainder_padded", "remainder", always,
     [](E, S s) { return feeds(s, Feeding::Remainder::kPadded); }, real_remainder,
     [](E, Sharding& s) { s.feeding.remainder = Feeding::Remainder::kPadded; },
     [](E e) {
       return fmt::format("the last core's last {} zeros, and averaged in", last_rows(e));
     },
     [](E) -> std::string { return "drop the remainder, or weight padded samples by 0"; }, kFed, "",
     [](E) {
       return Overrides{{"tpu.remainder", "real"}};
     }},
    {"remainder_repeated", "remainder", always,
     [](E, S s) { return feeds(s, Feeding::Remainder::kRepeated); }, real_remainder,
     [](E, Sharding& s) { s.feeding.remainder = Feeding::Remainder::kRepeated; },
     [](E e) {
       return fmt::format("the last core's last {} the batch's first once more", last_rows(e));
     },
     [](E) -> std::string { return "drop the remainder, or weight repeated samples by 0"; }, kFed,
     "",
     [](E) {
       return Overrides{{"tpu.remainder", "real"}};
     }},
    {"remainder_dropped", "remainder", [](E e) { return per_core(e) > 1; },
     [](E, S s) { return feeds(s, Feeding::Remainder::kDropped); }, real_remainder,
     [](E, Sharding& s) { s.feeding.remainder = Feeding::Remainder::kDropped; },
     [](E e) {
       return fmt::format("the last core's last {} left out, and its mean is over the others",
                          last_rows(e));
     },
     [](E) -> std::string {
       return "choose a batch that the cores divide, or weight each core's mean by its number of "
              "samples";
     },
     kFed, "",
     [](E) {
       return Overrides{{"tpu.remainder", "real"}};
     }},
    {"no_all_reduce", "all_reduce", always, [](E, S s) { return !s.reduce_gradients; },
     [](E e, Sharding& s) {
       s.reduce_gradients = true;
       s.reduction = fitting(e);  // nothing else was to be reduced either
     },
     [](E, Sharding& s) { s.reduce_gradients = false; },
     [](E) -> std::string {
       return "gradients are never all-reduced, so the replicas' weights diverge after the first "
              "step";
     },
     [](E) -> std::string {
       return "wrap the optimizer (CrossShardOptimizer), or all-reduce each gradient";
     },
     "every replica's weights, not replica 0's alone",
     "an engine that does not perform the all-reduce that the program has",
     [](E e) {
       return Overrides{{"tpu.reduction", mean_loss(e) ? "mean" : "sum"}};
     }},
};

const Row& row_of(const std::string& cause) {
  return *std::ranges::find(kRows, cause, [](const Row& r) { return std::string(r.name); });
}

}  // namespace

std::vector<std::string> cause_names() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> possible_causes(const Experiment& e) {
  std::vector<std::string> names;
  for (const Row& row : kRows) {
    if (e.sharding.cores > 1 && row.possible(e)) names.emplace_back(row.name);
  }
  return names;
}

std::vector<std::string> present_causes(const Experiment& e, const Sharding& sharding) {
  std::vector<std::string> names;
  for (const Row& row : kRows) {
    if (sharding.cores > 1 && row.present(e, sharding)) names.emplace_back(row.name);
  }
  return names;
}

ShardingCause describe(const Experiment& e, const std::string& cause) {
  const Row& row = row_of(cause);
  return {row.name, row.meaning(e), row.cure(e), row.divergence, row.twin};
}

Overrides cure_settings(const Experiment& e, const std::string& cause) {
  const Row& row = row_of(cause);
  return row.settings == nullptr ? Overrides() : row.settings(e);
}

std::vector<ShardingCause> sharding_causes(const Experiment& e) {
  std::vector<ShardingCause> causes;
  for (const std::string& name : present_causes(e, e.sharding)) causes.push_back(describe(e, name));
  return causes;
}

Sharding restore(const Experiment& e, Sharding s, const std::string& cause) {
  row_of(cause).undo(e, s);
  return s;
}

Sharding introduce(const Experiment& e, Sharding s, const std::string& cause) {
  row_of(cause).introduce(e, s);
  return s;
}

bool exclusive(const std::string& a, const std::string& b) {
  return std::string_view(row_of(a).field) == row_of(b).field;
}

Sharding with_own_statistics(const Experiment& e) {
  const std::vector<std::string> causes = present_causes(e, e.sharding);
  const bool own = std::ranges::find(causes, "statistics") != causes.end();
  return own ? introduce(e, e.sharding, "statistics") : e.sharding;
}

Sharding faithful(const Experiment& e) {
  Sharding s = e.sharding;
  for (const std::string& cause : present_causes(e, s)) row_of(cause).undo(e, s);
  return s;
}

}  // namespace twinrun
