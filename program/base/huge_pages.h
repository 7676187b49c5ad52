// Large blocks of memory in pages of 2 MiB, where Linux gives them (transparent_hugepage "madvise"
// or "always"): rows that lie far apart then need few entries of the TLB.
//
//   prefer_huge_pages(memory, bytes);   // before it is written for the first time
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace twinrun {

// Of the pages that lie within the block as a whole. Only advice: nothing fails.
inline void prefer_huge_pages(void* memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = (address + kHugePage - 1) & ~(kHugePage - 1);
  const uintptr_t end = (address + bytes) & ~(kHugePage - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace twinrun
