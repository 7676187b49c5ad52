"""Runs a step exported by `twinrun convert --to stablehlo` with JAX's own loader on CPU devices.

    run_in_jax.py FOLDER [--tolerance T]
    run_in_jax.py --twinrun BINARY --scenario NAME --cores N      # exports it first, to a temporary folder

Reads step.mlir, step.json, arguments.safetensors and results.safetensors, compiles the text with jaxlib, runs it on as many devices
as it has replicas, and compares every result with the reference's: the difference relative to the size of the largest tensor of its
kind in its layer. Prints a line per result that is off, and the largest difference; exit status 0, 1 if one is beyond the tolerance, 77
without JAX.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile


def read_safetensors(path):
    """Returns the arrays of a safetensors file by name (format: its README, "Format")."""
    import numpy as np
    dtypes = {"F32": np.float32, "I32": np.int32, "BOOL": np.bool_}
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    arrays = {}
    for name, of in header.items():
        begin, end = of["data_offsets"]
        arrays[name] = np.frombuffer(raw[8 + size + begin:8 + size + end],
                                     dtypes[of["dtype"]]).reshape(of["shape"])
    return arrays


def of_replica(arrays, name, replica):
    return arrays[name] if name in arrays else arrays[f"{name}@{replica}"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--twinrun")
    parser.add_argument("--scenario", default="drill_cnn")
    parser.add_argument("--cores", default="1")
    options = parser.parse_args()
    python = os.environ.get("TWINRUN_PARITY_JAX")  # an interpreter that has JAX (docs/method/numerics.md#parity-with-the-frameworks)
    if python and os.path.abspath(python) != os.path.abspath(sys.executable) and not has_jax():
        os.environ.pop("TWINRUN_PARITY_JAX")
        os.execv(python, [python] + sys.argv)
    if not has_jax():
        print("skipped: no JAX here; TWINRUN_PARITY_JAX=PYTHON names an interpreter that has it")
        return 77
    if options.folder is not None:
        return run(options.folder, options.tolerance)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([options.twinrun, "convert", options.scenario, folder, "--to", "stablehlo", "--cores",
                        options.cores], check=True)
        return run(pathlib.Path(folder), options.tolerance)


def kin(name):
    """The tensors that share a size: those of one layer and one kind (weights, gradients, a slot). A bias before a batch norm has a
    gradient that is zero except for rounding, of terms like those of the layer's kernel."""
    layer, _, last = name.rpartition("/")
    return layer, last.partition(".")[2]


def size(values):
    return float((values.astype("f8") ** 2).mean() ** 0.5) if values.size else 0.0


def sizes(arrays):
    """Returns the root mean square of the largest tensor of each kin, over replicas."""
    found = {}
    for name, values in arrays.items():
        key = kin(name.partition("@")[0])
        found[key] = max(found.get(key, 0.0), size(values))
    return found


def of_rounding_alone(arrays, tolerance):
    """Returns weights whose gradient is only rounding: an adaptive optimizer normalizes it, so their steps are arbitrary."""
    size_of, gradients = sizes(arrays), (name for name in arrays if name.startswith("output/") and name.partition("@")[0].endswith(".grad"))
    return {"state/" + name.partition("@")[0].removeprefix("output/").removesuffix(".grad") for name in gradients
            if size(arrays[name]) < tolerance * size_of[kin(name.partition("@")[0])]}


def has_jax():
    return importlib.util.find_spec("jax") is not None


def run(folder, tolerance):
    step = json.loads((folder / "step.json").read_text())
    cores = step["cores"]
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={cores}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy as np
    from jax._src.lib import xla_client
    client = jax.devices()[0].client
    devices = client.local_devices()[:cores]
    compile_options = xla_client.CompileOptions()
    compile_options.num_replicas = cores
    compile_options.device_assignment = xla_client.DeviceAssignment.create(
        np.array([[d.id] for d in devices], dtype=np.int32))
    text = (folder / "step.mlir").read_text()
    executable = client.compile_and_load(text, xla_client.DeviceList(tuple(devices)), compile_options)

    given = read_safetensors(folder / "arguments.safetensors")
    due = read_safetensors(folder / "results.safetensors")
    arguments = []
    for argument in step["arguments"]:
        shards = [jax.device_put(of_replica(given, argument["name"], r), d)
                  for r, d in enumerate(devices)]
        # Concatenate the replicas along the first axis, so that each device holds its own.
        mesh = jax.sharding.Mesh(np.array(devices), ("r",))
        shape = tuple(argument["shape"])
        if shape:
            whole = (shape[0] * cores,) + shape[1:]
            spec = jax.sharding.PartitionSpec("r")
        else:
            whole, spec = shape, jax.sharding.PartitionSpec()
        arguments.append(jax.make_array_from_single_device_arrays(
            whole, jax.sharding.NamedSharding(mesh, spec), shards))
    out = executable.execute_sharded(arguments).disassemble_into_single_device_arrays()

    worst, beyond, size_of, free = ("", 0.0), 0, sizes(due), of_rounding_alone(due, tolerance)
    for result, shards in zip(step["results"], out):
        if result["name"] in free:
            continue
        for r, shard in enumerate(shards):
            want = of_replica(due, result["name"], r).astype(np.float64)
            got = np.asarray(shard).astype(np.float64)
            if got.shape != want.shape or not np.array_equal(np.isnan(got), np.isnan(want)):
                print(f"{result['name']} on replica {r}: another shape, or NaN elsewhere")
                beyond += 1
                continue
            gap = np.sqrt(np.mean((got - want) ** 2)) if want.size else 0.0
            relative = gap / max(size_of[kin(result["name"])], 1e-30)
            if relative > worst[1]:
                worst = (result["name"], relative)
            if relative > tolerance:
                print(f"{result['name']} on replica {r}: off by {relative:.2e} of its size")
                beyond += 1
    print(f"{step['scenario']}: {cores} replicas, {len(step['results'])} results, the largest "
          f"difference is {worst[1]:.2e} of {worst[0] or 'none'}"
          + (f"; not compared, because their gradients are only rounding: {', '.join(sorted(free))}" if free else ""))
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
