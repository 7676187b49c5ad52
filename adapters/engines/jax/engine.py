"""JAX and optax as a subject of twinrun; several cores are as many devices of the host, or of a TPU.

    twinrun diagnose digits_cnn --subject 'exec:python3 adapters/engines/jax/engine.py'

Options come before the session folder that twinrun adds; see --help.
"""
import argparse
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1]))

from twinrun_engine import Unsupported, alive, serve  # noqa: E402
from twinrun_engine.devices import jax_devices  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, default=8, help="number of devices into which the host's CPU is divided (8)")
    parser.add_argument("--platform", default="cpu", help="cpu, or another value of JAX_PLATFORMS: tpu, cuda (untested)")
    parser.add_argument("--precision", choices=("default", "high", "highest"), default="highest",
                        help="precision of matrix products; on a CPU they are always float32")
    parser.add_argument("folder", nargs="?", help="session folder; twinrun adds it, or sets TWINRUN_SESSION")
    return parser.parse_args()


class Engine:
    def __init__(self, options):
        # JAX reads these when it first looks for devices, once for all programs of this process.
        os.environ["JAX_PLATFORMS"] = options.platform
        if options.platform == "cpu":
            os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "")
                                       + f" --xla_force_host_platform_device_count={options.cores}").strip()
        import jax
        import models
        import optax
        import programs
        self.models, self.programs = models, programs
        jax.config.update("jax_default_matmul_precision", options.precision)
        on_cpu = options.platform == "cpu"
        self.hello = {"name": "jax", "version": jax.__version__, "precision": "f32" if on_cpu else options.precision,
                      "max_cores": len(jax.devices()), "settings": f"platform={options.platform} optax={optax.__version__}",
                      "elementary_ulps": 6, "flush": not on_cpu, "contracts": True, "deterministic": on_cpu, "activations": True,
                      "programs": True, "devices": jax_devices(jax)}

    def prepare(self, program):
        if program.step_text is None and (reasons := self.models.unsupported(program)):
            raise Unsupported(reasons)

    def step(self, program, _step, state, inputs, random):
        if program.step_text is not None:
            return self.imported_step(program, state, inputs, random)
        if program.own is None:
            alive("compiling")
            program.own = self.models.Training(program, state)
        elif state is not None:
            program.own.load(state)
        loss, gradients = program.own.step(inputs, random)
        return program.own.state(), {"loss": loss, **{f"{k}.grad": g for k, g in gradients.items()}, **program.own.shown}

    def imported_step(self, program, state, inputs, random):
        if program.own is None:
            alive("compiling")
            program.own = self.programs.ImportedStep(program)
        if state is not None:
            program.own.load(state)
        outputs = program.own.step(inputs, random)
        return program.own.state(), outputs


if __name__ == "__main__":
    chosen = arguments()
    serve(Engine(chosen), chosen.folder)
