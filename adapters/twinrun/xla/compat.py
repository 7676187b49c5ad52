"""What differs between versions of JAX (0.4.13 to 0.10), in one place."""

import contextlib
import os
import re
import sys

import jax
import numpy as np

if hasattr(jax.lax, "optimization_barrier"):
    barrier = jax.lax.optimization_barrier
else:  # before 0.4.32 it is not public
    from jax._src.ad_checkpoint import _optimization_barrier as barrier  # noqa: F401

# Equations whose bodies run on a mesh: pmap's is its own in older versions.
MESHES = ("shard_map", "xla_pmap")


def is_key(value):
    """Returns whether a value or an abstract value is a typed key of random numbers."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and not isinstance(dtype, np.dtype) and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def key_data(key):
    return jax.random.key_data(key) if hasattr(jax.random, "key_data") else key.unsafe_raw_array()


def key_impl(key):
    """Returns what wrap_key needs to make the key again from its data."""
    return jax.random.key_impl(key) if hasattr(jax.random, "key_impl") else key.dtype.impl


def wrap_key(data, impl):
    return jax.random.wrap_key_data(data, impl=impl)


def text_of(lowered, dialect="stablehlo"):
    """Returns the text of a lowered function with the places of its ops, without the folders of source files."""
    try:
        text = lowered.as_text(dialect=dialect, debug_info=True)
    except TypeError:  # before 0.4.36
        if dialect == "hlo":
            text = lowered.as_text(dialect="hlo")
        else:
            text = lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=True)
    if dialect == "hlo":
        return re.sub(r'^(\d+ ")[^"\n]*/', r"\1", text, flags=re.MULTILINE)
    return re.sub(r'\("[^"\n]*/([^"/\n]+)":(\d+)', r'("\1":\2', text)


_OWN = os.path.dirname(os.path.abspath(__file__))


def place_of(equation):
    """Returns the user's source line of an equation of a jaxpr as "file.py:12", or ""."""
    from jax._src import source_info_util as private

    for given in (equation.source_info, getattr(equation.source_info, "traceback", None)):
        try:
            for frame in private.user_frames(given):
                if not os.path.abspath(frame.file_name).startswith(_OWN):
                    return f"{os.path.basename(frame.file_name)}:{frame.start_line}"
            return ""
        except (AttributeError, TypeError):  # private: versions take one or the other
            continue
    return ""


def bound(primitive, params, values):
    """Returns the results of a primitive as a list."""
    given = primitive.get_bind_params(params)
    functions, params = given if isinstance(given, tuple) else ((), given)
    out = primitive.bind(*functions, *values, **params)
    return list(out) if primitive.multiple_results else [out]


@contextlib.contextmanager
def _exchanged(owner, name, change):
    original = getattr(owner, name)
    setattr(owner, name, change(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def vjp_of(change):
    """While it lasts, grad and value_and_grad call change(vjp), also those that were made before. None where they call
    something else, as in older versions."""
    from jax._src import api

    return None if hasattr(api, "_vjp") else _exchanged(api, "vjp", change)


@contextlib.contextmanager
def custom_rules(change):
    """While it lasts, functions with derivative rules of their own are called through change(the call)."""
    with _exchanged(jax.custom_vjp, "__call__", change), _exchanged(jax.custom_jvp, "__call__", change):
        yield


def with_x64():
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64

    return enable_x64()


def quickly(function, *arguments):
    """Compiles a function that runs a few times only: with little optimisation of its machine code, where that can be
    asked for. Which operations XLA joins does not depend on it."""
    lowered = jax.jit(function).lower(*arguments)
    if jax.default_backend() == "cpu":
        try:
            return lowered.compile(compiler_options={"xla_backend_optimization_level": 0})
        except Exception:  # versions that do not know the option
            pass
    return lowered.compile()


def inner_jaxpr(jaxpr):
    """Returns (jaxpr, constants) of a closed or an open jaxpr."""
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "consts") else (jaxpr, [])


def wide_jaxpr(jaxpr):
    """Returns a jaxpr, closed or open as it was, for numbers of float64 where it takes numbers."""
    from jax._src.core import eval_jaxpr

    inner, constants = inner_jaxpr(jaxpr)
    given = [
        jax.ShapeDtypeStruct(v.aval.shape, "float64" if jax.numpy.issubdtype(v.aval.dtype, np.floating) else v.aval.dtype)
        for v in inner.invars
    ]
    closed = jax.make_jaxpr(lambda *a: eval_jaxpr(inner, constants, *a))(*given)
    return closed if hasattr(jaxpr, "consts") else closed.jaxpr


def scan_counts(params):
    """Returns how many of a scan's inputs are constants and how many are carried."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].unpack()  # since 0.11
    return len(constants), len(carried)


def sharding_of(value):
    """Returns a NamedSharding or other sharding of several devices, or None."""
    devices = getattr(value, "device_set", None)
    return value if devices is not None and len(devices) > 1 else None


def loaded():
    """Returns "jax 0.10.2, jaxlib 0.10.2"."""
    lib = sys.modules.get("jaxlib")
    return f"jax {jax.__version__}, jaxlib {getattr(getattr(lib, 'version', lib), '__version__', '')}"
