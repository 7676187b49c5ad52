"""Captures a PyTorch training step as one functional graph of core aten ops.

    c = capture(step, model, optimizer, batches)
    c.graph(*state, *batch, *draws)   # -> next state, loss, gradients; no side effects

The user's own objects run one step below the autograd engine, where every aten op is recorded: forward, backward,
clipping and
update. Parameters, buffers, optimizer state and batch become arguments; random draws become arguments with the values
that were
drawn. The objects are put back afterwards.
"""

import contextlib
import copy
import sys
from collections import OrderedDict, namedtuple

import torch
import torch.fx
from torch.fx import traceback as fx_traceback
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from .batches import flat_batch, replica_batch
from .collectives import patched_distributed, wrappers_in
from .optimizers import initial_slots, plain_optimizers
from .places import raised_at
from .refused import Refused
from .surroundings import Surroundings

Variable = namedtuple("Variable", "name role value")  # role: parameter, statistic, slot, counter


_RANDOM = (
    "bernoulli",
    "rand",
    "randn",
    "rand_like",
    "randn_like",
    "randint",
    "randint_like",
    "randperm",
    "normal",
    "uniform",
    "exponential",
    "random",
    "native_dropout",
    "multinomial",
    "poisson",
    "normal_functional",
    "cauchy",
    "geometric",
    "log_normal",
)


def named(things, kind):
    """Returns {name: thing} of one module or optimizer, or of a list, tuple or dict of them."""
    if isinstance(things, kind):
        return OrderedDict([("", things)])
    items = things.items() if isinstance(things, dict) else enumerate(things or ())
    out = OrderedDict((str(k), v) for k, v in items)
    if not out or not all(isinstance(v, kind) for v in out.values()):
        raise Refused(f"expected a {kind.__name__}, or a list, tuple or dict of them; found {type(things).__name__}")
    return out


def unwrapped(things):
    """Returns the modules inside DistributedDataParallel wrappers."""

    def one(m):
        return m.module if isinstance(m, torch.nn.parallel.DistributedDataParallel) else m

    if isinstance(things, dict):
        return {k: one(v) for k, v in things.items()}
    return type(things)(map(one, things)) if isinstance(things, (list, tuple)) else one(things)


