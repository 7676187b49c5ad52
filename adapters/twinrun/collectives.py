"""Collectives of a captured replica: one op, and what stands in for torch.distributed and DistributedDataParallel
meanwhile.

`twinrun::all_reduce_sum(x)` stays in the graph; data_parallel.py gives it its meaning over all replicas.
"""

import contextlib
import os
import sys
import types

import torch
import torch.nn.functional as F
from torch import library

from .refused import Refused

_library = library.Library("twinrun", "DEF")
_library.define("all_reduce_sum(Tensor x) -> Tensor")
_library.define("replica_weight(Tensor x, int backward_pass) -> Tensor")
for _name in ("all_reduce_sum", "replica_weight"):
    library.impl(_library, _name, "CompositeExplicitAutograd")(lambda x, *_: x.clone())
    library.register_fake(f"twinrun::{_name}")(lambda x, *_: torch.empty_like(x))
library.register_autograd("twinrun::all_reduce_sum", lambda ctx, g: torch.ops.twinrun.all_reduce_sum(g))
# A replica calls it although it does not use the sum: the others wait for it.
torch.fx.node.has_side_effect(torch.ops.twinrun.all_reduce_sum.default)


class Hooks:
    def __init__(self):
        self.dry, self.gradients, self.notes, self.asked_world_size, self.asked_rank = False, [], [], False, []
        self.own = {}  # (kind, name): what each backward pass itself adds to a gradient
        self.passes, self.reduced, self.groups, self.wrappers = 0, False, False, []


class _Done:
    def wait(self, *_):
        return True

    def is_completed(self):
        return True


