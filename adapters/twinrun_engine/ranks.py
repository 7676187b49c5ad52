"""A script of PyTorch whose replicas are processes of torch.distributed: the first of them is the engine, the others do as it says."""
import copy
import traceback

import numpy as np
import torch.distributed as dist

from .protocol import Unsupported, error_text


class Ranks:
    """What the first process serves. script: the engine of one replica, which every process has."""

    def __init__(self, script):
        self.script, self.programs = script, {}
        self.size, self.rank = dist.get_world_size(), dist.get_rank()
        self.hello = {**script.hello, "max_cores": self.size}

    def prepare(self, program):
        if program.cores not in (1, self.size):
            raise Unsupported([f"no {program.cores} cores: the script has {self.size} processes"])
        self.together(("prepare", program, None))

    def step(self, program, step, state, inputs, random):
        """A program of one core is computed by all processes, from the same batch: the mean of equal gradients is their own."""
        def of(values, rank):
            return None if values is None else {k: np.array(v if program.cores == 1 else v[rank]) for k, v in values.items()}

        found = self.together(*[("step", program.name, (step, of(state, r), of(inputs, r), of(random, r))) for r in range(self.size)])
        if program.cores == 1:
            return found[0]
        return tuple({k: np.stack([result[part][k] for result in found]) for k in found[0][part] if all(k in r[part] for r in found)}
                     for part in (0, 1))

    def together(self, *orders):
        """What each process answers to its order, or to the one that is for all. Raises the first error."""
        own = [None]
        dist.scatter_object_list(own, list(orders) if len(orders) > 1 else list(orders) * self.size, src=0)
        found = [None] * self.size
        dist.gather_object(self.answer(own[0]), found, dst=0)
        errors = list(dict.fromkeys(error for _, error in found if error))
        if errors:
            raise Unsupported(errors)
        return [result for result, _ in found]

    def answer(self, order):
        """(result, None), or (None, what went wrong)."""
        what, program, rest = order
        try:
            if what == "prepare":
                mine = copy.copy(program)
                mine.cores, mine.own = 1, None
                self.script.prepare(mine)
                self.programs[program.name] = mine
                return None, None
            return self.script.step(self.programs[program], *rest), None
        except Exception as error:    # of the script, of any kind
            traceback.print_exc()
            return None, error_text(error)

    def follow(self):
        """The life of the other processes, until the first one says that it is over."""
        while True:
            own = [None]
            dist.scatter_object_list(own, None, src=0)
            if own[0] is None:
                return
            dist.gather_object(self.answer(own[0]), None, dst=0)

    def end(self):
        dist.scatter_object_list([None], [None] * self.size, src=0)
