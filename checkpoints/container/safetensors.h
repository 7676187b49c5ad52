// The safetensors format: u64 length of a JSON header, the header, one buffer without holes.
// Reading is as strict as the reference implementation: a header of at most 100 MB, no duplicate
// names, data_offsets that fill the buffer without holes or overlaps, sizes that match dtype and
// shape. Unknown keys of a tensor are reported, unknown dtypes are errors. Tensors are written in
// the reference's order, by dtype (U64 ... BOOL), then name; equal content makes equal bytes.
// Source: huggingface/safetensors README "Format"; safetensors/src/tensor.rs (order, limits).
//
//   TWINRUN_ASSIGN(ArrayFile file, parse_safetensors(bytes, path));
//   file.metadata["format"];                                          // __metadata__
//   TWINRUN_ASSIGN(auto bytes, to_safetensors(file, path));
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "checkpoints/container/array.h"

namespace twinrun {

Result<ArrayFile> parse_safetensors(std::span<const std::byte> bytes, const std::string& where);
Result<std::vector<std::byte>> to_safetensors(const ArrayFile& file, const std::string& where);

}  // namespace twinrun
