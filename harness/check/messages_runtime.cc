// Messages of XLA's compiler for TPUs, of libtpu, and of the services that join several hosts.
#include "harness/check/messages.h"

namespace twinrun::check {
namespace {

using enum MessageKind;

constexpr Message kRuntime[] = {
    // clang-format off
    {"hbm-full", kCause, "",
     "Ran out of memory in memory space hbm. Used {used} of {limit} hbm. Exceeded hbm capacity by "
     "{exceeded}\n"
     "Ran out of memory in memory space hbm; used: {used}; limit: {limit}\n"
     "TPU TensorCore Hbm usage: {used}, SparseCore Hbm usage {sparse}, exceeding available bytes: "
     "{limit}",
     "the compiled step does not fit into the memory of one core",
     "a smaller batch, bfloat16 activations, rematerialisation, sizes that need no padding: "
     "`twinrun check SCENARIO --fit` tries them",
     "openxla/xla docs/errors/error_1000.md; tensorflow/tpu#385; Cloud TPU's troubleshooting "
     "guide"},
    {"hbm-no-buffer", kCause, "",
     "Error allocating device buffer: Attempting to allocate {asked}. That was not possible. "
     "There are {free} free",
     "there is no room for one more array: what earlier steps or other arrays hold is never freed",
     "drop references to old arrays, donate the state (donate_argnums), keep metrics on the host; "
     "only one process per TPU",
     "openxla/xla docs/errors/error_0100.md; googlecolab/colabtools#5126"},
    {"hbm-no-program", kCause, "",
     "Attempting to reserve {asked} at the bottom of memory. That was not possible. There are "
     "{free} free",
     "the step compiled, and beside the arrays that are alive there is no room for its program",
     "free what is alive before the step: weights loaded twice, batches placed ahead; a smaller "
     "batch",
     "openxla/xla docs/errors/error_0101.md"},
    {"vmem-full", kCause, "",
     "Ran out of memory in memory space vmem while allocating on stack for {kernel}\n"
     "Ran out of memory in memory space vmem",
     "a kernel's blocks do not fit into the core's vector memory. For a kernel of the compiler's "
     "own it is a bug of the compiler",
     "smaller blocks in the Pallas kernel, or --xla_tpu_scoped_vmem_limit_kib; without a kernel "
     "of your own, report it to openxla/xla",
     "openxla/xla docs/errors/error_1001.md; tensorflow/tensorflow#26893"},
    {"program-input-mismatch", kCause, "",
     "Executable({program}) expected parameter {number} of size {size} ({shape}) but got buffer "
     "with incompatible size {given}",
     "an array has another size or layout than the program was compiled for",
     "compile again for these arrays; check layouts given by hand and executables loaded from a "
     "cache",
     "openxla/xla docs/errors/error_0102.md"},
    {"launch-order", kCause, "",
     "An unexpected leader shows up in the launch group with a different launch id than the "
     "current group leader",
     "the hosts launched different programs, or the same ones in another order",
     "run the same code with the same data shapes and versions on every host; no branch on "
     "process_index around a computation",
     "openxla/xla docs/errors/error_0200.md"},
    {"semaphore-left", kCause, "",
     "has a nonzero value upon exit from a Mosaic kernel. Make sure every DMA is awaited",
     "a Pallas kernel ends while a copy or a signal is not waited for",
     "wait for every copy that is started, and pair every signal with a wait",
     "openxla/xla docs/errors/error_0200.md"},
    {"core-halted", kCause, "",
     "Core halted unexpectedly: {error}\n"
     "Accelerator device halted prematurely, perhaps due to an on-device check-failure",
     "a core stopped at a check within the program, or its hardware failed",
     "read the check's own words after the place; on one host only, exchange the host. Otherwise "
     "report it with the program (--xla_dump_to)",
     "openxla/xla docs/errors/error_0200.md"},
    {"host-output", kCause, "",
     "Tensor which is moved to host (starting from {value}) is returned from the entry "
     "computation but the layout for this output is not set to host memory",
     "an array that was moved to the host is a result, and the results are declared on the device",
     "give that result a sharding with memory_kind=\"pinned_host\", or move it back",
     "openxla/xla docs/errors/error_1200.md"},
    {"mosaic-operand-type", kCause, "unsupported-dtype",
     "Mosaic failed to compile TPU kernel: Unsupported matmul RHS type on target: '{type}'",
     "this generation's matrix unit does not take this type",
     "cast the operand to bfloat16 within the kernel, or use a generation that has the type",
     "openxla/xla docs/errors/error_2001.md"},
    {"mosaic-tiling", kCause, "padding",
     "Mosaic failed to compile TPU kernel: Failed to set window params for input {number}: "
     "Operand of shape {shape} has tiling {tiling}, but its block shape {block} is not divisible "
     "by tiling",
     "a Pallas block is not made of whole tiles",
     "make the last two sizes of the block multiples of the tile, or the array's own sizes",
     "openxla/xla docs/errors/error_2002.md"},
    {"mosaic-alignment", kCause, "",
     "Mosaic failed to compile TPU kernel: cannot statically prove that index in dimension "
     "{dimension} is a multiple of {multiple}",
     "an index in a Pallas kernel might lie within a tile",
     "index in whole tiles, or promise it with pl.multiple_of(index, n)",
     "openxla/xla docs/errors/error_2003.md"},
    {"mosaic-refused", kCause, "",
     "Mosaic failed to compile TPU kernel: {error}",
     "the compiler of Pallas kernels refuses one",
     "read what follows the colon; it names the op",
     "openxla/xla docs/errors/error_2001.md"},
    {"sparsecore-allocation", kCause, "",
     "current allocation offset upper bound ({words} words) exceeds the legitimate user "
     "allocatable offset upper bound ({limit} words) in memory space {space}",
     "an op for the SparseCore needs more of its memory than there is",
     "smaller embedding batches or widths",
     "openxla/xla docs/errors/error_3000.md"},
    {"sparsecore-replicas", kCause, "",
     "No viable logical replica count for the embedding table with metadata: {table}",
     "an embedding's ids of one batch do not fit into the SparseCore's memory",
     "lower the limits of ids per partition, or the batch",
     "openxla/xla docs/errors/error_3001.md"},
    {"x64-rewrite", kCause, "wide-dtype wide-integer",
     "",
     "an op on 64-bit values for which there is no form in 32-bit ones",
     "cast to float32 or int32 before that op; in JAX leave jax_enable_x64 off",
     ""},
    {"element-type", kCause, "",
     "Element type {type} is not supported on TPU",
     "a type that this TPU does not store",
     "cast to float32, bfloat16 or int32",
     "libtpu 0.0.52"},
    {"tpu-in-use", kCause, "",
     "The TPU is already in use by process with pid {pid}. Not attempting to load libtpu.so\n"
     "The TPU is already in use by another process probably owned by another user",
     "a TPU belongs to one process at a time, and another one has it",
     "end that process (`sudo lsof -w /dev/accel0` names it), often a notebook's or an old run's",
     "openxla/xla xla/tpu/tpu_initialize_util.cc"},
    {"lock-file", kCause, "",
     "Internal error when accessing libtpu multi-process lockfile",
     "a process that held the TPU left its lock file behind",
     "if no process uses the TPU: sudo rm /tmp/libtpu_lockfile",
     "openxla/xla xla/tpu/tpu_initialize_util.cc"},
    {"libtpu-missing", kRemark, "",
     "libtpu.so: cannot open shared object file\n"
     "TPU_LIBRARY_PATH is set to a non-existent path: {path}",
     "the library that drives TPUs is not installed; without a TPU this means nothing",
     "on a TPU VM: pip install 'jax[tpu]' or 'torch_xla[tpu]'; unset TPU_LIBRARY_PATH",
     "google-deepmind/alphafold3#656; jax jax/_src/cloud_tpu_init.py"},
    {"libtpu-version", kCause, "",
     "Are you using the right LibTPU version? This LibTPU is built for {tpu}\n"
     "The PJRT plugin has PJRT API version {plugin}. The framework PJRT API version is "
     "{framework}\n"
     "Mismatched PJRT plugin PJRT API version ({plugin}) and framework PJRT API version "
     "{framework}",
     "libtpu and the framework are of different times",
     "install both together: pip install -U 'jax[tpu]' (or 'torch_xla[tpu]'), and only one libtpu",
     "libtpu 0.0.52; pytorch/xla CONTRIBUTING.md; jaxlib 0.6.2"},
    {"no-topology", kCause, "",
     "Failed to get global TPU topology",
     "libtpu does not reach the TPU's chips: no device files, another process has them, not all "
     "hosts of a slice started, or the VM's image is for another generation",
     "see whether /dev/accel* or /dev/vfio/* exist and who holds them; start the program on all "
     "hosts at once; make the VM anew with the image of its generation",
     "marin-community/marin#3737, google/gemma_pytorch#25, vllm-project/vllm#16243"},
    {"heartbeat-lost", kCause, "",
     "The following tasks are unhealthy (stopped sending heartbeats)\n"
     "heartbeat timeout. This indicates that the remote task has failed, got preempted, or "
     "crashed unexpectedly",
     "a process on another host is gone: crashed, out of host memory, or preempted",
     "look into that task's log, and for preemptions and evictions at that time",
     "openxla/xla xla/pjrt/distributed/coordination/coordination_service.cc; tensorflow 2.21"},
    {"barrier-timed-out", kCause, "",
     "Barrier timed out. Id: {barrier}. This usually happens because a task triggered the barrier "
     "too early or too slowly",
     "not all processes came to the point where they wait for each other",
     "look into the logs of the tasks that the message names: one crashed, or does something "
     "else, such as a checkpoint on one host only",
     "openxla/xla xla/pjrt/distributed/coordination/coordination_service.cc"},
    {"leader-lost", kCause, "",
     "Failed to send RPC to coordination service. Either the leader task was "
     "preempted/died/restarted unexpectedly or this task is experiencing network issues",
     "process 0, to which the others report, is gone",
     "look into the log of process 0",
     "jax docs/fault_tolerance.rst"},
    {"task-restarted", kCause, "",
     "unexpectedly tried to connect with a different incarnation. It has likely restarted",
     "one process was restarted while the others went on",
     "restart all processes together; go on from the last checkpoint",
     "tensorflow 2.21 libtensorflow_cc"},
    {"data-stall-hang", kCause, "no-prefetch",
     "Megascale detects a hang that is likely caused by data input stall on the following hosts",
     "the hosts named wait for their input, and all others for them",
     "see whether these hosts' storage and input processes are well",
     "libtpu 0.0.52"},
    {"tpu-session-error", kCause, "",
     "Session master detected TPU session error from worker {worker}\n"
     "Detected failure {failure} in session {session}; Start failure handling",
     "a chip or a link of the worker named has failed",
     "take that worker out and restart; report it to the cloud's support",
     "AI-Hypercomputer/maxtext#2041"},
    {"slow-execute", kRemark, "",
     "TPU Execute is taking a long time. This might be due to a deadlock between multiple TPU "
     "cores or a very slow program",
     "a step has not ended for a while; the first one includes its compilation",
     "wait some minutes; if it never ends, the cores wait for each other: see that all run the "
     "same collectives",
     "huggingface/diffusers#856"},
    {"peer-died", kConsequence, "",
     "Terminating process because the JAX distributed service detected fatal errors\n"
     "Polled an error from coordination service (this can be an error from this or another task)",
     "this process ends because another one did",
     "look for the first error in the logs of the others",
     "openxla/xla xla/pjrt/distributed/client.h; jax docs/fault_tolerance.rst"},
    {"socket-closed", kConsequence, "",
     "Socket closed\n"
     "failed to connect to all addresses",
     "the connection to the TPU's host broke: its process ended, was restarted or preempted",
     "look into the host's log; if its memory did not suffice, lower what the input pipeline "
     "holds (shuffle buffers, caches)",
     "tensorflow/tensorflow#38190, tensorflow/tensorflow#47769, pytorch/xla#2246"},
    {"deadline-exceeded", kConsequence, "",
     "DeadlineExceededError\n"
     "Deadline Exceeded\n"
     "DEADLINE_EXCEEDED",
     "a call was not answered in time: the other side is gone, not ready, or waits itself",
     "see that the TPU is READY and its address right; on several hosts, that all have started",
     "tensorflow python/tpu/tpu_system_metadata.py; tensorflow 2.21 libtensorflow_cc"},
    // clang-format on
};

}  // namespace

std::span<const Message> runtime_messages() { return kRuntime; }

}  // namespace twinrun::check
