"""Writes the equations that go wrong as a script of its own, in plain JAX, for a bug report.

    path = write(fragment, arguments, impls, right, folder, ...)      # folder/repro.py
    python repro.py          # prints the wrong and the right numbers; exit status 1 while the bug is there, else 0
"""

import base64
import enum
import zlib
from pathlib import Path

import jax
import numpy as np

from .compat import loaded, sharding_of

_LARGEST_INLINE = 1 << 16  # bytes of all arguments that are written into the script


class Unwritable(Exception):
    """A parameter has no source text."""


def source_of(value):
    """Returns Python source for a parameter of a primitive."""
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if np.isfinite(value) else f"float('{value}')"
    if isinstance(value, enum.Enum) and hasattr(jax.lax, type(value).__name__):
        return f"lax.{type(value).__name__}.{value.name}"
    if isinstance(value, (np.dtype, type)) and not hasattr(value, "_fields"):
        return f"np.dtype('{np.dtype(value).name}')" if np.dtype(value).kind != "V" else f"jnp.{np.dtype(value).name}"
    if isinstance(value, (np.integer, np.bool_)):
        return repr(value.item())
    if isinstance(value, (np.generic, np.ndarray)) and value.size <= 64:
        if value.dtype.kind == "V":
            return f"jnp.array({value.astype('float32').tolist()!r}, '{value.dtype.name}')"
        inner = repr(value.tolist()).replace("nan", "float('nan')").replace("inf", "float('inf')")
        return f"np.array({inner}, '{value.dtype.name}')"
    if type(value) is tuple or type(value) is list:
        inner = ", ".join(source_of(v) for v in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(value) == 1 else f"({inner})"
    name = type(value).__name__
    if hasattr(jax.lax, name):
        fields = getattr(value, "_fields", None) or getattr(type(value), "__dataclass_fields__", None)
        if fields:
            return f"lax.{name}({', '.join(f'{f}={source_of(getattr(value, f))}' for f in fields)})"
    raise Unwritable(f"{name}")


def _primitive(e):
    if e.name == "add_any":  # what reverse mode adds gradients by
        return "lax.add_p"
    wanted = e.name.replace("-", "_") + "_p"
    if getattr(jax.lax, wanted, None) is e.primitive:
        return f"lax.{wanted}"
    raise Unwritable(e.name)


# Primitives whose parameters hold functions: the function of jax.lax that makes them.
_CALLS = {
    "scatter": "lax.scatter", "scatter-add": "lax.scatter_add", "scatter_add": "lax.scatter_add",
    "scatter-mul": "lax.scatter_mul", "scatter_mul": "lax.scatter_mul",
}  # fmt: skip


def _line(e, names):
    given = [names[i] if not isinstance(i, tuple) else source_of(np.asarray(i[1])) for i in e.inputs]
    made = ", ".join(names[o] for o in e.outputs)
    if e.name == "sharding_constraint":
        return f"{made} = constrained({given[0]}, {_spec(e.params['sharding'])})"
    if e.name in _CALLS:
        keep = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
        words = [f"{k}={source_of(e.params[k])}" for k in keep if k in e.params]
        return f"{made} = {_CALLS[e.name]}({', '.join(given + words)})"
    words = [f"{k}={source_of(v)}" for k, v in e.params.items()]
    return f"{made} = {_primitive(e)}.bind({', '.join(given + words)})"


def _names(program):
    names = {}
    for i, n in enumerate(program.inputs):
        names[n] = f"x{i}"
    for e in program.equations:
        for o in e.outputs:
            names[o] = f"v{len(names) - len(program.inputs)}"
    return names


def _body(program):
    names = _names(program)
    lines = [
        _line(e, names) + (f"  # {e.place}" if e.place else "") for e in program.equations
    ]
    results = [names[o] for o in program.outputs]
    return (
        f"def fragment({', '.join(names[i] for i in program.inputs)}):\n    "
        + "\n    ".join(lines)
        + f"\n    return [{', '.join(results)}]\n"
    )


def _spec(sharding):
    if not (hasattr(sharding, "mesh") and hasattr(sharding, "spec")):
        raise Unwritable("a sharding without a mesh")
    return f"PartitionSpec({', '.join(source_of(p) for p in sharding.spec)})"


def _placing(arguments, equations):
    """Returns source that spreads the arguments, and what a constraint names, over devices as they were, or ""."""
    shardings = [sharding_of(getattr(a, "sharding", None)) for a in arguments]
    named = [s for s in shardings if s is not None]
    named += [e.params["sharding"] for e in equations if e.name == "sharding_constraint"]
    if not named:
        return ""
    specs = [_spec(s) if s is not None else "PartitionSpec()" for s in shardings]
    shapes = {(tuple(s.mesh.shape.values()), tuple(s.mesh.axis_names)) for s in named if _spec(s)}
    if len(shapes) > 1:
        raise Unwritable("several meshes")
    shape, names = shapes.pop()
    lines = [
        "from jax.sharding import Mesh, NamedSharding, PartitionSpec",
        f"mesh = Mesh(np.array(jax.devices()).reshape({source_of(shape)}), {source_of(names)})",
        f"specs = [{', '.join(specs)}]",
        "placed = [jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(arguments, specs)]",
        "together = True\n\n",
        "def constrained(x, spec):  # equation by equation, everything stays on one device",
        "    return lax.with_sharding_constraint(x, NamedSharding(mesh, spec)) if together else x\n\n",
    ]
    return "\n".join(lines)


_SCRIPT = '''# {title}
# Seen with {versions} on {platform}. Plain JAX; exit status 1 while the results differ, else 0.
import os
import sys
{flags}
import jax
import jax.numpy as jnp  # noqa: F401
import numpy as np
from jax import lax  # noqa: F401

{data}

{placing}{fragment}
wrong = {wrong}
{one_by_one}right = {right}
different = 0
for i, (w, r) in enumerate(zip(wrong, right)):
    w, r = np.asarray(w), np.asarray(r)
    wide = lambda a: a.astype("complex128" if a.dtype.kind == "c" else "float64")
    with np.errstate(invalid="ignore"):
        apart = np.abs(wide(w) - wide(r))
    same = (w == r) | (np.isnan(wide(w)) & np.isnan(wide(r)))
    size = np.max(np.abs(wide(r)), initial=1e-30, where=np.isfinite(wide(r)))
    # What the results differ by is compared with their size: {why}.
    outside = ~same & ~(apart <= {allowed} * size)
    different += int(outside.sum())
    print(f"result {{i}}: {{int(outside.sum())}} of {{outside.size}} elements differ")
    for at in list(zip(*np.nonzero(outside)))[:4]:
        print("  element", [int(d) for d in at], "compiled together:", w[at], " one by one:", r[at])
sys.exit(1 if different else 0)
'''


def _encoded(arguments, folder):
    arrays = [np.asarray(a) for a in arguments]
    if sum(a.nbytes for a in arrays) > _LARGEST_INLINE:
        np.savez(Path(folder) / "repro.npz", *[a.view("uint16") if a.dtype.kind == "V" else a for a in arrays])
        load = 'with np.load(os.path.join(os.path.dirname(os.path.abspath(__file__)), "repro.npz")) as file:\n'
        load += "    raw = [file[f'arr_{i}'] for i in range(len(file.files))]\n"
        kinds = [a.dtype.name for a in arrays]
        load += f"arguments = [jnp.asarray(a.view(jnp.dtype(k))) for a, k in zip(raw, {kinds!r})]"
        return load
    lines = []
    for a in arrays:
        text = base64.b85encode(zlib.compress(a.tobytes(), 9)).decode()
        lines.append(f"    (\"{a.dtype.name}\", {tuple(a.shape)!r}, {text!r}),")
    return (
        "import base64\nimport zlib\n\nARRAYS = [  # type, shape, bytes\n" + "\n".join(lines) + "\n]\n"
        "arguments = [\n    jnp.asarray(np.frombuffer(zlib.decompress(base64.b85decode(t)), jnp.dtype(k)).reshape(s)) "
        "for k, s, t in ARRAYS\n]"
    )


def write(fragment, arguments, impls, right, folder, title, unit, length):
    """Writes repro.py; returns its path, or None if neither source nor an exported module can be written.

    unit, length: the roundoff of the results' type, and how many terms their sums have at most."""
    folder, path = Path(folder), Path(folder) / "repro.py"
    equations = list(fragment.program.everything())
    try:
        placing = _placing(arguments, equations)
    except Unwritable:
        return None
    flags, several = "", bool(placing)
    if several and jax.default_backend() == "cpu":
        flags = ('os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + '
                 f'" --xla_force_host_platform_device_count={len(jax.devices())}"')  # fmt: skip
    allowed = 4 * unit * max(length, 1)
    words = dict(
        title=title, versions=loaded(), platform=jax.devices()[0].device_kind, flags=flags, placing=placing,
        one_by_one="together = False\n" if placing else "",
        allowed=repr(allowed), why=f"sums of {length} terms in two orders are apart by at most that",
        data=_encoded(arguments, folder),
    )  # fmt: skip
    given = "placed" if placing else "arguments"
    try:
        if impls:
            raise Unwritable("typed keys")
        words["fragment"] = _body(fragment.program)
        words["wrong"] = f"jax.jit(fragment)(*{given})"
        words["right"] = "fragment(*arguments)  # equation by equation"
    except Unwritable:
        if not hasattr(jax, "export") or several:
            return None
        exported = jax.export.export(jax.jit(fragment.function(impls)))(*[
            jax.ShapeDtypeStruct(np.shape(a), a.dtype) for a in arguments
        ])  # fmt: skip
        try:
            (folder / "repro.jax_export").write_bytes(exported.serialize())
        except ImportError:  # JAX needs flatbuffers for it
            return None
        np.savez(folder / "repro.right.npz", *[np.asarray(r, _npz_type(r)) for r in right])
        words["fragment"] = (
            'here = os.path.dirname(os.path.abspath(__file__))\n'
            'with open(os.path.join(here, "repro.jax_export"), "rb") as file:\n'
            "    fragment = jax.export.deserialize(bytearray(file.read())).call\n"
            "# What the same operations give one by one.\n"
            'with np.load(os.path.join(here, "repro.right.npz")) as file:\n'
            '    known = [file[f"arr_{i}"] for i in range(len(file.files))]'
        )
        words["wrong"], words["right"] = "jax.jit(fragment)(*arguments)", "known"
        words["flags"] += "\nimport jax.export"
    path.write_text(_SCRIPT.format(**words))
    return path


def _npz_type(a):
    a = np.asarray(a)
    return "float32" if a.dtype.kind == "V" else a.dtype
