#!/usr/bin/env python3
"""Writes tpu_ops.txt: the TensorFlow ops that a TPU's compiler has kernels for, with their types.

In an environment of each version (numpy, protobuf and the other packages that TensorFlow names):
    pip install --no-deps tensorflow-tpu==2.20.0
    python make_tpu_ops.py kernels 2.20.json
with a newer tensorflow-cpu, whose compiler for CPUs has the same front end:
    python probe_constants.py > constants.txt
and then, oldest version first:
    python make_tpu_ops.py table 2.16.json 2.19.json 2.20.json < constants.txt > tpu_ops.txt

TensorFlow registers the kernels of a backend when it first compiles something. The compilation
itself may fail, because there is no TPU.
"""
import json
import sys

# Ops of a step that have no kernel there, because they are gone, or stay outside, when it is
# compiled. The second column says where that is to be read.
TAKEN_OUT = {
    "Placeholder": "an input of the step",
    "VarHandleOp": "kernel for the device TPU (tensorflow core/kernels/resource_variable_ops.cc)",
    **{name: "tensorflow compiler/tf2xla/functionalize_control_flow.cc"
       for name in ("Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch")},
    **{name: "tensorflow core/tpu/graph_rewrite/distributed_tpu_rewrite_pass.cc"
       for name in ("TPUReplicateMetadata", "TPUReplicatedInput", "TPUReplicatedOutput",
                    "TPUCompilationResult", "TPUReplicate", "_TPUReplicate")},
    **{name: "tensorflow python/tpu/tpu_feed.py"
       for name in ("InfeedDequeue", "InfeedDequeueTuple", "OutfeedEnqueue",
                    "OutfeedEnqueueTuple")},
}

HEADER = """\
# The TensorFlow ops that a TPU's compiler has kernels for. Written by make_tpu_ops.py from what
# tensorflow-tpu {versions} (Python package index) register for XLA_TPU_JIT at run time.
# op NAME FIRST [ATTRIBUTE=SET]..   FIRST: the first of these versions that has it. The types of an
#                                   attribute must be in SET; those of attributes not named are free.
# out NAME: SOURCE                  has no kernel and needs none
# constant NAME INPUT..             inputs that must be constants when the step is compiled; -1: the
#                                   last. As probe_constants.py found in tensorflow-cpu {probed}."""


def kernels(out):
    import tensorflow as tf
    from tensorflow.core.framework import types_pb2
    from tensorflow.python.framework import kernels as registered

    @tf.function(jit_compile=True)
    def anything(x):
        return x + 1

    try:
        anything(tf.constant(1.0))
    except Exception as error:  # there is no TPU
        print(error, file=sys.stderr)
    ops = {}
    for kernel in registered.get_all_registered_kernels().kernel:
        if kernel.device_type != "XLA_TPU_JIT":
            continue
        attributes = ops.setdefault(kernel.op, {})
        for constraint in kernel.constraint:
            types = [types_pb2.DataType.Name(t)[len("DT_"):].lower()
                     for t in constraint.allowed_values.list.type]
            attributes[constraint.name] = sorted(set(types) | set(attributes.get(constraint.name, [])))
    if not ops:
        sys.exit("this TensorFlow has no kernels for XLA_TPU_JIT")
    with open(out, "w") as file:
        json.dump({"version": tf.__version__, "ops": ops}, file)


def table(files):
    builds = [json.load(open(file)) for file in files]
    probed, *constants = sys.stdin.read().splitlines()
    print(HEADER.format(versions=", ".join(b["version"] for b in builds), probed=probed))
    print("versions", *(b["version"] for b in builds))
    ops, first = {}, {}
    for build in builds:
        for name, attributes in build["ops"].items():
            first.setdefault(name, build["version"])
            ops[name] = attributes  # later versions accept more types
    sets = sorted({tuple(t) for attributes in ops.values() for t in attributes.values()})
    for number, types in enumerate(sets):
        print("set", number, *types)
    for name in sorted(ops):
        print("op", name, first[name],
              *(f"{a}={sets.index(tuple(t))}" for a, t in sorted(ops[name].items())))
    for name, source in TAKEN_OUT.items():
        print(f"out {name}: {source}")
    print(*constants, sep="\n")


if __name__ == "__main__":
    if sys.argv[1] == "kernels":
        kernels(sys.argv[2])
    else:
        table(sys.argv[2:])
