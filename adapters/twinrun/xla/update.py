"""Are the transformations of optax that a step calls their published formulas? The recorded steps run once more without being compiled,
what each transformation is given and gives is kept, and the formula is evaluated on the same numbers in float64.

    found = check(form, steps, versions)
    found.asked, found.wrong    # names; None, or {"name", "what", "step", "off", "looks"}
"""

import os
import sys
import time
import types

import jax
import numpy as np

from .compat import is_key

_MOST_CALLS = 256
# Every number is rounded by a few operations, and what is common to all elements (a correction of the bias) by as many:
# so many units of the largest element are allowed for.
_UNITS = 64.0


def _moment(old, x, decay):
    return decay * old + (1 - decay) * x


def _corrected(x, decay, t):
    return x / (1 - decay**t)


def _first(h, mu, g, t):
    """The first moment as the update takes it: corrected, and with Nesterov's look ahead (Dozat 2016)."""
    if not h.get("nesterov"):
        return _corrected(mu, h["b1"], t)
    return h["b1"] * _corrected(mu, h["b1"], t + 1) + (1 - h["b1"]) * _corrected(g, h["b1"], t)


def _ratio(h, mu, nu):
    return mu / (np.sqrt(nu + h.get("eps_root", 0.0)) + h["eps"])


def _adam(h, g, s, p):
    t, mu, nu = s.count + 1, _moment(s.mu, g, h["b1"]), _moment(s.nu, g * g, h["b2"])
    return _ratio(h, _first(h, mu, g, t), _corrected(nu, h["b2"], t)), {"count": t, "mu": mu, "nu": nu}


def _amsgrad(h, g, s, p):
    t, mu, nu = s.count + 1, _moment(s.mu, g, h["b1"]), _moment(s.nu, g * g, h["b2"])
    first = _corrected(mu, h["b1"], t) if h.get("bias_correction_mu", True) else mu
    largest = np.maximum(s.nu_max, _corrected(nu, h["b2"], t) if h.get("bias_correction_nu", True) else nu)
    return _ratio(h, first, largest), {"count": t, "mu": mu, "nu": nu, "nu_max": largest}


def _adamax(h, g, s, p):
    t, mu, nu = s.count + 1, _moment(s.mu, g, h["b1"]), np.maximum(np.abs(g) + h["eps"], h["b2"] * s.nu)
    return _corrected(mu, h["b1"], t) / nu, {"count": t, "mu": mu, "nu": nu}


def _belief(h, g, s, p):
    t, mu = s.count + 1, _moment(s.mu, g, h["b1"])
    nu = _moment(s.nu, (g - mu) ** 2, h["b2"]) + h["eps_root"]
    return _first(h, mu, g, t) / (np.sqrt(_corrected(nu, h["b2"], t)) + h["eps"]), {"count": t, "mu": mu, "nu": nu}


def _yogi(h, g, s, p):
    t, mu = s.count + 1, _moment(s.mu, g, h["b1"])
    nu = s.nu - (1 - h["b2"]) * np.sign(s.nu - g * g) * g * g
    return _ratio(h, _corrected(mu, h["b1"], t), _corrected(nu, h["b2"], t)), {"count": t, "mu": mu, "nu": nu}


def _radam(h, g, s, p):
    t, mu, nu = s.count + 1, _moment(s.mu, g, h["b1"]), _moment(s.nu, g * g, h["b2"])
    longest, first = 2 / (1 - h["b2"]) - 1, _first(h, mu, g, t)
    length = longest - 2 * t * h["b2"] ** t / (1 - h["b2"] ** t)
    rectified = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    update = np.sqrt(rectified) * _ratio(h, first, _corrected(nu, h["b2"], t)) if length >= h["threshold"] else first
    return update, {"count": t, "mu": mu, "nu": nu}


def _adan(h, g, s, p):
    t, moved = s.t + 1, 0 * g if s.t == 0 else g - s.g
    m, v = _moment(s.m, g, h["b1"]), _moment(s.v, moved, h["b2"])
    n = _moment(s.n, (g + h["b2"] * moved) ** 2, h["b3"])
    first = _corrected(m, h["b1"], t) + h["b2"] * _corrected(v, h["b2"], t)
    return _ratio(h, first, _corrected(n, h["b3"], t)), {"t": t, "m": m, "v": v, "n": n, "g": g}


def _adadelta(h, g, s, p):
    e_g = _moment(s.e_g, g * g, h["rho"])
    update = np.sqrt(s.e_x + h["eps"]) / np.sqrt(e_g + h["eps"]) * g
    return update, {"e_g": e_g, "e_x": _moment(s.e_x, update * update, h["rho"])}


