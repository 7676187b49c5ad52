"""Small records of what frameworks computed: losses and norms with their bounds, one JSON file per case, corner and framework.
tests/parity/golden_test.cc holds our losses against them without any framework. Regenerate: ./dev parity --update-golden.

    write(folder, case, scenario, "R", "jax", "0.10.2", None, dump_file, "jax.h5")
"""
import json

import h5py
import numpy as np


def write(folder, case, scenario, corner, framework, version, wrong, dump, result):
    group = dump[corner]
    with h5py.File(result, "r") as their:
        norms = {part: {name.replace("|", "/"): [float(np.linalg.norm(their[part][name])), float(bound[()])]
                        for name, bound in group["bound"][part].items() if name in their[part]}
                 for part in ("first", "last", "state")}
        record = {
            "made_by": "./dev parity --update-golden", "case": case["name"], "scenario": scenario, "set": case.get("set", []),
            "slow": case.get("slow", False), "corner": corner, "framework": framework, "version": version, "wrong": wrong,
            "losses": np.asarray(their["losses"]).mean(1).tolist(), "loss_bounds": group["bound/losses"][:].tolist(),
            "norms": norms}
    folder.mkdir(parents=True, exist_ok=True)
    name = ".".join([case["name"], corner, framework, *([wrong] if wrong else [])])
    (folder / f"{name}.json").write_text(text_of(record))


def text_of(record):
    """Returns JSON with a line per key."""
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items()) + "\n}\n"
