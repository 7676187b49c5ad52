"""Which of a step's arguments and results are its state: step(state, batch) -> (state, loss), and its other forms.

    form = find(step, state, batches[0])
    form.flat(*form.leaves(state, batch))      # -> a flat list of results, as arrays without typed keys
    form.next_leaves(leaves, results)          # the leaves of the state that the next step starts from
"""

import inspect
import re

import jax
import numpy as np

from ..refused import Refused
from .compat import is_key, key_data, key_impl, wrap_key


def _is_scalar(x):
    return isinstance(x, (bool, int, float, complex))


def _is_array(x):
    return hasattr(x, "dtype") and hasattr(x, "shape")


def _abstract(x):
    """Returns what has to agree when a result is the next value of an argument."""
    if is_key(x):
        return (x.shape, str(x.dtype))
    if _is_scalar(x):
        x = np.asarray(x)
    return (tuple(np.shape(x)), jax.dtypes.canonicalize_dtype(x.dtype)) if _is_array(x) else None


def word(key):
    """Returns a path's key as a word of a name: 'mu' of a field, 'kernel' of a dictionary's key, '0' of a position."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            key = getattr(key, attribute)
            break
    word = re.sub(r'[^!-~]|[\\"]', "_", str(key)).strip("/")
    return re.sub(r"/+", "/", word).lstrip(".") or "_"


def _name(path, prefix):
    """Returns a readable name of a leaf: ("params", "Dense_0", "kernel") gives "params/Dense_0/kernel"."""
    return "/".join([prefix] * bool(prefix) + [word(k) for k in path]) or "value"


def unique(names):
    """Returns the names with a number behind those that are taken, or that are the folder of another one."""
    folders = {"/".join(n.split("/")[:i]) for n in names for i in range(1, n.count("/") + 1)}
    taken, out = set(), []
    for name in names:
        other, count = name, 1
        while other in taken or other in folders:
            count += 1
            other = f"{name}.{count}"
        taken.add(other)
        out.append(other)
    return out


def role(name, leaf, first):
    """Returns the role of a state variable: distances of weights are measured over the parameters only."""
    if not jax.numpy.issubdtype(leaf.dtype, np.floating):
        return "counter"
    words = name.split("/")
    if "opt_state" in words:
        return "slot"
    if "batch_stats" in words:
        return "statistic"
    return "parameter" if first else "slot"


def paths(tree):
    """Returns [(path, leaf)] with keys that have names on every version."""
    return jax.tree_util.tree_flatten_with_path(tree)[0]


class Form:
    """How a step is called: `parts` leading arguments of state, then the batch; where its results hold them."""

    def __init__(self, step, spread_state, spread_batch, static, state, batch):
        self.step, self.spread_state, self.spread_batch, self.static = step, spread_state, spread_batch, static
        arguments = self.arguments(state, batch)
        self.count = len(arguments[0])
        tree = (tuple(arguments[0]), tuple(arguments[1]))
        leaves, self.tree = jax.tree_util.tree_flatten(tree)
        self.moving = [i for i, x in enumerate(leaves) if _is_array(x) or (_is_scalar(x) and not static)]
        self.fixed = {i: x for i, x in enumerate(leaves) if i not in set(self.moving)}
        self.impls = {i: key_impl(leaves[i]) for i in self.moving if is_key(leaves[i])}
        self.paths = [p for p, _ in paths(tree)]
        self.names = [n for part in self.names_of(None) for n in part]
        self.abstract = [_abstract(x) for x in leaves]
        self.state_leaves = len(jax.tree_util.tree_leaves(tree[0]))
        plain = self.take(leaves)
        out = jax.eval_shape(self.flat_tree, *[shape_of(x) for x in plain])
        self.results, self.out_tree = jax.tree_util.tree_flatten(out)
        self.key_results = {}
        self._find_state(tree[0], out)

    def part_of(self, i):
        """Returns which argument the i-th varying leaf belongs to."""
        return self.paths[self.moving[i]][1].idx

    def names_of(self, prefixes):
        """Returns the names of the varying leaves of the state, and of those of the batch."""
        prefixes = prefixes or [""] + [f"state{i}" for i in range(1, self.count)]
        state, batch = [], []
        for i in self.moving:
            where, part, *rest = self.paths[i]
            if where.idx == 0:
                state.append(_name(rest, prefixes[part.idx]))
            else:
                batch.append(_name(rest, "" if rest or not self.spread_batch else f"input{part.idx}"))
        return state, batch

    def arguments(self, state, batch):
        state = tuple(state) if self.spread_state else (state,)
        return state, (tuple(batch) if self.spread_batch else (batch,))

    def take(self, leaves):
        """Returns the leaves that vary, typed keys as their data."""
        return [key_data(leaves[i]) if i in self.impls else leaves[i] for i in self.moving]

    def leaves(self, state, batch):
        leaves, tree = jax.tree_util.tree_flatten(self.arguments(state, batch))
        if tree != self.tree:
            raise Refused("the batches have different structures; give batches of one structure and shape")
        return self.take(leaves)

    def tree_of(self, plain):
        """Returns the step's arguments from leaves that vary."""
        leaves = dict(self.fixed)
        for i, x in zip(self.moving, plain):
            leaves[i] = wrap_key(x, self.impls[i]) if i in self.impls else x
        state, batch = jax.tree_util.tree_unflatten(self.tree, [leaves[i] for i in range(len(leaves))])
        return [*state, *batch]

    def flat_tree(self, *plain):
        return self.step(*self.tree_of(plain))

    def flat(self, *plain):
        return flat_results(self.flat_tree(*plain))

    def _find_state(self, parts, out):
        """Finds each argument of the state among the results, by structure, shapes and types."""
        found, used = [None] * len(parts), set()
        for path, tree in _subtrees(out):
            leaves, structure = jax.tree_util.tree_flatten(tree)
            if not leaves:
                continue
            for i, part in enumerate(parts):
                mine, own = jax.tree_util.tree_flatten(part)
                if found[i] is None and own == structure and not any(path[: len(u)] == u for u in used):
                    if [_abstract(a) for a in mine] == [_abstract(b) for b in leaves]:
                        found[i] = path
                        used.add(path)
                        break
        if any(part is not None and f is None for part, f in zip(parts[:1], found)) and not any(found):
            raise Refused(
                "the step returns nothing that has the structure, shapes and types of the state: "
                + _difference(parts, out)
            )
        # Where each varying leaf's next value is among the flat results; None where it stays.
        positions = {path: n for n, (path, _) in enumerate(_leaf_paths(out))}
        self.next = []
        for part, path in zip(parts, found):
            below = [p for p, _ in _leaf_paths(part)]
            self.next += [positions[path + p] if path is not None else None for p in below]
        self.next = [self.next[i] for i in self.moving if i < self.state_leaves]
        taken = {n for n in self.next if n is not None}
        left = [
            (n, "/".join(path).lower()) for n, (path, leaf) in enumerate(_leaf_paths(out))
            if n not in taken and not leaf.shape and jax.numpy.issubdtype(leaf.dtype, np.floating)
        ]  # fmt: skip
        self.loss = next((n for n, path in left if "loss" in path), left[0][0] if left else None)
        names = dict(zip(self.next, self.names))
        self.result_names = [
            ("new " + names[n]) if n in names else "loss" if n == self.loss else "/".join(path) or "result"
            for n, (path, _) in enumerate(_leaf_paths(out))
        ]

    def next_leaves(self, plain, results):
        """Returns the leaves of the next step's state from a step's flat results."""
        count = len(self.next)
        return [plain[i] if n is None else results[n] for i, n in enumerate(self.next)][:count]

