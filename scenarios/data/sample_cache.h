// data.cache = FILE: a cache of the decoded samples of a source, for later runs. It is a
// safetensors file with the tensors and, as metadata, what they were made from and their digest. A
// run uses it only if the keys of [data], the sizes and times of the source files and the digest
// are the same, and if every label, token and number is valid for a source. Otherwise it reads the
// source and writes the file anew.
//
//   TWINRUN_ASSIGN(Cached cached, read_cache(request));
//   if (!cached.data) ... write_cache(request, dataset_of_the_source);
//   cached.note                                 // "data.cache: samples read from ...", for people
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "scenarios/data/source.h"

namespace twinrun::data {

inline constexpr std::string_view kNoCache = "none", kMemoryCache = "memory";
inline bool is_cache_file(std::string_view cache) {
  return cache != kNoCache && cache != kMemoryCache;
}

struct Cached {
  std::optional<Dataset> data;  // none: read the source and write the cache anew
  std::string note;             // whether the file was used, and why not
};

// A file that is not a cache of ours, or that cannot be read, is an error; it is never overwritten.
Result<Cached> read_cache(const DataRequest& request);
Status write_cache(const DataRequest& request, const Dataset& data);

// The value of Dataset::digest.
Digest digest_of(const Dataset& data);

}  // namespace twinrun::data
