"""A dumped scenario in PyTorch, on one thread: the model and the training of adapters/engines/pytorch.

    /usr/bin/python3 tests/parity/run_torch.py --job digits_mlp.h5 torch.h5 R -
"""
from dump_file import Recorder, adapter, run_jobs, write_result

adapter("pytorch")
import torch  # noqa: E402
from models import Training  # noqa: E402


def run(dump, out, _corner, _wrong):
    torch.set_num_threads(1)
    training, recorder = Training(dump, dump.state()), Recorder(dump.steps)
    for i in range(dump.steps):
        recorder.step(i, *training.step(*dump.step(i)))
    write_result(out, "torch", str(torch.__version__), recorder, training.state())


if __name__ == "__main__":
    run_jobs(run)
