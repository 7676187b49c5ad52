"""Whether the step as data parallelism runs it means what the whole-batch step means, and which mechanism changes it.

    m = compare(step, model, optimizer, batches, whole, replicas=8, sync="ddp")
    m["differs"], m["causes"]

Both programs run one step from the same state, in binary64. A cause is named if the step, captured again with the
cause undone,
means what the whole batch does: the smallest set of causes for which that holds.
"""

import itertools
import math

import torch

from .capture import capture, flat_batch, replica_batch
from .data_parallel import evaluate, replica_draws
from .mechanisms import threshold, words
from .refused import Refused


def _distance(kind, r, s, state):
    """Relative difference of everything of a kind between the whole batch's results and all replicas'."""
    worst = 0.0
    for replica in s:
        difference = size = 0.0
        for key, value in r.items():
            if not _of_kind(kind, key, state):
                continue
            own, base = replica.get(key), state.get(key[1]) if kind == "update" else None
            if own is None:
                return math.inf
            value = value.double() - (base.value.double() if base is not None else 0)
            own = own.double() - (base.value.double() if base is not None else 0)
            difference += float((own - value).norm()) ** 2
            size += float(value.norm()) ** 2
        relative = math.sqrt(difference) / math.sqrt(size) if size else (0.0 if difference == 0 else math.inf)
        worst = max(worst, math.inf if math.isnan(relative) else relative)
    return worst


def _of_kind(kind, key, state):
    if kind == "gradient":
        return key[0] == "grad"
    role = state[key[1]].role if key[0] == "state" else None
    return role == ("parameter" if kind == "update" else "statistic")


class Comparison:
    """The whole batch's results, and those of replicas with any set of causes undone."""

    def __init__(self, step, model, optimizer, batches, whole, replicas, sync, seed):
        self.of, self.replicas, self.sync, self.seed, self.batches = (
            (step, model, optimizer),
            replicas,
            sync,
            seed,
            batches,
        )
        self.whole, self.state = whole, {v.name: v for v in whole.state}
        self.tensors = flat_batch(batches[0])[1]
        start = [v.value for v in whole.state]
        self.expected = evaluate(whole, [start], [whole.batches[0]], [whole.draws[0]])[0]
        self.captures = {}

    def replica(self, undo):
        if undo not in self.captures:
            self.captures[undo] = capture(*self.of, self.batches[:1], self.replicas, self.sync, undo, seed=self.seed)
        return self.captures[undo]

    def results(self, undo, weights=None):
        c = self.replica(undo)
        n = self.replicas
        names = [v.name for v in c.state]
        if sorted(names) != sorted(self.state):
            raise Refused("a replica has other state than the whole batch's step")
        start = [self.state[k].value for k in names]
        rows = [replica_batch(self.tensors, r, n) for r in range(n)]
        draws = [replica_draws(self.whole.draws[0], c.draws[0], r) for r in range(n)]
        out = evaluate(c, [start] * n, rows, draws, weights)
        if (
            not c.local_buffers
        ):  # DistributedDataParallel gives every replica the buffers of replica 0 before its next step
            for other in out[1:]:
                other.update({k: v for k, v in out[0].items() if _of_kind("statistics", k, self.state)})
        return out

    def kinds(self, results):
        return {k: _distance(k, self.expected, results, self.state) for k in ("gradient", "update", "statistics")}

    def same(self, results):
        return all(d <= threshold(self.replicas) for d in self.kinds(results).values())

    def unreduced(self, results):
        """Parameters whose gradients differ between replicas when they are used."""
        out = []
        for key in self.expected:
            if key[0] != "grad":
                continue
            first = results[0][key]
            if any(float((r[key] - first).norm()) > 2.0**-40 * float(first.norm()) for r in results[1:]):
                out.append(key[1])
        return out

    def weights(self, undo):
        """The weights of the replicas' own gradients, for which their sum is the whole batch's gradient; None if there
        are none."""
        results = self.results(undo + ("token_mean",), [1.0] * self.replicas)
        keys = [k for k in self.expected if k[0] == "local"]
        if not keys:
            return None
        columns = torch.stack([torch.cat([r[k].double().reshape(-1) for k in keys]) for r in results], 1)
        wanted = torch.cat([self.expected[k].double().reshape(-1) for k in keys])
        if columns.shape[0] < 2 * self.replicas or not bool(columns.isfinite().all() & wanted.isfinite().all()):
            return None  # too few numbers to decide by
        w = torch.linalg.lstsq(columns, wanted.unsqueeze(1), driver="gelsd").solution.squeeze(1)
        if float((columns @ w - wanted).norm()) > threshold(self.replicas) * float(wanted.norm()):
            return None
        return (w * self.replicas).tolist()  # of a sum that is divided by the number of replicas


