"""`twinrun check --graph` on graphs that TensorFlow itself writes: SavedModels, GraphDefs, MetaGraphDefs.

    tf_graphs.py --twinrun BINARY [--keep FOLDER] [NAME..]

Each model names the errors that must be found in it, and no others may be. XLA's compiler for CPUs must agree: it compiles the healthy
SavedModels, and names unsupported ops in those that have some. TWINRUN_PARITY_TF names an interpreter that has TensorFlow
(./dev test installs one). Exit status 77 where there is none.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

BATCH = 16


def keras_model(layers, shape, dtype="float32", batch=BATCH):
    import keras
    inputs = keras.Input(shape=shape, batch_size=batch, dtype=dtype)
    x = inputs
    for layer in layers:
        x = layer(x)
    return keras.Model(inputs, x)


def training_module(tf, model, shape, classes, for_xla):
    """A module with the model's training step and its prediction."""
    import keras
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    class Training(tf.Module):
        def __init__(self):
            super().__init__()
            self.model, self.optimizer = model, optimizer
            self.all_variables = [v.value for v in model.variables + optimizer.variables]

        @tf.function(input_signature=[tf.TensorSpec((BATCH, *shape)), tf.TensorSpec((BATCH,), tf.int32)], jit_compile=for_xla)
        def train_step(self, x, y):
            with tf.GradientTape() as tape:
                logits = self.model(x, training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply(gradients, self.model.trainable_variables)
            return loss

        @tf.function(input_signature=[tf.TensorSpec((BATCH, *shape))])
        def predict(self, x):
            return tf.reshape(self.model(x, training=False), (BATCH, classes))

    module = Training()
    module.train_step.get_concrete_function()
    return module


def save_training(tf, model, shape, classes, folder, for_xla=None):
    module = training_module(tf, model, shape, classes, for_xla)
    tf.saved_model.save(module, folder, signatures=module.predict)
    return folder


def mlp(tf, folder):
    from keras import layers
    model = keras_model([layers.Dense(64, activation="relu"), layers.Dropout(0.5), layers.Dense(10)], (784,))
    model.export(folder, verbose=False)
    return folder


def cnn(tf, folder):
    from keras import layers
    model = keras_model([layers.Conv2D(8, 3), layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D(), layers.Flatten(),
                         layers.Dense(10)], (28, 28, 1))
    return save_training(tf, model, (28, 28, 1), 10, folder)


def resnet_block(tf, folder):
    import keras
    from keras import layers
    inputs = keras.Input(shape=(32, 32, 16), batch_size=BATCH)
    x = inputs
    for _ in range(2):
        y = layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same", use_bias=False)(x))
        x = layers.add([x, layers.Conv2D(16, 3, padding="same")(layers.ReLU()(y))])
    x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    return save_training(tf, keras.Model(inputs, x), (32, 32, 16), 10, folder)


def lstm(tf, folder, for_xla=True):
    from keras import layers
    model = keras_model([layers.LSTM(32, return_sequences=True), layers.LSTM(16), layers.Dense(4)], (12, 8))
    return save_training(tf, model, (12, 8), 4, folder, for_xla)


def lstm_for_cpus(tf, folder):
    """Traced outside of XLA, the gradient of a loop does not know how many iterations there are."""
    return lstm(tf, folder, for_xla=None)


def gru(tf, folder):
    from keras import layers
    model = keras_model([layers.Bidirectional(layers.GRU(16)), layers.Dense(4)], (12, 8))
    model.export(folder, verbose=False)
    return folder


def transformer(tf, folder):
    import keras
    from keras import layers
    inputs = keras.Input(shape=(24, 32), batch_size=BATCH)
    x = inputs
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 8, dropout=0.1)(x, x, use_causal_mask=True))
        x = layers.LayerNormalization()(x + layers.Dense(32)(layers.Dense(64, activation="gelu")(x)))
    x = layers.Dense(5)(x[:, 0])
    return save_training(tf, keras.Model(inputs, x), (24, 32), 5, folder)


