"""For ctest: run.py package, watch, scripts, frameworks, matrix, planted or export, then classes of tests, if not all of them. Exit status 77,
with the reason, if what it needs is not installed."""
import importlib.util
import pathlib
import sys
import unittest

NOTHING = 77
MORE = {"watch": ["loops_test", "surroundings_test"]}


def main():
    here, which = pathlib.Path(__file__).resolve().parent, sys.argv[1]
    if which == "watch":
        import with_torch  # noqa: F401
    absent = [name for name in ("numpy", *(["h5py"] if which == "frameworks" else [])) if importlib.util.find_spec(name) is None]
    if absent:
        print(f"SKIPPED: {sys.executable} has no {' and no '.join(absent)}")
        return NOTHING
    sys.path[:0] = [str(here), str(here / which)]    # watch has a folder of its own
    names = [f"{which}_test.{c}" for c in sys.argv[2:]] or [f"{which}_test", *MORE.get(which, ())]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromNames(names))
    if not result.wasSuccessful():
        return 1
    if result.testsRun == len(result.skipped) or result.testsRun == 0:
        print("SKIPPED: " + "; ".join(dict.fromkeys(reason for _, reason in result.skipped)))
        return NOTHING
    return 0


if __name__ == "__main__":
    sys.exit(main())
