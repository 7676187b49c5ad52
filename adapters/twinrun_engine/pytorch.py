"""Serves a PyTorch training script as an engine: docs/guides/own-engine.md. Unlike the rest of the package, this needs torch.

    from twinrun_engine.pytorch import serve_script
    serve_script(train_step, optimizer, model)

train_step(images, labels) is the script's own function: it does forward, backward and optimizer.step(), and returns the loss.
"""
import contextlib
import functools
import hashlib
import inspect
import numbers
import os
import sys
import traceback
import types

import numpy as np
import torch

from .model import Counters, features_of, flattened_images
from .protocol import Unsupported, serve, take_session
from .autograd_graph import Graph
from .pytorch_names import FROM_TORCH, TO_TORCH, given, is_kernel, model_of, told
from .torch_layers import Shown

# For each of the program's optimizers: its slot -> that of torch.optim. The two hold the same numbers, so loading and saving copy
# bits. The exception may be RMSprop's momentum: PyTorch's does not include the learning rate.
SLOTS = {
    "sgd": {},
    "momentum": {"momentum": "momentum_buffer"},
    "adam": {"adam_m": "exp_avg", "adam_v": "exp_avg_sq"},
    "adamw": {"adam_m": "exp_avg", "adam_v": "exp_avg_sq"},
    "adagrad": {"accumulator": "sum"},
    "adadelta": {"accum": "square_avg", "accum_update": "acc_delta"},
    "rmsprop": {"rms": "square_avg", "mg": "grad_avg"},
    "adamax": {"adamax_m": "exp_avg", "adamax_v": "exp_inf"},
}
CLASSES = {"sgd": "SGD", "momentum": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "adadelta": "Adadelta",
           "rmsprop": "RMSprop", "adamax": "Adamax"}
OFFERED = ("learning_rate", "step", "weights", "random")    # arguments that a train_step may have by name, besides images and labels

MOST_EXTRAS = 16    # number of states whose extras are kept
take_session()      # before the script reads its arguments


def has_rates_in_velocity(program):
    """Whether the scenario's RMSProp accumulates steps, which include the learning rate, and not gradients as PyTorch's does."""
    velocity = program.optimizer.get("velocity", "auto")
    return velocity == "steps" or velocity == "auto" and program.scenario.get("conventions") != "pytorch"


def to_torch(name, value, device="cpu"):
    """Returns a copy of the program's array in PyTorch's layout."""
    axes = TO_TORCH.get(value.ndim) if is_kernel(name) else None
    return torch.tensor(np.ascontiguousarray(value.transpose(axes) if axes else value), device=device)


def from_torch(name, value):
    value = value.detach().cpu().numpy()
    axes = FROM_TORCH.get(value.ndim) if is_kernel(name) else None
    return np.ascontiguousarray(value.transpose(axes)) if axes else value.copy()


def unflattened(value, image):
    """Returns a dense kernel with its rows in the program's order (height, width, channel), given one for PyTorch's channels-first
    flatten. image: (height, width, channels) or None."""
    if image is None:
        return value
    height, width, channels = image
    return np.ascontiguousarray(value.reshape(channels, height, width, -1).transpose(1, 2, 0, 3).reshape(value.shape))


def say(text):
    print(f"twinrun_engine: {text}", file=sys.stderr, flush=True)


def kind_of(optimizer):
    """Returns the class of torch.optim of which an optimizer is an instance."""
    return next((c.__name__ for c in type(optimizer).__mro__ if c.__name__ in CLASSES.values()), type(optimizer).__name__)


