// Builds the memory report of a step: plan, largest buffers, padding, possible changes, largest
// batch.
#include "harness/experiment/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "device/hbm_plan.h"
#include "program/analysis/host_memory.h"
#include "program/graph/liveness.h"

namespace twinrun {
namespace {

using tpu::HbmBuffer;
using tpu::HbmPlan;
using tpu::HbmUse;
using tpu::plan_hbm;
using tpu::Rematerialise;

constexpr const char* kElementwiseAgain = "elementwise activations recomputed";
constexpr const char* kStretchesAgain = "activations between checkpoints recomputed";
constexpr size_t kLargest = 10, kMaxPadded = 5;
constexpr int64_t kMaxPerCore = 1 << 20;  // samples; the search for the largest batch ends here
// Total batches are multiples of this (the guide's rule for eight cores).
constexpr int64_t kGuideBatch = 64;

class Reporter {
 public:
  Reporter(const Program& step, const tpu::Generation& generation, const Experiment* experiment,
           const MemoryOptions& options)
      : step_(step),
        generation_(generation),
        experiment_(experiment != nullptr && !experiment->imported && experiment->forward.recipe
                        ? experiment
                        : nullptr),
        options_(options),
        plan_(plan_hbm(step)) {}

  MemoryReport report() {
    MemoryReport r;
    r.generation = generation_.name;
    r.cores = step_.sharding.cores;
    r.batch = step_.batch * r.cores;
    r.hbm = generation_.hbm;
    r.reserved = generation_.reserved;
    r.arguments = plan_.arguments();
    r.program = plan_.program();
    r.program_unpadded = plan_.program_unpadded();
    r.peak_op = plan_.peak_op;
    r.peak_phase = plan_.peak_phase == Phase::kForward ? "forward" : "backward";
    for (size_t use = 0; use < tpu::kHbmUses; ++use)
      r.uses.push_back({std::string(to_string(static_cast<HbmUse>(use))), plan_.at_peak.bytes[use],
                        plan_.at_peak.unpadded[use]});
    const auto weights = static_cast<double>(unpadded(HbmUse::kWeights));
    if (weights > 0)
      r.slot_bytes_per_weight = 4 * static_cast<double>(unpadded(HbmUse::kSlots)) / weights;
    find_largest(r);
    find_padding(r);
    find_changes(r);
    if (options_.fit && experiment_ != nullptr) {
      r.fit.push_back(fit("", Rematerialise::kNothing));
      r.fit.push_back(fit(kElementwiseAgain, Rematerialise::kElementwise));
      r.fit.push_back(fit(kStretchesAgain, Rematerialise::kSegments));
    }
    if (options_.host) {
      const HostPlan host = plan_host(step_);
      r.host = HostMemory{host.arena, host.states, host.outputs, host.inputs, host.constants};
    }
    return r;
  }

 private:
  int64_t unpadded(HbmUse use) const { return plan_.at_peak.unpadded[static_cast<size_t>(use)]; }
  int cores() const { return step_.sharding.cores; }

  // The rule of batch and features that causes the padding; "" if there is none. A batch is laid
  // out in tiles of 8 or 128 rows per core: 64 and 1024 rows on eight cores.
  std::string broken_rule(const HbmBuffer& b) const {
    const Dims& dims = b.type.dims;
    if (b.bytes == b.unpadded() || dims.empty()) return "";
    if (tpu::is_argument(b.use) || b.use == HbmUse::kGradients || dims[0] != step_.batch ||
        dims.size() < 2)
      return dims.size() < 2 ? "a dimension of its own fills tiles of 256 to 1024"
                             : "the last two dimensions are not multiples of 8 and 128";
    const int64_t batch = dims[0] * cores(), features = dims.back();
    const int64_t eight = tpu::kSublanes * cores(), lanes = tpu::kLanes * cores();
    return fmt::format("batch {} and {} features: neither multiples of {} and {} nor of {} and {}",
                       batch, features, eight, tpu::kLanes, lanes, tpu::kSublanes);
  }

  MemoryAllocation allocation(const HbmBuffer& b) const {
    const ValueId id = step_.graph.find(b.op);
    const bool argument = id == kNoValue || step_.graph.op(id).kind == OpKind::kParameter;
    return {b.op,
            argument ? "parameter" : std::string(name_of(step_.graph.op(id).kind)),
            std::string(to_string(b.use)),
            to_string(b.type, b.layout),
            b.bytes,
            b.unpadded(),
            broken_rule(b)};
  }

  // Lists up to kLargest arguments, and up to as many other buffers.
  void find_largest(MemoryReport& r) const {
    size_t arguments = 0, others = 0;
    for (const HbmBuffer& b : plan_.largest(plan_.buffers.size())) {
      size_t& count = tpu::is_argument(b.use) ? arguments : others;
      if (count++ < kLargest) r.largest.push_back(allocation(b));
    }
  }

