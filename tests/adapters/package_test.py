"""Tests the Python package with a class that plays twinrun, and its files with damage."""
import functools
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import types
import unittest

import numpy as np

from harness import Failed, Harness, described

from twinrun_engine import Damaged, Program, load, save
from twinrun_engine.devices import jax_devices
from twinrun_engine.model import Counters, flattened_images, missing, pads_of, same_padding, walk
from twinrun_engine.names import Ambiguous, Candidate, Form, Unit, leaves_of, matched
from twinrun_engine.protocol import Refused, Unsupported, Variable

HERE = pathlib.Path(__file__).resolve().parent
SCENARIO = """
[[model.layers]]
kind = "gather"
[[model.layers]]
kind = "scatter"
[loss]
kind = "none"
[optimizer]
kind = "sgd"
[train]
batch = 8
"""


def program(cores=1):
    f, i = np.float32, np.int32
    return {"protocol": 1, "scenario": SCENARIO, "cores": cores, "batch": 8, "algebra": "cpu", "sharding": {"reduction": "mean"},
            "state": described({"w": np.zeros((), f), "count": np.zeros((), i)}, {"w": "parameter", "count": "counter"}),
            "inputs": described({"x": np.zeros(8, f), "learning_rate": np.zeros((), f)}), "random": [],
            "outputs": described({"loss": np.zeros((), f), "w.grad": np.zeros((), f)})}


def fed(cores=1):
    x, rate = np.arange(8, dtype=np.float32), np.float32(0.5)
    return {"x": x if cores == 1 else np.stack([x + r for r in range(cores)]),
            "learning_rate": np.asarray(rate) if cores == 1 else np.full(cores, rate)}


def start(cores=1):
    shape = () if cores == 1 else (cores,)
    return {"w": np.full(shape, 10, np.float32), "count": np.zeros(shape, np.int32)}


def toy(what, limit=60):
    return Harness([sys.executable, HERE / "toy_engine.py", what], limit)


class Verdicts(unittest.TestCase):
    """What `twinrun bisect package` reads of a script that calls twinrun.diagnose."""

    def test_every_report_leaves_a_line(self):
        code = """
import sys, types
sys.path.insert(0, sys.argv[1])
chosen = types.ModuleType("twinrun.step_report")
chosen.diagnose = lambda step: types.SimpleNamespace(verdict=step, headline="all of " + step, path="runs/mine")
sys.modules["twinrun.step_report"] = chosen
import twinrun
for word in ("NOISE", "ENGINE_BUG"):
    assert twinrun.diagnose(word).verdict == word
"""
        with tempfile.TemporaryDirectory() as folder:
            told = pathlib.Path(folder, "told")
            words = [sys.executable, "-c", code, str(HERE.parent.parent / "adapters")]
            subprocess.run(words, check=True, cwd=folder)
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [])
            subprocess.run(words, check=True, cwd=folder, env=dict(os.environ, TWINRUN_VERDICTS=str(told)))
            lines = [json.loads(line) for line in told.read_text().splitlines()]
            path = os.path.join(os.path.realpath(folder), "runs/mine")
            self.assertEqual(lines, [{"verdict": "NOISE", "headline": "all of NOISE", "path": path},
                                     {"verdict": "ENGINE_BUG", "headline": "all of ENGINE_BUG", "path": path}])


