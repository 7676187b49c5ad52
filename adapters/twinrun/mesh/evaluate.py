"""Evaluates the equations of a JAX step for all devices of its mesh on one device, as they are or in binary64.

    Evaluator().jaxpr(closed.jaxpr, closed.consts, arguments, ())           # under jit: a program without collectives
    with binary64():
        Evaluator(wide=True).jaxpr(closed.jaxpr, closed.consts, [widened(a) for a in arguments], ())

An ordinary equation is evaluated by vmap over the devices between which its inputs differ.
"""

import contextlib
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..refused import Refused
from ..xla.compat import MESHES, inner_jaxpr, is_key, scan_counts
from . import collectives
from .layout import joint, lead, lift, merge, names_by_dimension, split, spread, xp
from .plain import PLAIN

CALLS = {
    "pjit", "jit", "closed_call", "core_call", "core_closed_call", "xla_call", "remat", "remat2", "checkpoint",
    "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_vmap_call", "custom_partitioning",
    "named_call",
}  # fmt: skip
# Annotations: where a value lies, not what it is.
SAME = {
    "sharding_constraint", "mesh_cast", "reshard", "device_put", "copy", "copy_p", "name", "layout_constraint",
    "optimization_barrier", "shard_alike", "auto_axes", "explicit_axes",
}  # fmt: skip
NOTHING = {"debug_callback", "debug_print"}
# vmap would draw other numbers than each device does by itself.
ONE_BY_ONE = {"rng_bit_generator", "rng_uniform", "random_bits", "random_gamma"}


@contextlib.contextmanager
def binary64():
    """64-bit types on one CPU device."""
    if hasattr(jax, "enable_x64"):
        wide = jax.enable_x64(True)
    else:
        from jax.experimental import enable_x64

        wide = enable_x64()
    with wide, jax.default_device(jax.local_devices(backend="cpu")[0]), jax.default_matmul_precision("float32"):
        yield


def is_float(dtype):
    return not is_key_type(dtype) and jnp.issubdtype(dtype, jnp.floating)


def is_key_type(dtype):
    return not isinstance(dtype, np.dtype) and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def wide_type(dtype):
    if dtype is None or is_key_type(np.dtype(dtype) if isinstance(dtype, type) else dtype):
        return dtype
    if jnp.issubdtype(dtype, jnp.floating):
        return np.dtype("float64")
    return np.dtype("complex128") if jnp.issubdtype(dtype, jnp.complexfloating) else np.dtype(dtype)


def widened(x):
    """Returns a value on one device, its floats as binary64."""
    if is_key(x):
        return jax.random.wrap_key_data(np.asarray(jax.random.key_data(x)), impl=jax.random.key_impl(x))
    x = np.asarray(x)
    return x.astype(wide_type(x.dtype))


