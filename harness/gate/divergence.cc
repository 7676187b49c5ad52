// Searches two run files for the first difference: trace, states, losses, evaluations.
#include "harness/gate/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "harness/run/run.h"
#include "reports/text.h"

namespace twinrun {
namespace {

std::string describe(const OpTraceRow& row) {
  std::string out =
      fmt::format("digest {}, mean {:.6g}, range [{:.6g}, {:.6g}]", text::digest8(row.digest.hex()),
                  row.mean, row.minimum, row.maximum);
  if (row.nans > 0) out += fmt::format(", {} NaN", text::count(row.nans));
  if (row.infs > 0) out += fmt::format(", {} infinite", text::count(row.infs));
  return out;
}

bool same_place(const OpTraceRow& a, const OpTraceRow& b) {
  return a.step == b.step && a.op == b.op && a.replica == b.replica;
}

// The core of a difference: 0 if another core's row of the same op is unchanged; nullopt: all
// cores.
std::optional<int> core_of(const RunFile& was, const RunFile& now, const OpTraceRow& row) {
  if (row.replica > 0) return row.replica;
  const auto kept = [&](const OpTraceRow& a) {
    return a.step == row.step && a.op == row.op && a.replica > 0 &&
           std::ranges::any_of(now.trace, [&](const OpTraceRow& b) {
             return same_place(a, b) && a.digest == b.digest;
           });
  };
  return std::ranges::any_of(was.trace, kept) ? std::optional(0) : std::nullopt;
}

// The first row, in the order of computation, whose bits differ.
std::optional<GateSite> first_diverging_row(const RunFile& was, const RunFile& now) {
  const size_t n = std::max(was.trace.size(), now.trace.size());
  for (size_t i = 0; i < n; ++i) {
    const OpTraceRow* a = i < was.trace.size() ? &was.trace[i] : nullptr;
    const OpTraceRow* b = i < now.trace.size() ? &now.trace[i] : nullptr;
    if (a != nullptr && b != nullptr && same_place(*a, *b)) {
      if (a->digest == b->digest) continue;
      return GateSite{a->step, a->op, core_of(was, now, *a), describe(*a), describe(*b)};
    }
    // A core has a row only where it differs from core 0, so one of the runs may lack it.
    if (b != nullptr && b->replica > 0)
      return GateSite{b->step, b->op, b->replica, "the same as on core 0", describe(*b)};
    if (a != nullptr && a->replica > 0)
      return GateSite{a->step, a->op, a->replica, describe(*a), "the same as on core 0"};
    const OpTraceRow& row = a != nullptr ? *a : *b;
    return GateSite{row.step,
                    row.op,
                    {},
                    a != nullptr ? describe(*a) : "no such op",
                    b == nullptr   ? "the run ended before it"
                    : a != nullptr ? "the program has " + b->op + " in its place"
                                   : describe(*b)};
  }
  return std::nullopt;
}

template <typename Row>
bool same_bits(const Row& a, const Row& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace

std::optional<GateSite> first_divergence(const RunFile& was, const RunFile& now, bool rows) {
  if (rows) {
    if (auto site = first_diverging_row(was, now)) return site;
  }
  if (const auto parts = first_difference(was, now))
    return GateSite{*parts,
                    "state after the step",
                    {},
                    was.state_digests[static_cast<size_t>(*parts)].hex(),
                    static_cast<size_t>(*parts) < now.state_digests.size()
                        ? now.state_digests[static_cast<size_t>(*parts)].hex()
                        : "the run ended before it"};
  for (size_t i = 0; i < was.steps.size(); ++i) {
    if (i >= now.steps.size())
      return GateSite{static_cast<int64_t>(i),
                      "loss",
                      {},
                      fmt::format("{}", was.steps[i].loss),
                      "the run ended before it"};
    const StepScalars &a = was.steps[i], &b = now.steps[i];
    if (!same_bits(a, b))
      return GateSite{static_cast<int64_t>(i),
                      "loss",
                      {},
                      fmt::format("loss {}, gradient norm {}", a.loss, a.gradient_norm),
                      fmt::format("loss {}, gradient norm {}", b.loss, b.gradient_norm)};
  }
  for (size_t i = 0; i < std::min(was.evaluations.size(), now.evaluations.size()); ++i) {
    const Evaluation &a = was.evaluations[i], &b = now.evaluations[i];
    if (!same_bits(a, b))
      return GateSite{a.step,
                      "held-out loss",
                      {},
                      fmt::format("{}, accuracy {}", a.loss, a.accuracy),
                      fmt::format("{}, accuracy {}", b.loss, b.accuracy)};
  }
  if (was.evaluations.size() != now.evaluations.size())
    return GateSite{{},
                    "held-out loss",
                    {},
                    text::plural(static_cast<int64_t>(was.evaluations.size()), "evaluation"),
                    text::plural(static_cast<int64_t>(now.evaluations.size()), "evaluation")};
  return std::nullopt;
}

}  // namespace twinrun
