"""From a step that is wrong to the group of equations that makes it so, and its proof.

    culprit = Hunt(program, noise, results, leaves, values, folder, deadline).hunt()
    culprit.equations, culprit.answer, culprit.passes
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from . import passes, repro
from .compat import is_key, sharding_of
from .equations import run
from .judge import Fragment, judge, text_of_function
from .noise import Instrument, terms
from .search import Lost, Search
from .stepwise import continued, iterations, on_one_device, one_by_one, outputs

_TIME_FOR_PASSES = 60  # seconds
_LOOP_STEPS = 4  # steps of a loop whose body is searched


class Culprit:
    """equations: the group; answer: of `judge`; partitioner: right on one device; passes, repro, notes."""

    def __init__(self, equations):
        self.equations, self.answer, self.passes, self.repro = equations, None, None, None
        self.notes, self.partitioner, self.loop = [], False, None

    @property
    def proven(self):
        return bool(self.answer and self.answer.outside)

    @property
    def group(self):
        return [str(e) for e in self.equations]


def spread_over(leaves):
    return any(sharding_of(getattr(x, "sharding", None)) for x in leaves)


class Hunt:
    """values: of the step's equations one by one, by number, as far as they were kept."""

    def __init__(self, program, noise, results, leaves, values, folder, deadline, say=lambda text: None):
        self.program, self.noise, self.leaves, self.folder, self.deadline = program, noise, leaves, folder, deadline
        self.only = set(noise.beyond(results)) if results is not None else None
        self.values, self.say = dict(values), say
        self.several = spread_over(leaves) or any(e.name == "sharding_constraint" for e in program.everything())
        self.shardings = None

    # ---- values
    def value(self, number):
        if number not in self.values:
            wanted = [n for n in self.program.avals if n not in self.values]
            self.values.update(one_by_one(self.program, on_one_device(self.leaves), wanted))
        return self.values[number]

    def operands(self, fragment):
        values = [self.value(n) for n in fragment.program.inputs]
        if not self.several:
            return values
        # On several devices an operand is spread as it is in the step.
        if self.shardings is None:
            numbers = [n for n in [*self.program.inputs, *(o for e in self.program.equations for o in e.outputs)]]

            def everything(leaves):
                seen = {}
                run(self.program, leaves, watch=seen)
                return [seen[n] for n in numbers]

            spread = jax.jit(everything)(self.leaves)
            self.shardings = {n: getattr(x, "sharding", None) for n, x in zip(numbers, spread)}
        placed = []
        for n, v in zip(fragment.program.inputs, values):
            sharding = sharding_of(self.shardings[n])
            placed.append(v if is_key(v) or sharding is None else jax.device_put(v, sharding))
        return placed

    def compiled(self, fragment):
        """Returns (arguments, impls, results) of a group that is compiled as one function."""
        arguments, impls = fragment.prepare(self.operands(fragment))
        return arguments, impls, jax.jit(fragment.function(impls, alone=False))(*arguments)

    # ---- the search
    def wrong(self, positions):
        """Compiles some equations together, computes the others one by one; says whether the step is wrong."""
        equations, chosen = [self.program.equations[i] for i in positions], set(positions)
        made, later = {o for e in equations for o in e.outputs}, []
        reached = set(made)
        for i, e in enumerate(self.program.equations):
            if i not in chosen and reached & set(e.operands()):
                later.append(e)
                reached.update(e.outputs)
        behind = reached - made
        if any(behind & set(e.operands()) for e in equations):
            return False  # something that is needed lies in between
        fragment = Fragment(self.program, equations)
        env = {n: self.value(n) for e in later for n in e.operands() if n not in reached}
        env.update({o: self.value(o) for o in self.program.outputs if not isinstance(o, tuple) and o not in reached})
        operands = self.operands(fragment)
        if any(is_key(x) for x in operands) or any(is_key(self.program.avals[o]) for o in fragment.program.outputs):
            numbers = fragment.program.outputs
            found = jax.jit(lambda *x: tuple(run(fragment.program, list(x))))(*operands)
        else:
            numbers, found = fragment.program.outputs, self.compiled(fragment)[2]
        for n, x in zip(numbers, found):
            env[n] = x if is_key(x) else jnp.asarray(np.asarray(x))
        continued(self.program, env, later)
        return bool(self.noise.beyond(outputs(self.program, env), self.only))

    def hunt(self):
        """Returns a Culprit; raises Lost."""
        search = Search(len(self.program.equations), self.wrong, self.deadline)
        equations = [self.program.equations[i] for i in search.group()]
        culprit = Culprit(equations)
        culprit.notes.append(f"the group was found by {search.compilations} compilations")
        self.say(culprit.notes[0])
        if len(equations) == 1 and equations[0].name == "scan":
            inner = self._in_loop(equations[0])
            if inner is not None:
                return inner
        return self.prove(culprit)

    def _in_loop(self, loop):
        """Searches the body of a loop, on the numbers of its first steps."""
        steps = iterations(loop, [i[1] if isinstance(i, tuple) else self.value(i) for i in loop.inputs])
        body, given = loop.bodies[0], next(steps)
        instrument = Instrument(body)
        for _ in range(_LOOP_STEPS):
            env = one_by_one(body, given)
            out = outputs(body, env)
            noise = instrument.measure(given, out) if not any(is_key(x) for x in given) else None
            if noise is None:
                return None
            hunt = Hunt(body, noise, None, given, env, self.folder, self.deadline, self.say)
            try:
                found = hunt.hunt()
            except Lost:
                found = None
            if found is not None and found.proven:
                found.loop = loop
                found.notes.append(f"in the body of {loop}")
                return found
            try:
                given = steps.send(out)
            except StopIteration:
                break
        return None

    # ---- the proof
    def prove(self, culprit):
        """Judges the group as it is compiled, writes repro.py, and looks for the pass."""
        fragment = Fragment(self.program, culprit.equations)
        arguments, impls, results = self.compiled(fragment)
        plain = fragment.function(impls)
        culprit.answer = judge(
            text_of_function(plain, arguments), arguments, results, self.folder, "group", fragment.labels,
            max(60, self.deadline - time.monotonic()),
        )  # fmt: skip
        if not culprit.answer.refused and not culprit.answer.outside:
            return culprit
        alone = on_one_device(arguments)
        right = fragment.program.inputs and [self.value(o) for o in fragment.program.outputs]
        if self.several and not any(is_key(x) for x in right):
            measured = Instrument(fragment.program).measure(alone, right) if not impls else None
            culprit.partitioner = measured is not None and not measured.beyond(jax.jit(plain)(*alone))
        if not any(is_key(x) for x in right):
            self._file(culprit, fragment, arguments, impls, right)
        return culprit

    def _file(self, culprit, fragment, arguments, impls, right):
        shapes = {n: tuple(getattr(a, "shape", ())) for n, a in self.program.avals.items()}
        lengths = [
            terms(e, [shapes[i] if not isinstance(i, tuple) else np.shape(i[1]) for i in e.inputs])
            for e in fragment.equations
        ]
        units = [float(jnp.finfo(r.dtype).eps) / 2 for r in right if jnp.issubdtype(r.dtype, jnp.floating)]
        culprit.repro = repro.write(
            fragment, arguments, impls, right, self.folder, " and ".join(e.name for e in fragment.equations),
            max(units, default=0.0), max(lengths, default=1),
        )  # fmt: skip
        if culprit.repro:
            self.say("looking for the pass")
            culprit.passes = passes.search(culprit.repro, time.monotonic() + _TIME_FOR_PASSES)
            if culprit.passes is None:
                culprit.notes.append("repro.py does not show it in a process of its own")


__all__ = ["Culprit", "Hunt", "Lost"]
