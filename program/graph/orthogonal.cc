// Householder QR in binary64 with sums in a fixed order.
#include "program/graph/orthogonal.h"

#include <cassert>
#include <cmath>

namespace twinrun {
namespace {

// Replaces each column x of the block [first, rows) x [first, columns) of a (row-major) by x - beta
// v (v^T x). v^T x adds rows in ascending order.
void reflect(std::vector<double>& a, int64_t rows, int64_t columns, int64_t first,
             const std::vector<double>& v, double beta, std::vector<double>& dots) {
  for (int64_t j = first; j < columns; ++j) dots[static_cast<size_t>(j)] = 0;
  for (int64_t i = first; i < rows; ++i) {
    const double* row = a.data() + i * columns;
    const double vi = v[static_cast<size_t>(i)];
    for (int64_t j = first; j < columns; ++j) dots[static_cast<size_t>(j)] += vi * row[j];
  }
  for (int64_t j = first; j < columns; ++j) dots[static_cast<size_t>(j)] *= beta;
  for (int64_t i = first; i < rows; ++i) {
    double* row = a.data() + i * columns;
    const double vi = v[static_cast<size_t>(i)];
    for (int64_t j = first; j < columns; ++j) row[j] -= vi * dots[static_cast<size_t>(j)];
  }
}

}  // namespace

std::vector<double> orthonormal_columns(std::vector<double> a, int64_t rows, int64_t columns) {
  assert(rows >= columns && static_cast<int64_t>(a.size()) == rows * columns);
  std::vector<std::vector<double>> v(static_cast<size_t>(columns));
  std::vector<double> beta(static_cast<size_t>(columns)), sign(static_cast<size_t>(columns), 1),
      dots(static_cast<size_t>(columns));
  for (int64_t k = 0; k < columns; ++k) {
    const auto c = static_cast<size_t>(k);
    v[c].assign(static_cast<size_t>(rows), 0);
    double squares = 0;
    for (int64_t i = k; i < rows; ++i) {
      const double x = a[static_cast<size_t>(i * columns + k)];
      v[c][static_cast<size_t>(i)] = x;
      squares += x * x;
    }
    const double head = v[c][c], norm = std::sqrt(squares);
    if (norm == 0) continue;  // beta 0: nothing to reflect
    // The reflection maps the column to -sign(head) norm, the diagonal element of R.
    sign[c] = head < 0 ? 1 : -1;
    v[c][c] = head - sign[c] * norm;
    beta[c] = 1 / (squares + std::fabs(head) * norm);  // 2 / v^T v
    reflect(a, rows, columns, k, v[c], beta[c], dots);
  }
  // Q = H_0 H_1 .. applied to the first columns of the identity, the last reflection first.
  std::vector<double> q(a.size(), 0);
  for (int64_t k = 0; k < columns; ++k) q[static_cast<size_t>(k * columns + k)] = 1;
  for (int64_t k = columns; k-- > 0;)
    reflect(q, rows, columns, k, v[static_cast<size_t>(k)], beta[static_cast<size_t>(k)], dots);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j)
      q[static_cast<size_t>(i * columns + j)] *= sign[static_cast<size_t>(j)];
  }
  return q;
}

}  // namespace twinrun
