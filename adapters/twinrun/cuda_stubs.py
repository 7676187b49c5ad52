"""Stands in for the CUDA libraries that PyTorch's wheels for Linux load when they are imported, and
that a CPU never calls: shared libraries under their names that define what PyTorch's libraries want
of them. A call of one returns 1, which is an error in each of CUDA's interfaces. No compiler is
needed: the files are written byte by byte (System V ABI, x86-64; chapters 4 and 5)."""

import glob
import mmap
import os
import re
import struct
import subprocess

DYNAMIC, DYNSYM, VERNEED, VERSYM = 6, 11, 0x6FFFFFFE, 0x6FFFFFFF
WEAK = 2
CUDA = re.compile(r"lib(cu(?!rl|da\.so)|nv|nccl)")  # not the driver, which the runtime looks for

# Prints the files that an interpreter has mapped with the system's libraries in its process.
MAPPED = """
import ctypes, sys
for name in sys.argv[1:]:
    try:
        ctypes.CDLL(name)
    except OSError:
        pass
print("\\n".join({line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if line.count("/")}))
"""


class Library:
    """What a shared library needs, wants and defines."""

    def __init__(self, path):
        self.needed, self.wanted, self.defined = [], set(), set()  # wanted: (symbol, version or None, library or None)
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:6] != b"\x7fELF\x02\x01":
                return
            (start,) = struct.unpack_from("<Q", data, 0x28)
            size, count = struct.unpack_from("<HH", data, 0x3A)
            sections = [struct.unpack_from("<IIQQQQIIQQ", data, start + size * i) for i in range(count)]
            by_type = {s[1]: s for s in sections}

            def text(section, offset):
                at = sections[section[6]][4] + offset
                return data[at : data.find(b"\0", at)].decode("latin-1")

            if DYNAMIC in by_type:
                section = by_type[DYNAMIC]
                for tag, value in struct.iter_unpack("<qQ", data[section[4] : section[4] + section[5]]):
                    if tag == 1:
                        self.needed.append(text(section, value))
            versions = self._versions(data, by_type[VERNEED], text) if VERNEED in by_type else {}
            if DYNSYM not in by_type:
                return
            section = by_type[DYNSYM]
            symbols = list(struct.iter_unpack("<IBBHQQ", data[section[4] : section[4] + section[5]]))
            numbers = [(0,)] * len(symbols)
            if VERSYM in by_type:
                at = by_type[VERSYM][4]
                numbers = list(struct.iter_unpack("<H", data[at : at + 2 * len(symbols)]))
            for (name, info, _, where, _, _), (number,) in zip(symbols, numbers):
                if name and where:
                    self.defined.add(text(section, name))
                elif name and info >> 4 != WEAK:
                    self.wanted.add((text(section, name), *versions.get(number & 0x7FFF, (None, None))))

    @staticmethod
    def _versions(data, section, text):
        """Returns {number: (version, library)} of the versions that are needed."""
        found, at = {}, section[4]
        for _ in range(section[7]):
            _, count, file, inner, following = struct.unpack_from("<HHIII", data, at)
            inner += at
            for _ in range(count):
                _, _, number, name, beyond = struct.unpack_from("<IHHII", data, inner)
                found[number] = (text(section, name), text(section, file))
                inner += beyond
            at += following
        return found


def _hash(name):
    value = 0
    for byte in name.encode("latin-1"):
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


