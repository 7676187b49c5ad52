// Examines a Function of the script by itself.
#include "harness/trace/function_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

#include "backends/aten/arithmetic.h"
#include "backends/aten/definitions.h"
#include "harness/trace/again.h"
#include "harness/trace/backward_graph.h"
#include "harness/trace/slope.h"
#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Array;
using aten::Call;
using aten::TensorView;
using aten::Undefined;

// A slope that is less certain than this part of the gradient is none.
constexpr double kOpen = 0.25;

double length(const Array& a) {
  double squares = 0;
  for (const double x : a.value) squares += x * x;
  return std::sqrt(squares);
}

// Whether what a Function gives is computed from an operand by way of a rounding or a sign, whose slope
// is 0 wherever it has one: any gradient of it is chosen, also where a scale that is computed from the
// same operand has a slope.
bool rounds_between(const TraceFile& trace, const FunctionUse& use) {
  static constexpr std::array<std::string_view, 9> kRoundings = {
      "aten.round", "aten.floor", "aten.ceil",      "aten.trunc",    "aten.fix",
      "aten.sign",  "aten.sgn",   "aten.heaviside", "aten.bernoulli"};
  std::unordered_set<uint64_t> from, rounded;
  for (const FunctionUse::Input& input : use.inputs) from.insert(input.view->storage);
  for (int64_t i = use.first; i <= use.last; ++i) {
    const Call& call = trace.calls[static_cast<size_t>(i)];
    if (!is_work(call)) continue;
    const auto read = read_by(call);
    const auto reads = [&](const std::unordered_set<uint64_t>& of) {
      return std::ranges::any_of(read,
                                 [&](const TensorView* t) { return of.contains(t->storage); });
    };
    // What is made like an operand holds no value of it.
    if (gives_no_values(base_name(call.op)) || base_name(call.op).ends_with("_like")) continue;
    const bool is_rounding = std::ranges::find(kRoundings, base_name(call.op)) != kRoundings.end();
    for (const TensorView* t : computed_by(call, read)) {
      const bool to_integers =
          aten::is_integer(t->element) && base_name(call.op) == "aten._to_copy";
      if (reads(rounded) || (reads(from) && (is_rounding || to_integers))) {
        rounded.insert(t->storage);
      } else if (reads(from)) {
        from.insert(t->storage);
      }
    }
  }
  return std::ranges::any_of(
      use.outputs, [&](const auto& pair) { return rounded.contains(pair.first->storage); });
}

// What the backward pass of a use reads of what its forward pass computed: then the values that both
// have in binary64 are the same. `all`: it reads nothing else that may have been rounded on the way.
struct Kept {
  std::vector<const TensorView*> views;
  bool all = true;
};
Kept kept_of(const TraceFile& trace, const FunctionUse& use) {
  std::unordered_set<uint64_t> read, made, others, known;
  const auto each = [&](int64_t first, int64_t end, auto f) {
    for (int64_t i = first; i < end; ++i) {
      const Call& call = trace.calls[static_cast<size_t>(i)];
      if (is_work(call)) f(call, read_by(call));
    }
  };
  each(use.first, use.last + 1, [&](const Call& call, const auto& operands) {
    for (const TensorView* t : operands) read.insert(t->storage);
    for (const TensorView* t : computed_by(call, operands)) made.insert(t->storage);
  });
  each(use.last + 1, use.begin, [&](const Call& call, const auto& operands) {
    for (const TensorView* t : computed_by(call, operands)) others.insert(t->storage);
  });
  for (const auto& [output, given] : use.outputs) known.insert(given->storage);
  Kept out;
  each(use.begin, use.end, [&](const Call& call, const auto& operands) {
    for (const TensorView* t : operands) {
      if (!aten::is_float(t->element) || known.contains(t->storage)) continue;
      const bool is_kept = made.contains(t->storage) && !others.contains(t->storage);
      if (is_kept) out.views.push_back(t);
      const bool is_same = read.contains(t->storage) && !others.contains(t->storage);
      out.all = out.all && (is_kept || is_same);
    }
    for (const TensorView* t : computed_by(call, operands)) known.insert(t->storage);
  });
  return out;
}

