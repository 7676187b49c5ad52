#!/usr/bin/env python3
"""Prints which inputs of ops XLA's front end needs as constants: "constant Reshape 1".

Each op below is compiled once for each of its inputs, with a value in it that a random op has a part in. Where the compiler needs a
constant it says so: "must be a compile-time constant". The first line is the version of TensorFlow.
"""
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

raw = tf.raw_ops
matrix, vector, image = np.ones((4, 4), np.float32), np.ones(4, np.float32), np.ones((1, 4, 4, 1), np.float32)
kernel, gradient, half = np.ones((2, 2, 1, 1), np.float32), np.ones((1, 3, 3, 1), np.float32), np.float32(0.5)


def ints(*values):
    return np.array(values, np.int32)


def int_(value):
    return np.array(value, np.int32)


PADDINGS = int_([[0, 1], [0, 1]])
CONV = {"strides": [1, 1, 1, 1], "padding": "VALID"}
SAMPLES = {"shape": ints(3)}
SEGMENTS = {"data": matrix, "segment_ids": ints(0, 0, 1, 1), "num_segments": int_(2)}
SEED = {"seed": ints(1, 2)}
KEY = {"key": np.array([1], np.uint64), "counter": np.array([1, 2], np.uint64), "alg": 1}

# Inputs are NumPy values or lists of them; everything else is an attribute.
OPS = {
    "Reshape": {"tensor": matrix, "shape": ints(16)},
    "Fill": {"dims": ints(3), "value": half},
    "Empty": {"shape": ints(3), "dtype": tf.float32},
    "BroadcastTo": {"input": vector, "shape": ints(2, 4)},
    "Pad": {"input": matrix, "paddings": PADDINGS},
    "PadV2": {"input": matrix, "paddings": PADDINGS, "constant_values": half},
    "MirrorPad": {"input": matrix, "paddings": PADDINGS, "mode": "REFLECT"},
    "Tile": {"input": matrix, "multiples": ints(1, 2)},
    "Transpose": {"x": matrix, "perm": ints(1, 0)},
    "ReverseV2": {"tensor": matrix, "axis": ints(0)},
    "Roll": {"input": matrix, "shift": int_(1), "axis": int_(0)},
    "Slice": {"input": matrix, "begin": ints(0, 0), "size": ints(2, 2)},
    "StridedSlice": {"input": matrix, "begin": ints(0, 0), "end": ints(2, 2), "strides": ints(1, 1)},
    "ConcatV2": {"values": [matrix, matrix], "axis": int_(0)},
    "Split": {"axis": int_(0), "value": matrix, "num_split": 2},
    "SplitV": {"value": matrix, "size_splits": ints(1, 3), "axis": int_(0), "num_split": 2},
    "ExpandDims": {"input": matrix, "axis": int_(0)},
    **{op: {"input": matrix, "axis": ints(0)} for op in ("Sum", "Mean", "Max", "Min", "Prod")},
    **{op: {"input": matrix > 0, "axis": ints(0)} for op in ("All", "Any")},
    **{op: {"input": matrix, "dimension": int_(0)} for op in ("ArgMax", "ArgMin")},
    **{op: {"x": matrix, "axis": int_(0)} for op in ("Cumsum", "Cumprod")},
    "OneHot": {"indices": ints(1, 2), "depth": int_(4), "on_value": half, "off_value": half},
    "Range": {"start": int_(0), "limit": int_(4), "delta": int_(1)},
    "LinSpace": {"start": half, "stop": half, "num": int_(3)},
    "GatherV2": {"params": matrix, "indices": ints(1), "axis": int_(0)},
    "TopKV2": {"input": matrix, "k": int_(2)},
    "InTopKV2": {"predictions": matrix, "targets": ints(0, 1, 2, 3), "k": int_(2)},
    **{op: {"images": image, "size": ints(8, 8)} for op in ("ResizeBilinear", "ResizeNearestNeighbor")},
    **{op: {**SAMPLES, "dtype": tf.float32} for op in ("RandomUniform", "RandomStandardNormal", "TruncatedNormal")},
    "RandomUniformInt": {**SAMPLES, "minval": int_(0), "maxval": int_(4)},
    **{op: {**SAMPLES, **SEED} for op in ("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal")},
    **{op: {**SAMPLES, **KEY} for op in ("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2")},
    "Multinomial": {"logits": matrix, "num_samples": int_(2)},
    "StatelessMultinomial": {"logits": matrix, "num_samples": int_(2), **SEED},
    **{op: SEGMENTS for op in ("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd", "SegmentSumV2")},
    "ScatterNd": {"indices": int_([[0], [1]]), "updates": np.ones(2, np.float32), "shape": ints(4)},
    "SparseToDense": {"sparse_indices": ints(1), "output_shape": ints(4), "sparse_values": half, "default_value": half},
    "DynamicStitch": {"indices": [ints(0, 1), ints(2)], "data": [np.ones(2, np.float32), np.ones(1, np.float32)]},
    "Conv2DBackpropInput": {"input_sizes": ints(1, 4, 4, 1), "filter": kernel, "out_backprop": gradient, **CONV},
    "Conv2DBackpropFilter": {"input": image, "filter_sizes": ints(2, 2, 1, 1), "out_backprop": gradient, **CONV},
    "SpaceToBatchND": {"input": image, "block_shape": ints(2, 2), "paddings": int_([[0, 0], [0, 0]])},
    "BatchToSpaceND": {"input": np.ones((4, 2, 2, 1), np.float32), "block_shape": ints(2, 2), "crops": int_([[0, 0], [0, 0]])},
    "MatrixBandPart": {"input": matrix, "num_lower": int_(0), "num_upper": int_(0)},
    "MatrixDiagV3": {"diagonal": vector, "k": int_(0), "num_rows": int_(4), "num_cols": int_(4), "padding_value": half},
    "TensorListReserve": {"element_shape": ints(3), "num_elements": int_(4), "element_dtype": tf.float32},
    "EmptyTensorList": {"element_shape": ints(3), "max_num_elements": int_(4), "element_dtype": tf.float32},
    "TensorArrayV3": {"size": int_(3), "dtype": tf.float32},
    "Bincount": {"arr": ints(1, 2), "size": int_(4), "weights": np.ones(2, np.float32)},
    "DenseBincount": {"input": ints(1, 2), "size": int_(4), "weights": np.ones(2, np.float32)},
    "NonMaxSuppressionV4": {"boxes": matrix, "scores": vector, "max_output_size": int_(2), "iou_threshold": half, "score_threshold": half,
                            "pad_to_max_output_size": True},
}