def embedding(tf, folder):
    from keras import layers
    model = keras_model([layers.Embedding(1000, 16), layers.GlobalAveragePooling1D(), layers.Dense(2)], (20,), "int32", batch=None)
    model.export(folder, verbose=False)
    return folder


def while_loop(tf, folder):
    class Loop(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((8, 8)), tf.TensorSpec((), tf.int32)])
        def power(self, x, n):
            y = tf.eye(8)
            for _ in tf.range(n):
                y = tf.linalg.matmul(x, y)
                if tf.reduce_max(y) > 100.0:
                    y = y / 100.0
            return y

    module = Loop()
    tf.saved_model.save(module, folder, signatures=module.power)
    return folder


def where_unique(tf, folder):
    class Positive(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((BATCH, 4))])
        def pick(self, x):
            rows = tf.where(x[:, 0] > 0)
            values, _ = tf.unique(tf.reshape(tf.cast(x, tf.int32), (-1,)))
            return tf.reduce_sum(tf.gather_nd(x, rows)) + tf.cast(tf.reduce_sum(values), tf.float32)

    module = Positive()
    tf.saved_model.save(module, folder, signatures=module.pick)
    return folder


def strings(tf, folder):
    class Words(tf.Module):
        def __init__(self):
            super().__init__()
            keys = tf.lookup.KeyValueTensorInitializer(["a", "b", "c"], [0, 1, 2], value_dtype=tf.int64)
            self.table = tf.lookup.StaticHashTable(keys, -1)
            self.weights = tf.Variable(tf.ones((3, 4)))

        @tf.function(input_signature=[tf.TensorSpec((BATCH,), tf.string)])
        def embed(self, words):
            ids = self.table.lookup(tf.strings.lower(words))
            return tf.gather(self.weights, tf.maximum(ids, 0))

    module = Words()
    tf.saved_model.save(module, folder, signatures=module.embed)
    return folder


def py_function(tf, folder):
    class Python(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((BATCH, 4))])
        def step(self, x):
            tf.print("x", x[0, 0])
            y = tf.numpy_function(lambda v: v * 2, [x], tf.float32)
            return tf.ensure_shape(y, (BATCH, 4)) + tf.ones((BATCH, 4))

    module = Python()
    tf.saved_model.save(module, folder, signatures=module.step)
    return folder


def not_constant(tf, folder):
    class Lengths(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((BATCH, 8)), tf.TensorSpec((BATCH,), tf.int32)])
        def step(self, x, lengths):
            mask = tf.sequence_mask(lengths)    # as long as the longest of the batch
            return tf.reduce_sum(tf.cast(mask, tf.float32)) * tf.reduce_sum(x)

    module = Lengths()
    tf.saved_model.save(module, folder, signatures=module.step)
    return folder


def doubles(tf, folder):
    class Doubles(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((BATCH, None, 4), tf.float64)])
        def step(self, x):
            return tf.reduce_sum(x * tf.constant(2.0, tf.float64), axis=1)

    module = Doubles()
    tf.saved_model.save(module, folder, signatures=module.step)
    return folder


def frozen(tf, folder):
    """A frozen graph of TensorFlow 1's kind."""
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        x = v1.placeholder(tf.float32, (BATCH, 28, 28, 1), "x")
        kernel = v1.get_variable("kernel", (3, 3, 1, 8), use_resource=True)
        y = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME")), 2, 2, "SAME")
        dense = v1.get_variable("dense", (14 * 14 * 8, 10), use_resource=True)
        tf.nn.softmax(tf.reshape(y, (BATCH, -1)) @ dense, name="y")
        session.run(v1.global_variables_initializer())
        constant = v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["y"])
    tf.io.write_graph(constant, folder, "frozen.pb", as_text=False)
    return f"{folder}/frozen.pb"


