// Tries the signatures of a wrong tensor: numbers first, then other tensors, then the same numbers
// in other places.
#include "harness/tensors/signatures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "harness/tensors/pattern.h"
#include "program/base/bits.h"

namespace twinrun {
namespace {

using Places = std::vector<int64_t>;

// Signatures that say where a number comes from need so many of them: one or two agree by chance.
constexpr size_t kFew = 3;
// Regions are lists of indices: for larger tensors only elements that are wrong by themselves
// count.
constexpr size_t kMaxInRegions = size_t{1} << 20;

std::string cores_text(const std::vector<size_t>& cores) {
  std::string out;
  for (size_t i = 0; i < cores.size();) {
    size_t k = i;
    while (k + 1 < cores.size() && cores[k + 1] == cores[k] + 1) ++k;
    out += out.empty() ? "" : k + 1 == cores.size() ? " and " : ", ";
    out += k > i + 1 ? fmt::format("{} to {}", cores[i], cores[k])
           : k == i + 1
               ? fmt::format("{}{}{}", cores[i], k + 1 == cores.size() ? " and " : ", ", cores[k])
               : std::to_string(cores[i]);
    i = k + 1;
  }
  return out;
}

// Solves A x = b for x, A symmetric and positive; nullopt where the solution is not unique.
std::optional<std::vector<double>> solve(std::vector<std::vector<double>> a,
                                         std::vector<double> b) {
  const size_t n = b.size();
  double largest = 0;
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, a[i][i]);
  for (size_t i = 0; i < n; ++i) {
    // A pivot below the rounding of squared binary32 values counts as zero.
    if (!(a[i][i] > 1e-10 * largest)) return std::nullopt;
    for (size_t k = i + 1; k < n; ++k) {
      const double f = a[k][i] / a[i][i];
      for (size_t j = i; j < n; ++j) a[k][j] -= f * a[i][j];
      b[k] -= f * b[i];
    }
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t j = i + 1; j < n; ++j) b[i] -= a[i][j] * b[j];
    b[i] /= a[i][i];
  }
  return b;
}

class Looker {
 public:
  explicit Looker(const WrongTensor& t) : t_(t), size_(t.got.size()), wrong_(t.wrong) {
    if (!t.dims.empty() && size_ <= kMaxInRegions) regions_ = regions_around(t.dims, wrong_);
  }

  Signature look() {
    if (wrong_.empty()) return out_;
    out_.elements = named(wrong_);
    if (not_finite() || one_element()) return out_;
    if (of_numbers() || of_other_tensors() || of_places()) return out_;
    narrowed();
    return out_;
  }

 private:
  using Value = std::function<double(size_t)>;

  double got(size_t i) const { return t_.got[i]; }
  double expected(size_t i) const { return t_.expected[i]; }
  // What the engine holds and should hold: of a change, the state after it.
  float held(size_t i) const { return is_change() ? t_.left[i] : static_cast<float>(got(i)); }
  float held_expected(size_t i) const {
    return is_change() ? t_.left_expected[i] : static_cast<float>(expected(i));
  }
  bool is_change() const { return !t_.left.empty(); }

  std::string named(const Places& at) const {
    if (at.size() == size_) return "";
    if (t_.dims.empty())
      return fmt::format("{} of {} elements that were compared", at.size(), size_);
    return element_pattern(t_.dims, at, t_.axes);
  }

  bool fits(const Places& at, const Value& value, const Value& reach) const {
    return std::ranges::all_of(at, [&](int64_t place) {
      const auto i = static_cast<size_t>(place);
      const double v = value(i);
      return std::isfinite(v) && std::fabs(got(i) - v) <= reach(i);
    });
  }
  // Accepts the signature if it fits, in the largest region where it holds, or else where elements
  // are wrong by themselves.
  bool tell(const std::string& signature, const Value& value, const Value& reach) {
    if (!fits(wrong_, value, reach)) return false;
    out_.signature = signature;
    for (const Places& region : regions_) {
      if (!fits(region, value, reach)) continue;
      out_.elements = named(region);
      break;
    }
    return true;
  }

  bool not_finite() {
    Places non_finite;
    for (const int64_t i : wrong_) {
      if (!std::isfinite(t_.got[static_cast<size_t>(i)])) non_finite.push_back(i);
    }
    if (non_finite.empty()) return false;
    out_.elements = named(non_finite);
    out_.signature = non_finite.size() == size_
                         ? "NaN or Inf"
                         : fmt::format("NaN or Inf ({} of {} elements)", non_finite.size(), size_);
    return true;
  }

