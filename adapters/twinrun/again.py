"""`python -m twinrun replay BUNDLE.zip`: computes the calls of a bundle here, with the PyTorch of this Python, and judges what it gives.

The calls are read from the bundle's trace.twin (docs/reference/trace-format.md). They are run under `watch`, and its trace is judged, so
that what this machine computes is held against the definition as in any diagnosis.
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import zipfile

from .command import program
from .file import CALL, DATA, HEADER, MAGIC, STRING
from .refused import Refused

MEMBER = "trace.twin"
ELEMENTS = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128")
LARGEST = 1 << 30    # bytes of the trace in a bundle


def holds_calls(path):
    """Whether this is a bundle of recorded calls."""
    try:
        with zipfile.ZipFile(path) as bundle:
            return MEMBER in bundle.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


class Trace:
    """calls: (operation, positional arguments, keyword arguments) of each, with tensors of their own memory."""

    def __init__(self, data):
        if len(data) < len(MAGIC) or data[:8] != MAGIC[:8]:
            raise Refused("trace.twin of the bundle is no trace")
        self.strings, self.blocks, payloads, at = {0: ""}, {}, [], len(MAGIC)
        while at + HEADER.size <= len(data):
            kind, _, size, number = HEADER.unpack_from(data, at)
            payload = data[at + HEADER.size:at + HEADER.size + size]
            at += HEADER.size + (size + 7) // 8 * 8
            if kind == STRING:
                self.strings[number] = payload.decode("utf-8", "replace")
            elif kind == DATA:
                self.blocks[number] = bytearray(payload)
            elif kind == CALL:
                payloads.append(payload)
        try:
            self.calls = [_Call(self, payload).read() for payload in payloads]
        except (struct.error, KeyError, IndexError) as e:
            raise Refused(f"trace.twin of the bundle is damaged: {e}") from None


class _Call:
    def __init__(self, trace, payload):
        self.trace, self.payload, self.at = trace, payload, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.payload, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def text(self):
        return self.trace.strings[self.take("I")]

    def list(self):
        return [self.value() for _ in range(self.take("I"))]

    def read(self):
        operation = self.text()
        self.take("IIIqiI")    # place, module, node, forward call, step, flags
        return operation, self.list(), {self.text(): self.value() for _ in range(self.take("I"))}

    def value(self):
        import torch

        kind = self.take("B")
        if kind == 0:
            return None
        if kind == 1:
            return bool(self.take("B"))
        if kind == 2:
            return self.take("q")
        if kind == 3:
            return self.take("d")
        if kind in (4, 8):
            text = self.text()
            return getattr(torch, text[len("torch."):], text) if text.startswith("torch.") else text
        if kind == 5:
            return self.tensor()
        if kind == 6:
            return self.list()
        if kind == 7:
            return getattr(torch, ELEMENTS[self.take("B")])
        if kind == 9:
            return complex(*self.take("dd"))
        raise KeyError(f"a value of kind {kind}")

    def tensor(self):
        import torch

        block, _, _, element, device, _, dimensions, offset = self.take("QQIBBBBq")
        sizes, strides = [[self.take("q") for _ in range(dimensions)] for _ in range(2)]
        dtype = getattr(torch, ELEMENTS[element])
        data = self.trace.blocks[block]
        if 0 in sizes or not data:
            made = torch.empty(sizes, dtype=dtype)
        else:
            made = torch.frombuffer(data, dtype=torch.uint8)[offset:]
            step = torch.empty(0, dtype=dtype).element_size()
            made = made[:len(made) // step * step].view(dtype).as_strided(sizes, strides)
        return made.cuda() if device == 1 and torch.cuda.is_available() else made


def _function(operation):
    import torch

    found = torch.ops if operation.startswith("aten.") else torch
    parts = operation.split(".")
    for name in parts if found is torch.ops else parts[1:]:
        found = getattr(found, name, None)
        if found is None:
            raise Refused(f"this PyTorch ({torch.__version__}) has no {operation}; `twinrun replay` judges what was recorded")
    return found


def replay(words):
    parser = argparse.ArgumentParser(prog="python -m twinrun replay", description="Computes the calls of a bundle here, and judges what "
                                     "this PyTorch gives. `twinrun replay` judges what was recorded instead.")
    parser.add_argument("-o", "--out", help="folder of the diagnosis (kept nowhere)")
    parser.add_argument("bundle")
    args = parser.parse_args(words)
    with zipfile.ZipFile(args.bundle) as bundle:
        if bundle.getinfo(MEMBER).file_size > LARGEST:
            raise Refused(f"{args.bundle}: the trace in it is larger than {LARGEST >> 20} MiB")
        if json.loads(bundle.read("manifest.json"))["expected"]["class"] == "PROGRAM":
            raise Refused(f"{args.bundle} is of a step that is wrong though its calls are right, so there is no call to compute here; "
                          f"type instead: twinrun replay {args.bundle}")
        data = bundle.read(MEMBER)
    from .recording import watch

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, MEMBER)
        calls = [(operation, _function(operation), positional, keyword) for operation, positional, keyword in Trace(data).calls]
        with watch(path) as recording:
            for operation, function, positional, keyword in calls:
                print(f"computing {operation}", file=sys.stderr)
                function(*positional, **keyword)
            recording.next_step()
        done = subprocess.run([program(), "diagnose", path, "-q", "-o", args.out or os.path.join(folder, "found")], stdout=subprocess.PIPE,
                              universal_newlines=True)
    # Without --out the files that the answer names are gone.
    print(done.stdout if args.out else done.stdout.partition("\n  files ")[0])
    import torch
    found = {0: "not reproduced here: these calls are right", 20: "reproduced here"}.get(done.returncode, "not decided here")
    print(f"{found} (PyTorch {torch.__version__})")
    return {0: 1, 20: 0}.get(done.returncode, done.returncode)    # as `twinrun replay`
