"""Which sample of the batch each number of a step belongs to: for random numbers of replicas, and for samples that meet.

A random number belongs to the sample whose values it is first combined with: a dropout mask to the sample whose units it
drops. So replicas get the numbers that their samples have in the whole batch's step, however a step splits its batch into
micro-batches.
"""

import itertools

import torch

from .refused import Unasked
from .data_parallel import widened

NO_SAMPLE, SEVERAL = -1, -2


class _Labels:
    """Labels of tensors' elements, followed through a graph: an element that depends on elements of one label has that
    label, one that depends on several or none has NO_SAMPLE. So what is reduced over samples (a mean of batch norm) has none,
    and what it is applied to keeps its own."""

    def __init__(self, c):
        self.nodes = list(c.graph.graph.nodes)
        self.order = {n: i for i, n in enumerate(self.nodes)}
        self.values, self.random = {}, torch.Generator().manual_seed(1)
        values = self.values

        class Values(torch.fx.Interpreter):
            def run_node(self, n):
                value = super().run_node(n)
                # Indices and masks steer what an op reads; of other numbers the shape is enough.
                values[n] = torch.utils._pytree.tree_map(
                    lambda t: t.to("meta") if isinstance(t, torch.Tensor) and t.is_floating_point() else t, value
                )
                return value

        with torch.no_grad():
            Values(c.graph).run(*c.arguments())

    def of(self, node, known):
        """The labels of a node; known: those of the placeholders, and what was found before."""
        todo = [node]
        while todo:
            n = todo[-1]
            missing = [i for i in n.all_input_nodes if i not in known]
            if n in known or not missing:
                todo.pop()
                if n not in known:
                    known[n] = self.through(n, known)
            else:
                todo += missing
        return known[node]

    def through(self, node, known):
        """The labels of a node's result from those of its arguments; None if it has none."""
        if node.op != "call_function" or all(known.get(i) is None for i in node.all_input_nodes):
            return None
        if isinstance(self.values[node], (tuple, list)):
            return [self._evaluated(node, known, i) for i in range(len(self.values[node]))]
        if node.target.__name__ == "getitem":
            return known[node.args[0]][node.args[1]]
        if torch.Tag.pointwise in getattr(node.target, "tags", ()):
            out = torch.full(self.values[node].shape, NO_SAMPLE)
            clash = torch.zeros_like(out, dtype=torch.bool)
            for labels in (known[i] for i in node.all_input_nodes if known.get(i) is not None):
                labels = labels.expand(out.shape)
                clash |= (labels >= 0) & (out >= 0) & (labels != out)
                out = torch.where(out < 0, labels, out)
            return torch.where(clash, NO_SAMPLE, out)
        return self._evaluated(node, known, None)

    def _evaluated(self, node, known, part):
        """The op is computed of any numbers, then with those whose label has bit k changed, then with those where it has not: an
        element of one label changes with exactly one of the two, for every k."""
        pick = lambda out: out if part is None else out[part]  # noqa: E731
        if not isinstance(pick(self.values[node]), torch.Tensor):
            return None
        base, other = {}, {}
        for i in node.all_input_nodes:
            value = self.values[i]
            if not isinstance(value, torch.Tensor):
                raise Unasked(f"{node.target} takes several tensors at once")
            if value.is_floating_point():
                base[i], other[i] = (
                    torch.rand(value.shape, generator=self.random, dtype=torch.float64) + 0.5 for _ in range(2)
                )
            else:
                # The neighbour of an index is one too, as a table has two rows.
                base[i] = value
                other[i] = ~value if value.dtype == torch.bool else torch.where(value > 0, value - 1, value + 1)

        def computed(changes):
            env = {
                i: torch.where(changes(known[i]), other[i], base[i]) if known.get(i) is not None else base[i]
                for i in node.all_input_nodes
            }
            args, kwargs = torch.utils._pytree.tree_map(
                widened, torch.fx.node.map_arg((node.args, node.kwargs), lambda n: env[n])
            )
            return pick(node.target(*args, **kwargs))

        first = computed(lambda labels: torch.zeros_like(labels, dtype=torch.bool))
        changed = lambda f: ~((x := computed(f)) == first) & ~(x.isnan() & first.isnan())  # noqa: E731
        top = max(int(known[i].max()) for i in node.all_input_nodes if known.get(i) is not None and known[i].numel())
        code, some, clash = (torch.zeros(first.shape, dtype=t) for t in (torch.int64, torch.bool, torch.bool))
        for k in range(max(1, top.bit_length())):
            on = changed(lambda labels: (labels >= 0) & (labels >> k & 1 == 1))
            off = changed(lambda labels: (labels >= 0) & (labels >> k & 1 == 0))
            code, some, clash = code | on.long() << k, some | on | off, clash | on & off
        return torch.where(some & ~clash, code, NO_SAMPLE)


