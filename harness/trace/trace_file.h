// Reads the trace of a framework's training step (docs/reference/trace-format.md). The file is
// mapped, so that the bytes of tensors stay where they are. Nothing in it is trusted: every size,
// id and stride is checked against the file.
//
//   TWINRUN_ASSIGN(const TraceFile trace, read_trace("trace.twin", /*partial=*/false));
//   for (const aten::Call& call : trace.calls) ...
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backends/aten/call.h"
#include "harness/trace/mapped_file.h"
#include "program/base/result.h"

namespace twinrun {

// What the script's settings permit the kernels of a framework.
struct Permitted {
  bool tf32_products = false, bfloat16_products = false;  // of binary32
  bool tf32_convolutions = false;                         // on a GPU
  bool bfloat16_parts = false, float16_parts = false;     // of products of half precision, on a GPU
  bool nnpack = false;                                    // for convolutions, on a CPU
};

// A Python autograd.Function whose results the recorded calls read: its backward pass is a formula of
// the script or of a library, not PyTorch's.
struct ScriptFunction {
  std::string name, place;  // "__main__.Swish"; the line of its `backward`
  int64_t calls = 0;
  bool is_compiled = false;  // torch.compile has taken it apart: no node has its name
};

struct TraceFile {
  std::string path;
  std::string framework, version, script;
  Permitted permitted;
  std::vector<std::pair<std::string, std::string>> settings;  // all that the recorder noted
  bool onednn_bfloat16 = false;  // oneDNN has kernels for bfloat16 on that CPU
  std::vector<aten::Call> calls;
  // What optimizers were given and left, a group of parameters each. `index`: of the call that follows.
  std::vector<aten::Call> updates;
  // What Functions of Python were given and gave, in a forward or a backward pass. `index`: likewise.
  std::vector<aten::Call> uses;
  bool on_accelerator = false;  // some tensor lies in the memory of a device
  int64_t steps = 0;
  int64_t bytes = 0;  // of the file
  bool cut_short =
      false;  // the end record is missing: its whole steps were read, or, if the user asked, all
  int64_t rank = 0, ranks = 1;  // of the process that recorded, and how many there were
  int64_t given_ranks = 1;      // whose traces are judged together with this one
  // Functions and hooks that the user says are meant to give another gradient than the derivative.
  std::vector<std::string> allowed;
  std::vector<ScriptFunction> functions;                 // of the watched steps
  std::unordered_map<uint64_t, std::string> parameters;  // their names in the model, by storage
  const ScriptFunction* function_named(std::string_view name) const {
    for (const ScriptFunction& f : functions)
      if (f.name == name) return &f;
    return nullptr;
  }
  // What is shown of a weight: "net.2.weight, float32[64, 48]", or its type alone.
  std::string shown(uint64_t storage, const std::string& type) const {
    const auto name = parameters.find(storage);
    return name == parameters.end() ? type : name->second + ", " + type;
  }
  std::vector<std::string> dropout_off;  // modules of dropout in evaluation mode, if no other drops
  int64_t skipped_evaluation = 0;  // calls of evaluations between the steps, which were left out
  int64_t skipped_evaluation_used = 0;  // calls that read what those computed; of older traces
  int64_t steps_asked = 0;              // of a script; 0: of no script
  int64_t steps_made = 0;               // those that were not recorded too
  int64_t steps_elsewhere = 0;          // optimizer steps in other threads, which are not recorded
  std::string exception;                // with which the recorded script ended; "" if none did
  int64_t errors = 0;                   // calls that the recorder could not record
  std::string first_error;              // why the first of them could not be
  std::string observer;  // whether recording changed the step's bits; "" if not examined
  std::shared_ptr<const MappedFile> file;
};

bool is_trace(const std::string& path);  // by its first bytes
// An error names the byte of the file and what is wrong there. Of a trace without its end record the
// whole steps are read; if there is none it is an error, unless `partial` is true: then every whole
// call is read.
Result<TraceFile> read_trace(const std::string& path, bool partial);

// An error if the file was written to or became shorter since it was read: nothing that was found in
// it may be told. One that was cut short may have grown.
Status unchanged(const TraceFile& trace);

}  // namespace twinrun
