// The core driver's callbacks (H5Pset_file_image_callbacks): blocks that are mappings, and know
// their own size and file.
#include "checkpoints/container/image_memory.h"

#include <fcntl.h>
#include <hdf5.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>

#include "checkpoints/container/open_file.h"

namespace twinrun {
namespace {

constexpr size_t kInMemory = size_t{64} << 20;
constexpr size_t kHeader = 4096;  // a page, so that the content is as aligned as the mapping

struct Header {
  size_t bytes;  // of the mapping, with this page
  int fd;        // -1: memory without a file
};

Header* header_of(void* content) {
  return reinterpret_cast<Header*>(static_cast<std::byte*>(content) - kHeader);
}

void* content_of(void* mapping, size_t bytes, int fd) {
  *static_cast<Header*>(mapping) = {bytes, fd};
  return static_cast<std::byte*>(mapping) + kHeader;
}

// An unnamed file with room for `bytes`, or -1. The room is taken now: a mapped page that finds the
// disk full would end the process.
int file_of(const std::string& folder, size_t bytes) {
  Descriptor file = unnamed_file(folder);
  if (file.get() < 0 || ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)) != 0) return -1;
  return file.release();
}

// In a file of the folder if it is large, else, and where that fails, in memory.
void* block_of(size_t size, const std::string* folder) {
  const size_t bytes = size + kHeader;
  const int fd = folder == nullptr || size < kInMemory ? -1 : file_of(*folder, bytes);
  void* const mapping = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                               fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
  if (mapping != MAP_FAILED) return content_of(mapping, bytes, fd);
  if (fd >= 0) ::close(fd);
  return nullptr;
}

void* allocate(size_t size, H5FD_file_image_op_t /*op*/, void* folder) {
  return block_of(size, static_cast<std::string*>(folder));
}

herr_t release(void* content, H5FD_file_image_op_t /*op*/, void* /*folder*/) {
  if (content == nullptr) return 0;
  const Header header = *header_of(content);
  if (header.fd >= 0) ::close(header.fd);
  return ::munmap(header_of(content), header.bytes) == 0 ? 0 : -1;
}

// libhdf5 does not survive a block that cannot grow, so a full disk is left for our own writing of
// the file to find: the content moves back to memory.
void* resize(void* content, size_t size, H5FD_file_image_op_t op, void* folder) {
  if (content == nullptr) return allocate(size, op, folder);
  const Header header = *header_of(content);
  const size_t bytes = size + kHeader, had = header.bytes - kHeader;
  const bool becomes_large = header.fd < 0 && had < kInMemory && size >= kInMemory;
  const bool disk_full =
      header.fd >= 0 && ::posix_fallocate(header.fd, 0, static_cast<off_t>(bytes)) != 0;
  if (becomes_large || disk_full) {
    void* const moved = block_of(size, disk_full ? nullptr : static_cast<std::string*>(folder));
    if (moved == nullptr) return nullptr;
    std::memcpy(moved, content, std::min(size, had));
    release(content, op, folder);
    return moved;
  }
  void* const mapping = ::mremap(header_of(content), header.bytes, bytes, MREMAP_MAYMOVE);
  return mapping == MAP_FAILED ? nullptr : content_of(mapping, bytes, header.fd);
}

void* copy(void* to, const void* from, size_t size, H5FD_file_image_op_t /*op*/, void* /*folder*/) {
  return std::memcpy(to, from, size);
}

void* same_folder(void* folder) { return folder; }
herr_t keep_folder(void* /*folder*/) { return 0; }

// Names that stay until the process ends: HDF5 releases what a list of access properties holds when
// the list is closed, and calls back with it as long as the file is open.
std::string* kept_name(const std::string& folder) {
  static std::mutex one_at_a_time;
  static std::set<std::string>& names = *new std::set<std::string>;
  const std::lock_guard lock(one_at_a_time);
  return const_cast<std::string*>(&*names.insert(folder).first);
}

}  // namespace

bool use_image_memory(int64_t access_list, const std::string& folder) {
  H5FD_file_image_callbacks_t callbacks = {allocate,    copy,        resize,           release,
                                           same_folder, keep_folder, kept_name(folder)};
  return H5Pset_file_image_callbacks(access_list, &callbacks) >= 0;
}

}  // namespace twinrun
