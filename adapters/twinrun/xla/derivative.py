"""Is the gradient of a step the derivative of its loss? The function that the step gives to grad or value_and_grad, and its
gradient, are evaluated in binary64, equation by equation and without the roundings of their types; the function also a
little along its gradient and along random signs.

    found = check(form, program, leaves, deadline)    # of the step's equations and first arguments
    found.asked, found.why, found.worst, found.wrong

The slope by differences knows nothing of derivative rules. Where it is not the gradient's, each rule that the script or a
library gives (custom_vjp, custom_jvp), and else each equation, is asked on its own operands. docs/method/calls.md#the-gradient
has the same question for PyTorch, and says what is derived from what.
"""

import contextlib
import inspect
import os
import time

import jax
import jax.numpy as jnp
import numpy as np

from ..refused import Refused
from .compat import bound, custom_rules, inner_jaxpr, is_key, vjp_of, wide_jaxpr, with_x64
from .equations import trace
from .stepwise import one_by_one, outputs

_LEAST = 2.0**-10  # of the gradient: a difference below is not told
_CERTAIN = 8  # a slope is certain to within so many times the difference of its two steps
_STEP = 2.0**-20  # of the norm of what is moved
_OPEN = 0.25  # of the gradient: a slope that is less certain is none
_ROUNDINGS = ("round", "floor", "ceil", "sign")
_LARGEST = 5000  # equations
_MOST_WORK, _MOST_NUMBERS = 20000, 1 << 28  # of the step, each iteration of a loop by itself


class Found:
    """asked; why not; worst: the largest difference; wrong: None, or {"rule", "place", "off", "meant", "allowed"}; "here" instead of
    the rule's name: at the very values of the parameters alone. meant: why it seems to be; allowed: the user says so."""

    def __init__(self, why=""):
        self.asked, self.why, self.worst, self.wrong = not why, why, 0.0, None


def _work(program):
    """Returns (equations, numbers) that a program computes, each iteration of a scan by itself."""
    equations = numbers = 0
    for e in program.equations:
        times = e.params.get("length", 1) if e.name == "scan" else 1
        inner = [_work(body) for body in e.bodies]
        equations += 1 + times * sum(n for n, _ in inner)
        numbers += sum(int(np.prod(getattr(a, "shape", ()))) for a in e.avals) + times * sum(n for _, n in inner)
    return equations, numbers


def is_large(program):
    """Whether it would take minutes to run a step without compiling it."""
    equations, numbers = _work(program)
    return equations > _MOST_WORK or numbers > _MOST_NUMBERS


def excused(wrong):
    """Whether a rule is no derivative on purpose."""
    return bool(wrong["meant"] or wrong.get("allowed"))


def check(form, program, leaves, deadline, allowed=()):
    """Runs the step without compiling it, and asks each function that it differentiates. allowed: names of rules that are meant to give
    another gradient."""
    asked, inside = [], []
    if is_large(program):
        return Found("the step is too large")

    def watching(original):
        def vjp(function, *primals, **options):
            if not inside and not _traced(primals):
                inside.append(True)
                try:
                    asked.append(_asked(original, function, primals, options, deadline, allowed))
                finally:
                    inside.pop()
            return original(function, *primals, **options)

        return vjp

    watched = vjp_of(watching)
    if watched is None:
        return Found(f"with JAX {jax.__version__} it is not known how")
    try:
        with jax.disable_jit(), watched:
            form.flat(*leaves)
    except Exception as e:
        if not asked:
            return Found(f"the step does not run without being compiled ({type(e).__name__})")
    if not asked:
        return Found("the step calls neither grad nor value_and_grad")
    wrong, open_ = sorted((f for f in asked if f.wrong), key=lambda f: excused(f.wrong)), [f for f in asked if not f.asked]
    return next(iter(wrong or open_), None) or max(asked, key=lambda f: f.worst)


