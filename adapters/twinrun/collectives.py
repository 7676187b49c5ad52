"""Collectives of a captured replica: one op, and what stands in for torch.distributed and DistributedDataParallel
meanwhile.

`twinrun::all_reduce_sum(x)` stays in the graph; data_parallel.py gives it its meaning over all replicas.
"""

import contextlib

import torch
import torch.nn.functional as F

from .refused import Refused

_library = torch.library.Library("twinrun", "DEF")
_library.define("all_reduce_sum(Tensor x) -> Tensor")
_library.define("replica_weight(Tensor x) -> Tensor")
torch.library.impl(_library, "all_reduce_sum", "CompositeExplicitAutograd")(lambda x: x.clone())
torch.library.impl(_library, "replica_weight", "CompositeExplicitAutograd")(lambda x: x.clone())
for _name in ("all_reduce_sum", "replica_weight"):
    torch.library.register_fake(f"twinrun::{_name}")(lambda x: torch.empty_like(x))
torch.library.register_autograd("twinrun::all_reduce_sum", lambda ctx, g: torch.ops.twinrun.all_reduce_sum(g))


class Hooks:
    def __init__(self):
        self.dry, self.gradients, self.notes, self.asked_world_size = False, [], [], False


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


@contextlib.contextmanager
def patched_distributed(objects, replicas, sync, undo):
    """What the user's step meets while one replica of `replicas` is captured.

    sync="ddp": gradients are averaged over all replicas as soon as they are accumulated, except those of parameters
    that
    DistributedDataParallel is told to ignore. sync="step": the step itself calls torch.distributed.
    undo: names of causes that are undone: batch_norm, clipping, no_all_reduce, unscaled, scaled_twice, token_mean."""
    import torch.distributed as dist

    hooks, handles, old = Hooks(), [], []
    reduce = torch.ops.twinrun.all_reduce_sum

    def swap(owner, name, value):
        if hasattr(owner, name):
            old.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    def all_reduce(t, op=dist.ReduceOp.SUM, group=None, async_op=False):
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise RuntimeError(f"all_reduce of {op} is not supported; allowed: SUM, AVG")
        scale = (
            1 / replicas if op == dist.ReduceOp.AVG or "unscaled" in undo else replicas if "scaled_twice" in undo else 1
        )
        if t.is_floating_point():
            with torch.no_grad():
                t.copy_(reduce(t) * scale)
        return _Done() if async_op else None

    def refused(name):
        def call(*_, **__):
            raise RuntimeError(f"torch.distributed.{name} is not supported in a step; allowed: all_reduce")

        return call

    swap(dist, "all_reduce", all_reduce)

    def world_size(*_, **__):
        hooks.asked_world_size = True
        return replicas

    swap(dist, "get_world_size", world_size)
    swap(dist, "get_rank", lambda *a, **k: 0)
    swap(dist, "is_initialized", lambda: True)
    swap(dist, "barrier", lambda *a, **k: None)
    for name in (
        "all_gather",
        "reduce_scatter",
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "broadcast",
        "all_to_all",
    ):
        swap(dist, name, refused(name))
    for name in ("_has_foreach_support", "_device_has_foreach_support"):
        swap(torch.nn.utils.clip_grad, name, lambda *a, **k: False)
    swap(F, "embedding_bag", lambda *a, **k: (_embedding_bag if hooks.dry else _plain_embedding_bag)(*a, **k))
    # What the wrapper does is `sync`; without its own forward, its hooks expect no gradients and do nothing.
    swap(torch.nn.parallel.DistributedDataParallel, "forward", lambda self, *a, **k: self.module(*a, **k))
    swap(torch.nn.SyncBatchNorm, "forward", _sync_forward(None, replicas))
    if "batch_norm" in undo:
        swap(F, "batch_norm", _synced_batch_norm(replicas))
    if "clipping" in undo:
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            inner = getattr(torch.nn.utils, name)

            def averaged(parameters, *a, _inner=inner, **k):
                parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
                with torch.no_grad():
                    for p in parameters:
                        if p.grad is not None:
                            p.grad.copy_(reduce(p.grad) / replicas)
                return _inner(parameters, *a, **k)

            swap(torch.nn.utils, name, averaged)
            swap(torch.nn.utils.clip_grad, name, averaged)
    if "token_mean" in undo:
        backward = torch.Tensor.backward

        def weighted(self, gradient=None, *a, **k):
            seed = torch.ones_like(self) if gradient is None else gradient
            return backward(self, torch.ops.twinrun.replica_weight(seed), *a, **k)

        swap(torch.Tensor, "backward", weighted)

    ignored = set()
    for prefix, root in objects.models.items():
        for name in getattr(root, "_ddp_params_and_buffers_to_ignore", ()):
            ignored.add("/".join(filter(None, [prefix] + name.split("."))))
    undo_missing = {u.split(":", 1)[1] for u in undo if u.startswith("no_all_reduce:")}
    local = {}

    def accumulated(name):
        def hook(p):
            with torch.no_grad():
                if not hooks.dry:
                    local[name] = p.grad.detach().clone()
                if sync == "ddp" and replicas > 1 and name not in ignored:
                    p.grad.copy_(reduce(p.grad) / replicas)

        return hook

    def before_update(optimizer, args, kwargs):
        with torch.no_grad():
            for p in (p for g in optimizer.param_groups for p in g["params"] if p.grad is not None):
                name = objects.name_of[id(p)]
                if name in undo_missing:
                    p.grad.copy_(reduce(p.grad) / replicas)
                if not hooks.dry and ("grad", name) not in {g[:2] for g in hooks.gradients}:
                    hooks.gradients.append(("grad", name, p.grad.detach().clone()))
                    if name in local:
                        hooks.gradients.append(("local", name, local[name]))

    for name, p in objects.parameters.items():
        if p.requires_grad:
            handles.append(p.register_post_accumulate_grad_hook(accumulated(name)))
    for o in objects.optimizers.values():
        handles.append(o.register_step_pre_hook(before_update))
    try:
        yield hooks
    finally:
        for h in handles:
            h.remove()
        for owner, name, value in reversed(old):
            setattr(owner, name, value)