class Session(unittest.TestCase):
    def test_a_session(self):
        with toy("right") as h:
            self.assertEqual(h.hello(), {"protocol": 1, "name": "toy", "version": "1", "precision": "f32", "max_cores": 4})
            name = h.prepare(program())
            first = h.step(name, 1, 0, fed(), {}, start())
            self.assertEqual(first["state/w"], np.float32(10 - 0.5 * 3.5))
            self.assertEqual(first["output/loss"].dtype, np.float32)
            second = h.step(name, 1, 1, fed(), {})
            self.assertEqual(second["state/w"], np.float32(10 - 3.5))
            again = h.step(name, 1, 0, fed(), {}, start())
            self.assertEqual({k: v.tobytes() for k, v in again.items()}, {k: v.tobytes() for k, v in first.items()})
            self.assertEqual(h.alive, ["half way"] * 3)
            self.assertEqual(h.end(), 0)
            self.assertIn("printed by a library", h.last_words())
            self.assertIn("printed by a child", h.last_words())

    def test_two_programs_keep_apart(self):
        with toy("right") as h:
            h.hello()
            one, two = h.prepare(program()), h.prepare(program())
            h.step(one, 1, 0, fed(), {}, start())
            h.step(two, 1, 0, fed(), {}, {**start(), "w": np.float32(99)[()] + np.zeros((), np.float32)})
            self.assertEqual(h.step(one, 1, 1, fed(), {})["state/w"], np.float32(6.5))

    def test_replicas(self):
        with toy("right") as h:
            h.hello()
            name = h.prepare(program(4))
            found = h.step(name, 4, 0, fed(4), {}, start(4))
            np.testing.assert_array_equal(found["state/w"], np.float32([8.25, 7.75, 7.25, 6.75]))
            np.testing.assert_array_equal(found["state/count"], [1, 2, 3, 4])
            found = h.step(name, 4, 1, fed(4), {})
            np.testing.assert_array_equal(found["state/count"], [2, 4, 6, 8])
            raw = load(os.path.join(h.folder, "result-1.safetensors"))
            self.assertIn("state/w@3", raw)
            same = {"x": np.stack([np.arange(8, dtype=np.float32)] * 4), "learning_rate": fed(4)["learning_rate"]}
            h.step(name, 4, 2, same, {}, start(4))
            self.assertIn("state/w", load(os.path.join(h.folder, "result-2.safetensors")))

    def failing(self, what, text, limit=60, steps=1):
        with toy(what, 60) as h:
            h.hello()
            name = h.prepare(program())
            for i in range(steps - 1):
                h.step(name, 1, i, fed(), {}, start())
            h.limit = limit    # for the step that fails; a loaded machine takes long to start Python
            with self.assertRaisesRegex(Failed, text):
                h.step(name, 1, steps - 1, fed(), {}, start())
            return h.last_words()

    def test_an_engine_that_raises_says_so_with_its_traceback(self):
        words = self.failing("raises", "AssertionError: something of the author's", steps=2)
        self.assertIn("Traceback", words)
        self.assertIn("toy_engine.py", words)

    def test_what_it_returns_is_checked_all_at_once(self):
        self.failing("wrong", r"state 'w' is float32 \[2, 2\]; expected float32 \[\]; no state 'count' was returned; "
                              "the program has no state 'more'")

    def test_doubles_that_would_be_rounded_are_refused(self):
        self.failing("doubles", "state 'w' is float64")

    def test_an_imported_program_needs_an_engine_that_runs_them(self):
        imported = {**program(), "scenario": "[program]", "step": {"stablehlo": "step.mlir", "arguments": ["state/w"], "results": []}}
        with toy("right") as h:
            h.hello()
            with self.assertRaisesRegex(Failed, "scenarios only, not imported programs"):
                h.prepare(imported)
        p = Program("program-1.json", imported, "module {}")
        self.assertEqual((p.step_text, p.arguments, p.layers), ("module {}", ["state/w"], []))

    def test_garbage(self):
        self.failing("garbage", "no message: b'Epoch 1/10")

    def test_one_that_dies(self):
        self.failing("dies", "ended with status 3")

    def test_one_that_hangs(self):
        self.failing("hangs", "is late", limit=1)

    def test_unsupported_kinds_are_told_together(self):
        with toy("unsupported") as h:
            h.hello()
            with self.assertRaisesRegex(Failed, "^no layer kind 'gather'; no layer kind 'scatter'; no optimizer 'lamb'$"):
                h.prepare(program())

    def test_requests_that_are_wrong(self):
        with toy("right") as h:
            with self.assertRaisesRegex(Failed, "protocol 1, not 2"):
                h.hello(2)
            self.assertIn("error", h.send_raw(b"no json"))
            self.assertIn("error", h.send_raw(b"[1]"))
            self.assertIn("unknown request", h.send_raw(b'{"do":"dance"}')["error"])
            self.assertIn("not a file of the session folder", h.send_raw(b'{"do":"prepare","program":"../x"}')["error"])
            self.assertIn("was not prepared", h.send_raw(b'{"do":"step","program":"p","step":0}')["error"])
            name = h.prepare(program())
            with self.assertRaisesRegex(Failed, "needs a state"):
                h.step(name, 1, 0, fed(), {})
            with self.assertRaisesRegex(Failed, "there is no 'input/learning_rate'"):
                h.step(name, 1, 0, {"x": fed()["x"]}, {}, start())
            with self.assertRaisesRegex(Failed, r"'input/x' is int32 \[8\]; expected float32 \[8\]"):
                h.step(name, 1, 0, {**fed(), "x": np.zeros(8, np.int32)}, {}, start())
            h.step(name, 1, 0, fed(), {}, start())    # and the engine still answers

    def test_without_a_folder(self):
        done = subprocess.run([sys.executable, HERE / "toy_engine.py", "right", "/no/folder"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("/no/folder: is not a folder", done.stderr)


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "a.safetensors")

    def test_round_trip(self):
        arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "scalar": np.array(7, np.int32), "none": np.zeros((0, 3), np.float64),
                  "truth": np.array([True, False]), "odd": np.arange(24, dtype=np.int64).reshape(2, 3, 4).transpose(2, 0, 1),
                  "special": np.array([np.nan, np.inf, -0.0, 1e-45], np.float32), "ü/@0": np.zeros(1, np.uint8)}
        save(self.path, arrays)
        found = load(self.path)
        self.assertEqual(list(found), list(arrays))
        for name, a in arrays.items():
            self.assertEqual((a.dtype, a.shape, a.tobytes()), (found[name].dtype, found[name].shape, found[name].tobytes()), name)
        found["a"][0, 0] = 5    # it is writable
        save(self.path, {})
        self.assertEqual(load(self.path), {})
        with self.assertRaisesRegex(TypeError, "complex128"):
            save(self.path, {"a": np.zeros(1, complex)})

    def test_every_cut_is_seen(self):
        save(self.path, {"a": np.arange(3, dtype=np.float32), "b": np.arange(2, dtype=np.int32)})
        whole = pathlib.Path(self.path).read_bytes()
        for length in range(len(whole)):
            pathlib.Path(self.path).write_bytes(whole[:length])
            with self.assertRaises(Damaged, msg=f"{length} of {len(whole)} bytes"):
                load(self.path)
        pathlib.Path(self.path).write_bytes(whole + b"\0")
        with self.assertRaisesRegex(Damaged, "belong to no array"):
            load(self.path)

    def test_headers_that_lie(self):
        four = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
        for header, text in (
                ({"a": {**four, "dtype": "F33"}}, "unknown dtype"), ({"a": {**four, "shape": [2]}}, "data_offsets"),
                ({"a": {**four, "shape": [-1]}}, "not a shape"), ({"a": {**four, "shape": [1.0]}}, "not a shape"),
                ({"a": {**four, "shape": [True]}}, "not a shape"), ({"a": {**four, "shape": 1}}, "not a shape"),
                ({"a": {**four, "data_offsets": [0, 8], "shape": [2]}}, "cut short"),
                ({"a": {**four, "data_offsets": [1, 5]}}, "data_offsets"), ({"a": {**four, "data_offsets": [0]}}, "data_offsets"),
                ({"a": {**four, "data_offsets": "ab"}}, "data_offsets"), ({"a": four, "b": four}, "data_offsets"),
                ({"a": {"dtype": "F32"}}, "has no"), ({"a": 1}, "has no"), ([], "not a JSON object"),
                ({"a": {**four, "shape": [2**62, 4]}}, "data_offsets"), ({"a": {**four, "dtype": "BOOL", "shape": [4]}}, "boolean")):
            raw = json.dumps(header).encode()
            pathlib.Path(self.path).write_bytes(struct.pack("<Q", len(raw)) + raw + b"\x02\0\0\0")
            with self.assertRaisesRegex(Damaged, text, msg=str(header)):
                load(self.path)
        for raw in (b'{"a":1,"a":1}', b"{", b"\xff", b"[" * 5000):
            pathlib.Path(self.path).write_bytes(struct.pack("<Q", len(raw)) + raw)
            with self.assertRaises(Damaged):
                load(self.path)
        pathlib.Path(self.path).write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
        with self.assertRaises(Damaged):
            load(self.path)


