"""The messages and bytes that a step over ranks needs, derived from the program's text. docs/developers/processors.md explains the formulas.

    step = Step(subprocess.check_output([twinrun, "inspect", "digits_cnn", "--ops"], text=True))
    step.needs(ranks=4)     # (messages, bytes), sent by all ranks together
"""

import re

SIZES = {"f32": 4, "i32": 4, "bf16": 2, "f64": 8, "pred": 1}
# Inputs that all cores share.
SHARED_INPUTS = ("step", "learning_rate")
ALIGNED = 64  # bytes of a gathered value are rounded up to this (backends/core/split_cores.cc)


def elements_of(dims):
    count = 1
    for dim in filter(None, dims.split(",")):
        count *= int(dim)
    return count


class Step:
    def __init__(self, text):
        self.cores = int(re.search(r"cores=(\d+)", text).group(1))
        ops = [
            (int(id), kind, [int(o) for o in re.findall(r"%(\d+)", operands)], dtype, elements_of(dims), name)
            for id, kind, operands, dtype, dims, name in re.findall(
                r"^%(\d+) = (\w+)\((.*?)\).*? : (\w+)\[([\d,]*)\]  # \w+ (\S+)$", text, re.MULTILINE
            )
        ]
        states = {int(a): int(b) for a, b in re.findall(r"^state .* %(\d+) -> %(\d+)$", text, re.MULTILINE)}
        outputs = [int(o) for o in re.findall(r"^output \S+ %(\d+)$", text, re.MULTILINE)]
        # Which values are one object on all cores. A state is, if what replaces it is; so begin with all states and take away.
        shared_states = set(states)
        while True:
            shared = {}
            for id, kind, operands, _, _, name in ops:
                if kind == "parameter":
                    shared[id] = id in shared_states or (id not in states and name in SHARED_INPUTS)
                else:
                    shared[id] = kind == "all_reduce" or all(shared[o] for o in operands)
            left = {id for id in shared_states if shared[states[id]]}
            if left == shared_states:
                break
            shared_states = left
        size = {id: (SIZES[dtype], elements) for id, _, _, dtype, elements, _ in ops}
        # (bytes of an element, elements) of every all-reduce whose operands differ, and bytes of one core's other results.
        self.sums = [size[id] for id, kind, operands, *_ in ops if kind == "all_reduce" and not shared[operands[0]]]
        results = {id for id in [*outputs, *states.values()] if not shared[id]}
        self.results = sum(-(-(size[id][0] * size[id][1]) // ALIGNED) * ALIGNED for id in results)

    def block(self, rank, ranks):
        return rank * self.cores // ranks, (rank + 1) * self.cores // ranks

    def passes(self, elements, ranks):
        """Elements of each message of partial sums: rank after rank, phase after phase of the ring."""
        for rank in range(ranks):
            for phase in range(1, ranks + 1):
                # The chunks of another rank's cores; at last without the first of them, which is finished already.
                first, last = self.block((rank - phase + 1) % ranks, ranks)
                chunks = [(core + self.cores - 1) % self.cores for core in range(first, last)]
                yield sum(
                    (c + 1) * elements // self.cores - c * elements // self.cores for c in chunks[1 if phase == ranks else 0 :]
                )

    def needs(self, ranks):
        gathers = len(self.sums) + 1 + (1 if self.results else 0)
        messages, sent = gathers * ranks * (ranks - 1), ranks * (ranks - 1)  # a byte each: whether to stop
        sent += (ranks - 1) * self.cores * self.results
        for bytes_each, elements in self.sums:
            passed = list(self.passes(elements, ranks))
            messages += sum(1 for e in passed if e)
            sent += bytes_each * (sum(passed) + (ranks - 1) * elements)
        return messages, sent
