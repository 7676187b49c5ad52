// Messages of PyTorch/XLA.
#include "harness/check/messages.h"

namespace twinrun::check {
namespace {

using enum MessageKind;

constexpr Message kPyTorch[] = {
    // clang-format off
    {"xla-type", kCause, "unsupported-dtype",
     "Unsupported XLA type {type}",
     "a type that the TPU does not compute in",
     "bfloat16 or float32 in place of it",
     "pytorch/xla torch_xla/csrc/helpers.cpp"},
    {"recompilations", kCause, "dynamic-shape",
     "CompileTime too frequent: {count} counts during {steps} steps",
     "the step is compiled again and again, since its graph changes: other shapes, other numbers "
     "of iterations, values read by Python",
     "pad batches to few sizes (drop_last=True), keep Python numbers that change out of the "
     "graph; PT_XLA_DEBUG=1 names the places",
     "pytorch/xla torch_xla/csrc/runtime/metrics_analysis.cpp"},
    {"transfers", kCause, "",
     "TransferFromDeviceTime too frequent: {count} counts during {steps} steps",
     "values are fetched from the device in most steps, and each fetch waits for it",
     "call .item(), print and metrics every 100 steps, or within xm.add_step_closure",
     "pytorch/xla torch_xla/csrc/runtime/metrics_analysis.cpp"},
    {"ops-not-lowered", kCause, "unsupported-op",
     "Op(s) not lowered: {ops}",
     "these ops run on the host's CPU: their arrays go there and back in every step",
     "other ops; ask for them at pytorch/xla",
     "pytorch/xla torch_xla/csrc/runtime/metrics_analysis.cpp"},
    {"not-an-xla-tensor", kCause, "",
     "Input tensor is not an XLA tensor: {tensor}\n"
     "The input is not an XLA tensor",
     "a tensor on the CPU meets one on the TPU",
     "x.to(device) for every input, target and buffer",
     "pytorch/xla API_GUIDE.md, torch_xla/csrc/init_python_bindings.cpp"},
    {"no-xla-configuration", kCause, "",
     "Missing XLA configuration",
     "PyTorch/XLA was not told which device to use",
     "PJRT_DEVICE=TPU; on a machine without a TPU PJRT_DEVICE=CPU, or uninstall torch_xla",
     "pytorch/xla benchmarks/benchmark_experiment.py"},
    {"host-software-old", kCause, "",
     "Op type not registered '{op}' in binary running on {host}",
     "the software on the TPU's host is older than the client's",
     "make the TPU anew with the version of the client",
     "pytorch/xla#400, pytorch/xla#659"},
    {"rendezvous-failed", kConsequence, "",
     "Failed to meet rendezvous '{name}': {error}",
     "another process ended before all had come to this point",
     "look for the first exception of another process; after the last rendezvous it is harmless",
     "pytorch/xla#2246, pytorch/xla#2190"},
    {"mesh-configuration", kConsequence, "",
     "Failed to retrieve mesh configuration: {error}",
     "process 0, which tells the others about the TPU, is gone or has not started",
     "look for the first exception, of process 0 above all",
     "pytorch/xla#2341"},
    {"client-initialised", kConsequence, "",
     "ComputationClient already initialized",
     "the end of a process whose TPU could not be initialised",
     "look for the error above",
     "google/gemma_pytorch#25"},
    // clang-format on
};

}  // namespace

std::span<const Message> pytorch_messages() { return kPyTorch; }

}  // namespace twinrun::check
