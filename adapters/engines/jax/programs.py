"""An imported program on JAX: the StableHLO text that twinrun sends, compiled by XLA as jit compiles a function."""
import jax
import numpy as np


class ImportedStep:
    """The step of a program, compiled for one device. Between steps its state stays on the device."""

    def __init__(self, program):
        self.program, self.device = program, jax.devices()[0]
        client = self.device.client
        if hasattr(client, "compile_and_load"):
            self.compiled = client.compile_and_load(program.step_text, [self.device])
        else:    # before JAX 0.6
            self.compiled = client.compile(program.step_text)
        self.arrays = {}    # by the names of arguments and results: "state/w1", "input/x", "output/loss"

    def load(self, state):
        self.arrays = {f"state/{name}": jax.device_put(value, self.device) for name, value in state.items()}

    def step(self, inputs, random):
        for part, values in (("input", inputs), ("random", random)):
            self.arrays |= {f"{part}/{name}": jax.device_put(value, self.device) for name, value in values.items()}
        results = self.compiled.execute_sharded([self.arrays[name] for name in self.program.arguments])
        values = [shards[0] for shards in results.disassemble_into_single_device_arrays()]
        self.arrays |= dict(zip(self.program.results, values, strict=True))
        return {v.name: np.asarray(self.arrays[f"output/{v.name}"]) for v in self.program.outputs}

    def state(self):
        return {v.name: np.asarray(self.arrays[f"state/{v.name}"]) for v in self.program.state}
