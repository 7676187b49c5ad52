"""For outside_test.py, with a Python that has JAX: python jax_cases.py truth|diagnose PRECISION FOLDER [NAME...] prints a line of JSON
for each script of jax_functions.py. truth: how far its gradient is from central differences in float64. diagnose: what
twinrun.diagnose says.
"""
import json
import pathlib
import runpy
import sys

import jax_functions

TYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64"}
HEADER = """import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

S = jax.nn.sigmoid
AT = np.array([0, 3, 3, 1, 0, 3, 5, 2])
TYPE, SCALE = jnp.{type}, {scale}
random = np.random.default_rng(0)
SHAPES = {{"a": (12, 8), "b": (8, 8), "d": (12, 8), "e": (12, 8), "c": (8, 3), "k": (3, 3, 2, 8), "s": (8,), "table": (6, 8)}}
PARAMS = {{k: (random.normal(size=s) * 0.4 + (k == "s")).astype("{wide}") for k, s in SHAPES.items()}}
BATCH = (random.normal(size=(8, 12)).astype("{wide}"), random.normal(size=(8, 3)).astype("{wide}"))


"""
FOOTER = """


def scaled(w, batch):
    w, (x, y) = jax.tree_util.tree_map(lambda a: a.astype(TYPE), (w, batch))
    return loss_of(w, x, y).astype("{wide}") * SCALE


@jax.jit
def step(w, batch):
    loss, g = jax.value_and_grad(scaled)(w, batch)
    return jax.tree_util.tree_map(lambda p, q: p - 0.1 / SCALE * q, w, g), loss / SCALE
"""


def lines_of(body, result="return {}"):
    *steps, last = body.split("; ")
    return "".join(f"    {s}\n" for s in (*steps, result.format(last)))


def rule(name, arguments, forward, kept, backward):
    if kept is None:
        return (f"@jax.custom_jvp\ndef {name}({arguments}):\n{lines_of(forward)}\n\n@{name}.defjvp\ndef {name}_tangent(given, tangents):\n"
                f"    (x,), (t,) = given, tangents\n    return {name}(x), {backward}\n\n\n")
    return (f"@jax.custom_vjp\ndef {name}({arguments}):\n{lines_of(forward)}\n\ndef {name}_forward({arguments}):\n"
            + lines_of(forward, f"return {{}}, ({kept},)") + f"\n\ndef {name}_backward(kept, g):\n    {kept}, = "
             f"kept\n{lines_of(backward)}\n\n"
            f"{name}.defvjp({name}_forward, {name}_backward)\n\n\n")


def scripts():
    """(kind, name): text."""
    out = {}
    for name, host, arguments, call, forward, kept, right, mistakes in jax_functions.FUNCTIONS:
        for kind, more, backward in [("right", "", right), *(("wrong", "_" + k, v) for k, v in mistakes.items())]:
            loss = jax_functions.HOSTS[host].format(call=name + more + call)
            out[kind, name + more] = rule(name + more, arguments, forward, kept, backward) + f"def loss_of(w, x, y):\n{loss}"
    for kind, table in (("right", jax_functions.RIGHT), ("meant", jax_functions.MEANT)):
        for name, (before, loss) in table.items():
            out[kind, name] = f"{before}\n\ndef loss_of(w, x, y):\n{loss}"
    return out


def truth(names, np):
    """The largest difference of a slope of the loss from its gradient, for each array of the weights."""
    import jax
    w, worst = names["PARAMS"], 0.0
    g = jax.grad(names["scaled"])(w, names["BATCH"])
    g, random = {k: np.asarray(v) for k, v in g.items()}, np.random.default_rng(1)
    for k in w:
        for along in (g[k], random.choice([-1.0, 1.0], w[k].shape)):
            size = np.linalg.norm(along)
            if size == 0:
                continue
            up, down = (names["scaled"]({**w, k: w[k] + s * 1e-6 * along / size}, names["BATCH"]) for s in (1, -1))
            slope, expected = float(up - down) / 2e-6, float(np.sum(g[k] * along)) / size
            scale = max(np.linalg.norm(g[k]) * np.abs(along / size).max(), abs(slope), abs(expected), 1e-4 * max(map(np.linalg.norm,
             g.values())))
            worst = max(worst, abs(slope - expected) / scale)
    return worst


def main(what, precision, folder, *only):
    import jax
    if what == "truth":
        jax.config.update("jax_enable_x64", True)
    import numpy as np
    for (kind, name), text in scripts().items():
        # Of float16 no step of JAX is judged but for its gradient: right ones are INCONCLUSIVE.
        if only and name not in only or precision == "f16" and kind != "wrong":
            continue
        place = pathlib.Path(folder) / f"{name}.py"
        settings = {"type": TYPES[precision], "wide": "float64" if what == "truth" else "float32",
         "scale": 1024.0 if precision == "f16" else 1.0}
        header = HEADER.format(**settings)
        place.write_text(header + text + FOOTER.format(**settings))
        names = runpy.run_path(str(place), run_name="script")
        if what == "truth":
            print(json.dumps([kind, name, truth(names, np)]), flush=True)
            continue
        import twinrun
        report = twinrun.diagnose(names["step"], names["PARAMS"], [names["BATCH"]], out=folder + "/out", steps=1)
        lines = header.count("\n") + 1, header.count("\n") + text[:text.index("def loss_of")].count("\n")    # of the rule
        print(json.dumps([kind, name, report.verdict, str(report), lines]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
