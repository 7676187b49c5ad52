"""TensorFlow as a subject of twinrun: MirroredStrategy over logical CPUs, or TPUStrategy.

    twinrun diagnose digits_cnn --subject 'exec:python3 adapters/engines/tensorflow/engine.py'
    TWINRUN_TPU=local twinrun diagnose ..    # this machine's TPU, or one by name or address (not yet tested on a TPU)

Options come before the session folder that twinrun adds; see --help.
"""
import argparse
import os
import pathlib
import socket
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1]))

from twinrun_engine import Unsupported, alive, serve  # noqa: E402
from twinrun_engine.devices import tensorflow_devices  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, default=8, help="number of logical CPUs (8)")
    parser.add_argument("--threads", type=int, default=1, help="threads of TensorFlow's kernels (1)")
    parser.add_argument("folder", nargs="?", help="session folder; twinrun adds it, or sets TWINRUN_SESSION")
    return parser.parse_args()


class Tpu:
    """Strategies over the first cores of a TPU. Tested only where no TPU answers; the engine then exits with the reason."""

    def __init__(self, tf, address):
        self.tf = tf
        try:
            self.reach(address)
            self.resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
            if address != "local":
                tf.config.experimental_connect_to_cluster(self.resolver)
            self.topology = tf.tpu.experimental.initialize_tpu_system(self.resolver)
        except Exception as error:    # an error of TensorFlow, of the network or of the cloud's API
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            sys.exit(f"no TPU answers at TWINRUN_TPU={address}: {text}. Use \"local\" for this machine's TPU, a name, or "
                     "grpc://HOST:PORT; without the variable the engine runs on logical CPUs")
        self.cores = len(tf.config.list_logical_devices("TPU"))

    def reach(self, address):
        """Checks the address first, because TensorFlow itself waits for ever for a worker that does not exist."""
        if address == "local" and not self.tf.config.list_physical_devices("TPU"):
            raise ValueError(f"TensorFlow {self.tf.__version__} finds no TPU here (its TPU build is the package tensorflow-tpu)")
        if address.startswith("grpc://"):
            host, _, port = address.removeprefix("grpc://").rpartition(":")
            socket.create_connection((host, int(port)), timeout=20).close()

    def strategy(self, cores):
        where = self.tf.tpu.experimental.DeviceAssignment.build(self.topology, num_replicas=cores)
        return self.tf.distribute.TPUStrategy(self.resolver, experimental_device_assignment=where)


class Engine:
    def __init__(self, options):
        import models
        tf, address = models.tf, os.environ.get("TWINRUN_TPU")
        self.models, self.strategies = models, {}
        tf.config.threading.set_intra_op_parallelism_threads(options.threads)
        tf.config.threading.set_inter_op_parallelism_threads(options.threads)
        if address:
            tpu = Tpu(tf, address)
            self.cores, self.make = tpu.cores, tpu.strategy
        else:
            tf.config.experimental.enable_op_determinism()
            models.devices(options.cores)
            self.cores, self.make = options.cores, models.cpus
        self.hello = {"name": "tensorflow", "version": tf.__version__, "precision": "default" if address else "f32",
                      "max_cores": self.cores, "settings": f"tpu={address}" if address else f"cpu threads={options.threads}",
                      "elementary_ulps": 6, "flush": bool(address), "contracts": True, "deterministic": not address, "activations": True,
                      "devices": tensorflow_devices(tf)}

    def prepare(self, program):
        reasons = self.models.unsupported(program)
        if program.cores > self.cores:
            reasons.append(f"{program.cores} cores are not supported: there are {self.cores}")
        if reasons:
            raise Unsupported(reasons)

    def step(self, program, _step, state, inputs, random):
        if program.own is None:
            alive("compiling")
            if program.cores not in self.strategies:    # programs may share a strategy
                self.strategies[program.cores] = self.make(program.cores)
            program.own = self.models.Training(program, state, self.strategies[program.cores])
        elif state is not None:
            program.own.load(state)
        loss, gradients = program.own.step(inputs, random)
        return program.own.state(), {"loss": loss, **{f"{k}.grad": g for k, g in gradients.items()}, **program.own.shown}


if __name__ == "__main__":
    chosen = arguments()
    serve(Engine(chosen), chosen.folder)
