"""Import this before PyTorch: where TWINRUN_TORCH_PYTHON names another interpreter, which ./dev test does, that one takes over."""

import os
import sys

other = os.environ.pop("TWINRUN_TORCH_PYTHON", "")
if other and other != sys.executable:
    os.execv(other, [other, *sys.argv])
