// Generates deals of rows and groups of cores from a few numbers, and describes them in words.
#include "harness/sharding/assignment.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace twinrun {
namespace {

int64_t share_of_core(const Experiment& e) { return e.scenario.train.batch / e.sharding.cores; }

constexpr const char* kShardsDiffer = "a step whose shards differ";
constexpr const char* kBufferTwin = "an engine that hands a core the buffer of another one";

// "4-7, 12": sorted numbers as ranges, at most the first kMax of them.
std::string ranges(const DealtRows& sorted) {
  constexpr int kMax = 6;
  std::string out;
  int shown = 0;
  for (size_t i = 0; i < sorted.size();) {
    size_t end = i + 1;
    while (end < sorted.size() && sorted[end] == sorted[end - 1] + 1) ++end;
    if (++shown > kMax) return out + ", ...";
    out += out.empty() ? "" : ", ";
    out +=
        end - i == 1 ? std::to_string(sorted[i]) : fmt::format("{}-{}", sorted[i], sorted[end - 1]);
    i = end;
  }
  return out;
}

// The shard of each core, if every core has one whole shard in order; else nullopt.
std::optional<std::vector<int>> whole_shards(const DealtRows& rows, int64_t n) {
  std::vector<int> out;
  for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(n)) {
    if (rows[at] % n != 0) return std::nullopt;
    for (int64_t i = 1; i < n; ++i) {
      if (rows[at + static_cast<size_t>(i)] != rows[at] + i) return std::nullopt;
    }
    out.push_back(static_cast<int>(rows[at] / n));
  }
  return out;
}

// "core 1 shard 3, core 3 shard 1": the cores that have a shard other than their own.
std::string exchanged(const std::vector<int>& shards) {
  constexpr int kMax = 8;
  std::string out;
  int shown = 0;
  for (size_t core = 0; core < shards.size(); ++core) {
    if (shards[core] == static_cast<int>(core)) continue;
    if (++shown > kMax) return out + ", ...";
    out += fmt::format("{}core {} shard {}", out.empty() ? "" : ", ", core, shards[core]);
  }
  return out;
}

std::string count_text(size_t n, const char* of) {
  return fmt::format("{} {}{}", n, of, n == 1 ? "" : "s");
}

// Describes a deal in which every row occurs once.
void describe_permutation(const Experiment& e, const DealtRows& rows, ShardingChange& c) {
  const int64_t cores = e.sharding.cores, n = share_of_core(e);
  c.cause.name = "other_rows";
  c.cause.divergence = kShardsDiffer;
  c.harmless = true;
  c.cause.cure =
      "nothing has to change: every sample is fed once. To have the scenario's batches of each "
      "core, "
      "give core k the rows from k times the per-core batch on";
  c.subject = "other rows of the batch on its cores";
  for (int64_t block = 1; block < n; ++block) {
    if (n % block != 0 || rows != rows_in_blocks(cores, n, block, 0)) continue;
    c.subject = "shards dealt in strides";
    c.cause.meaning =
        block == 1
            ? fmt::format(
                  "core k is fed rows k, k + {}, k + {}, ... of each batch, as DistributedSampler "
                  "deals, where the scenario gives it {} neighbouring rows",
                  cores, 2 * cores, n)
            : fmt::format(
                  "blocks of {} rows of each batch go to the cores in turn, where the scenario "
                  "gives each core {} neighbouring rows",
                  block, n);
    return;
  }
  if (const auto shards = whole_shards(rows, n)) {
    c.subject = "shards exchanged between cores";
    c.cause.meaning =
        fmt::format("the shards of each batch go to other cores ({})", exchanged(*shards));
    return;
  }
  const int64_t roll = rows[0];
  if (rows == rows_in_blocks(cores, n, n, roll)) {
    c.subject = "rows rolled over its cores";
    c.cause.meaning = fmt::format(
        "each core's rows begin {} later in the batch, and the batch's first ones come last", roll);
    return;
  }
  c.cause.meaning = "the cores hold the rows of each batch in another arrangement";
}