class Objects:
    """The state of the user's models and optimizers, by name, and putting it back."""

    def __init__(self, model, optimizer):
        self.models, self.optimizers = named(model, torch.nn.Module), named(optimizer, torch.optim.Optimizer)
        self.parameters, self.buffers = OrderedDict(), OrderedDict()  # name -> Parameter; name -> (module, key)
        self.ignored = set()  # parameters that DistributedDataParallel is told to leave alone
        seen = set()
        for prefix, root in self.models.items():
            for path, module in root.named_modules():
                if isinstance(module, torch.nn.parallel.DistributedDataParallel):
                    continue
                at = "/".join(filter(None, [prefix] + path.split(".")))
                for name in getattr(module, "_ddp_params_and_buffers_to_ignore", ()):
                    self.ignored.add("/".join(filter(None, [at] + name.split("."))))
                for key, p in module._parameters.items():
                    if p is not None and is_traceable_wrapper_subclass(p.data):
                        raise Refused(
                            f"parameter {at}/{key} is a {type(p.data).__name__}: models that are sharded themselves "
                            "(fully_shard, tensor parallelism) are not supported; give the model before it is sharded"
                        )
                    if p is not None and id(p) not in seen:
                        seen.add(id(p))
                        self.parameters[f"{at}/{key}" if at else key] = p
                for key, b in module._buffers.items():
                    if b is not None:
                        self.buffers[f"{at}/{key}" if at else key] = (module, key)
        self.name_of = {id(p): n for n, p in self.parameters.items()}
        for o in self.optimizers.values():
            for p in (p for g in o.param_groups for p in g["params"]):
                if id(p) not in self.name_of:
                    raise Refused(
                        f"an optimizer updates a tensor of shape {tuple(p.shape)} that no given model has: pass every "
                        "model that the step trains, model=[a, b]"
                    )

    def variables(self):
        """All state by name. Optimizer slots are named after their parameter: weight.exp_avg."""
        out = [Variable(n, "parameter", p) for n, p in self.parameters.items()]
        out += [Variable(n, "statistic", m._buffers[k]) for n, (m, k) in self.buffers.items()]
        for o in self.optimizers.values():
            for p, slots in o.state.items():
                for key, value in slots.items():
                    if isinstance(value, torch.Tensor):
                        role = "counter" if value.dim() == 0 and p.dim() > 0 or key == "step" else "slot"
                        out.append(Variable(f"{self.name_of[id(p)]}.{key}", role, value))
                    elif value is not None and not isinstance(value, bool):
                        raise Refused(
                            f"{type(o).__name__} keeps a {type(value).__name__} in its state ('{key}'), which changes "
                            "outside of the tensors; use an optimizer of torch.optim"
                        )
        return out

    def settings(self):
        return [{k: v for k, v in g.items() if k != "params"} for o in self.optimizers.values() for g in o.param_groups]

    def surroundings(self):
        return Surroundings([m for root in self.models.values() for m in root.modules()], list(self.parameters.values()))

    def save(self):
        values = [(p, p.detach().clone(), p.grad) for p in self.parameters.values()]
        buffers = [(m, k, m._buffers[k], m._buffers[k].detach().clone()) for m, k in self.buffers.values()]
        states = [
            (
                o,
                {p: {k: copy.deepcopy(v) for k, v in s.items()} for p, s in o.state.items()},
                [{k: v for k, v in g.items() if k != "params"} for g in o.param_groups],
            )
            for o in self.optimizers.values()
        ]
        modes = [(m, m.training) for root in self.models.values() for m in root.modules()]
        return values, buffers, states, modes, torch.get_rng_state()

    def restore(self, saved, slots=True):
        values, buffers, states, modes, rng = saved
        with torch.no_grad():
            for p, value, grad in values:
                p.copy_(value)
                p.grad = grad
            for m, k, tensor, value in buffers:
                m._buffers[k] = tensor
                tensor.copy_(value)
        for o, state, groups in states:
            for g, old in zip(o.param_groups, groups):
                g.update(old)
            if slots:
                o.state.clear()
                for p, s in state.items():
                    o.state[p] = {k: copy.deepcopy(v) for k, v in s.items()}
        for m, mode in modes:
            m.training = mode
        torch.set_rng_state(rng)


def _draws(func):
    return func._schema.name.split("::")[1].rstrip("_") in _RANDOM


def _stream(kwargs):
    """The state of the generator after a draw, as bytes: it tells streams apart whatever was drawn."""
    generator = kwargs.get("generator")
    return bytes((torch.get_rng_state() if generator is None else generator.get_state()).numpy())


