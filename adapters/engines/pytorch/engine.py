"""PyTorch as a subject of twinrun: one device, float32.

    twinrun diagnose digits_cnn --subject 'exec:python3 adapters/engines/pytorch/engine.py' --set tpu.cores=1

Options come before the session folder that twinrun adds; see --help.
"""
import argparse
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1]))
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")    # required for deterministic products on a GPU

from twinrun_engine import Unsupported, serve  # noqa: E402
from twinrun_engine.devices import torch_devices  # noqa: E402

import torch  # noqa: E402
from models import Training, unsupported  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch's kernels (1)")
    parser.add_argument("--device", default="cpu", help="torch.device: cpu, cuda:0 (untested)")
    parser.add_argument("--autocast-bf16", action="store_true",
                        help="run the forward pass under torch.autocast and declare precision \"autocast\"")
    parser.add_argument("--undeclared", action="store_true", help="declare no precision")
    parser.add_argument("folder", nargs="?", help="session folder; twinrun adds it, or sets TWINRUN_SESSION")
    return parser.parse_args()


class Engine:
    def __init__(self, options):
        torch.set_num_threads(options.threads)
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False
        self.device, self.bf16 = options.device, options.autocast_bf16
        declared = None if options.undeclared else "autocast" if self.bf16 else "f32"
        self.hello = {"name": "pytorch", "version": str(torch.__version__), "precision": declared, "max_cores": 1,
                      "settings": f"threads={options.threads} device={self.device}" + (" autocast=bf16" if self.bf16 else ""),
                      "elementary_ulps": 6, "flush": False, "contracts": True, "deterministic": True,
                      "activations": True, "devices": torch_devices(torch, self.device)}

    def autocast(self):
        return torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16, enabled=self.bf16)

    def prepare(self, program):
        if reasons := unsupported(program):
            raise Unsupported(reasons)

    def step(self, program, _step, state, inputs, random):
        if state is not None:
            program.own = Training(program, state, self.device, self.autocast)
        loss, gradients = program.own.step(inputs, random)
        return program.own.state(), {"loss": loss, **{f"{k}.grad": g for k, g in gradients.items()}, **program.own.shown}


if __name__ == "__main__":
    chosen = arguments()
    serve(Engine(chosen), chosen.folder)
