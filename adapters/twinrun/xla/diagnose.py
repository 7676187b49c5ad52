"""`twinrun.diagnose` for JAX: a user's training step as XLA compiles it for the user's own devices.

report = twinrun.diagnose(train_step, state, batches, out="runs/mine")
report.verdict, report.path
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path

import jax
import numpy as np

from ..refused import Refused
from ..report import Report, forget, run_program, save
from . import derivative, files, update
from .arguments import find, flat_results
from .compat import MESHES, is_key, key_data, loaded, wrap_key, key_impl
from .culprit import Culprit, Hunt, Lost, spread_over
from .decided import Decided, first_not_finite, without_a_digit
from .equations import trace
from .judge import judge, products, text_of_function, write_values
from .noise import Instrument
from .outcome import outcome
from .singles import judge_singles, nans
from .stepwise import on_one_device, one_by_one, outputs

# Values of the step that are kept to judge each equation by itself.
_LARGEST_VALUES = 1 << 29
_TIME_FOR_GRADIENT = 60
# Seconds. What is not judged is not known, so the proof does not wait for what the search for a cause leaves.
_TIME_FOR_WHOLE, _TIME_FOR_SINGLES = 120, 120


def _copied(x):
    """Returns a copy, because a step may give its arguments away; where it is and how it is spread stay."""
    if is_key(x):
        return wrap_key(key_data(x).copy(), key_impl(x))
    return x.copy() if isinstance(x, jax.Array) else np.array(x) if hasattr(x, "dtype") else x


def _own(step, program_of):
    """Returns the function that the user runs: the step itself if it is compiled, or mostly calls what is."""
    if hasattr(step, "lower"):
        return step, "the step as it is compiled"
    inner, total = program_of
    if total and inner >= 0.5 * total:
        return step, "the step as it is, with the functions that it compiles"
    return jax.jit(step), "jax.jit of the step"


def _shares(function, leaves):
    """Returns (equations of the largest compiled function that is called at the top, all equations)."""

    def count(jaxpr):
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        return sum(1 + sum(count(v) for v in e.params.values() if hasattr(v, "jaxpr") or hasattr(v, "eqns"))
                   for e in inner.eqns)  # fmt: skip

    closed = jax.make_jaxpr(function)(*leaves)
    calls = [count(e.params["jaxpr"]) for e in closed.jaxpr.eqns if e.primitive.name in ("pjit", "jit")]
    return max(calls, default=0), count(closed)


class _Run:
    """The user's own steps: before (leaves), results (leaves), for each."""

    def __init__(self, form, own, state, batches):
        self.steps = []
        leaves = [_copied(x) for x in form.leaves(state, batches[0])]
        for i, batch in enumerate(batches):
            if i:
                fresh = [_copied(x) for x in form.leaves(state, batch)]
                count = len(form.next)
                leaves = form.next_leaves(leaves, self.steps[-1][1]) + fresh[count:]
            before = [_copied(x) for x in leaves]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of donated buffers that were not used
                results = flat_results(own(*form.tree_of([_copied(x) for x in before])))
            self.steps.append((before, [_copied(r) for r in results]))
        self.again = flat_results(own(*form.tree_of([_copied(x) for x in self.steps[0][0]])))

    @property
    def repeats(self):
        pairs = zip(self.steps[0][1], self.again)
        return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def diagnose(
    step,
    state,
    batches,
    subject="jax",
    out="runs/twinrun",
    steps=None,
    seconds=600,
    precision=None,
    faults=(),
    settings=None,
    verbose=None,
    whole=None,
    allow=(),
):
    """Diagnoses `step(state, batch) -> (state, loss)`, or another order of the results.

    state: a pytree, or a tuple of the step's leading arguments. batches: a list, for each step a pytree or a tuple of
    the trailing arguments. subject: "jax", what XLA compiles for the devices of this process; any other engine is
    judged by `twinrun diagnose --program`, with precision, faults and settings. steps: the first so many batches (3 for
    "jax", else all). seconds: how long to search for the cause of a difference. verbose: whether
    to print what is being done; by default on a terminal. whole: for a step under pmap or
    shard_map, the same step on one device, where it cannot be made from the step itself. allow: names of functions with a
    custom_vjp or custom_jvp that are meant to give another gradient than the derivative. The arguments are left as they
    were."""
    begun, folder = time.monotonic(), Path(os.environ.get("TWINRUN_OUT") or out)
    batches = list(batches)
    if not batches:
        raise ValueError("batches is empty; give one batch per step")
    folder.mkdir(parents=True, exist_ok=True)
    forget(folder)

    def say(text):
        if sys.stderr.isatty() if verbose is None else verbose:
            print(f"twinrun: {time.monotonic() - begun:.1f} s: {text}", file=sys.stderr, flush=True)

    form = find(step, state, batches[0])
    notes = []
    if subject != "jax":
        batches = batches[:steps]
        files.write(form, state, batches, str(folder / "step"))
        data = run_program(str(folder / "step.mlir"), folder, subject, precision, faults, settings)
        return Report(folder, data, None, notes)
    try:
        files.write(form, state, batches, str(folder / "step"))
    except (TypeError, ValueError) as error:
        notes.append(f"the step was not written for other engines: {error}")
    batches = batches[: steps or 3]
    first = form.leaves(state, batches[0])
    own, what = _own(step, _shares(form.flat, first) if not hasattr(step, "lower") else (0, 0))
    say("running the step")
    run = _Run(form, own, state, batches)
    if not run.repeats:
        notes.append("two runs of the same step on the same numbers gave different bits")
    several = spread_over([*run.steps[0][0], *run.steps[0][1]])
    say("listing its equations")
    meant, meaning = form.flat, None
    program = trace(meant, first)
    if any(e.name in MESHES for e in program.everything()):
        # What the step means on its mesh, for one device.
        from ..mesh import emulated

        meaning = _meaning(step, state, batches, whole, folder, notes, say)
        meant = emulated(form.flat)
        program = trace(meant, first)
        if meaning.get("drift"):
            del run.steps[1:]
            notes.append("only the first step was judged: after it the devices' copies of the state differ")
    if not program.equations:
        raise Refused("the step computes nothing: its results are its arguments")
    seen = {
        "what": what, "versions": loaded(), "devices": len(jax.devices()) if several else 1,
        "platform": jax.default_backend(), "equations": len(list(program.everything())), "steps": len(batches),
        "flags": os.environ.get("XLA_FLAGS", ""), "notes": notes, "repeats": run.repeats,
    }  # fmt: skip
    if meaning is None:
        say("holding the gradient against the loss")
        allow = [allow] if isinstance(allow, str) else [*allow, *filter(None, os.environ.get("TWINRUN_ALLOW", "").split(","))]
        seen["gradient"] = derivative.check(form, program, on_one_device(first), time.monotonic() + _TIME_FOR_GRADIENT, allow)
        large = derivative.is_large(program)
        steps = [on_one_device(before) for before, _ in run.steps]
        seen["update"] = update.Found("the step is too large") if large else update.check(form, steps)
    else:
        seen["gradient"] = derivative.Found("the step runs on a mesh")
        seen["update"] = update.Found("the step runs on a mesh")
    _investigate(form, meant, program, run, folder, begun + seconds, seen, say)
    seen["seconds"] = round(time.monotonic() - begun, 1)
    data = outcome(seen)
    report = Report(folder, data, meaning, data["lines"])
    save(folder, data)
    return report