// `least` is for a step whose types round and decide. By itself a Function of half precision is known
// better: both passes are evaluated on the same numbers, so that what is left are its constants, which
// one pass may have rounded and the other not: those that are computed from no operand, and what it
// reads as a number of Python. Four of them are allowed for. Not where a choice that was made on
// rounded numbers is part of it.
double least_of(const TraceFile& trace, const FunctionUse& use, const Kept& kept, double least) {
  constexpr double kLeastOfSingle = 0x1p-10, kConstants = 4;
  if (!kept.all) return least;
  std::unordered_set<uint64_t> exact;
  for (const FunctionUse::Input& input : use.inputs) exact.insert(input.view->storage);
  for (const auto& [output, given] : use.outputs) exact.insert(given->storage);
  std::unordered_set<uint64_t> evaluated = exact;
  double of_all = 0, of_constants = 0;
  bool reads_numbers = false;
  for (const auto& [begin, end] :
       {std::pair(use.first, use.last + 1), std::pair(use.begin, use.end)}) {
    for (int64_t i = begin; i < end; ++i) {
      const Call& call = trace.calls[static_cast<size_t>(i)];
      if (!is_work(call)) continue;
      const auto read = read_by(call);
      const auto is_rounded = [&](const TensorView* t) {
        return aten::is_half(t->element) && !exact.contains(t->storage);
      };
      const auto chooses = [](const TensorView* t) { return aten::is_integer(t->element); };
      if (std::ranges::any_of(read, is_rounded) &&
          std::ranges::any_of(computed_by(call, read), chooses))
        return least;
      reads_numbers = reads_numbers || base_name(call.op) == "aten._local_scalar_dense";
      bool follows = false;
      for (const TensorView* t : read) {
        const bool is_evaluated = evaluated.contains(t->storage);
        follows = follows || is_evaluated;
        if (!aten::is_half(t->element)) continue;
        of_all = std::max(of_all, aten::half_unit(t->element));
        if (!is_evaluated) of_constants = std::max(of_constants, aten::half_unit(t->element));
      }
      for (const TensorView* t : computed_by(call, read))
        if (follows) evaluated.insert(t->storage);
    }
  }
  const double unit = reads_numbers ? of_all : of_constants;
  return std::min(least, std::max(kLeastOfSingle, kConstants * unit));
}

class Examination {
 public:
  Examination(const TraceFile& trace, const FunctionUse& use, double least, ThreadPool* pool,
              const StopFlag* stop)
      : use_(use),
        kept_(kept_of(trace, use)),
        least_(least_of(trace, use, kept_, least)),
        stop_(stop),
        again_(trace, use.first, use.last + 1, storages(use, false), pool, Again::What::kFunction) {
    check_places();
    for (const FunctionUse::Input& input : use.inputs) {
      sizes_.push_back(length(aten::array_of(*input.view, pool)));
      again_.begin_with(*input.view);
    }
    for (const auto& [output, given] : use.outputs) given_.push_back(aten::array_of(*given, pool));
    const std::unordered_set<uint64_t> given = storages(use, true);
    // What is computed from its operands is evaluated in both passes: one may round it.
    std::unordered_set<uint64_t> read = storages(use, false);
    read.insert(given.begin(), given.end());
    Again backward(trace, use.begin, use.end, read, pool, Again::What::kFunction);
    again_.run(use.last + 1, {}, 0, -1, {});
    for (const TensorView* t : kept_.views) backward.hold(*t, again_.read(*t));
    backward.run(use.end, {}, 0, -1, {});
    std::unordered_set<uint64_t> made = computed_in(trace, use.begin, use.end);
    made.insert(given.begin(), given.end());
    std::unordered_set<uint64_t> before = computed_in(trace, use.first, use.last + 1);
    for (const FunctionUse::Input& input : use.inputs) before.insert(input.view->storage);
    for (const auto& [output, gradient] : use.outputs)
      if (!before.contains(output->storage))
        throw Undefined("no recorded call computed its result");
    for (const FunctionUse::Input& input : use.inputs) {
      gradients_.push_back(aten::filled(input.view->dims, 0));
      for (const TensorView* gradient : input.gradients) {
        const bool is_made = made.contains(gradient->storage);
        if (!is_made && !before.contains(gradient->storage))
          throw Undefined("no recorded call computed its gradient");
        const Array x = (is_made ? backward : again_).read(*gradient);
        if (x.dims != input.view->dims) throw Undefined("its gradient has other dimensions");
        for (size_t k = 0; k < x.value.size(); ++k) gradients_.back().value[k] += x.value[k];
      }
    }
  }

