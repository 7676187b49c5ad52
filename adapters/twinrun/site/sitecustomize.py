"""What the interpreter imports before a watched script: this folder stands first in PYTHONPATH for that moment (../watched.py)."""
import os
import sys


def _begin():
    here = os.path.dirname(os.path.abspath(__file__))
    above = os.path.dirname(os.path.dirname(here))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    if above not in sys.path:    # last, and for the script's child processes, too
        sys.path.append(above)
    from twinrun import watched
    watched.begin()


_begin()
sys.modules.pop("sitecustomize")
import sitecustomize  # noqa: E402,F401  the interpreter's own, if it has one: site.py expects that there is none
