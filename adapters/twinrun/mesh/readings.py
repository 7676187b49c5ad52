"""What the code of a sharded step leaves open on one device: numbers written for this mesh, and random draws.

`g / 8` means "divided by the devices" on a mesh of 8, though a mesh of one device leaves the 8 as it is, and `loss * 8`
undoes the division of a mean that follows. Such an op is read in three ways: a constant, the number of devices (then 1 on
one device), or a number of samples of one device (then 8 times).
`x - axis_index * 8 < 8` asks for the rows of this device's shard: on one device, for all rows.
A draw of one device stands for the rows of the whole batch's draw that belong to its samples.
"""

import math

import numpy as np

from .align import assemblies, products
from .collectives import REDUCTIONS, axes_of
from .evaluate import is_float
from .flat import line_of
from .flow import SAME_VALUE, Flow
from .layout import xp


# What a bound says: how many rows there are, which is the last, or which device is meant.
_BOUNDED = {"lt": "rows", "ge": "rows", "rem": "rows", "le": "last", "gt": "last", "min": "last", "max": "last",
            "clamp": "last", "div": "rows", "eq": "place", "ne": "place"}  # fmt: skip
_FOLDED = {"eq", "ne", "lt", "select_n", "add", "sub", "mul", "max", "min"}
_PARTED = {"div", "rem"}  # ids // rows is the device that has a row


def _shards(program):
    """Returns {rows of a device's shard: how many devices they are divided over}."""
    found = {}
    for op in program.ops:
        if op.name == "enter":
            whole, part = program.avals[op.inputs[0]].shape, program.avals[op.outputs[0]].shape
            for size, own in zip(whole[len(whole) - len(part) :], part):
                if 1 < own < size:
                    found[own] = size // own
    return found


def _fixed(program):
    """Returns {number: value} of the integers that do not depend on the step's inputs."""
    known = {n: np.asarray(c) for n, c in program.constants.items()}
    known = {n: c for n, c in known.items() if c.size == 1 and c.dtype.kind in "iub"}
    for op in program.ops:
        if not op.inputs or not all(i in known for i in op.inputs):
            continue
        if op.name in SAME_VALUE:
            known[op.outputs[0]] = known[op.inputs[0]]
        elif op.name in _FOLDED and not program.avals[op.outputs[0]].shape:
            known[op.outputs[0]] = np.asarray(op.call([known[i] for i in op.inputs])[0])
    return {n: int(c.reshape(())) for n, c in known.items()}


def _on_one_device(name, c, devices, shards):
    """Returns what a number that is written for this mesh is on one device; itself where that is not understood."""
    if _BOUNDED[name] == "place":
        return 0 if c == devices - 1 else c
    if name == "rem" and c == devices:
        return 1
    if c + 1 in shards and (_BOUNDED[name] == "last" or c not in shards):
        return (c + 1) * shards[c + 1] - 1
    return c * shards.get(c, 1)