class _Recorder(TorchDispatchMode):
    """Records every aten op as a node of an fx graph, with the user's line and module."""

    def __init__(self):
        super().__init__()
        self.graph, self.constants, self.alive = torch.fx.Graph(), {}, []
        self.draws, self.draw_places, self.streams = [], [], []
        self.nodes, self.by_place, self.sites, self.modules = {}, {}, {}, []
        self.last_input = None

    # Tensors that autograd or `.data` makes without an op are found by the memory that they show.
    @staticmethod
    def place(t):
        return (t.untyped_storage()._cdata, t.storage_offset(), tuple(t.shape), tuple(t.stride()), t.dtype)

    def bind(self, t, node):
        self.alive.append(t)
        self.nodes[id(t)] = node
        self.by_place[self.place(t)] = node

    def argument(self, t):
        node = self.graph.placeholder(f"arg{len(self.graph.nodes)}")
        self.last_input = node
        node.meta["example"] = t.detach().clone()
        return node

    def node_of(self, t):
        node = self.nodes.get(id(t))
        if node is None and t.numel() > 0:
            node = self.by_place.get(self.place(t))
        if node is None:
            name = f"constant{len(self.constants)}"
            self.constants[name] = t.detach().clone()
            with self.graph.inserting_after(self.last_input):
                node = self.graph.get_attr(name)
            self.bind(t, node)
        return node

    def site(self):
        """The user's line, the module's path, and whether the op is of the backward pass."""
        current = torch._C._current_autograd_node()
        if current is not None:
            found = self.sites.get(current._sequence_nr())
            if found is not None:
                return found[0], found[1], True
        frame, source = sys._getframe(2), ""
        while frame is not None:
            file = frame.f_code.co_filename
            if (
                "/torch/" not in file
                and "/adapters/twinrun/" not in file
                and "/twinrun/capture" not in file
                and "<" not in file
            ):
                source = f"{file.rsplit('/', 1)[-1]}:{frame.f_lineno}"
                break
            frame = frame.f_back
        where = (self.modules[-1] if self.modules else "", source)
        if current is None:
            self.sites[torch.autograd._get_sequence_nr() - 1] = where
        return where[0], where[1], current is not None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        path, source, gradient = self.site()
        base = func._schema.name.split("::")[1]
        hidden = torch.Tag.nondeterministic_seeded in func.tags and not _draws(func)
        before = _stream(kwargs) if hidden else None
        out = func(*args, **kwargs)
        if (hidden and before != _stream(kwargs)) or (_draws(func) and not isinstance(out, torch.Tensor)):
            raise Refused(
                f"{func} at {source} draws random numbers within another op; draw outside of the step and pass them in the batch"
            )
        if base == "_local_scalar_dense" or func.namespace == "profiler":
            return out
        in_place = func._schema.is_mutable
        if _draws(func):
            node = self.draw(out)
            self.draw_places.append(f"{base} at {source}")
            self.streams.append(_stream(kwargs))
            if in_place:
                target = self.node_of(args[0])
                node = self.graph.call_function(torch.ops.aten.copy_.default, (target, node))
                self.bind(out, target)
            else:
                self.bind(out, node)
            return out
        lookup = lambda t: self.node_of(t) if isinstance(t, torch.Tensor) else t  # noqa: E731
        node_args, node_kwargs = torch.utils._pytree.tree_map(lookup, (args, kwargs))
        node = self.graph.call_function(func, node_args, node_kwargs)
        node.stack_trace = f"{path}|{source}|{int(gradient)}"
        self.bind_results(out, node)
        return out

    def draw(self, out):
        # Placeholders come first in a graph, whenever they are made.
        k = len(self.draws)
        value = out.detach().clone()
        with self.graph.inserting_after(self.last_input):
            node = self.graph.placeholder(f"draw{k}")
        self.last_input = node
        node.meta["example"] = value
        self.draws.append(value)
        return node

    def bind_results(self, out, node):
        if isinstance(out, torch.Tensor):
            if id(out) not in self.nodes:
                self.bind(out, node)
        elif isinstance(out, (tuple, list)):
            for i, t in enumerate(out):
                if isinstance(t, torch.Tensor) and id(t) not in self.nodes:
                    self.bind(t, self.graph.call_function(__import__("operator").getitem, (node, i)))


class _Draws(TorchDispatchMode):
    """Collects what the random ops of a step draw."""

    def __init__(self):
        super().__init__()
        self.values, self.streams = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if _draws(func):
            self.values.append(out.detach().clone())
            self.streams.append(_stream(kwargs or {}))
        return out


@contextlib.contextmanager
def _module_paths(objects, recorder):
    names = {
        id(m): "/".join(filter(None, [prefix] + path.split(".")))
        for prefix, root in objects.models.items()
        for path, m in root.named_modules()
    }
    before = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda m, _: recorder.modules.append(names.get(id(m), ""))
    )
    after = torch.nn.modules.module.register_module_forward_hook(
        lambda m, _, __: recorder.modules.pop() is None or None, always_call=True
    )
    try:
        yield
    finally:
        before.remove()
        after.remove()


class Captured:
    """A captured step. `graph` takes state, batch and draws, in this order, and returns results in the order of
    `results`."""

    def __init__(self, **members):
        self.__dict__.update(members)

    def arguments(self, state=None, step=0):
        return (
            list(state if state is not None else [v.value for v in self.state]) + self.batches[step] + self.draws[step]
        )


def _loss_of(result, source):
    found = [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and x.numel() == 1]
    if not found:
        raise Refused(f"the step returned {type(result).__name__}; it must return its loss as a tensor ({source})")
    return found[0]


def _signature(recorder):
    """What tells two recorded steps apart: their ops, arguments and constants, not the lines."""
    bytes_of = lambda t: t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()  # noqa: E731
    constants = [(name, t.dtype, t.shape, bytes_of(t)) for name, t in recorder.constants.items()]
    return [f"{n.name} {n.op} {n.target} {n.args} {n.kwargs}" for n in recorder.graph.nodes], constants


