"""Serves a JAX training script as an engine: docs/guides/own-engine.md. Unlike the rest of the package, this needs jax, and optax if used.

    from twinrun_engine.jax import serve_script
    serve_script(train_step, (params, opt_state))                  # train_step(params, opt_state, images, labels)
                                                                   #     -> params, opt_state, loss, gradients
    serve_script(train_step, train_state)                          # train_step(state, images, labels) -> state, loss, gradients
    serve_script(train_step, (model, optimizer))                   # flax.nnx: train_step(model, optimizer, images, labels) -> loss
    serve_script(loss_fn=loss_fn, optimizer=optimizer, params=params)    # loss_fn(params, images, labels) -> loss

If a train_step does not return its gradients, wrap its optimizer to record them: watch(optax.adam(1e-3)).
"""
import functools
import inspect
import json
import os
import re
import sys
import typing

import jax
import jax.numpy as jnp
import numpy as np

from .model import Counters, features_of
from .names import Ambiguous, Candidate, Form, Unit, leaves_of, matched, nearest
from .protocol import Unsupported, alive, serve, take_session

# The program's slot -> the field of optax's state that holds the same numbers, and their sign there: after the learning rate, optax
# keeps what is added to weights, and the program keeps what is subtracted from them.
MOMENTS = {"adam_m": ("mu", 1), "adam_v": ("nu", 1)}
SLOTS = {
    "sgd": {},
    "momentum": {"momentum": ("trace", 1)},
    "adam": MOMENTS, "adamw": MOMENTS,
    "lamb": {"lamb_m": ("mu", 1), "lamb_v": ("nu", 1)},
    "adamax": {"adamax_m": ("mu", 1), "adamax_v": ("nu", 1)},
    "adagrad": {"accumulator": ("sum_of_squares", 1)},
    "adadelta": {"accum": ("e_g", 1), "accum_update": ("e_x", 1)},
    "rmsprop": {"rms": ("nu", 1), "mg": ("mu", 1), "momentum": ("trace", -1)},
    "lars": {"momentum": ("trace", -1)},
    "adafactor": {"vr": ("v_row", 1), "vc": ("v_col", 1), "v": ("v", 1), "m": ("ema", 1)},
}
STATISTICS = ("mean", "var", "running_mean", "running_var", "moving_mean", "moving_variance")
OFFERED = ("learning_rate", "step", "weights", "random")
take_session()    # before the script reads its arguments


def largest_dims(shape):
    """Returns the indices (second, first) of a shape's largest dimensions, which optax's adafactor factors."""
    return tuple(int(i) for i in np.argsort(shape)[-2:])


def field_of(kind, slot, shape):
    """Returns (field, sign) of a slot of a parameter. optax's row of a matrix is the mean over its larger dimension."""
    field, sign = SLOTS[kind][slot]
    if kind == "adafactor" and len(shape) >= 2 and largest_dims(shape)[1] != len(shape) - 1:
        field = {"v_row": "v_col", "v_col": "v_row"}.get(field, field)
    return field, sign


class Watched(typing.NamedTuple):
    """The state of watch()."""
    gradients: typing.Any
    inner: typing.Any


def watch(optimizer):
    """Returns an optax optimizer that records its gradients, so that they need not be returned. In a chain, wrap what comes after
    clipping: optax.chain(optax.clip_by_global_norm(1.0), watch(optax.adam(1e-3)))."""
    import optax

    def update(gradients, state, params=None, **more):
        changes, inner = optax.with_extra_args_support(optimizer).update(gradients, state.inner, params, **more)
        return changes, Watched(gradients, inner)

    def init(params):
        return Watched(jax.tree.map(jnp.zeros_like, params), optimizer.init(params))

    return optax.GradientTransformationExtraArgs(init, update)


# What show() recorded in the current step, {name: {replica: [arrays]}}; None: nothing is requested, and show() does nothing.
shown: typing.Any = None


def keep(name, where, value):
    shown.setdefault(name, {}).setdefault(int(where), []).append(np.asarray(value, np.float32))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def noted(name, x, where):
    jax.debug.callback(functools.partial(keep, name), where, x)
    return x