def shared_library(soname, symbols):
    """Returns the bytes of a shared library that defines `symbols`, pairs of a name and a version or None."""
    symbols = sorted(symbols, key=lambda s: (s[0], s[1] or ""))
    strings = bytearray(b"\0")
    places = {}

    def place(text):
        if text not in places:
            places[text] = len(strings)
            strings.extend(text.encode("latin-1") + b"\0")
        return places[text]

    versions = sorted({v for _, v in symbols if v})
    numbers = {v: 2 + i for i, v in enumerate(versions)}
    symbol_table = bytearray(24)
    of_symbols = bytearray(struct.pack("<H", 0))
    code = 64 + 56 * 4
    for name, version in symbols:
        symbol_table += struct.pack("<IBBHQQ", place(name), 0x12, 0, 1, code, 6)  # a global function
        of_symbols += struct.pack("<H", numbers.get(version, 1))
    buckets = max(1, len(symbols) // 2)
    heads, chain = [0] * buckets, [0] * (len(symbols) + 1)
    for i, (name, _) in enumerate(symbols, 1):
        bucket = _hash(name) % buckets
        chain[i], heads[bucket] = heads[bucket], i
    hash_table = struct.pack(f"<II{buckets}I{len(chain)}I", buckets, len(chain), *heads, *chain)
    definitions = bytearray()
    names = [soname, *versions]
    for i, version in enumerate(names):
        definitions += struct.pack(
            "<HHHHIII", 1, 1 if i == 0 else 0, i + 1, 1, _hash(version), 20, 28 if i + 1 < len(names) else 0
        )
        definitions += struct.pack("<II", place(version), 0)
    place(soname)

    body = bytearray(b"\xb8\x01\x00\x00\x00\xc3")  # mov eax, 1; ret
    at = {}
    for what, part in (
        ("hash", hash_table),
        ("symbols", symbol_table),
        ("of", of_symbols),
        ("definitions", definitions),
        ("text", strings),
    ):
        body += b"\0" * (-(code + len(body)) % 8)
        at[what] = code + len(body)
        body += part
    end = code + len(body)
    dynamic_at = (end + 0xFFF) & ~0xFFF  # in a segment of its own, because the loader writes into it
    dynamic = [(14, places[soname]), (4, at["hash"]), (5, at["text"]), (6, at["symbols"]), (10, len(strings)), (11, 24)]
    if versions:
        dynamic += [(0x6FFFFFF0, at["of"]), (0x6FFFFFFC, at["definitions"]), (0x6FFFFFFD, len(names))]
    table = b"".join(struct.pack("<qQ", *entry) for entry in dynamic + [(0, 0)])
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0)
    segments = [
        (1, 5, 0, end, 0x1000),
        (1, 6, dynamic_at, len(table), 0x1000),
        (2, 6, dynamic_at, len(table), 8),
        (0x6474E551, 6, 0, 0, 16),
    ]
    for kind, flags, offset, size, align in segments:
        head += struct.pack("<IIQQQQQQ", kind, flags, offset, offset, offset, size, size, align)
    return head + bytes(body) + b"\0" * (dynamic_at - end) + table


def libraries(python):
    """Returns the folder of PyTorch's libraries of an environment's interpreter."""
    found = glob.glob(
        os.path.join(os.path.dirname(os.path.dirname(python)), "lib", "python*", "site-packages", "torch", "lib")
    )
    return found[0] if found else os.path.join(os.path.dirname(python), "no-torch")


def write(python):
    """Writes the libraries that PyTorch's need and that are neither installed nor the system's
    beside them; returns their names."""
    folder = libraries(python)
    here = {os.path.basename(p): p for p in glob.glob(os.path.join(folder, "*.so*"))}
    real = {
        os.path.basename(p): p
        for p in glob.glob(
            os.path.join(os.path.dirname(os.path.dirname(folder)), "nvidia", "**", "*.so*"), recursive=True
        )
    }
    pending = list(here)
    read, missing = {}, set()
    while pending:
        name = pending.pop()
        path = here.get(name) or real.get(name)
        if path is None:
            missing.add(name)
        elif name not in read:
            read[name] = Library(path)
            pending += read[name].needed
    absent = {name for name in missing if CUDA.match(name)}  # the rest are the system's
    mapped = subprocess.run(
        [python, "-c", MAPPED, *sorted(missing - absent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        universal_newlines=True,
    ).stdout.splitlines()
    mapped = [path for path in mapped if os.path.isfile(path)]
    system = set().union(*(Library(path).defined for path in mapped))
    defined = system.union(*(library.defined for library in read.values()))
    wanted = set().union(*(library.wanted for library in read.values()))
    for soname in sorted(absent):
        symbols = {(s, v) for s, v, file in wanted if (s not in defined and file is None) or file == soname}
        with open(os.path.join(folder, soname), "wb") as file:
            file.write(shared_library(soname, symbols))
    return sorted(absent)
