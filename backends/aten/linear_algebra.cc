// Factorisations, which are not unique: their defining properties are checked.
#include <fmt/format.h>

#include <algorithm>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

// What the call returned, to be taken as it is.
Expected as_returned(const Arguments& a, size_t results) {
  Expected e;
  for (size_t i = 0; i < results; ++i) {
    Array x = a.result_array(i);
    e.results.emplace_back(std::move(x));
  }
  return e;
}

// A = QR by reflections of Householder (Higham, Accuracy and Stability of Numerical Algorithms, 2nd
// ed., theorem 19.4 and lemma 19.3): a column of A - QR is at most n c of_sum(m) of the column's
// norm, one of Q'Q - I at most sqrt(n) n c of_sum(m), and R is exactly triangular. One reflection
// takes an inner product, a multiple of the vector and a subtraction, by a vector that errs by as
// much: c = 10. Of R alone, R'R = A'A.
constexpr double kReflection = 10;

Expected qr(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Array x = a.array(0, "A");
  const std::string mode = a.text(1, "mode", "reduced");
  if (x.dims.size() < 2 || is_half(a.view(0, "A").element))
    throw Undefined("a matrix of another type");
  const bool only_r = mode == "r", complete = mode == "complete";
  Expected e = as_returned(a, 2);
  const Array q = *e.results[0], r = *e.results[1];
  const int64_t rows = x.dims[x.dims.size() - 2], columns = x.dims.back();
  const int64_t inner = complete ? rows : std::min(rows, columns),
                stacks = x.size() / std::max<int64_t>(1, rows * columns);
  Dims of_r = x.dims, of_q = x.dims;
  of_r[of_r.size() - 2] = inner, of_q.back() = inner;
  if (r.dims != of_r || (!only_r && q.dims != of_q)) {
    e.problem = "its factors have other dimensions";
    return e;
  }
  if (!std::ranges::all_of(x.value, [](double v) { return finite(v); }))
    throw Undefined("a factorisation of infinite numbers or NaN");
  take_steps(static_cast<double>(x.size() + q.size()) * static_cast<double>(inner + columns));
  const double units = static_cast<double>(std::max<int64_t>(1, std::min(rows, columns))) *
                       kReflection * (m.of_sum(rows) + 4 * m.unit);
  const auto dot = [](const Array& s, int64_t from, int64_t step, const Array& t, int64_t at,
                      int64_t by, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i)
      sum +=
          s.value[static_cast<size_t>(from + i * step)] * t.value[static_cast<size_t>(at + i * by)];
    return sum;
  };
  const auto tell = [&](std::string_view what, int64_t column, double off, double bound) {
    if (!(off <= bound) && e.problem.empty())
      e.problem = fmt::format("column {} of {} is off by {:.3g}; the bound is {:.3g}", column, what,
                              off, bound);
  };
  for (int64_t s = 0; s < stacks; ++s) {
    const int64_t a0 = s * rows * columns, q0 = s * rows * inner, r0 = s * inner * columns;
    for (int64_t j = 0; j < columns; ++j) {
      const double norm = std::sqrt(dot(x, a0 + j, columns, x, a0 + j, columns, rows));
      double off = 0;
      for (int64_t i = j + 1; i < inner; ++i)
        off = std::fmax(off, std::fabs(r.value[static_cast<size_t>(r0 + i * columns + j)]));
      tell("R below its diagonal", j, off, 0);
      if (only_r) {
        for (int64_t k = 0; k <= j; ++k) {
          const double other = std::sqrt(dot(x, a0 + k, columns, x, a0 + k, columns, rows));
          tell("R'R - A'A", j,
               std::fabs(dot(r, r0 + j, columns, r, r0 + k, columns, inner) -
                         dot(x, a0 + j, columns, x, a0 + k, columns, rows)),
               2 * units * (1 + units) * norm * other + m.smallest);
        }
        continue;
      }
      double squares = 0;
      for (int64_t i = 0; i < rows; ++i) {
        const double d = x.value[static_cast<size_t>(a0 + i * columns + j)] -
                         dot(q, q0 + i * inner, 1, r, r0 + j, columns, inner);
        squares += d * d;
      }
      tell("A - QR", j, std::sqrt(squares), units * norm + m.smallest);
    }
    for (int64_t j = 0; j < inner && !only_r; ++j) {
      double squares = 0;
      for (int64_t k = 0; k < inner; ++k) {
        const double d = dot(q, q0 + j, inner, q, q0 + k, inner, rows) - (j == k ? 1 : 0);
        squares += d * d;
      }
      tell("Q'Q - I", j, std::sqrt(squares), std::sqrt(static_cast<double>(inner)) * units);
    }
  }
  return e;
}

// A = LL', of which one triangle of A is read: an element of LL' - A is at most of_sum(n + 2) of
// that of |L||L'|, in whatever order the sums are computed (Higham, theorem 10.3).
Expected cholesky(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Array x = a.array(0, "A");
  const bool upper = a.flag(1, "upper", false);
  if (x.dims.size() < 2 || is_half(a.view(0, "A").element))
    throw Undefined("a matrix of another type");
  Expected e = as_returned(a, 2);
  const Array l = *e.results[0], info = *e.results[1];
  const int64_t n = x.dims.back(), stacks = x.size() / std::max<int64_t>(1, n * n);
  if (l.dims != x.dims || x.dims[x.dims.size() - 2] != n || info.size() != stacks) {
    e.problem = "its factor has other dimensions";
    return e;
  }
  take_steps(static_cast<double>(x.size()) * static_cast<double>(n));
  const auto at = [n, upper](int64_t i, int64_t j) {
    return static_cast<size_t>(upper ? j * n + i : i * n + j);
  };
  for (int64_t s = 0; s < stacks; ++s) {
    std::string wrong;
    const double *from = x.value.data() + s * n * n, *to = l.value.data() + s * n * n;
    for (int64_t i = 0; i < n && wrong.empty(); ++i) {
      for (int64_t j = 0; j < n && wrong.empty(); ++j) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k <= std::min(i, j); ++k) {
          sum += to[at(i, k)] * to[at(j, k)];
          size += std::fabs(to[at(i, k)] * to[at(j, k)]);
        }
        const double off = j > i ? std::fabs(to[at(i, j)]) : std::fabs(sum - from[at(i, j)]);
        const double bound = j > i ? 0 : m.of_sum(n + 2) * size + m.smallest;
        if (!(off <= bound))
          wrong = fmt::format("element [{}, {}] of {} is off by {:.3g}; the bound is {:.3g}", i, j,
                              j > i ? "the factor's other triangle" : "A - LL'", off, bound);
      }
    }
    const bool refused = info.value[static_cast<size_t>(s)] != 0;
    if (refused && !wrong.empty())
      throw Undefined("a matrix that the call says is not positive definite");
    if (refused) wrong = "the call says that the matrix is not positive definite, but factors it";
    if (e.problem.empty()) e.problem = wrong;
  }
  return e;
}

constexpr Definition kLinearAlgebraDefinitions[] = {
    {"aten.linalg_qr", qr},
    {"aten.linalg_cholesky_ex", cholesky},
};

}  // namespace

std::span<const Definition> linear_algebra_definitions() { return kLinearAlgebraDefinitions; }

}  // namespace twinrun::aten