def capture(step, model, optimizer, batches, replicas=1, sync="ddp", undo=(), seed=0, rank=0, like=()):
    """Captures `step(model, optimizer, batch) -> loss`, of the replica `rank` of `replicas`.

    undo: causes that are undone meanwhile, as patched_distributed has them. like: captured steps; the graph of one is taken whose
    recorded ops are the same."""
    objects = Objects(unwrapped(model), optimizer)
    wrappers = wrappers_in(named(model, torch.nn.Module).values())
    names, _, build = flat_batch(batches[0])
    feeds = [replica_batch(flat_batch(b)[1], rank, replicas) for b in batches]
    saved = objects.save()
    surroundings = objects.surroundings()
    warm = {
        id(p): {k: copy.deepcopy(v) for k, v in s.items()}
        for o in objects.optimizers.values()
        for p, s in o.state.items()
    }

    def call(batch):
        try:
            return step(model, optimizer, batch)
        except Refused:
            raise
        except Exception as error:
            raise Refused(
                f"the step raised {type(error).__name__} at {raised_at(error)} while it was recorded"
                + (f" as replica {rank} of {replicas}" if replicas > 1 else "")
                + f": {error}"
            ) from error

    def run(rows):
        return call(build([t.clone() for t in rows]))

    try:
        with torch.backends.mkldnn.flags(enabled=False), torch.nn.attention.sdpa_kernel(
            torch.nn.attention.SDPBackend.MATH
        ), patched_distributed(objects, wrappers, replicas, sync, undo, rank) as hooks:
            hooks.dry = True
            before = objects.settings()
            known = None
            while known != len(hooks.wrappers):  # a wrapper that only the step knows shows when it is called
                known = len(hooks.wrappers)
                objects.restore(saved)
                torch.manual_seed(seed)
                loss = _loss_of(run(feeds[0]), "one dry step").detach().clone()
            if objects.settings() != before:
                raise Refused(
                    "the step changes the optimizer's settings (a learning rate schedule); call the scheduler outside "
                    "of "
                    "the step"
                )
            dry = {v.name: v.value.detach().clone() for v in objects.variables()}
            hooks.dry, hooks.passes = False, 0
            objects.restore(saved, slots=False)
            initial_slots(objects, warm)
            torch.manual_seed(seed)
            with plain_optimizers(objects):
                state = [Variable(v.name, v.role, v.value.detach().clone()) for v in objects.variables()]
                recorder = _Recorder()
                for v, live in zip(state, objects.variables()):
                    recorder.bind(live.value, recorder.argument(live.value))
                flat = [t.clone() for t in feeds[0]]
                rows = build(flat)
                for t in flat:
                    recorder.bind(t, recorder.argument(t))
                with _module_paths(objects, recorder), recorder:
                    result = _loss_of(call(rows), "the step")
                    result = result.detach().clone()
                passes, own = hooks.passes, dict(hooks.own)
                outputs = [recorder.node_of(v.value) for v in objects.variables()] + [recorder.node_of(result)]
                kinds = [("state", v.name) for v in state] + [("loss", "")]
                for kind, name, t in hooks.gradients + [(*key, t) for key, t in own.items()]:
                    outputs.append(recorder.node_of(t))
                    kinds.append((kind, name))
                recorder.graph.output(tuple(outputs))
                draws, losses = [recorder.draws], [float(result)]
                hooks.dry = True
                for rows in feeds[1:]:
                    with _Draws() as drawn:
                        losses.append(float(_loss_of(run(rows), "the step").detach()))
                    draws.append(drawn.values)
                again = _Draws()
                if recorder.draws and not like:
                    objects.restore(saved)
                    torch.manual_seed(seed + 1)
                    with again:
                        run(feeds[0])
    finally:
        objects.restore(saved)
        for o in objects.optimizers.values():  # hooks of this capture are gone with `patched_distributed`
            o.zero_grad(set_to_none=True)
        surroundings.restore()
        objects.restore(saved)
    if any(len(d) != len(draws[0]) or any(a.shape != b.shape for a, b in zip(d, draws[0])) for d in draws):
        raise Refused(
            "steps draw different numbers or shapes of random values; draw outside of the step and pass them in the "
            "batch"
        )
    signature = _signature(recorder)
    same = next((c for c in like if c.signature == signature and c.results == kinds), None)
    out = Captured(
        graph=same.graph if same else _functional(recorder),
        signature=signature,
        state=state,
        names=names,
        batches=feeds,
        draws=draws,
        draw_places=recorder.draw_places,
        streams=recorder.streams,
        # Draws whose generator the step itself sets: they are the same whatever its state was before.
        reseeded=[a == b for a, b in zip(recorder.streams, again.streams)],
        results=kinds,
        losses=losses,
        replicas=replicas,
        sync=sync,
        passes=passes,
        notes=hooks.notes,
        wrapped=bool(hooks.wrappers),
        reduced=hooks.reduced,
        groups=hooks.groups,
        asked_rank=hooks.asked_rank,
        asked_world_size=hooks.asked_world_size,
        local_buffers=sync != "ddp",
    )
    if not same:
        _check(out, loss, dry)
    return out