def _asked(vjp, function, primals, options, deadline, allowed):
    loss = _Loss(vjp, function, primals, options.get("has_aux", False), deadline, allowed)
    try:
        try:
            return loss.found()
        except Refused:
            if not loss.reads_bits:
                raise
        # What is made of bits has steps between the numbers of its type: the function as float64 has it.
        with with_x64():
            return loss.wide().found()
    except Refused as why:
        return Found(str(why))
    except Exception as e:  # of an operation that has no meaning in float64, such as a kernel of the script's own
        return Found(f"the loss cannot be computed in float64 ({type(e).__name__})")


def _traced(tree):
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree_util.tree_leaves(tree))


def _is_float(x):
    return hasattr(x, "dtype") and not is_key(x) and jnp.issubdtype(x.dtype, jnp.floating)


def _floats(arrays):
    return [x for x in arrays if _is_float(x)]


def _wide(x):
    return jnp.asarray(x, "float64") if _is_float(x) else x


def _widened(program):
    """Takes the roundings out of a program: what gives numbers of a shorter type gives those of float64."""
    for e in program.everything():
        e.inputs = [(i[0], np.asarray(i[1], "f8")) if isinstance(i, tuple) and _is_float(i[1]) else i for i in e.inputs]
        if e.name == "reduce_precision":
            e.params = {**e.params, "exponent_bits": 11, "mantissa_bits": 52}
        elif e.name == "bitcast_convert_type":
            e.primitive = _Bits(e.primitive, program.avals[e.inputs[0]].dtype)
        else:
            e.params = {k: _wide_parameter(k, v) if not e.bodies else v for k, v in e.params.items()}
    return program


class _Bits:
    """Reads the bits of numbers as those of the type that they had."""

    name, multiple_results = "bitcast_convert_type", False

    def __init__(self, primitive, dtype):
        self.primitive, self.dtype = primitive, dtype

    def get_bind_params(self, params):
        return self.primitive.get_bind_params(params)

    def bind(self, x, **params):
        return self.primitive.bind(jnp.asarray(x, self.dtype), **params)


def _wide_parameter(key, value):
    if key in ("new_dtype", "dtype", "preferred_element_type") and value is not None and jnp.issubdtype(value, jnp.floating):
        return np.dtype("float64")
    if not hasattr(value, "invars") and not hasattr(value, "jaxpr"):
        return value
    with with_x64():  # how elements are joined: the sum of a scatter-add
        return wide_jaxpr(value)


def _results(program, leaves, hold=lambda e, values: values):
    """Evaluates a program in float64. `hold` as in stepwise.py."""
    with with_x64():
        wide = lambda e, values: hold(e, [_wide(x) for x in values])  # noqa: E731
        return outputs(program, one_by_one(program, [_wide(x) for x in leaves], (), wide))


def _placed(leaves, places, values):
    leaves = list(leaves)
    for i, x in zip(places, values):
        leaves[i] = x
    return leaves


