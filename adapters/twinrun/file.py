"""The trace's file: records of strings, data and calls, as docs/reference/trace-format.md has them.

    file = TraceFile("trace.twin", meta)      # in trace.twin.part
    block = file.data(address, size)
    file.record(CALL, number, payload)
    file.publish("trace.twin", meta)          # from here on in trace.twin
    file.record_end({"calls": 1})
    file.abandon()

Large blocks of data go from the tensor's memory to the file in one system call; small records are gathered. This is not done through a
memory map: a full disk would then end the script by a signal, where a system call returns an error. What is in the file is compared
through a map, which copies nothing.
"""
import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import resource
import struct
import zlib

from .messages import high, os    # as it was before the script

MAGIC = b"TWINTRC2".ljust(64, b"\0")
PADDING, META, STRING, DATA, CALL, END, GRAPH, STEP, PLACE, UPDATE, FUNCTION = range(11)
HEADER = struct.Struct("<IIQQ")
COVERED = struct.Struct("<IQQ")    # of a header: what its checksum covers, beside the payload
ALIGNMENT = 64          # of data in the file
GATHERED = 1 << 20      # bytes of small records that are kept back before they are written
SMALL = 1 << 15         # a block of data up to this size is gathered, too
PART = ".part"          # of the name of a file that has no whole step yet
ROOM = 64               # bytes that are kept free in the first record, for a rank that is known later
WINDOW = 1 << 30        # bytes of the file that are mapped together; the file may end within them
CHUNK = 1 << 20         # bytes that are read together where none can be mapped

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30,
         "TIB": 1 << 40}

_text = json.dumps
_libc = ctypes.CDLL(None, use_errno=True)
_compare, _map, _unmap = _libc.memcmp, _libc.mmap, _libc.munmap
_compare.argtypes, _compare.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_int
_map.argtypes, _map.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64], ctypes.c_void_p
_unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


def parse_size(text):
    """Returns the bytes that "4GiB" means."""
    if isinstance(text, (int, float)):
        return int(text)
    number = text.strip()
    unit = number.lstrip("0123456789.").strip()
    try:
        return int(float(number[:len(number) - len(unit)] if unit else number) * UNITS[unit.upper()])
    except (KeyError, ValueError):
        raise ValueError(f"a budget of '{text}'; expected a number and B, KiB, MiB, GiB or TiB, such as 4GiB") from None


def header(kind, number, payload):
    """The 24 bytes before a payload."""
    size = len(payload)
    return HEADER.pack(kind, zlib.crc32(payload, zlib.crc32(COVERED.pack(kind, size, number))), size, number)


