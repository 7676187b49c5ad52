"""Import this before JAX: it finds JAX, or ends the test as skipped (exit status 77).

An interpreter without JAX hands over to the one that TWINRUN_JAX_PYTHON or else TWINRUN_PARITY_JAX names; ./dev test installs both.
"""

import os
import pathlib
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
try:
    import jax.numpy  # noqa: F401  `import jax` alone would take any folder of that name
except ImportError:
    other = os.environ.pop("TWINRUN_JAX_PYTHON", "") or os.environ.pop("TWINRUN_PARITY_JAX", "")
    if other:
        os.execv(other, [other, *sys.argv])
    print("SKIP: JAX is not installed (TWINRUN_JAX_PYTHON names an interpreter that has it)")
    sys.exit(77)
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[3] / "adapters"), str(pathlib.Path(__file__).resolve().parents[1])]
