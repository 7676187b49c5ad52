"""twinrun for PyTorch. `twinrun.diagnose` holds a training step against its own whole-batch meaning
(docs/guides/pytorch.md)."""


def __getattr__(name):
    if name == "diagnose":
        from .step_report import diagnose

        return diagnose
    raise AttributeError(f"module 'twinrun' has no attribute '{name}'")