def _of_batch(c, samples):
    """The placeholders of a captured step, and their labels: the rows of the batch."""
    places = [n for n in c.graph.graph.nodes if n.op == "placeholder"]
    known = {p: None for p in places}
    for p, value in zip(places[len(c.state) :], c.batches[0]):
        if value.dim():
            rows = torch.arange(samples).view((samples,) + (1,) * (value.dim() - 1))
            known[p] = rows.expand(value.shape)
    return places, known


def meeting(c, samples, replicas):
    """The first op of the forward pass that combines samples of different replicas, and its line; "" if none does."""
    labels, (_, known) = _Labels(c), _of_batch(c, samples)
    each = samples // replicas
    for node in labels.nodes:
        place = (node.stack_trace or "||1").split("|")
        if node.op != "call_function" or place[-1].strip() == "1" or not isinstance(labels.values[node], torch.Tensor):
            continue
        labels.of(node, known)
        inputs = [i for i in node.all_input_nodes if isinstance(known.get(i), torch.Tensor)]
        through = [labels.through(node, {i: known[i] if i is one else None for i in node.all_input_nodes}) for one in inputs]
        for a, b in itertools.combinations(through, 2):
            if bool(((a >= 0) & (b >= 0) & (a // each != b // each)).any()):
                return f"{node.target.__name__.split('.')[0]} at {place[-2]}"
    return ""


def owners(c, samples):
    """Of every draw of a captured step, a tensor of its shape: the sample (0 to samples - 1) that each number belongs to,
    NO_SAMPLE, or SEVERAL."""
    labels, (places, of_samples) = _Labels(c), _of_batch(c, samples)
    out = []
    for place, draw in zip(places[len(c.state) + len(c.names) :], c.draws[0]):
        found = torch.full((draw.numel(),), NO_SAMPLE)
        chain = {p: None for p in places}
        chain[place] = torch.arange(draw.numel()).reshape(draw.shape)
        todo = sorted(place.users, key=labels.order.get)
        while todo:
            node = todo.pop(0)
            if node.op == "output" or node in chain:
                continue
            for i in node.all_input_nodes:
                chain.setdefault(i, None)
            with_samples = {i: None if chain[i] is not None else labels.of(i, of_samples) for i in node.all_input_nodes}
            numbers, rows = labels.through(node, chain), labels.through(node, with_samples)
            if isinstance(numbers, torch.Tensor) and isinstance(rows, torch.Tensor):
                met = (numbers >= 0) & (rows >= 0)
                if bool(met.any()):
                    found = _assigned(found, numbers[met], rows[met])
                    break
            chain[node] = numbers
            todo = sorted({*todo, *node.users}, key=labels.order.get) if numbers is not None else todo
        out.append(_completed(found.reshape(draw.shape)))
    return out


def _completed(found):
    """Where all numbers of a row (along any dimension) that have a sample have the same one, the others of the row have it, too:
    the mask of a learned token that is put before each sample's."""
    if bool((found >= 0).all()) or not bool((found >= 0).any()):
        return found
    for d in range(found.dim()):
        rows = found.movedim(d, 0).reshape(found.shape[d], -1)
        high, low = rows.max(1).values, torch.where(rows < 0, 1 << 62, rows).min(1).values
        if bool(((high == low) & (rows != SEVERAL).all(1)).all()):
            return high.view((-1,) + (1,) * (found.dim() - d - 1)).expand(found.shape)
    return found


def _assigned(found, numbers, rows):
    low = torch.full_like(found, 1 << 62).scatter_reduce(0, numbers, rows, "amin")
    high = torch.full_like(found, NO_SAMPLE).scatter_reduce(0, numbers, rows, "amax")
    return torch.where(high < 0, NO_SAMPLE, torch.where(low == high, high, SEVERAL))


def paired(whole, replica, whole_owners, replica_owners, r, replicas, step=0):
    """The draws of replica r: of every sample, the numbers that it has in the whole batch's step, in the order of drawing.

    What belongs to no sample, or to all (noise on a weight), is the same on all replicas, or, where the whole batch has replicas
    times as many rows of it, divided among them."""
    values, shapes = whole.draws[step], [d.shape for d in replica.draws[0]]
    has = lambda o: bool((o >= 0).any())  # noqa: E731
    out = [d.clone() for d in replica.draws[0]]
    for place, of in ((p, o) for c, x in ((whole, whole_owners), (replica, replica_owners)) for p, o in zip(c.draw_places, x)):
        if has(of) and not bool((of >= 0).all()):
            raise Unasked(f"the random numbers of {place} cannot be paired: only some of them belong to one sample each")
    mine, theirs = ([k for k, o in enumerate(x) if has(o)] for x in (replica_owners, whole_owners))
    samples = max((t.shape[0] for t in replica.batches[0] if t.dim()), default=1)
    for place in (p for p in replica.draw_places if p.startswith("randperm")):
        raise Unasked(
            f"{place} puts samples into another order, which a replica can only do with its own; pass the order in the batch"
        )
    for dtype in {out[k].dtype for k in mine}:
        a, b = ([k for k in x if y[k].dtype == dtype] for x, y in ((mine, out), (theirs, values)))
        flat = lambda things, which: torch.cat([things[k].reshape(-1) for k in which])  # noqa: E731
        own, base = flat(replica_owners, a), flat(whole_owners, b) if b else torch.empty(0, dtype=torch.int64)
        here, there = own.argsort(stable=True), base.argsort(stable=True)
        here = here[own[here] >= 0]
        there = there[(base[there] >= r * samples) & (base[there] < (r + 1) * samples)]
        if len(here) != len(there) or not bool((own[here] + r * samples == base[there]).all()):
            raise Unasked(
                f"the random numbers of {replica.draw_places[a[0]]} cannot be paired: a sample has other ones on a replica than "
                "in the whole batch's step"
            )
        new = flat(out, a)
        new[here] = flat(values, b)[there]
        for k, part in zip(a, new.split([out[k].numel() for k in a])):
            out[k] = part.reshape(shapes[k])
    rest, others = ([k for k in range(len(x)) if k not in y] for x, y in ((out, mine), (values, theirs)))
    if len(rest) != len(others):
        raise Unasked(
            f"the step draws {len(others)} random tensors that belong to no sample on the whole batch, and {len(rest)} on a "
            "replica"
        )
    for k, j in zip(rest, others):
        out[k] = _shared(values[j], shapes[k], replica.draw_places[k], r, replicas)
    return out


def _shared(value, shape, place, r, replicas):
    differ = [d for d, (a, b) in enumerate(zip(value.shape, shape)) if a != b]
    if value.dim() == len(shape) and not differ:
        return value
    if value.dim() == len(shape) and len(differ) == 1:
        d = differ[0]
        if value.shape[d] == replicas * shape[d]:
            return value.narrow(d, r * shape[d], shape[d])
    raise Unasked(
        f"{place} has shape {tuple(shape)} on a replica and {tuple(value.shape)} on the whole batch, and its numbers belong to "
        "no sample; draw outside of the step and pass them in the batch"
    )