void describe_counts(const Experiment& e, const DealtRows& rows, ShardingChange& c) {
  std::vector<int> times(rows.size());
  for (const int32_t row : rows) ++times[static_cast<size_t>(row)];
  DealtRows missing, doubled;
  for (size_t row = 0; row < times.size(); ++row) {
    if (times[row] == 0) missing.push_back(static_cast<int32_t>(row));
    if (times[row] > 1) doubled.push_back(static_cast<int32_t>(row));
  }
  c.cause.name = "missing_samples";
  c.subject = "samples that are left out while others count twice";
  c.cause.cure =
      "give each core rows of its own, so that every row of the batch is fed once: look at how the "
      "input function maps cores (ranks) to shards";
  c.cause.divergence = kShardsDiffer;
  c.cause.twin = kBufferTwin;
  const auto shards = whole_shards(rows, share_of_core(e));
  const bool twice =
      std::ranges::all_of(doubled, [&](int32_t r) { return times[static_cast<size_t>(r)] == 2; });
  c.cause.meaning = fmt::format(
      "{}{} {} of each batch {} left out, and {} {} more than once",
      shards
          ? fmt::format("cores are fed another core's samples ({}), so that ", exchanged(*shards))
          : "",
      missing.size() == 1 ? "row" : "rows", ranges(missing), missing.size() == 1 ? "is" : "are",
      ranges(doubled), doubled.size() == 1 ? "counts" : "count");
  if (twice) c.cause.meaning.replace(c.cause.meaning.rfind("more than once"), 14, "twice");
}

void describe_labels(const Experiment& e, const DealtRows& features, const DealtRows& labels,
                     ShardingChange& c) {
  const int64_t n = share_of_core(e), batch = e.scenario.train.batch;
  c.cause.name = "labels_apart";
  c.subject = "labels of other samples";
  c.cause.cure =
      "index inputs and labels alike: shuffle, shard and batch them together, or zip them before";
  c.cause.divergence = kShardsDiffer;
  c.cause.twin = kBufferTwin;
  size_t apart = 0;
  for (size_t i = 0; i < features.size(); ++i) apart += features[i] != labels[i] ? 1 : 0;
  const auto f = whole_shards(features, n), l = whole_shards(labels, n);
  if (f && l) {
    std::string which;
    for (size_t core = 0; core < f->size(); ++core) {
      if ((*f)[core] != (*l)[core])
        which += fmt::format("{}core {}: inputs of shard {}, labels of shard {}",
                             which.empty() ? "" : "; ", core, (*f)[core], (*l)[core]);
    }
    c.cause.meaning = fmt::format("inputs and labels come from different shards ({})", which);
    return;
  }
  const int64_t roll = (labels[0] - features[0] + batch) % batch;
  bool rolled = true;
  for (size_t i = 0; i < features.size(); ++i)
    rolled = rolled && labels[i] == (features[i] + roll) % batch;
  c.cause.meaning =
      rolled
          ? fmt::format("each sample is trained with the label of the sample {} of the batch",
                        roll <= batch / 2
                            ? fmt::format("{} later", count_text(static_cast<size_t>(roll), "row"))
                            : fmt::format("{} earlier",
                                          count_text(static_cast<size_t>(batch - roll), "row")))
          : fmt::format("{} of {} samples are trained with the label of another one", apart,
                        features.size());
}

std::string cores_text(const CoreGroups& g, int cores) {
  if (!g.strided) return fmt::format("of {} neighbouring cores", g.size);
  return fmt::format("of every {}-th core", cores / g.size);
}

DealtRows filled(DealtRows rows, int64_t batch) {
  if (rows.empty()) {
    rows.resize(static_cast<size_t>(batch));
    std::iota(rows.begin(), rows.end(), 0);
  }
  return rows;
}

}  // namespace

bool ShardingChange::operator==(const ShardingChange& o) const {
  return sets == o.sets && to == o.to && deals == o.deals && losses_together == o.losses_together;
}

Sharding with_change(Sharding s, const ShardingChange& c) {
  using Sets = ShardingChange::Sets;
  switch (c.sets) {
    case Sets::kDeal:
      s.feeding.deal = c.to.feeding.deal;
      break;
    case Sets::kReduction:
      s.reduction_groups = c.to.reduction_groups;
      s.unreduced = c.to.unreduced;
      if (s.scaling == Scaling::kByReduction) s.scaling = c.to.scaling;
      break;
    case Sets::kBatchNorm:
      s.batchnorm = c.to.batchnorm;
      s.batchnorm_group = c.to.batchnorm_group;
      s.batchnorm_strided = c.to.batchnorm_strided;
      break;
    case Sets::kStatistics:
      s.statistics = c.to.statistics;
      break;
    case Sets::kShown:
      s.shows_unclipped = c.to.shows_unclipped;
      break;
  }
  return s;
}

DealtRows rows_in_blocks(int64_t cores, int64_t n, int64_t block, int64_t roll) {
  DealtRows rows;
  for (int64_t core = 0; core < cores; ++core) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = i / block * block * cores + core * block + i % block + roll;
      rows.push_back(static_cast<int32_t>(row % (cores * n)));
    }
  }
  return rows;
}

