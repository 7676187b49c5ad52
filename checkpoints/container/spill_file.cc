// Appends tensors to an unnamed file and maps them.
#include "checkpoints/container/spill_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <memory>

namespace twinrun {
namespace {

// A mapping occupies whole pages, and a process can have only some ten thousand mappings.
constexpr size_t kSmall = 64 << 10;
// The largest page of Linux (AArch64's): a mapping may begin at a multiple of it on every machine.
constexpr uint64_t kPage = 64 << 10;

}  // namespace

Tensor SpillFile::keep(const Tensor& tensor) {
  const size_t count = tensor.bytes();
  if (count < kSmall || failed_) return tensor;
  if (file_.get() < 0) file_ = unnamed_file(folder_);
  // Every byte is written: a mapped page without space on the disk would end the process at a read.
  failed_ = file_.get() < 0 || ::lseek(file_.get(), static_cast<off_t>(end_), SEEK_SET) < 0 ||
            write_all(file_.get(), {tensor.raw(), count}) != 0;
  if (failed_) return tensor;
  void* const mapped =
      ::mmap(nullptr, count, PROT_READ, MAP_SHARED, file_.get(), static_cast<off_t>(end_));
  if (mapped == MAP_FAILED) return tensor;
  end_ += (count + kPage - 1) / kPage * kPage;
  return Tensor::in(
      {static_cast<std::byte*>(mapped), [count](std::byte* p) { ::munmap(p, count); }},
      tensor.type());
}

}  // namespace twinrun
