"""A step on a mesh as one-device functions: as its author wrote it, and as it is on a mesh of one device.

f = emulated(step)        # means the same as step; no collectives, no mesh: the reference can run it
g = whole(step)           # the same code with every axis of the mesh of size 1: the whole batch on one device
"""

import contextlib
import itertools
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np

from ..refused import Refused
from ..xla.arguments import explicit_types
from ..xla.compat import MESHES, inner_jaxpr
from .evaluate import CALLS, Evaluator, mesh_part
from .flat import flatten, row_axis, unread

CAPTION = "give the step on one device as whole="


def closed_jaxpr(function, *arguments):
    """Traces afresh: jit keeps traces that were made with another mesh."""
    jax.clear_caches()
    try:
        return jax.make_jaxpr(function, return_shape=True)(*arguments)
    finally:
        jax.clear_caches()


def emulated(step):
    """Returns a function of one device that means what the step on its mesh does."""

    def function(*arguments):
        closed, shapes = closed_jaxpr(step, *arguments)
        tree = jax.tree_util.tree_structure(shapes)
        results = Evaluator().jaxpr(closed.jaxpr, closed.consts, jax.tree_util.tree_leaves(arguments), ())
        return jax.tree_util.tree_unflatten(tree, results)

    return function


# ---- a mesh of one device --------------------------------------------------------------------


def meshes_of(closed):
    """Returns {axis: size} of all meshes whose axes the step's shard_map and pmap are over."""
    found, todo = {}, [inner_jaxpr(closed)[0]]
    while todo:
        for equation in todo.pop().eqns:
            if equation.primitive.name in MESHES:
                body, new, _, _ = mesh_part(equation)
                found.update(new)
                todo.append(body)
            else:
                for value in equation.params.values():
                    for each in value if isinstance(value, (tuple, list)) else (value,):
                        if hasattr(each, "eqns") or hasattr(each, "consts"):
                            todo.append(inner_jaxpr(each)[0])
    return found


def _smaller(mesh, axes):
    """Returns a mesh with `axes` of size 1 and the others as they are."""
    shape = tuple(1 if n in axes else size for n, size in mesh.shape.items())
    devices = getattr(mesh, "_flat_devices_tuple", None)
    if devices is None:
        devices = tuple(jax.devices())
    flat = np.empty(math.prod(shape), dtype=object)
    flat[:] = list(devices)[: flat.size]
    return jax.sharding.Mesh(flat.reshape(shape), mesh.axis_names)


def _is_jax(frame):
    """Returns whether code asks that is not the user's."""
    return frame.f_globals.get("__name__", "").split(".")[0] in ("jax", "jaxlib", __name__.split(".")[0])