class Readings:
    """adjacent: ops next to a collective, always read as the number of devices. counts, samples: those that may be."""

    def __init__(self, results):
        self.c = results
        r, s = results.r, results.s
        flow, theirs = Flow(r), Flow(s)
        self.adjacent, self.counts, self.samples, self.multiples = {}, {}, {}, {}
        for op in s.ops:
            partner = results.partner.get(op.index)
            if partner is None or not op.axes or op.name not in ("div", "mul") or not is_float(r.avals[partner.outputs[0]].dtype):
                continue
            c, own = theirs.scaling(op), flow.scaling(partner)
            if c is None or own is None or c != own:
                continue
            many = products(op.axes)
            n = next((n for n in many if math.isclose(c, n, rel_tol=2.0**-20)), None)
            if n is None:
                n = next((1 / n for n in many if n > 1 and math.isclose(c * n, 1, rel_tol=2.0**-20)), None)
            beside = self._beside(s, theirs, op)
            if n is not None and (n in beside or 1 / n in beside):
                self.adjacent[partner.index] = float(n)
            elif beside and c > max(beside) and c % max(beside) == 0:
                self.multiples[partner.index] = float(max(beside))
            elif not s.avals[op.outputs[0]].shape:
                if n is not None:
                    self.counts[partner.index] = float(n)
                elif c > 1 and float(c).is_integer():
                    n = math.prod(size for _, size in op.axes)
                    self.samples[partner.index] = 1.0 / n
        # The derivative of `loss / 8` divides by the same 8.
        beside = {(line_of(r.ops[i]), n) for i, n in self.adjacent.items()}
        for i, n in list(self.counts.items()):
            if (line_of(r.ops[i]), n) in beside:
                self.adjacent[i] = self.counts.pop(i)
        self.unread = set()  # lines that reckon with this mesh in ways that are not understood
        self.bounds = self._bounds(_fixed(r), _fixed(s))
        self.lines = {op.index: line_of(op) for op in r.ops if op.index in {**self.all(), **self.bounds}}

    def _bounds(self, fixed, theirs):
        """Returns {index of an op: {position: number on one device}} of sizes of shards that a place in the mesh is
        reckoned with. Both programs have the same number there, although the shards are not of the same size.
        """
        r, s, found = self.c.r, self.c.s, {}
        reckoned = {}  # {number: axes of the place in the mesh that it comes from}
        shards = _shards(s)
        own = {p.index: op for op in s.ops if (p := self.c.partner.get(op.index)) is not None}
        for op in r.ops:
            if op.name == "axis_index":
                names = axes_of(op.params)
            else:
                names = tuple(dict.fromkeys(n for i in op.inputs for n in reckoned.get(i, ())))
            if getattr(r.avals[op.outputs[0]].dtype, "kind", "") not in tuple("iub"):
                continue
            if names:
                reckoned.update((o, names) for o in op.outputs)
            if op.name not in _BOUNDED or op.index not in own or not (names or op.name in _PARTED):
                continue
            n = math.prod(self.c.sizes.get(a, 1) for a in names) if names else 0
            for at, number in enumerate(op.inputs):
                c = fixed.get(number)
                if c is None or c < 1 or c != theirs.get(own[op.index].inputs[at]):
                    continue
                whole = _on_one_device(op.name, c, n, shards)
                if whole != c:
                    found.setdefault(op.index, {})[at] = whole
                elif c > 1 and names:
                    self.unread.add(line_of(op))
        for op in r.ops:
            if op.name == "ppermute" and any(max(pair) >= self._devices(op) for pair in op.params["perm"]):
                self.unread.add(line_of(op))
        return found

    def _devices(self, op):
        return math.prod(dict(op.axes).get(a, 1) for a in axes_of(op.params))

    def _beside(self, program, theirs, op):
        """Returns the numbers of devices that sums next to an op go over."""
        sizes = dict(op.axes)

        def before(number, through):
            other = program.of.get(number)
            if other is None:
                return set()
            if other.name in REDUCTIONS:
                return set(axes_of(other.params)) | (before(other.inputs[0], through) if through else set())
            # pmean(g) / 8 divides by the devices again; pmean(g) * 0.125 may be a learning rate.
            if other.name in SAME_VALUE or other.name == "rows" or (through and theirs.scaling(other) is not None):
                return set().union(*[before(i, through) for i in other.inputs if theirs.scalar(i) is None][:1])
            return set()

        def after(number):
            found = set()
            for user in program.users(number):
                if user.name in REDUCTIONS:
                    found |= set(axes_of(user.params))
                elif user.name in SAME_VALUE:
                    found |= after(user.outputs[0])
                else:
                    return set()
            return found

        names = set().union(*[before(i, op.name == "div") for i in op.inputs], *[after(o) for o in op.outputs])
        return set(products([(a, sizes[a]) for a in names if a in sizes]))

    def all(self):
        return {**self.adjacent, **self.counts, **self.samples, **self.multiples}

    def _others(self):
        """Returns the ops of every reading but the plain one."""
        multiple = "of devices, or a multiple of it"
        groups = [(self.counts, "of devices"), (self.multiples, multiple), (self.samples, "of samples of a device")]
        groups = [(group, what) for group, what in groups if group]
        if self.counts and self.multiples:
            groups.append(({**self.counts, **self.multiples}, multiple))
        if self.bounds:
            groups.append((self.bounds, "of rows of a device"))
        return groups

    def count(self):
        return 1 + len(self._others())

    def instead(self, reading):
        """Returns a function that evaluates ops with the numbers of one device; reading 0 is the plain one."""
        chosen = self._others()[reading - 1][0] if reading else {}
        bounds = self.bounds if chosen is self.bounds else {}
        factors = {**self.adjacent, **(chosen if chosen is not self.bounds else {})}
        flow = Flow(self.c.r)

        def instead(op, values):
            if op.index not in bounds and op.index not in factors:
                return None
            inputs = [values[i] for i in op.inputs]
            for at, c in bounds.get(op.index, {}).items():
                inputs[at] = xp(inputs[at]).full_like(inputs[at], c)
            if op.index in factors:
                at, c = flow.scaled_by(op)[0], factors[op.index]
                inputs[at] = inputs[at] * (c if op.name == "mul" else 1 / c)
            return op.call(inputs)

        return instead

    def note(self, reading):
        group, what = self._others()[reading - 1] if reading else (self.adjacent, "of devices")
        lines = sorted({self.lines[i] for i in group})
        if not lines:
            return ""
        return (
            f"a number written in {', '.join(lines[:3])} is taken as the number {what}: "
            "the step is right on this mesh only"
        )


