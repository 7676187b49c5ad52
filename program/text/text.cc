// The text form of programs, which reports quote and from which digests are computed.
#include <fmt/format.h>

#include "program/graph/program.h"

namespace twinrun {
namespace {

std::string_view text_of(Reducer r) {
  return r == Reducer::kSum ? "sum" : r == Reducer::kMax ? "max" : "mean";
}
std::string_view text_of(CompareKind c) {
  constexpr std::string_view kNames[] = {"eq", "ne", "lt", "le", "gt", "ge"};
  return kNames[static_cast<size_t>(c)];
}
std::string text_of(const Window& w) {
  std::string out = fmt::format("window={}x{}", w.size[0], w.size[1]);
  if (w.stride[0] != 1 || w.stride[1] != 1)
    out += fmt::format(" stride={}x{}", w.stride[0], w.stride[1]);
  if (w.pad_low[0] || w.pad_low[1] || w.pad_high[0] || w.pad_high[1]) {
    out +=
        fmt::format(" pad={}_{}x{}_{}", w.pad_low[0], w.pad_high[0], w.pad_low[1], w.pad_high[1]);
  }
  if (w.dilation[0] != 1 || w.dilation[1] != 1)
    out += fmt::format(" dilate={}x{}", w.dilation[0], w.dilation[1]);
  return out;
}

std::string attributes(const Op& op) {
  const Attrs& a = op.attrs;
  switch (shown_attributes_of(op.kind)) {
    case ShownAttributes::kNone:
      return "";
    case ShownAttributes::kValue:
      return fmt::format(" {}", a.value);
    case ShownAttributes::kDim:
      return fmt::format(" dim={}", a.dims[0]);
    case ShownAttributes::kDims:
      return fmt::format(" dims={}", to_string(a.dims));
    case ShownAttributes::kReducerAndDims:
      return fmt::format(" {} dims={}", text_of(a.reducer), to_string(a.dims));
    case ShownAttributes::kReducerAndWindow:
      return fmt::format(" {} {}", text_of(a.reducer), text_of(a.window));
    case ShownAttributes::kCompare:
      return fmt::format(" {}", text_of(a.compare));
    case ShownAttributes::kContraction:
      return fmt::format(" contract={}x{}", a.lhs_contract, a.rhs_contract) +
             (a.batch_dims > 0 ? fmt::format(" batch={}", a.batch_dims) : "");
    case ShownAttributes::kWindow:
      return " " + text_of(a.window);
    case ShownAttributes::kWindowAndGroups:
      return " " + text_of(a.window) + (a.groups > 1 ? fmt::format(" groups={}", a.groups) : "");
    case ShownAttributes::kSeed:
      return fmt::format(" seed={} stream={}", a.seed, a.stream);
  }
  return "";
}

// Settings that few programs have are written only where they are set, because a program's digest
// is computed from this text.
std::string rare_settings(const Sharding& s) {
  static constexpr const char* kScaling[] = {"", "scaled by 1/cores once more\n",
                                             "never scaled by 1/cores\n",
                                             "scaled by the groups' size\n"};
  static constexpr const char* kStatistics[] = {
      "", "running statistics are each core's\n", "running statistics are of all cores\n",
      "running statistics are averaged over cores\n", "running statistics go on from core 0's\n"};
  static constexpr const char* kShards[] = {"", "fed: every core the first shard\n",
                                            "fed: the first shard twice\n"};
  static constexpr const char* kRemainder[] = {"", "fed: the remainder padded\n",
                                               "fed: the remainder repeated\n",
                                               "fed: the remainder dropped\n"};
  static constexpr const char* kStreams[] = {"", "fed: one random stream on all cores\n",
                                             "fed: a random stream per core\n"};
  static constexpr const char* kRate[] = {"", "fed: learning rate times cores\n",
                                          "fed: learning rate over cores\n"};
  std::string out = s.l2_every_core ? "every core's L2 term is the whole one\n" : "";
  const auto rows = [&](const char* what, const std::vector<int32_t>& of) {
    if (!of.empty()) out += fmt::format("fed: {} of rows {}\n", what, fmt::join(of, " "));
  };
  rows("features", s.feeding.deal.features);
  rows("labels", s.feeding.deal.labels);
  rows("draws", s.feeding.deal.draws);
  if (s.reduction_groups.size > 0) {
    out += fmt::format("gradients are reduced in {}groups of {} cores\n",
                       s.reduction_groups.strided ? "strided " : "", s.reduction_groups.size);
  }
  if (s.batchnorm_strided) out += "batchnorm groups are strided\n";
  if (!s.unreduced.empty())
    out += fmt::format("gradients kept by each core: {}\n", fmt::join(s.unreduced, " "));
  out += kScaling[static_cast<size_t>(s.scaling)];
  out += kStatistics[static_cast<size_t>(s.statistics)];
  out += kShards[static_cast<size_t>(s.feeding.shards)];
  out += kRemainder[static_cast<size_t>(s.feeding.remainder)];
  out += kStreams[static_cast<size_t>(s.feeding.streams)];
  out += kRate[static_cast<size_t>(s.feeding.rate)];
  return out;
}

}  // namespace

std::string to_text(const Program& p) {
  std::string out = fmt::format(
      "program cores={} reduction={} batchnorm={} gradients={}{}{} batch={}\n", p.sharding.cores,
      p.sharding.reduction == Reduction::kMean ? "mean" : "sum",
      p.sharding.batchnorm == BatchNormSync::kPerCore  ? "per_core"
      : p.sharding.batchnorm == BatchNormSync::kSynced ? "synced"
                                                       : "averaged",
      p.sharding.reduce_gradients ? "all_reduced" : "local",
      p.sharding.clipping == Clipping::kBeforeAllReduce ? " clipping=before_all_reduce" : "",
      p.sharding.l2_once ? " l2=once" : "", p.batch);
  if (p.sharding.batchnorm_group > 0)
    out += fmt::format("batchnorm groups of {} cores\n", p.sharding.batchnorm_group);
  if (p.sharding.batchwise == Scope::kGlobal) out += "layers across samples see all cores\n";
  if (p.sharding.token_mean == Scope::kGlobal) out += "weighted means are over all cores\n";
  out += rare_settings(p.sharding);
  for (ValueId id = 0; id < p.graph.size(); ++id) {
    const Op& op = p.graph.op(id);
    std::string operands;
    for (ValueId operand : op.operands) {
      operands += fmt::format("{}%{}", operands.empty() ? "" : ", ", operand);
    }
    out += fmt::format("%{} = {}({}){} : {}  # {} {}\n", id, name_of(op.kind), operands,
                       attributes(op), to_string(op.type), to_string(op.phase), op.name);
  }
  for (const auto& var : p.state) {
    out += fmt::format("state {} {} {} %{} -> %{}\n", var.name, to_string(var.role),
                       to_string(var.type), var.id, var.next == kNoValue ? var.id : var.next);
  }
  for (const auto& output : p.outputs)
    out += fmt::format("output {} %{}\n", output.name, output.id);
  return out;
}

}  // namespace twinrun