def _rms(h, g, s, p):
    nu, state = _moment(s.nu, g * g, h["decay"]), {}
    seen = nu
    if hasattr(s, "count"):
        state["count"] = s.count + 1
        if h.get("bias_correction"):
            seen = _corrected(nu, h["decay"], s.count + 1)
    inside = h.get("eps_in_sqrt", True)
    return g / (np.sqrt(seen + h["eps"]) if inside else np.sqrt(seen) + h["eps"]), {"nu": nu, **state}


def _stddev(h, g, s, p):
    mu, nu, state = _moment(s.mu, g, h["decay"]), _moment(s.nu, g * g, h["decay"]), {}
    m, n = mu, nu
    if hasattr(s, "count"):
        state["count"] = s.count + 1
        if h.get("bias_correction"):
            m, n = (_corrected(x, h["decay"], s.count + 1) for x in (mu, nu))
    inside = h.get("eps_in_sqrt", True)
    spread = n - m * m
    # What is left of terms that cancel is rounding.
    spread = np.where(np.abs(spread) < 2.0**-12 * n, np.nan, spread)
    return g / (np.sqrt(spread + h["eps"]) if inside else np.sqrt(spread) + h["eps"]), {"mu": mu, "nu": nu, **state}


def _rss(h, g, s, p):
    total = s.sum_of_squares + g * g
    return np.where(total > 0, g / np.sqrt(np.where(total > 0, total + h["eps"], 1)), 0), {"sum_of_squares": total}


def _sign(x):
    """Whose sign rounding decides, nobody knows."""
    return np.where(np.abs(x) > 2.0**-20 * np.max(np.abs(x), initial=0), np.sign(x), np.where(x == 0, 0, np.nan))


def _lion(h, g, s, p):
    x = (1 - h["b1"]) * g + h["b1"] * s.mu
    if h.get("mode", "hard") != "hard":
        return None
    return _sign(x), {"count": s.count + 1, "mu": _moment(s.mu, g, h["b2"])}


def _rprop(h, g, s, p):
    same = np.sign(g) * np.sign(s.prev_updates)
    grown = np.clip(s.step_sizes * np.where(same > 0, h["eta_plus"], h["eta_minus"]), h["min_step_size"], h["max_step_size"])
    sizes = np.where(same == 0, s.step_sizes, grown)
    given = np.where(same < 0, 0, sizes * np.sign(g))
    return given, {"step_sizes": sizes, "prev_updates": given}


def _trace(h, g, s, p):
    trace = g + h["decay"] * s.trace
    return g + h["decay"] * trace if h["nesterov"] else trace, {"trace": trace}


def _ema(h, g, s, p):
    ema = _moment(s.ema, g, h["decay"])
    return _corrected(ema, h["decay"], s.count + 1) if h["debias"] else ema, {"count": s.count + 1, "ema": ema}


def _trust_ratio(h, g, s, p):
    norm = lambda x: max(np.sqrt(np.sum(x * x)), h["min_norm"])  # noqa: E731
    if norm(p) == 0 or norm(g) == 0:
        return g, {}
    return g * (h["trust_coefficient"] * norm(p) / (norm(g) + h["eps"])), {}


def _novograd(h, g, s, p):
    total = np.sum(g * g)
    nu = total if s.count == 0 else _moment(s.nu, total, h["b2"])
    mu = h["b1"] * s.mu + g / (np.sqrt(nu + h["eps_root"]) + h["eps"]) + h["weight_decay"] * p
    return mu, {"count": s.count + 1, "mu": mu, "nu": nu}


def _optimistic(h, g, s, p):
    before = g if np.any(s.is_initial_step) else s.previous_gradient
    return (h["alpha"] + h["beta"]) * g - h["beta"] * before, {"previous_gradient": g}


def _decayed(h, g, s, p):
    return g + h["weight_decay"] * p, {}


def _clip(h, g, s, p):
    return np.clip(g, -h["max_delta"], h["max_delta"]), {}


def _clip_by_global_norm(h, gradients):
    """Of all leaves together."""
    norm = np.sqrt(sum(np.sum(g * g) for g in gradients))
    return [g if norm < h["max_norm"] else g / norm * h["max_norm"] for g in gradients], {}


def _schedule(h, g, s, p):
    return g * float(h["step_size_fn"](s.count)), {"count": s.count + 1}


