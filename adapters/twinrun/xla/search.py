"""Which equations XLA may not join: a bisection over what is compiled together.

    group = Search(len(equations), wrong, deadline).group()      # positions of the equations

A candidate is a set of equations that is compiled as one function, while all others are computed one by one. All of
them together are wrong; each answer takes one compilation.
"""

import time


class Lost(Exception):
    """The search ended without a group; the message says what was seen."""


class Search:
    """wrong(positions) says whether the step is wrong if those equations are compiled together."""

    def __init__(self, count, wrong, deadline):
        self.count, self.deadline, self.compilations, self._wrong = count, deadline, 0, wrong

    def wrong(self, positions):
        if not positions:
            return False
        if time.monotonic() > self.deadline:
            raise Lost(f"the time for the search was over after {self.compilations} compilations")
        self.compilations += 1
        return self._wrong(list(positions))

    def group(self):
        n = self.count
        if not self.wrong(range(n)):
            raise Lost("the step is right when it is compiled from its list of equations, so no group can be searched for")
        # The last equation from which on it is still wrong, then the first up to which it is.
        first, high = 0, n
        while high - first > 1:
            k = (first + high) // 2
            first, high = (k, high) if self.wrong(range(k, n)) else (first, k)
        low, end = first, n
        while end - low > 1:
            k = (low + end) // 2
            low, end = (low, k) if self.wrong(range(first, k)) else (k, end)
        group = list(range(first, end))
        # Pieces in between are left out where it stays wrong, large ones first.
        size = max(1, len(group) // 2)
        while len(group) > 1:
            at = 0
            while at < len(group) and len(group) > 1:
                fewer = group[:at] + group[at + size :]
                if fewer and self.wrong(fewer):
                    group = fewer
                else:
                    at += size
            if size == 1:
                break
            size //= 2
        return group