DealtRows rows_of_shards(const DealtRows& rows, const std::vector<int>& shard_of) {
  const size_t n = rows.size() / shard_of.size();
  DealtRows out;
  for (const int shard : shard_of) {
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(shard) * n);
    out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(n));
  }
  return out;
}

bool is_own(const DealtRows& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != static_cast<int32_t>(i)) return false;
  }
  return true;
}

bool is_permutation(const DealtRows& rows) {
  std::vector<bool> seen(rows.size());
  for (const int32_t row : rows) {
    if (seen[static_cast<size_t>(row)]) return false;
    seen[static_cast<size_t>(row)] = true;
  }
  return true;
}

ShardingChange dealt_otherwise(const Experiment& e, Deal deal) {
  const int64_t batch = e.scenario.train.batch;
  ShardingChange c;
  c.to = e.sharding;
  const DealtRows features = filled(deal.features, batch), labels = filled(deal.labels, batch);
  c.to.feeding.deal = std::move(deal);
  if (features != labels) {
    describe_labels(e, features, labels, c);
  } else if (is_permutation(features)) {
    describe_permutation(e, features, c);
  } else {
    describe_counts(e, features, c);
  }
  return c;
}

ShardingChange dealt_by_steps(const Experiment& e, std::map<int64_t, Deal> deals) {
  ShardingChange c = dealt_otherwise(e, deals.begin()->second);
  c.cause.meaning = fmt::format("at step {}, and differently at others, {}", deals.begin()->first,
                                c.cause.meaning);
  c.to.feeding.deal = {};
  c.deals = std::move(deals);
  return c;
}

ShardingChange shown_unclipped(const Experiment& e) {
  ShardingChange c;
  c.sets = ShardingChange::Sets::kShown;
  c.to = e.sharding;
  c.to.shows_unclipped = c.harmless = true;
  c.cause.name = "unclipped_gradients";
  c.subject = "gradients that are reported before they are clipped";
  c.cause.meaning =
      "the gradients that it reports are those before clipping, and its updates are those of the "
      "clipped ones";
  c.cause.cure =
      "nothing has to change: report the gradients that the update takes to have them "
      "judged as such";
  c.cause.divergence = "the gradients";
  return c;
}

ShardingChange losses_together(const Experiment& e, bool one_loss) {
  ShardingChange c;
  c.to = e.sharding;
  c.losses_together = c.harmless = true;
  if (one_loss) {
    c.cause.name = "averaged_loss";
    c.subject = "one loss for all cores";
    c.cause.meaning = "every core reports the mean of the cores' losses, where its own is expected";
    c.cause.cure =
        "nothing has to change: gradients are as expected. To let each core's loss be judged, "
        "report it before it is averaged";
    c.cause.divergence = "the loss of each core";
    return c;
  }
  c.cause.name = "other_rows";
  c.subject = "other rows of the batch on its cores";
  c.cause.meaning =
      "the cores' own losses are those of other samples than the scenario deals them, and their "
      "mean "
      "and every gradient are the whole batch's";
  c.cause.cure =
      "nothing has to change: every sample is fed once. To have the scenario's batches of each "
      "core, "
      "give core k the rows from k times the per-core batch on";
  c.cause.divergence = kShardsDiffer;
  return c;
}

ShardingChange kept_by_cores(const Experiment& e, const std::vector<std::string>& parameters) {
  ShardingChange c;
  c.sets = ShardingChange::Sets::kReduction;
  c.to = e.sharding;
  c.to.unreduced = parameters;
  c.cause.cure =
      "all-reduce every gradient: no backward pass under no_sync(), and no parameter that the "
      "wrapper "
      "does not know";
  c.cause.divergence = "every replica's gradient, not replica 0's alone";
  c.cause.twin = "an engine that does not perform the all-reduce that the program has";
  const auto trained = std::ranges::count_if(
      e.forward.state, [](const StateVar& v) { return v.role == StateRole::kParameter; });
  if (static_cast<int64_t>(parameters.size()) == trained) {
    c.cause.name = "no_all_reduce";
    c.subject = "a missing all-reduce";
    c.cause.meaning =
        "gradients are never all-reduced, so that each core descends the gradient of its own "
        "samples "
        "and the cores' weights diverge after the first step";
    return c;
  }
  c.cause.name = "unreduced_gradients";
  c.subject = "gradients that each core keeps to itself";
  constexpr size_t kMax = 6;
  std::string names;
  for (size_t i = 0; i < std::min(parameters.size(), kMax); ++i)
    names += (i == 0 ? "" : ", ") + parameters[i];
  if (parameters.size() > kMax) names += fmt::format(" and {} more", parameters.size() - kMax);
  c.cause.meaning = fmt::format(
      "each core descends the gradient of its own samples for {}, so that these weights diverge "
      "between "
      "the cores",
      names);
  return c;
}

