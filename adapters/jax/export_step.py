"""The door to twinrun.xla.files for scripts that have this folder on their path: see there.

from export_step import export_step
export_step(step, (params, opt_state), batches, "mlp")       # step(params, opt_state, batch) -> params, opt_state, loss
"""

import pathlib
import sys

import jax  # noqa: F401  before adapters is on the path, lest adapters/jax be taken for JAX

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))

from twinrun.xla.files import export_step  # noqa: E402

__all__ = ["export_step"]
