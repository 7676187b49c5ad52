"""What a number of a flat program is for.

flow = Flow(program)
flow.scaling(op)                           # 8.0 if it divides its input by 8, which is written in the program
"""

import numpy as np

SAME_VALUE = {"pvary", "pbroadcast", "pcast", "convert_element_type", "reshape", "broadcast_in_dim", "squeeze", "copy",
              "expand_dims", "transpose"}  # fmt: skip


class Flow:
    def __init__(self, program):
        self.program = program

    def upstream(self, numbers):
        """Returns the indices of the ops that values are computed by."""
        seen, todo = set(), list(numbers)
        while todo:
            op = self.program.of.get(todo.pop())
            if op is not None and op.index not in seen:
                seen.add(op.index)
                todo += op.inputs
        return seen

    def scalar(self, number):
        """Returns the value of a number that is written in the program or follows from sizes, or None."""
        while number not in self.program.constants:
            op = self.program.of.get(number)
            if op is None or op.name not in SAME_VALUE:
                return None
            number = op.inputs[0]
        value = np.asarray(self.program.constants[number])
        return float(value) if value.size == 1 and value.dtype.kind in "fiu" else None

    def scaled_by(self, op):
        """Returns (which input of an op is a number that it divides or multiplies by, that number), or None."""
        if op.name == "div":
            c = self.scalar(op.inputs[1])
            return None if c is None else (1, c)
        if op.name == "mul":  # a derivative begins with 1 * c
            known = [(i, c) for i, c in enumerate(map(self.scalar, op.inputs)) if c]
            return next((k for k in known if k[1] != 1), known[0] if known else None)
        return None

    def scaling(self, op):
        """Returns the number by which an op divides its input, or None."""
        found = self.scaled_by(op)
        return None if found is None else found[1] if op.name == "div" else 1 / found[1]
