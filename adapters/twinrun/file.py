"""The trace's file: records of strings, data and calls, as docs/reference/trace-format.md has them.

    file = TraceFile("trace.twin")
    block = file.data(address, size)
    file.record(CALL, number, payload)
    file.finish({"calls": 1})

Large blocks of data go from the tensor's memory to the file in one system call; small records are gathered. This is not done through a
memory map: a full disk would then end the script by a signal, where a system call returns an error.
"""
import ctypes
import json
import os
import struct
import zlib

MAGIC = b"TWINTRC1".ljust(64, b"\0")
PADDING, META, STRING, DATA, CALL, END, GRAPH = range(7)
HEADER = struct.Struct("<IIQQ")
ALIGNMENT = 64          # of data in the file
GATHERED = 1 << 20      # bytes of small records that are kept back before they are written
SMALL = 1 << 15         # a block of data up to this size is gathered, too
READ_AT_ONCE = 4 << 20  # bytes of a comparison

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes, _compare.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_int


class TraceFile:
    def __init__(self, path):
        self.path = os.path.abspath(path)
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o644)
        self.pending = bytearray(MAGIC)
        self.written = 0    # bytes of the file; `pending` comes after them
        self.strings = {"": 0}
        self.blocks = [None]    # of each block of data: where it begins, its size
        self.scratch = None
        self.empty = 0          # the block that has no bytes

    @property
    def size(self):
        return self.written + len(self.pending)

    def record(self, kind, number, payload, checked=True):
        pending = self.pending
        pending += HEADER.pack(kind, zlib.crc32(payload) if checked else 0, len(payload), number)
        pending += payload
        pending += bytes(-len(payload) % 8)
        if len(pending) > GATHERED:
            self.flush()

    def string(self, text):
        number = self.strings.get(text)
        if number is None:
            number = len(self.strings)
            self.record(STRING, number, text.encode("utf-8", "replace"))
            self.strings[text] = number
        return number

    def data(self, address, size):
        """Writes `size` bytes of memory and returns the block's number. An OSError leaves the file as it was before."""
        if size == 0 and self.empty:
            return self.empty
        pending = self.pending
        before = len(pending)
        gap = (ALIGNMENT - HEADER.size - self.size) % ALIGNMENT
        if 0 < gap < HEADER.size:
            gap += ALIGNMENT
        if gap:
            pending += HEADER.pack(PADDING, 0, gap - HEADER.size, 0)
            pending += bytes(gap - HEADER.size)
        number = len(self.blocks)
        pending += HEADER.pack(DATA, 0, size, number)
        begin = self.size
        if size <= SMALL:
            pending += ctypes.string_at(address, size) if size else b""
        else:
            whole = self.size
            try:
                self.flush()
                self._write(memoryview((ctypes.c_char * size).from_address(address)).cast("B"))
            except OSError:
                self._take_back(before, whole)
                raise
        pending += bytes(-size % 8)
        self.blocks.append((begin, size))
        if size == 0:
            self.empty = number
        elif len(pending) > GATHERED:
            self.flush()
        return number

    def _take_back(self, before, whole):
        """After a failure: removes what the block's record and a part of its data added."""
        if self.pending:     # the flush failed
            del self.pending[before:]
            return
        header = HEADER.size
        os.ftruncate(self.fd, whole - header)
        self.written = whole - header
        os.lseek(self.fd, self.written, os.SEEK_SET)

    def same(self, block, offset, address, size):
        """Says whether `size` bytes of memory are those of a block, from its byte `offset` on."""
        begin = self.blocks[block][0] + offset
        if begin + size > self.written:
            self.flush()
        if self.scratch is None:
            self.scratch = bytearray(READ_AT_ONCE)
            self.scratch_address = ctypes.addressof(ctypes.c_char.from_buffer(self.scratch))
        done = 0
        while done < size:
            part = min(READ_AT_ONCE, size - done)
            found = os.preadv(self.fd, [memoryview(self.scratch)[:part]], begin + done)
            if found <= 0 or _compare(self.scratch_address, address + done, found) != 0:
                return False
            done += found
        return True

    def _write(self, view):
        done = 0
        while done < len(view):
            done += os.write(self.fd, view[done:done + (1 << 30)])
        self.written += len(view)

    def flush(self):
        if not self.pending:
            return
        try:
            self._write(memoryview(bytes(self.pending)))
        except OSError:
            os.ftruncate(self.fd, self.written)
            os.lseek(self.fd, self.written, os.SEEK_SET)
            raise
        self.pending.clear()

    def finish(self, end):
        if self.fd is None:
            return
        try:
            self.record(END, 0, json.dumps(end).encode())
            self.flush()
        finally:
            self.abandon()

    def abandon(self):
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def replace_end(path, change):
    """Lets `change` alter the dict of a finished trace's last record."""
    with open(path, "r+b") as file:
        size, at = os.path.getsize(path), len(MAGIC)
        while True:
            file.seek(at)
            kind, _, length, _ = HEADER.unpack(file.read(HEADER.size))
            if kind == END:
                break
            at += HEADER.size + length + -length % 8
            if at >= size:
                raise ValueError(f"{path} has no last record; was its recording cut short?")
        end = json.loads(file.read(length))
        change(end)
        payload = json.dumps(end).encode()
        file.seek(at)
        file.write(HEADER.pack(END, zlib.crc32(payload), len(payload), 0) + payload + bytes(-len(payload) % 8))
        file.truncate()
