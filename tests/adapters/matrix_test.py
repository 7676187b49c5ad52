"""Tests some rows of matrix.py: a healthy framework gets the verdict that our own reference gets in its place."""
import unittest

import matrix
from diagnosis import interpreter, twinrun


class Healthy(unittest.TestCase):
    def row(self, scenario, framework, cores):
        if twinrun() is None:
            self.skipTest("twinrun is missing: ./dev build, or set TWINRUN_BINARY")
        if interpreter(framework) is None:
            self.skipTest(f"no {framework}")
        row = matrix.run(scenario, framework, cores)
        self.assertEqual(row["verdict"], row.get("due"), row)
        self.assertRegex(row["subject"], rf"\b{framework} \d+\.\d+", "the framework's version")


for scenario in matrix.QUICK:
    for framework, cores in matrix.CONFIGURATIONS:
        setattr(Healthy, f"test_{scenario}_{framework}_{cores}", lambda self, row=(scenario, framework, cores): self.row(*row))


if __name__ == "__main__":
    unittest.main()
