// data.cache = FILE: the decoded samples of a source, kept for later runs. A safetensors file: the tensors, and as metadata what they
// were made from and their digest. A run believes it only if the keys of [data], the source files' sizes and times and the digest are
// the same, and every label, token and number is one that a source could have given; else it reads the source and writes the file anew.
//
//   TWINRUN_ASSIGN(Cached cached, read_cache(request));
//   if (!cached.data) ... write_cache(request, dataset_of_the_source);
//   cached.note                                          // "read from samples.cache", "written: ..." for people
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
  std::optional<Dataset> data;  // none: to be made anew
  std::string note;             // what became of the file, and why
};

// Error: something else has that name, or it cannot be read. It is never written over.
Result<Cached> read_cache(const DataRequest& request);
Status write_cache(const DataRequest& request, const Dataset& data);

// Dataset::digest.
Digest digest_of(const Dataset& data);

}  // namespace twinrun::data
