#include "harness/switches.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace twinrun {
namespace {

using Gradient = std::vector<std::vector<double>>;  // per parameter, in output order

// Replica 0's value of every state variable, on all replicas.
Result<States> spread(const Checkpoint& checkpoint, const Program& program) {
  ReplicaState one;
  for (const StateVar& var : program.state) {
    const auto it = checkpoint.tensors.find(var.name);
    if (it == checkpoint.tensors.end())
      return Error{"no tensor '" + var.name + "'", "probe state", ""};
    one.vars.push_back(it->second.replica_axis ? it->second.value.rows(0, 1).reshaped(var.type.dims)
                                               : it->second.value);
  }
  return States(static_cast<size_t>(program.sharding.cores), one);
}

struct Prober {
  const Experiment& experiment;
  std::unique_ptr<Backend> backend;

  Result<Gradient> gradient(const Program& program, const ProbeState& at) {
    TWINRUN_ASSIGN(const std::unique_ptr<Engine> engine, backend->prepare(program));
    Feed feed(experiment.data->train, experiment.feed_options(experiment.scenario.train.batch));
    TWINRUN_ASSIGN(const Batch batch, feed.batch(at.first));
    TWINRUN_ASSIGN(const StepInputs inputs,
                   step_inputs(program, experiment.scenario, batch, at.first));
    TWINRUN_ASSIGN(States states, spread(at.second, program));
    StepOutputs outputs;
    TWINRUN_RETURN_IF_ERROR(engine->step(at.first, states, inputs, outputs));
    Gradient g;
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      if (program.outputs[i].name.ends_with(".grad")) g.push_back(as_doubles(outputs[0][i]));
    }
    return g;
  }
};

double squared_drift(const Gradient& subject, const Gradient& reference) {
  double gap = 0, norm = 0;
  for (size_t p = 0; p < reference.size(); ++p) {
    for (size_t i = 0; i < reference[p].size(); ++i) {
      const double d = subject[p][i] - reference[p][i];
      gap += d * d;
      norm += reference[p][i] * reference[p][i];
    }
  }
  return norm > 0 ? gap / norm : gap;
}

// The layers where samples meet in that way, "mbstd1, loss".
std::string coupled_by(const Experiment& e, std::string_view cause) {
  std::string layers;
  for (const Coupling& c : e.forward.couplings) {
    if (c.cause == cause) layers += (layers.empty() ? "" : ", ") + c.layer;
  }
  return layers;
}

double factorial(size_t n) { return n < 2 ? 1.0 : static_cast<double>(n) * factorial(n - 1); }

}  // namespace

std::vector<ShardingCause> sharding_causes(const Experiment& e) {
  std::vector<ShardingCause> causes;
  const Sharding& s = e.sharding;
  if (s.cores <= 1) return causes;
  const bool mean_loss = e.scenario.loss.reduction == LossReduction::kMean;
  const bool mean_reduce = s.reduction == Reduction::kMean;
  if (mean_loss != mean_reduce) {
    causes.push_back({"reduction",
                      mean_loss
                          ? fmt::format("each replica's loss is a mean, and the {} replicas' "
                                        "gradients are summed: the update is {} times the "
                                        "whole batch's",
                                        s.cores, s.cores)
                          : fmt::format("the loss is summed over the batch, but each replica's is "
                                        "scaled by 1/{}: the update is 1/{} of the "
                                        "whole batch's",
                                        s.cores, s.cores),
                      mean_loss ? "set tpu.reduction = \"mean\" (or divide the loss by the total "
                                  "batch and keep the sum)"
                                : "set tpu.reduction = \"sum\" (or make the loss a mean)"});
  }
  const int64_t per_core = e.scenario.train.batch / s.cores;
  if (!coupled_by(e, "batch_norm").empty() &&
      (s.batchnorm == BatchNormSync::kPerCore || s.batchnorm_group > 0)) {
    causes.push_back(
        {"batch_norm",
         fmt::format("each core normalises by the statistics of its own {} samples, not of all {}",
                     per_core, e.scenario.train.batch),
         "set tpu.batchnorm = \"synced\", or raise train.batch (the guide asks for 32 per core)"});
  }
  if (const std::string layers = coupled_by(e, "batch_wise");
      !layers.empty() && s.batchwise == Scope::kPerCore) {
    causes.push_back({"batch_wise",
                      fmt::format("{}: what is compared across samples sees the {} samples of one "
                                  "core, not all {}",
                                  layers, per_core, e.scenario.train.batch),
                      "set tpu.batchwise = \"gathered\" (a cross-replica gather before it)"});
  }
  if (!coupled_by(e, "token_mean").empty() && s.token_mean == Scope::kPerCore && mean_loss) {
    causes.push_back({"token_mean",
                      "each core divides by the weights of its own tokens: a mean of means, where "
                      "cores hold unequal numbers of tokens",
                      "set tpu.token_mean = \"global\" (all-reduce the number of tokens first)"});
  }
  if (e.forward.optimizer.clip != OptimizerSpec::Clip::kNone &&
      s.clipping == Clipping::kBeforeAllReduce) {
    causes.push_back({"clipping",
                      fmt::format("each core clips its own gradient{} before the all-reduce, the "
                                  "whole batch's gradient is clipped after it",
                                  mean_reduce ? fmt::format(", already scaled by 1/{},", s.cores)
                                              : std::string()),
                      "set tpu.clipping = \"after_all_reduce\""});
  }
  // Where the loss is a mean, the reduction that fits counts the term once.
  if (e.forward.optimizer.l2 > 0 && !mean_loss) {
    causes.push_back({"l2",
                      fmt::format("each core's loss has the whole L2 term, and under a sum of "
                                  "gradients it counts {} times",
                                  s.cores),
                      fmt::format("divide optimizer.l2 by {}, or make the loss a mean", s.cores)});
  }
  return causes;
}

