// Named arrays of a file -> samples: what the sources npy, npz and hdf5 share.
//   features: with data.vocabulary, integers [n, T]: token ids; else numbers [n, ...]: u8 / 255,
//             floats and other integers as they are (binary64 to the nearest binary32; an integer
//             that binary32 does not hold is an error)
//   labels:   integers [n] (or [n, 1]), or one per token [n, T]
//   weights:  numbers or bool [n, T], 0 or 1
//
//   TWINRUN_ASSIGN(Samples s, array_samples(request, {{&x, "x.npy"}, {&y, "y.npy"}, {}}));
#pragma once

#include <string>

#include "checkpoints/container/array.h"
#include "program/base/result.h"
#include "scenarios/data/source.h"

namespace twinrun::data {

struct PlacedArray {
  const NamedArray* array = nullptr;
  std::string where;  // file and name, for messages
};
struct SampleArrays {
  PlacedArray features, labels;
  PlacedArray weights;  // array may be nullptr: no weights
};

// Errors name the array (by its `where`) and the record.
Result<Samples> array_samples(const DataRequest& request, const SampleArrays& arrays);

// Training and held-out samples from the arrays that data.feature and so on name. Without names of
// held-out arrays, the last tenth of the samples is held out.
Result<Pool> pool_of_file(const DataRequest& request, const ArrayFile& file,
                          const std::string& path);

// The names that pool_of_file looks for, each with the key that gives it.
std::vector<std::pair<std::string, std::string>> wanted_arrays(const DataRequest& request);

}  // namespace twinrun::data
