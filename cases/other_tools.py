"""What other tools say of the first step of a case: other_tools.py SCRIPT, run by the case's own
Python. Prints one JSON object.

JAX: the step that the script gives to twinrun.diagnose, compiled, against the same step under
jax.disable_jit. PyTorch: the gradients at the first optimizer step of the script's function
main(dtype), in float32 against float64; a script without one is left out.
"""

import inspect
import json
import runpy
import sys
import types

import numpy as np


class Done(BaseException):
    """Ends a script when its first step is known."""


def compared(found, due):
    """Returns whether plain comparisons hold, and the largest difference relative to each array's largest element."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(found, due)]
    pairs = [(a, b) for a, b in pairs if a.dtype.kind in "fiu"]
    largest = max(float(np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-30)) for a, b in pairs)
    said = {
        f"allclose {t:.0e}".replace("e-0", "e-"): all(np.allclose(a, b, rtol=t, atol=t) for a, b in pairs)
        for t in (1e-3, 1e-5)
    }
    return {**said, "largest": largest}


def of_jax(script):
    import jax

    given = {}

    def diagnose(step, state, batches, **others):
        given.update(step=step, state=state, batch=list(batches)[0])
        raise Done

    sys.modules["twinrun"] = types.SimpleNamespace(diagnose=diagnose)
    try:
        runpy.run_path(script, run_name="__main__")
    except Done:
        pass
    if not given:
        return {"left out": "the script does not call twinrun.diagnose(step, state, batches)"}

    def run(step):
        copied = jax.tree_util.tree_map(
            lambda x: x.copy() if hasattr(x, "copy") else x, (given["state"], given["batch"])
        )
        words = [p for thing in copied for p in (thing if isinstance(thing, tuple) and fits < 0 else (thing,))]
        return [
            np.asarray(x).astype("f8")
            for x in jax.tree_util.tree_leaves(step(*words))
            if np.asarray(x).dtype.kind in "fiu"
        ]

    # diagnose takes the leading arguments as a tuple, too, unless the step has two arguments.
    fits = 0 if len(inspect.signature(given["step"]).parameters) == 2 else -1
    compiled = run(given["step"] if hasattr(given["step"], "lower") else jax.jit(given["step"]))
    with jax.disable_jit():
        plain = run(given["step"])
    return compared(compiled, plain)


def of_torch(script):
    import torch

    main = runpy.run_path(script, run_name="script").get("main")
    if main is None or "dtype" not in inspect.signature(main).parameters:
        return {"left out": "the script has no function main(dtype)"}
    found = {}

    def step(self, *words, **others):
        raise Done(
            [p.grad.detach().clone() for group in self.param_groups for p in group["params"] if p.grad is not None]
        )

    for kind in [torch.optim.Optimizer, *torch.optim.Optimizer.__subclasses__()]:
        kind.step = step
    for dtype in (torch.float32, torch.float64):
        try:
            main(dtype=dtype)
        except Done as end:
            (found[dtype],) = end.args
    single, double = found[torch.float32], found[torch.float64]
    said = compared([t.double().numpy() for t in single], [t.numpy() for t in double])
    close = getattr(torch.testing, "assert_close", None) or torch.testing.assert_allclose
    try:
        for a, b in zip(single, double):
            close(a, b.to(a.dtype))
        said["assert_close"] = True
    except AssertionError:
        said["assert_close"] = False
    return said


if __name__ == "__main__":
    text = open(sys.argv[1]).read()
    kind = of_jax if "import jax" in text else of_torch if "import torch" in text else None
    try:
        answer = kind(sys.argv[1]) if kind else {"left out": "neither JAX nor PyTorch"}
    except Exception as error:
        answer = {"left out": f"{type(error).__name__}: {error}"[:200]}
    print("\n" + json.dumps(answer))