std::vector<ShardingChange> group_changes(const Experiment& e, const Sharding& sharding) {
  std::vector<ShardingChange> out;
  const int cores = sharding.cores;
  const bool coupled = std::ranges::any_of(
      e.forward.couplings, [](const Coupling& c) { return c.cause == "batch_norm"; });
  for (int size = 2; size < cores; ++size) {
    if (cores % size != 0) continue;
    for (const bool strided : {false, true}) {
      const CoreGroups groups{size, strided};
      const std::string of = cores_text(groups, cores);
      for (const Scaling scaling : {Scaling::kByGroup, Scaling::kByReduction}) {
        const bool mean = e.sharding.reduction == Reduction::kMean;
        if (!sharding.reduce_gradients || (!mean && scaling == Scaling::kByGroup)) continue;
        ShardingChange c;
        c.sets = ShardingChange::Sets::kReduction;
        c.to = sharding;
        c.to.reduction_groups = groups;
        c.to.scaling = scaling;
        c.subject = fmt::format("gradients reduced within groups of {}", size);
        c.cause.name = "grouped_reduction";
        c.cause.meaning = fmt::format(
            "gradients are {} within groups {} only, so that the weights of the groups diverge",
            scaling == Scaling::kByGroup ? "averaged"
            : mean ? fmt::format("divided by all {} cores and added up", cores)
                   : "added up",
            of);
        c.cause.cure =
            "reduce over all cores: look at the process group, or axis_index_groups, of "
            "the all-reduce";
        c.cause.divergence = "the gradients of every core, not core 0's alone";
        c.cause.twin = "an engine whose all-reduce leaves out the other groups";
        out.push_back(std::move(c));
      }
      const bool same = sharding.batchnorm == BatchNormSync::kSynced &&
                        sharding.batchnorm_group == size && sharding.batchnorm_strided == strided;
      if (!coupled || same) continue;
      ShardingChange c;
      c.sets = ShardingChange::Sets::kBatchNorm;
      c.to = sharding;
      c.to.batchnorm = BatchNormSync::kSynced;
      c.to.batchnorm_group = size;
      c.to.batchnorm_strided = strided;
      c.subject = fmt::format("batch norm over groups of {}", size);
      c.cause.name = "grouped_batch_norm";
      c.cause.meaning =
          fmt::format("batch norm takes its statistics from groups {}, {} samples each", of,
                      size * share_of_core(e));
      c.cause.cure = fmt::format(
          "say tpu.batchnorm = \"synced\" and tpu.batchnorm_group = {} in the scenario, if the "
          "script "
          "is right{}; else let it synchronise as the scenario says",
          size, strided ? " but for which cores make a group" : "");
      c.cause.divergence = "a step whose cores hold different samples";
      c.cause.twin =
          "an engine that reduces batch statistics over other cores than the program says";
      out.push_back(std::move(c));
    }
  }
  // Where cores keep their own statistics, a wrapper may copy core 0's to all cores before each
  // step (DistributedDataParallel does).
  const bool own = sharding.statistics == Statistics::kPerCore ||
                   (sharding.statistics == Statistics::kAsNormalised &&
                    sharding.batchnorm == BatchNormSync::kPerCore);
  if (coupled && own && cores > 1 && sharding.batchnorm == BatchNormSync::kPerCore) {
    ShardingChange c;
    c.sets = ShardingChange::Sets::kStatistics;
    c.to = sharding;
    c.to.statistics = Statistics::kFromFirst;
    c.subject = "running statistics that go on from core 0's";
    c.cause.name = "broadcast_statistics";
    c.cause.meaning =
        "each step begins with core 0's running statistics on every core, as "
        "DistributedDataParallel's broadcast_buffers has it, where the scenario lets each core go "
        "on "
        "with its own";
    c.cause.cure =
        "nothing has to change: core 0's statistics, which are evaluated, are the same. To let "
        "every "
        "core keep its own, say broadcast_buffers=False";
    c.cause.divergence = "the running statistics of a step after the first, on every core";
    c.harmless = true;
    out.push_back(std::move(c));
  }
  return out;
}

}  // namespace twinrun
