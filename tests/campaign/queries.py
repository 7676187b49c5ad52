#!/usr/bin/env python3
"""The queries of docs/developers/testing.md, run by DuckDB as they stand there.

    queries.py PROGRAM PAGE            runs a small drill and a comparison in shards, then every query on their files
    queries.py --paste FOLDER PAGE     writes under every query of the page what it gives in FOLDER

Without DuckDB in this Python, the one of TWINRUN_DUCKDB is taken. Exit status: 0; 1: a query fails, or gives other columns than the page; 77: there is no DuckDB.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import duckdb
except ImportError:
    other = os.environ.get("TWINRUN_DUCKDB")  # the interpreter that `./dev test` has installed
    if other and other != sys.executable:
        os.execv(other, [other, *sys.argv])
    print("SKIPPED: this Python has no duckdb (pip install duckdb)")
    sys.exit(77)

SOURCE = pathlib.Path(__file__).resolve().parents[2]
QUERY = re.compile(r"```sql\n(.*?)```\n```\n(.*?)```\n", re.DOTALL)
WIDTH = 60  # of a column


def table(columns, rows):
    def text(value):
        if isinstance(value, float):
            return f"{value:.6g}"
        return "" if value is None else re.sub(r"\s+", " ", str(value))[:WIDTH]

    lines = [columns, *([text(v) for v in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths)).rstrip() for line in lines) + "\n"


def asked(query, folder):
    """(names of the columns, rows) of a query about the files below the folder."""
    with duckdb.connect() as connection:
        connection.execute(f"set file_search_path = '{folder}'")
        answer = connection.execute(query)
        return [d[0] for d in answer.description], answer.fetchall()


def paste(folder, page):
    def answered(found):
        return f"```sql\n{found[1]}```\n```\n{table(*asked(found[1], folder))}```\n"

    page.write_text(QUERY.sub(answered, page.read_text(encoding="utf-8")), encoding="utf-8")


def make(program, folder):
    """The files that the queries read: a drill and a comparison in shards, and merged."""
    shutil.copy(SOURCE / "tests/crash/tiny.toml", folder)
    for words, out in ((["drill", "tiny.toml", "--cases", "26"], "drill"),
                       (["compare", "tiny.toml", "--b", "tpu", "--seeds", "4", "--margin", "1"], "ab")):  # fmt: skip
        tool = f"{program}_dev" if out == "drill" else program
        for shard in ("0/2", "1/2"):
            subprocess.run([tool, *words, "--shard", shard, "-o", out, "-q"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        code = subprocess.run([tool, words[0], "--merge", out, "-o", f"{out}/merged", "-q"], cwd=folder, stdout=subprocess.DEVNULL).returncode
        if code not in (0, 1):
            sys.exit(f"merge ended with {code}")


def main():
    if sys.argv[1] == "--paste":
        return paste(pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3]))
    program, page = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    queries, wrong = QUERY.findall(page.read_text(encoding="utf-8")), 0
    if len(queries) < 4:
        sys.exit(f"{page}: found {len(queries)} queries with their answer; expected 4 or more")
    with tempfile.TemporaryDirectory(prefix="twinrun_queries_") as folder:
        make(program, folder)
        for query, told in queries:
            try:
                columns, rows = asked(query, folder)
            except duckdb.Error as e:
                columns, rows = [], []
                print(e)
            expected = told.splitlines()[0].split()
            if columns != expected:
                wrong += 1
                print(f"columns {columns}; expected {expected} of\n{query}")
    print(f"{len(queries)} queries, {wrong} of them wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