class _Function:
    """A function of arrays, at a point: its values nearby, and what its derivative rules give. What stop_gradient gives
    stays as it is at the point."""

    def __init__(self, vjp, function, leaves, is_loss=False):
        self.leaves, self.places = list(leaves), [i for i, x in enumerate(leaves) if _is_float(x)]
        self.program = trace(function, leaves)
        if len(list(self.program.everything())) > _LARGEST:
            raise Refused(f"the loss has more than {_LARGEST} equations")

        def back(*given):
            count = len(self.leaves)
            results, rule = vjp(lambda *floats: _floats(function(*self.placed(given[:count], floats))), *self.at(given))
            return rule([jnp.asarray(g, r.dtype) for g, r in zip(given[count:], results)])

        self.weights = _signs(_floats(jax.tree_util.tree_leaves(jax.eval_shape(function, *leaves))), 3)
        # A rule may forget what it is given where that is 1 in most steps.
        self.weights = [np.ones(())] if is_loss else [0.75 * w for w in self.weights]
        self.back = _widened(trace(back, [*self.leaves, *(np.asarray(w, "f4") for w in self.weights)]))
        self.program = _widened(self.program)

    def at(self, leaves):
        return [leaves[i] for i in self.places]

    def placed(self, leaves, floats):
        return _placed(leaves, self.places, floats)

    def compared(self, deadline=None):
        """Returns (the largest difference of a slope from the gradient's, relative, and whether one is beyond doubt)."""
        stopped = []

        def keep(e, values):
            if e.name == "stop_gradient":
                stopped.append(values)
            return values

        self.results = _floats(_results(self.program, self.leaves, keep))

        def value(moved):
            if deadline is not None and time.monotonic() > deadline:
                raise Refused("the time was over")
            kept = iter(stopped)
            hold = lambda e, values: next(kept) if e.name == "stop_gradient" else values  # noqa: E731
            results = _floats(_results(self.program, self.placed(self.leaves, moved), hold))
            return np.concatenate([np.ravel(np.asarray(r, "f8") * w) for r, w in zip(results, self.weights)])

        self.value = value
        gradient = [np.asarray(g, "f8") for g in _results(self.back, [*self.leaves, *self.weights])]
        at = [np.asarray(x, "f8") for x in self.at(self.leaves)]
        worst, wrong, length, self.is_smooth = 0.0, False, _norm(gradient), True
        # Each array's gradient counts alike, however small: that of a scale beside those of matrices.
        least = max(2.0**-5 * length / max(len(gradient), 1) ** 0.5, 1e-300)
        across = [d / max(_norm([g]), least) for g, d in zip(gradient, _signs(gradient, 2))]
        for direction, scale in (
            ([g / max(length, 1e-300) for g in gradient], length),
            (across, _norm([g * d for g, d in zip(gradient, across)])),
        ):
            slope, slack, sides = _slope(value, at, direction)
            if direction is not across:
                self.share = abs(slope) / max(length, 1e-300)  # of what the gradient claims
            scale = max(scale, abs(slope), 1e-300)
            difference = abs(slope - sum(float(np.sum(g * d)) for g, d in zip(gradient, direction)))
            if not np.isfinite(difference):
                raise Refused("the loss or its gradient is not finite")
            if slack > _OPEN * scale and difference > _LEAST * scale:
                raise Refused("the loss has kinks where the parameters are")
            worst = max(worst, float(difference / scale))
            wrong |= bool(difference > max(_LEAST * scale, slack))
            self.is_smooth &= bool(sides < _LEAST * difference)
        return worst, wrong

    def meant(self):
        """Why a gradient that is no derivative seems to be meant so; "" if it does not."""
        at = [np.asarray(x, "f8") for x in self.at(self.leaves)]
        # Far from here, where a scale that is 1 at first is another.
        far = [x + max(_norm([x]), 1.0) * s for x, s in zip(at, _signs(at, 6))]
        given = _floats(_results(self.program, self.placed(self.leaves, far)))
        if any(np.shape(r) == x.shape and np.array_equal(r, x) for r in given for x in far):
            return "passes its input on"
        moved = self.value([x + _STEP * _norm([x]) * s for x, s in zip(at, _signs(at, 4))])
        has_steps = np.mean(moved != self.value(at)) < 0.5 or (self.rounds() and self.share < 0.5)
        return "has steps" if has_steps else ""

    def rounds(self):
        """Whether what it gives is computed from an argument by way of a rounding or a sign, whose slope is 0 wherever it has one:
        any gradient of it is chosen, also where a scale that is computed from the same argument has a slope."""

        def is_rounding(e):
            to_integers = e.name == "convert_element_type" and jnp.issubdtype(e.avals[0].dtype, jnp.integer)
            return to_integers or e.name in _ROUNDINGS or any(is_rounding(i) for b in e.bodies for i in b.everything())

        given, rounded = {self.program.inputs[i] for i in self.places}, set()
        for e in self.program.equations:
            read = set(e.operands())
            if read & rounded or (read & given and is_rounding(e)):
                rounded.update(e.outputs)
            elif read & given:
                given.update(e.outputs)
        return any(o in rounded for o in self.program.outputs if not isinstance(o, tuple))


def _norm(arrays):
    return float(np.sqrt(sum(np.sum(np.square(a)) for a in arrays)))


def _signs(like, seed):
    """Random signs that weigh each array alike."""
    random = np.random.default_rng(seed)
    return [np.asarray(random.choice([-1.0, 1.0], np.shape(a)) / max(np.size(a), 1) ** 0.5) for a in like]