Sharding restore(const Experiment& e, Sharding s, const std::string& cause) {
  if (cause == "reduction") {
    s.reduction =
        e.scenario.loss.reduction == LossReduction::kMean ? Reduction::kMean : Reduction::kSum;
  } else if (cause == "batch_norm") {
    s.batchnorm = BatchNormSync::kSynced;
    s.batchnorm_group = 0;
  } else if (cause == "batch_wise") {
    s.batchwise = Scope::kGlobal;
  } else if (cause == "token_mean") {
    s.token_mean = Scope::kGlobal;
  } else if (cause == "clipping") {
    s.clipping = Clipping::kAfterAllReduce;
  } else if (cause == "l2") {
    s.l2_once = true;
  }
  return s;
}

Result<MeaningResult> probe_meaning(const Experiment& e, const std::vector<ProbeState>& states,
                                    int threads) {
  MeaningResult result;
  result.causes = sharding_causes(e);
  BackendOptions options;
  options.threads = threads;
  Prober prober{e, nullptr};
  TWINRUN_ASSIGN(prober.backend, make_backend("cpu:f64", options));

  // v[mask]: mean squared drift with the causes in `mask` restored.
  const size_t n = result.causes.size();
  std::vector<double> v(size_t{1} << n, 0.0);
  for (const ProbeState& at : states) {
    result.steps.push_back(at.first);
    TWINRUN_ASSIGN(const Gradient reference, prober.gradient(e.whole(), at));
    for (size_t mask = 0; mask < v.size(); ++mask) {
      Sharding s = e.sharding;
      for (size_t c = 0; c < n; ++c) {
        if ((mask >> c & 1) != 0) s = restore(e, s, result.causes[c].name);
      }
      TWINRUN_ASSIGN(const Gradient subject, prober.gradient(e.sharded(s), at));
      v[mask] += squared_drift(subject, reference) / static_cast<double>(states.size());
    }
  }
  result.drift = std::sqrt(v.front());
  result.residual = std::sqrt(v.back());

  const size_t all = v.size() - 1;
  for (size_t c = 0; c < n; ++c) {
    const size_t bit = size_t{1} << c;
    double shapley =
        0;  // how much of the squared drift restoring c removes, averaged over the orders of restoring
    for (size_t mask = 0; mask < v.size(); ++mask) {
      if ((mask & bit) != 0) continue;
      const auto before = static_cast<size_t>(__builtin_popcountll(mask));
      shapley +=
          factorial(before) * factorial(n - before - 1) / factorial(n) * (v[mask] - v[mask | bit]);
    }
    const double share = v.front() > 0 ? shapley / v.front() : 0;
    const double restored = std::sqrt(v[bit]), alone = std::sqrt(v[all & ~bit]);
    SwitchRow in_s{result.causes[c].name,
                   "restored in S",
                   result.drift,
                   restored,
                   kMeaningThreshold,
                   restored < result.drift && (restored <= kMeaningThreshold || share > 0.5),
                   share,
                   ""};
    in_s.note = restored <= kMeaningThreshold ? "drift gone" : "drift remains";
    SwitchRow in_r{result.causes[c].name, "introduced alone",        result.residual, alone,
                   kMeaningThreshold,     alone > kMeaningThreshold, share,           ""};
    in_r.note = alone > kMeaningThreshold ? "drift appears" : "no drift";
    result.rows.push_back(std::move(in_s));
    result.rows.push_back(std::move(in_r));
  }
  return result;
}

}  // namespace twinrun
