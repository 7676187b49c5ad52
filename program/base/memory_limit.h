// How much memory this process can still get, and a limit that makes it fail with an error instead
// of being killed. Linux grants memory that it does not have and kills the process that touches it;
// a control group does the same at its own limit. Under limit_memory() the allocation fails, which
// is std::bad_alloc.
//
//   limit_memory();                                   // in main, before any thread starts
//   if (needed > memory_left().bytes) ...             // before work that needs so much
//   lift_memory_limit(child);                         // after posix_spawn: the child has its own
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace twinrun {

struct MemoryLeft {
  int64_t bytes = 0;       // the largest int64_t if nothing is known
  std::string limited_by;  // "this machine's memory", "the control group /jobs/7", "ulimit -v"
};

// The least of what the machine (MemAvailable and free swap), the control groups (version 1 and 2)
// of this process and its resource limits leave. `root` is where /proc and /sys are; tests have
// their own.
MemoryLeft memory_left(const std::filesystem::path& root = "/");

// Limits the writable memory of this process (RLIMIT_DATA, soft) to what it has now and what is
// left. Other processes may take memory in the meantime, so this is no guarantee.
void limit_memory();

// Gives a child process, which inherits this limit, the one that this process was started with.
void lift_memory_limit(pid_t child);

}  // namespace twinrun
