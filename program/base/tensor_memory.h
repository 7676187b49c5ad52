// How much memory tensors hold: every block that Tensor::empty allocated and that is still in use,
// in all threads.
//
//   reset_tensor_peak();  engine.step(...);  tensor_memory().peak;    // bytes
#pragma once

#include <cstdint>

namespace twinrun {

struct TensorMemory {
  int64_t live = 0, peak = 0;  // bytes; the peak since the last reset
};
TensorMemory tensor_memory();
void reset_tensor_peak();  // sets the peak to the bytes that are live now

}  // namespace twinrun