def _functional(recorder):
    module = torch.fx.GraphModule({k: v for k, v in recorder.constants.items()}, recorder.graph)
    examples = [n.meta["example"] for n in module.graph.nodes if n.op == "placeholder"]

    def run(*args):
        return torch.fx.Interpreter(module).run(*(a.clone() for a in args))

    from torch._decomp import core_aten_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    table = dict(core_aten_decompositions())
    aten = torch.ops.aten
    from torch._decomp import get_decompositions

    table.update(
        get_decompositions(
            [
                aten.native_batch_norm_backward,
                aten.native_layer_norm_backward,
                aten.native_group_norm_backward,
                aten.native_group_norm,
                aten.native_layer_norm,
                aten._native_batch_norm_legit,
                aten._native_batch_norm_legit_no_training,
                aten.native_batch_norm,
                aten.upsample_bilinear2d,
                aten.upsample_nearest2d,
                aten.embedding_dense_backward,
                aten._softmax,
                aten._log_softmax,
                aten.addmm,
                aten.lerp,
                aten.lerp_,
                aten.upsample_bilinear2d.vec,
                aten.upsample_nearest2d.vec,
            ]
        )
    )
    with torch.no_grad(), fx_traceback.preserve_node_meta():
        graph = make_fx(torch.func.functionalize(run, remove="mutations_and_views"), decomposition_table=table)(
            *examples
        )
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def largest_difference(a, b):
    """|a - b| relative to the size of b."""
    a, b = a.detach().double().nan_to_num(nan=2.0**100), b.detach().double().nan_to_num(nan=2.0**100)  # NaN equals NaN
    return float((a - b).norm() / b.norm().clamp_min(1e-30)) if a.numel() else 0.0


def _check(c, loss, dry):
    """Holds the captured graph against the user's own step, which ran with its own settings."""
    with torch.no_grad():
        got = c.graph(*c.arguments())
    # Both are float32 computations of the same formula; conforming ones differ by rounding, and the root of a moving
    # average of
    # squares turns u into its square root, 2^-12. Elements whose gradient is rounding alone (a bias before batch norm)
    # are left
    # out: an optimizer that divides by the gradient's size makes steps of full length of them.
    allowed, problem = 2.0**-12, "the step depends on something that is not in model, optimizer or batch"
    by_key, gradients = {}, {n: v for (kind, n), v in zip(c.results, got) if kind == "grad"}
    largest = max((float(g.abs().max()) for g in gradients.values() if g.numel()), default=0.0)
    for (kind, name), value in zip(c.results, got):
        if kind == "loss" and not largest_difference(value, loss) <= allowed:
            raise Refused(f"the captured step's loss is {float(value)}, but the step's own is {float(loss)}: {problem}")
        if kind != "state" or name not in dry:
            continue
        own, value = dry[name].double().nan_to_num(nan=2.0**100), value.double().nan_to_num(nan=2.0**100)
        if name in gradients:
            keep = gradients[name].abs() > 2.0**-16 * largest
            own, value = own[keep], value[keep]
        # A slot is held against the size of that slot over all parameters.
        key = name.rpartition(".")[2] if name.rpartition(".")[0] in gradients else name
        by_key.setdefault(key, []).append((name, float((value - own).norm()), float(own.norm())))
    for rows in by_key.values():
        size = sum(r[2] ** 2 for r in rows) ** 0.5
        for name, difference, _ in rows:
            if not difference <= allowed * size:
                raise Refused(
                    f"after one captured step '{name}' differs from the step's own by "
                    f"{difference / max(size, 1e-30):.3g} "
                    f"of its size (allowed {allowed:.3g}): {problem}"
                )
