// The core driver's callbacks (H5Pset_file_image_callbacks): blocks that are mappings, and know
// their own size and file. A page of memory in front of each block holds that; so a file holds the
// content from its first byte on, and can become the finished file as it is.
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
constexpr size_t kHeader = 64 << 10;  // pages of every machine: a file is mapped behind it

struct Header {
  size_t size;  // of the content
  int fd;       // -1: memory without a file
};

Header* header_of(void* content) {
  return reinterpret_cast<Header*>(static_cast<std::byte*>(content) - kHeader);
}

// Memory for a block and its header, or nullptr.
void* memory_of(size_t size) {
  void* const mapping = ::mmap(nullptr, size + kHeader, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  *static_cast<Header*>(mapping) = {size, -1};
  return static_cast<std::byte*>(mapping) + kHeader;
}

void free_memory(void* content) {
  ::munmap(header_of(content), header_of(content)->size + kHeader);
}

// An unnamed file with room for `size` bytes, or -1. The room is taken now: a mapped page that
// finds the disk full would end the process.
int file_of(const std::string& folder, size_t size) {
  Descriptor file = unnamed_file(folder);
  if (file.get() < 0 || ::posix_fallocate(file.get(), 0, static_cast<off_t>(size)) != 0) return -1;
  return file.release();
}

// Lets the disk begin with what is there, which is rarely changed again. A hint: nothing may fail.
void start_writing(int fd, size_t had) {
  static_cast<void>(::sync_file_range(fd, 0, static_cast<off_t>(had), SYNC_FILE_RANGE_WRITE));
}

// In a file of the folder if it is large, else, and where that fails, in memory.
void* block_of(size_t size, const std::string* folder) {
  void* const content = memory_of(size);
  const int fd =
      content == nullptr || folder == nullptr || size < kInMemory ? -1 : file_of(*folder, size);
  if (fd < 0) return content;
  if (::mmap(content, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    ::close(fd);
    free_memory(content);
    return nullptr;
  }
  header_of(content)->fd = fd;
  return content;
}

void* allocate(size_t size, H5FD_file_image_op_t /*op*/, void* folder) {
  return block_of(size, static_cast<std::string*>(folder));
}

herr_t release(void* content, H5FD_file_image_op_t /*op*/, void* /*folder*/) {
  if (content == nullptr) return 0;
  if (const int fd = header_of(content)->fd; fd >= 0) ::close(fd);
  free_memory(content);
  return 0;
}

// libhdf5 does not survive a block that cannot grow, so a full disk is left for our own writing of
// the file to find: the content moves back to memory.
void* resize(void* content, size_t size, H5FD_file_image_op_t op, void* folder) {
  if (content == nullptr) return allocate(size, op, folder);
  const auto [had, fd] = *header_of(content);
  const bool becomes_large = fd < 0 && had < kInMemory && size >= kInMemory;
  const bool disk_full = fd >= 0 && ::posix_fallocate(fd, 0, static_cast<off_t>(size)) != 0;
  if (becomes_large || disk_full) {
    void* const moved = block_of(size, disk_full ? nullptr : static_cast<std::string*>(folder));
    if (moved == nullptr) return nullptr;
    std::memcpy(moved, content, std::min(size, had));
    release(content, op, folder);
    return moved;
  }
  if (fd < 0) {
    void* const mapping =
        ::mremap(header_of(content), had + kHeader, size + kHeader, MREMAP_MAYMOVE);
    if (mapping == MAP_FAILED) return nullptr;
    static_cast<Header*>(mapping)->size = size;
    return static_cast<std::byte*>(mapping) + kHeader;
  }
  // The file's pages move behind a header of their own.
  void* const moved = memory_of(size);
  if (moved == nullptr) return nullptr;
  if (::mremap(content, had, size, MREMAP_MAYMOVE | MREMAP_FIXED, moved) == MAP_FAILED) {
    free_memory(moved);
    return nullptr;
  }
  ::munmap(header_of(content), kHeader);
  header_of(moved)->fd = fd;
  start_writing(fd, had);
  return moved;
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

int file_of_image(const std::byte* image) { return header_of(const_cast<std::byte*>(image))->fd; }

bool use_image_memory(int64_t access_list, const std::string& folder) {
  H5FD_file_image_callbacks_t callbacks = {allocate,    copy,        resize,           release,
                                           same_folder, keep_folder, kept_name(folder)};
  return H5Pset_file_image_callbacks(access_list, &callbacks) >= 0;
}

}  // namespace twinrun
