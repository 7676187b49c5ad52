"""The proof: results of a function on given arguments, held by the program twinrun against its evaluation in binary64.

    answer = judge(program, arguments, results, folder, "group")
    answer.outside, answer.refused, answer.worst
"""

import json
import struct
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ..command import program as binary
from ..refused import Refused
from ..trace_report import printed, rows
from .arguments import shape_of
from .compat import is_key, key_data, key_impl, text_of, wrap_key
from .equations import run

_TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64",
    "uint32": "I32",  # its bits are those of the program's i32
    "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def write_safetensors(path, arrays):
    """Writes arrays by name; returns how many bytes they have."""
    header, at = {}, 0
    arrays = {n: np.ascontiguousarray(a).reshape(np.shape(a)) for n, a in arrays.items()}
    for name, a in arrays.items():
        header[name] = {"dtype": _TYPES[a.dtype.name], "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for a in arrays.values():
            file.write(a.tobytes())
    return at


class Answer:
    """results: what the program says of each; refused: why it says nothing, or ""; outside: how many elements, by proven
    radii; unlikely: how many outside of likely values, which proves nothing; files: what `twinrun bundle` judges again, as the
    environment of a report names it."""

    def __init__(self, data, labels=(), files=None):
        self.data, self.labels, self.files = data, list(labels), files or {}
        self.refused, self.results = data.get("refused") or "", data.get("results") or []
        for r in self.results:  # infinities and NaN come as words
            r.update((k, float(r[k])) for k in ("largest_ratio", "median_relative_radius") if isinstance(r.get(k), str))
        self.notes = data.get("notes") or []

    @property
    def outside(self):
        return sum(r["outside"] for r in self.results if not r.get("likely"))

    @property
    def unlikely(self):
        return sum(r["outside"] for r in self.results if r.get("likely"))

    @property
    def elements(self):
        return sum(r["elements"] for r in self.results)

    @property
    def wrong(self):
        """Yields (label, result) of results with elements outside their radius."""
        for r in self.results:
            if r["outside"] and not r.get("likely"):
                i = r["index"]
                yield (self.labels[i] if i < len(self.labels) else f"result {i}"), r

    def sentence(self):
        """Returns what is outside as text: "112 of 128 elements of new h are outside: [0, 2, 0] is 1.5, expected 2.5"."""
        parts = []
        for label, r in self.wrong:
            text = f"{r['outside']} of {r['elements']} elements of {label} are outside their bound"
            worst = r.get("worst")
            if worst:
                text += f": element {worst['index']} is {_number(worst['found'])}, expected {_number(worst['expected'])}"
                if worst["expected"] == worst["expected"]:
                    text += f" ± {_number(worst['radius'])}"
            parts.append(text)
        return "; ".join(parts)


def _number(x):
    return f"{x:.6g}" if isinstance(x, (int, float)) else str(x)


def products():
    """Returns how products may round on the devices of this process: a word of `twinrun diagnose --precision`."""
    # By default JAX multiplies in bfloat16 on a TPU and in TF32 on a GPU.
    asked = str(getattr(jax.config, "jax_default_matmul_precision", None) or "default").lower()
    full = asked in ("highest", "float32", "f32_f32_f32")
    if jax.default_backend() == "cpu":
        return "f32"
    if jax.default_backend() in ("gpu", "cuda", "rocm"):
        return "f32" if full else "tf32"
    return "highest" if full else {"high": "high", "tensorfloat32": "high"}.get(asked, "default")


def write_values(path, arguments, results):
    """Writes what `twinrun diagnose MODULE --values` reads; returns why it cannot be written, or ""."""
    named = {f"argument/{i}": _array(a) for i, a in enumerate(arguments)}
    named.update((f"result/{i}", np.asarray(r)) for i, r in enumerate(results))
    unknown = sorted({a.dtype.name for a in named.values() if a.dtype.name not in _TYPES})
    if unknown:
        return f"arrays of type {', '.join(unknown)}"
    write_safetensors(path, named)
    return ""


def judge(text, arguments, results, folder, stem, labels=(), timeout=120, following=()):
    """Judges results of the module `text` on arguments; keeps both files in the folder.

    following: of each argument the result that is its new value, or None; such results are held against their change."""
    folder = Path(folder)
    module, values = folder / f"{stem}.mlir", folder / f"{stem}.values.safetensors"
    module.write_text(text)
    refused = write_values(values, arguments, results)
    if refused:
        return Answer({"refused": refused}, labels)
    command = [binary(), "diagnose", str(module), "--values", str(values), "--json", "--precision", products()]
    files = {"module": module.name, "values": values.name, "precision": products()}
    if following:
        files["next"] = ",".join("-" if n is None else str(n) for n in following)
        command += ["--next", files["next"]]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=max(timeout, 1),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Answer({"refused": f"it was not judged within {timeout:.0f} s"}, labels)
    try:
        return Answer(_found(printed(done)), labels, files)
    except Refused as error:
        return Answer({"refused": str(error)}, labels)


def _found(report):
    """Returns the results of a report as Answer takes them."""
    results = rows(report, "results")
    for r in results:
        r["likely"] = r["likely"] == "yes"
        worst = {key: r.pop(key) for key in ("found", "expected", "radius")}
        index = r.pop("worst_at")
        r["worst"] = {"index": json.loads(index), **worst} if index else None
    return {"results": results, "notes": report["notes"], "undecided": report["numbers"]["undecided"]}


def text_of_function(function, arguments):
    """Returns the StableHLO text of a function on whole (unsharded) arguments."""
    return text_of(jax.jit(function, keep_unused=True).lower(*(shape_of(a) for a in arguments)))


def _array(a):
    """Returns an argument in the type in which JAX computes with it."""
    return np.asarray(a) if isinstance(a, jax.Array) else np.asarray(jnp.asarray(a))


class Fragment:
    """Some equations as a function of plain arrays: typed keys come and go as their data."""

    def __init__(self, program, equations):
        self.program = program.part(equations)
        self.equations = equations

    def prepare(self, operands):
        """Returns (arguments, impls) of operands as they are in the step."""
        impls = {i: key_impl(x) for i, x in enumerate(operands) if is_key(x)}
        return [key_data(x) if i in impls else x for i, x in enumerate(operands)], impls

    def function(self, impls, alone=True):
        def fragment(*arguments):
            given = [wrap_key(x, impls[i]) if i in impls else x for i, x in enumerate(arguments)]
            out = run(self.program, given, alone=alone)
            return [key_data(x) if is_key(x) else jnp.asarray(x) for x in out]

        return fragment

    @property
    def labels(self):
        made = {o: e for e in self.equations for o in e.outputs}
        return [str(made[o]) if o in made else "an operand" for o in self.program.outputs]
