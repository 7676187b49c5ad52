"""What a disk may hold after power was lost, from the log of a run.

Certain is only what was synced: the bytes of a file by fsync of the file, its name by fsync of its folder. Of everything else
each piece may be there or not: a name that was made, renamed or removed; each sector of 512 bytes of a write, in any order,
with zeros where a file has grown and its bytes have not come.
"""

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512


@dataclass
class Node:
    """A file: its bytes that are certain, and the writes since."""
    synced: bytes = b""
    writes: list = field(default_factory=list)  # (offset, bytes)

    def now(self):
        return merged(self.synced, self.writes, lambda: True)


def merged(content, writes, kept, zeros=False):
    out = bytearray(content)
    for offset, data in writes:
        end = offset + len(data)
        for at in range(0, len(data), SECTOR):
            if not kept():
                if zeros and len(out) < end:
                    out.extend(bytes(end - len(out)))
                continue
            piece = data[at:at + SECTOR]
            if len(out) < offset + at + len(piece):
                out.extend(bytes(offset + at + len(piece) - len(out)))
            out[offset + at:offset + at + len(piece)] = piece
    return bytes(out)


@dataclass
class NameChange:
    make: str = ""  # a name that leads to the node from now on (None: a folder)
    node: object = None
    remove: str = ""
    synced: set = field(default_factory=set)  # the folders that were synced since

    def folders(self):
        return {str(Path(p).parent) for p in (self.make, self.remove) if p}

    def certain(self):
        return self.folders() <= self.synced


class Disk:
    """Follows the calls of a run from the files that were there before, all of them certain."""

    def __init__(self, template, work):
        self.work, self.first = Path(work), {}
        for path in sorted(Path(template).rglob("*")):
            name = str(self.work / path.relative_to(template))
            self.first[name] = None if path.is_dir() else Node(path.read_bytes())
        self.names = dict(self.first)  # as the running program sees them
        self.nodes, self.opened, self.changes = {}, {}, []
        self.whole = {name: {node.synced} for name, node in self.first.items() if node}  # contents that a name may have

    def change(self, **what):
        self.changes.append(NameChange(**what))

    def follow(self, call):
        if call.name in ("create", "open"):
            self.opened[call.inode] = call.path
            if call.name == "create" and call.flags == "new":
                self.names[call.path] = Node()
                self.change(make=call.path, node=self.names[call.path])
            node = self.names.get(call.path)
            if node is not None:
                self.nodes[call.inode] = node
                if call.flags == "truncated":
                    node.synced, node.writes = b"", []
            else:
                self.nodes.pop(call.inode, None)
        elif call.name == "write":
            self.nodes[call.inode].writes.append((call.offset, call.data))
        elif call.name == "fsync":
            node = self.nodes.get(call.inode)
            if node is not None:
                node.synced, node.writes = node.now(), []
            else:
                for change in self.changes:
                    change.synced.add(self.opened[call.inode])
        elif call.name == "rename":
            node = self.names.pop(call.path)
            self.names[call.to] = node
            self.whole.setdefault(call.to, set()).add(node.now())
            self.change(make=call.to, node=node, remove=call.path)
        elif call.name == "mkdir":
            self.names[call.path] = None
            self.change(make=call.path)
        elif call.name in ("unlink", "rmdir"):
            self.names.pop(call.path, None)
            self.change(remove=call.path)

    def states(self, draws):
        """The folders that may be found: {path: bytes, or None for a folder}, the same ones left out."""
        certain, every = (lambda c: c.certain()), (lambda c: True)
        any_change = lambda c: c.certain() or draws.random() < 0.5
        none, half = (lambda: False), (lambda: draws.random() < 0.5)
        found = []
        for happened, kept, zeros in [(certain, none, False), (every, none, False), (every, none, True),
                                      *[(every, half, True), (any_change, half, False), (any_change, half, True)] * 4]:
            names = dict(self.first)
            for change in self.changes:
                if not happened(change):
                    continue
                names.pop(change.remove, None)
                if change.make:
                    names[change.make] = change.node
            state = {name: None if node is None else merged(node.synced, node.writes, kept, zeros)
                     for name, node in names.items()}
            if state not in found:
                found.append(state)
        return found

    def not_whole(self, state):
        """Final names that hold neither a whole old nor a whole new file. Records are appended to, line by line."""
        return [name for name, content in state.items()
                if content is not None and ".twinrun-" not in name and "/begun/" not in name and not name.endswith(".jsonl")
                and content not in self.whole.get(name, set())]


def lay_out(state, work):
    """Writes the state into the folder."""
    shutil.rmtree(work)
    work.mkdir()
    for name, content in state.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(content)


def check(scene, seed, stride, without=""):
    """Loses power after each call of the scene's run that changes something, and looks at what may be found; for every
    `stride`th state gives the command again. Yields (whether it was, what is wrong or None). Calls named `without` are left
    out, as if the program did not make them."""
    draws, seen = random.Random(seed), set()
    disk = Disk(scene.template, scene.work)
    for call in scene.calls:
        if call.name == without:
            continue
        disk.follow(call)
        if call.name in ("open", "read", "close", "flock", "start"):
            continue
        for state in disk.states(draws):
            key = hash(tuple(sorted((name, content) for name, content in state.items() if content is not None)))
            if key in seen:
                continue
            seen.add(key)
            torn = disk.not_whole(state)
            wrong = f"not a whole file: {torn}" if torn else None
            again = wrong is None and len(seen) % stride == 0
            if again:
                lay_out(state, scene.work)
                wrong = scene.judge_again()
            yield again, wrong and f"after call {call.number} ({call.name} {call.path.removeprefix(str(scene.work))}): {wrong}"
