// Where HDF5 keeps a file that it builds in memory: in memory while it is small, and beyond in an
// unnamed file beside the destination, whose pages the system can write out. A run with many
// checkpoints is then written without having all of them in memory.
//
//   H5Pset_fapl_core(access, ...);
//   use_image_memory(access, folder);
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace twinrun {

// For the core driver of a file access list. Returns false if HDF5 refuses.
bool use_image_memory(int64_t access_list, const std::string& folder);

// The unnamed file whose first byte on an image of such a list is, or -1 if it is in memory. The
// image owns the descriptor.
int file_of_image(const std::byte* image);

}  // namespace twinrun
