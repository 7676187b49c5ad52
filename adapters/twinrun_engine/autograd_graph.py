"""Reads from PyTorch's autograd graph of a training step in which order parameters are used, how they are transposed, and in which
order images are flattened. It is optional evidence: where a graph shows nothing (in compiled code, for instance), nothing is concluded."""
import torch

ALONG = ("AccumulateGrad", "TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0", "ReshapeAliasBackward0",
         "ToCopyBackward0", "ExpandBackward0", "UnsafeViewBackward0", "CloneBackward0", "SplitBackward0", "SliceBackward0")


def short(node):
    return node.name().rsplit("::", 1)[-1]


class Graph:
    """The graph above some results."""

    def __init__(self, roots):
        self.above, self.below, self.of = {}, {}, {}    # node: the nodes it reads; node: the nodes that read it; id of a tensor: its node
        todo = [r.grad_fn for r in roots if torch.is_tensor(r) and r.grad_fn is not None]
        while todo:
            node = todo.pop()
            if node in self.above:
                continue
            self.above[node] = [up for up, _ in node.next_functions if up is not None]
            for up in self.above[node]:
                self.below.setdefault(up, []).append(node)
                todo.append(up)
            if hasattr(node, "variable"):
                self.of[id(node.variable)] = node
        self.reach = {}

    def use(self, tensor):
        """Returns (the node that computes with a parameter, the nodes between them); None, [] where there is none."""
        node, between = self.of.get(id(tensor)), []
        while node is not None and (short(node) in ALONG or len(node.next_functions) < 2):
            between.append(node)
            node = next(iter(self.below.get(node, [])), None)
        return node, between

    def transposed(self, tensor):
        node, between = self.use(tensor)
        return None if node is None else any(short(n) in ("TBackward0", "TransposeBackward0", "PermuteBackward0") for n in between)

    def upstream(self, node):
        """Returns all nodes that a node reads, directly or not."""
        if node not in self.reach:
            found, todo = set(), [node]
            while todo:
                for up in self.above[todo.pop()]:
                    if up not in found:
                        found.add(up)
                        todo.append(up)
            self.reach[node] = found
        return self.reach[node]

    def in_order(self, tensors):
        """Returns the tensors in the order of their use: each after those whose results it is applied to, otherwise in the given order."""
        uses = [self.use(t)[0] for t in tensors]
        left, found = list(range(len(tensors))), []
        while left:
            def first(i):
                return uses[i] is None or not any(j != i and self.of.get(id(tensors[j])) in self.upstream(uses[i]) for j in left)
            i = next((i for i in left if first(i)), left[0])
            left.remove(i)
            found.append(i)
        return [tensors[i] for i in found]

    def channels_first(self, tensor, image):
        """Whether the image that a parameter's layer reads was flattened channels first; None if the graph does not show it.
        image: (height, width, channels)."""
        node, between = self.use(tensor)
        height, width, channels = image
        seen, todo = set(), [] if node is None else [n for n in self.above[node] if n not in between]
        while todo:
            node = todo.pop(0)
            if node in seen:
                continue
            seen.add(node)
            size = tuple(getattr(node, "_saved_self_sym_sizes", None) or getattr(node, "_saved_self_sizes", None) or ())
            if "View" in short(node) or "Reshape" in short(node):
                first, last = size[1:] == (channels, height, width), size[1:] == (height, width, channels)
                if first and last:    # as many pixels as channels: look for a permutation before it
                    while self.above[node] and short(node) not in ("PermuteBackward0", "TransposeBackward0") and (
                            short(node) in ALONG or short(node) == "ContiguousBackward0"):
                        node = self.above[node][0]
                    return short(node) not in ("PermuteBackward0", "TransposeBackward0")
                if first or last:
                    return first
            if "Convolution" not in short(node):
                todo += self.above[node]
        return None
