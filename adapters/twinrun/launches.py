"""Launches of Triton's kernels, which no dispatcher sees: each is recorded as a call `triton.KERNEL` without arguments."""
import sys

from .encode import Description
from .places import pass_on


SCHEMA = Description("triton")


class Launches:
    """Hooks of Triton, once a script has imported it. `launched` is called with the kernel's name before each launch."""

    def __init__(self, launched):
        self.launched, self.remove = launched, lambda: None
        self.installed = False

    def install(self):
        knobs = getattr(sys.modules.get("triton.knobs"), "runtime", None)
        owner = knobs or getattr(sys.modules.get("triton.compiler"), "CompiledKernel", None)    # before 3.4
        if self.installed or not hasattr(owner, "launch_enter_hook"):
            return
        self.installed = True
        chain = owner.launch_enter_hook
        if hasattr(chain, "add"):
            chain.add(self._enter)
            self.remove = lambda: chain.remove(self._enter)
            return

        def enter(*args):
            self._enter(*args)
            if chain is not None:
                chain(*args)

        def remove():
            if owner.launch_enter_hook is enter:
                owner.launch_enter_hook = chain

        owner.launch_enter_hook = enter
        self.remove = remove

    def _enter(self, *args):
        found = None
        for each in args:    # a dict that is computed when it is asked for; before 3.0 the arguments, the compiled kernel among them
            try:
                found = each.get()["name"] if hasattr(each, "get") else each.metadata["name"]
                break
            except Exception as e:
                pass_on(e)
                continue
        self.launched(str(found or "unknown"))
