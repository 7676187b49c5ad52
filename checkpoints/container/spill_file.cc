// Appends tensors to an unnamed file and maps them.
#include "checkpoints/container/spill_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

namespace twinrun {
namespace {

// A mapping occupies whole pages, and a process can have only some ten thousand mappings.
constexpr size_t kSmall = 64 << 10;
constexpr uint64_t kPage = 4096;

// Every byte is written: a mapped page without space on the disk would end the process at a read.
bool write_at(int fd, const std::byte* bytes, size_t count, uint64_t at) {
  while (count > 0) {
    const ssize_t n = ::pwrite(fd, bytes, count, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    at += static_cast<uint64_t>(n);
    count -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

Tensor SpillFile::keep(const Tensor& tensor) {
  const size_t count = tensor.bytes();
  if (count < kSmall || failed_) return tensor;
  if (file_.get() < 0) {
    const char* folder = folder_.empty() ? "." : folder_.c_str();
    file_ = Descriptor(::open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  }
  failed_ = file_.get() < 0 || !write_at(file_.get(), tensor.raw(), count, end_);
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