def flat_results(out):
    return [key_data(x) if is_key(x) else x for x in jax.tree_util.tree_leaves(out)]


def explicit_types(x):
    """Returns the types of the axes of the mesh that an array lies on."""
    return getattr(getattr(getattr(x, "sharding", None), "mesh", None), "axis_types", None) or ()


def shape_of(x):
    """Returns shape and type of an argument, without the devices that it is on unless they belong to its type."""
    if _is_array(x) and any("Explicit" in str(t) for t in explicit_types(x)):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    return jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.canonicalize_dtype(x.dtype)) if _is_array(x) else x


def _words(path):
    return tuple(word(key) for key in path)


def _leaf_paths(tree):
    return [(_words(p), x) for p, x in paths(tree)]


def _subtrees(out, path=()):
    """Yields (path, subtree) from the outside in, in the order of the results."""
    yield path, out
    seen = []
    children = jax.tree_util.tree_flatten_with_path(out, is_leaf=lambda x: x is not out)[0]
    for keys, child in children:
        if keys and child is not out:
            seen.append((path + _words(keys), child))
    for below, child in seen:
        yield from _subtrees(child, below)


def _difference(parts, out):
    want = jax.tree_util.tree_flatten(parts[0] if len(parts) == 1 else parts)
    have = jax.tree_util.tree_flatten(out)
    return (
        f"the state has {len(want[0])} arrays ({str(want[1])[:200]}), the results have {len(have[0])} "
        f"({str(have[1])[:200]}). Return the state with the types that it came in with"
    )


def find(step, state, batch):
    """Finds the form of a step; raises Refused with what each form met."""
    spread_state = [True, False] if type(state) is tuple else [False]
    spread_batch = [False, True] if isinstance(batch, (tuple, list)) else [False]
    met = []
    for s in spread_state:
        for b in spread_batch:
            given = [*(state if s else (state,)), *(batch if b else (batch,))]
            try:
                inspect.signature(step).bind(*given)
            except TypeError as error:
                met.append(f"{len(given)} arguments: {error}")
                continue
            except ValueError:
                pass  # no signature
            for static in (False, True):
                try:
                    return Form(step, s, b, static, state, batch)
                except Refused:
                    raise
                except Exception as error:  # whatever the user's function raises for arguments it did not expect
                    met.append(f"{len(given)} arguments: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
                if not any(_is_scalar(x) for x in jax.tree_util.tree_leaves(given)):
                    break
    raise Refused("the step could not be called as step(state, batch): " + "; ".join(dict.fromkeys(met)))