def is_input(value):
    return isinstance(value, (np.ndarray, np.generic)) or (isinstance(value, list) and isinstance(value[0], np.ndarray))


def needs_constant(op, arguments, name):
    values = arguments[name] if isinstance(arguments[name], list) else [arguments[name]]
    variables = [tf.Variable(v) for v in values]

    @tf.function(jit_compile=True)
    def compiled():
        zero = raw.RandomUniformInt(shape=ints(), minval=int_(0), maxval=int_(1))
        drawn = [tf.logical_or(v, zero > 0) if v.dtype == tf.bool else v + tf.cast(zero, v.dtype) for v in variables]
        return getattr(raw, op)(**{**arguments, name: drawn if isinstance(arguments[name], list) else drawn[0]})

    try:
        compiled()
    except Exception as error:
        return "must be a compile-time constant" in str(error)
    return False


def main():
    print(tf.__version__)
    for op, arguments in sorted(OPS.items()):
        inputs = op_def_registry.get(op).input_arg
        needed = []
        for index, argument in enumerate(inputs):
            name = argument.name if argument.name in arguments else list(arguments)[index]
            if is_input(arguments[name]) and needs_constant(op, arguments, name):
                after_list = any(a.number_attr for a in inputs[:index])
                needed.append(index - len(inputs) if after_list else index)
        if needed:
            print("constant", op, *needed)


if __name__ == "__main__":
    main()