@contextlib.contextmanager
def smaller_meshes(axes, sizes):
    """While this holds, shard_map is over a mesh with `axes` of size 1, and the user's code counts as many devices."""
    try:
        from jax._src.shard_map import shard_map_p
    except ImportError:
        from jax.experimental.shard_map import shard_map_p
    Mesh = jax.sharding.Mesh
    bind = shard_map_p.bind
    # Axes of the type Explicit would have to be those of the arguments.
    typed = next((c for c in Mesh.__mro__ if "_name_to_type" in c.__dict__), None)
    types = typed.__dict__["_name_to_type"] if typed is not None else None
    kept = {name: Mesh.__dict__.get(name) for name in ("shape", "size", "devices") if name in Mesh.__dict__}
    counts = {name: getattr(jax, name) for name in ("device_count", "local_device_count", "devices", "local_devices")}

    def bound(*arguments, **params):
        return bind(*arguments, **{**params, "mesh": _smaller(params["mesh"], axes)})

    def getter(name, old):
        read = old.fget if isinstance(old, property) else (lambda mesh: old.__get__(mesh, Mesh))

        def value(mesh):
            # functools.cached_property and the like are read through their own code
            if _is_jax(sys._getframe(1)):
                return read(mesh)
            small = _smaller(mesh, axes)
            return read(small)

        return property(value)

    left = max(1, math.prod(sizes.values()) // math.prod(sizes[a] for a in axes))
    shard_map_p.bind = bound
    try:
        if typed is not None:
            automatic = jax.sharding.AxisType.Auto
            typed._name_to_type = property(
                lambda mesh: (
                    dict.fromkeys(mesh.axis_names, automatic)
                    if isinstance(mesh, Mesh)
                    else dict(zip(mesh.axis_names, mesh.axis_types))
                )
            )
        for name, old in kept.items():
            setattr(Mesh, name, getter(name, old))
        for name, old in counts.items():
            if name.endswith("count"):
                setattr(jax, name, lambda *a, **k: left)
            else:
                setattr(jax, name, lambda *a, _old=old, **k: _old(*a, **k)[:left])
        yield
    finally:
        del shard_map_p.bind
        if typed is not None:
            typed._name_to_type = types
        for name, old in kept.items():
            setattr(Mesh, name, old)
        for name, old in counts.items():
            setattr(jax, name, old)


class Whole:
    """The step on a mesh of one device.

    closed: its jaxpr. arguments(leaves): its arguments from the step's own; rules: what each leaf becomes: "same",
    "first" (replicas, of which one is left) or the axis of the rows, in which those of all devices become those of one.
    axes: those of size 1; kept: those that could not be made so, and why.
    """

    def __init__(self, closed, rules, axes, kept, why):
        self.closed, self.rules, self.axes, self.kept, self.why = closed, rules, axes, kept, why

    def arguments(self, leaves):
        return [apply(rule, x) for rule, x in zip(self.rules, leaves)]


def plain(x):
    """Returns an array that lies on no mesh."""
    return np.asarray(x) if any("Explicit" in str(t) for t in explicit_types(x)) else x


def apply(rule, x):
    if rule == "first":
        return x[:1]
    if isinstance(rule, int):
        x = jnp.moveaxis(jnp.asarray(x), 0, rule - 1)
        return jnp.reshape(x, (1,) + x.shape[: rule - 1] + (x.shape[rule - 1] * x.shape[rule],) + x.shape[rule + 1 :])
    return x


def _is_key_data(x):
    return not jnp.issubdtype(x.dtype, np.number) or (x.dtype == np.uint32 and x.ndim == 2 and x.shape[1] in (2, 4))


def _per_device(closed, leaves, states, large):
    """Returns rules for the leaves that have a row for each device, or None if one holds different state on each."""
    rows = {}
    uses = _uses(inner_jaxpr(closed)[0], list(range(len(leaves))))
    for i, x in enumerate(leaves):
        if uses.get(i) != {True}:
            rows[i] = "same"
        elif i < states or x.ndim < 2 or _is_key_data(x):
            x = np.asarray(jax.random.key_data(x)) if not isinstance(x.dtype, np.dtype) else np.asarray(x)
            equal = (x == x[:1]) | (x != x)
            if i < states and not bool(equal.all()) and jnp.issubdtype(x.dtype, jnp.floating):
                return None, i
            rows[i] = "first"
        else:
            rows[i] = 1 + row_axis(large, large.inputs[i], x.ndim)
    return [rows[i] for i in range(len(leaves))], None


def _uses(jaxpr, numbers):
    """Returns {number of a leaf: whether each shard_map or pmap that takes it gives each device one row of it}."""
    at = dict(zip(jaxpr.invars, numbers))
    found = {}
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        here = [(j, at[v]) for j, v in enumerate(equation.invars) if not hasattr(v, "val") and v in at]
        if not here:
            continue
        if name == "random_wrap":  # a typed key, which is a leaf as its numbers
            at[equation.outvars[0]] = here[0][1]
        elif name == "xla_pmap":
            for j, i in here:
                found.setdefault(i, set()).add(equation.params["in_axes"][j] is not None)
        elif name == "shard_map":
            body, new, specs, _ = mesh_part(equation)
            for j, i in here:
                rows = math.prod(dict(new)[n] for n in specs[j].get(0, ()))
                shape = equation.invars[j].aval.shape
                found.setdefault(i, set()).add(bool(shape) and rows > 1 and shape[0] == rows)
        elif name in CALLS:
            for key in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call"):
                if key in equation.params:
                    body = inner_jaxpr(equation.params[key])[0]
                    numbers = [None] * len(equation.invars)
                    for j, i in here:
                        numbers[j] = i
                    for i, uses in _uses(body, numbers).items():
                        if i is not None:
                            found.setdefault(i, set()).update(uses)
                    break
    return found


def whole_of(flat_step, leaves, states, closed):
    """Returns a Whole of a step on flat leaves, of which the first `states` are state; raises Refused."""
    sizes = {n: s for n, s in meshes_of(closed).items()}
    if not sizes:
        return Whole(closed, ["same"] * len(leaves), (), {}, "")
    large = flatten(closed)
    mapped = _pmapped(inner_jaxpr(closed)[0])
    rows, different = _per_device(closed, leaves, states, large)
    met = []
    names = list(sizes)
    for count in range(len(names), 0, -1):
        for axes in itertools.combinations(names, count):
            for rules in ([["same"] * len(leaves)] if not mapped else []) + ([rows] if rows else []):
                if rules is rows and rows.count("same") == len(rows):
                    continue
                try:
                    with smaller_meshes(axes, sizes):
                        small, _ = closed_jaxpr(flat_step, *[apply(r, plain(x)) for r, x in zip(rules, leaves)])
                except Exception as error:  # whatever the user's code raises on other shapes
                    met.append(f"{', '.join(axes)}: {type(error).__name__}: {str(error).strip().splitlines()[0][:160]}")
                    continue
                left = unread(flatten(small), large)
                if left:
                    met.append(f"{', '.join(axes)}: {left}")
                    continue
                kept = {n: sizes[n] for n in names if n not in axes}
                return Whole(small, rules, axes, kept, "; ".join(met))
    if different is not None:
        met.append("the devices hold different state")
    raise Refused(f"the step cannot be traced on one device ({'; '.join(dict.fromkeys(met))}); {CAPTION}")


def _pmapped(jaxpr):
    return any(
        e.primitive.name == "xla_pmap" or (e.primitive.name in CALLS and any(
            _pmapped(inner_jaxpr(v)[0]) for v in e.params.values() if hasattr(v, "eqns") or hasattr(v, "consts")))
        for e in jaxpr.eqns
    )  # fmt: skip


def whole(step, state_arguments=1):
    """Returns the step on one device as a function of the step's own arguments and results."""

    def function(*arguments):
        leaves, tree = jax.tree_util.tree_flatten(arguments)
        states = len(jax.tree_util.tree_leaves(arguments[:state_arguments]))

        def flat(*given):
            return step(*jax.tree_util.tree_unflatten(tree, given))

        closed, shapes = closed_jaxpr(flat, *leaves)
        small = whole_of(flat, leaves, states, closed)
        results = Evaluator().jaxpr(small.closed.jaxpr, small.closed.consts, small.arguments(leaves), ())
        wanted, out = jax.tree_util.tree_flatten(shapes)
        return jax.tree_util.tree_unflatten(
            out, [jnp.broadcast_to(x, w.shape) if x.shape[:1] == (1,) else x for x, w in zip(results, wanted)]
        )

    return function
