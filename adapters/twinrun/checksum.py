"""The checksum of JSON documents that twinrun writes and reads again, as their last member (docs/reference/report-schema.md#checksum).

path.write_text(checksum.dumps(document))
document = checksum.loads(path.read_bytes())    # ValueError: changed after it was written
"""

import json
import math
import re
import zlib

_LAST = re.compile(rb'"checksum"\s*:\s*"([^"]*)"\s*}\s*\Z')


def _of(before):
    return f"crc32:{zlib.crc32(before) & 0xFFFFFFFF:08x}"


def _plain(value):
    """JSON has no NaN and no infinity: they are strings, as in reports/json_number.h."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(float(value))
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def dumps(document, **options):
    """The text of an object with its checksum, and an indent of 1. Options are those of json.dumps."""
    document = _plain(document)
    before = json.dumps(document, indent=1, **options)[: -len("\n}")] + ",\n " if document else "{"
    return f'{before}"checksum": "{_of(before.encode())}"\n}}\n'


def loads(text):
    """The object in the bytes of a file, without its checksum. One that has none, of an older version, is read as it is."""
    document = json.loads(text.decode("utf-8"))
    last = _LAST.search(text)
    if last and document.pop("checksum") != _of(text[: last.start()]):
        raise ValueError("the file was changed after it was written: its checksum does not fit its content; make it again")
    return document
