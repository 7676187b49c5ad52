// What the process's heap does with memory that is freed.
//
//   keep_freed_pages();               // main(): for steps that take and give the same sizes over and over
//   { const LargeBlocksApart apart;   // but here large tensors come and go between small ones that stay
//     ... }
#pragma once

namespace twinrun {

// Freed pages stay with the process, whatever their size.
void keep_freed_pages();

// While it lives, blocks of 16 MiB and more are the system's own, and go back to it when they are freed: in one heap, what is kept would
// lie between them, and each next one would find no room. In the end all that is free goes back.
class LargeBlocksApart {
 public:
  LargeBlocksApart();
  ~LargeBlocksApart();
  LargeBlocksApart(const LargeBlocksApart&) = delete;
  LargeBlocksApart& operator=(const LargeBlocksApart&) = delete;
};

}  // namespace twinrun
