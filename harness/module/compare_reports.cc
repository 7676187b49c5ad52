// Pairs the arguments and results of two steps, and judges each side's values by the other's module.
#include "harness/module/compare_reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "harness/module/judge_module.h"
#include "reports/text.h"

namespace twinrun {
namespace {

// Updates that differ by more than half of their norm have little in common.
constexpr double kHalfOfNorm = 0.5;

// Constants that one side rounds to float32 and the other does not, and other approximations of erf
// or tanh, make updates differ by some units of 2^-24 of their norm: up to 16 are left to them.
constexpr double kOfConstants = 0x1p-20;

// 2^-(p/2) of a type with p bits. Numbers that agree to that agree in half of their digits; an
// approximation of a function, such as another polynomial for erf, is off by a few of the last.
// 0: whole numbers have no rounding.
double half_of_digits(ElementType t) {
  switch (t) {
    case ElementType::kF64:
      return 0x1p-26;
    case ElementType::kF32:
      return 0x1p-12;
    case ElementType::kF16:
      return 0x1p-5;
    case ElementType::kBF16:
      return 0x1p-4;
    default:
      return 0;
  }
}

Result<std::vector<double>> doubles_of(const NamedArray& array, const std::string& file) {
  TWINRUN_ASSIGN(const Tensor t, to_tensor(array, DType::kF64, file));
  const auto values = t.as<const double>();
  return std::vector<double>(values.begin(), values.end());
}

// Of each name of `mine` the index in `theirs`. Nothing if they are not the same names; equal lists
// are paired in order, because names of a state and of a batch may be the same.
std::optional<std::vector<int64_t>> paired(const std::vector<std::string>& mine,
                                           const std::vector<std::string>& theirs) {
  std::vector<int64_t> out(mine.size());
  for (size_t i = 0; i < mine.size(); ++i) out[i] = static_cast<int64_t>(i);
  if (mine == theirs) return out;
  if (std::set(mine.begin(), mine.end()).size() != mine.size() || mine.size() != theirs.size())
    return std::nullopt;
  for (size_t i = 0; i < mine.size(); ++i) {
    const auto at = std::ranges::find(theirs, mine[i]);
    if (at == theirs.end()) return std::nullopt;
    out[i] = at - theirs.begin();
  }
  return out;
}

// The names that only one of two lists has: "A has x, B has y".
std::string only_of_each(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  const auto only = [](const std::vector<std::string>& mine,
                       const std::vector<std::string>& other) {
    std::string out;
    for (const std::string& name : mine) {
      if (std::ranges::find(other, name) != other.end()) continue;
      out += out.empty() ? name : ", " + name;
    }
    return out.empty() ? std::string("nothing") : out;
  };
  return fmt::format("only side A has {}, only side B has {}", only(a, b), only(b, a));
}

struct Side {
  const StepFiles* files;
  Arrays arrays;                            // of the step that is looked at
  std::vector<int64_t> arguments, results;  // of mine the indices on the other side

  const NamedArray* argument(int64_t i) const { return find("argument", i); }
  const NamedArray* result(int64_t i) const { return find("result", i); }
  // The value that a result takes the place of.
  const NamedArray* before(int64_t result) const {
    const auto at = std::ranges::find(files->next, result);
    return at == files->next.end() ? nullptr : argument(at - files->next.begin());
  }
  // The arrays under the names that they have on the other side.
  Arrays as_the_other() const {
    Arrays out;
    const auto move = [&](const char* kind, const std::vector<int64_t>& to) {
      for (size_t i = 0; i < to.size(); ++i) {
        const NamedArray* const array = find(kind, static_cast<int64_t>(i));
        if (array == nullptr) continue;
        NamedArray renamed = *array;
        renamed.name = fmt::format("{}/{}", kind, to[i]);
        out[renamed.name] = std::move(renamed);
      }
    };
    move("argument", arguments);
    move("result", results);
    return out;
  }

