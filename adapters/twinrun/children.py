"""Processes that a watched script starts and that train: each records into a file of its own."""
import multiprocessing.process
import os
import sys

from .places import pass_on

# What serves others and does not train. Workers of a DataLoader and of a pool are daemons, too.
_SERVANTS = ("multiprocessing", "concurrent", "torch.utils.data")


def rank():
    """Returns (this process's rank or None, how many there are), as torch.distributed or the launcher says."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    except Exception as e:    # a group that is being made or taken down
        pass_on(e)
    for name, count in (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
                        ("SLURM_PROCID", "SLURM_NTASKS")):
        try:
            return int(os.environ[name]), int(os.environ[count])
        except (KeyError, ValueError):
            continue
    return None, 1


def named(path, word):
    """Returns "trace.rank0.twin" for "trace.twin" and "rank0"."""
    stem, ending = os.path.splitext(path)
    return f"{stem}.{word}{ending}"


class _Child:
    """In the place of a process's `run`; is pickled with it where processes are spawned."""

    def __init__(self, process, options):
        self.process, self.options = process, options

    def __call__(self):
        vars(self.process).pop("run", None)
        if "torch" not in sys.modules:    # it cannot train, and shall not wait for an import
            return type(self.process).run(self.process)
        from .recording import watch
        from .watched import stop
        options = dict(self.options)
        after = stop if options.pop("stop") else None
        with watch(**options, after=after, child=True):
            type(self.process).run(self.process)


class Children:
    """While it is installed, processes that multiprocessing starts are watched with `options`."""

    def __init__(self, options):
        self.options, self.started = options, False

    def install(self):
        base = multiprocessing.process.BaseProcess
        self.original = base.start

        def start(process):
            module = getattr(getattr(process, "_target", None), "__module__", None) or ""
            if not process.daemon and not module.startswith(_SERVANTS) and "run" not in vars(process):
                process.run = _Child(process, self.options)
                self.started = True
            try:
                return self.original(process)
            finally:
                if isinstance(vars(process).get("run"), _Child):
                    del process.run

        base.start = self.patched = start

    def remove(self):
        base = multiprocessing.process.BaseProcess
        if base.start is self.patched:
            base.start = self.original
