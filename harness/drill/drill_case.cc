// Plans the cases of a drill, and draws each case from its id.
#include "harness/drill/drill_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <set>

#include "backends/faults/faults.h"
#include "harness/diagnose/pipeline.h"
#include "harness/drill/causes.h"
#include "harness/drill/subject.h"
#include "harness/experiment/engines.h"
#include "program/base/digest.h"
#include "program/base/names.h"
#include "program/base/philox.h"
#include "program/graph/liveness.h"

namespace twinrun::drill {
namespace {

constexpr std::array<std::string_view, std::size(kStrata)> kNames = {
    "clean", "engine", "bias", "inert", "declared", "hidden", "both"};
// Faults that can bias a sum; those with a magnitude are limited to one ulp.
constexpr std::array<std::string_view, 3> kBiases = {"ulp_bias", "truncate_accumulator",
                                                     "ulp_toward_zero"};

// The proportions of a drill. Clean pairs have the largest share: showing a false alarm rate below
// 1 in 300 takes a thousand of them.
struct Share {
  Stratum stratum;
  char level;
  int64_t parts;
};
constexpr Share kShares[] = {
    {Stratum::kClean, 'A', 80},    {Stratum::kClean, 'C', 20},  {Stratum::kEngine, 'A', 64},
    {Stratum::kEngine, 'C', 24},   {Stratum::kBias, 'A', 8},    {Stratum::kInert, 'A', 10},
    {Stratum::kDeclared, 'A', 12}, {Stratum::kHidden, 'A', 16}, {Stratum::kHidden, 'C', 10},
    {Stratum::kBoth, 'A', 10},
};

constexpr double kLitmusFlops = 3e9;  // for a whole run: tenths of a second
constexpr uint32_t kStreamDrill = 0xD5u << 24;

std::string id_of(const CaseName& p) {
  return fmt::format("{}{}.{}.{}.{}", to_string(p.stratum), p.level == 'C' ? "C" : "", p.scenario,
                     p.seed, p.number);
}

template <typename T>
bool read_number(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

// The case's own random numbers.
class Draws {
 public:
  explicit Draws(const std::string& id)
      : key_{digest_bytes(id.data(), id.size()).high, kStreamDrill} {}
  uint32_t below(size_t n) { return bounded(draw(key_, 0, 0, next_++), static_cast<uint32_t>(n)); }
  uint64_t wide() { return uint64_t{below(1u << 31)} << 31 | below(1u << 31); }
  template <typename T>
  const T& of(const std::vector<T>& list) {
    return list[below(list.size())];
  }

 private:
  RandomKey key_;
  uint64_t next_ = 0;
};

bool is_of_sharding(Stratum stratum) {
  return stratum == Stratum::kDeclared || stratum == Stratum::kHidden || stratum == Stratum::kBoth;
}

// Numbers of cores that divide the batch evenly.
std::vector<int> core_counts(int64_t batch, int least) {
  std::vector<int> counts;
  for (int n = least; n <= 8; ++n) {
    if (batch % n == 0) counts.push_back(n);
  }
  return counts;
}

std::string precision_of(Draws& draws) {
  constexpr std::array<const char*, 6> kPrecisions = {"default", "default", "default",
                                                      "high",    "highest", "f32"};
  return kPrecisions[draws.below(kPrecisions.size())];
}

// Whether the op sums many terms into one number.
bool sums(const Op& op) {
  switch (op.kind) {
    case OpKind::kDotGeneral:
    case OpKind::kConvolution:
    case OpKind::kConvolutionInputGrad:
    case OpKind::kConvolutionKernelGrad:
    case OpKind::kAllReduce:
      return true;
    case OpKind::kReduce:
    case OpKind::kReduceWindow:
      return op.attrs.reducer != Reducer::kMax;
    default:
      return false;
  }
}

// Draws an op that the kind can act on. The phase is drawn first, so that the few ops of the update
// are hit as often as the many of the gradients.
std::optional<std::string> choose_op(Draws& draws, const Program& program, const FaultKind& kind,
                                     bool only_sums) {
  std::array<std::vector<std::string>, 4> by_phase;
  for (ValueId id = 0; id < program.graph.size(); ++id) {
    const Op& op = program.graph.op(id);
    if (applies(kind, program, id) && (!only_sums || sums(op)))
      by_phase[static_cast<size_t>(op.phase)].push_back(op.name);
  }
  std::vector<size_t> phases;
  for (size_t p = 0; p < by_phase.size(); ++p) {
    if (!by_phase[p].empty()) phases.push_back(p);
  }
  if (phases.empty()) return std::nullopt;
  return draws.of(by_phase[draws.of(phases)]);
}

std::string when_of(Draws& draws, int64_t steps) {
  const auto within = [&](int64_t low) {
    return low + static_cast<int64_t>(draws.below(static_cast<size_t>(steps - low)));
  };
  switch (draws.below(10)) {
    case 0:
    case 1:
      return fmt::format(",step={}", within(0));
    case 2:
    case 3:
      return fmt::format(",from={}", within(1));
    case 4:
      return fmt::format(",every={}", 2 + draws.below(4));
    case 5:
      return ",rate=0.2";
    default:
      return "";
  }
}

// The cases of a stratum take turns through the kinds that can be injected, and each scenario
// starts at a different kind. So a short drill has many kinds, and a long one has all of them
// equally often.
size_t turn_of(const CaseName& name) {
  const std::string place =
      fmt::format("{}{}{}", to_string(name.stratum), name.level, name.scenario);
  return static_cast<size_t>(digest_bytes(place.data(), place.size()).low % 1'000'003) +
         static_cast<size_t>(name.number);
}

// Adds a fault of a kind that fits an op of this program. Kinds take turns by the number of the
// case.
Status add_fault(DrillCase& c, Draws& draws, const Program& program, const Scenario& s,
                 size_t first) {
  const bool bias = c.stratum == Stratum::kBias;
  std::vector<FaultKind> kinds;
  for (const FaultKind& kind : fault_catalogue()) {
    if (!bias || std::ranges::find(kBiases, kind.name) != kBiases.end()) kinds.push_back(kind);
  }
  for (size_t turn = 0; turn < kinds.size(); ++turn) {
    const FaultKind& kind = kinds[(first + turn) % kinds.size()];
    const auto op = choose_op(draws, program, kind, bias);
    if (!op) continue;
    c.kind = kind.name;
    c.op = *op;
    c.fault = fmt::format("{}@{}", kind.name, *op);
    const int cores = program.sharding.cores;
    if (cores > 1 && draws.below(2) == 0)
      c.fault += fmt::format(",core={}", draws.below(static_cast<size_t>(cores)));
    if (c.stratum == Stratum::kInert) {
      c.fault += fmt::format(",from={}", s.train.steps);  // never occurs
      return Ok{};
    }
    if (!bias) c.fault += when_of(draws, s.train.steps);
    std::vector<double> grid = kind.magnitude.grid;
    if (bias) std::erase_if(grid, [](double ulps) { return ulps > 1; });
    if (!grid.empty()) {
      c.magnitude = draws.of(grid);
      c.fault += fmt::format(",magnitude={}", *c.magnitude);
    }
    return Ok{};
  }
  return Error{"no kind of fault can act on an op of this program", c.id, ""};
}

// Adds the keys of a declared cause, which the scenario must be able to have: two or more cores,
// and what the cause acts on.
Status add_declared(DrillCase& c, const Scenario& s, size_t turn) {
  const auto causes = declared_causes(s);
  if (causes.empty())
    return Error{"this scenario has no key that changes what sharding means", c.id, ""};
  const DeclaredCause& cause = causes[turn % causes.size()];
  c.cause = cause.name;
  for (const auto& item : cause.overrides) c.overrides.push_back(item);
  return Ok{};
}

}  // namespace

std::string_view to_string(Stratum stratum) { return kNames[static_cast<size_t>(stratum)]; }

Result<CaseName> parse_id(const std::string& id) {
  const Error bad{fmt::format("'{}' is not a case", id), "--case",
                  "STRATUM[C].SCENARIO.SEED.NUMBER, for example engine.drill_mlp.1.17"};
  const size_t first = id.find('.'), last = id.rfind('.');
  const size_t middle = last == std::string::npos || last == 0 ? first : id.rfind('.', last - 1);
  if (first == std::string::npos || middle == std::string::npos || first >= middle) return bad;
  CaseName p;
  std::string stratum = id.substr(0, first);
  if (stratum.ends_with('C')) {
    p.level = 'C';
    stratum.pop_back();
  }
  const auto name = std::ranges::find(kNames, stratum);
  if (name == kNames.end()) return bad;
  p.stratum = static_cast<Stratum>(name - kNames.begin());
  p.scenario = id.substr(first + 1, middle - first - 1);
  if (!read_number(std::string_view(id).substr(middle + 1, last - middle - 1), p.seed) ||
      !read_number(std::string_view(id).substr(last + 1), p.number) || p.number < 0) {
    return bad;
  }
  return p;
}

Result<std::vector<std::string>> plan_cases(const CasePlan& plan) {
  const bool imported = !plan.program.program.empty();
  const std::vector<std::string> names =
      imported ? std::vector{std::filesystem::path(plan.program.program).stem().string()}
               : plan.scenarios;
  std::vector<std::string> small, large;
  for (const std::string& name : names) {
    TWINRUN_ASSIGN(const Experiment e, open_experiment({name, plan.program}, {}));
    const double flops = step_flops(e.whole()) * static_cast<double>(e.scenario.train.steps);
    (flops > kLitmusFlops ? large : small).push_back(name);
  }
  const auto takes_part = [&](const Share& share) {
    return plan.level.value_or(share.level) == share.level &&
           !(imported && is_of_sharding(share.stratum));
  };
  int64_t parts = 0;
  for (const Share& share : kShares) parts += takes_part(share) ? share.parts : 0;
  if (parts == 0)
    return Error{fmt::format("no cases of level {}", *plan.level), "--level", "A or C"};

  // Spread the cases of each stratum evenly over the drill; its scenarios take turns.
  std::vector<std::pair<double, std::string>> order;
  const auto spread = [&](const std::vector<std::string>& scenarios, int64_t total) {
    for (const Share& share : kShares) {
      if (scenarios.empty() || !takes_part(share)) continue;
      const int64_t n = (total * share.parts + parts - 1) / parts;
      for (int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(i) % scenarios.size();
        const auto number = i / static_cast<int64_t>(scenarios.size());
        order.emplace_back((static_cast<double>(i) + 0.5) / static_cast<double>(n),
                           id_of({share.stratum, share.level, scenarios[at], plan.seed, number}));
      }
    }
  };
  const auto larges = static_cast<int64_t>(large.size());
  const int64_t for_large =
      std::min(kLargeCases * larges,
               plan.cases * larges / std::max<int64_t>(1, static_cast<int64_t>(names.size())));
  spread(large, for_large);
  spread(small, plan.cases - for_large);
  std::ranges::stable_sort(order, {}, [](const auto& item) { return item.first; });
  std::vector<std::string> ids;
  for (auto& [at, id] : order) ids.push_back(std::move(id));
  ids.resize(std::min(ids.size(), static_cast<size_t>(plan.cases)));
  return ids;
}

Result<DrillCase> draw_case(const std::string& id, const ProgramFiles& program) {
  TWINRUN_ASSIGN(const CaseName parts, parse_id(id));
  const bool imported = !program.program.empty();
  Draws draws(id);
  DrillCase c;
  c.id = id;
  c.stratum = parts.stratum;
  c.level = parts.level;
  c.scenario = parts.scenario;
  if (imported && is_of_sharding(c.stratum))
    return Error{"an imported program runs on one core, so sharding is not drilled", id,
                 "clean, engine, bias, inert"};
  if (!imported) {
    TWINRUN_ASSIGN(const Scenario plain, load_scenario(parts.scenario));
    const int least = is_of_sharding(c.stratum) ? 2 : 1;
    // Few different seeds, because reference runs are cached and shared by many cases.
    c.overrides = {{"seed", std::to_string(1 + draws.below(4))},
                   {"tpu.cores", std::to_string(draws.of(core_counts(plain.train.batch, least)))}};
  }
  c.overrides.emplace_back("tpu.precision", precision_of(draws));
  c.variant = draws.wide();
  if (c.stratum == Stratum::kDeclared || c.stratum == Stratum::kBoth) {
    TWINRUN_ASSIGN(const Scenario before, load_scenario(c.scenario, c.overrides));
    TWINRUN_RETURN_IF_ERROR(add_declared(c, before, turn_of(parts)));
  }
  TWINRUN_ASSIGN(const Experiment e, open_experiment({c.scenario, program}, c.overrides));
  const Scenario& s = e.scenario;
  if (c.stratum == Stratum::kHidden) {
    const auto causes = hidden_causes(e);
    if (causes.empty())
      return Error{"no sharding cause changes the meaning of this program", id, ""};
    c.cause = causes[turn_of(parts) % causes.size()];
  }
  if (c.stratum == Stratum::kEngine || c.stratum == Stratum::kBias ||
      c.stratum == Stratum::kInert || c.stratum == Stratum::kBoth) {
    // Choose among the ops of the program with the formulas that the subject declares.
    TWINRUN_ASSIGN(const auto conforming, conforming_engine(c, backend_options(s, 1)));
    const Program runs =
        as_computed_by(conforming->capabilities(),
                       s.tpu.cores > 1 ? e.sharded(e.sharding) : e.whole(Experiment::Stack::kTpu));
    TWINRUN_RETURN_IF_ERROR(add_fault(c, draws, runs, s, turn_of(parts)));
  }
  c.kind = c.kind.empty() ? c.cause : c.cause.empty() ? c.kind : c.kind + "+" + c.cause;
  return c;
}

}  // namespace twinrun::drill