 private:
  const NamedArray* find(const char* kind, int64_t i) const {
    const auto at = arrays.find(fmt::format("{}/{}", kind, i));
    return at == arrays.end() ? nullptr : &at->second;
  }
};

// How far two arrays are apart: the norm of the difference over the larger norm.
struct Apart {
  double relative = 0, factor = NAN;
  bool same = false;
};
// Of two updates, of which the factor is said that explains them but for `half` of their norm.
Apart apart(std::vector<double> u, std::vector<double> v, double half) {
  double largest = 0, uu = 0, vv = 0, uv = 0, dd = 0;
  for (size_t i = 0; i < u.size(); ++i) {
    // NaN on one side only is a difference without a size.
    if (std::isfinite(u[i]) != std::isfinite(v[i])) return Apart{INFINITY, NAN, false};
    if (!std::isfinite(u[i])) u[i] = v[i] = 0;
    largest = std::max({largest, std::fabs(u[i]), std::fabs(v[i])});
  }
  if (largest == 0) return Apart{};
  for (size_t i = 0; i < u.size(); ++i) {
    const double p = u[i] / largest, q = v[i] / largest;
    uu += p * p, vv += q * q, uv += p * q, dd += (p - q) * (p - q);
  }
  Apart out{std::sqrt(dd / std::max(uu, vv)), NAN, false};
  const double factor = uv / uu;
  const double left = std::sqrt(std::max(0.0, vv - factor * uv) / std::max(vv, 1e-300));
  if (uu > 0 && vv > 0 && left < half) out.factor = factor;
  return out;
}
// Takes the values away that a result takes the place of, so that its change is left.
Status to_change(std::vector<double>& values, const NamedArray* before) {
  if (before == nullptr) return Ok{};
  TWINRUN_ASSIGN(const std::vector<double> was, doubles_of(*before, "an argument"));
  if (was.size() == values.size())
    for (size_t i = 0; i < was.size(); ++i) values[i] -= was[i];
  return Ok{};
}
Result<Apart> apart(const Side& a, const Side& b, int64_t of_a, int64_t of_b) {
  const NamedArray &x = *a.result(of_a), &y = *b.result(of_b);
  if (x.bytes == y.bytes) return Apart{0, NAN, true};
  const double half = half_of_digits(x.type);
  if (half == 0) return Apart{1, NAN, false};
  TWINRUN_ASSIGN(std::vector<double> u, doubles_of(x, "side A"));
  TWINRUN_ASSIGN(std::vector<double> v, doubles_of(y, "side B"));
  TWINRUN_RETURN_IF_ERROR(to_change(u, a.before(of_a)));
  TWINRUN_RETURN_IF_ERROR(to_change(v, b.before(of_b)));
  return apart(std::move(u), std::move(v), half);
}

// Of what both programs give from the same arguments without rounding: the result that is farthest
// apart.
Result<std::optional<MeantApart>> meant_apart(const Side& a, const std::map<int64_t, Tensor>& by_a,
                                              const std::map<int64_t, Tensor>& by_b) {
  std::optional<MeantApart> out;
  for (size_t i = 0; i < a.results.size(); ++i) {
    const auto of_a = static_cast<int64_t>(i);
    const auto x = by_a.find(of_a), y = by_b.find(a.results[i]);
    const bool on_path = a.before(of_a) != nullptr || of_a == a.files->loss;
    if (!on_path || x == by_a.end() || y == by_b.end() || x->second.dtype() != DType::kF64 ||
        y->second.dtype() != DType::kF64)
      continue;
    const auto p = x->second.as<const double>(), q = y->second.as<const double>();
    if (p.size() != q.size()) continue;
    std::vector<double> u(p.begin(), p.end()), v(q.begin(), q.end());
    TWINRUN_RETURN_IF_ERROR(to_change(u, a.before(of_a)));
    TWINRUN_RETURN_IF_ERROR(to_change(v, a.before(of_a)));
    const double half = half_of_digits(a.result(of_a)->type);
    const Apart found = apart(std::move(u), std::move(v), half);
    if (!std::isfinite(found.relative)) continue;  // NaN is judged by the bounds
    if (!out || found.relative > out->relative)
      out = MeantApart{a.files->results[i], found.relative, half, found.factor};
  }
  return out;
}

// Arguments that are not the same, as sentences. States after the first step are results, which the
// bounds hold apart.
Result<std::vector<std::string>> other_inputs(const Side& a, const Side& b, int64_t step,
                                              std::vector<std::string>& notes) {
  std::vector<std::string> out;
  for (size_t i = 0; i < a.arguments.size(); ++i) {
    const bool is_state = i < a.files->next.size() && a.files->next[i] >= 0;
    if (step > 0 && is_state) continue;
    const NamedArray* const x = a.argument(static_cast<int64_t>(i));
    const NamedArray* const y = b.argument(a.arguments[i]);
    if (x == nullptr || y == nullptr) continue;
    const std::string& name = a.files->arguments[i];
    if (x->type != y->type || x->dims != y->dims) {
      out.push_back(fmt::format("{} of step {} is {} on side A, {} on side B", name, step,
                                describe(*x), describe(*y)));
      continue;
    }
    if (x->bytes == y->bytes) continue;
    double largest = 0, difference = INFINITY;
    if (half_of_digits(x->type) > 0) {
      TWINRUN_ASSIGN(const std::vector<double> u, doubles_of(*x, "side A"));
      TWINRUN_ASSIGN(const std::vector<double> v, doubles_of(*y, "side B"));
      difference = 0;
      for (size_t j = 0; j < u.size(); ++j) {
        largest = std::max({largest, std::fabs(u[j]), std::fabs(v[j])});
        const double d = std::fabs(u[j] - v[j]);
        difference = d <= difference ? difference : d;
      }
    }
    if (difference <= half_of_digits(x->type) * largest) {
      notes.push_back(
          fmt::format("{} of step {} differs by {} of its largest value, in the last half of its "
                      "digits; each side is held against what it was given",
                      name, step, text::number(difference / largest)));
    } else {
      out.push_back(fmt::format(
          "{} of step {}, {}", name, step,
          largest > 0 && std::isfinite(difference)
              ? fmt::format("by {} of its largest value", text::number(difference / largest))
              : describe(*x)));
    }
  }
  return out;
}

bool is_drawn(const Side& side) {
  const auto text = read_whole_file(side.files->module, uint64_t{1} << 28);
  if (!text) return false;
  const std::string_view s(reinterpret_cast<const char*>(text->data()), text->size());
  return s.find("threefry") != s.npos || s.find("rng_bit_generator") != s.npos;
}

void conclude(ValuesApart& out) {
  // The results are in the order of what they prove.
  const auto worst = std::ranges::find_if(out.results, [](const ResultApart& r) {
    const double enough = r.likely ? std::max(r.half, kHalfOfNorm) : r.half;
    return r.on_path && (r.half == 0 || r.relative >= enough);
  });
  if (worst != out.results.end()) {
    out.verdict = VerdictClass::kProgram;
    out.headline =
        "the two sides do not compute the same from the same arguments: " + worst->sentence();
    return;
  }
  if (out.meant && out.meant->relative >= out.meant->half) {
    out.verdict = VerdictClass::kProgram;
    out.headline =
        "the two sides do not compute the same from the same arguments: " + out.meant->sentence();
    return;
  }
  const bool farther = std::ranges::any_of(
      out.results, [](const ResultApart& r) { return r.on_path && r.relative >= r.half; });
  const bool is_open = out.undecided * out.undecided >= 0.5 && out.update > 0;
  const bool other_constants = out.meant && out.meant->relative >= kOfConstants;
  if (farther || is_open || other_constants) {
    out.verdict = VerdictClass::kInconclusive;
    out.headline =
        other_constants ? "whether the two sides compute the same is open: " + out.meant->sentence()
        : farther
            ? "the updates of both sides are farther apart than rounding is likely to make them, "
              "which proves nothing: " +
                  out.results.front().sentence()
            : fmt::format(
                  "the updates of both sides differ by up to {} of their norm, and the "
                  "bounds leave {} of them undecided",
                  text::number(out.update), text::number(out.undecided, 2));
    return;
  }
  out.verdict = VerdictClass::kNoise;
  out.headline = out.update == 0
                     ? "the updates of both sides are the same bits"
                     : fmt::format(
                           "the updates of both sides differ by up to {} of their norm, "
                           "which rounding explains",
                           text::number(out.update));
}

}  // namespace

Result<ValuesApart> compare_reports(const StepFiles& a_files, const StepFiles& b_files,
                                    ThreadPool* pool) {
  ValuesApart out;
  Side a{&a_files, {}, {}, {}}, b{&b_files, {}, {}, {}};
  for (const auto& [mine, theirs] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
    auto arguments = paired(mine->files->arguments, theirs->files->arguments);
    auto results = paired(mine->files->results, theirs->files->results);
    if (!arguments || !results) {
      out.headline =
          "the steps of both sides do not have the same arguments and results, so their values "
          "were "
          "not compared: " +
          (arguments ? only_of_each(a_files.results, b_files.results)
                     : only_of_each(a_files.arguments, b_files.arguments));
      return out;
    }
    mine->arguments = std::move(*arguments);
    mine->results = std::move(*results);
  }
  std::string refused;
  const size_t steps = std::min(a_files.values.size(), b_files.values.size());
  for (size_t step = 0; step < steps && out.results.empty(); ++step) {
    TWINRUN_ASSIGN(a.arrays, read_arrays(a_files.values[step]));
    TWINRUN_ASSIGN(b.arrays, read_arrays(b_files.values[step]));
    const auto number = static_cast<int64_t>(step);
    TWINRUN_ASSIGN(out.inputs, other_inputs(a, b, number, out.notes));
    if (!out.inputs.empty()) {
      out.verdict = VerdictClass::kProgram;
      out.headline = "the two sides do not get the same inputs: " + out.inputs.front();
      return out;
    }
    ++out.steps;
    std::map<int64_t, Apart> apart_of;  // by the index on side A
    bool same = true;
    for (size_t i = 0; i < a.results.size(); ++i) {
      const auto of_a = static_cast<int64_t>(i);
      const NamedArray *const x = a.result(of_a), *const y = b.result(a.results[i]);
      if (x == nullptr || y == nullptr) continue;
      if (x->type != y->type || x->dims != y->dims) {
        out.verdict = VerdictClass::kProgram;
        out.headline = fmt::format(
            "the two sides compute in other types: {} is {} on side A, {} on "
            "side B",
            a_files.results[i], describe(*x), describe(*y));
        return out;
      }
      TWINRUN_ASSIGN(apart_of[of_a], apart(a, b, of_a, a.results[i]));
      const Apart& now = apart_of[of_a];
      same = same && now.same;
      if (a.before(of_a) != nullptr || of_a == a_files.loss)
        out.update = std::max(out.update, now.relative);
    }
    if (same) continue;
    double undecided = 1;
    bool judged = false;
    std::map<int64_t, Tensor> meant[2];  // by A's program from B's values, and the reverse
    for (const auto& [side, other, name] : {std::tuple{&a, &b, "A"}, std::tuple{&b, &a, "B"}}) {
      ModuleRequest request{other->files->module, "the values of side " + std::string(name)};
      request.next = other->files->next;
      // Each engine may round as it does: the wider of both words.
      const std::string& mine = side->files->precision;
      set_products(mine == "f32" ? other->files->precision : mine, request.may);
      TWINRUN_ASSIGN(const ModuleVerdict verdict,
                     judge_arrays(request, side->as_the_other(), pool, &meant[side == &a ? 1 : 0]));
      if (!verdict.refused.empty()) {
        refused = verdict.refused;
        continue;
      }
      judged = true;
      undecided = std::min(undecided, verdict.undecided());
      for (const ModuleResult& r : verdict.results) {
        if (r.outside == 0) continue;
        const int64_t of_a =
            name[0] == 'A' ? other->results[static_cast<size_t>(r.index)] : r.index;
        const Apart& now = apart_of[of_a];
        ResultApart found;
        found.name = a_files.results[static_cast<size_t>(of_a)];
        found.side = name, found.step = number;
        found.elements = r.elements, found.outside = r.outside, found.likely = r.likely;
        found.on_path = a.before(of_a) != nullptr || of_a == a_files.loss;
        found.half = half_of_digits(a.result(of_a)->type);
        found.relative = now.relative, found.factor = now.factor, found.ratio = r.largest_ratio;
        out.results.push_back(std::move(found));
      }
    }
    if (judged) out.undecided = std::max(out.undecided, undecided);
    if (!judged) out.undecided = 1;
    if (step == 0 && out.notes.empty()) {  // from the same arguments, to the bit
      TWINRUN_ASSIGN(out.meant, meant_apart(a, meant[0], meant[1]));
    }
  }
  std::ranges::stable_sort(out.results, [](const ResultApart& x, const ResultApart& y) {
    return std::tuple(!x.on_path, x.likely, -x.relative) <
           std::tuple(!y.on_path, y.likely, -y.relative);
  });
  if (!refused.empty())
    out.notes.push_back("a side's program could not be evaluated: " + refused.substr(0, 400));
  if (!out.results.empty() && (is_drawn(a) || is_drawn(b)))
    out.notes.push_back(
        "the step draws random numbers; releases may draw in another order "
        "(jax_threefry_partitionable): leave out dropout, or draw outside of the step");
  conclude(out);
  return out;
}

}  // namespace twinrun
