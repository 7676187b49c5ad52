"""The door to twinrun.xla.files for scripts that have this folder on their path: see there.

from export_step import export_step
export_step(step, (params, opt_state), batches, "mlp")       # step(params, opt_state, batch) -> params, opt_state, loss
"""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))

from twinrun.xla.files import export_step  # noqa: E402

__all__ = ["export_step"]
