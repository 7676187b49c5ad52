"""Records the calls of a PyTorch training step into a file for `twinrun judge` (docs/reference/trace-format.md).

    import twinrun
    with twinrun.watch("trace.twin", steps=2):
        train()

    python -m twinrun watch -o trace.twin --steps 2 train.py --epochs 1
"""
from .watch import watch

__all__ = ["watch"]
