"""Batches of a step that is captured: their tensors, and the part of a replica."""
import torch

from .refused import Refused


def flat_batch(batch):
    """Returns [(name, tensor)] of a batch, and a function that builds the batch again from tensors."""
    leaves, spec = torch.utils._pytree.tree_flatten(batch)
    paths = torch.utils._pytree.tree_flatten_with_path(batch)[0]
    at = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    names = [
        (
            "batch/"
            + "/".join(
                c if c.isalnum() else "_"
                for c in map(str, (getattr(k, "key", getattr(k, "idx", k)) for k in paths[i][0]))
            )
            if paths[i][0]
            else "batch/x"
        )
        for i in at
    ]

    def build(tensors):
        full = list(leaves)
        for i, t in zip(at, tensors):
            full[i] = t
        return torch.utils._pytree.tree_unflatten(full, spec)

    return names, [leaves[i] for i in at], build


def replica_batch(tensors, r, replicas):
    """Rows of replica r: every tensor's leading dimension is divided among the replicas."""
    if replicas == 1:
        return tensors
    sizes = {t.shape[0] for t in tensors if t.dim()}
    rows = []
    for t in tensors:
        if t.dim() == 0:
            rows.append(t)
            continue
        if t.shape[0] % replicas or len(sizes) > 1:
            raise Refused(
                f"leading dimensions {sorted(sizes)} of the batch cannot be divided among {replicas} replicas; every "
                f"tensor "
                "needs one row per sample, and the number of samples must be a multiple of replicas"
            )
        n = t.shape[0] // replicas
        rows.append(t[r * n : (r + 1) * n])
    return rows