class Draws:
    """Random numbers of the sharded step, replaced by those of the whole batch's: equal keys draw equal numbers."""

    def __init__(self, results):
        self.c, self.all_apart, self.shared, self.apart, self.own = results, False, {}, {}, {}

    def instead(self, op, values):
        partner = self.c.partner.get(op.index)
        if op.name != "random_bits" or not op.axes or partner is None:
            return None
        k = len(op.axes)
        whole = np.asarray(self.c.own[partner.outputs[0]])
        keys = np.asarray(_data(values[op.inputs[0]]))
        sizes = tuple(n for _, n in op.axes)
        local = self.c.s.avals[op.outputs[0]].shape
        index = np.arange(math.prod(local)).reshape((1,) * k + local)
        # Which elements of the whole draw belong to a device.
        where = _blocks(index, whole.shape[k:], op.axes)
        if where is None:
            return None
        total = whole.reshape(-1)
        keys = np.broadcast_to(keys, sizes + keys.shape[k:])
        result, drawn, used = np.empty(sizes + local, whole.dtype), {}, {}
        for device in np.ndindex(*sizes):
            key, block = keys[device].tobytes(), where(device)
            mark = block.tobytes()
            if self.all_apart or (key not in drawn and used.get(mark, key) == key):
                result[device] = total[block]
                if drawn.setdefault(key, mark) == mark:
                    used.setdefault(mark, key)
            elif key in drawn:
                if drawn[key] != mark:
                    self.shared.setdefault(line_of(op), op)
                drawn_block = np.frombuffer(drawn[key], block.dtype).reshape(block.shape) if drawn[key] else None
                result[device] = total[drawn_block] if drawn[key] else self.drawn(op, values, sizes + local)[device]
            else:
                self.apart.setdefault(line_of(op), op)
                drawn[key], result[device] = b"", self.drawn(op, values, sizes + local)[device]
        return [np.asarray(result)]

    def drawn(self, op, values, shape):
        """Returns what the devices draw by their own keys."""
        if op.index not in self.own:
            self.own[op.index] = np.broadcast_to(op.call([values[i] for i in op.inputs])[0], shape)
        return self.own[op.index]


def _data(keys):
    import jax

    return jax.random.key_data(keys) if not isinstance(keys.dtype, np.dtype) else keys


def _blocks(index, wanted, axes):
    """Returns a function from a device to the numbers of its elements in the whole draw, or None."""
    local = index.shape[len(axes) :]
    if local == wanted:
        return lambda device: np.arange(math.prod(local)).reshape(local)
    numbered = np.arange(math.prod(wanted)).reshape(wanted)
    sizes = tuple(n for _, n in axes)
    if len(local) != len(wanted) or any(a == 0 or b % a for a, b in zip(local, wanted)):
        return None
    # Number the devices' shards, put them together, and read where each went.
    marks = np.arange(math.prod(sizes), dtype=np.float64).reshape(sizes + (1,) * len(local)) * np.ones(local)
    r = np.empty((1,) * len(axes) + wanted)
    for whole in assemblies(marks, r, axes):
        lead = whole.shape[: len(axes)]

        def block(device, whole=whole, lead=lead):
            own = whole[tuple(0 if n == 1 else i for i, n in zip(device, lead))]
            mark = np.ravel_multi_index(device, sizes)
            found = numbered[own == mark]
            return found.reshape(local)

        return block
    return None
