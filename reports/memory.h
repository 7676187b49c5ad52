// What a step holds in memory, as text and JSON: the modelled HBM of one TPU core, and the host
// memory of our own engines. Filled by harness/experiment/memory.h; nothing here computes a plan.
// The fields of the JSON: docs/guides/check.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace twinrun {

// One category of what is held at the peak. Bytes here and below include the padding of tiles,
// unless they are called unpadded.
struct MemoryUse {
  std::string name;  // "weights", "activations", ...
  int64_t bytes = 0, unpadded = 0;
};

struct MemoryAllocation {
  std::string op, op_type;  // the value's op and its kind: "conv1/convolution", "convolution"
  std::string use;
  std::string shape;  // with its layout, as XLA prints it
  int64_t bytes = 0, unpadded = 0;
  std::string broken_rule;  // rule of batch and features that causes the padding; "" if none
};

// A change of the settings, and the plan with it.
struct MemoryChange {
  std::string change;  // "train.batch = 512"
  std::string set;     // "--set train.batch=512"; "" where no key of a scenario does it
  int64_t used = 0;
  bool fits = false;
  int64_t batch = 0;                       // total of all cores
  double extra_flops = 0, step_flops = 0;  // of rematerialisation, and of the step without it
};

// The largest batch that fits.
struct MemoryFit {
  std::string with;   // what is recomputed to make it fit, as in `changes`; "" for nothing
  int64_t batch = 0;  // total of all cores; 0: not even the smallest multiple fits
  int64_t multiple = 64;
  int64_t used = 0;  // at that batch
};

// Our own engines on this machine: exact counts of the bytes that they allocate for tensors.
struct HostMemory {
  int64_t arena = 0;  // of all replicas
  // Weights, slots, statistics; includes copies where an update cannot be written in place.
  int64_t states = 0;
  int64_t outputs = 0, inputs = 0, constants = 0;
  int64_t total() const { return arena + states + outputs + inputs + constants; }
};

struct MemoryReport {
  std::string generation;  // "v2"
  int cores = 1;
  int64_t batch = 0;  // total of all cores
  int64_t hbm = 0, reserved = 0;
  int64_t arguments = 0, program = 0, program_unpadded = 0;
  std::string peak_op, peak_phase;
  double slot_bytes_per_weight = 0;
  std::vector<MemoryUse> uses;
  std::vector<MemoryAllocation> largest;  // held at the peak, largest first
  std::vector<MemoryAllocation> padding;  // of the whole step, most padding first
  std::vector<MemoryChange> changes;
  std::vector<MemoryFit> fit;  // filled on request
  std::optional<HostMemory> host;

  int64_t usable() const { return hbm - reserved; }
  int64_t used() const { return arguments + program; }
  bool fits() const { return used() <= usable(); }
};

// For a terminal. Names of ops are raw: whoever prints the text must clean it.
std::string memory_text(const MemoryReport& report);
// The compiler's message; "" where the step fits. Sources of the wording: docs/guides/check.md.
std::string out_of_memory_text(const MemoryReport& report);
// One JSON object.
std::string memory_json(const MemoryReport& report);

}  // namespace twinrun