class Parts(unittest.TestCase):
    def test_counters_count_updates(self):
        adam = {"beta1": 0.9, "beta2": 0.999}
        c = Counters(adam, {"adam/beta1_power": np.float32(0.9), "adam/beta2_power": np.float32(0.999)})
        powers = np.float32([0.9, 0.999])
        for t in range(3000):
            self.assertEqual(c.updates(), t)
            self.assertAlmostEqual(c.adam_rate(1 - 0.9 ** (t + 1), 1 - 0.999 ** (t + 1)), 1, delta=1e-4)
            c.advance()
            powers *= np.float32([0.9, 0.999])
            self.assertEqual([float(v) for v in c.values.values()], list(map(float, powers)))
        self.assertEqual(Counters({}, {"adafactor/step": np.float32(5)}).updates(), 4)
        self.assertEqual(Counters({}, {}).updates(), 0)
        self.assertGreater(Counters(adam, {"adam/beta1_power": np.float32(0)}).updates(), 10**6)

    def test_counters_of_replicas(self):
        c = Counters({"beta1": 0.5}, {"adamax/beta1_power": np.full(4, 0.25, np.float32)})
        self.assertEqual(c.updates(), 1)
        c.advance()
        np.testing.assert_array_equal(c.values["adamax/beta1_power"], np.full(4, 0.125, np.float32))
        self.assertEqual(c.values["adamax/beta1_power"].dtype, np.float32)

    def test_what_layers_give_may_be_left_out(self):
        f = np.float32
        asked = Program("program-1.json", {**program(2), "activations": described({"conv1": np.zeros(3, f), "conv1.grad": np.zeros(3, f)})})
        due = {"loss": f(1), "w.grad": f(2)}
        write = functools.partial(asked.to_write, "output", asked.outputs, optional=asked.activations)
        self.assertEqual(set(write(due)), {"output/loss", "output/w.grad"})
        found = write({**due, "conv1": np.float32([[1, 2, 3], [1, 2, 4]])})
        self.assertEqual(set(found) - {"output/loss", "output/w.grad"}, {"output/conv1@0", "output/conv1@1"})
        with self.assertRaisesRegex(Refused, "no output 'conv.grad'; is it 'conv1.grad'."):
            write({**due, "conv.grad": np.zeros(3, f)})
        with self.assertRaisesRegex(Refused, r"output 'conv1' is float32 \[4\]; expected float32 \[3\]"):
            write({**due, "conv1": np.zeros(4, f)})
        self.assertEqual(Program("program-1.json", program()).activations, [])

    def test_walk_and_padding(self):
        layers = [{"kind": "twice", "name": "a"}, {"kind": "sum", "name": "b", "input": ["a", "data"]}]
        table = {"twice": lambda c, layer, x: 2 * x, "sum": lambda c, layer, *xs: sum(xs)}
        self.assertEqual(walk(layers, table, None, 5), 15)
        with self.assertRaisesRegex(Unsupported, "layer kind 'sum' is not supported"):
            walk(layers, {"twice": table["twice"]}, None, 5)
        seen, context = [], types.SimpleNamespace(show=lambda name, value: seen.append((name, value)) or value + 1)
        self.assertEqual(walk(layers, table, context, 5), 17)
        self.assertEqual(seen, [("a", 10), ("b", 16)])
        self.assertEqual([same_padding(7, 3, 2), same_padding(8, 3, 2), same_padding(5, 3, 1, 2)], [(1, 1), (0, 1), (2, 2)])
        layer = {"kernel": 3, "stride": 2, "padding": "same"}
        self.assertEqual([pads_of(layer | {"padding": p}, (8, 7)) for p in ("same", "valid", "2")],
                         [((0, 1), (1, 1)), ((0, 0), (0, 0)), ((2, 2), (2, 2))])

    def test_images_that_are_flattened(self):
        def layer(kind, name, **keys):
            return {"kind": kind, "name": name, **keys}

        window = {"stride": 0, "padding": "same"}
        layers = [layer("conv2d", "conv1", filters=8, kernel=3, **window), layer("max_pool", "pool", window=4, **window),
                  layer("flatten", "flat"), layer("dropout", "dropout1"), layer("dense", "dense1", units=64),
                  layer("dense", "dense2", units=10)]
        self.assertEqual(flattened_images(layers, (28, 28, 1)), {"dropout1": (7, 7, 8), "dense1": (7, 7, 8)})
        layers[1] |= {"stride": 3, "padding": "valid"}
        self.assertEqual(flattened_images(layers, (29, 28, 3))["dense1"], (9, 9, 8))
        layers[0] |= {"kernel": 5, "padding": "1"}    # cells on every side, as PyTorch pads
        self.assertEqual(flattened_images(layers, (28, 28, 1))["dense1"], (8, 8, 8))
        self.assertEqual(flattened_images(layers[2:], (28, 28, 1)), {})    # one channel: both orders are the same
        self.assertEqual(flattened_images(layers[2:], (2, 2, 3))["dense1"], (2, 2, 3))
        self.assertEqual(flattened_images([layer("dense", "wide", units=3), layer("odd", "odd"), *layers[2:]], (5, 4)), {})

    def test_names_that_are_told(self):
        def variables(**shapes):
            return [Variable(name.replace("_", "/"), np.dtype(np.float32), shape, "parameter") for name, shape in shapes.items()]

        def unit(path, **shapes):
            return Unit(path, [Candidate(f"{path}.{n}", n, [Form(leaves_of(n, len(s)), s)]) for n, s in shapes.items()], path)

        due = variables(a_kernel=(3, 4), a_bias=(4,), b_kernel=(4, 4), b_bias=(4,), c_kernel=(4, 4), c_bias=(4,))
        one, two, three = (unit(n, weight=s, bias=(4,)) for n, s in (("one", (3, 4)), ("two", (4, 4)), ("three", (4, 4))))
        found, close = matched(due, [one, two, three])
        self.assertEqual({name: candidate.path for name, (candidate, _) in found.items()}["c/bias"], "three.bias")
        self.assertEqual(close, [["b", "c"]])
        found, close = matched(due, [two, one, three])    # not in the program's order, but only one unit fits `a`
        self.assertEqual((found["a/kernel"][0].path, found["b/kernel"][0].path, close), ("one.weight", "two.weight", [["b", "c"]]))
        with self.assertRaisesRegex(Ambiguous, r"'b' .kernel .4, 4., bias .4.. may be two or three or four; .*draft to correct: "
                                               '{"a/kernel": one.weight, "a/bias": one.bias, "b/kernel": two.weight'):
            matched(due, [one, two, three, unit("four", weight=(4, 4), bias=(4,))])
        with self.assertRaisesRegex(Ambiguous, "no tensors with the shapes of 'a'.*Does the scenario describe the script's model"):
            matched(due, [unit("one", weight=(5, 4), bias=(4,)), two, three])
        heads = [Variable(f"x/{w}/kernel", np.dtype(np.float32), (4, 4)) for w in ("query", "key")]
        found, _ = matched(heads, [unit("k_proj", weight=(4, 4)), unit("q_proj", weight=(4, 4))])
        self.assertEqual(found["x/query/kernel"][0].path, "q_proj.weight")

    def test_a_sharding_in_other_words(self):
        p = Program("program-1.json", program(2))
        tables = ({"gather", "scatter"}, {p.loss["kind"]}, {"sgd"})
        self.assertEqual(missing(p, *tables), [])
        p.sharding["batchwise"] = "global"
        self.assertEqual(missing(p, *tables), ["batchwise 'global' is not supported"])

    def test_a_program(self):
        p = Program("program-1.json", program(2))
        self.assertEqual((p.cores, p.batch, p.optimizer["kind"], [layer["kind"] for layer in p.layers]),
                         (2, 8, "sgd", ["gather", "scatter"]))
        self.assertEqual(p.of_role("counter", {"w": 1, "count": 2}), {"count": 2})
        with self.assertRaisesRegex(Refused, "unknown dtype"):
            Program("program-1.json", {**program(), "state": [{"name": "a", "dtype": "X", "shape": []}]})


