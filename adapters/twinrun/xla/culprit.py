"""From a step that is wrong to the group of equations that makes it so, and its proof.

    culprit = Hunt(program, noise, leaves, folder, deadline).hunt()
    culprit.equations, culprit.answer, culprit.words
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from . import passes, repro
from .compat import is_key, key_data, sharding_of
from .equations import run
from .judge import Fragment, judge, text_of_function
from .noise import Instrument, _length, closed
from .search import Lost, Search


class Culprit:
    """equations: the group; answer: of `judge`, or None; how: where its results were taken from; passes, repro, notes."""

    def __init__(self, equations, program):
        self.equations, self.program = equations, program
        self.answer, self.how, self.passes, self.repro, self.notes = None, "", None, None, []
        self.partitioner = False

    @property
    def proven(self):
        return bool(self.answer and self.answer.outside)

    @property
    def group(self):
        return [str(e) for e in self.equations]


def spread_over(leaves):
    return any(sharding_of(getattr(x, "sharding", None)) for x in leaves)


class Hunt:
    def __init__(self, program, noise, results, leaves, folder, deadline, say=lambda text: None):
        self.program, self.noise, self.leaves, self.folder, self.deadline = program, noise, leaves, folder, deadline
        self.several = spread_over(leaves) or any(e.name == "sharding_constraint" for e in program.everything())
        self.only = set(noise.beyond(results))
        self.say = say
        self.top = {e.uid: e for e in program.equations}
        self.owner = {}
        for e in program.equations:
            for body in e.bodies:
                for inner in body.everything():
                    self.owner[inner.uid] = e

    # ---- candidates
    def _whole(self, value):
        """Gives every device the whole value."""
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        meshes = [x.sharding.mesh for x in self.leaves if hasattr(getattr(x, "sharding", None), "mesh")]
        mesh = next((m for m in meshes if m.devices.size > 1), None)
        if mesh is None:
            constraint = next((e.params["sharding"] for e in self.program.everything()
                               if e.name == "sharding_constraint" and hasattr(e.params["sharding"], "mesh")), None)  # fmt: skip
            mesh = constraint.mesh if constraint is not None else Mesh(np.array(jax.devices()), ("devices",))
        return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, PartitionSpec()))

    def _cut(self, values):
        if self.several:
            values = [v if is_key(v) else self._whole(v) for v in values]
        return closed(values)

    def candidate(self, cut, watched=()):
        """Runs the step with cuts; returns its results and the watched values."""

        def step(leaves):
            seen = {}
            leaves = self._cut(leaves) if -1 in cut else leaves
            out = run(
                self.program, leaves, lambda e, values: self._cut(values) if e.uid in cut else values, watch=seen
            )
            return out, [seen[n] for n in watched]

        return jax.jit(step)(self.leaves)

    def right(self, cut):
        results, _ = self.candidate(cut)
        return not self.noise.beyond(results, self.only)

    # ---- the hunt
    def hunt(self):
        """Returns a Culprit; raises Lost."""
        search = Search(self.program, self.right, self.deadline)
        free, users = search.group()
        self.say(f"{search.compilations} compilations")
        named = sorted({e.uid: e for e in [*free, *users]}.values(), key=lambda e: e.uid)
        culprit = Culprit(named, self.program)
        culprit.notes.append(f"{search.compilations} compilations with barriers")
        top = sorted({self.owner.get(e.uid, e).uid for e in named})
        self._prove(culprit, [self.top[u] for u in top], set(e.uid for e in free))
        return culprit

    def single(self, equation):
        """Returns the culprit of one equation that is wrong by itself."""
        culprit = Culprit([equation], self.program)
        self._prove(culprit, [equation], set())
        return culprit

    def _operands(self, fragment, placed):
        if placed:
            _, values = self.candidate(set(e.uid for e in self.program.everything()) | {-1}, fragment.program.inputs)
            if self.several:
                # The shardings that the operands have in the step, which cuts take away.
                _, spread = self.candidate(set(), fragment.program.inputs)
                values = [
                    v if is_key(v) else jax.device_put(v, s.sharding) for v, s in zip(values, spread)
                ]
            return values
        known = self.noise.values
        if all(n in known for n in fragment.program.inputs):
            return [known[n] for n in fragment.program.inputs]
        return self._operands(fragment, True)

    def _prove(self, culprit, equations, free):
        for attempt in range(3):
            fragment = Fragment(self.program, equations)
            if self._alone(culprit, fragment):
                break
            # What makes the operands may belong to what XLA joins.
            needed = set(fragment.program.inputs)
            more = [e for e in self.program.equations if needed & set(e.outputs) and e not in equations]
            if not more or attempt == 2 or time.monotonic() > self.deadline:
                break
            equations = sorted([*equations, *more], key=lambda e: e.uid)
        if not culprit.proven and free:
            self._inside(culprit, free)

    def _alone(self, culprit, fragment):
        """Compiles the group alone, and judges what it gives. Returns whether it is wrong."""
        operands = self._operands(fragment, self.several)
        arguments, impls = fragment.prepare(operands)
        function = fragment.function(impls, alone=False)
        results = jax.jit(function)(*arguments)
        noise = Instrument(fragment.program).measure([np.asarray(a) for a in arguments]) if not impls else None
        if noise is not None and not noise.beyond(results):
            return False
        if noise is not None:
            fragment = self._smaller(fragment, arguments)
            operands = self._operands(fragment, self.several)
            arguments, impls = fragment.prepare(operands)
            function = fragment.function(impls, alone=False)
            results = jax.jit(function)(*arguments)
        plain = fragment.function(impls)
        answer = judge(
            text_of_function(plain, arguments), arguments, results, self.folder, "group", fragment.labels,
            max(20, self.deadline - time.monotonic()),
        )  # fmt: skip
        if not answer.refused and not answer.outside:
            return False
        culprit.answer, culprit.how = answer, "the group, compiled alone on the operands that the step gives it"
        if self.several:
            alone = [jnp.asarray(np.asarray(a)) for a in arguments]
            again = jax.jit(plain)(*alone)
            right = Instrument(fragment.program).measure(alone)
            culprit.partitioner = not right.beyond(again)
        if not any(self.owner.get(e.uid) for e in culprit.equations):
            culprit.equations = fragment.equations
        self._file(culprit, fragment, arguments, impls)
        return True

    def _smaller(self, fragment, arguments):
        """Leaves out equations of the group without which it is still wrong, the last first."""
        equations = list(fragment.equations)
        for e in reversed(fragment.equations):
            if len(equations) < 2 or len(fragment.equations) > 24:
                break
            fewer = Fragment(self.program, [x for x in equations if x is not e])
            operands = self._operands(fewer, self.several)
            given, impls = fewer.prepare(operands)
            if impls:
                continue
            results = jax.jit(fewer.function(impls, alone=False))(*given)
            if Instrument(fewer.program).measure([np.asarray(a) for a in given]).beyond(results):
                equations.remove(e)
        return Fragment(self.program, equations)

    def _inside(self, culprit, free):
        """Judges the group where it is in the step, between barriers on everything else."""
        equations = [self.top[u] for u in sorted({self.owner.get(e.uid, e).uid for e in culprit.equations})]
        fragment = Fragment(self.program, equations)
        cut = (set(e.uid for e in self.program.everything()) | {-1}) - free
        wanted = [*fragment.program.inputs, *(o for o in fragment.program.outputs if not isinstance(o, tuple))]
        _, values = self.candidate(cut, wanted)
        count = len(fragment.program.inputs)
        arguments, impls = fragment.prepare(values[:count])
        results = [key_data(v) if is_key(v) else v for v in values[count:]]
        culprit.answer = judge(
            text_of_function(fragment.function(impls), arguments), arguments, results, self.folder, "group",
            fragment.labels, max(20, self.deadline - time.monotonic()),
        )  # fmt: skip
        culprit.how = "the group inside the step, with barriers after all other equations"

    def _file(self, culprit, fragment, arguments, impls):
        """Writes repro.py, and looks for the pass."""
        right = jax.jit(fragment.function(impls, lambda e, v: closed(v)))(
            *[jnp.asarray(np.asarray(a)) for a in arguments]
        )
        shapes = {n: tuple(getattr(a, "shape", ())) for n, a in self.program.avals.items()}
        lengths = [
            _length(e, [shapes[i] if not isinstance(i, tuple) else np.shape(i[1]) for i in e.inputs])
            for e in fragment.equations
        ]
        units = [float(jnp.finfo(r.dtype).eps) / 2 for r in right if jnp.issubdtype(r.dtype, jnp.floating)]
        culprit.repro = repro.write(
            fragment, arguments, impls, right, self.folder, " and ".join(e.name for e in fragment.equations),
            max(units, default=0.0), max(lengths, default=1),
        )  # fmt: skip
        if culprit.repro:
            self.say("looking for the pass")
            culprit.passes = passes.search(culprit.repro, max(self.deadline, time.monotonic() + 20))
            if culprit.passes is None:
                culprit.notes.append("repro.py does not show it in a process of its own")


__all__ = ["Culprit", "Hunt", "Lost"]