def _claim(path):
    """Returns (a descriptor, the name) of a new file beside `path`, which no other process writes: that one would have locked it."""
    stem, ending = os.path.splitext(path)
    for name in (path, f"{stem}.pid{os.getpid()}{ending}"):
        fd = high(os.open(name + PART, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        if _locks(fd):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(fd), os.stat(name + PART)):    # not renamed in the meantime
                    os.ftruncate(fd, 0)
                    return fd, name
        os.close(fd)
    raise OSError(f"{path}{PART} is written by another process; give another --output")


def _locks(fd):
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


class TraceFile:
    """A file that is written beside the one of its name, which is replaced once there is something to replace it with (`publish`)."""

    def __init__(self, path, meta):
        self.asked = os.path.abspath(path)
        self.fd, self.path = _claim(self.asked)    # another name if that one is in use
        self.identity = os.fstat(self.fd)
        self.published = False
        self.pending = bytearray(MAGIC)
        self.written = 0    # bytes of the file; `pending` comes after them
        self.strings = {"": 0}
        self.blocks = [None]    # of each block of data: where it begins, its size
        self.windows = {}       # the address of each part of the file that is mapped
        self.empty = 0          # the block that has no bytes
        self.room = len(_text(meta)) + ROOM
        self.record(META, 0, self._meta(meta))

    def _meta(self, meta):
        return _text(meta).encode().ljust(self.room)

    def publish(self, path, meta):
        """Gives the file its name, and the first record what is known by now."""
        if self.published:
            return
        if not self.written:
            self.flush()
        payload = self._meta(meta)
        self._hold()
        if len(payload) == self.room:
            os.pwrite(self.fd, header(META, 0, payload) + payload, len(MAGIC))
        path = os.path.abspath(path)
        if path == self.asked:
            path = self.path
        with contextlib.suppress(OSError):
            there = os.open(path, os.O_RDWR)
            if not _locks(there):    # another process writes it
                stem, ending = os.path.splitext(path)
                path = f"{stem}.pid{os.getpid()}{ending}"
            os.close(there)
        os.replace(self.path + PART, path)
        self.path, self.published = path, True

    def discard(self):
        """Closes the file and removes it."""
        if self.fd is not None:
            os.unlink(self.path if self.published else self.path + PART)
            self.abandon()

    @property
    def size(self):
        return self.written + len(self.pending)

    def record(self, kind, number, payload):
        pending = self.pending
        # At once: a handler of signals may raise an exception between two statements.
        pending += b"".join((header(kind, number, payload), payload, bytes(-len(payload) % 8)))
        if len(pending) > GATHERED:
            self.flush()

    def string(self, text):
        number = self.strings.get(text)
        if number is None:
            number = len(self.strings)
            self.record(STRING, number, text.encode("utf-8", "replace"))
            self.strings[text] = number
        return number

    def begins(self, block, begin):
        """Says where in its storage a block of data begins: not with the first byte."""
        self.record(PLACE, block, struct.pack("<q", begin))

    def data(self, address, size):
        """Writes `size` bytes of memory and returns the block's number. An OSError leaves the file as it was before."""
        if size == 0 and self.empty:
            return self.empty
        pending = self.pending
        before = len(pending)
        gap = (ALIGNMENT - HEADER.size - self.size) % ALIGNMENT
        if 0 < gap < HEADER.size:
            gap += ALIGNMENT
        space = b""
        if gap:
            padding = bytes(gap - HEADER.size)
            space = header(PADDING, 0, padding) + padding
        number, rest = len(self.blocks), bytes(-size % 8)
        if size <= SMALL:
            payload = ctypes.string_at(address, size) if size else b""
            begin = self.size + len(space) + HEADER.size
            self.blocks.append((begin, size))
            pending += b"".join((space, header(DATA, number, payload), payload, rest))
        else:
            pending += space + HEADER.pack(DATA, 0, size, number)
            begin = whole = self.size
            try:
                self.flush()
                self._write(memoryview((ctypes.c_char * size).from_address(address)).cast("B"))
                self._seal(begin, size, number)
            except BaseException:
                self._take_back(before, whole)
                raise
            self.blocks.append((begin, size))
            pending += rest
        if size == 0:
            self.empty = number
        elif len(pending) > GATHERED:
            self.flush()
        return number

    def _seal(self, begin, size, number):
        """Gives a block in the file its checksum: of what is there, because others may write the memory that it came from."""
        found, at = zlib.crc32(COVERED.pack(DATA, size, number)), begin
        while at < begin + size:
            within = at % WINDOW
            part = min(begin + size - at, WINDOW - within)
            window = self._window(at // WINDOW)
            if window is None:
                part = min(part, CHUNK)
                found = zlib.crc32(os.pread(self.fd, part, at), found)
            else:
                found = zlib.crc32((ctypes.c_char * part).from_address(window + within), found)
            at += part
        os.pwrite(self.fd, struct.pack("<I", found), begin - HEADER.size + 4)

    def _take_back(self, before, whole):
        """After a failure: removes what the block's record and a part of its data added."""
        if self.pending:     # the flush failed
            del self.pending[before:]
            return
        self.written = whole - HEADER.size
        self._cut()

    def same(self, block, offset, address, size):
        """Says whether `size` bytes of memory are those of a block, from its byte `offset` on."""
        begin = self.blocks[block][0] + offset
        if begin >= self.written:    # among what is kept back
            at = begin - self.written
            return self.pending[at:at + size] == ctypes.string_at(address, size)
        while size:
            within = begin % WINDOW
            part = min(size, WINDOW - within)
            window = self._window(begin // WINDOW)
            if window is None:
                part = min(part, CHUNK)
                if os.pread(self.fd, part, begin) != ctypes.string_at(address, part):
                    return False
            elif _compare(window + within, address, part) != 0:
                return False
            begin, address, size = begin + part, address + part, size - part
        return True

    def _window(self, number):
        """Returns the address of a part of the file, or None: a limit of address space leaves no room for it, and it is read instead."""
        if number not in self.windows:
            found = _map(None, WINDOW, mmap.PROT_READ, mmap.MAP_SHARED, self.fd, number * WINDOW)
            self.windows[number] = None if found == _FAILED else found
        return self.windows[number]

    def _is_held(self):
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(self.fd), self.identity)
        return False

    def _cut(self):
        """Takes away what a failed call has written."""
        if self._is_held():
            os.ftruncate(self.fd, self.written)
            os.lseek(self.fd, self.written, os.SEEK_SET)

    def _hold(self):
        """Opens the file again if the script has closed all descriptors, or has this number now for a file of its own."""
        if self._is_held():
            return
        name = self.path if self.published else self.path + PART
        fd = high(os.open(name, os.O_RDWR | os.O_CLOEXEC))
        if not os.path.samestat(os.fstat(fd), self.identity):
            os.close(fd)
            raise OSError(errno.ESTALE, "another file has taken its place", name)
        _locks(fd)
        os.lseek(fd, self.written, os.SEEK_SET)
        self.fd = fd

    def _write(self, view):
        self._hold()
        done = 0
        try:
            # Beyond the limit of a file's size a signal would end the script.
            if self.written + len(view) > resource.getrlimit(resource.RLIMIT_FSIZE)[0] >= 0:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            while done < len(view):
                done += os.write(self.fd, view[done:done + (1 << 30)])
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), self.path) from None
        self.written += len(view)

    def flush(self):
        if not self.pending:
            return
        try:
            self._write(memoryview(bytes(self.pending)))
        except BaseException:
            self._cut()
            raise
        self.pending.clear()

    def record_end(self, end):
        """Writes the last record."""
        self.record(END, 0, _text(end).encode())
        self.flush()

    def abandon(self):
        if self.fd is not None:
            if self._is_held():
                os.close(self.fd)
            self.fd = None
        for address in filter(None, self.windows.values()):
            _unmap(address, WINDOW)
        self.windows = {}


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
        payload = _text(end).encode()
        file.seek(at)
        file.write(header(END, 0, payload) + payload + bytes(-len(payload) % 8))
        file.truncate()