def _meaning(step, state, batches, whole, folder, notes, say):
    """Returns what the step's sharding means against one device, in binary64; {"refused": why} if that cannot be said."""
    from ..mesh import compare

    say("comparing what the step means on its mesh and on one device")
    try:
        meaning = compare(step, state, batches, whole, folder)
    except Refused as error:
        return {"differs": False, "refused": str(error)}
    meaning["of"] = "a mesh of " + ", ".join(f"{n} {size}" for n, size in meaning["axes"].items())
    notes += meaning["notes"]
    (folder / "meaning.json").write_text(json.dumps(meaning, indent=1, default=str))
    return meaning


def _values(form, run, folder):
    """Leaves every step's arguments and results for `twinrun diagnose A --against B`; returns what report.json says of them."""
    size = sum(np.asarray(x).nbytes for before, results in run.steps for x in [*before, *results])
    names = [f"step.{i}.safetensors" for i in range(len(run.steps))] if size <= _LARGEST_VALUES else []
    if any(write_values(folder / name, *step) for name, step in zip(names, run.steps)):
        names = []
    return {
        "module": "judged.mlir", "values": names, "arguments": form.names, "results": form.result_names,
        "next": [-1 if n is None else n for n in form.next], "loss": -1 if form.loss is None else form.loss,
        "precision": products(),
    }  # fmt: skip