def bicubic(tf, folder):
    """A frozen graph with an op that no TPU has, pinned to a GPU."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (BATCH, 16, 16, 3), "x")
        with tf.device("/device:GPU:0"):
            tf.compat.v1.image.resize_bicubic(x, (32, 32), name="y")
    tf.io.write_graph(graph.as_graph_def(), folder, "bicubic.pb", as_text=False)
    return f"{folder}/bicubic.pb"


def training_meta(tf, folder):
    """A MetaGraphDef of a training with summaries and a saver, which run on the host."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        data = tf.data.Dataset.from_tensors((tf.ones((BATCH, 4)), tf.zeros((BATCH, 1)))).repeat()
        x, y = v1.data.make_one_shot_iterator(data).get_next()
        w = v1.get_variable("w", (4, 1), use_resource=True)
        loss = tf.reduce_mean((x @ w - y) ** 2)
        v1.summary.scalar("loss", loss)
        v1.summary.merge_all()
        v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        v1.train.Saver()
        v1.train.export_meta_graph(f"{folder}.meta")
    return f"{folder}.meta"


def reference_variables(tf, folder):
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        w = v1.get_variable("w", (4, 1), use_resource=False)
        loss = tf.reduce_mean((v1.placeholder(tf.float32, (BATCH, 4), "x") @ w) ** 2)
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        v1.train.Saver()
        v1.train.export_meta_graph(f"{folder}.meta")
    return f"{folder}.meta"


