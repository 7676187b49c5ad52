"""A PyTorch script whose replicas are processes of torch.distributed: the first one is the engine and sends orders to the others."""
import copy
import traceback

import numpy as np
import torch.distributed as dist

from .protocol import Unsupported, error_text


class Ranks:
    """The engine that the first process serves. script: the engine of one replica, which every process has."""

    def __init__(self, script):
        self.script, self.programs = script, {}
        self.size, self.rank = dist.get_world_size(), dist.get_rank()
        self.hello = {**script.hello, "max_cores": self.size}

    def prepare(self, program):
        if program.cores not in (1, self.size):
            raise Unsupported([f"{program.cores} cores are not supported: the script has {self.size} processes"])
        self.together(("prepare", program, None))

    def step(self, program, step, state, inputs, random):
        """All processes compute a program of one core, from the same batch, because the mean of equal gradients is the gradient itself."""
        def of(values, rank):
            return None if values is None else {k: np.array(v if program.cores == 1 else v[rank]) for k, v in values.items()}

        found = self.together(*[("step", program.name, (step, of(state, r), of(inputs, r), of(random, r))) for r in range(self.size)])
        if program.cores == 1:
            return found[0]
        return tuple({k: np.stack([result[part][k] for result in found]) for k in found[0][part] if all(k in r[part] for r in found)}
                     for part in (0, 1))

    def together(self, *orders):
        """Returns the answer of each process to its own order, or to the one order for all. Raises the errors that occurred."""
        own = [None]
        dist.scatter_object_list(own, list(orders) if len(orders) > 1 else list(orders) * self.size, src=0)
        found = [None] * self.size
        dist.gather_object(self.answer(own[0]), found, dst=0)
        errors = list(dict.fromkeys(error for _, error in found if error))
        if errors:
            raise Unsupported(errors)
        return [result for result, _ in found]

    def answer(self, order):
        """Returns (result, None), or (None, error text)."""
        what, program, rest = order
        try:
            if what == "prepare":
                mine = copy.copy(program)
                mine.cores, mine.own = 1, None
                self.script.prepare(mine)
                self.programs[program.name] = mine
                return None, None
            return self.script.step(self.programs[program], *rest), None
        except Exception as error:    # the script may raise anything
            traceback.print_exc()
            return None, error_text(error)

    def follow(self):
        """Answers orders in the other processes, until the first process ends the session."""
        while True:
            own = [None]
            dist.scatter_object_list(own, None, src=0)
            if own[0] is None:
                return
            dist.gather_object(self.answer(own[0]), None, dst=0)

    def end(self):
        dist.scatter_object_list([None], [None] * self.size, src=0)
