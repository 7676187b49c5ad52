// Draws the wrong result of an op as a picture for the report: how far each part of it lies outside
// its bound.
//
//   violation.picture = picture_of(op.type.dims, oracle, output);
#pragma once

#include <cstdint>
#include <vector>

#include "backends/oracle/oracle.h"
#include "reports/report.h"

namespace twinrun {

// Folds the tensor into at most 64 x 64 cells, as nearly square as the dimensions allow. A cell
// shows its worst element.
TensorPicture picture_of(const std::vector<int64_t>& dims, const OracleResult& oracle,
                         const Tensor& subject);

}  // namespace twinrun
