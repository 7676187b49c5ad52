"""A JAX function as one list of equations, evaluated with something done after each of them, if asked for.

    program = trace(function, leaves)                        # functions that it calls are inlined, loops keep their bodies
    outputs = run(program, leaves, after=lambda equation, values: [2 * v for v in values])

Values are numbered from 0: inputs first, then the results of the equations in topological order. The equations of a
loop's body come before the loop itself and have numbers of their own.
"""

import itertools

import jax
import numpy as np
from jax import lax

from .compat import bound, inner_jaxpr, place_of, scan_counts, sharding_of

_INLINED = {
    "pjit", "jit", "closed_call", "core_call", "xla_call", "remat", "remat2", "checkpoint", "custom_jvp_call",
    "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin", "named_call",
}  # fmt: skip


class Equation:
    """name: of the primitive; inputs: numbers of values, or ("constant", array); outputs: numbers; bodies: of a loop."""

    def __init__(self, uid, primitive, params, inputs, outputs, avals, place, bodies=()):
        self.uid, self.primitive, self.params = uid, primitive, params
        self.inputs, self.outputs, self.avals = inputs, outputs, avals
        self.place, self.bodies = place, list(bodies)

    @property
    def name(self):
        return self.primitive if isinstance(self.primitive, str) else self.primitive.name

    def operands(self):
        return [i for i in self.inputs if not isinstance(i, tuple)]

    def __str__(self):
        shape = ",".join(str(d) for d in getattr(self.avals[0], "shape", ())) if self.avals else ""
        dtype = getattr(self.avals[0], "dtype", "") if self.avals else ""
        return f"{self.name} {dtype}[{shape}]" + (f" at {self.place}" if self.place else "")


class Program:
    """inputs: numbers of values; outputs: as an equation's inputs; equations: of this level; avals: by number."""

    def __init__(self, inputs, equations, outputs, avals):
        self.inputs, self.equations, self.outputs, self.avals = inputs, equations, outputs, avals

    def everything(self):
        """Yields all equations, those of bodies before the loop that has them."""
        for e in self.equations:
            for body in e.bodies:
                yield from body.everything()
            yield e

    def part(self, equations):
        """Returns the program of some equations of this level: from the values that they need to those that others use."""
        made = {o for e in equations for o in e.outputs}
        needed = list(dict.fromkeys(i for e in equations for i in e.operands() if i not in made))
        chosen = set(id(e) for e in equations)
        used = {i for e in self.equations if id(e) not in chosen for i in e.operands()}
        used |= {o for o in self.outputs if not isinstance(o, tuple)}
        results = [o for e in equations for o in e.outputs if o in used]
        return Program(needed, list(equations), results or [o for e in equations for o in e.outputs], self.avals)


