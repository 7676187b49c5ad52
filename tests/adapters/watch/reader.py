"""A reader of traces for tests, written from docs/reference/trace-format.md alone. It needs no framework but numpy."""
import collections
import json
import struct
import zlib

import numpy as np

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "uint16", "float32", "float64", "complex64", "complex128", "void"]
Tensor = collections.namedtuple("Tensor", "block storage version dtype device flags offset shape stride")
Call = collections.namedtuple("Call", "number name place module node forward step flags args kwargs out written")
Other = collections.namedtuple("Other", "text")
Value = collections.namedtuple("Value", "number")
Node = collections.namedtuple("Node", "name place args kwargs results")
Graph = collections.namedtuple("Graph", "inputs nodes outputs written")
Dtype = collections.namedtuple("Dtype", "code")


class Trace:
    """`cut`: the file may end within a record; what comes after its last whole step is not read."""

    def __init__(self, path, cut=False):
        with open(path, "rb") as file:
            self.raw = file.read()
        assert self.raw[:64] == b"TWINTRC2" + bytes(56), "header"
        self.strings, self.blocks, self.calls, self.meta, self.end = [""], [None], [], None, None
        self.graphs, self.steps, self.begins = [None], 0, {}
        at, kinds = 64, []
        while at < len(self.raw):
            assert at % 8 == 0
            kind, crc, size, number = struct.unpack_from("<IIQQ", self.raw, at)
            first, last = at + 24, at + 24 + size
            if cut and last > len(self.raw):
                break
            assert last <= len(self.raw), "a record reaches beyond the file"
            assert self.end is None, "the last record is not the last"
            payload = self.raw[first:last]
            assert crc == zlib.crc32(payload, zlib.crc32(struct.pack("<IQQ", kind, size, number))), f"checksum of kind {kind} at {at}"
            if kind == 1:
                assert not kinds
                self.meta = json.loads(payload)
            elif kind == 2:
                assert number == len(self.strings)
                self.strings.append(payload.decode())
            elif kind == 3:
                assert number == len(self.blocks) and first % 64 == 0
                self.blocks.append((first, size))
            elif kind == 4:
                assert number == len(self.calls)
                self.calls.append(self._call(number, payload))
            elif kind == 6:
                assert number == len(self.graphs)
                self.graphs.append(self._graph(payload))
            elif kind == 7:
                self.steps += 1
                assert (number, size) == (self.steps, 0) and {c.step for c in self.calls} <= set(range(self.steps))
            elif kind == 8:
                self.begins[number], = struct.unpack("<q", payload)
            elif kind == 5:
                self.end = json.loads(payload)
            kinds.append(kind)
            at = last + -size % 8
        if cut:
            self.calls = [c for c in self.calls if c.step < self.steps]
            return
        assert at == len(self.raw) and self.end is not None and self.end["calls"] == len(self.calls)

    def _take(self, form):
        found = struct.unpack_from("<" + form, self.payload, self.at)
        self.at += struct.calcsize("<" + form)
        return found if len(found) > 1 else found[0]

    def _call(self, number, payload):
        self.payload, self.at = payload, 0
        name, place, module, node, forward, step, flags = self._take("IIIIqiI")
        args = self._list()
        kwargs = {self.strings[self._take("I")]: self._value() for _ in range(self._take("I"))}
        out, written = self._value(), self._list()
        assert self.at == len(payload)
        return Call(number, self.strings[name], self.strings[place], self.strings[module], self.strings[node], forward, step, flags,
                    args, kwargs, out, written)

    def _graph(self, payload):
        self.payload, self.at = payload, 0
        inputs, nodes = self._take("I"), []
        self.values = inputs
        for _ in range(self._take("I")):
            name, place = self._take("II")
            args = self._list()
            kwargs = {self.strings[self._take("I")]: self._value() for _ in range(self._take("I"))}
            results = []
            for _ in range(self._take("I")):
                dtype, rank = self._take("BB")
                results.append((dtype, [self._take("q") for _ in range(rank)]))
            nodes.append(Node(self.strings[name], self.strings[place], args, kwargs, results))
            self.values += len(results)
        outputs = [self._take("I") for _ in range(self._take("I"))]
        written = [self._take("II") for _ in range(self._take("I"))]
        assert self.at == len(payload)
        assert all(v < self.values or v == 0xFFFFFFFF for v in outputs)
        return Graph(inputs, nodes, outputs, written)

    def _list(self):
        return [self._value() for _ in range(self._take("I"))]

    def _value(self):
        kind = self._take("B")
        if kind == 5:
            block, storage, version, dtype, device, flags, d, offset = self._take("QQIBBBBq")
            shape, stride = (struct.unpack_from(f"<{d}q", self.payload, self.at + 8 * d * i) for i in range(2))
            self.at += 16 * d
            assert block < len(self.blocks)
            return Tensor(block, storage, version, dtype, device, flags, offset, shape, stride)
        if kind == 10:
            number = self._take("I")
            assert number < self.values, "a value that comes later"
            return Value(number)
        if kind == 9:
            return complex(*self._take("dd"))
        return {0: lambda: None, 1: lambda: bool(self._take("B")), 2: lambda: self._take("q"), 3: lambda: self._take("d"),
                4: lambda: self.strings[self._take("I")], 6: self._list, 7: lambda: Dtype(self._take("B")),
                8: lambda: Other(self.strings[self._take("I")])}[kind]()

    def array(self, t):
        """Returns a tensor's elements; bfloat16 as uint16."""
        assert t.block, "its bytes were left out"
        first, size = self.blocks[t.block]
        dtype = np.dtype(DTYPES[t.dtype])
        if 0 in t.shape:
            return np.zeros(t.shape, dtype)
        reach = t.offset + (sum((n - 1) * s for n, s in zip(t.shape, t.stride)) + 1) * dtype.itemsize
        assert 0 <= t.offset and reach <= size, f"{t} reaches beyond its block of {size} bytes"
        flat = np.frombuffer(self.raw, np.uint8, size, first)[t.offset:reach]
        return np.lib.stride_tricks.as_strided(np.frombuffer(flat.tobytes(), dtype), t.shape, [s * dtype.itemsize for s in t.stride])


def tensors(value):
    """Yields the tensors of nested values."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Call):
        yield from tensors([value.args, list(value.kwargs.values()), value.out, value.written])
    elif isinstance(value, list):
        for each in value:
            yield from tensors(each)
