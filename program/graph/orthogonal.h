// Q of a QR factorisation, for the orthogonal initializer (initial_state.cc): in binary64 with
// every sum in a fixed order, so that its bits are defined.
//
//   std::vector<double> a = ...;               // rows x columns, row-major, rows >= columns
//   a = orthonormal_columns(std::move(a), rows, columns);
#pragma once

#include <cstdint>
#include <vector>

namespace twinrun {

// Q of a = Q R with orthonormal columns, where R's diagonal is positive (which makes Q unique), by
// Householder reflections (Golub and Van Loan, Matrix Computations, 5.1-5.2). Takes
// 4 rows columns^2 - 4/3 columns^3 operations.
std::vector<double> orthonormal_columns(std::vector<double> a, int64_t rows, int64_t columns);

}  // namespace twinrun
