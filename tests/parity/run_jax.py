"""A dumped scenario in JAX: the model and the training of adapters/engines/jax.

    build/parity/venv-jax/bin/python tests/parity/run_jax.py --job digits_mlp.h5 jax.h5 R -    # corner R, no mistake

Corner S trains on as many host devices as the scenario has cores. The last word may name a deliberate mistake (wrong_jax.py): the
suite must see it.
"""
import os

from dump_file import Recorder, adapter, run_jobs, write_result

os.environ["JAX_PLATFORMS"] = "cpu"
adapter("jax")
import jax  # noqa: E402
import models  # noqa: E402
import optax  # noqa: E402


def run(dump, out, _corner, wrong):
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={dump.cores}"
    if wrong:
        import wrong_jax
        wrong_jax.apply(wrong, vars(models))
    training, recorder = models.Training(dump, dump.state()), Recorder(dump.steps)
    for i in range(dump.steps):
        loss, gradients = training.step(*dump.step(i))
        recorder.step(i, loss, dump.first_core(gradients))
    version = f"{jax.__version__}, optax {optax.__version__}"
    write_result(out, "jax", version, recorder, dump.first_core(training.state()))


if __name__ == "__main__":
    run_jobs(run)