def compare(step, model, optimizer, batches, whole, replicas, sync, seed=0):
    c = Comparison(step, model, optimizer, batches, whole, replicas, sync, seed)
    results = c.results(())
    out = {
        "kinds": c.kinds(results),
        "threshold": threshold(replicas),
        "differs": not c.same(results),
        "causes": [],
        "explained": True,
        "first_parameter": "",
        "replica": c.replica(()),
        "loss": sum(float(r["loss", ""]) for r in results) / replicas,
    }
    if not out["differs"]:
        return out
    out["first_parameter"], out["factor"] = first_difference(c, results)
    found = smallest_set(c, results)
    out["explained"] = found is not None
    for cause, facts in found or ():
        sentence, cure = words(cause, "torch", facts)
        out["causes"].append({"cause": cause, "sentence": sentence, "cure": cure, **facts})
    return out


def first_difference(c, results):
    """The first parameter whose gradient is not the whole batch's, and the factor if it is a multiple."""
    for key, value in c.expected.items():
        if key[0] != "grad":
            continue
        value, own = value.double().reshape(-1), results[0][key].double().reshape(-1)
        if not float((own - value).norm()) <= threshold(c.replicas) * float(value.norm()):
            factor = float(own @ value / (value @ value).clamp_min(1e-300))
            exact = float((own - factor * value).norm()) <= threshold(c.replicas) * float(own.norm())
            return key[1], factor if exact else None
    return "", None


def smallest_set(c, results):
    """The smallest set of causes without which the replicas mean what the whole batch does; None if no set is found."""
    missing = c.unreduced(results)
    candidates = ["batch_norm", "clipping"]
    if missing:
        candidates.append("no_all_reduce")
    if c.sync == "step":
        candidates += ["unscaled", "scaled_twice"]
    candidates.append("token_mean")
    for size in (1, 2, 3):
        for chosen in itertools.combinations(candidates, size):
            if "unscaled" in chosen and "scaled_twice" in chosen:
                continue
            undo = tuple(u for u in chosen if u not in ("no_all_reduce", "token_mean"))
            names = missing
            if "no_all_reduce" in chosen:
                undo += tuple(f"no_all_reduce:{n}" for n in names)
            weights = None
            try:
                if "token_mean" in chosen:
                    weights = c.weights(undo)
                    if weights is None or max(abs(w - 1) for w in weights) <= threshold(c.replicas):
                        continue
                    undo += ("token_mean",)
                if not c.same(c.results(undo, weights)):
                    continue
            except Refused:
                continue
            facts = {
                "names": ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else ""),
                "factor": c.replicas,
                "shares": ", ".join(f"{w / c.replicas:.4g}" for w in weights or ()),
            }
            return [(cause_of(u, weights, c), facts) for u in chosen]
    return None


def cause_of(undone, weights, c):
    if undone != "token_mean":
        return undone
    spread = max(weights) - min(weights)
    if spread <= 2.0**-20 * max(map(abs, weights)) and abs(weights[0] - c.replicas) <= 2.0**-20 * c.replicas:
        return "scaled_twice" if c.replica(()).asked_world_size else "reduction"
    return "token_mean"
