"""A program's equations one by one: each is compiled alone, so that XLA joins nothing, in loops neither.

    env = one_by_one(program, leaves)            # {number: value}

`hold(equation, values)` returns what others see of an equation's results, within loops too.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .compat import is_key, key_data, key_impl, scan_counts, wrap_key
from .equations import _bind

# A loop of more equations than this is compiled as a whole.
_LONGEST_LOOP = 20000


def on_one_device(leaves):
    """Returns the leaves as arrays of the first device."""
    return [jnp.asarray(np.asarray(x)) if hasattr(x, "dtype") else jnp.asarray(x) for x in leaves]


def _row(x, i):
    if is_key(x):
        return wrap_key(_row(key_data(x), i), key_impl(x))
    return lax.dynamic_index_in_dim(x, np.int32(i), keepdims=False)


def _stacked(rows):
    if is_key(rows[0]):
        return wrap_key(jnp.stack([key_data(r) for r in rows]), key_impl(rows[0]))
    return jnp.stack(rows)


def iterations(e, values):
    """Yields the inputs of a scan's body, in the order of its steps; takes the results by send()."""
    p = e.params
    nc, carried = scan_counts(p)
    constants, carry, over = values[:nc], list(values[nc : nc + carried]), values[nc + carried :]
    order = range(p["length"])
    for i in reversed(order) if p["reverse"] else order:
        out = yield [*constants, *carry, *(_row(jnp.asarray(x), i) if not is_key(x) else _row(x, i) for x in over)]
        carry = out[:carried]


def _loop(e, values, hold):
    """Computes a loop equation by equation; None if it is too long."""
    p, size = e.params, [len(list(b.everything())) for b in e.bodies]
    if e.name == "scan":
        if p["length"] == 0 or p["length"] * size[0] > _LONGEST_LOOP:
            return None
        _, carried = scan_counts(p)
        rows, out, steps = [], None, iterations(e, values)
        given = next(steps)
        while True:
            out = results(e.bodies[0], given, hold)
            rows.append(out[carried:])
            try:
                given = steps.send(out)
            except StopIteration:
                break
        if p["reverse"]:
            rows.reverse()
        return [*out[:carried], *(_stacked(list(column)) for column in zip(*rows))]
    if e.name == "while":
        nc, nb = p["cond_nconsts"], p["body_nconsts"]
        of_cond, of_body, carry = values[:nc], values[nc : nc + nb], list(values[nc + nb :])
        done = 0
        while bool(results(e.bodies[0], [*of_cond, *carry], hold)[0]):
            carry = results(e.bodies[1], [*of_body, *carry], hold)
            done += sum(size)
            if done > _LONGEST_LOOP:
                return None
        return carry
    index = int(values[0])
    return results(e.bodies[min(max(index, 0), len(e.bodies) - 1)], values[1:], hold)


def evaluated(e, values, hold=None):
    """Returns the results of an equation that is computed alone."""
    found = _loop(e, values, hold) if e.name in ("scan", "while", "cond") else None
    if found is None:
        whole = len(e.bodies) > 0
        found = jax.jit(lambda *v: tuple(_bind(e, list(v), None, True)))(*values) if whole else _bind(e, values, None, True)
    found = [x if is_key(x) else jnp.asarray(x) for x in found]
    return found if hold is None else hold(e, found)


def continued(program, env, equations, hold=None):
    """Computes some equations one by one into env."""
    for e in equations:
        env.update(zip(e.outputs, evaluated(e, [i[1] if isinstance(i, tuple) else env[i] for i in e.inputs], hold)))
    return env


def one_by_one(program, leaves, keep=None, hold=None):
    """Returns {number: value}: all, or those to keep and the outputs."""
    env = dict(zip(program.inputs, leaves))
    if keep is None:
        return continued(program, env, program.equations, hold)
    last = {i: n for n, e in enumerate(program.equations) for i in e.operands()}
    kept = set(keep) | {o for o in program.outputs if not isinstance(o, tuple)}
    for n, e in enumerate(program.equations):
        continued(program, env, [e], hold)
        for i in [*e.operands(), *e.outputs]:
            if last.get(i, -1) <= n and i not in kept and i in env:
                del env[i]
    return env


def outputs(program, env):
    return [jnp.asarray(o[1]) if isinstance(o, tuple) else env[o] for o in program.outputs]


def results(program, arguments, hold=None):
    return outputs(program, one_by_one(program, arguments, None if hold is None else (), hold))