def inner_of(equation):
    """Returns (jaxpr, constants) of what an equation of CALLS calls."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call"):
        if key in equation.params:
            return inner_jaxpr(equation.params[key])
    raise Refused(f"{equation.primitive.name} without a body")


def mesh_part(equation):
    """Returns (jaxpr, new axes, specs of inputs, specs of outputs) of a shard_map or pmap."""
    p = equation.params
    if equation.primitive.name == "xla_pmap":
        new = ((p["axis_name"], p["axis_size"]),)
        return inner_jaxpr(p["call_jaxpr"])[0], new, p["in_axes"], p["out_axes"]
    mesh = p["mesh"]
    manual = p.get("newly_manual_axes", p.get("manual_axes"))
    if manual is None:
        manual = set(mesh.axis_names) - set(p.get("auto", ()))
    new = tuple((n, mesh.shape[n]) for n in mesh.axis_names if n in manual)
    ins, outs = p.get("in_specs", p.get("in_names")), p.get("out_specs", p.get("out_names"))
    return inner_jaxpr(p["jaxpr"])[0], new, [names_by_dimension(s) for s in ins], [names_by_dimension(s) for s in outs]


def enter(x, spec, k, new, mapped):
    """Returns a whole array as the devices of `new` hold it. mapped: pmap, whose specs are axes."""
    if not mapped:
        return split(x, spec, k, new)
    if spec is None:
        return xp(x).reshape(x, lead(x, k) + (1,) + np.shape(x)[k:])
    return xp(x).moveaxis(x, k + spec, k)


def leave(x, spec, k, new, mapped):
    if not mapped:
        return merge(x, spec, k, new)
    if spec is None:
        return x[(slice(None),) * k + (0,)]
    return xp(x).moveaxis(spread(x, k + 1, (*lead(x, k), new[0][1])), k, k + spec)


class Evaluator:
    def __init__(self, wide=False):
        self.wide = wide

    def constant(self, value, k):
        if self.wide:
            return lift(widened(value), k)
        return lift(value if is_key(value) else jnp.asarray(value), k)

    def literal(self, variable, k):
        value = np.asarray(variable.val, dtype=variable.aval.dtype)
        return self.constant(value, k)

    def jaxpr(self, jaxpr, constants, arguments, axes):
        k, env = len(axes), {}
        env.update(zip(jaxpr.constvars, [self.constant(c, k) for c in constants]))
        env.update(zip(jaxpr.invars, arguments))
        from jax._src import source_info_util as private

        def value(v):
            return self.literal(v, k) if hasattr(v, "val") else env[v]

        for equation in jaxpr.eqns:
            with contextlib.ExitStack() as stack:
                if not self.wide:  # so that ops keep the user's lines
                    stack.enter_context(private.user_context(equation.source_info.traceback))
                outputs = self.equation(equation, [value(v) for v in equation.invars], axes)
            env.update(zip(equation.outvars, outputs))
        return [value(v) for v in jaxpr.outvars]

    def equation(self, equation, inputs, axes):
        name, params = equation.primitive.name, equation.params
        if name in CALLS:
            body, constants = inner_of(equation)
            return self.jaxpr(body, constants, inputs, axes)
        if name in MESHES:
            body, new, ins, outs = mesh_part(equation)
            k, mapped = len(axes), name == "xla_pmap"
            inputs = [enter(x, s, k, new, mapped) for x, s in zip(inputs, ins)]
            results = self.jaxpr(body, (), inputs, axes + new)
            return [leave(x, s, k, new, mapped) for x, s in zip(results, outs)]
        if name in collectives.COLLECTIVES and axes:
            return collectives.COLLECTIVES[name](inputs, params, axes)
        if name in collectives.UNKNOWN:
            raise Refused(f"the collective {name}")
        if name in SAME:
            return inputs
        if name in NOTHING:
            return [None] * len(equation.outvars)
        if name in ("scan", "while", "cond"):
            return getattr(self, name + "_loop")(equation, inputs, axes)
        return self.ordinary(equation, inputs, axes)

    def ordinary(self, equation, inputs, axes):
        k, name = len(axes), equation.primitive.name
        if self.wide and name in PLAIN and not any(is_key(x) for x in inputs):
            with np.errstate(all="ignore"):
                outputs = PLAIN[name]([np.asarray(x) for x in inputs], equation.params, k)
            if outputs is not None:
                return [np.asarray(y) for y in outputs]
        outputs = self.by_vmap(equation, inputs, axes)
        return [y if not self.wide or is_key(y) else np.asarray(y) for y in outputs]

    def by_vmap(self, equation, inputs, axes):
        k, name = len(axes), equation.primitive.name

        def bind(*values):
            outputs = self.bind(equation, values)
            return outputs if equation.primitive.multiple_results else [outputs]

        dims = joint([lead(x, k) for x in inputs]) if inputs else (1,) * k
        count = math.prod(dims)
        if count == 1:
            return [lift(y, k) for y in bind(*[jnp.reshape(x, jnp.shape(x)[k:]) for x in inputs])]
        where, values = [], []
        for x in inputs:
            local = jnp.shape(x)[k:]
            same = math.prod(lead(x, k)) == 1
            where.append(None if same else 0)
            values.append(jnp.reshape(x if same else spread(x, k, dims), local if same else (count,) + local))
        if name in ONE_BY_ONE:
            rows = [bind(*[v if w is None else v[i] for v, w in zip(values, where)]) for i in range(count)]
            outputs = [jnp.stack(column) for column in zip(*rows)]
        else:
            outputs = jax.vmap(bind, where)(*values)
        return [jnp.reshape(y, dims + jnp.shape(y)[1:]) for y in outputs]

    def bind(self, equation, values):
        name, params = equation.primitive.name, equation.params
        for key in ("sharding", "out_sharding"):
            if params.get(key) is not None:
                params = {**params, key: None}
        if not self.wide:
            with _context(equation):
                return equation.primitive.bind(*values, **params)
        return _wide_bind(equation.primitive, name, params, values, equation)

    # ---- loops that are not unrolled ---------------------------------------------------------

    def _settled(self, step, carry, k):
        """Returns the carry with the leading dimensions that it has after any number of rounds."""
        while True:
            after = jax.eval_shape(step, carry)
            dims = [joint([lead(a, k), lead(b, k)]) for a, b in zip(carry, after)]
            if dims == [lead(a, k) for a in carry]:
                return carry
            carry = [spread(a, k, d) for a, d in zip(carry, dims)]

    def scan_loop(self, equation, inputs, axes):
        p, k = equation.params, len(axes)
        body, constants = inner_jaxpr(p["jaxpr"])
        nc, carries = scan_counts(p)
        given, carry, xs = inputs[:nc], inputs[nc : nc + carries], inputs[nc + carries :]
        xs = [jnp.moveaxis(x, k, 0) for x in xs]

        def step(carry, x):
            out = self.jaxpr(body, constants, [*given, *carry, *x], axes)
            return [_as(spread(y, k, lead(c, k)), c) for y, c in zip(out[:carries], carry)], out[carries:]

        first = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in xs]

        def grown(carry):
            return self.jaxpr(body, constants, [*given, *carry, *[jnp.zeros(f.shape, f.dtype) for f in first]], axes)

        if not any(is_key(x) for x in xs):
            carry = self._settled(lambda c: grown(c)[:carries], carry, k)
        else:
            carry = [spread(c, k, tuple(n for _, n in axes)) for c in carry]
        carry, ys = lax.scan(step, carry, xs, length=p["length"], reverse=p["reverse"])
        return [*carry, *[jnp.moveaxis(y, 0, k) for y in ys]]

    def while_loop(self, equation, inputs, axes):
        p, k = equation.params, len(axes)
        nc, nb = p["cond_nconsts"], p["body_nconsts"]
        cond, body = inner_jaxpr(p["cond_jaxpr"]), inner_jaxpr(p["body_jaxpr"])
        for_cond, for_body, carry = inputs[:nc], inputs[nc : nc + nb], inputs[nc + nb :]

        def going(carry):
            return self.jaxpr(cond[0], cond[1], [*for_cond, *carry], axes)[0]

        def step(carry):
            out = self.jaxpr(body[0], body[1], [*for_body, *carry], axes)
            go = going(carry)
            return [y if math.prod(go.shape) == 1 else _select(go, y, c, k) for y, c in zip(out, carry)]

        carry = self._settled(step, carry, k)
        return lax.while_loop(
            lambda c: jnp.any(going(c)),
            lambda c: [_as(spread(y, k, lead(o, k)), o) for y, o in zip(step(c), c)],
            carry,
        )

    def cond_loop(self, equation, inputs, axes):
        k, (index, *given) = len(axes), inputs
        bodies = [inner_jaxpr(b) for b in equation.params["branches"]]

        def branch(i):
            return lambda *x: self.jaxpr(bodies[i][0], bodies[i][1], list(x), axes)

        if math.prod(index.shape) == 1 and not isinstance(index, jax.core.Tracer):
            return branch(min(max(int(jnp.reshape(index, ())), 0), len(bodies) - 1))(*given)
        shapes = [jax.eval_shape(branch(i), *given) for i in range(len(bodies))]
        dims = [joint([lead(s[j], k) for s in shapes] + [lead(index, k)]) for j in range(len(shapes[0]))]
        if math.prod(index.shape) == 1:
            dims = [joint([lead(s[j], k) for s in shapes]) for j in range(len(shapes[0]))]

            def equal(i):
                return lambda *x: [spread(y, k, d) for y, d in zip(branch(i)(*x), dims)]

            return lax.switch(jnp.reshape(index, ()), [equal(i) for i in range(len(bodies))], *given)
        results = [[spread(y, k, d) for y, d in zip(branch(i)(*given), dims)] for i in range(len(bodies))]
        chosen = results[-1]
        for i in reversed(range(len(bodies) - 1)):
            here = index <= i if i == 0 else index == i
            chosen = [_select(here, a, b, k) for a, b in zip(results[i], chosen)]
        return chosen


def _select(condition, a, b, k):
    dims = joint([lead(condition, k), lead(a, k), lead(b, k)])
    a, b = spread(a, k, dims), spread(b, k, dims)
    shape = condition.shape[:k] + (1,) * (a.ndim - k)
    return jnp.where(jnp.reshape(condition, shape), a, b)


def _as(value, like):
    return value if value.dtype == like.dtype else value.astype(like.dtype)


def _context(equation):
    """Returns the setting on which the bits of random numbers depend."""
    partitionable = getattr(getattr(equation, "ctx", None), "threefry_partitionable", None)
    if partitionable is None or not equation.primitive.name.startswith(("random_", "threefry")):
        return contextlib.nullcontext()
    return jax.threefry_partitionable(partitionable)


def _has_body(params):
    return any(hasattr(v, "eqns") or hasattr(v, "consts") for v in params.values())


def _wide_bind(primitive, name, params, values, equation):
    for key in ("new_dtype", "dtype", "preferred_element_type", "accum_dtype"):
        if params.get(key) is not None:
            params = {**params, key: wide_type(params[key])}
    if name == "reduce_precision":
        return values[0]
    if name == "bitcast_convert_type":
        # The bits of a float are those of its own type.
        given, asked = equation.invars[0].aval.dtype, equation.params["new_dtype"]
        x = values[0].astype(given) if is_float(given) else values[0]
        y = lax.bitcast_convert_type(x, asked)
        return y.astype(np.float64) if is_float(asked) else y
    if name == "dot_general" and params.get("precision") is not None:
        params = {**params, "precision": None}
    if name.startswith("scatter") and "update_jaxpr" in params:
        return _scatter(name, params, values)
    if name in ("pure_callback", "io_callback"):
        raise Refused("a callback into Python inside of the step")
    if _has_body(params) and name not in ("reduce_window", "custom_linear_solve"):
        if name != "reduce":
            raise Refused(f"the primitive {name} in binary64")
        body, constants = inner_jaxpr(params["jaxpr"])
        half = len(values) // 2

        def combine(a, b):
            return tuple(Evaluator(True).jaxpr(body, constants, [*a, *b], ()))

        return list(lax.reduce(tuple(values[:half]), tuple(values[half:]), combine, params["dimensions"]))
    with _context(equation):
        return primitive.bind(*values, **params)


def _scatter(name, params, values):
    function = {
        "scatter": lax.scatter, "scatter-add": lax.scatter_add, "scatter-mul": lax.scatter_mul,
        "scatter-min": lax.scatter_min, "scatter-max": lax.scatter_max, "scatter_add": lax.scatter_add,
        "scatter_mul": lax.scatter_mul, "scatter_min": lax.scatter_min, "scatter_max": lax.scatter_max,
    }.get(name)  # fmt: skip
    if function is None:
        raise Refused(f"the primitive {name} in binary64")
    return function(
        *values,
        params["dimension_numbers"],
        indices_are_sorted=params["indices_are_sorted"],
        unique_indices=params["unique_indices"],
        mode=params["mode"],
    )
