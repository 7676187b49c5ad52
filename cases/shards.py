"""A shard of the cases, in the form of harness/campaign: plan.json and a line of cases.jsonl for each version of a case, so that
`twinrun_dev drill --merge` joins the shards. docs/developers/testing.md has the form.

    plan = shards.Plan(shards.parse("3/8"), names, setting, command)    # names: of the whole campaign, in its order
    records = shards.Records(folder, plan, resume=True)
    for name in records.left(): records.add({"id": name, ...})
"""

import datetime
import fcntl
import os
import pathlib
import platform
import re
import zlib

from twinrun import checksum

RECORDS = "cases.jsonl"


def parse(text):
    """(I, N) of the text "I/N". ValueError: what was found, and what is allowed."""
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    if not found:
        raise ValueError(f"found '{text}'; expected I/N, shard I of N, counted from 0")
    index, count = (int(part) for part in found.groups())
    if not 1 <= count <= 100_000:
        raise ValueError(f"{count} shards; allowed: 1 to 100000")
    if index >= count:
        raise ValueError(f"shard {index} of {count}; allowed: 0/{count} to {count - 1}/{count}, since shards count from 0")
    return index, count


def shard_of(name, count):
    """As in harness/campaign/shard.h."""
    return zlib.crc32(name.encode()) % count


def whole_lines(path):
    """The lines of a file of records that were written whole."""
    text = path.read_bytes() if path.exists() else b""
    lines = text.split(b"\n")[:-1]
    return lines[:-1] if lines and b"\0" in lines[-1] and text.endswith(b"\n") else lines


class Plan:
    def __init__(self, shard, names, setting, command):
        index, count = self.shard = shard
        self.setting, self.folder = setting, f"shard-{index}-of-{count}"
        self.cases = [(i, n) for i, n in enumerate(names) if shard_of(n, count) == index]
        self.document = {
            "schema": 1,
            "verb": "cases",
            "records": RECORDS,
            "setting": setting,
            "total": len(names),
            "all": f"crc32:{zlib.crc32(''.join(n + chr(10) for n in names).encode()):08x}",
            "shard": f"{index}/{count}",
            "run": {
                "command": command,
                "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
                "machine": platform.machine(),
                "build": "",
            },
            "numbers": [i for i, _ in self.cases],
            "ids": [n for _, n in self.cases],
        }


class Records:
    """The records of one shard below `folder`. ValueError: those of another campaign, a line that was changed; another process
    has the folder."""

    def __init__(self, folder, plan, resume):
        self.plan, self.folder = plan, pathlib.Path(folder) / plan.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{self.folder}: another process works there") from None
        path, self.known = self.folder / RECORDS, {}
        place = self.folder / "plan.json"
        if resume and place.exists():
            before = checksum.loads(place.read_bytes())
            same = {k for k in plan.setting if before["setting"].get(k, plan.setting[k]) != plan.setting[k]}
            if same or before["shard"] != plan.document["shard"]:
                raise ValueError(f"{place}: the records here are of another campaign: {before['run']['command']}")
            for number, line in enumerate(whole_lines(path), 1):
                try:
                    row = checksum.loads(line)
                except ValueError as e:
                    raise ValueError(f"{path}:{number}: {e}") from None
                if not row.get("error"):  # what ended in an error runs again
                    self.known[row["id"]] = line
        self._replace(place, checksum.dumps(plan.document).encode())
        self._replace(path, b"".join(line + b"\n" for line in self.known.values()))
        self.file = open(path, "ab", buffering=0)

    @staticmethod
    def _replace(path, content):
        temporary = path.with_name(f".{path.name}.new")
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    def left(self):
        return [name for _, name in self.plan.cases if name not in self.known]

    def add(self, row):
        self.file.write(checksum.line(row).encode() + b"\n")
        os.fsync(self.file.fileno())


def rows(folder):
    """The rows of a merged campaign (`twinrun_dev drill --merge`) or of a shard, by id; what ended in an error is left out."""
    found = (checksum.loads(line) for line in whole_lines(pathlib.Path(folder) / RECORDS))
    return {row["id"]: row for row in found if not row.get("error")}