  void find_padding(MemoryReport& r) const {
    std::vector<const HbmBuffer*> padded;
    int64_t largest = 0;
    for (const HbmBuffer& b : plan_.buffers) {
      if (b.bytes > b.unpadded()) padded.push_back(&b);
      largest = std::max(largest, b.bytes);
    }
    std::ranges::stable_sort(padded, [](const HbmBuffer* a, const HbmBuffer* b) {
      return a->bytes - a->unpadded() > b->bytes - b->unpadded();
    });
    for (const HbmBuffer* b : padded) {
      // Padding below a hundredth of the largest buffer is not worth a line.
      if (r.padding.size() == kMaxPadded || (b->bytes - b->unpadded()) * 100 < largest) break;
      r.padding.push_back(allocation(*b));
    }
  }

  MemoryChange planned(std::string change, std::string set, const HbmPlan& plan,
                       int64_t batch) const {
    MemoryChange c{std::move(change), std::move(set), plan.used(),
                   plan.used() <= generation_.hbm_usable(), batch};
    c.extra_flops = plan.recomputed_flops;
    if (c.extra_flops > 0) c.step_flops = step_flops(step_);
    return c;
  }

  HbmPlan at_batch(int64_t batch, Rematerialise again = Rematerialise::kNothing) const {
    Experiment e = *experiment_;
    e.forward = rebatch(e.forward, batch);
    return plan_hbm(e.sharded(step_.sharding), {.rematerialise = again});
  }

  HbmPlan with_optimizer(OptimizerSpec::Kind kind) const {
    Experiment e = *experiment_;
    e.forward.optimizer.kind = kind;
    return plan_hbm(e.sharded(step_.sharding));
  }

  void find_changes(MemoryReport& r) const {
    const int64_t used = plan_.used();
    const auto offer = [&](const MemoryChange& c) {
      if (c.used < used) r.changes.push_back(c);
    };
    offer(planned(kElementwiseAgain, "",
                  plan_hbm(step_, {.rematerialise = Rematerialise::kElementwise}), r.batch));
    offer(planned(kStretchesAgain, "", plan_hbm(step_, {.rematerialise = Rematerialise::kSegments}),
                  r.batch));
    offer(planned("activations stored in bfloat16", "", plan_hbm(step_, {.bf16_activations = true}),
                  r.batch));
    if (experiment_ == nullptr) return;
    offer_batches(r);
    offer_optimizers(r);
  }

  void offer_batches(MemoryReport& r) const {
    const auto at = [&](int64_t batch) -> std::optional<MemoryChange> {
      try {
        return planned(fmt::format("train.batch = {}", batch),
                       fmt::format("--set train.batch={}", batch), at_batch(batch), batch);
      } catch (const GraphError&) {
        return std::nullopt;  // the layers' groups of samples do not fit this batch
      }
    };
    if (r.batch % (2 * cores()) == 0) {
      const auto half = at(r.batch / 2);
      if (half && half->used < plan_.used()) r.changes.push_back(*half);
    }
    // A batch that fills its tiles needs fewer bytes per sample.
    const int64_t tile = tpu::kSublanes * cores(), wide = tpu::kLanes * cores();
    for (const int64_t multiple : {tile, wide}) {
      const int64_t batch = (r.batch + multiple - 1) / multiple * multiple;
      if (batch == r.batch || batch > 2 * r.batch) continue;
      const auto c = at(batch);
      const auto per_sample = [](int64_t bytes, int64_t samples) {
        return static_cast<double>(bytes) / static_cast<double>(samples);
      };
      if (c && per_sample(c->used - r.arguments, batch) < 0.99 * per_sample(r.program, r.batch))
        r.changes.push_back(*c);
    }
  }

  void offer_optimizers(MemoryReport& r) const {
    using Kind = OptimizerSpec::Kind;
    if (unpadded(HbmUse::kSlots) == 0) return;
    struct Row {
      Kind kind;
      const char* name;
    };
    for (const Row& row : {Row{Kind::kMomentum, "momentum"}, Row{Kind::kAdafactor, "adafactor"},
                           Row{Kind::kSgd, "sgd"}}) {
      if (step_.optimizer.kind == row.kind) continue;
      const MemoryChange c = planned(fmt::format("optimizer.kind = \"{}\"", row.name),
                                     fmt::format("--set optimizer.kind={}", row.name),
                                     with_optimizer(row.kind), r.batch);
      if (c.used < plan_.used()) r.changes.push_back(c);
    }
  }

  // Memory grows with the batch, so search by doubling, then by bisection.
  MemoryFit fit(const char* with, Rematerialise again) const {
    MemoryFit best{with};
    best.multiple = std::lcm(kGuideBatch, static_cast<int64_t>(cores()));
    const auto fits = [&](int64_t times) {
      const int64_t batch = times * best.multiple, used = at_batch(batch, again).used();
      if (used > generation_.hbm_usable()) return false;
      best.batch = batch;
      best.used = used;
      return true;
    };
    int64_t low = 0, high = 1;
    while (high * best.multiple / cores() <= kMaxPerCore && fits(high))
      low = std::exchange(high, 2 * high);
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    return best;
  }

  const Program& step_;
  const tpu::Generation& generation_;
  const Experiment* experiment_;
  const MemoryOptions& options_;
  HbmPlan plan_;
};

}  // namespace

MemoryReport report_memory(const Program& step, const tpu::Generation& generation,
                           const Experiment* experiment, const MemoryOptions& options) {
  return Reporter(step, generation, experiment, options).report();
}

}  // namespace twinrun
