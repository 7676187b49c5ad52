"""Runs the replicas of a captured step in lockstep, in binary64, and finds what they share."""

import torch

_WIDE = (torch.float32, torch.bfloat16, torch.float16)


class Analysis:
    """Of a captured graph: which nodes results need, which differ between replicas, and which depend on the step count
    alone."""

    def __init__(self, c):
        self.c = c
        nodes = list(c.graph.graph.nodes)
        places = [n for n in nodes if n.op == "placeholder"]
        self.outputs = list(nodes[-1].args[0])
        ends = dict(zip(c.results, self.outputs))
        next_of = {p: ends["state", v.name] for v, p in zip(c.state, places)}
        wanted = [n for (kind, _), n in zip(c.results, self.outputs) if kind in ("state", "loss")]
        self.needed, todo = set(), list(wanted)
        while todo:
            n = todo.pop()
            if n not in self.needed:
                self.needed.add(n)
                todo += n.all_input_nodes
        self.meta, self.folded = {}, {}  # folded: what is computed of constants alone, and its value
        self._values()
        ns = len(c.state)
        # Host: scalars of state that only follow themselves, and what is computed of those alone.
        host_state = {p for v, p in zip(c.state, places) if v.value.dim() == 0 and v.role in ("counter", "statistic")}
        while True:
            self.host = set(host_state)
            for n in nodes:
                if (
                    n.op == "call_function"
                    and n.all_input_nodes
                    and all(i in self.host or self._constant(i) for i in n.all_input_nodes)
                    and any(i in self.host for i in n.all_input_nodes)
                ):
                    self.host.add(n)
            keep = {p for p in host_state if next_of[p] in self.host or self._constant(next_of[p])}
            if keep == host_state:
                break
            host_state = keep
        self.host_next = {p: next_of[p] for p in host_state}
        self.boundary = [
            n
            for n in nodes
            if n in self.host and any(u in self.needed and u not in self.host and u.op != "output" for u in n.users)
        ]
        # Local: what may differ between replicas, because it depends on a part of the batch that was not reduced.
        self.local_state = set()
        while True:
            self.local = set(self.local_state) | (set(places[ns:]) if c.replicas > 1 else set())
            for n in nodes:
                if (
                    n.op == "call_function"
                    and n.target is not torch.ops.twinrun.all_reduce_sum.default
                    and any(i in self.local for i in n.all_input_nodes)
                ):
                    self.local.add(n)
            more = {
                p
                for v, p in zip(c.state, places)
                if next_of[p] in self.local and not (v.role == "statistic" and not c.local_buffers)
            }
            if more <= self.local_state:
                break
            self.local_state |= more

    def _constant(self, n):
        return (
            n.op == "call_function"
            and all(self._constant(i) for i in n.all_input_nodes)
            and n.target.__name__.split(".")[0]
            in ("full", "scalar_tensor", "arange", "empty", "full_like", "clone", "_to_copy")
            or n.op == "get_attr"
        )

    def _values(self):
        meta, folded = self.meta, self.folded

        class Shapes(torch.fx.Interpreter):
            def run_node(self, n):
                value = super().run_node(n)
                if n.op == "get_attr" or n.op == "call_function" and all(i in folded for i in n.all_input_nodes):
                    folded[n] = value
                meta[n] = torch.empty_like(value, device="meta") if isinstance(value, torch.Tensor) else value
                return value

        with torch.no_grad():
            Shapes(self.c.graph).run(*self.c.arguments())

    def host_values(self, steps):
        """Per step, the values of the nodes on the boundary."""
        places = [n for n in self.c.graph.graph.nodes if n.op == "placeholder"]
        values = {p: v.value for v, p in zip(self.c.state, places) if p in self.host}
        rows = []
        for _ in range(steps):
            env = dict(values)

            def get(n):
                if n not in env:
                    env[n] = (
                        getattr(self.c.graph, n.target)
                        if n.op == "get_attr"
                        else n.target(*torch.fx.node.map_arg(n.args, get), **torch.fx.node.map_arg(n.kwargs, get))
                    )
                return env[n]

            rows.append({n: get(n) for n in self.boundary})
            values = {p: get(n) for p, n in self.host_next.items()}
        return rows


def widened(x):
    if isinstance(x, torch.Tensor):
        return x.double() if x.dtype in _WIDE else x
    return torch.float64 if isinstance(x, torch.dtype) and x in _WIDE else x


class Unmatched(Exception):
    """Replicas do not call the same collectives; the message says where each of two is."""


def _where(node):
    source = (node.stack_trace or "||").split("|")[-2]
    return f"an all-reduce of {tuple(node.meta['val'].shape) if 'val' in node.meta else 'some'} numbers" + (
        f" at {source}" if source else ""
    )


def _replica(c, arguments, weights):
    """Computes one replica's results. Yields (value, node) at each collective and is sent the sum over replicas."""
    env, values = {}, iter(map(widened, arguments))
    nodes = list(c.graph.graph.nodes)
    last = {i: node for node in nodes for i in node.all_input_nodes}
    ends = {}
    for i, node in last.items():
        ends.setdefault(node, []).append(i)
    for node in nodes[:-1]:
        if node.op == "placeholder":
            env[node] = next(values)
        elif node.op == "get_attr":
            env[node] = widened(getattr(c.graph, node.target))
        elif node.target is torch.ops.twinrun.all_reduce_sum.default:
            env[node] = yield env[node.args[0]], node
        elif node.target is torch.ops.twinrun.replica_weight.default:
            env[node] = env[node.args[0]] * weights[node.args[1]]
        else:
            args, kwargs = torch.utils._pytree.tree_map(
                widened, torch.fx.node.map_arg((node.args, node.kwargs), lambda k: env[k])
            )
            env[node] = node.target(*args, **kwargs)
        for dead in ends.get(node, ()):
            del env[dead]
    return dict(zip(c.results, (env[o] for o in nodes[-1].args[0])))


def evaluate(captures, states, batches, draws, weights=None):
    """Runs one captured graph for each replica in lockstep, in binary64. weights: of each replica, those of its backward passes.
    Returns per replica the results as {(kind, name): value}. Raises Unmatched."""
    count = len(captures)
    runs = [_replica(captures[r], states[r] + batches[r] + draws[r], weights and weights[r]) for r in range(count)]
    results, total = [None] * count, None
    with torch.no_grad():
        while True:
            asked = []
            for r, run in enumerate(runs):
                try:
                    asked.append(run.send(total))
                except StopIteration as end:
                    results[r] = end.value
                    asked.append(None)
            if not any(asked):
                return results
            for r, each in enumerate(asked):
                if (each is None) != (asked[0] is None) or each and each[0].shape != asked[0][0].shape:
                    says = [_where(x[1]) if x else "none" for x in (asked[0], each)]
                    raise Unmatched(f"replica 0 calls {says[0]} where replica {r} calls {says[1]}")
            total = sum(value for value, _ in asked)