class _Tracer:
    def __init__(self):
        self.numbers, self.uids, self.avals = itertools.count(), itertools.count(), {}
        self.place = ""  # of the innermost call that has a line of the script: a library's function may have none

    def number(self, aval):
        n = next(self.numbers)
        self.avals[n] = aval
        return n

    def program(self, jaxpr):
        inner, constants = inner_jaxpr(jaxpr)
        inputs = [self.number(v.aval) for v in inner.invars]
        equations = []
        outputs = self.inline(inner, constants, inputs, equations)
        return Program(inputs, equations, outputs, self.avals)

    def inline(self, jaxpr, constants, arguments, equations):
        env = dict(zip(jaxpr.invars, arguments))
        env.update((v, ("constant", c)) for v, c in zip(jaxpr.constvars, constants))

        def read(atom):
            if hasattr(atom, "val"):
                return ("constant", np.asarray(atom.val, getattr(atom.aval, "dtype", None)))
            return env[atom]

        for eqn in jaxpr.eqns:
            inputs = [read(a) for a in eqn.invars]
            called = self.called(eqn)
            if called is not None:
                inner, inner_constants = inner_jaxpr(called)
                inputs = self.constrained(inputs, inner.invars, eqn.params.get("in_shardings"), equations)
                outer, self.place = self.place, place_of(eqn) or self.place
                results = self.inline(inner, inner_constants, inputs, equations)
                self.place = outer
                results = self.constrained(results, inner.outvars, eqn.params.get("out_shardings"), equations)
                env.update(zip(eqn.outvars, results))
                continue
            bodies = [self.program(b) for b in _bodies(eqn)]
            avals = [v.aval for v in eqn.outvars]
            outputs = [self.number(a) for a in avals]
            equations.append(
                Equation(
                    next(self.uids), eqn.primitive, eqn.params, inputs, outputs, avals, place_of(eqn) or self.place, bodies
                )
            )
            env.update(zip(eqn.outvars, outputs))
        return [read(a) for a in jaxpr.outvars]

    def called(self, eqn):
        if eqn.primitive.name not in _INLINED:
            return None
        return next((eqn.params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in eqn.params), None)

    def constrained(self, values, variables, shardings, equations):
        """Keeps the shardings that an inlined jit demands as equations of their own."""
        out = []
        for value, variable, sharding in zip(values, variables, shardings or [None] * len(values)):
            sharding = sharding_of(sharding)
            if sharding is None or isinstance(value, tuple):
                out.append(value)
                continue
            result = self.number(variable.aval)
            params = {"sharding": sharding}
            equations.append(
                Equation(next(self.uids), "sharding_constraint", params, [value], [result], [variable.aval], "")
            )
            out.append(result)
        return out


def _bodies(eqn):
    p = eqn.params
    if eqn.primitive.name == "scan":
        return [p["jaxpr"]]
    if eqn.primitive.name == "while":
        return [p["cond_jaxpr"], p["body_jaxpr"]]
    if eqn.primitive.name == "cond":
        return list(p["branches"])
    return []


def trace(function, leaves):
    """Returns the program of function(*leaves), which returns a flat list."""
    return _Tracer().program(jax.make_jaxpr(function)(*leaves))


def _bind(e, values, after, alone):
    if e.name == "sharding_constraint":
        return [values[0]] if alone else [lax.with_sharding_constraint(values[0], e.params["sharding"])]
    p = e.params
    if e.name == "scan":
        nc, carried = scan_counts(p)
        constants, first, over = values[:nc], values[nc : nc + carried], values[nc + carried :]

        def body(carry, x):
            out = run(e.bodies[0], [*constants, *carry, *(x or ())], after, alone)
            return tuple(out[:carried]), tuple(out[carried:])

        carry, rows = lax.scan(
            body, tuple(first), tuple(over), length=p["length"], reverse=p["reverse"], unroll=p.get("unroll", 1)
        )
        return [*carry, *rows]
    if e.name == "while":
        nc, nb = p["cond_nconsts"], p["body_nconsts"]
        of_cond, of_body, first = values[:nc], values[nc : nc + nb], values[nc + nb :]
        return list(
            lax.while_loop(
                lambda c: run(e.bodies[0], [*of_cond, *c], after, alone)[0],
                lambda c: tuple(run(e.bodies[1], [*of_body, *c], after, alone)),
                tuple(first),
            )
        )
    if e.name == "cond":
        branches = [lambda *v, b=b: tuple(run(b, list(v), after, alone)) for b in e.bodies]
        return list(lax.switch(jax.numpy.asarray(values[0], "int32"), branches, *values[1:]))
    return bound(e.primitive, p, values)


def run(program, arguments, after=None, alone=False, watch=None):
    """Evaluates a program. after(equation, values) returns what others see of an equation's results.

    alone: constraints of sharding are left out. watch: a dict that is filled with the values of this level."""
    env = dict(zip(program.inputs, arguments))

    def read(atom):
        return atom[1] if isinstance(atom, tuple) else env[atom]

    for e in program.equations:
        values = _bind(e, [read(i) for i in e.inputs], after, alone)
        if after is not None:
            values = after(e, values)
        env.update(zip(e.outputs, values))
    if watch is not None:
        watch.update(env)
    return [read(o) for o in program.outputs]