  bool one_element() {
    if (wrong_.size() != 1 || size_ == 1) return false;
    const auto i = static_cast<size_t>(wrong_.front());
    const float is = held(i), was_expected = held_expected(i);
    out_.signature = fmt::format("{:.9g} where {:.9g} was expected", is, was_expected);
    for (int bit = t_.binary32 ? 31 : -1; bit >= 0; --bit) {
      const float other = from_bits(to_bits(is) ^ (1u << bit));
      if (std::fabs(static_cast<double>(other) - static_cast<double>(was_expected)) <=
          t_.allowed[i]) {
        out_.signature += fmt::format(" (bit {} flipped)", bit);
        break;
      }
    }
    return true;
  }

  // ---- zero, a factor, a constant

  bool of_numbers() {
    const Value exactly = [](size_t) { return 0.0; };
    if (tell(is_change() ? "unchanged: an update of zero" : "zero", exactly, exactly)) return true;
    // The change that leaves zero.
    const Value to_zero = [this](size_t i) { return got(i) - static_cast<double>(t_.left[i]); };
    if (is_change() && tell("set to zero", to_zero, exactly)) return true;
    return factor() || constant();
  }

  bool factor() {
    double product = 0, squares = 0, off = 0;
    for (const int64_t place : wrong_) {
      const auto i = static_cast<size_t>(place);
      product += got(i) * expected(i);
      squares += expected(i) * expected(i);
      off += t_.allowed[i] * t_.allowed[i] * expected(i) * expected(i);
    }
    // A single number, or a value that is rounding alone, is a multiple of anything.
    if (size_ == 1 || !(squares > 0) || !(off < squares * squares / 4)) return false;
    double f = product / squares;
    const double known = std::sqrt(off) / squares + t_.slack * std::fabs(f - 1);
    for (const double whole : {std::round(f), std::round(1 / f) == 0 ? f : 1 / std::round(1 / f)}) {
      if (whole != 0 && std::fabs(f - whole) <= known) f = whole;
    }
    if (f == 0 || f == 1) return false;
    std::string text = f == -1 ? "what was expected with its sign turned"
                               : fmt::format("{:.6g} times what was expected", f);
    if (t_.cores > 1 && f == t_.cores) text += " (the number of cores)";
    if (t_.cores > 1 && f == 1.0 / t_.cores) text += " (one over the number of cores)";
    return tell(
        text, [this, f](size_t i) { return f * expected(i); },
        [this, f, known](size_t i) {
          return t_.allowed[i] * std::max(1.0, std::fabs(f)) + known * std::fabs(expected(i));
        });
  }

  bool constant() {
    if (wrong_.size() < kFew) return false;
    const double first = got(static_cast<size_t>(wrong_.front()));
    const double offset = first - expected(static_cast<size_t>(wrong_.front()));
    return tell(
               fmt::format("the constant {:.6g}", first), [first](size_t) { return first; },
               [](size_t) { return 0.0; }) ||
           tell(
               fmt::format("what was expected {} {:.4g}", offset < 0 ? "minus" : "plus",
                           std::fabs(offset)),
               [this, offset](size_t i) { return expected(i) + offset; },
               [this, offset](size_t i) {
                 return t_.allowed[i] + t_.allowed[static_cast<size_t>(wrong_.front())] +
                        t_.slack * std::fabs(offset);
               });
  }

  // ---- other tensors, and the parts of cores

  Value wide() const {
    return [this](size_t i) { return t_.from_exact[i]; };
  }

  bool of_other_tensors() {
    if (wrong_.size() < 2) return false;
    for (const InsteadOf& other : t_.others) {
      if (other.values.size() != size_) continue;
      if (tell(
              other.text, [&](size_t i) { return static_cast<double>(other.values[i]); }, wide()))
        return true;
    }
    return of_parts();
  }

