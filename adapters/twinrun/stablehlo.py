"""Writes a captured step as StableHLO text with its binding, state and batches, for `twinrun diagnose --program`.

    write(captured, "mine/step", whole.batches, whole.draws)     # mine/step.mlir, .json, .state.npz, .batch.npz

The replicas of a sharded step become one program: what differs between replicas is written once per replica, an
all-reduce is the
sum over them, and what all replicas share is written once. So every engine and instrument of twinrun runs it as it is.
"""

import json
import re

import numpy as np
import torch

from .refused import Refused
from . import stablehlo_indexing, stablehlo_rules, stablehlo_windows  # noqa: F401 (their rules)
from .data_parallel import Analysis
from .stablehlo_ops import Text, mlir_type


def _name(text):
    words = [w.lstrip(".") or "_" for w in re.sub(r"[^A-Za-z0-9_.\-/]", "_", text).split("/") if w]
    return "/".join(words)


def _array(t):
    t = t.detach()
    if t.dtype in (torch.float64, torch.bfloat16, torch.float16):
        t = t.float()
    if t.dtype in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
        if t.numel() and (int(t.max()) >= 2**31 or int(t.min()) < -(2**31)):
            raise Refused(f"an integer of the batch or state is {int(t.abs().max())}; allowed: 32 bits")
        t = t.to(torch.int32)
    return t.contiguous().cpu().numpy()


