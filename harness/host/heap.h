// What the process's heap does with freed memory (glibc malloc).
//
//   keep_freed_pages();               // in main(): for steps that allocate and free the same sizes
//   { const LargeBlocksApart apart;   // here large tensors come and go among small ones that stay
//     ... }
#pragma once

namespace twinrun {

// Freed pages stay with the process, whatever their size. Call it before any thread starts.
void keep_freed_pages();

// While an object exists, blocks of 16 MiB and more are mapped separately and returned to the
// system when they are freed. In one heap, blocks that are kept would lie between the freed ones,
// and the next large block would not fit. The destructor returns all free memory to the system.
// Mapping changes only after keep_freed_pages().
class LargeBlocksApart {
 public:
  LargeBlocksApart();
  ~LargeBlocksApart();
  LargeBlocksApart(const LargeBlocksApart&) = delete;
  LargeBlocksApart& operator=(const LargeBlocksApart&) = delete;
};

}  // namespace twinrun