  // `rounds`: rounds_between().
  FunctionState state(const ForwardPass& forward, bool rounds) {
    bool wrong = false, flat = false, certain = true;
    for (size_t i = 0; i < gradients_.size(); ++i) {
      const double size = length(gradients_[i]);
      if (!std::isfinite(size)) return FunctionState::kUnknown;
      const auto n = static_cast<double>(std::max<int64_t>(gradients_[i].size(), 1));
      const double each = 1 / std::sqrt(n);
      const Array random = signs(gradients_[i].dims, each);
      double expected = 0;
      for (size_t k = 0; k < random.value.size(); ++k)
        expected += gradients_[i].value[k] * random.value[k];
      const Sides across = slope(i, random, 1);
      const Sides along = size > 0 ? slope(i, gradients_[i], 1 / size) : Sides{};
      const double scale = std::max(size, std::fabs(across.value));
      if (scale == 0) continue;
      for (const auto& [s, claimed, of] :
           {std::tuple(along, size, size), std::tuple(across, expected, scale * each)}) {
        const double difference = std::fabs(s.value - claimed);
        if (difference < least_ * of) continue;
        if (difference > kCertain * s.slack + s.apart + least_ * of) {
          wrong = true;
        } else if (kCertain * s.slack + s.apart > kOpen * of) {
          certain = false;
        }
      }
      // Ties make a slope uncertain, not flat: the largest of two equal numbers moves with either.
      const auto is_flat = [&](const Sides& s) {
        return std::fabs(s.value) + s.slack + s.apart <= least_ * size;
      };
      flat = flat || (size > 0 && ((is_flat(along) && is_flat(across)) || mostly_stays(i, random) ||
                                   (rounds && std::fabs(along.value) < size / 2)));
    }
    if (!wrong && certain) return FunctionState::kRight;
    if (forward.passes_on || (forward.has_steps && flat)) return FunctionState::kMeant;
    return wrong ? FunctionState::kWrong : FunctionState::kUnknown;
  }

 private:
  static std::unordered_set<uint64_t> storages(const FunctionUse& use, bool of_given) {
    std::unordered_set<uint64_t> out;
    if (of_given) {
      for (const auto& [output, given] : use.outputs) out.insert(given->storage);
    } else {
      for (const FunctionUse::Input& input : use.inputs) out.insert(input.view->storage);
    }
    return out;
  }
  // Operands may be parts of one memory, as queries, keys and values of one projection are. Parts that
  // overlap are moved together, so that neither has a slope of its own.
  void check_places() const {
    Moves counts;
    for (const FunctionUse::Input& input : use_.inputs)
      if (!again_.add(*input.view, aten::filled(input.view->dims, 1), 1, counts))
        throw Undefined("where an operand lies is not known");
    for (const auto& [storage, cells] : counts)
      if (std::ranges::any_of(cells, [](double n) { return n > 1; }))
        throw Undefined("its operands share elements");
  }

  Array signs(const aten::Dims& dims, double size) {
    Array out = aten::empty_array(dims, true);
    for (double& x : out.value) x = (random_() & 1) != 0 ? size : -size;
    return out;
  }

  // What the Function gives, each element weighed by the gradient of it.
  std::vector<double> weighed(const Moves& moves, double by) {
    again_.run(use_.last + 1, moves, by, -1, {});
    std::vector<double> out;
    for (size_t k = 0; k < use_.outputs.size(); ++k) {
      const Array found = again_.read(*use_.outputs[k].first);
      for (size_t i = 0; i < found.value.size(); ++i) {
        out.push_back(found.value[i] * given_[k].value[i]);
        if (!std::isfinite(out.back())) throw Undefined("its result is not finite");
      }
    }
    return out;
  }

  // Whether most numbers that it gives stay as they are where an operand moves a little.
  bool mostly_stays(size_t input, const Array& direction) {
    Moves moves;
    if (!again_.add(*use_.inputs[input].view, direction, 1, moves)) return false;
    std::vector<Array> here;
    again_.run(use_.last + 1, {}, 0, -1, {});
    for (const auto& [output, given] : use_.outputs) here.push_back(again_.read(*output));
    again_.run(use_.last + 1, moves, kFirstStep / 8 * std::max(sizes_[input], 1e-3), -1, {});
    int64_t moved = 0, all = 0;
    for (size_t k = 0; k < here.size(); ++k) {
      const Array there = again_.read(*use_.outputs[k].first);
      for (size_t i = 0; i < there.value.size(); ++i, ++all)
        moved += there.value[i] != here[k].value[i] ? 1 : 0;
    }
    return 2 * moved < all;
  }

  // A slope, how far it may be off, and how far its two sides are apart: element by element, because
  // kinks of several cancel in a sum. Any gradient between the sides is one.
  struct Sides {
    double value = 0, slack = 0, apart = 0;
  };
  Sides slope(size_t input, const Array& direction, double by) {
    if (stop_ != nullptr && stop_->load()) throw Undefined("it was interrupted");
    Moves moves;
    if (!again_.add(*use_.inputs[input].view, direction, by, moves))
      throw Undefined("where an operand lies is not known");
    const std::vector<double> here = weighed({}, 0);
    double found[2] = {0, 0}, apart = 0, sum = 0;
    double step = kFirstStep * std::max(sizes_[input], 1e-3);
    for (double& d : found) {
      const std::vector<double> up = weighed(moves, step), down = weighed(moves, -step);
      apart = sum = 0;
      for (size_t k = 0; k < here.size(); ++k) {
        d += (up[k] - down[k]) / (2 * step);
        apart += std::fabs(up[k] - 2 * here[k] + down[k]) / (2 * step);
        sum += std::fabs(here[k]);
      }
      step /= 8;
    }
    return {found[1], std::fabs(found[1] - found[0]) + kRounding * sum / (8 * step), apart};
  }