def _synced_batch_norm(replicas):
    """Batch norm over all replicas' samples, as SyncBatchNorm computes it."""
    sum_over = torch.ops.twinrun.all_reduce_sum

    def batch_norm(x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
        if not training:
            return _batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        dims = [d for d in range(x.dim()) if d != 1]
        count = x.numel() // x.shape[1] * replicas
        shape = [1, -1] + [1] * (x.dim() - 2)
        mean = sum_over(x.sum(dims)) / count
        var = sum_over(((x - mean.view(shape)) ** 2).sum(dims)) / count
        if running_mean is not None:
            with torch.no_grad():
                running_mean.mul_(1 - momentum).add_(mean * momentum)
                running_var.mul_(1 - momentum).add_(var * (momentum * count / (count - 1)))
        y = (x - mean.view(shape)) * (var + eps).rsqrt().view(shape)
        return y if weight is None else y * weight.view(shape) + bias.view(shape)

    return batch_norm


_batch_norm, _embedding_bag = F.batch_norm, F.embedding_bag


def _plain_embedding_bag(
    ids,
    weight,
    offsets=None,
    max_norm=None,
    norm_type=2,
    scale_grad_by_freq=False,
    mode="mean",
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=None,
):
    """Bags of equal length, as an embedding and a reduction."""
    if ids.dim() != 2 or max_norm is not None or scale_grad_by_freq or padding_idx is not None:
        raise Refused(
            "embedding_bag with offsets, max_norm, scale_grad_by_freq or padding_idx is not supported; pass a matrix "
            "of "
            "indices, one row per bag, and weights of zero (mode='sum') for padding"
        )
    rows = F.embedding(ids, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    return rows.mean(1) if mode == "mean" else rows.sum(1) if mode == "sum" else rows.amax(1)


def _sync_forward(module, replicas):
    def forward(self, x):
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if not self.training or replicas == 1:
            return _batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
            )
        return _synced_batch_norm(replicas)(
            x, self.running_mean, self.running_var, self.weight, self.bias, True, self.momentum, self.eps
        )

    return forward


def _line():
    """The user's file and line that is being run."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/torch/" not in file and os.path.dirname(file) != os.path.dirname(__file__) and "<" not in file:
            return f"{file.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def wrappers_in(things):
    """The DistributedDataParallel wrappers among modules and inside of them."""
    found = [m for root in things for m in root.modules()]
    return [m for m in found if isinstance(m, torch.nn.parallel.DistributedDataParallel)]


def _collectives(dist, hooks, replicas, rank, undo):
    """What stands in for the functions of torch.distributed on this rank; each is made of sums over all replicas."""
    reduce = torch.ops.twinrun.all_reduce_sum
    op_of = dist.ReduceOp

    def gathered(t):
        """[replicas, ...]: the tensors of all replicas."""
        return reduce(torch.stack([t if r == rank else torch.zeros_like(t) for r in range(replicas)]))

    def combined(t, op):
        """t of all replicas, combined by op."""
        hooks.reduced = True
        if op in (op_of.SUM, op_of.AVG):
            if not t.is_floating_point():
                return reduce(t)
            average = op == op_of.AVG or "unscaled" in undo
            return reduce(t) * (1 / replicas if average else replicas if "scaled_twice" in undo else 1)
        if op in (op_of.MAX, op_of.MIN):
            return gathered(t).amax(0) if op == op_of.MAX else gathered(t).amin(0)
        if op == op_of.PRODUCT:
            return gathered(t).prod(0)
        raise Refused(f"all_reduce of {op} at {_line()} is not supported; allowed: SUM, AVG, MAX, MIN, PRODUCT")

    def writing(f):
        """f returns pairs (tensor, its new value)."""

        def call(*args, async_op=False, **kwargs):
            given = [x for x in (*args, *kwargs.values()) if isinstance(x, dist.ProcessGroup)]
            hooks.groups |= any(group is not dist.GroupMember.WORLD for group in given)
            with torch.no_grad():
                for target, value in f(*args, **kwargs):
                    target.copy_(value.reshape(target.shape))
            return _Done() if async_op else None

        return call

    return {
        "all_reduce": writing(lambda tensor, op=op_of.SUM, group=None: [(tensor, combined(tensor, op))]),
        "all_gather": writing(lambda tensor_list, tensor, group=None: list(zip(tensor_list, gathered(tensor)))),
        "all_gather_into_tensor": writing(
            lambda output_tensor, input_tensor, group=None: [(output_tensor, gathered(input_tensor))]
        ),
        "reduce_scatter": writing(
            lambda output, input_list, op=op_of.SUM, group=None: [(output, combined(torch.stack(list(input_list)), op)[rank])]
        ),
        "reduce_scatter_tensor": writing(
            lambda output, input, op=op_of.SUM, group=None: [
                (output, combined(input.reshape((replicas,) + tuple(output.shape)), op)[rank])
            ]
        ),
        "broadcast": writing(
            lambda tensor, src=None, group=None, group_src=None: [(tensor, gathered(tensor)[src or group_src or 0])]
        ),
        "barrier": lambda *a, **k: None,
    }


_REFUSED = (
    "all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv", "batch_isend_irecv", "gather", "scatter", "reduce",
    "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "all_gather_coalesced",
    "all_reduce_coalesced", "new_group", "monitored_barrier",
)  # fmt: skip


@contextlib.contextmanager
def _environment(rank, replicas):
    new = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": replicas, "LOCAL_WORLD_SIZE": replicas}
    old = {name: os.environ.get(name) for name in new}
    os.environ.update({name: str(value) for name, value in new.items()})
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def patched_distributed(objects, wrappers, replicas, sync, undo, rank=0):
    """What the user's step meets while the replica `rank` of `replicas` is captured.

    sync="ddp": after each backward pass gradients are averaged over all replicas: those of parameters inside of
    DistributedDataParallel, as far as it does so; of all, if there is no such wrapper. sync="step": the step itself calls
    torch.distributed.
    undo: names of causes that are undone: batch_norm, clipping, no_all_reduce:NAME, unscaled, scaled_twice, token_mean, rank:R."""
    import torch.distributed as dist

    hooks, handles, old = Hooks(), [], []
    hooks.wrappers = list(wrappers)
    reduce = torch.ops.twinrun.all_reduce_sum
    rank = next((int(u.split(":")[1]) for u in undo if u.startswith("rank:")), rank)

    def swap(owner, name, value):
        if hasattr(owner, name):
            old.append((owner, name, vars(owner)[name]))
            setattr(owner, name, value)

    def swap_imported(new):
        """new: {function: its stand-in}. Swaps them where a script has imported them by name."""
        stand_ins = {id(f): (f, value) for f, value in new.items()}
        for path, module in list(sys.modules.items()):
            if path.startswith("torch.") and not path.startswith(("torch.distributed", "torch.nn.utils")):
                continue
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if id(value) in stand_ins:
                    swap(module, name, stand_ins[id(value)][1])

    def refused(name):
        def call(*_, **__):
            raise Refused(
                f"torch.distributed.{name} at {_line()} is not supported in a step; allowed: all_reduce, all_gather, "
                "all_gather_into_tensor, reduce_scatter, reduce_scatter_tensor, broadcast, barrier over all ranks"
            )

        return call

    def world_size(*_, **__):
        hooks.asked_world_size = True
        return replicas

    def its_rank(*_, **__):
        if _line() not in hooks.asked_rank:
            hooks.asked_rank.append(_line())
        return rank

    if dist.is_available():
        new = _collectives(dist, hooks, replicas, rank, undo)
        new.update({name: refused(name) for name in _REFUSED})
        new.update(get_world_size=world_size, get_rank=its_rank, get_node_local_rank=its_rank, is_initialized=lambda: True)
        swap_imported({getattr(dist, name): value for name, value in new.items() if hasattr(dist, name)})
        # Functions that the step holds in other ways ask the group.
        group = types.SimpleNamespace(rank=its_rank, size=world_size)
        swap(dist.distributed_c10d, "_get_default_group", lambda: group)
        swap(dist.ProcessGroup, "rank", its_rank)
        swap(dist.ProcessGroup, "size", world_size)
    for name in ("_has_foreach_support", "_device_has_foreach_support"):
        swap(torch.nn.utils.clip_grad, name, lambda *a, **k: False)
    swap(F, "embedding_bag", lambda *a, **k: (_embedding_bag if hooks.dry else _plain_embedding_bag)(*a, **k))
    syncing = {}

    # What the wrapper does is `sync`; without its own forward, its hooks expect no gradients and do nothing.
    def forward(self, *args, **kwargs):
        if all(self is not w for w in hooks.wrappers):
            hooks.wrappers.append(self)
        syncing[id(self)] = self.require_backward_grad_sync
        return self.module(*args, **kwargs)

    swap(torch.nn.parallel.DistributedDataParallel, "forward", forward)
    swap(torch.nn.SyncBatchNorm, "forward", _sync_forward(None, replicas))
    if "batch_norm" in undo:
        swap(F, "batch_norm", _synced_batch_norm(replicas))
    if "clipping" in undo:

        def averaging(inner):
            def clip(parameters, *a, **k):
                parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
                with torch.no_grad():
                    for p in parameters:
                        if p.grad is not None:
                            p.grad.copy_(reduce(p.grad) / replicas)
                return inner(parameters, *a, **k)

            return clip

        clips = (torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_)
        swap_imported({f: averaging(f) for f in clips})
    if "token_mean" in undo:
        backward = torch.Tensor.backward

        def weighted(self, gradient=None, *a, **k):
            seed = torch.ones_like(self) if gradient is None else gradient
            return backward(self, torch.ops.twinrun.replica_weight(seed, hooks.passes), *a, **k)

        swap(torch.Tensor, "backward", weighted)

    undo_missing = {u.split(":", 1)[1] for u in undo if u.startswith("no_all_reduce:")}
    reached = []

    def averages(name):
        """Whether the backward pass that reached this parameter averages its gradient."""
        if sync != "ddp" or replicas == 1 or name in objects.ignored:
            return False
        inside = [w for w in hooks.wrappers if any(p is objects.parameters[name] for p in w.module.parameters())]
        return not hooks.wrappers or any(syncing.get(id(w)) for w in inside)

    def finished():
        """The end of a backward pass: in the parameters' order, which is the same on all replicas."""
        with torch.no_grad():
            for name in (n for n in objects.parameters if n in reached and averages(n)):
                p = objects.parameters[name]
                p.grad.copy_(reduce(p.grad) / replicas)
        reached.clear()
        hooks.passes += 1

    def accumulated(name):
        def hook(p):
            if not reached:
                torch.autograd.Variable._execution_engine.queue_callback(finished)
            reached.append(name)

        return hook

    def own(name):
        def hook(gradient):
            if not hooks.dry:
                hooks.own[f"local{hooks.passes}", name] = gradient.detach().clone()

        return hook

    def before_update(optimizer, args, kwargs):
        with torch.no_grad():
            for p in (p for g in optimizer.param_groups for p in g["params"] if p.grad is not None):
                name = objects.name_of[id(p)]
                if name in undo_missing:
                    p.grad.copy_(reduce(p.grad) / replicas)
                if not hooks.dry and ("grad", name) not in {g[:2] for g in hooks.gradients}:
                    hooks.gradients.append(("grad", name, p.grad.detach().clone()))

    for name, p in objects.parameters.items():
        if p.requires_grad:
            handles.append(p.register_hook(own(name)))
            handles.append(p.register_post_accumulate_grad_hook(accumulated(name)))
    for o in objects.optimizers.values():
        handles.append(o.register_step_pre_hook(before_update))
    try:
        with _environment(rank, replicas):
            yield hooks
    finally:
        for h in handles:
            h.remove()
        for owner, name, value in reversed(old):
            setattr(owner, name, value)