  bool of_parts() {
    const size_t cores = t_.parts.size();
    if (cores < 2) return false;
    // Every core's part counts once in the expected value. Find how often each counts here.
    std::vector<const Places*> candidates;
    for (const Places& region : regions_) candidates.push_back(&region);
    candidates.push_back(&wrong_);
    for (const Places* at : candidates) {
      if (const auto times = counted(*at)) {
        // Every part once is the expected value itself: what is wrong is below the parts' sizes.
        if (std::ranges::all_of(*times, [](double x) { return x == 1; })) continue;
        if (tell(
                parts_text(*times), [&](size_t i) { return with_parts(*times, i); }, wide()))
          return true;
      }
    }
    // Too few elements for so many unknowns: try one core missing, double, or alone.
    for (size_t core = 0; core < cores && wrong_.size() >= 2; ++core) {
      std::vector<double> missing(cores, 1), twice(cores, 1), alone(cores, 0);
      missing[core] = 0;
      twice[core] = 2;
      alone[core] = 1;
      for (const std::vector<double>& times : {missing, twice, alone}) {
        if (tell(
                parts_text(times), [&](size_t i) { return with_parts(times, i); }, wide()))
          return true;
      }
    }
    return false;
  }

  double with_parts(const std::vector<double>& times, size_t i) const {
    double v = expected(i);
    for (size_t k = 0; k < times.size(); ++k)
      v += (times[k] - 1) * static_cast<double>(t_.parts[k][i]);
    return v;
  }

  // Solves by least squares, and rounds to whole numbers; nullopt where there are too few elements,
  // or parts that cannot be distinguished.
  std::optional<std::vector<double>> counted(const Places& at) const {
    const size_t cores = t_.parts.size();
    if (at.size() < 2 * cores) return std::nullopt;
    std::vector<std::vector<double>> a(cores, std::vector<double>(cores, 0));
    std::vector<double> b(cores, 0);
    for (const int64_t place : at) {
      const auto i = static_cast<size_t>(place);
      for (size_t k = 0; k < cores; ++k) {
        const auto part = static_cast<double>(t_.parts[k][i]);
        b[k] += part * (got(i) - expected(i));
        for (size_t j = 0; j < cores; ++j) a[k][j] += part * static_cast<double>(t_.parts[j][i]);
      }
    }
    auto more = solve(std::move(a), std::move(b));
    if (!more) return std::nullopt;
    for (double& x : *more) x = 1 + std::round(x);
    return more;
  }

  std::string parts_text(const std::vector<double>& times) const {
    std::vector<size_t> missing, twice, once, more;
    for (size_t k = 0; k < times.size(); ++k) {
      (times[k] == 0 ? missing : times[k] == 1 ? once : times[k] == 2 ? twice : more).push_back(k);
    }
    const auto named_parts = [](const std::vector<size_t>& cores) {
      return cores.size() == 1 ? fmt::format("core {}'s part", cores[0])
                               : fmt::format("the parts of cores {}", cores_text(cores));
    };
    const size_t there = times.size() - missing.size();
    if (there == 1) {
      const double count = times[(!once.empty() ? once : !twice.empty() ? twice : more)[0]];
      return fmt::format("{} alone{}: not reduced",
                         named_parts(!once.empty()    ? once
                                     : !twice.empty() ? twice
                                                      : more),
                         count == 1 ? "" : fmt::format(", {:g} times", count));
    }
    if (!missing.empty() && twice.empty() && more.empty())
      return 2 * missing.size() >= times.size() && once.size() > 1
                 ? fmt::format("{} alone", named_parts(once))
                 : "what was expected without " + named_parts(missing);
    std::string out;
    if (!twice.empty()) out = named_parts(twice) + " twice";
    for (const size_t k : more)
      out += fmt::format("{}core {}'s part {:g} times", out.empty() ? "" : ", ", k, times[k]);
    if (!missing.empty()) out += ", without " + named_parts(missing);
    return "what was expected with " + out;
  }

  // ---- the right numbers in other places

  // For element i, the index whose expected value stands there; -1: none, and i is not compared.
  using Source = std::function<int64_t(int64_t)>;
  bool moved(const std::string& signature, const Source& from) {
    const auto value = [&](size_t i) {
      const int64_t source = from(static_cast<int64_t>(i));
      return source < 0 ? got(i) : expected(static_cast<size_t>(source));
    };
    const auto reach = [&](size_t i) {
      const int64_t source = from(static_cast<int64_t>(i));
      return source < 0 ? 0 : std::max(t_.allowed[i], t_.allowed[static_cast<size_t>(source)]);
    };
    if (!fits(wrong_, value, reach)) return false;
    size_t counted = 0;
    for (const int64_t place : wrong_) {
      const int64_t source = from(place);
      if (source >= 0 &&
          t_.expected[static_cast<size_t>(source)] != t_.expected[static_cast<size_t>(place)])
        ++counted;
    }
    return counted >= kFew && 2 * counted >= wrong_.size() && tell(signature, value, reach);
  }

