"""What an engine of another framework needs to be a subject of twinrun: docs/reference/engine-protocol.md, in Python.

    from twinrun_engine import serve

    class Mine:
        hello = {"name": "mine", "version": "1", "precision": "f32"}

        def prepare(self, program): ...                              # once per program; raises Unsupported([...]) if it cannot run it
        def step(self, program, step, state, inputs, random):        # one training step
            return new_state, outputs                                # dicts of arrays, by the program's names

    serve(Mine())

Standard library and numpy only, Python 3.11.
"""
from .protocol import Program, Unsupported, Variable, alive, serve
from .safetensors import Damaged, load, save

__all__ = ["Damaged", "Program", "Unsupported", "Variable", "alive", "load", "save", "serve"]
