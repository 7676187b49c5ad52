"""A dumped scenario in TensorFlow: the model and the training of adapters/engines/tensorflow.

    build/parity/venv-tf/bin/python tests/parity/run_tf.py --job digits_mlp.h5 tf.h5 R -

Corner S is MirroredStrategy on as many logical CPUs as the scenario has cores.
"""
from dump_file import Recorder, adapter, run_jobs, write_result

adapter("tensorflow")
import models  # noqa: E402
import tensorflow as tf  # noqa: E402


def run(dump, out, _corner, _wrong):
    models.devices(dump.cores)
    training = models.Training(dump, dump.state(), models.cpus(dump.cores))
    recorder = Recorder(dump.steps)
    for i in range(dump.steps):
        loss, gradients = training.step(*dump.step(i))
        recorder.step(i, loss, dump.first_core(gradients))
    write_result(out, "tf", tf.__version__, recorder, dump.first_core(training.state()))


if __name__ == "__main__":
    run_jobs(run)
