"""Is the recorded gradient the derivative of the loss? Right steps are not accused, of wrong ones the Function is named, and what is meant is told
apart. Environment: as judge_test.py.
"""
import re
import unittest

from judge_test import COMPILES, HERE, PYTHON, FORKS, run, watched  # noqa: I001

NAMES = f"import sys; sys.path.insert(0, {str(HERE)!r}); import {{0}}; print(*{{0}}.{{1}})"


def names(table, module="gradients"):
    return run("-c", NAMES.format(module, table)).split()


def cases(table):
    return [(module, name) for module in ("gradients", "gradients_in_memory") for name in names(table, module)]


@unittest.skipUnless(COMPILES, f"{PYTHON} has no current PyTorch")
class Gradients(unittest.TestCase):
    def test_right_ones_accuse_nobody(self):
        for module, name in cases("RIGHT"):
            with self.subTest(name):
                report = watched(HERE / f"{module}.py", name, steps=3 if name == "zeros_behind_a_relu" else 1)
                self.assertEqual((report["verdict"]["class"], report["findings"]), ("NOISE", []), report["verdict"]["headline"])
                self.assertIn("is the derivative of its loss", report["answers"]["program"]["what"], report["notes"])
                self.assertLess(report["numbers"]["gradient_off"], 1e-5)

    def test_of_wrong_ones_the_function_is_named(self):
        for module, name in cases("WRONG"):
            with self.subTest(name):
                report = watched(HERE / f"{module}.py", name, steps=3 if "zeros" in name else 1)
                self.assertEqual((report["verdict"]["class"], report["answers"]["program"]["outcome"]), ("PROGRAM", "no"), report["notes"])
                found = report["findings"][0]
                self.assertEqual((found["cause"], found["op"]), ("gradient", "__main__." + re.sub("_(in|after|before)_.*", "", name)))
                self.assertIn(f"{module}.py:", found["place"])
                self.assertGreater(found["number"], 1e-3)

    def test_data_that_is_changed_behind_autograd(self):
        report = watched(HERE / "gradients.py", "changed_behind_autograd", steps=1)
        self.assertEqual(report["verdict"]["class"], "PROGRAM", report["notes"])
        self.assertIn("aten.mul_.Tensor wrote float32[8, 12] after the forward pass had kept it for", report["findings"][0]["sentence"])
        self.assertIn("h.data.mul_(0.5)", report["findings"][0]["place"])

    def test_gradients_that_are_not_cleared(self):
        for name in names("CLEARED", "clearings"):
            with self.subTest(name):
                report = watched(HERE / "clearings.py", name, steps=2)
                self.assertEqual((report["verdict"]["class"], report["findings"]), ("NOISE", []))
                self.assertNotIn("cleared before", " ".join(report["remarks"]))
        for name in names("UNUSED", "clearings"):
            with self.subTest(name):
                report = watched(HERE / "clearings.py", name, steps=2)
                self.assertEqual((report["verdict"]["class"], report["findings"]), ("NOISE", []))
                self.assertRegex(report["remarks"][0], r"a backward pass at .*clearings.py:\d+ are cleared before anything uses them")
        for name in names("UNCLEARED", "clearings"):
            with self.subTest(name):
                report = watched(HERE / "clearings.py", name, steps=2)
                self.assertEqual([f["cause"] for f in report["findings"]], ["uncleared_gradients"], report["verdict"]["headline"])
                self.assertIn("adds those of 4 weights", report["verdict"]["headline"])
                self.assertIn("backward()", report["findings"][0]["place"])

    def test_what_is_meant_is_told_apart(self):
        for module, name in cases("MEANT"):
            with self.subTest(name):
                report = watched(HERE / f"{module}.py", name, steps=1)
                self.assertEqual(report["findings"], [])
                self.assertIn(report["answers"]["program"]["outcome"], ("in part", "open"))
                self.assertIn(report["verdict"]["class"], ("NOISE", "INCONCLUSIVE"))
                if name == "scaled_by_frequency":
                    self.assertIn("scale_grad_by_freq", " ".join(report["notes"]))
                else:
                    self.assertIn("seems to be meant", report["remarks"][0])

    def test_what_is_allowed_by_name(self):
        for name, allowed in (("a_missing_term", "a_missing_term"), ("straight_through", "__main__.rounded"), ("hook_of_a_weight", "<lambda>"),
                              ("a_sign_and_a_reversal", "Sign,Reversed")):
            with self.subTest(name):
                report = watched(HERE / "gradients.py", name, steps=1, options=("--allow", allowed))
                self.assertEqual((report["verdict"]["class"], report["remarks"]), ("NOISE", []), report["verdict"]["headline"])
                self.assertIn("as --allow says", " ".join(report["notes"]))
                self.assertIn("is allowed (--allow)", report["answers"]["program"]["what"])
        # What is allowed hides none that is wrong, and none that only seems to be meant.
        report = watched(HERE / "gradients.py", "Leaky_after_a_sign", steps=1, options=("--allow", "Sign,Sing"))
        self.assertEqual((report["verdict"]["class"], report["findings"][0]["op"]), ("PROGRAM", "__main__.Leaky"))
        self.assertIn("--allow names Sing, and no", " ".join(report["notes"]))
        report = watched(HERE / "gradients.py", "a_sign_and_a_reversal", steps=1, options=("--allow", "Sign"))
        self.assertIn("--allow __main__.", report["remarks"][0])


if __name__ == "__main__":
    if FORKS is None:
        print(f"SKIPPED: {PYTHON} has no PyTorch")
        raise SystemExit(77)
    unittest.main()
