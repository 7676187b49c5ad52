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

from .batches import flat_batch, replica_batch
from .capture import capture
from .data_parallel import Unmatched, evaluate
from .samples import meeting, owners, paired
from .mechanisms import between, threshold, words
from .refused import Refused, Unasked
from .stablehlo import write


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
        self.samples = max((t.shape[0] for t in self.tensors if t.dim()), default=replicas)
        start = [v.value for v in whole.state]
        self.expected = evaluate([whole], [start], [whole.batches[0]], [whole.draws[0]])[0]
        self.captures, self.owners = {}, {}
        self.captures[()] = self._captured((), range(replicas))
        self.alike = all(c.graph is self.replica(()).graph for c in self.captures[()])

    def _captured(self, undo, ranks):
        out = []
        for r in ranks:
            like = out + self.captures.get((), [])
            out.append(capture(*self.of, self.batches[:1], self.replicas, self.sync, undo, self.seed, r, like))
        return out

    def of_undone(self, undo):
        """A captured step of each replica."""
        if undo not in self.captures:
            found = self._captured(undo, [0] if self.alike else range(self.replicas))
            self.captures[undo] = found * self.replicas if self.alike else found
        return self.captures[undo]

    def replica(self, undo):
        return self.of_undone(undo)[0]

    def has_effect(self, cause):
        """Whether the step of one replica is another one without the cause."""
        r = self.replicas - 1 if cause == "rank:0" else 0
        try:
            return self._captured((cause,), [r])[0].graph is not self.captures[()][r].graph
        except Refused:
            return False

    def _owners(self, c, samples):
        key = id(c.graph)
        if key not in self.owners:
            self.owners[key] = owners(c, samples)
        return self.owners[key]

    def draws(self, c, r, step=0):
        """The random numbers of replica r, whose captured step is c."""
        if not self.whole.draws[0] and not c.draws[0]:
            return []
        of = self._owners(self.whole, self.samples), self._owners(c, self.samples // self.replicas)
        return paired(self.whole, c, *of, r, self.replicas, step)

    def streams(self):
        """Where the step itself sets the generator: {"one_stream": on all replicas alike, for numbers that belong to samples;
        "stream_per_core": differently, for numbers that belong to none}."""
        first, found = self.replica(()), {}
        if not any(first.reseeded):
            return found
        of = self._owners(first, self.samples // self.replicas)
        for k, place in enumerate(first.draw_places):
            alike = all(len(c.streams) > k and c.streams[k] == first.streams[k] for c in self.captures[()])
            of_all = self.whole.draws[0][k].shape == first.draws[0][k].shape if len(self.whole.draws[0]) > k else False
            of_samples = bool((of[k] >= 0).any())
            if first.reseeded[k] and (alike and of_samples or not alike and not of_samples and of_all):
                found.setdefault("one_stream" if alike else "stream_per_core", {})[place] = None
        return found

    def results(self, undo, weights=None):
        n, captures = self.replicas, self.of_undone(undo)
        names = [v.name for v in captures[0].state]
        if any(sorted(v.name for v in c.state) != sorted(self.state) for c in captures):
            raise Refused("a replica has other state than the whole batch's step")
        start = [[self.state[v.name].value for v in c.state] for c in captures]
        rows = [replica_batch(self.tensors, r, n) for r in range(n)]
        draws = [self.draws(c, r) for r, c in enumerate(captures)]
        try:
            out = evaluate(captures, start, rows, draws, weights)
        except (IndexError, RuntimeError) as error:  # of a random index that only the whole batch has
            if not self.whole.draws[0]:
                raise
            raise Unasked(f"a replica cannot be computed with the random numbers of its samples: {error}") from error
        if (
            not captures[0].local_buffers
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
            if key[0] != "grad" or any(key not in r for r in results):
                continue
            first = results[0][key]
            if any(float((r[key] - first).norm()) > 2.0**-40 * float(first.norm()) for r in results[1:]):
                out.append(key[1])
        return out

    def parameters_agree(self, results):
        keys = [key for key in self.expected if _of_kind("update", key, self.state)]
        return all(float((r[k] - results[0][k]).norm()) <= 2.0**-40 * float(results[0][k].norm()) for r in results[1:] for k in keys)

    def is_another_buffer(self, key, results):
        value = self.expected[key].double()
        allowed = threshold(self.replicas) * float(value.norm())
        return _of_kind("statistics", key, self.state) and any(float((r[key].double() - value).norm()) > allowed for r in results)

    def weights(self, undo):
        """Of each replica, the weights of what its backward passes add to the gradient, for which their sum is the whole batch's;
        None if there are none."""
        passes = self.replica(()).passes
        results = self.results(undo + ("token_mean",), [[1.0] * passes] * self.replicas)
        sizes = {k[1]: v for k, v in self.expected.items() if k[0].startswith("local")}
        if not sizes:
            return None
        zero = {name: torch.zeros(v.numel(), dtype=torch.float64) for name, v in sizes.items()}

        def column(r, k):
            return torch.cat([r[f"local{k}", n].double().reshape(-1) if (f"local{k}", n) in r else zero[n] for n in sizes])

        columns = torch.stack([column(r, k) for r in results for k in range(passes)], 1)
        wanted = sum(column(self.expected, k) for k in range(self.whole.passes))
        if columns.shape[0] < 2 * columns.shape[1] or not bool(columns.isfinite().all() & wanted.isfinite().all()):
            return None  # too few numbers to decide by
        w = torch.linalg.lstsq(columns, wanted.unsqueeze(1), driver="gelsd").solution.squeeze(1)
        if float((columns @ w - wanted).norm()) > threshold(self.replicas) * float(wanted.norm()):
            return None
        return (w * self.replicas).view(self.replicas, passes).tolist()  # of a sum that is divided by the number of replicas


def compare(step, model, optimizer, batches, whole, replicas, sync, seed=0):
    c = Comparison(step, model, optimizer, batches, whole, replicas, sync, seed)
    out = {
        "kinds": {},
        "threshold": threshold(replicas),
        "differs": True,
        "causes": [],
        "explained": True,
        "first_parameter": "",
        "replica": c.replica(()) if c.alike else None,
        "notes": not_asked(c),
    }
    try:
        results = c.results(())
    except Unmatched as error:
        return dict(out, causes=[_cause("unmatched", {"what": str(error)})])
    out["kinds"] = c.kinds(results)
    out["loss"] = sum(float(r["loss", ""]) for r in results) / replicas
    if c.alike:  # of each step and draw, the numbers of all replicas
        each = [[c.draws(x, r, k) for r, x in enumerate(c.of_undone(()))] for k in range(len(batches))]
        out["draws"] = [[torch.stack(rows) for rows in zip(*of)] for of in each]
    streams = c.streams()
    out["causes"] += [_cause(cause, {"line": ", ".join(places)}) for cause, places in streams.items()]
    if c.same(results):
        return dict(out, differs=bool(streams))
    out["first_kind"], out["first_parameter"], out["factor"] = first_difference(c, results)
    found = smallest_set(c, results)
    if found and found[0][0] == "statistics" and c.alike:  # which may be averages
        found = [f for f in asked(c, out, batches[0]) if f[0] == "averaged_statistics"] or found
    out["explained"] = found is not None
    met = meeting(whole, c.samples, replicas) if found is None else ""
    if met:
        found = [("pairs_of_samples", {"line": met})]
    elif found is None and c.alike:
        found = asked(c, out, batches[0]) or None
        out["explained"] = found is not None
    out["causes"] = [_cause(cause, facts) for cause, facts in found or ()] + out["causes"]
    return out


def asked(c, out, batch):
    """The causes that the program finds between the steps as they are written for it."""

    def written(folder):
        write(c.whole, f"{folder}/whole", [flat_batch(batch)[1]], c.whole.draws[:1])
        write(c.replica(()), f"{folder}/sharded", [flat_batch(batch)[1]], out["draws"][:1], cores=True)

    facts = {"names": out["first_parameter"], "axes": "replicas"}
    try:
        causes = between(written)
    except (Refused, FileNotFoundError):  # what has no text, or no program
        return []
    return [(found["cause"], {**found, **facts}) for found in causes]


def not_asked(c):
    """What this comparison did not look at, a line each."""
    first, out = c.replica(()), []
    out.append(
        "not asked: what the script does outside of the step: which samples a rank loads, how it seeds, whether ranks start "
        "from the same parameters, what depends on a rank that was read before"
    )
    if first.draws[0]:
        out.append(
            "not asked: whether ranks draw different numbers: each sample has those of the whole batch's step, whatever the seeds"
        )
    if c.sync == "ddp" and not first.wrapped:
        out.append(
            "not asked: which modules are inside of DistributedDataParallel: no wrapper was given, so every parameter was taken "
            "for synchronised"
        )
    if c.whole.passes > 1:
        out.append(
            f"not asked: whether the {c.whole.passes} backward passes of a step add up to what one pass over all samples gives: "
            "the whole batch's step makes as many"
        )
    if first.groups:
        out.append("not asked: which ranks belong to a process group: every group was taken for all ranks")
    return out


def _cause(cause, facts):
    sentence, cure = words(cause, "torch", facts)
    return {"cause": cause, "sentence": sentence, "cure": cure, **facts}


def first_difference(c, results):
    """Of the first gradient, or else variable, that is not the whole batch's: its kind, its name, and the factor if it is a
    multiple."""
    for kind in ("grad", "state"):
        for key, value in c.expected.items():
            if key[0] != kind or key not in results[0] or kind == "state" and not value.is_floating_point():
                continue
            value = value.double().reshape(-1)
            each = [r[key].double().reshape(-1) for r in results]
            if all(float((own - value).norm()) <= threshold(c.replicas) * float(value.norm()) for own in each):
                continue
            own = max(each, key=lambda own: float((own - value).norm()))
            factor = float(own @ value / (value @ value).clamp_min(1e-300))
            exact = float((own - factor * value).norm()) <= threshold(c.replicas) * float(own.norm())
            return "gradient" if kind == "grad" else c.state[key[1]].role, key[1], factor if exact else None
    return "", "", None


def smallest_set(c, results):
    """The smallest set of causes without which the replicas mean what the whole batch does; None if no set is found."""
    kinds = c.kinds(results)
    if kinds["gradient"] <= threshold(c.replicas) and kinds["update"] <= threshold(c.replicas):
        return [("statistics", {"names": _listed([k[1] for k in c.expected if c.is_another_buffer(k, results)])})]
    missing = c.unreduced(results)
    candidates = ["batch_norm", "clipping"]
    if c.replica(()).reduced:
        candidates += ["unscaled", "scaled_twice"]
    factor = first_difference(c, results)[2]
    multiple = factor is not None and any(math.isclose(factor, x, rel_tol=2.0**-20) for x in (c.replicas, 1 / c.replicas))
    of_gradient = multiple and kinds["gradient"] > threshold(c.replicas)
    if not c.alike:
        candidates = [f"rank:{r}" for r in (0, c.replicas - 1)] + candidates
    candidates = [u for u in candidates if c.has_effect(u)]
    if missing and not c.parameters_agree(results):  # else they were averaged after the update
        candidates.append("no_all_reduce")
    candidates.append("token_mean")
    for size in (1, 2, 3):
        for chosen in itertools.combinations(candidates, size):
            if not of_gradient and chosen in (("unscaled",), ("scaled_twice",)):
                continue  # a sum in the loss, or the rate
            if {"unscaled", "scaled_twice"} <= set(chosen) or sum(u.startswith("rank:") for u in chosen) > 1:
                continue
            undo = tuple(u for u in chosen if u not in ("no_all_reduce", "token_mean"))
            names = missing
            if "no_all_reduce" in chosen:
                undo += tuple(f"no_all_reduce:{n}" for n in names)
            weights = None
            try:
                if "token_mean" in chosen:
                    weights = c.weights(undo)
                    if weights is None or max(abs(w - 1) for w in sum(weights, [])) <= threshold(c.replicas):
                        continue
                    undo += ("token_mean",)
                if not c.same(c.results(undo, weights)):
                    continue
            except (Refused, Unmatched, IndexError, RuntimeError):  # without the cause it cannot be computed
                continue
            facts = {
                "names": _listed(names),
                "factor": c.replicas,
                "shares": ", ".join(f"{w / c.replicas:.4g}" for w in sum(weights or [], [])),
                "axes": "replicas",
                "line": _listed(c.replica(()).asked_rank or ["a rank in the environment"]),
            }
            return [(cause_of(u, weights, c), facts) for u in chosen]
    return None


def _listed(names):
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def cause_of(undone, weights, c):
    if undone != "token_mean":
        return undone.partition(":")[0]
    weights = sum(weights, [])
    spread = max(weights) - min(weights)
    if spread <= 2.0**-20 * max(map(abs, weights)) and abs(weights[0] - c.replicas) <= 2.0**-20 * c.replicas:
        return "scaled_twice" if c.replica(()).asked_world_size else "reduction"
    return "token_mean"
