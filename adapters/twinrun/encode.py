"""Calls as records: which bytes of which storage a call reads and writes, and the values of its arguments.

    recorder = Recorder(TraceFile("trace.twin"), budget)
    before = recorder.begin(name, args, kwargs, schema)
    out = func(*args, **kwargs)
    recorder.end(before, out)

Nothing here keeps a tensor alive, because that would change what the allocator reuses. A storage is known by a weak reference, which
keeps its address from being reused; its bytes are written once for each version. Before each call the memory of its arguments is
compared with what was written, so that no call is judged on bytes that a launch has changed that PyTorch does not know of (a kernel of
Triton or CUDA, ctypes, numpy, another process).
"""
import struct
import sys

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .file import CALL
from .graphs import Value
from .places import pass_on

LEFT_OUT, RAISED, OPTIMIZER, COMPOSED, NO_GRADIENT = 1, 2, 4, 8, 16    # flags of a call
REQUIRES_GRAD, PARAMETER, CHANGED, OF_EVALUATION = 1, 2, 4, 8    # flags of a tensor
OTHER_DTYPE = 12
DTYPES = {getattr(torch, name): i for i, name in enumerate((
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"))}
DEVICES = {"cpu": 0, "cuda": 1}
OTHER_DEVICE = 2
WHOLE = 1 << 16    # a storage up to this size is written as a whole, a larger one where a tensor reaches less than half only in part
ROW = 512          # words of a row of a digest
PURGE = 4096       # storages that come between two searches for those that are gone
MAX_REPR = 200

_U32, _I64, _F64 = struct.Struct("<I"), struct.Struct("<Bq"), struct.Struct("<Bd")
_TEXT, _COMPLEX, _HEAD = struct.Struct("<BI"), struct.Struct("<Bdd"), struct.Struct("<IIIIqiI")
_NONE = b"\0"

if hasattr(torch.Tensor, "untyped_storage"):
    _storage_of = torch.Tensor.untyped_storage
elif hasattr(torch.Tensor, "_storage"):    # 1.13
    _storage_of = torch.Tensor._storage
else:
    def _storage_of(tensor):
        storage = tensor.storage()
        return getattr(storage, "_storage", storage)


# A script may put functions of its own in their place.
_sizes, _stride, _offset, _numel, _size, _is_contiguous = (getattr(torch.Tensor, name) for name in (
    "size", "stride", "storage_offset", "numel", "element_size", "is_contiguous"))


def _is_parameter(t):
    """As isinstance says, which asks the tensor itself."""
    kind = type(t)
    return kind is not torch.Tensor and (issubclass(kind, torch.nn.Parameter) or "_is_param" in object.__getattribute__(t, "__dict__"))


def key_of(t):
    """Returns what tells a tensor's memory from that of others that live; None for layouts that have several or none."""
    return _storage_of(t)._cdata if t.layout is torch.strided and t.device.type != "meta" else None


def _bytes_of(storage):
    try:
        return storage.nbytes()
    except (AttributeError, TypeError):
        return len(storage) * storage.element_size()


# Zeros for a gradient that is missing have no memory.
_is_zeros = getattr(torch.Tensor, "_is_zerotensor", lambda tensor: False)


class Skip(Exception):
    """A call that computes nothing: its tensors have no memory (meta)."""


class Storage:
    __slots__ = ("number", "version", "reference", "blocks", "checked", "changed", "told", "untold", "size")

    def __init__(self, number, storage):
        self.number, self.version, self.reference = number, 0, StorageWeakRef(storage)
        self.blocks = []    # (first byte, last byte, block, digest) of the bytes of this version that are in the file
        self.checked = 0    # the moment at which the memory was known to hold these bytes
        self.changed = 0    # the moment at which it was found to hold others, though no call had written them
        self.told = 0       # the call that was recorded with this change; one that has the memory twice says it once
        self.untold = False    # only the description of an update has said it, which is no call
        self.size = None


class Schema:
    """What a call of an overload writes, by its schema."""
    __slots__ = ("name", "positions", "keywords", "out", "fresh", "late", "foreign", "view", "known", "undeclared")

    # Operations whose schema does not say, in some versions, that they write these arguments: the statistics of batch normalisation in
    # training (argument 5), the noise of rrelu in training (argument 4).
    UNDECLARED = {"native_batch_norm": ((3, 4), 5), "cudnn_batch_norm": ((3, 4), 5), "miopen_batch_norm": ((3, 4), 5),
                  "rrelu_with_noise": ((1,), 4)}
    FRESH = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted")    # results hold no values yet

    def __init__(self, func):
        self.name = str(func)
        self.positions, self.keywords, self.out, self.undeclared = (), (), False, None
        parts = self.name.split(".")
        self.fresh = len(parts) > 1 and parts[0] == "aten" and parts[1] in self.FRESH
        self.late = "c10d" in parts[0]    # what it writes is complete only when somebody has waited for it
        self.foreign = parts[0] not in ("aten", "prims")    # its schema may not say all that it writes
        self.view = False    # gives the memory of its argument, and reads none
        schema = getattr(func, "_schema", None)
        self.known = schema is not None
        if not self.known:
            return
        written = [(i, a) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
        self.positions = tuple(i for i, a in written)
        self.keywords = tuple(a.name for _, a in written)
        self.out = any(getattr(a, "kwarg_only", False) and a.name.startswith("out") for _, a in written) and bool(written)
        returns = getattr(schema, "returns", ())
        self.view = not (self.foreign or written) and any(r.alias_info is not None for r in returns)
        rule = self.UNDECLARED.get(parts[1]) if len(parts) > 1 and not written else None
        if rule:
            self.undeclared = rule

    def written(self, args, kwargs):
        """Returns the written arguments, in order."""
        n = len(args)
        found = [args[i] for i in self.positions if i < n]
        if kwargs:
            found += [kwargs[k] for k in self.keywords if k in kwargs]
        if self.undeclared:
            positions, switch = self.undeclared
            if switch is None or (switch < n and args[switch]):
                found += [args[i] for i in positions if i < n]
        return found


NOWHERE = (0, 0, 0, -1, 0)    # place, module, node, forward call, flags: of a description


class Description:
    """In the place of a schema, of what is recorded and is no call of an operation. `without`: arguments whose bytes are of no use."""
    known, fresh, view, undeclared, positions = True, False, False, None, ()

    def __init__(self, name, without=()):
        self.name, self.keywords, self.out = name, without, bool(without)


class Before:
    """What is known of a call before it runs."""
    __slots__ = ("schema", "arguments", "flags", "place", "module", "node", "forward", "link", "versions", "args", "kwargs")


class Recorder:
    def __init__(self, file, budget, sees_all=True):
        self.file, self.budget = file, budget
        self.sees_all = sees_all    # otherwise others write to storages without a recorded call, and the bytes are compared at each use
        self.storages, self.number = {}, 0
        self.calls, self.step, self.in_step = 0, 0, 0
        self.left_out, self.error = {"budget": 0, "error": 0}, None
        self.now = 1       # a moment: counts where code may run that is not PyTorch's
        self.begun = 0     # calls
        self.composed = 0  # functions of PyTorch that run now and call others
        self.skipped = {}  # storages that calls have computed which were left out: weak references
        self.passed = 0    # those calls
        self.saw = None    # is called with the node that made a tensor, while the arguments of a call are written
        self.zeros = {}    # of each dtype, what a tensor of zeros without memory is recorded as
        self.limit = budget
        self.begin_at, self.first_missed = 0, None    # calls of the step: bytes are kept from the one on; were missing at the other
        self.refused = False                          # in the call that is being encoded
        self.schemas = {}
        self.shapes = {}
        self.describes = False
        self.full = False
        s = file.string
        self.encoders = {
            type(None): lambda v, out: out.append(_NONE), bool: lambda v, out: out.append(b"\1\1" if v else b"\1\0"),
            int: self._int, float: lambda v, out: out.append(_F64.pack(3, v)), str: lambda v, out: out.append(_TEXT.pack(4, s(v))),
            complex: lambda v, out: out.append(_COMPLEX.pack(9, v.real, v.imag)),
            list: self._list, tuple: self._list, torch.Size: self._list,
            torch.dtype: lambda v, out: out.append(bytes((7, DTYPES.get(v, OTHER_DTYPE)))),
            torch.device: self._text, torch.layout: self._text, torch.memory_format: self._text,
            torch.Tensor: self._tensor, torch.nn.Parameter: self._tensor,
            Value: lambda v, out: out.append(_TEXT.pack(10, v.number))}
        for name in ("UninitializedParameter", "UninitializedBuffer"):    # of a module that is lazy
            self.encoders[getattr(torch.nn.parameter, name, None)] = self._uninitialized

    # Steps

    def start_step(self, step, steps):
        """Begins to count the calls of a watched step. The budget is shared among the steps; what one leaves goes to the next."""
        if step > 0 and self.first_missed is not None:
            self.begin_at = self.first_missed
        self.step, self.in_step, self.first_missed = step, 0, None
        share = step + 1 if steps else 1
        self.limit = self.budget * share // max(steps, 1) if steps else self.budget

    # Values

    def schema_of(self, func):
        found = self.schemas.get(func)
        if found is None:
            found = self.schemas[func] = Schema(func)
        return found

    def value(self, v, out):
        encode = self.encoders.get(type(v))
        if encode is None:
            encode = self._other(v)
        encode(v, out)

    def _int(self, v, out):
        if -1 << 63 <= v < 1 << 63:
            out.append(_I64.pack(2, v))
        else:
            out.append(_TEXT.pack(8, self.file.string(str(v))))

    def _text(self, v, out):
        out.append(_TEXT.pack(4, self.file.string(str(v))))

    def _list(self, v, out):
        out.append(b"\6")
        self.list(v, out)

    def list(self, values, out):
        out.append(_U32.pack(len(values)))
        encoders = self.encoders
        for v in values:
            encode = encoders.get(type(v)) or self._other(v)
            encode(v, out)

    def _other(self, v):
        """Returns how to write a value of a type that is not in the table."""
        if isinstance(v, torch.Tensor):
            return self._tensor
        if isinstance(v, (list, tuple)):
            return self._list
        for kind in (bool, int, float, str, complex):
            if isinstance(v, kind):
                return self.encoders[kind]
        return self._unknown

    def _unknown(self, v, out):
        # A storage's is all of its bytes, and that of the script's own would run its code.
        module = str(type(v).__module__).partition(".")[0]
        if "Storage" in type(v).__name__ or module not in ("torch", "numpy", "builtins"):
            text = f"<{type(v).__name__}>"
        else:
            try:
                text = repr(v)[:MAX_REPR]
            except Exception as e:
                pass_on(e)
                text = f"<{type(v).__name__}>"
        out.append(_TEXT.pack(8, self.file.string(text)))

    @staticmethod
    def dtype_of(dtype):
        return DTYPES.get(dtype, OTHER_DTYPE)

    # Tensors

    def _tensor(self, t, out, bytes_too=True):
        flags = 2 if _is_parameter(t) else 0
        if t.requires_grad:
            flags |= 1
            if self.saw is not None:
                self.saw(t.grad_fn)
        device = t.device.type
        if device == "meta":
            raise Skip
        dtype = DTYPES.get(t.dtype, OTHER_DTYPE)
        place = DEVICES.get(device, OTHER_DEVICE)
        if t.layout is not torch.strided or t.is_quantized or getattr(t, "is_nested", False):
            try:
                shape = tuple(_sizes(t))
            except Exception as e:    # one that is nested has no shape
                pass_on(e)
                shape = ()
            return self._pack(out, 0, 0, 0, dtype, place, flags, 0, shape, (0,) * len(shape))
        if _is_zeros(t):
            zero = self.zeros.get(t.dtype)
            if zero is None:
                zero = self.zeros[t.dtype] = torch.zeros((), dtype=t.dtype)
            t = zero.expand(_sizes(t))
            place = 0
        shape, stride = tuple(_sizes(t)), _stride(t)
        storage = _storage_of(t)
        key = storage._cdata
        entry = self.storages.get(key)
        if entry is None:
            entry = self._new_storage(key, storage)
        if self.skipped and key in self.skipped:
            flags |= OF_EVALUATION
        size = _size(t)
        first = _offset(t) * size
        block = 0
        offset = 0
        if bytes_too and dtype != OTHER_DTYPE and place != OTHER_DEVICE and not (dtype >= 10 and hasattr(t, "is_conj") and t.is_conj()) and not _is_negated(t):
            count = _numel(t)
            if count == 0:
                last = first
            elif _is_contiguous(t):
                last = first + count * size
            else:
                last = first + (sum((n - 1) * s for n, s in zip(shape, stride)) + 1) * size
            block, begin, changed = self._block(entry, storage, t, first, last, place)
            offset = first - begin if block else 0
            if changed:
                flags |= CHANGED if self.sees_all else 0
        self._pack(out, block, entry.number, entry.version, dtype, place, flags, offset, shape, stride)

    def _uninitialized(self, t, out, bytes_too=True):
        self._pack(out, 0, 0, 0, DTYPES.get(t.dtype, OTHER_DTYPE), OTHER_DEVICE, 0, 0, (), ())

    def _pack(self, out, block, number, version, dtype, place, flags, offset, shape, stride):
        d = len(shape)
        packer = self.shapes.get(d)
        if packer is None:
            packer = self.shapes[d] = struct.Struct(f"<BQQIBBBBq{2 * d}q")
        out.append(packer.pack(5, block, number, version, dtype, place, flags, d, offset, *shape, *stride))

    def _new_storage(self, key, storage):
        if storage.device.type == "meta":    # of a FakeTensor, which names the device that it stands for
            raise Skip
        self.number += 1
        if self.number % PURGE == 0:
            self.purge()
        entry = self.storages[key] = Storage(self.number, storage)
        return entry

    def purge(self):
        gone = [key for key, entry in self.storages.items() if entry.reference.expired()]
        # What a handler of signals raises within __del__ of a reference, Python would drop.
        dropped, hook = [], sys.unraisablehook
        sys.unraisablehook = dropped.append
        try:
            for key in gone:
                del self.storages[key]
            self.skipped = {key: reference for key, reference in self.skipped.items() if not reference.expired()}
        finally:
            sys.unraisablehook = hook
        for each in dropped:
            pass_on(each.exc_value)
            hook(each)

    def _block(self, entry, storage, t, first, last, place):
        """Returns the block with bytes first to last of a storage's present version, where it begins, and whether the bytes differ from
        those that were recorded although no call wrote them. Writes them if they are not in the file; 0: they are left out."""
        blocks, now = entry.blocks, self.now
        if blocks and entry.checked != now:
            # FSDP resizes a storage without a call.
            if _bytes_of(storage) != entry.size or not self._unchanged(entry, storage, t, place):
                blocks = entry.blocks = []
                entry.version += 1
                entry.changed = now
        entry.checked = now
        changed = (entry.changed == now or entry.untold) and entry.told != self.begun
        if changed:
            entry.told, entry.untold = self.begun, self.describes
        for begin, end, block, _ in blocks:
            if begin <= first and last <= end:
                return block, begin, changed
        if first == last:
            if not self.file.empty:
                self.file.data(0, 0)
            return self.file.empty, first, changed
        entry.size = size = _bytes_of(storage)
        if size <= WHOLE or 2 * (last - first) >= size:
            begin, end = 0, size
        else:
            begin, end = first, last
        block = self._write(storage, t, begin, end, place)
        if block:
            if begin:
                self.file.begins(block, begin)
            blocks.append((begin, end, block, None if place == 0 else _digest(storage, t, begin, end - begin)))
        return block, begin, changed

    def _write(self, storage, t, begin, end, place):
        size = end - begin
        if self.in_step < self.begin_at or self.full or self.file.size + size > self.limit:
            self._refuse()
            return 0
        try:
            if place == 0:
                return self.file.data(storage.data_ptr() + begin, size)
            host = self._to_host(storage, t, begin, size)
            if host is None:
                self._refuse()
                return 0
            return self.file.data(host.data_ptr(), size)
        except OSError as e:
            self.full = True
            self.note(f"{self.file.path}: {e.strerror}; calls are recorded without further bytes")
            self._refuse()
            return 0

    def _refuse(self):
        self.refused = True
        if self.first_missed is None and (self.in_step > self.begin_at or self.begin_at == 0):
            self.first_missed = self.in_step

    def _to_host(self, storage, t, begin, size):
        """Copies bytes of a device's memory, in the order of the current stream."""
        return None if torch.cuda.is_current_stream_capturing() else _bytes(storage, t, begin, size).cpu()

    def _unchanged(self, entry, storage, t, place):
        for begin, end, block, digest in entry.blocks:
            if digest is not None:
                if not torch.cuda.is_current_stream_capturing() and not torch.equal(digest, _digest(storage, t, begin, end - begin)):
                    return False
            elif not self.file.same(block, 0, storage.data_ptr() + begin, end - begin):
                return False
        return True

    # Calls

    def arguments(self, args, kwargs, hide=()):
        out = []
        self.list(args, out)
        self._keywords(kwargs, out, hide)
        return b"".join(out)

    def _keywords(self, kwargs, out, hide=()):
        out.append(_U32.pack(len(kwargs)))
        for key, v in kwargs.items():
            out.append(_U32.pack(self.file.string(key)))
            if key in hide:    # the bytes of `out=` before the call are of no use
                self._without_bytes(v, out)
            else:
                self.value(v, out)

    def _without_bytes(self, v, out):
        if isinstance(v, torch.Tensor):
            self._tensor(v, out, bytes_too=False)
        elif isinstance(v, (list, tuple)):
            out.append(b"\6" + _U32.pack(len(v)))
            for each in v:
                self._without_bytes(each, out)
        else:
            self.value(v, out)

    def tensors(self, values, found):
        """Appends all tensors of nested lists."""
        for v in values:
            if isinstance(v, torch.Tensor):
                found.append(v)
            elif isinstance(v, (list, tuple)):
                self.tensors(v, found)
        return found

    def begin(self, schema, args, kwargs, quiet=False, describes=False):
        """`quiet`: since the last call none but PyTorch's own code has run. `describes`: this is no call."""
        self.describes = describes
        before = Before()
        before.schema = schema
        self.refused = False
        self.begun += 1
        if not (self.composed or quiet or schema.view):
            self.now += 1
        before.arguments = self.arguments(args, kwargs, schema.keywords if schema.out else ())
        before.flags = LEFT_OUT if self.refused else 0
        before.versions = None
        if not schema.known:
            before.versions = self.versions(args, kwargs)
        return before

    def pass_over(self, schema, args, kwargs, out):
        """Takes note of a call that is not recorded: what it computed, and what it wrote."""
        self.passed += 1
        self.wrote(self.tensors(schema.written(args, kwargs), []))
        read = self.tensors([*args, *kwargs.values()], [])
        given = set(map(key_of, read))
        # A step may use what was computed without weights, as masks and positions that are kept.
        of_weights = not given.isdisjoint(self.skipped) or any(isinstance(t, torch.nn.Parameter) for t in read)
        for t in self.tensors([out], []) if of_weights else ():
            key = key_of(t)
            if key is not None and key not in given:
                self.skipped[key] = StorageWeakRef(_storage_of(t))
        if self.passed % PURGE == 0:
            self.purge()

    def versions(self, args, kwargs):
        """Returns the counters of autograd, which grow with each write that a call makes below us."""
        return [_counter(t) for t in self.tensors([*args, *kwargs.values()], [])]

    def version_of(self, t):
        """Returns the version of a tensor's storage as far as it is known."""
        if t.layout is not torch.strided or t.device.type == "meta":
            return 0
        entry = self.storages.get(_storage_of(t)._cdata)
        return entry.version if entry else 0

    def wrote(self, tensors):
        """Counts the new version of the storages of tensors that a call has written."""
        for t in tensors:
            if t.layout is not torch.strided or t.device.type == "meta":
                continue
            storage = _storage_of(t)
            key = storage._cdata
            entry = self.storages.get(key)
            if entry is None:
                continue
            entry.version += 1
            entry.changed = 0
            if entry.blocks:
                size = _size(t)
                first = _offset(t) * size
                last = first + (sum((n - 1) * s for n, s in zip(_sizes(t), _stride(t))) + 1) * size
                same = entry.size == _bytes_of(storage)
                entry.blocks = [b for b in entry.blocks if same and (b[1] <= first or last <= b[0])]

    def returned(self, tensors):
        """A region may have used the memory of an input for a result: forgets bytes that are no longer there."""
        for t in tensors:
            if t.layout is torch.strided and t.device.type != "meta":
                storage = _storage_of(t)
                entry = self.storages.get(storage._cdata)
                if entry is not None and entry.blocks and not self._unchanged(entry, storage, t, DEVICES.get(t.device.type, OTHER_DEVICE)):
                    self.wrote([t])

    def end(self, before, args, kwargs, out, info, raised=False):
        """Writes a call that has run. `info`: (place, module, node, forward, flags), all but the last as numbers."""
        schema = before.schema
        self.refused = False
        if schema.late:    # its schema does not say what it writes
            written = self.tensors([*args, *kwargs.values()], [])
        elif schema.known:
            written = self.tensors(schema.written(args, kwargs), []) if schema.positions or schema.undeclared else []
        else:
            changed = self.versions(args, kwargs)
            every = self.tensors([*args, *kwargs.values()], [])
            written = [t for t, a, b in zip(every, before.versions, changed) if a != b]
        if written:
            self.wrote(written)
        if schema.foreign:
            self.now += 1
        self.finish(before, schema.name, out, written, info, raised, schema.fresh or schema.late)

    def finish(self, before, name, out, written, info, raised, fresh=False, kind=CALL):
        """`fresh`: the results, and what was written, hold no values yet. `kind`: of the record; only calls are counted."""
        rest = []
        if raised:
            rest.append(_NONE)
        elif fresh:
            self._without_bytes(out, rest)
        else:
            self.value(out, rest)
        rest.append(_U32.pack(len(written)))
        for t in written:
            self._tensor(t, rest, not fresh)
        place, module, node, forward, flags = info
        flags |= before.flags | (LEFT_OUT if self.refused else 0) | (RAISED if raised else 0)
        if flags & LEFT_OUT and kind == CALL:
            self.left_out["budget"] += 1
        head = _HEAD.pack(self.file.string(name), place, module, node, forward, self.step, flags)
        number = self.calls
        self.file.record(kind, number, b"".join((head, before.arguments, *rest)))
        if kind == CALL:
            self.calls += 1
            self.in_step += 1
        return number

    def note(self, text):
        """Keeps the first thing that went wrong."""
        if self.error is None:
            self.error = text


def _bytes(storage, t, begin, size, dtype=torch.uint8):
    with torch.no_grad():
        flat = torch.empty(0, dtype=dtype, device=t.device)
        return flat.set_(storage, begin // flat.element_size(), (size // flat.element_size(),), (1,))


def _digest(storage, t, begin, size):
    """Returns sums of a device's memory along rows and columns of words, computed there: no change of fewer than four words leaves all
    of them as they are. The rest, which fills no row, is kept as it is."""
    words = ROW * 8
    whole = size // words * words if begin % 8 == 0 else 0
    rest = _bytes(storage, t, begin + whole, size - whole).cpu()
    if not whole:
        return rest
    rows = _bytes(storage, t, begin, whole, torch.int64).view(-1, ROW)
    return torch.cat([torch.cat([rows.sum(0), rows.sum(1)]).cpu().view(torch.uint8), rest])


def _counter(t):
    try:
        return t._version
    except RuntimeError:    # an inference tensor
        return 0


def _is_negated(t):
    return t.is_neg() if hasattr(t, "is_neg") else False