def _slope(value, at, direction):
    """Returns (slope, how uncertain it is, how far its two sides are apart) along a direction, by differences, of the sum of
    value(moved). The two sides are held against each other element by element: kinks of several may cancel in the sum."""
    here, size = value(at), (_norm(at) or 1.0) / max(_norm(direction), 1e-300)
    slopes, sides = [], 0.0
    for h in (_STEP * size, _STEP * size / 8):
        up, down = (value([a + s * h * d for a, d in zip(at, direction)]) for s in (1, -1))
        slopes.append(float(np.sum(up - down) / (2 * h)))
        sides = max(sides, float(np.sum(np.abs((up - here) - (here - down))) / (2 * h)))
    rounding = 2.0**-46 * float(np.sum(np.abs(here))) / (_STEP * size / 8)
    return slopes[0], _CERTAIN * abs(slopes[0] - slopes[1]) + sides + rounding, sides


class _Loss:
    """What a step gives to grad, with the arguments that it is given."""

    def __init__(self, vjp, function, primals, has_aux, deadline, allowed):
        self.vjp, self.function, self.has_aux, self.deadline, self.allowed = vjp, function, has_aux, deadline, allowed
        self.given, self.tree = jax.tree_util.tree_flatten(primals)
        self.leaves, self.reads_bits = self.given, False

    def wide(self):
        self.leaves = [_wide(x) for x in self.given]
        return self

    def loss(self, *leaves):
        out = self.function(*jax.tree_util.tree_unflatten(self.tree, leaves))
        return [out[0] if self.has_aux else out]

    def found(self):
        found = Found()
        whole = _Function(self.vjp, self.loss, self.leaves, is_loss=True)
        self.reads_bits = any(e.name == "bitcast_convert_type" for e in whole.program.everything())
        found.worst, wrong = whole.compared(self.deadline)
        culprit = (self.rule() or self.equation(whole)) if wrong else None
        if wrong and not culprit:
            # The loss may have a kink just here, as behind biases of 0: a little beside, it has none. Where it has none here,
            # either, the gradient is wrong just here: where(x == 0, x, f(x)) has the slope of x.
            here = {"rule": "here", "place": "", "off": found.worst, "meant": ""} if whole.is_smooth else None
            random = np.random.default_rng(5)
            for i in whole.places:
                x = np.asarray(whole.leaves[i])
                whole.leaves[i] = jnp.asarray(x + 2.0**-10 * (1 + np.abs(x)) * random.normal(size=x.shape), x.dtype)
            self.leaves = whole.leaves
            found.worst, wrong = whole.compared(self.deadline)
            culprit = (self.rule() or self.equation(whole)) if wrong else here
            wrong = wrong or here
        if wrong:
            found.wrong = culprit or {"rule": "", "place": "", "off": found.worst, "meant": ""}
        return found

    def rule(self):
        """Returns the first rule of a custom_vjp or custom_jvp that is no derivative of its function; one on purpose hides no other."""
        wrong, inside = [], []

        def watching(original):
            def call(rule, *arguments, **keywords):
                leaves, tree = jax.tree_util.tree_flatten((arguments, keywords))
                if not (inside or _traced(leaves) or not all(map(excused, wrong))):
                    inside.append(True)
                    found = self.local(lambda *given: _called(original, rule, tree, given), leaves)
                    inside.pop()
                    if found:
                        wrong.append(self.of_rule(rule, found))
                return original(rule, *arguments, **keywords)

            return call

        with custom_rules(watching):
            self.loss(*self.leaves)
        if all(map(excused, wrong)):
            wrong += filter(None, [self.transformed_rule()])
        return min(wrong, key=excused, default=None)

    def of_rule(self, rule, found):
        name = _name(rule)
        return {**found, "rule": name, "place": _place(rule), "allowed": bool({name, name.rpartition(".")[2]} & set(self.allowed))}

    def transformed_rule(self):
        """The same of rules that are called before there are values, within vmap and checkpoint: where the function's equations have
        them."""
        rules, excuses = {}, []

        def watching(original):
            def call(rule, *arguments, **keywords):
                with contextlib.suppress(AttributeError):
                    code = inspect.unwrap(rule.fun).__code__
                    rules[f"{code.co_filename}:{code.co_firstlineno}"] = rule
                return original(rule, *arguments, **keywords)

            return call

        def walk(jaxpr, values):
            """Returns (what is wrong with the first wrong rule, results)."""
            inner, constants = inner_jaxpr(jaxpr)
            env = dict(zip([*inner.constvars, *inner.invars], [*constants, *values]))
            given_by = lambda atom: atom.val if hasattr(atom, "val") else env[atom]  # noqa: E731
            for e in inner.eqns:
                given, name = [given_by(a) for a in e.invars], e.primitive.name
                if name in ("custom_jvp_call", "custom_vjp_call"):
                    source = getattr(e.params["call_jaxpr"].jaxpr.debug_info, "func_src_info", None) or ""
                    rule = rules.get(source.rpartition(" at ")[2])
                    found = rule and self.local(lambda *given, e=e: bound(e.primitive, e.params, given), given)
                    if found and not excused(found := self.of_rule(rule, found)):
                        return found, None
                    excuses.extend([found] if found else [])
                if name in ("remat", "remat2", "checkpoint", "jit", "pjit", "closed_call"):
                    found, out = walk(e.params["jaxpr"], given)
                    if found:
                        return found, None
                else:
                    out = bound(e.primitive, e.params, given)
                env.update(zip(e.outvars, out))
            return None, [given_by(a) for a in inner.outvars]

        try:
            jax.clear_caches()  # checkpoint remembers what it has traced, and would not call the rule
            with custom_rules(watching):
                traced = jax.make_jaxpr(self.loss)(*self.leaves)
            return (walk(traced, self.leaves)[0] or next(iter(excuses), None)) if rules else None
        except Exception:  # what cannot be evaluated equation by equation
            return None

    def local(self, function, leaves):
        """Returns what is wrong with the derivative of a function of arrays; None if nothing is known to be."""
        arrays = [i for i, x in enumerate(leaves) if hasattr(x, "dtype")]

        try:
            asked = _Function(self.vjp, lambda *given: function(*_placed(leaves, arrays, given)), [leaves[i] for i in arrays])
            worst, wrong = asked.compared() if asked.places else (0.0, False)
        except Exception:  # what has no meaning in float64 by itself, or a kink here
            return None
        return {"off": worst, "meant": asked.meant()} if wrong else None

    def equation(self, whole):
        """Returns the first equation whose rule, one of JAX's own, is no derivative of it."""
        with with_x64():
            env = one_by_one(whole.program, [_wide(x) for x in whole.leaves], None, lambda e, values: [_wide(x) for x in values])
            for e in whole.program.equations:
                if e.bodies or e.name == "stop_gradient" or isinstance(e.primitive, str):
                    continue
                values = [jnp.asarray(i[1]) if isinstance(i, tuple) else env[i] for i in e.inputs]
                found = self.local(lambda *given, e=e: bound(e.primitive, e.params, given), values)
                if found:
                    return {**found, "rule": f"{e}", "place": e.place, "meant": ""}
        return None


def _called(original, rule, tree, given):
    arguments, keywords = jax.tree_util.tree_unflatten(tree, given)
    return jax.tree_util.tree_leaves(original(rule, *arguments, **keywords))


def _name(rule):
    function = inspect.unwrap(rule.fun)
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '?')}"


def _place(rule):
    """The line where the backward rule is defined, or its function."""
    for function in (getattr(rule, "bwd", None), getattr(rule, "jvp", None), rule.fun):
        with contextlib.suppress(AttributeError):
            code = inspect.unwrap(function).__code__
            line = code.co_firstlineno
            with contextlib.suppress(OSError, TypeError):  # decorators come first
                line += next((i for i, text in enumerate(inspect.getsourcelines(code)[0]) if text.lstrip().startswith("def ")), 0)
            return f"{os.path.basename(code.co_filename)}:{line}"
    return ""
