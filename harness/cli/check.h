// What harness/cli/check.cc and check_log.cc share.
#pragma once

#include <optional>
#include <string>

#include "device/machine.h"
#include "harness/check/check.h"
#include "reports/memory.h"

namespace twinrun::cli {

// A labelled line of a finding, wrapped; nothing for no words.
void print_line(std::string label, const std::string& words);

// The memory plan of what was checked; nothing without a step. `fit`: with the largest batch.
std::optional<MemoryReport> memory_of(const Checked& checked, const tpu::Generation& generation,
                                      bool fit);

// Reads a log, `-` for stdin, and prints what it says: with its places in `checked`, if there is
// one. Returns the exit code: 1 if there is a message that is no remark.
Result<int> print_log(const std::string& file, const std::optional<Checked>& checked,
                      const tpu::Generation& generation, bool json);

}  // namespace twinrun::cli