class Accelerator:
    """A stand-in for a device of JAX."""
    def __init__(self, name, memory=None, fails=None):
        self.name, self.memory, self.fails, self.device_kind = name, memory, fails, "ACC v1"

    def __str__(self):
        return self.name

    def memory_stats(self):
        if self.memory is None:
            raise RuntimeError("not implemented")
        return self.memory


def put(value, device):
    if isinstance(device.fails, Exception):
        raise device.fails
    return value if device.fails is None else device.fails


class Devices(unittest.TestCase):
    def test_what_is_said_of_each(self):
        devices = [Accelerator("ACC_0", {"bytes_limit": 800, "bytes_in_use": 3}), Accelerator("ACC_1", fails=RuntimeError("held by 17\nstack")),
                   Accelerator("ACC_2", fails=7.0), Accelerator("ACC_3", fails=ValueError())]
        found = jax_devices(types.SimpleNamespace(devices=lambda: devices, device_put=put))
        self.assertEqual([d["name"] for d in found], ["ACC_0", "ACC_1", "ACC_2", "ACC_3"])
        self.assertEqual((found[0]["memory"], found[0]["used"], found[0]["trouble"], found[0]["kind"]), (800, 3, "", "ACC v1"))
        self.assertEqual((found[1]["memory"], found[1]["trouble"]), (None, "held by 17"))
        self.assertIn("another number", found[2]["trouble"])
        self.assertEqual(found[3]["trouble"], "ValueError")


if __name__ == "__main__":
    unittest.main()
