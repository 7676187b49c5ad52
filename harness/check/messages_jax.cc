// Messages of JAX.
#include "harness/check/messages.h"

namespace twinrun::check {
namespace {

using enum MessageKind;

constexpr Message kJax[] = {
    // clang-format off
    {"tracer-value", kCause, "",
     "Abstract tracer value encountered where concrete value is expected: {value}",
     "Python needs a number while the step is traced, when there are only shapes",
     "mark that argument static (static_argnums), or use jnp and lax instead of Python on it",
     "jax jax/_src/errors.py"},
    {"tracer-branch", kCause, "",
     "Attempted boolean conversion of {value}",
     "an `if` or `while` of Python on a value that is known only at run time",
     "jnp.where, lax.cond or lax.while_loop; or a static argument",
     "jax jax/_src/errors.py"},
    {"tracer-numpy", kCause, "",
     "The numpy.ndarray conversion method __array__() was called on {value}",
     "NumPy was called with a value of the traced step",
     "the function of jnp in place of np's",
     "jax jax/_src/errors.py"},
    {"tracer-index", kCause, "",
     "The __index__() method was called on {value}",
     "a list or range of Python is indexed by a value of the traced step",
     "jnp.asarray(list)[i], lax.fori_loop, or a static argument",
     "jax jax/_src/errors.py"},
    {"boolean-mask", kCause, "dynamic-shape",
     "Array boolean indices must be concrete; got {mask}\n"
     "Array boolean indices must be concrete: {mask}",
     "the length of x[mask] depends on data",
     "jnp.where(mask, x, 0) with three arguments, or a weighted sum",
     "jax jax/_src/errors.py"},
    {"shape-not-concrete", kCause, "dynamic-shape",
     "Shapes must be 1D sequences of concrete values of integer type, got {shape}",
     "a size depends on data",
     "take sizes from x.shape, or mark the argument static",
     "jax jax/_src/core.py"},
    {"tracer-leak", kCause, "",
     "Encountered an unexpected tracer. A function transformed by JAX had a side effect",
     "a value of the traced step was stored outside of it",
     "return it from the function; JAX_CHECK_TRACER_LEAKS=1 finds the place",
     "jax jax/_src/core.py"},
    {"array-deleted", kCause, "",
     "Array has been deleted with shape={shape}\n"
     "Buffer has been deleted or donated\n"
     "Invalid buffer passed: buffer has been deleted or donated",
     "an array is used after it was donated to a step, which wrote its results over it",
     "use the step's result (state = step(state)), and do not donate what is needed again",
     "jax jax/_src/array.py; jaxlib 0.6.2"},
    {"donation-unused", kRemark, "",
     "Some donated buffers were not usable: {buffers}\n"
     "Donation is not implemented for {platforms}",
     "no result has the shape and type of what was donated, so that both take memory",
     "donate only the state; give the new state the old one's shapes, types and shardings",
     "jax jax/_src/interpreters/mlir.py"},
    {"too-few-devices", kCause, "",
     "that requires {needed} logical devices, but only {available} XLA devices are available\n"
     "that requires {needed} replicas, but only {available} XLA devices are available",
     "the step is for more devices than there are",
     "take sizes from jax.device_count(); on several hosts call jax.distributed.initialize() "
     "first",
     "jax jax/_src/interpreters/pxla.py"},
    {"mapped-sizes", kCause, "",
     "{transform} got inconsistent sizes for array axes to be mapped",
     "arguments of pmap or vmap have different sizes along the mapped axis",
     "reshape the batch to (devices, batch per device, ...), replicate the state, or set in_axes",
     "jax jax/_src/api.py"},
    {"sharding-uneven", kCause, "batch-not-divisible",
     "One of {what} was given the sharding of {sharding}, which implies that the global size of "
     "its dimension {dimension} should be divisible by {parts}, but it is equal to {size}",
     "an array cannot be cut evenly over the mesh",
     "choose that size as a multiple of the devices along the axis: for dimension 0, the batch",
     "jax jax/_src/pjit.py"},
    {"shard-map-uneven", kCause, "batch-not-divisible",
     "shard_map applied to the function '{function}' was given argument arrays with axis sizes "
     "that are not evenly divisible by the corresponding mesh axis sizes",
     "an argument of shard_map cannot be cut evenly over the mesh",
     "pad it, or choose the batch as a multiple of the mesh's axis",
     "jax jax/_src/shard_map.py"},
    {"devices-mixed", kCause, "",
     "Received incompatible devices for jitted computation",
     "arrays of one call lie on different sets of devices",
     "jax.device_put them with shardings of one mesh",
     "jax jax/_src/stages.py"},
    {"nan-found", kCause, "",
     "invalid value (nan) encountered in {function}\n"
     "invalid value (inf) encountered in {function}\n"
     "Invalid nan value encountered in the output of a jax.jit function",
     "jax_debug_nans stopped at the first op that gave a NaN",
     "look at that op's inputs; `twinrun diagnose` says whether a conforming TPU would give it, "
     "too",
     "jax jax/_src/pjit.py, jax/_src/api_util.py"},
    {"axis-unbound", kCause, "",
     "unbound axis name: {axis}",
     "a collective (psum, pmean) names an axis that no pmap, shard_map or vmap around it has",
     "call it within shard_map over that axis, or take it out of a step for one device",
     "jax jax/_src/core.py"},
    {"no-translation", kCause, "unsupported-op",
     "MLIR translation rule for primitive '{primitive}' not found for platform {platform}",
     "this primitive has no form for the TPU",
     "another function, or jax.pure_callback to compute it on the host",
     "jax jax/_src/interpreters/mlir.py"},
    {"not-a-jax-type", kCause, "",
     "is not a valid JAX type",
     "an argument of a step is a string, None or an object",
     "pass arrays and numbers; mark the rest static, or close over it",
     "jax jax/_src/core.py"},
    {"initialize-late", kCause, "",
     "jax.distributed.initialize() must be called before any JAX calls that might initialise the "
     "XLA backend",
     "the processes must find each other before JAX opens the TPU",
     "call it first in the program, before anything that asks for devices",
     "jax jax/_src/distributed.py"},
    {"x64-truncated", kRemark, "",
     "Explicitly requested dtype {dtype} is not available, and will be truncated to dtype {given}",
     "64-bit types are off in JAX, and slow on a TPU",
     "ask for float32 or int32",
     "jax jax/_src/dtypes.py"},
    {"huge-pages", kRemark, "",
     "Transparent hugepages are not enabled. TPU runtime startup and shutdown time should be "
     "significantly improved",
     "starting and ending take longer than they have to",
     "echo always to /sys/kernel/mm/transparent_hugepage/enabled, as root",
     "jax jax/_src/cloud_tpu_init.py"},
    {"tpu-driver", kRemark, "",
     "Unable to initialize backend 'tpu_driver': {error}",
     "JAX looked for a driver that only old remote TPUs had",
     "nothing",
     "kalininalab/alphafold_non_docker#68"},
    {"backend-unavailable", kConsequence, "",
     "Unable to initialize backend 'tpu': {error}",
     "JAX found no TPU that it can use; on a machine without one it is a remark",
     "read what follows the colon; on a TPU VM see no-topology, tpu-in-use, libtpu-missing",
     "jax jax/_src/xla_bridge.py"},
    // clang-format on
};

}  // namespace

std::span<const Message> jax_messages() { return kJax; }

}  // namespace twinrun::check