def wanted_by(train_step):
    """Returns the names of OFFERED that a train_step accepts. Raises TypeError if it cannot be called with images and labels."""
    try:
        parameters = inspect.signature(train_step).parameters.values()
    except (TypeError, ValueError):    # compiled code has no signature
        return ()
    names = [p.name for p in parameters if p.name in OFFERED and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    try:
        inspect.signature(train_step).bind(None, None, **dict.fromkeys(names))
    except TypeError as error:
        raise TypeError(f"train_step is called as train_step(images, labels) and may have arguments named {', '.join(OFFERED)}: {error}") \
            from None
    return names


def number(loss):
    """Returns the loss that a train_step returned, as float32."""
    if torch.is_tensor(loss) and loss.numel() == 1:
        return np.asarray(loss.detach().float().cpu().numpy(), np.float32).reshape(())
    if isinstance(loss, (numbers.Real, np.generic, np.ndarray)) and np.size(loss) == 1 and np.asarray(loss).dtype.kind in "fiu":
        return np.asarray(loss, np.float32).reshape(())
    what = f"a tensor of shape {list(loss.shape)}" if torch.is_tensor(loss) else "None" if loss is None else f"a {type(loss).__name__}"
    raise TypeError(f"train_step returned {what}. It must return the loss of its batch: a tensor of one element, or a number such as "
                    "loss.item(). Add 'return loss' to its end")


@contextlib.contextmanager
def watched(look):
    """Calls look(tensors) before the first backward pass in the body of the context."""
    backward, grad, calls = torch.autograd.backward, torch.autograd.grad, []

    def before(function):
        @functools.wraps(function)
        def call(roots, *arguments, **named):
            if not calls:
                calls.append(function)
                look([roots] if torch.is_tensor(roots) else list(roots))
            return function(roots, *arguments, **named)
        return call

    torch.autograd.backward, torch.autograd.grad = before(backward), before(grad)
    try:
        yield
    finally:
        torch.autograd.backward, torch.autograd.grad = backward, grad


class Again(BaseException):
    """The graph shows that weights were loaded into the wrong tensors: the step starts again, before anything was updated."""


def digest(state):
    found = hashlib.blake2b()
    for name in sorted(state):
        found.update(name.encode() + np.ascontiguousarray(state[name]).tobytes())
    return found.digest()


class Run:
    """One program, as the script computes it."""

    def __init__(self, places, close, images, l2):
        self.places, self.close, self.images, self.l2, self.seen = places, close, images, l2, False
        self.after, self.counters, self.hidden = None, None, False    # hidden: the results of layers cannot be recorded
        self.extras = {}    # digest of a returned state: what else the optimizer kept, such as AMSGrad's maximum
        self.scales = {}    # (step, digest of the state before it): the loss scaler's state at that time


class Script:
    """The engine that serve_script() serves."""

    def __init__(self, train_step, optimizer, tensors, flattened, hello):
        self.train_step, self.optimizer, self.tensors, self.flattened = train_step, optimizer, tensors, flattened
        self.last, self.run, self.gradients, self.updates, self.shown = None, None, None, 0, None
        self.skipped, self.scaler, self.first_scale = False, None, None
        try:
            self.wanted, self.wrong = wanted_by(train_step), []
        except TypeError as error:
            self.wanted, self.wrong = (), [str(error)]
        self.watch()
        self.watch_scaler()
        self.hello = {"name": os.path.basename(sys.argv[0]), "version": f"torch {torch.__version__}", "precision": "f32",
                      "conventions": "pytorch", "activations": True, **hello}

    # ---- what the program asks for

    def prepare(self, program):
        kind, reasons = program.optimizer["kind"], []
        if program.cores > 1:
            reasons.append("only one core is supported")
        if CLASSES.get(kind) != kind_of(self.optimizer):
            reasons.append(f"optimizer '{kind}' is not supported: the script has {type(self.optimizer).__name__}")
        if program.scenario["train"].get("accumulate", 1) > 1:
            reasons.append("accumulation of gradients is not supported: one call of train_step is one update")
        if program.optimizer.get("ema", 0) > 0:
            reasons.append("averaged weights are not supported: set optimizer.ema to 0")
        variables = [v for v in program.state if v.role in ("parameter", "statistic")]
        if isinstance(self.tensors, dict):
            (places, wrong), close = given(self.tensors, variables), []
        else:
            places, close, wrong = told(self.tensors, self.optimizer, variables)
        if reasons := self.wrong + reasons + wrong:
            raise Unsupported(reasons)
        if not isinstance(self.tensors, dict):
            say("variables found in the model: " + ", ".join(f"{name} = {place.path}" for name, place in places.items()))
        program.own = Run(places, close, self.images_of(program, places), program.optimizer.get("l2", 0) > 0)

    def images_of(self, program, places):
        """Returns {layer: (height, width, channels)} of the layers that read an image flattened channels first."""
        if self.flattened is not None:
            for name, image in self.flattened.items():
                if name not in places:
                    raise Unsupported([f"flattened: the program has no '{name}'"])
                if len(places[name].shape) == 0 or places[name].shape[0] != np.prod(image):
                    raise Unsupported([f"flattened: '{name}' is {list(places[name].shape)}, whose rows do not match {image}"])
                places[name].image = tuple(image)
        sample = next((v.shape[1:] for v in program.inputs if v.name == "images"), ())
        images = flattened_images(program.layers, sample)
        if self.flattened is not None:
            return {layer: image for layer, image in images.items() if image in map(tuple, self.flattened.values())}
        self.permute(places, images)
        return images

    @staticmethod
    def permute(places, images):
        """Records for each variable whether its rows are those of an image in the other order."""
        for name, place in places.items():
            layer, _, leaf = name.rpartition("/")
            image = images.get(layer)
            place.image = image if image and leaf != "bias" and place.shape[0] == np.prod(image) else None

    # ---- the optimizer's step, at whose beginning the gradients are read

    def watch(self):
        """Wraps optimizer.step() of this instance so that it reads the gradients first; wrappers of schedulers keep working."""
        inner = self.optimizer.step

        @functools.wraps(inner)
        def step(_, *arguments, **named):
            closure = arguments[0] if arguments else named.get("closure")
            if closure is None:
                self.look()
                return inner(*arguments, **named)

            def looked():
                found = closure()
                self.look()
                return found
            return inner(looked)

        self.optimizer.step = types.MethodType(step, self.optimizer)

    def watch_scaler(self):
        """Wraps GradScaler.step(). When it finds non-finite gradients it does not call optimizer.step(), so they are read here."""
        kind = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler    # the second one before PyTorch 2.3
        inner = kind.step

        @functools.wraps(inner)
        def step(scaler, optimizer, *arguments, **named):
            its = optimizer is self.optimizer and self.run is not None and scaler.is_enabled()
            if its and self.scaler is None:
                self.scaler, self.first_scale = scaler, scaler.state_dict()
            found = inner(scaler, optimizer, *arguments, **named)
            if its and self.updates == 0:
                self.skipped = True
                self.read_gradients(self.run)
            return found

        kind.step = step

    def look(self):
        """Reads the gradients as optimizer.step() gets them, after clipping."""
        if self.run is None:
            return    # a step of the script outside twinrun's
        self.updates += 1
        if self.shown is not None:
            self.shown.on = False
        found_inf = getattr(self.optimizer, "found_inf", None)    # a fused optimizer decides itself whether to skip the step
        self.skipped = found_inf is not None and bool(found_inf.item())
        self.read_gradients(self.run, getattr(self.optimizer, "grad_scale", None))

    def read_gradients(self, run, scale=None):
        """Reads the gradients. If the scenario's loss has an L2 term, PyTorch's weight decay is that term's gradient and is added.
        scale: the factor by which the optimizer itself will divide the gradients."""
        decay = {}
        if kind_of(self.optimizer) != "AdamW" and run.l2:
            decay = {id(p): group["weight_decay"] for group in self.optimizer.param_groups if group.get("weight_decay")
                     for p in group["params"]}
        self.gradients = {}
        with torch.no_grad():
            for name, place in run.places.items():
                tensor, gradient = place.tensor, place.tensor.grad
                gradient = torch.zeros_like(tensor) if gradient is None else gradient.to_dense() if gradient.is_sparse else gradient
                gradient = gradient if scale is None else gradient / scale
                if id(tensor) in decay:
                    gradient = gradient.add(tensor, alpha=decay[id(tensor)])
                self.gradients[f"{name}.grad"] = place.read(gradient)

    def made_no_update(self, run, loss):
        """Whether numbers are not finite, so that a loss scaler of the script's own left the update out."""
        self.read_gradients(run)
        return not (np.isfinite(loss) and all(np.isfinite(g).all() for g in self.gradients.values()))

    # ---- state

    def slots(self, program, places):
        """Returns {the program's name of a slot: (its Place, PyTorch's name of the slot)}, for parameters that the optimizer has."""
        names = {**SLOTS[program.optimizer["kind"]], **({"momentum": "momentum_buffer"} if program.optimizer["kind"] == "rmsprop" else {})}
        return {v.name: (places[v.name.rsplit(".", 1)[0]], names[v.name.rsplit(".", 1)[1]]) for v in program.state if v.role == "slot"}

    def groups(self):
        return {id(p): group for group in self.optimizer.param_groups for p in group["params"]}

    def load(self, program, number_of_step, state):
        """Loads a state of the program into the script's model and optimizer."""
        run, groups = program.own, self.groups()
        if self.scaler is not None:
            self.scaler.load_state_dict(run.scales.get((number_of_step, digest(state)), self.first_scale))
        run.counters = Counters(program.optimizer, program.of_role("counter", state))
        updates = run.counters.updates() if run.counters.values else number_of_step
        kept, fresh = run.extras.get(digest(state), {}) if run.extras else {}, {}
        with torch.no_grad():
            for name, place in run.places.items():
                place.write(place.tensor, state[name])
            for name, (place, slot) in self.slots(program, run.places).items():
                tensor, group = place.tensor, groups.get(id(place.tensor))
                if group is None:
                    continue    # frozen: its slots do not change
                value = state[name]
                if program.optimizer["kind"] == "rmsprop" and slot == "momentum_buffer":
                    if not group["momentum"]:
                        continue
                    if has_rates_in_velocity(program):
                        value = value / np.float32(group["lr"])
                if slot == "momentum_buffer" and group.get("dampening") and not value.any():
                    continue    # PyTorch's first step has no dampening
                its = fresh.setdefault(id(tensor), {})
                if slot not in its:
                    its[slot] = torch.zeros_like(tensor, memory_format=torch.preserve_format).detach()
                place.write(its[slot], value)
        for tensor in {id(p.tensor): p.tensor for p in run.places.values()}.values():
            if tensor.grad is not None:    # gradients are not part of a state: a script that accumulates them starts from zero here
                tensor.grad.zero_()
            group = groups.get(id(tensor))
            if group is None:
                continue
            its = {**kept.get(id(tensor), {}), **fresh.get(id(tensor), {})}
            if its and kind_of(self.optimizer) != "SGD":
                its["step"] = torch.tensor(float(updates), device=tensor.device if group.get("capturable") or group.get("fused") else "cpu")
            if group.get("amsgrad"):
                its.setdefault("max_exp_avg_sq", its["exp_avg_sq"].clone())
            self.optimizer.state[tensor] = its

    def collect(self, program, before):
        """Reads the program's state from the script's model and optimizer, and remembers what else the optimizer keeps."""
        run, groups = program.own, self.groups()
        after = {name: place.read(place.tensor) for name, place in run.places.items()}
        mapped = {"step"}
        for name, (place, slot) in self.slots(program, run.places).items():
            group, its = groups.get(id(place.tensor)), self.optimizer.state.get(place.tensor, {})
            mapped.add(slot)
            if group is None or (its.get(slot) is None and not (slot == "momentum_buffer" and "square_avg" in its)):
                after[name] = before[name]
            elif program.optimizer["kind"] == "rmsprop" and slot == "momentum_buffer":
                after[name] = before[name] if self.skipped else self.rmsprop_step(program, name, place, its, group)
            else:
                after[name] = place.read(its[slot])
        after.update(run.counters.values)
        if extras := {id(t): own for t, its in self.optimizer.state.items()
                      if (own := {k: v.clone() if torch.is_tensor(v) else v for k, v in its.items() if k not in mapped})}:
            run.extras[digest(after)] = extras
            for oldest in list(run.extras)[:-MOST_EXTRAS]:
                del run.extras[oldest]
        return after

    def rmsprop_step(self, program, name, place, its, group):
        """Returns the program's momentum, which may include the learning rate; without momentum it is the step itself."""
        rate = np.float32(group["lr"]) if has_rates_in_velocity(program) else np.float32(1)
        if group["momentum"]:
            return place.read(its["momentum_buffer"]) * rate
        mean = its["square_avg"] - its["grad_avg"] ** 2 if group["centered"] else its["square_avg"]
        return self.gradients[f"{name.rsplit('.', 1)[0]}.grad"] * rate / place.read(mean.sqrt() + group["eps"])

    def decay_term(self, program, before):
        """Returns the scenario's L2 term of the loss. PyTorch's weight decay adds only that term's gradient, not the term."""
        if program.optimizer.get("l2", 0) <= 0 or kind_of(self.optimizer) == "AdamW":
            return np.float32(0)
        groups = self.groups()
        terms = [groups[id(p.tensor)].get("weight_decay", 0) / 2 * np.sum(np.square(before[name], dtype=np.float64))
                 for name, p in program.own.places.items() if id(p.tensor) in groups]
        return np.float32(sum(terms))

    # ---- what the first step's graph shows

    def evidence(self, run, roots):
        """Corrects what was only likely: the order of layers of one shape, the layout of square kernels, how images are flattened.
        Raises Again if that changes anything; nothing was updated yet."""
        graph, moved = Graph(roots), False
        for alike in run.close:
            leaves = {unit: {n: p for n, p in run.places.items() if n.rpartition("/")[0] == unit} for unit in alike}
            first = [next(iter(leaves[unit].values())) for unit in alike]
            if any(p.rows is not None for p in first):
                continue
            tensors = [p.tensor for p in first]
            order = [next(i for i, t in enumerate(tensors) if t is found) for found in graph.in_order(tensors)]
            for unit, i in zip(alike, order):
                for name, place in leaves[alike[i]].items():
                    run.places[f"{unit}/{name.rpartition('/')[2]}"] = place
            moved = moved or order != list(range(len(order)))
        if moved:
            say("the graph has layers of one shape in another order: "
                + ", ".join(f"{n} = {run.places[n].path}" for alike in run.close for n in run.places if n.rpartition("/")[0] in alike))
        for place in run.places.values():
            shown = graph.transposed(place.tensor) if place.unsure else None
            if shown is not None and shown != bool(place.axes):
                place.axes, moved = (1, 0) if shown else None, True
        if self.flattened is None:
            moved = self.flattening(run, graph) or moved
        if moved:
            raise Again

    def flattening(self, run, graph):
        """Whether an image turns out to be flattened in the other order; prints the assumed order on standard error."""
        self.permute(run.places, run.images)
        moved = False
        for layer, image in list(run.images.items()):
            read = [(n, p) for n, p in run.places.items() if n.rpartition("/")[0] == layer and p.image]
            if not read:
                continue
            name, place = read[0]
            first = graph.channels_first(place.tensor, image)
            shown = "height, width, channels" if first is False else "channels first, as PyTorch stores images"
            say(f"'{name}' reads a flattened image of {image} (height, width, channels). The assumed order of its numbers is "
                f"{shown}" + (", as the script's graph shows." if first is not None else "; the script's graph does not show it.")
                + f" To change it: serve_script(.., flattened={{}}) for height, width, channels; flattened={{'{name}': {image}}} for "
                "channels first.")
            if first is False:
                moved = True
                for other in [n for n, i in run.images.items() if i == image]:
                    del run.images[other]
                self.permute(run.places, run.images)
        return moved

    # ---- one step

    def ask(self, program, step, inputs, random):
        """Calls the script's train_step."""
        run = program.own
        device = next((p.tensor.device for p in run.places.values()), "cpu")

        def tensor(value, image=None):
            value = torch.from_numpy(np.array(value, order="C")).to(device)
            if image:
                value = value.reshape(len(value), *image)
            # Use the memory layout of a script's own loader: PyTorch's layers sum in another order if channels are last in memory.
            value = value.permute(0, 3, 1, 2).contiguous() if value.dim() == 4 else value
            return value.reshape(len(value), -1) if image else value

        features, labels = tensor(features_of(inputs)), tensor(inputs["labels"]).long()
        features = features if features.is_floating_point() else features.long()    # tokens
        if not run.seen and features_of(inputs).shape[1:] in run.images.values():
            features = features.requires_grad_().clone()    # makes the graph show how the image itself is flattened
        named = {"learning_rate": float(inputs["learning_rate"]), "step": step}
        if "weights" in self.wanted:
            named["weights"] = tensor(inputs["weights"]) if "weights" in inputs else None
        if "random" in self.wanted:
            named["random"] = {k: tensor(v, run.images.get(k.rpartition("/")[0]) if v.ndim == 2 else None) for k, v in random.items()}
        return self.train_step(features, labels, **{k: named[k] for k in self.wanted})

    def step(self, program, step, state, inputs, random):
        run = program.own
        if state is None and self.last is not program:    # another program has used the model in between
            state = run.after
        before = run.after if state is None else state
        for attempt in range(4):
            if state is not None:
                self.load(program, step, state)
            self.run, self.gradients, self.updates, self.skipped = run, None, 0, False
            try:
                with contextlib.nullcontext() if run.seen or attempt >= 2 else watched(lambda roots: self.evidence(run, roots)):
                    with self.showing(program, state) as self.shown:
                        loss = number(self.ask(program, step, inputs, random))
                break
            except Again:
                continue
            except Exception:
                if self.shown is None:
                    raise
                say("this step cannot be watched and is repeated without results of layers: " + traceback.format_exc(limit=-1).strip())
                run.hidden = True
            finally:
                self.run = None
        run.seen = True
        if self.updates == 0 and not self.skipped:
            self.skipped = self.made_no_update(run, loss)
        if self.updates != 1 and not self.skipped:
            raise RuntimeError(f"train_step called step() {self.updates} times on the optimizer that serve_script() was given; "
                               "expected once, because one call of train_step is one whole step with forward, backward and update")
        loss = loss + self.decay_term(program, before)
        if not self.skipped:
            run.counters.advance()
        after = self.collect(program, before)
        if self.scaler is not None:
            run.scales[step + 1, digest(after)] = self.scaler.state_dict()
        run.after, self.last = after, program
        parameters = program.of_role("parameter", after)
        return after, {"loss": loss, **{f"{name}.grad": self.gradients[f"{name}.grad"] for name in parameters},
                       **(self.shown.found() if self.shown is not None else {})}

    def showing(self, program, state):
        """Returns a context that records what layers return, if that is requested and the step can be repeated without it."""
        run = program.own
        if not program.activations or state is None or run.hidden:
            return contextlib.nullcontext()
        model = self.tensors if isinstance(self.tensors, torch.nn.Module) else model_of(self.optimizer)
        return Shown(program, run.places, run.images, model)


def serve_script(train_step, optimizer, tensors=None, flattened=None, **hello):
    """Answers twinrun with a script's own training step, until it ends; does not return.

    train_step(images, labels): images NCHW, labels int64; does one whole step and returns the loss. It may also have arguments named
               learning_rate (of this step), step, weights, and random: {name: uniform numbers} for dropout
    tensors    the script's model, a torch.nn.Module; or {the program's name: the script's parameter or buffer}, in PyTorch's layout;
               None: the module that has the optimizer's parameters
    flattened  {"dense1/kernel": (height, width, channels)} for a dense layer that reads a flattened image, channels first; {}: the
               script flattens height, width, channels; None: as the script's graph shows
    hello      what the engine declares instead of precision="f32", conventions="pytorch" (docs/reference/engine-protocol.md)

    If torch.distributed has several processes, each is a replica: each calls serve_script(), and the first answers twinrun.
    """
    script = Script(train_step, optimizer, tensors, flattened, hello)
    if not (torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1):
        serve(script)
        sys.exit(0)
    from .ranks import Ranks
    ranks = Ranks(script)
    if ranks.rank == 0:
        serve(ranks)
        ranks.end()
    else:
        ranks.follow()
    torch.distributed.destroy_process_group()
    sys.exit(0)