noted.defvjp(lambda name, x, where: (noted(name, x, where), where),
             lambda name, where, g: (jax.debug.callback(functools.partial(keep, f"{name}.grad"), where, g), (g, None))[1])


def show(name, x, axis=None):
    """Returns x. When twinrun looks for the layer in which a step went wrong, this records x as the result of the scenario's layer
    `name`, and the gradient there:

        x = show("conv1", conv(params, x))

    axis: the name of jax.pmap's axis, if a step has several replicas."""
    if shown is None:
        return x
    return noted(name, x, jnp.int32(0) if axis is None else jax.lax.axis_index(axis))


def words(path):
    """Returns a path of jax.tree_util as words: ('params', 'Dense_0', 'kernel')."""
    return tuple(str(next(getattr(key, name) for name in ("key", "name", "idx") if hasattr(key, name))) for key in path)


def natural(path):
    """A sort key that puts Dense_2 before Dense_10."""
    return [[(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", word) if part] for word in path]


def numberless(path):
    return re.sub(r"\d+", "#", "/".join(path))


def forms(label, shape):
    """Returns the ways to read a tensor; attention's heads may have an axis of their own."""
    leaves = leaves_of(label, len(shape))
    if len(shape) == 3 and "kernel" in leaves:
        return [Form(leaves, (shape[0], shape[1] * shape[2])), Form(leaves, (shape[0] * shape[1], shape[2]))] + (
            [Form(leaves, shape[1:])] if shape[0] == 1 else [])
    return [Form(leaves, shape if "bias" not in leaves or len(shape) < 2 else (int(np.prod(shape)),))]


def is_float(leaf):
    return jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.floating)


def is_object(part):
    """Whether something is a module or an optimizer of flax.nnx: changed in place, not returned."""
    return any(c.__module__.startswith("flax.nnx") and c.__name__ in ("Pytree", "Object", "Module") for c in type(part).__mro__)


def paths_of(leaves):
    """Returns the paths of a pytree's leaves, given the result of tree_flatten_with_path."""
    paths = [words(path) for path, _ in leaves]
    objects = paths and all(p[-1:] == ("value",) for p in paths)    # flax.nnx: each variable is an object
    return [p[:-1] for p in paths] if objects else paths


class Tree:
    """A script's state, and the role of each of its leaves."""

    def __init__(self, state, parts, stacked):
        """parts: whether the state is several arguments. stacked: whether its arrays have a leading axis of devices."""
        found, self.structure = jax.tree_util.tree_flatten_with_path(state)
        self.paths, self.leaves = paths_of(found), [leaf for _, leaf in found]
        self.shapes = [np.shape(leaf)[1:] if stacked else np.shape(leaf) for leaf in self.leaves]
        named = [p[:p.index("params") + 1] for p in self.paths if "params" in p]
        self.prefix = min(named, key=len) if named else ("0",) if parts else ()
        self.params = {i: p[len(self.prefix):] for i, p in enumerate(self.paths)
                       if p[:len(self.prefix)] == self.prefix and is_float(self.leaves[i])}    # without keys and counts of random numbers

    def units(self):
        """Returns a Unit for each layer: the leaves of one dictionary or tuple, with the batch statistics of the same path."""
        units, own = {}, dict(self.params)
        own |= {i: p for i, p in enumerate(self.paths) if i not in own and p[-1] in STATISTICS}
        for i, path in sorted(own.items(), key=lambda item: natural(item[1])):
            label, unit = path[-1] if path else "", path[:-1]
            if i not in self.params:    # batch_stats/BatchNorm_0/mean belongs to params/BatchNorm_0
                unit = max((p[:-1] for p in self.params.values() if len(p) > 1 and unit[-len(p[:-1]):] == p[:-1]), key=len, default=unit)
            number = re.findall(r"\d+$", label) if not label.isdigit() else []
            tensor = Candidate(json.dumps("/".join(path)), i, forms("" if label.isdigit() else label, self.shapes[i]))
            units.setdefault((unit, *number), []).append(tensor)
        return [Unit("/".join((*unit, *number)), tensors, unit[-1] if unit else "") for (unit, *number), tensors in units.items()]

    def slot(self, parameter, field):
        """Returns the leaf of an optimizer's state that holds a parameter's `field`, or None."""
        path = self.params[parameter]
        for i, found in enumerate(self.paths):
            before = found[:len(found) - len(path)]
            if i not in self.params and found[len(before):] == path:
                before = before[:-1] if before[-1:] == ("params",) else before
                if before[-1:] == (field,):
                    return i
        return None


class Run:
    """One program, as the script computes it."""

    def __init__(self, places, slots):
        self.places, self.slots = places, slots    # name: (leaf, sign)
        self.leaves, self.counters = None, None


def finite(arrays):
    return all(np.isfinite(a).all() for a in arrays.values())


class Script:
    """The engine that serve_script() serves."""

    def __init__(self, train_step, state, names, cores, hello):
        self.train_step, self.state, self.names, self.cores = train_step, state, names, cores
        self.count = len(state) if type(state) is tuple else 1    # number of arguments that are state
        self.objects = any(map(is_object, state if type(state) is tuple else (state,)))
        self.tree = Tree(self.inside(state), type(state) is tuple, cores is not None)
        self.wanted = self.asked()
        self.hello = {"name": os.path.basename(sys.argv[0]), "version": f"jax {jax.__version__}", "precision": "f32",
                      "conventions": "optax", "max_cores": cores or 1, "activations": True, **hello}

    def inside(self, state):
        """Returns the arrays of a state; for modules and optimizers of flax.nnx, their content."""
        if not self.objects:
            return state
        from flax import nnx
        return nnx.state(state)

    def asked(self):
        try:
            parameters = inspect.signature(self.train_step).parameters.values()
        except (TypeError, ValueError):
            return []
        return [p.name for p in parameters if p.name in OFFERED and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]

    # ---- what the program asks for

    def prepare(self, program):
        kind, reasons = program.optimizer["kind"], []
        if program.cores > (self.cores or 1):
            reasons.append(f"{program.cores} cores are not supported: serve_script() was called for {self.cores or 1}")
        if kind not in SLOTS:
            reasons.append(f"optimizer '{kind}' is not supported")
        if program.scenario["train"].get("accumulate", 1) > 1:
            reasons.append("accumulation of gradients is not supported: one call of train_step is one update")
        if program.optimizer.get("ema", 0) > 0:
            reasons.append("averaged weights are not supported: set optimizer.ema to 0")
        variables = [v for v in program.state if v.role in ("parameter", "statistic")]
        places, wrong = self.given(variables) if self.names is not None else self.told(variables)
        slots = {}
        for v in program.state:
            name, _, slot = v.name.rpartition(".")
            if v.role != "slot" or name not in places or kind not in SLOTS or slot not in SLOTS[kind]:
                continue
            field, sign = field_of(kind, slot, next(p.shape for p in variables if p.name == name))
            leaf = self.tree.slot(places[name], field)
            leaf = self.own_slot(program, places[name], slot) if leaf is None else leaf
            if leaf is None and (kind, slot) != ("rmsprop", "momentum"):
                wrong.append(f"the state has no '{field}' for '{v.name}': does the script's optimizer do what '{kind}' does?")
            slots[v.name] = leaf, sign
        if reasons + wrong:
            raise Unsupported(list(dict.fromkeys(reasons + wrong)))
        if self.names is None:
            paths = {n: "/".join(self.tree.params.get(i, self.tree.paths[i])) for n, i in places.items()}
            print("twinrun_engine: variables found in the state: " + ", ".join(f"{n} = {path}" for n, path in paths.items()),
                  file=sys.stderr, flush=True)
        program.own = Run(places, slots)

    def told(self, variables):
        """Returns ({name: leaf}, [errors]) found from shapes, numbers and words."""
        units = self.tree.units()
        try:
            pairs, close = matched(variables, units)
        except Ambiguous as error:
            return {}, [str(error)]
        places, wrong = {name: candidate.handle for name, (candidate, _) in pairs.items()}, []
        for alike in close:    # dictionaries are sorted, so only numbers tell an order
            leaves = [next(i for n, i in places.items() if n.rpartition("/")[0] == unit) for unit in alike]
            paths = [self.tree.params.get(i, self.tree.paths[i]) for i in leaves]
            if len({numberless(p) for p in paths}) > 1:
                draft = ", ".join(f'"{n}": {pairs[n][0].path}' for n in places)
                wrong.append(f"{', '.join(alike)} have one shape, and the names {', '.join('/'.join(p[:-1]) for p in paths)} do not tell "
                             f"their order. Name them: serve_script(.., names={{{draft}}})")
        wrong += [f"the program has no variable for {'/'.join(path)} {list(self.tree.shapes[i])}" for i, path in self.tree.params.items()
                  if i not in places.values()]
        return places, wrong

    def given(self, variables):
        """Returns the same, given {the program's name: path below the parameters, or in the whole state}."""
        places, wrong = {}, []
        by_path = {"/".join(p): i for i, p in enumerate(self.tree.paths)} | {"/".join(p): i for i, p in self.tree.params.items()}
        shapes = {p: self.tree.shapes[i] for p, i in by_path.items()}
        own = {"/".join(p) for p in self.tree.params.values()} | {"/".join(p) for p in self.tree.paths if p and p[-1] in STATISTICS}
        free = {p: s for p, s in shapes.items() if p in own and p not in self.names.values()}
        for v in variables:
            path = self.names.get(v.name)
            if path is None:
                near = nearest(v.name, v.shape, free)
                wrong.append(f"names has no '{v.name}' {list(v.shape)}" + (f"; is it {near}?" if near else ""))
            elif path not in by_path:
                near = nearest(path, v.shape, free)
                wrong.append(f"'{v.name}': the state has no '{path}'" + (f"; is it {near}?" if near else ""))
            elif np.prod(shapes[path]) != np.prod(v.shape):
                wrong.append(f"'{v.name}' is {list(shapes[path])}; expected {list(v.shape)}")
            else:
                places[v.name] = by_path[path]
        due = [v.name for v in variables]
        return places, wrong + [f"the program has no '{name}'" for name in self.names if name not in due]

    def own_slot(self, program, parameter, slot):
        """Returns the leaf of an optimizer of the script's own: its trees with the shapes of the parameters are the slots, in order."""
        path, slots = self.tree.params[parameter], list(SLOTS[program.optimizer["kind"]])
        like = [i for i, found in enumerate(self.tree.paths) if i not in self.tree.params and found[len(found) - len(path):] == path
                and self.tree.shapes[i] == self.tree.shapes[parameter] and "gradients" not in found]
        return like[slots.index(slot)] if len(like) == len(slots) else None

    # ---- state

    def into(self, leaf, value):
        """Returns the program's array in the shape and dtype of the leaf. With `cores`, every leaf has a leading axis."""
        value = np.asarray(value)
        shape = self.tree.shapes[leaf] if self.cores is None else (len(value), *self.tree.shapes[leaf])
        return jnp.array(value.reshape(shape), jnp.asarray(self.tree.leaves[leaf]).dtype)

    def load(self, program, step, state):
        run = program.own
        rows = program.cores

        def per_core(value):
            return np.asarray(value) if self.cores is None else np.asarray(value)[None] if rows == 1 else np.asarray(value)

        run.counters = Counters(program.optimizer, program.of_role("counter", state))
        updates = run.counters.updates() if run.counters.values else step
        leaves = []
        for i, leaf in enumerate(self.tree.leaves):
            number = {"count": updates, "step": step}.get(self.tree.paths[i][-1] if self.tree.paths[i] else "")
            below = self.tree.paths[i][:len(self.tree.prefix)] == self.tree.prefix    # a count of random numbers is not a count of updates
            if self.objects and not is_float(leaf) and (below or number is None):
                leaves.append(leaf)
            elif number is not None and self.tree.shapes[i] == ():
                dtype = jnp.asarray(leaf).dtype
                leaves.append(jnp.asarray(number, dtype) if self.cores is None else jnp.full(rows, number, dtype))
            else:
                leaves.append(jnp.array(leaf) if self.cores is None else jnp.array(np.asarray(leaf)[:rows]))
        for name, leaf in run.places.items():
            leaves[leaf] = self.into(leaf, per_core(state[name]))
        for name, (leaf, sign) in run.slots.items():
            if leaf is not None:
                leaves[leaf] = self.into(leaf, per_core(state[name]) * np.float32(sign))
        run.leaves = leaves

    def out(self, program, leaf, shape):
        value = np.asarray(leaf, np.float32)
        return value.reshape(shape if program.cores == 1 else (program.cores, *shape))

    # ---- one step

    def returned(self, result):
        """Returns (leaves of the state, loss, gradients or None) from the result of train_step."""
        if self.objects:
            rest = list(result) if isinstance(result, (tuple, list)) else [result]
            return jax.tree_util.tree_leaves(self.inside(self.state)), self.loss(rest[0]), rest[1] if len(rest) > 1 else None
        due = jax.tree_util.tree_structure(self.state)
        said = f"{self.count} part(s) of state, the loss, and optionally the gradients"
        if not isinstance(result, (tuple, list)) or len(result) < self.count + 1:
            raise TypeError(f"train_step returned {type(result).__name__}; expected {said}")

        def fits(parts):
            whole = tuple(parts) if type(self.state) is tuple else parts[0]
            return jax.tree_util.tree_structure(whole) == due

        result = list(result)
        first = next((at for at in (0, 1) if fits(result[at:at + self.count])), None)
        if first is None:
            raise TypeError("train_step returned a state whose structure differs from the one that serve_script() was given; "
                            f"expected {said}")
        parts, rest = result[first:first + self.count], result[:first] + result[first + self.count:]
        leaves = jax.tree_util.tree_leaves(tuple(parts) if type(self.state) is tuple else parts[0])
        return leaves, self.loss(rest[0]), rest[1] if len(rest) > 1 else None

    @staticmethod
    def loss(loss):
        while isinstance(loss, (tuple, list, dict)):    # from value_and_grad(.., has_aux=True), or metrics
            loss = loss.get("loss") if isinstance(loss, dict) else loss[0]
        if loss is None or np.asarray(loss).dtype.kind not in "fiuV":
            raise TypeError("train_step returned no loss; expected a number besides the state")
        return np.asarray(loss, np.float32)

    def step(self, program, step, state, inputs, random):
        run = program.own
        if state is not None:
            if run.leaves is None:
                alive("compiling")
            self.load(program, step, state)
        elif run.leaves is None:
            raise Unsupported(["the first step has no initial state"])
        lost = {}    # rmsprop without momentum: its slot is the step itself
        if any(leaf is None for leaf, _ in run.slots.values()):
            lost = {n: self.out(program, run.leaves[i], np.shape(run.leaves[i])) for n, i in run.places.items()}

        def per_core(value):
            return jnp.asarray(value) if self.cores is None or program.cores > 1 else jnp.asarray(value)[None]

        named = {"learning_rate": float(np.asarray(inputs["learning_rate"]).flat[0]), "step": step,
                 "weights": per_core(inputs["weights"]) if "weights" in inputs else None,
                 "random": {k: per_core(v) for k, v in random.items()}}
        own = jax.tree_util.tree_unflatten(self.tree.structure, run.leaves)
        if self.objects:
            from flax import nnx
            nnx.update(self.state, own)
            own = self.state
        arguments = own if type(self.state) is tuple else (own,)
        batch = per_core(features_of(inputs)), per_core(inputs["labels"])
        result = self.ask(program, lambda: self.train_step(*arguments, *batch, **{k: named[k] for k in self.wanted}))
        run.leaves, loss, returned = self.returned(result)
        shapes = {v.name: v.shape for v in program.state}
        gradients = self.gradients(program, returned, shapes)
        after = {n: self.out(program, run.leaves[i], shapes[n]) for n, i in run.places.items()}
        for name, (leaf, sign) in run.slots.items():
            if leaf is None:
                parameter = name.rpartition(".")[0]
                after[name] = lost[parameter].reshape(after[parameter].shape) - after[parameter]
            else:
                after[name] = self.out(program, run.leaves[leaf], shapes[name]) * np.float32(sign)
        # A loss scaler skips the update if gradients are not finite; otherwise the weights would not be finite either.
        if finite(gradients) or not finite(program.of_role("parameter", after)):
            run.counters.advance()
        after.update(run.counters.values)
        return after, {"loss": loss.reshape(() if program.cores == 1 else program.cores), **gradients,
                       **self.shown(program)}

    @staticmethod
    def ask(program, train_step):
        """Calls train_step. show() is compiled into the step, so the step is compiled again when show() is turned on or off."""
        global shown
        if bool(program.activations) != (shown is not None):
            jax.clear_caches()
        shown = {} if program.activations else None
        result = train_step()
        if program.activations:
            jax.block_until_ready(result)
            jax.effects_barrier()
        return result

    @staticmethod
    def shown(program):
        """Returns what show() recorded exactly once in each replica."""
        found = {}
        for name, rows in (shown or {}).items():
            if all(len(rows.get(r, ())) == 1 for r in range(program.cores)):
                found[name] = rows[0][0] if program.cores == 1 else np.stack([rows[r][0] for r in range(program.cores)])
        return found

    def gradients(self, program, returned, shapes):
        run, found = program.own, {}
        by_path = {}
        if returned is not None:
            leaves = jax.tree_util.tree_flatten_with_path(returned)[0]
            by_path = dict(zip(paths_of(leaves), (g for _, g in leaves)))
        for name in program.of_role("parameter", shapes):
            leaf = run.places[name]
            watched = self.tree.slot(leaf, "gradients")
            path = self.tree.params[leaf]
            value = run.leaves[watched] if watched is not None else by_path.get(path, by_path.get(("params", *path)))
            if value is None:
                raise TypeError(f"there is no gradient of '{name}'. Return the gradients from train_step after the loss, or put "
                                "twinrun_engine.jax.watch() around its optimizer: watch(optax.adam(1e-3))")
            found[f"{name}.grad"] = self.out(program, value, shapes[name])
        return found


def serve_script(train_step=None, state=None, names=None, cores=None, *, loss_fn=None, optimizer=None, params=None, **hello):
    """Answers twinrun with a script's own training step, until it ends; does not return.

    train_step  (state, images, labels) -> (state, loss[, gradients]); if the state is a tuple, its parts are separate arguments and
                results: (params, opt_state, images, labels) -> (params, opt_state, loss[, gradients]). Images are NHWC. It may also
                have arguments named learning_rate, step, weights, and random: {name: uniform numbers} for dropout
    state       the initial state: a pytree such as flax's TrainState, or a tuple of pytrees; the parameters are the part called `params`,
                or the first one. A module and an optimizer of flax.nnx are changed in place, and train_step returns only the loss
    names       {the program's name: path below the parameters}, 'Dense_0/kernel'; None: found from shapes, numbers and words
    cores       for a step under jax.pmap: its number of devices. All arrays then have an additional leading axis
    loss_fn, optimizer, params  instead of train_step and state: loss_fn(params, images, labels) and an optax optimizer
    hello       what the engine declares instead of precision="f32", conventions="optax" (docs/reference/engine-protocol.md)
    """
    if loss_fn is not None:
        import optax
        watched = watch(optimizer)

        @jax.jit
        def train_step(params, opt_state, images, labels):
            loss, gradients = jax.value_and_grad(loss_fn)(params, images, labels)
            changes, opt_state = watched.update(gradients, opt_state, params)
            return optax.apply_updates(params, changes), opt_state, loss

        state = params, watched.init(params)
    serve(Script(train_step, state, names, cores, hello))
    sys.exit(0)
