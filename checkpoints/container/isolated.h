// Runs a reader in a process of its own, for libraries that are not built for hostile input
// (libhdf5): a crash, an endless loop or excessive use of memory there is an Error here. The child
// has limits on CPU time and memory and none of this process's standard streams; its answer comes
// back through a file in memory.
//
//   auto bytes = run_isolated([&] { return read_somehow(path); }, file_size, path);
//   if (!bytes) return bytes.error();         // the reader's own error, or how the child ended
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "program/base/result.h"

namespace twinrun {

// Runs `reader` in a fork. Call it only while the process has one thread. `input_bytes` sets the
// limits: 4 s of CPU and one more for every 16 MiB; 1 GiB of memory plus eight times the input,
// beyond what this process has. Under a sanitizer memory is not limited.
Result<std::vector<std::byte>> run_isolated(
    const std::function<Result<std::vector<std::byte>>()>& reader, uint64_t input_bytes,
    const std::string& where);

// The same for callers with threads, as another program: starts `command`, whose main calls
// serve_isolated, with the file descriptor `input` as its standard input. It is killed after
// `seconds`.
Result<std::vector<std::byte>> run_isolated(const std::vector<std::string>& command, int input,
                                            double seconds, const std::string& where);
// For the main of such a program: sets the limits above, writes the reader's answer to standard
// output and returns the exit status.
int serve_isolated(const std::function<Result<std::vector<std::byte>>()>& reader,
                   uint64_t input_bytes);

}  // namespace twinrun
