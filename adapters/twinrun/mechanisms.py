"""The mechanisms by which a sharded step means something else than the whole batch's, in words, and what cures them.

sentence, cure = words("clipping", "torch", facts)

The words are those of causes.json, the catalogue that the program itself reads as well.
"""

import functools
import json
import pathlib


# As harness/sharding/ablation.h: no float32 engine can show a relative difference below a
# quarter of its unit roundoff. Where 1 / replicas is no float32 number, four such errors are
# allowed.
def threshold(replicas):
    return 2.0**-26 if replicas & (replicas - 1) == 0 else 2.0**-22


@functools.lru_cache
def catalogue():
    """Returns the rows of causes.json by the names of their causes."""
    rows = json.loads(pathlib.Path(__file__).with_name("causes.json").read_text(encoding="utf-8"))
    return {row["cause"]: row for row in rows}


def words(cause, framework, facts):
    row = catalogue()[cause]
    return row["sentence"].format(**facts), row["cures"][framework].format(**facts)
