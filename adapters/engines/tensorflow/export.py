"""Exports the weights of a TensorFlow checkpoint (tf.train.Saver, tf.train.Checkpoint), given by its prefix, for `twinrun convert`.

    python3 adapters/engines/tensorflow/export.py ckpt/model-3                           # lists the content
    python3 adapters/engines/tensorflow/export.py ckpt/model-3 w.safetensors --name model/layer_with_weights-0=conv1
    twinrun convert w.safetensors init.h5 --scenario mine.toml

Layouts are already the program's. Keras's own files (.keras, .weights.h5) do not need this script: `twinrun convert` reads them.
"""
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf  # noqa: E402
from twinrun_engine.export import Wrong, arguments, finish, names_of, rename, run  # noqa: E402

VALUE, SLOT = "/.ATTRIBUTES/VARIABLE_VALUE", "/.OPTIMIZER_SLOT/"
# Slots of tf.compat.v1.train, and of tf.train.Checkpoint around it -> the program's.
SLOTS = {"Momentum": "momentum", "momentum": "momentum", "Adam": "adam_m", "Adam_1": "adam_v", "m": "adam_m", "v": "adam_v",
         "Adagrad": "accumulator", "accumulator": "accumulator", "RMSProp": "rms", "RMSProp_1": "momentum"}
COUNTERS = {"beta1_power": "adam/beta1_power", "beta2_power": "adam/beta2_power"}
WEIGHTS = ("kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance", "embeddings")


def read(path):
    """Returns {name: array} of what belongs to the model."""
    try:
        reader = tf.train.load_checkpoint(path)
    except (ValueError, tf.errors.OpError) as error:
        raise Wrong(f"{path}: {str(error).splitlines()[0]} (expected a prefix, such as model-3 of model-3.index)") from None
    return {name.removesuffix(VALUE): reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())
            if not name.startswith("_") and "_CHECKPOINTABLE_OBJECT_GRAPH" not in name}


def leaf(rest, _array):
    """Maps kernel to kernel; kernel/Momentum and kernel/.OPTIMIZER_SLOT/optimizer/momentum to kernel.momentum."""
    weight, _, slot = rest.partition(SLOT if SLOT in rest else "/")
    if SLOT in rest:
        slot = slot.rpartition("/")[2]
    last = weight.rpartition("/")[2]
    if weight.startswith("_") or last not in WEIGHTS or (slot and slot not in SLOTS):
        return None
    return f"{weight}.{SLOTS[slot]}" if slot else weight


def main():
    options = arguments(__doc__, "prefix of the checkpoint's files").parse_args()
    arrays, names = read(options.checkpoint), names_of(options)
    counters = {COUNTERS[k.rpartition("/")[2]]: (k, v) for k, v in arrays.items() if k.rpartition("/")[2] in COUNTERS}
    found, left = rename({k: v for k, v in arrays.items() if k.rpartition("/")[2] not in COUNTERS}, names, leaf)
    finish(options, found | counters, left)


if __name__ == "__main__":
    run(main)
