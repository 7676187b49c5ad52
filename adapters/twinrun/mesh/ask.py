"""Which mechanism makes a sharded step mean something else: what the program finds between its text and that of the same
step on one device (harness/sharding/repair.h).

found, reading, with_loss = causes(results, results.kinds(results.sharded))    # [{"cause": "clipping", "line": "train.py:41", ..}]
write(results, reading, with_loss, folder)                                       # sharded.mlir and whole.mlir
"""

import math

import jax.numpy as jnp
import numpy as np

from ..mechanisms import between
from ..xla.files import binding_of, write_rows
from .flat import evaluate, flatten
from .trace import plain

_LOSS = "the_reported_loss"


def causes(results, kinds):
    """Returns (causes, reading, with_loss) of the reading that needs the fewest causes; (None, 0, False) if none does.

    They explain the loss as well (with_loss), or else the state alone."""
    apart = {kind for kind, distance in kinds.items() if distance > results.threshold}
    for with_loss in ([True] if "loss" in apart else []) + ([False] if apart - {"loss"} else []):
        best = None, 0
        for reading in range(results.readings.count() if results.small else 1):
            found = between(lambda folder, reading=reading, too=with_loss: write(results, reading, too, folder))
            if found and (best[0] is None or len(found) < len(best[0])):
                best = found, reading
            if best[0] and len(best[0]) == 1:
                break
        if best[0]:
            return *best, with_loss
    return None, 0, False


def write(results, reading, with_loss, folder):
    """Writes the step as it is, and on one device: by its own code where that runs there, else by the user's.

    with_loss: the loss, which the program does not judge, as a variable of the state, which it judges."""
    form = results.form
    one = form if results.small else results.given[0]
    flat = _on_one_device(results, reading) if results.small else one.flat
    with_loss = with_loss and form.loss is not None and one.loss is not None
    for name, function, own, leaves in (
        ("sharded", form.flat, form, results.leaves), ("whole", flat, one, [plain(x) for x in results.leaves])
    ):  # fmt: skip
        binding = binding_of(own, leaves)
        if (loss := _loss(results) if own is form else own.loss) is not None:
            binding["loss"] = loss
        if with_loss:
            function, leaves, binding = _and_loss(function, leaves, binding, len(form.next), len(own.result_names))
        write_rows(function, [leaves], binding, f"{folder}/{name}", as_f32=True)


def _loss(results):
    """Returns the place of the loss among the results: a number, or one of each device."""
    s, state = results.s, {n for n in results.form.next if n is not None}
    shapes = ((), (math.prod(results.sizes.values()),))
    floats = [i for i, o in enumerate(s.outputs) if i not in state and jnp.issubdtype(s.avals[o].dtype, jnp.floating)]
    known = results.form.loss
    return known if known is not None else next((i for i in floats if s.avals[s.outputs[i]].shape in shapes), None)


def _and_loss(function, leaves, binding, count, results):
    """Returns a step that keeps its loss as the last variable of its state."""

    def and_loss(*given):
        out = list(function(*given[:count], *given[count + 1 :]))
        return [*out, out[binding["loss"]]]

    kept = {"state": [*binding["state"], _LOSS], "roles": [*binding["roles"], "slot"],
            "results": [*binding.get("results", range(count)), results]}  # fmt: skip
    return and_loss, [*leaves[:count], np.zeros((), np.float32), *leaves[count:]], {**binding, **kept}


def _on_one_device(results, reading):
    """Returns the step's code on one device, with a reading of its numbers, on the sharded step's leaves."""
    program, instead = flatten(results.small.closed, wide=False), results.readings.instead(reading)
    shapes, loss = [results.s.avals[o].shape for o in results.s.outputs], _loss(results)

    def function(*leaves):
        values = evaluate(program, results.small.arguments([jnp.asarray(x) for x in leaves]), instead=instead)
        out = [values[o] for o in program.outputs]
        for i, (x, shape) in enumerate(zip(out, shapes)):
            if i == loss and x.size == 1:
                out[i] = jnp.reshape(x, ())
            elif x.shape != shape and x.shape[:1] == (1,):
                out[i] = jnp.broadcast_to(x, shape)
        return out

    return function