def write(c, stem, batches, draws, cores=False):
    """c: a captured step; batches, draws: the whole batch's tensors, one list per step; of replicas, draws are
    [replicas, ...]. cores: the replicas become the cores of a program, which is written once, with all-reduces.
    Returns the path of the program."""
    a = Analysis(c)
    n = 1 if cores else c.replicas
    out = Text()
    arguments, state, roles, state_values, results = [], [], [], [], []
    env = [{} for _ in range(n)]  # of each replica: node -> (value, shape, dtype)

    def parameter(value):
        shape, dtype = tuple(value.shape), value.dtype
        if dtype == torch.float64 and not shape:
            dtype = torch.float32
        arguments.append(f"%arg{len(arguments)}: {mlir_type(shape, dtype)}")
        return (f"%arg{len(arguments) - 1}", shape, dtype)

    places = [p for p in c.graph.graph.nodes if p.op == "placeholder"]
    ns, nb = len(c.state), len(c.names)
    kept = []  # (variable, replica or None)
    for v, node in zip(c.state, places):
        if node in a.host:
            continue
        for r in range(n) if node in a.local_state and not cores else [None]:
            state.append(_name(v.name) if r is None else f"replica{r}/{_name(v.name)}")
            roles.append(v.role)
            state_values.append(_array(v.value))
            bound = parameter(v.value)
            kept.append((v, r))
            for q in (range(n) if r is None else [r]):
                env[q][node] = bound
    inputs, columns = [], {}
    for k, node in enumerate(places[ns:]):
        batch = k < nb
        column = [step[k] for step in batches] if batch else [step[k - nb] for step in draws]
        name = _name(c.names[k]) if batch else f"draw{k - nb}"
        if cores and tuple(column[0].shape) != tuple(a.meta[node].shape):  # each core's own, in front
            column = [t.reshape(c.replicas, *a.meta[node].shape) for t in column]
        value = column[0][0] if cores and column[0].dim() > a.meta[node].dim() else column[0]
        bound = parameter(value)
        inputs.append(name)
        columns[name] = np.stack([_array(t) for t in column])
        local = a.meta[node]
        for r in range(n):
            if n == 1 or batch and tuple(value.shape) == tuple(local.shape):
                env[r][node] = bound
            elif not batch:
                cuts = [(r, r + 1, 1)] + [(0, s, 1) for s in local.shape]
                env[r][node] = out.reshape(out.slice(bound, cuts), local.shape)
            else:
                rows = local.shape[0]
                cuts = ", ".join(
                    f"{r * rows}:{(r + 1) * rows}" if d == 0 else f"0:{s}" for d, s in enumerate(value.shape)
                )
                shape = tuple(local.shape)
                env[r][node] = out.op(
                    f"stablehlo.slice {bound[0]} [{cuts}] : ({mlir_type(bound[1], bound[2])}) -> "
                    f"{mlir_type(shape, bound[2])}",
                    shape,
                    bound[2],
                )
    # Numbers that depend on the step count alone are computed here, in binary64, and are fed.
    hosted = a.host_values(len(batches))
    for k, node in enumerate(a.boundary):
        name = f"host/{k}"
        inputs.append(name)
        columns[name] = np.stack([_array(row[node]) for row in hosted])
        bound = parameter(hosted[0][node])
        for r in range(n):
            env[r][node] = bound
    problems = []
    for node in c.graph.graph.nodes:
        if node not in a.needed or node.op in ("placeholder", "output") or node in a.host:
            continue
        out.set_location(node, None)
        if (
            node.op == "get_attr"
            or node in a.folded
            and isinstance(a.folded[node], torch.Tensor)
            and not out.has_rule(node)
        ):
            value = out.literal(a.folded[node])
            for r in range(n):
                env[r][node] = value
            continue
        try:
            if node.target is torch.ops.twinrun.all_reduce_sum.default:
                if cores:
                    env[0][node] = out.all_reduce(env[0][node.args[0]], c.replicas)
                    continue
                x = [e[node.args[0]] for e in env]
                total = x[0]
                for other in x[1:]:
                    total = out.binary("add", total, other)
                for e in env:
                    e[node] = total
                continue
            shared = node not in a.local
            for r in range(1 if shared else n):
                out.set_location(node, None if shared or n == 1 else r)
                value = out.lower(node, env[r], a.meta)
                for e in (env if shared else [env[r]]):
                    e[node] = value
        except Refused as e:
            problems.append(f"{(node.stack_trace or '||').split('|')[1] or 'unknown line'}: {node.target}: {e}")
            shape_of = a.meta[node]
            # A stand-in, so that all ops that are refused are listed.
            stand_in = lambda m: (
                ("%refused", tuple(m.shape), m.dtype) if isinstance(m, torch.Tensor) else None
            )  # noqa: E731
            fake = tuple(map(stand_in, shape_of)) if isinstance(shape_of, (tuple, list)) else stand_in(shape_of)
            for e in env:
                e[node] = fake
    if problems:
        raise Refused(
            "the step cannot be written as StableHLO:\n  "
            + "\n  ".join(dict.fromkeys(problems))
            + "\nReplace these ops, or compute them outside of the step and pass them in the batch."
        )
    ends = {kind_name: node for kind_name, node in zip(c.results, a.outputs)}
    for v, r in kept:
        results.append(env[r or 0][ends["state", v.name]])
    losses = [e[ends["loss", ""]] for e in env]
    loss = losses[0]
    if ends["loss", ""] in a.local and n > 1:
        for other in losses[1:]:
            loss = out.binary("add", loss, other)
        loss = out.binary("multiply", loss, out.splat(1 / n, loss[1], loss[2]))
    if ends["loss", ""] in a.local and cores:
        loss = out.binary("multiply", out.all_reduce(loss, c.replicas), out.splat(1 / c.replicas, loss[1], loss[2]))
    loss = out.reshape(out.convert(loss, torch.float32), ())
    results.append(loss)
    types = ", ".join(mlir_type(x[1], x[2]) for x in results)
    with open(f"{stem}.mlir", "w") as f:
        attributes = f" attributes {{mhlo.num_replicas = {c.replicas} : i32}}" if cores else ""
        f.write(f"module @step{attributes} {{\n  func.func public @main(" + ", ".join(arguments) + f") -> ({types}) {{\n")
        f.write("\n".join(out.lines))
        f.write("\n    return " + ", ".join(x[0] for x in results) + f" : {types}\n  }}\n}}\n")
    with open(f"{stem}.json", "w") as f:
        json.dump(
            {"schema_version": 1, "state": state, "roles": roles, "inputs": inputs, "loss": len(state)}, f, indent=1
        )
    np.savez(f"{stem}.state.npz", **dict(zip(state, state_values)))
    np.savez(f"{stem}.batch.npz", **columns)
    return f"{stem}.mlir"