def _investigate(form, meant, program, run, folder, deadline, seen, say):
    """Fills `seen`: whole (answers), triggered, noise, singles, culprit, lost, decided, no_digit, not_finite."""
    instrument, triggered = Instrument(program), None
    size = lambda a: int(np.prod(a.shape)) * 4 if hasattr(a, "shape") else 0  # noqa: E731
    small = sum(size(program.avals[n]) for e in program.equations for n in e.outputs) <= _LARGEST_VALUES
    for i, (before, results) in enumerate(run.steps):
        say(f"computing the equations of step {i} one by one")
        env = one_by_one(program, on_one_device(before), None if small and i == 0 else ())
        base = outputs(program, env)
        values = env if i == 0 else values
        say("measuring what rounding does to it")
        noise = instrument.measure(before, base)
        of_first = noise if i == 0 else of_first
        beyond = noise.beyond(results)
        if beyond:
            triggered, values = i, env
            if small and i:
                values = one_by_one(program, on_one_device(before))
            break
    seen["triggered"] = triggered
    if triggered is not None:
        seen["beyond"] = [
            f"{n} of {np.size(run.steps[triggered][1][r])} elements of {form.result_names[r]}" for r, n in beyond.items()
        ]
    before, results = run.steps[triggered or 0]
    text = text_of_function(meant, before)
    say("judging the whole step")
    seen["whole"] = judge(
        text, before, results, folder, "judged", form.result_names, _TIME_FOR_WHOLE, form.next
    )
    seen["step"] = _values(form, run, folder)
    if triggered is not None:
        hunt = Hunt(program, noise, results, before, values, folder, deadline, say)
        say("searching for the group of equations")
        try:
            seen["culprit"] = hunt.hunt()
        except Lost as lost:
            seen["lost"] = str(lost)
    if not (seen.get("culprit") and seen["culprit"].proven):
        say("judging equations one by one")
        # Where the whole step was not judged, or too bluntly, all that is known comes from here.
        sharp = not seen["whole"].refused and seen["whole"].data.get("undecided", 1.0) ** 2 < 0.5
        until = time.monotonic() + _TIME_FOR_SINGLES
        seen["singles"] = judge_singles(program, values, folder, until if sharp else max(until, deadline))
        if seen["singles"].wrong:
            equation, answer = seen["singles"].wrong[0]
            found = Culprit([equation])
            found.answer = answer
            seen["culprit"] = found
    if small:
        seen["not_finite"] = first_not_finite(program, values, results)
        new = [results[n] for n in form.next if n is not None]
        seen["nan_state"] = any(map(nans, new)) and not any(map(nans, before))
    if triggered is None:
        seen["decided"] = Decided(form, program, before, results, of_first, seen["whole"], seen["singles"])
        blunt = [leaf for leaf in seen["decided"].open if not leaf.unjudged]
        if blunt and small:
            say("looking for the value that has no digits")
            seen["no_digit"] = without_a_digit(program, values, before, blunt)
