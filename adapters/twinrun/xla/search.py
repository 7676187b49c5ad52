"""Which equations XLA may not join: a bisection over barriers.

    group = Search(program, wrong, ...).group()      # the equations whose results are free, and those that use them

A *cut* is a barrier on an equation's results; with several devices it also gives every device the whole result. With
all cuts the step is right, with none it is wrong; each answer takes one compilation.
"""

import time


class Lost(Exception):
    """The search ended without a group; the message says what was seen."""


class Search:
    """right(cut) says whether the step is right if `cut` (a predicate on numbers of equations, -1 for the arguments)
    holds for the equations whose results are cut."""

    def __init__(self, program, right, deadline):
        self.equations = {e.uid: e for e in program.everything()}
        self.order = [-1, *(e.uid for e in program.everything())]
        self.deadline, self.compilations, self._right = deadline, 0, right

    def right(self, cut):
        if time.monotonic() > self.deadline:
            raise Lost(f"the time for the search was over after {self.compilations} compilations")
        self.compilations += 1
        return self._right(set(cut))

    def group(self):
        """Returns (free, users): equations whose results may not be joined with the equations that use them."""
        order, n = self.order, len(self.order)
        if self.right(()):
            raise Lost("the step is right when it is compiled from its list of equations, so no group can be searched for")
        if not self.right(order):
            raise Lost("the step stays wrong with a barrier after every equation")
        # The smallest k for which cuts behind the first k make it right: the last of them has to be cut.
        low, high = 0, n
        while high - low > 1:
            k = (low + high) // 2
            low, high = (low, k) if self.right(order[:k]) else (k, high)
        first = low
        # From the other side: the smallest number of free results from `first` on that leaves the step wrong.
        low, high = 0, n - first
        while high - low > 1:
            k = (low + high) // 2
            low, high = (low, k) if not self.right(order[:first] + order[first + k :]) else (k, high)
        free = order[first : first + high]
        # Whole halves, then single equations in between are cut again where the step stays wrong.
        size = max(1, len(free) // 2)
        while True:
            at = 1 if size < len(free) else 0
            while at < len(free) and len(free) > 1:
                fewer = free[:at] + free[at + size :]
                if fewer and not self.right(set(order) - set(fewer)):
                    free = fewer
                else:
                    at += size
            if size == 1:
                break
            size //= 2
        return self.of(free)

    def of(self, free):
        names = {o for u in free if u >= 0 for o in self.equations[u].outputs}
        users = [e for u, e in self.equations.items() if u not in free and names & set(e.operands())]
        return [self.equations[u] for u in free if u >= 0], users
