// Lists the causes of sharding that a drill can introduce into a scenario.
#include "harness/drill/causes.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/sharding/causes.h"

namespace twinrun::drill {
namespace {

bool has_layer(const Scenario& s, std::string_view kind) {
  return std::ranges::any_of(s.model.layers, [&](const LayerSpec& l) { return l.kind == kind; });
}

}  // namespace

std::vector<DeclaredCause> declared_causes(const Scenario& s) {
  std::vector<DeclaredCause> causes;
  if (s.tpu.cores < 2) return causes;
  if (s.loss.reduction == LossReduction::kMean) {
    causes.push_back({"reduction", {{"tpu.reduction", "sum"}}});
    // A summed loss is `batch` times the mean. The learning rate is divided by `batch`, so that the
    // reference trains as before.
    causes.push_back({"reduction",
                      {{"loss.reduction", "sum"},
                       {"optimizer.lr",
                        fmt::format("{}", s.optimizer.lr / static_cast<double>(s.train.batch))}}});
    if (s.optimizer.l2 > 0) {
      causes.push_back(
          {"l2",
           {{"loss.reduction", "sum"},
            {"tpu.reduction", "sum"},
            {"optimizer.l2",
             fmt::format("{}", s.optimizer.l2 * static_cast<double>(s.train.batch))}}});
    }
  }
  if (has_layer(s, "batch_norm")) causes.push_back({"batch_norm", {{"tpu.batchnorm", "per_core"}}});
  const bool pairs = s.loss.kind == "triplet" || s.loss.kind == "contrastive";
  if (pairs || has_layer(s, "minibatch_stddev"))
    causes.push_back({"batch_wise", {{"tpu.batchwise", "per_core"}}});
  if (!pairs && s.loss.weights == "tokens")
    causes.push_back({"token_mean", {{"tpu.token_mean", "per_core"}}});
  if (s.optimizer.clip != "none")
    causes.push_back({"clipping", {{"tpu.clipping", "before_all_reduce"}}});
  return causes;
}

std::vector<std::string> hidden_causes(const Experiment& e) {
  if (e.sharding.cores < 2) return {};
  std::vector<std::string> causes = possible_causes(e);
  const std::vector<std::string> present = present_causes(e, e.sharding);
  std::erase_if(causes, [&](const std::string& cause) {
    return std::ranges::find(present, cause) != present.end();
  });
  return causes;
}

}  // namespace twinrun::drill
