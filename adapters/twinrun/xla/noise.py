"""Whether two evaluations of a step differ by more than rounding explains.

The step is run a few times with every rounded result moved at random by as much as another order of rounding may move
it. What the step's results then scatter is what rounding does to them. This is a trigger: it decides what is looked at
more closely, and never accuses.

    instrument = Instrument(program)
    noise = instrument.measure(leaves, base)        # base: the results of the equations one by one
    noise.beyond(results)                           # {index of a result: how many elements}
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from .compat import barrier, is_key, quickly
from .equations import run
from .stepwise import on_one_device

RUNS = 6
# Results of these are copies or choices of operands, or whole numbers: nothing is rounded.
_EXACT = {
    "reshape", "broadcast_in_dim", "transpose", "slice", "squeeze", "concatenate", "pad", "gather", "dynamic_slice",
    "dynamic_update_slice", "select_n", "rev", "copy", "copy_p", "neg", "abs", "sign", "max", "min", "reduce_max",
    "reduce_min", "argmax", "argmin", "sort", "iota", "stop_gradient", "optimization_barrier", "clamp", "floor", "ceil",
    "round", "real", "imag", "expand_dims", "sharding_constraint", "reduce_window_max", "scatter", "split", "tie_in",
    "select_and_gather_add", "bitcast_convert_type", "cummax", "cummin", "reduce_precision", "device_put", "top_k",
}  # fmt: skip


def terms(e, operand_shapes):
    """Returns how many terms a result's elements add up."""
    p, shapes, out = e.params, operand_shapes, getattr(e.avals[0], "shape", ())
    size = lambda s: int(np.prod(s)) if len(s) else 1  # noqa: E731
    if e.name == "dot_general":
        return size([shapes[0][d] for d in p["dimension_numbers"][0][0]])
    if e.name == "conv_general_dilated":
        # Each kernel element meets each output position of its feature at most once.
        return max(1, size(shapes[1]) // max(1, out[p["dimension_numbers"].out_spec[1]]))
    if e.name in ("reduce_sum", "cumsum", "cumlogsumexp", "cumprod", "reduce_prod", "reduce_window_sum", "reduce"):
        if e.name == "reduce_window_sum":
            return size(p["window_dimensions"])
        if e.name.startswith("cum"):
            return shapes[0][p["axis"]]
        return max(1, size(shapes[0]) // max(1, size(out)))
    if e.name.startswith("scatter") and len(shapes) > 2:
        return max(1, size(shapes[2]))
    return 1


def movement(e, shapes):
    """Returns the standard deviation, in units of roundoff, of another rounding of an equation's result; 0 if exact.

    One rounding is off by at most one unit; the errors of a sum of n terms in some order add up like a random walk,
    to sqrt(n) units of the sum's typical size."""
    return 0.0 if e.name in _EXACT or e.bodies else math.sqrt(terms(e, shapes))


def _unit(dtype):
    return float(jnp.finfo(dtype).eps) / 2


class Noise:
    """base: the results of the equations one by one; spread: of each result, per element."""

    def __init__(self, base, still, runs):
        self.base, self.spread = [np.asarray(b) for b in base], []
        for i, b in enumerate(self.base):
            wide = _wide(np.asarray(still[i]))
            moved = [_apart(_wide(np.asarray(r[i])), wide) for r in runs]
            mean = np.mean([m * m for m in moved], axis=0) if moved else np.zeros(b.shape)
            finite = mean[np.isfinite(mean)]
            # An element may by chance have moved less than others of its array.
            self.spread.append(np.sqrt(mean + (finite.mean() if finite.size else 0.0)))

    def limit(self, i):
        # The largest of N Gaussian draws stays below sqrt(2 ln(N / p)) standard deviations with probability 1 - p,
        # p = 2^-20; the standard deviation of RUNS draws is below half the true one about once in a hundred arrays.
        return 2 * math.sqrt(2 * math.log(max(self.base[i].size, 1) * 2.0**20)) * self.spread[i]

    def beyond(self, results, only=None):
        """Returns {index of a result: how many of its elements differ by more than rounding explains}."""
        found = {}
        for i, r in enumerate(results):
            if only is not None and i not in only:
                continue
            apart = _apart(_wide(np.asarray(r)), _wide(self.base[i]))
            outside = int(np.sum(~(apart <= self.limit(i))))
            if outside:
                found[i] = outside
        return found


def _wide(a):
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def _apart(a, b):
    """Returns |a - b|; equal infinities and NaN on both sides are no difference."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a - b)
    return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.where(np.isnan(apart), np.inf, apart))


def closed(values):
    """Returns values behind one barrier; typed keys hold no numbers to protect."""
    kept = [v for v in values if not is_key(v)]
    after = iter(barrier(tuple(kept)) if kept else ())
    return [v if is_key(v) else next(after) for v in values]


class Instrument:
    """The step as one compiled function: of leaves, a scale of the noise, and random numbers."""

    NUMBERS = 1000003    # prime, so that rows of arrays do not meet the same numbers

    def __init__(self, program):
        self.program, self.compiled = program, None
        self.shapes = {n: tuple(getattr(a, "shape", ())) for n, a in program.avals.items()}

    def _step(self, leaves, scale, numbers):
        def after(e, values):
            values = closed(values)
            size = movement(e, [self.shapes[i] if not isinstance(i, tuple) else np.shape(i[1]) for i in e.inputs])
            if not size:
                return values
            return closed([self._moved(v, size, e.uid, scale, numbers) for v in values])

        return run(self.program, closed(leaves), after, alone=True)

    def _moved(self, v, size, uid, scale, numbers):
        if is_key(v) or not jnp.issubdtype(v.dtype, jnp.floating):
            return v
        count = int(np.prod(v.shape)) if v.shape else 1
        if count < self.NUMBERS:
            # Each equation reads the random numbers from a place of its own on.
            at = (uid * 7919) % (self.NUMBERS - count)
            row = numbers[at : at + count].reshape(v.shape)
        else:
            row = jnp.tile(numbers, -(-count // self.NUMBERS))[:count].reshape(v.shape)
        amount = (row * (scale * size * _unit(v.dtype))).astype(jnp.float32)
        magnitude = v
        if size > 1 and count > 1:
            # A sum's error is relative to its terms, so that a small sum among large ones moves as they do.
            wide = v.astype(jnp.float32)
            typical = jnp.sqrt(jnp.mean(jnp.square(jnp.where(jnp.isfinite(wide), wide, 0.0)))).astype(v.dtype)
            magnitude = jnp.where(v == 0, v, jnp.maximum(jnp.abs(v), typical))
        moved = v + (magnitude.astype(jnp.float32) * amount).astype(v.dtype)
        if v.dtype.itemsize < 4:
            # The sum in the narrow type would round small movements away: it is made in float32.
            moved = (v.astype(jnp.float32) + magnitude.astype(jnp.float32) * amount).astype(v.dtype)
        return jnp.where(jnp.isfinite(moved), moved, v)

    def measure(self, leaves, base, runs=RUNS, seed=0):
        """base: the results of the equations one by one."""
        leaves = on_one_device(leaves)
        quiet = np.zeros(self.NUMBERS, "float32")
        if self.compiled is None:
            self.compiled = quickly(self._step, leaves, np.float32(0), quiet)
        random = np.random.default_rng(seed)
        still = self.compiled(leaves, np.float32(0), quiet)
        moved = [
            self.compiled(leaves, np.float32(1), random.standard_normal(self.NUMBERS, "float32")) for _ in range(runs)
        ]
        return Noise(base, still, moved)
