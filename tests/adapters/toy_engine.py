"""Engines for tests: the first argument names what goes wrong."""
import os
import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "adapters"))

import numpy as np  # noqa: E402
from twinrun_engine import Unsupported, alive, serve  # noqa: E402

WHAT = sys.argv[1]


class Toy:
    """w' = w - learning_rate * g, where g is the mean of x on each replica; each replica has its own count."""
    hello = {"name": "toy", "version": "1", "precision": "f32", "max_cores": 4}

    def prepare(self, program):
        print("printed by a library", flush=True)
        os.system("echo printed by a child")
        if WHAT == "unsupported":
            raise Unsupported([f"no layer kind '{layer['kind']}'" for layer in program.layers] + ["no optimizer 'lamb'"])

    def step(self, program, step, state, inputs, random):
        assert (step == 0) or WHAT != "raises", "something of the author's"
        if WHAT == "garbage":
            os.write(self.stdout(), b"Epoch 1/10: loss 0.3\n")
        if WHAT == "dies":
            os._exit(3)
        if WHAT == "hangs":
            time.sleep(1000)
        if state is not None:
            program.own = state
        alive("half way")
        w, count, x = program.own["w"], program.own["count"], inputs["x"]
        g = x.mean(-1, dtype=np.float32)
        if WHAT == "doubles":
            g = g + np.float64(1e-12)
        program.own = {"w": w - inputs["learning_rate"] * g, "count": count + np.arange(1, program.cores + 1).reshape(count.shape)}
        program.own["count"] = program.own["count"].astype(np.int32)
        outputs = {"loss": float(g) if program.cores == 1 else g, "w.grad": g}
        new = dict(program.own)
        if WHAT == "wrong":
            new["w"], new["more"] = np.zeros((2, 2), np.float32), w
            del new["count"]
        return new, outputs

    def stdout(self):
        """Writes to the original standard output, bypassing the package."""
        import twinrun_engine.protocol as protocol
        return protocol.channel.stream.fileno()


serve(Toy())
