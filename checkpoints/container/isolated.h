// A reader in a process of its own, for libraries that are not built for hostile input (libhdf5):
// what crashes, runs away or takes too much memory there is an Error here. The child has limits on
// CPU time and memory and no standard streams; its answer comes back through memory. To be called
// while the process has one thread.
//
//   auto bytes = run_isolated([&] { return read_somehow(path); }, file_size, path);
//   if (!bytes) return bytes.error();              // the reader's own error, or how the child ended
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "program/base/result.h"

namespace twinrun {

// `input_bytes` sets the limits: 10 s of CPU and one more for every 16 MiB; 1 GiB of memory and
// eight times the input beyond what this process has. Under a sanitizer memory is not limited.
Result<std::vector<std::byte>> run_isolated(
    const std::function<Result<std::vector<std::byte>>()>& reader, uint64_t input_bytes,
    const std::string& where);

// The same in another program, for callers with threads: `command` is started with `input` (a file) as its standard input, and
// does with it what serve_isolated does. It has `seconds`, then it is ended.
Result<std::vector<std::byte>> run_isolated(const std::vector<std::string>& command, int input,
                                            double seconds, const std::string& where);
// What such a program's main does: limits itself, gives the answer to its standard output, and returns the exit status.
int serve_isolated(const std::function<Result<std::vector<std::byte>>()>& reader,
                   uint64_t input_bytes);

}  // namespace twinrun
