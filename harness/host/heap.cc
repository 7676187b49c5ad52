// Sets the options of glibc malloc.
#include "harness/host/heap.h"

#include <malloc.h>

namespace twinrun {
namespace {

bool keeps = false;  // set once, before any thread starts

}  // namespace

void keep_freed_pages() {
  keeps = true;
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 64 << 20);
}

LargeBlocksApart::LargeBlocksApart() {
  if (!keeps) return;
  mallopt(M_MMAP_THRESHOLD, 16 << 20);
  mallopt(M_MMAP_MAX, 1 << 16);
}

LargeBlocksApart::~LargeBlocksApart() {
  if (keeps) mallopt(M_MMAP_MAX, 0);
  malloc_trim(0);
}

}  // namespace twinrun
