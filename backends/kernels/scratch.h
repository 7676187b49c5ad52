// Buffers that a thread keeps from call to call, so that a training step in steady state allocates
// nothing here. A slot has one user at a time: nested code must use another slot.
//
//   float* a = scratch<float>(Scratch::kPackedA, 14 * 256);  // 64-byte aligned, contents undefined
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

#include "program/base/huge_pages.h"

namespace twinrun {

enum class Scratch {
  kPackedA,
  kPackedB,
  kSlab,
  kOffsets,
  kPartials,
  kPass,
  kOperandA,
  kOperandB,
  kResult,
  kTiles,
  kTileImages,
  kLanes,
  kBlocks,
  kPhaseTaps,
  kPhasePixels,
  kCount
};

template <typename T>
T* scratch(Scratch slot, size_t count) {
  struct Buffer {
    void* data = nullptr;
    size_t bytes = 0;
    ~Buffer() { std::free(data); }
  };
  thread_local Buffer buffers[static_cast<size_t>(Scratch::kCount)];
  Buffer& buffer = buffers[static_cast<size_t>(slot)];
  const size_t bytes = (count * sizeof(T) + 4095) / 4096 * 4096 + 4096;
  if (bytes > buffer.bytes) {
    std::free(buffer.data);
    buffer.data = std::aligned_alloc(4096, bytes);
    if (buffer.data == nullptr) throw std::bad_alloc();
    prefer_huge_pages(buffer.data, bytes);
    buffer.bytes = bytes;
  }
  return static_cast<T*>(buffer.data);
}

}  // namespace twinrun