  std::string axis(size_t d) const {
    return d < t_.axes.size() && !t_.axes[d].empty() ? t_.axes[d] + "s"
                                                     : fmt::format("dimension {}", d);
  }

  bool of_places() {
    if (t_.dims.empty() || wrong_.size() < kFew) return false;
    const Dims& dims = t_.dims;
    std::vector<int64_t> strides(dims.size(), 1);
    for (size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * dims[d];
    for (size_t a = 0; a < dims.size(); ++a) {
      for (size_t b = a + 1; b < dims.size(); ++b) {
        if (dims[a] < 2 || dims[b] < 2) continue;
        // Written with two dimensions exchanged and read as if they were not; with equal sizes,
        // transposed.
        const Source from = [&](int64_t i) {
          int64_t source = 0;
          for (size_t d = dims.size(); d-- > 0;) {
            const size_t o = d == a ? b : d == b ? a : d;
            source += i % dims[o] * strides[o];
            i /= dims[o];
          }
          return source;
        };
        if (moved(fmt::format("what was expected with {} and {} exchanged (transposed)", axis(a),
                              axis(b)),
                  from))
          return true;
      }
    }
    const auto flip = [&](int64_t i, size_t d) {
      return (dims[d] - 1 - 2 * (i / strides[d] % dims[d])) * strides[d];
    };
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d] > 1 && moved(fmt::format("what was expected, {} in reverse order", axis(d)),
                               [&](int64_t i) { return i + flip(i, d); }))
        return true;
    }
    if (dims.size() == 4 && moved("what was expected, the kernel turned by half a turn",
                                  [&](int64_t i) { return i + flip(i, 0) + flip(i, 1); }))
      return true;
    for (size_t d = 0; d < dims.size(); ++d) {
      for (int64_t by = 1; by < std::min<int64_t>(dims[d], kFarthest); ++by) {
        for (const int64_t shift : {-by, by}) {
          const Source from = [&](int64_t i) {
            const int64_t index = i / strides[d] % dims[d] + shift;
            return index < 0 || index >= dims[d] ? -1 : i + shift * strides[d];
          };
          if (moved(fmt::format("what was expected {} {} {} along {}", by,
                                by == 1 ? "place" : "places", shift < 0 ? "before" : "after",
                                axis(d)),
                    from))
            return true;
        }
      }
    }
    return false;
  }
  static constexpr int64_t kFarthest = 65;  // places by which numbers may be shifted

  // ---- fewer bits

  // Whether all numbers have few bits and lie near the expected ones. For a state: what it holds.
  void narrowed() {
    if (!t_.binary32) return;
    struct Format {
      const char* name;
      int cut;
    };
    for (const Format f : {Format{"bfloat16", 16}, Format{"tf32", 13}}) {
      const uint32_t mask = (1u << f.cut) - 1;
      // So many numbers end in zeros by chance with a probability below 2^-cut.
      size_t counted = 0;
      bool all = true, shorter = true;
      for (size_t i = 0; all && i < size_; ++i) {
        const double x = held(i), d = held_expected(i);
        all = (to_bits(held(i)) & mask) == 0 &&
              std::fabs(x - d) <= t_.allowed[i] + std::ldexp(std::fabs(d), f.cut - 23);
        shorter = shorter && std::fabs(x) <= std::fabs(d) + t_.allowed[i];
        counted += x != 0 ? 1 : 0;
      }
      if (!all || counted < kFew + 1) continue;
      out_.elements = "";
      out_.signature =
          fmt::format("what was expected {} to {}", shorter ? "cut" : "rounded", f.name);
      return;
    }
  }

  const WrongTensor& t_;
  size_t size_;
  const Places& wrong_;
  std::vector<Places> regions_;
  Signature out_;
};

}  // namespace

Signature signature_of(const WrongTensor& tensor) { return Looker(tensor).look(); }

std::vector<std::string> axis_names(const std::string& tensor, const Dims& dims) {
  if (dims.size() == 2) return {"row", "column"};
  if (dims.size() == 1) return {"element"};
  const bool kernel = tensor.find("/kernel") != std::string::npos;
  return kernel && dims.size() == 4 ? std::vector<std::string>{"kernel row", "kernel column",
                                                               "input channel", "output channel"}
                                    : std::vector<std::string>();
}

}  // namespace twinrun