# By the function of optax that makes the transformation. Sources: optax's documentation, and the papers that it names.
FORMULAS = {
    "scale_by_adam": _adam, "scale_by_amsgrad": _amsgrad, "scale_by_adamax": _adamax, "scale_by_belief": _belief, "scale_by_yogi": _yogi,
    "scale_by_radam": _radam, "scale_by_adan": _adan, "scale_by_adadelta": _adadelta, "scale_by_rms": _rms, "scale_by_stddev": _stddev,
    "scale_by_rss": _rss, "scale_by_lion": _lion, "scale_by_rprop": _rprop, "trace": _trace, "ema": _ema,
    "scale_by_novograd": _novograd, "scale_by_optimistic_gradient": _optimistic, "clip_by_global_norm": _clip_by_global_norm,
    "scale_by_schedule": _schedule, "scale_by_trust_ratio": _trust_ratio, "add_decayed_weights": _decayed, "clip": _clip,
    "scale": lambda h, g, s, p: (g * h["step_size"], {}), "scale_by_sign": lambda h, g, s, p: (np.sign(g), {}),
}  # fmt: skip
# What calls others, or gives what it is given.
_COMPOSED = {"chain", "named_chain", "masked", "partition", "multi_transform", "inject_hyperparams", "inject_stateful_hyperparams",
             "stateless", "with_extra_args_support", "identity", "flatten", "apply_if_finite", "conditionally_transform",
             "conditionally_mask", "skip_not_finite", "wrap"}  # fmt: skip


def _exchanged(h, a, b):
    return {**h, a: h.get(b, 0.0), b: h.get(a, 0.0)}


# What a transformation that is not its formula looks like: the formula with other settings or another count.
_LOOKS = {
    "without the correction of the bias": lambda h, t: (h, 10**6),
    "with the correction of one step before": lambda h, t: (h, max(t - 1, 0)),
    "with epsilon under the root": lambda h, t: (_exchanged(h, "eps", "eps_root"), t),
    "with the decays exchanged": lambda h, t: (_exchanged(h, "b1", "b2"), t),
    "without Nesterov's look ahead": lambda h, t: ({**h, "nesterov": False}, t),
    "with Nesterov's look ahead": lambda h, t: ({**h, "nesterov": True}, t),
}


class Found:
    """asked: names of transformations that are their formulas; unknown: of those without one here; why nothing was asked."""

    def __init__(self, why=""):
        self.why, self.asked, self.unknown, self.worst, self.wrong = why, {}, {}, 0.0, None


class _Calls:
    """Keeps the calls of optax's transformations, by what the interpreter tells a profiler."""

    def __init__(self):
        self.calls, self.open = [], []

    def __call__(self, frame, event, value):
        code = frame.f_code
        if code.co_name != "update_fn" or event not in ("call", "return") or f"{os.sep}optax{os.sep}" not in code.co_filename:
            return
        if event == "call":
            given = dict(frame.f_locals)
            self.open.append({**given, "updates": given.get(code.co_varnames[0])})
        elif self.open:
            given = self.open.pop()
            if value is not None and len(self.calls) < _MOST_CALLS:    # else it has raised
                self.calls.append((_maker(code), given, value))


def _maker(code):
    return getattr(code, "co_qualname", "").partition(".")[0]


def _settings(given):
    """The numbers that a transformation was made with, with those of its own functions, as its arithmetic has them; and its schedule."""
    wide = any(x.dtype == np.float64 for x in _leaves(given["updates"]))
    out, all_names = {}, {}

    def enclosed(names, depth):
        for name, value in names.items():
            if isinstance(value, types.FunctionType) and value.__closure__ and depth < 3:
                enclosed({n: c.cell_contents for n, c in zip(value.__code__.co_freevars, value.__closure__)}, depth + 1)
            all_names.setdefault(name, value)

    enclosed(given, 0)
    for name, value in all_names.items():
        if isinstance(value, (bool, str)) or name == "step_size_fn":
            out[name] = value
        elif isinstance(value, (int, float, np.ndarray, jax.Array)) and np.shape(value) == () and not is_key(value):
            out[name] = float(value) if wide else float(np.float32(value))
    return out


def _count(state):
    """How many updates came before; None of a state that does not count."""
    fields = getattr(state, "_fields", ())
    name = "count" if "count" in fields else "t" if "t" in fields else None
    return None if name is None else int(getattr(state, name))


def _leaves(tree):
    return [np.asarray(x) for x in jax.tree_util.tree_leaves(tree) if not is_key(x)]