  const FunctionUse& use_;
  const Kept kept_;
  double least_;
  const StopFlag* stop_;
  Again again_;
  std::mt19937_64 random_{3};
  std::vector<Array> gradients_, given_;
  std::vector<double> sizes_;
};

}  // namespace

ForwardPass forward_pass(const TraceFile& trace, int64_t first, int64_t last) {
  static constexpr std::array<std::string_view, 4> kCopies = {"aten.clone", "aten.copy",
                                                              "aten.empty_like", "aten.alias"};
  static constexpr std::array<std::string_view, 21> kSteps = {
      "aten.round",     "aten.floor",        "aten.ceil", "aten.trunc",  "aten.fix",
      "aten.sign",      "aten.sgn",          "aten.gt",   "aten.ge",     "aten.lt",
      "aten.le",        "aten.bernoulli",    "aten.eq",   "aten.argmax", "aten.argmin",
      "aten.heaviside", "aten.searchsorted", "aten.min",  "aten.max",    "aten.topk",
      "aten.sort"};
  // Views that hold other elements, or the same in another order: whose gradient is known.
  static constexpr std::array<std::string_view, 14> kOther = {
      "aten.t",      "aten.transpose", "aten.permute", "aten.as_strided", "aten.expand",
      "aten.slice",  "aten.select",    "aten.split",   "aten.unbind",     "aten.split_with_sizes",
      "aten.unfold", "aten.diagonal",  "aten.chunk",   "aten.narrow"};
  ForwardPass out;
  for (int64_t i = first; i <= last; ++i) {
    const Call& c = trace.calls[static_cast<size_t>(i)];
    if (!is_work(c)) continue;
    const std::string name = base_name(c.op);
    out.passes_on = out.passes_on && std::ranges::find(kOther, name) == kOther.end();
    out.has_steps = out.has_steps || std::ranges::find(kSteps, name) != kSteps.end();
    out.passes_on = out.passes_on && (computed_by(c, read_by(c)).empty() ||
                                      std::ranges::find(kCopies, name) != kCopies.end());
  }
  return out;
}

FunctionState examine(const TraceFile& trace, const FunctionUse& use, double least,
                      ThreadPool* pool, const StopFlag* stop) {
  if (!use.is_found || use.inputs.empty() || use.outputs.empty()) return FunctionState::kUnknown;
  const ForwardPass forward = forward_pass(trace, use.first, use.last);
  try {
    return Examination(trace, use, least, pool, stop).state(forward, rounds_between(trace, use));
  } catch (const Undefined&) {
    return FunctionState::kUnknown;
  }
}

const ScriptFunction* wrong_function(const TraceFile& trace, const Step& step, double least,
                                     ThreadPool* pool, const StopFlag* stop) {
  int left = 256;  // uses: the time for them
  for (const Pass& pass : step.passes) {
    for (const FunctionUse& use : uses_of(trace, step.begin, pass)) {
      const std::string& name = use.function->name;
      if (name.starts_with("torch.") || is_allowed(trace.allowed, name, "")) continue;
      if (--left < 0 || (stop != nullptr && stop->load())) return nullptr;
      if (examine(trace, use, least, pool, stop) == FunctionState::kWrong) return use.function;
    }
  }
  return nullptr;
}

bool is_allowed(const std::vector<std::string>& allowed, std::string_view name,
                std::string_view place) {
  const auto last = [](std::string_view text, char after) {
    const size_t at = text.rfind(after);
    return at == text.npos ? text : text.substr(at + 1);
  };
  // "train.py:8 in scale: return 2 * g"
  std::string_view function = place.substr(0, place.find(": "));
  function = last(function.substr(0, function.find('\n')), ' ');
  return std::ranges::any_of(allowed, [&](const std::string& a) {
    return name.empty() ? a == function : a == name || a == last(name, '.');
  });
}

std::vector<std::string> allowed_in_vain(const TraceFile& trace) {
  std::vector<std::string> out;
  for (const std::string& name : trace.allowed) {
    const std::vector<std::string> only = {name};
    const bool is_there =
        std::ranges::any_of(
            trace.functions,
            [&](const ScriptFunction& f) { return is_allowed(only, f.name, ""); }) ||
        std::ranges::any_of(trace.calls, [&](const aten::Call& c) {
          return c.node.starts_with("a hook of ") && is_allowed(only, "", c.place);
        });
    if (!is_there) out.push_back(name);
  }
  return out;
}

}  // namespace twinrun