def replicated(tf, folder, summed=True, batch=BATCH):
    """A graph built for two cores: input pipeline and summary stay on the host."""
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        data = tf.data.Dataset.from_tensors(["1", "2", "3", "4"] * (batch // 4)).map(tf.strings.to_number).repeat()
        x = tf.reshape(v1.data.make_one_shot_iterator(data).get_next(), (batch, 1))
        w = v1.get_variable("w", (1, 1), use_resource=True)

        def step(x):
            optimizer = v1.train.GradientDescentOptimizer(0.1)
            if summed:
                optimizer = v1.tpu.CrossShardOptimizer(optimizer)
            loss = tf.reduce_mean((x @ w) ** 2)
            with tf.control_dependencies([optimizer.minimize(loss)]):
                return tf.identity(loss)

        losses = v1.tpu.replicate(step, [[part] for part in tf.split(x, 2)])
        v1.summary.scalar("loss", losses[0][0])
    tf.io.write_graph(graph.as_graph_def(), folder, "replicated.pb", as_text=False)
    return f"{folder}/replicated.pb"


def not_summed(tf, folder):
    return replicated(tf, folder, summed=False)


# What must be found: the rules, and of unsupported-op and dynamic-shape the ops that they name.
MODELS = {
    "mlp": (mlp, set()),
    "cnn": (cnn, set()),
    "resnet_block": (resnet_block, set()),
    "lstm": (lstm, set()),
    "gru": (gru, set()),
    "transformer": (transformer, set()),
    "embedding": (embedding, set()),
    "while_loop": (while_loop, set()),
    "frozen": (frozen, set()),
    "training_meta": (training_meta, set()),
    "replicated": (replicated, set()),
    "where_unique": (where_unique, {("dynamic-shape", "Where"), ("dynamic-shape", "Unique")}),
    "strings": (strings, {("unsupported-op", "LookupTableFindV2"), ("unsupported-op", "StringLower"), ("unsupported-op", "Placeholder")}),
    "py_function": (py_function, {("unsupported-op", "PyFunc"), ("unsupported-op", "PrintV2"), ("unsupported-op", "StringFormat")}),
    "lstm_for_cpus": (lstm_for_cpus, {("not-constant", "TensorListReserve")}),
    "not_constant": (not_constant, {("not-constant", "Range")}),
    "doubles": (doubles, {("wide-dtype", "double"), ("unknown-shape", "")}),
    "bicubic": (bicubic, {("unsupported-op", "ResizeBicubic"), ("pinned-device", "GPU")}),
    "reference_variables": (reference_variables, {("unsupported-op", "VariableV2"), ("unsupported-op", "Assign"),
                                                  ("unsupported-op", "ApplyGradientDescent")}),
    "not_summed": (not_summed, {("no-all-reduce", "")}),
}


def check(twinrun, path):
    ran = subprocess.run([twinrun, "check", "--graph", path, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if ran.returncode not in (0, 1):
        raise AssertionError(f"exit code {ran.returncode}: {ran.stderr}")
    return ran.returncode, json.loads(ran.stdout)


def differs_in_text(tf, twinrun, path, report):
    """Whether protobuf's text form of a graph is judged otherwise; "" if not."""
    from google.protobuf import text_format
    from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
    kind = report["graph"]["kind"]
    message = {"SavedModel": saved_model_pb2.SavedModel, "MetaGraphDef": meta_graph_pb2.MetaGraphDef,
               "GraphDef": tf.compat.v1.GraphDef}[kind]()
    file = pathlib.Path(path) / "saved_model.pb" if kind == "SavedModel" else pathlib.Path(path)
    message.ParseFromString(file.read_bytes())
    text = file.parent / "graph.pbtxt"
    text.write_text(text_format.MessageToString(message))
    _, again = check(twinrun, text)
    findings = [[(f["id"], f["found"], f["ops"]) for f in r["rules"]] for r in (report, again)]
    return "" if findings[0] == findings[1] else f"its text form is judged otherwise: {findings}"


def refusal_of_xla(tf, folder):
    """What XLA's compiler for CPUs, which has the same front end as a TPU's, refuses of a SavedModel's signature and training step; "" if
    nothing."""
    loaded = tf.saved_model.load(folder)    # owns the variables
    functions = [loaded.signatures["serving_default"]]
    if hasattr(loaded, "train_step"):
        functions.append(loaded.train_step.concrete_functions[0])
    for function in functions:
        inputs, named = tf.nest.map_structure(lambda spec: tf.zeros([size or BATCH for size in spec.shape], spec.dtype),
                                              function.structured_input_signature)
        compiled = tf.function(lambda *a, **k: function(*a, **k), jit_compile=True)
        try:
            compiled(*inputs, **named)
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
            return str(error)
    return ""


def differs_from_xla(tf, folder, expected):
    """Whether XLA compiles a model without errors, and does not compile one with an op that it lacks; "" if so."""
    refusal = refusal_of_xla(tf, folder)
    if not expected and refusal:
        return f"XLA refuses what was found healthy: {refusal}"
    if any(rule == "unsupported-op" for rule, _ in expected) and "unsupported operations" not in refusal:
        return f"XLA does not find an op that it lacks: {refusal or 'it compiles'}"
    return ""


def judge(expected, code, report):
    """What is wrong with a report; "" if nothing is."""
    errors = [f for f in report["rules"] if f["severity"] == "error"]
    for rule, word in expected:
        if not any(f["id"] == rule and word in f["found"] for f in errors):
            return f"{rule} of '{word}' is not found"
    for f in errors:
        if not any(f["id"] == rule and word in f["found"] for rule, word in expected):
            return f"{f['id']} at {f['where']} must not be found: {f['found']}"
        if not f["where"] or not f["fix"]:
            return f"{f['id']} lacks a place or a fix"
    return "" if code == (1 if expected else 0) else f"exit code {code}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--twinrun", required=True)
    parser.add_argument("--keep", help="a folder for the graphs")
    parser.add_argument("names", nargs="*", help="of models; all, if none is given")
    options = parser.parse_args()
    if importlib.util.find_spec("tensorflow") is None:
        python = os.environ.get("TWINRUN_PARITY_TF")
        if python and os.path.abspath(python) != os.path.abspath(sys.executable):
            return subprocess.run([python, *sys.argv]).returncode
        print("SKIPPED: no package tensorflow; TWINRUN_PARITY_TF names an interpreter that has it")
        return 77
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(options.keep or scratch)
        for name in options.names or MODELS:
            make, expected = MODELS[name]
            path = make(tf, str(folder / name))
            code, report = check(options.twinrun, path)
            problem = judge(expected, code, report)
            problem = problem or differs_in_text(tf, options.twinrun, path, report)
            if report["graph"]["kind"] == "SavedModel":
                problem = problem or differs_from_xla(tf, path, expected)
            wrong += bool(problem)
            counts = f"{report['errors']} errors, {report['warnings']} warnings"
            print(f"{name}: {report['graph']['kind']}, {counts}: {problem or 'as expected'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