def _evaluated(formula, settings, given, at=None):
    """Returns the formula's (updates, {field: leaves}); at: another count of steps."""
    updates, params, state = _leaves(given["updates"]), _leaves(given.get("params")), given["state"]
    fields = {f: _leaves(getattr(state, f)) for f in getattr(state, "_fields", ())}
    out, new = [], {}
    if formula is _clip_by_global_norm:
        return formula(settings, [g.astype("f8") for g in updates])
    for i, g in enumerate(updates):
        s = types.SimpleNamespace()
        for name, leaves in fields.items():
            is_count = name in ("count", "t")
            one = leaves[i] if len(leaves) == len(updates) and not is_count else leaves[0]
            setattr(s, name, (int(one) if at is None else at) if is_count else one.astype("f8"))
        p = params[i].astype("f8") if len(params) == len(updates) else None
        result = formula(settings, g.astype("f8"), s, p)
        if result is None:
            return None
        out.append(result[0])
        for name, x in result[1].items():
            if name not in ("count", "t"):
                new.setdefault(name, []).append(x)
    return out, new


def _off(expected, got):
    """The largest difference over the largest expected element; what is not decided (NaN) is left out."""
    pairs = [(np.asarray(e, "f8"), np.asarray(x).astype("f8")) for e, x in zip(expected, got)]
    largest = max((float(np.nanmax(np.abs(e), initial=0)) for e, _ in pairs if e.size), default=0.0)
    apart = max((float(np.nanmax(np.abs(e - x), initial=0)) for e, x in pairs if e.size), default=0.0)
    return apart / largest if largest > 0 else apart


def _differences(expected, given, value, settings):
    """Returns {what: (how far off, allowed)}: each part of the state, and what is computed of it, the update."""
    cancels, count = 1.0, _count(given["state"])
    if count is not None:    # 1 - decay**t, of a power that is rounded
        decays = [settings[n] for n in ("b1", "b2", "b3", "decay") if isinstance(settings.get(n), float) and 0 < settings[n] < 1]
        cancels = max([1.0, *(1 / (1 - d ** (count + 1)) for d in decays)])

    def compared(leaves, got):
        # A moment that is kept in bfloat16 is rounded on its way into the update as well.
        dtypes = [x.dtype for x in [*got, *_leaves(given["state"])] if jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)]
        unit = max((float(jax.numpy.finfo(d).eps) / 2 for d in dtypes), default=0.0)
        return _off(leaves, got), unit * _UNITS + 2.0**-24 * 4 * cancels

    updates, state = expected
    parts = {f"state {name}": compared(leaves, _leaves(getattr(value[1], name))) for name, leaves in state.items()}
    return {**parts, "update": compared(updates, _leaves(value[0]))}


def _examine(found, name, given, value, step):
    formula = FORMULAS.get(name)
    if formula is None:
        if name and name not in _COMPOSED:
            found.unknown[name] = None
        return
    settings = _settings(given)
    try:
        expected = _evaluated(formula, settings, given)
        differences = expected and _differences(expected, given, value, settings)
    except (KeyError, AttributeError, IndexError, TypeError, ValueError):    # of a release with other names
        expected = None
    if expected is None:
        found.unknown[name] = None
        return
    wrong = [(what, off) for what, (off, allowed) in differences.items() if off > allowed]
    if not wrong:
        found.asked[name] = None
        found.worst = max([found.worst, *(off for off, _ in differences.values())])
        return
    (what, off), looks, count = wrong[0], "", _count(given["state"])
    for words, other in _LOOKS.items():
        changed, at = other(settings, count or 0)
        try:
            tried = _evaluated(formula, changed, given, None if count is None else at)
            if tried and all(o <= allowed for o, allowed in _differences(tried, given, value, settings).values()):
                looks = words
                break
        except (KeyError, ZeroDivisionError):
            continue
    found.wrong = {"name": name, "what": what, "off": off, "step": step, "looks": looks}


def check(form, steps, seconds=20):
    """steps: leaves of each step's arguments. Runs them without compiling, no further one after so many seconds."""
    if "optax" not in sys.modules:
        return Found("the script has no optax")
    if sys.getprofile() is not None or sys.version_info < (3, 11):
        return Found("a profiler runs" if sys.getprofile() else "Python before 3.11 does not name a transformation")
    found, begun = Found(), time.monotonic()
    for step, leaves in enumerate(steps):
        if time.monotonic() - begun > seconds:
            break
        calls = _Calls()
        try:
            with jax.disable_jit():
                sys.setprofile(calls)
                try:
                    form.flat(*leaves)
                finally:
                    sys.setprofile(None)
        except Exception as e:
            return Found(f"the step does not run without being compiled ({type(e).__name__})")
        for name, given, value in calls.calls:
            if any(isinstance(x, jax.core.Tracer) for x in jax.tree_util.tree_leaves((given["updates"], value))):
                continue
            _examine(found, name, given, value, step)
            if found.wrong:
                return found
    return found
