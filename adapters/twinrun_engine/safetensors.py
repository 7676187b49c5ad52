"""Files of named arrays: 8 bytes of header length, a JSON header, raw little-endian numbers. Reading is strict; writing is minimal."""
import json
import math
import os
import struct

import numpy as np

DTYPES = {"BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "I16": np.int16, "F16": np.float16, "I32": np.int32,
          "F32": np.float32, "I64": np.int64, "F64": np.float64}
NAMES = {np.dtype(t): name for name, t in DTYPES.items()}
MOST_HEADER = 100_000_000    # the format's own limit


class Damaged(ValueError):
    """A file whose content contradicts its header or the format."""


def unique(pairs):
    """json.loads keeps the last of equal keys; here two arrays of one name are an error."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Damaged("the header has a name twice")
    return found


def whole(x):
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def load(path):
    """Returns {name: array}; each array is writable and owns its memory. Raises Damaged, or OSError if the file cannot be read."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = struct.unpack("<Q", file.read(8))[0] if size >= 8 else size
        if length > min(size - 8, MOST_HEADER):
            raise Damaged(f"{path}: is cut short, or is not a safetensors file")
        try:
            header = json.loads(file.read(length).decode(), object_pairs_hook=unique)
        except (ValueError, RecursionError) as error:
            raise Damaged(f"{path}: header: {error}") from None
        if not isinstance(header, dict):
            raise Damaged(f"{path}: the header is not a JSON object")
        header.pop("__metadata__", None)
        try:
            entries = sorted((entry["data_offsets"], name, entry["dtype"], entry["shape"]) for name, entry in header.items())
        except (TypeError, KeyError):
            raise Damaged(f"{path}: an array has no data_offsets, dtype or shape") from None
        arrays, at = {}, 0
        for offsets, name, dtype, shape in entries:
            if not (isinstance(dtype, str) and dtype in DTYPES):
                raise Damaged(f"{path}: {name}: unknown dtype {dtype!r}")
            if not (isinstance(shape, list) and len(shape) <= 32 and all(map(whole, shape))):
                raise Damaged(f"{path}: {name}: {shape!r} is not a shape")
            count, item = math.prod(shape), np.dtype(DTYPES[dtype])
            if not all(map(whole, offsets)) or list(offsets) != [at, at + count * item.itemsize]:
                raise Damaged(f"{path}: {name}: data_offsets is {offsets!r}; expected {[at, at + count * item.itemsize]}")
            at = offsets[1]
            if at > size - 8 - length:
                raise Damaged(f"{path}: {name}: is cut short")
            raw = np.fromfile(file, np.uint8, count * item.itemsize)
            if dtype == "BOOL" and raw.size and raw.max() > 1:
                raise Damaged(f"{path}: {name}: a boolean is neither 0 nor 1")
            arrays[name] = raw.view(item.newbyteorder("<")).astype(item, copy=False).reshape(shape)
        if at != size - 8 - length:
            raise Damaged(f"{path}: {size - 8 - length - at} bytes belong to no array")
    return arrays


def save(path, arrays):
    """Writes {name: array}; dtypes as in DTYPES."""
    header, at, raw = {}, 0, []
    for name, array in arrays.items():
        array = np.asarray(array)
        if array.dtype not in NAMES:
            raise TypeError(f"{name}: safetensors has no dtype {array.dtype}")
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        raw.append(array.astype(array.dtype.newbyteorder("<"), copy=False))
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)    # numbers begin at a multiple of 8
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in raw:
            file.write(array.tobytes())
