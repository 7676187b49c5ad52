"""Is the recorded update the published formula of its optimizer? PyTorch's optimizers are not accused, of wrong ones it is said what they
compute, and of the script's own which formula they agree with. Environment: as judge_test.py.
"""
import pathlib
import tempfile
import unittest

from judge_test import COMPILES, FORKS, HERE, PYTHON, judged, run, watched  # noqa: I001


def names(table):
    return run("-c", f"import sys; sys.path.insert(0, {str(HERE)!r}); import updates; print(*updates.{table})").split()


@unittest.skipUnless(COMPILES, f"{PYTHON} has no current PyTorch")
class Updates(unittest.TestCase):
    def of(self, name, steps=3):
        report = watched(HERE / "updates.py", name, steps=steps)
        return report, "; ".join([report["answers"]["program"]["what"], *report["remarks"]])

    def test_right_ones_accuse_nobody(self):
        for name in ("every_optimizer", "gradients_that_a_closure_clips", "a_wrapper"):
            with self.subTest(name):
                report, said = self.of(name)
                self.assertEqual((report["verdict"]["class"], report["findings"]), ("NOISE", []), report["verdict"]["headline"])
                self.assertIn("the updates are the published formula of torch.optim.", said)
                self.assertLess(report["numbers"]["update_off"], 1e-6)    # of what may be 3.8e-6
                if name == "every_optimizer":
                    for optimizer in ("SGD", "AdamW", "NAdam", "Rprop", "Adafactor", "Muon"):
                        self.assertIn(f"torch.optim.{optimizer}", said)

    def test_of_wrong_ones_it_is_said_what_they_compute(self):
        for name in names("WRONG"):
            with self.subTest(name):
                report, said = self.of(name)
                self.assertEqual(report["verdict"]["class"], "PROGRAM", report["notes"])
                found = report["findings"][0]
                self.assertEqual((found["cause"], found["phase"]), ("update", "optimizer"))
                self.assertIn(name.replace("_", " "), found["sentence"])
                self.assertIn("optimizer.step()", found["place"])

    def test_as_before_1_13(self):
        for name in ("every_optimizer", *names("WRONG")):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                trace = pathlib.Path(folder) / "trace.twin"
                run(HERE / "updates.py", name, trace)
                report = judged(trace)
                wrong = report["verdict"]["class"] == "PROGRAM"
                self.assertEqual(wrong, name != "every_optimizer", report["verdict"]["headline"])
                if wrong:
                    self.assertIn(name.replace("_", " "), report["findings"][0]["sentence"])

    def test_weights_from_before_an_update(self):
        report, said = self.of("a_cast_in_each_step")
        self.assertEqual((report["verdict"]["class"], report["findings"]), ("NOISE", []), report["verdict"]["headline"])
        self.assertIn("no gradient goes through an earlier version of a weight", said)
        report, said = self.of("a_cast_around_the_loop")
        self.assertEqual((report["verdict"]["class"], report["findings"][0]["cause"]), ("PROGRAM", "stale_weights"))
        self.assertIn("step 1 computes with 4 weights from before an update: aten._to_copy.default read them in step 0", said)

    def test_weights_that_are_not_trained(self):
        for name, said in {
            "no_gradient_at_all": "no weight is updated: none of the 4 parameters that torch.optim.Adam holds has a gradient",
            "a_copy_of_the_model": "and 4 weights with one belong to no optimizer",
            "another_last_layer": "and 2 weights of the same shapes have one and are not updated",
        }.items():
            with self.subTest(name):
                report, program = self.of(name)
                self.assertEqual((report["verdict"]["class"], report["findings"][0]["cause"]), ("PROGRAM", "untrained_weights"))
                self.assertIn(said, program)
        for name, said in {
            "a_part_of_the_model": "2 weights with a gradient are not updated",
            "a_part_that_is_detached": "2 of the 4 parameters that torch.optim.Adam holds have no gradient",
            "one_batch": "each step reads the same batch",
            "evaluation_mode": "as all batch normalisation here, is in evaluation mode",
            "dropout_that_is_off": "all dropout is in evaluation mode, such as 1",
            "clipped_too_late": "changes gradients after the update that used them",
            "clamped_weights": "changes weights besides the optimizer's updates",
            "frozen_weights": "2 of 4 parameters of the optimizers are frozen, the others have a gradient",
            "a_kept_copy": "step 1 computes with a copy of a weight (2.weight, float32[12, 3]) from before an update",
            "a_loss_of_stretched_tensors": "compares each number of the one tensor with each of the other",
            "clipped_while_scaled": "changes gradients before the scaler divides them by its scale",
        }.items():
            with self.subTest(name):
                report, program = self.of(name)
                self.assertEqual((report["verdict"]["class"], report["findings"]), ("NOISE", []), report["verdict"]["headline"])
                self.assertIn(said, program)
        _, program = self.of("clipped_after_unscaling")
        self.assertNotIn("before the scaler", program)
        report, _ = self.of("memory_that_nobody_saw")
        self.assertEqual(report["verdict"]["class"], "INCONCLUSIVE")
        self.assertIn("and no recorded call wrote it", report["open"][0]["what"])
        _, program = self.of("one_optimizer_for_each")
        self.assertNotIn("not updated", program)
        report, program = self.of("a_closure_that_logs_without_gradients")
        self.assertEqual((report["verdict"]["class"], report["findings"]), ("NOISE", []), program)
        self.assertIn("the updates are the published formula of torch.optim.SGD", program)
        _, program = self.of("a_cast_in_each_step")
        for words in ("not updated", "no gradient (", "same batch", "evaluation mode", "a copy of a weight", "frozen", "changes weights", "changes gradients"):
            self.assertNotIn(words, program)

    def test_micro_batches_that_nothing_divides_are_told(self):
        for how, told in {
            "averaged": False, "averaged_and_clipped": False, "cleared": False, "zeroed": False, "added": True, "added_and_clipped": True,
        }.items():  # fmt: skip
            with self.subTest(how):
                report, _ = self.of(f"micro_batches_that_are_{how}", steps=2)
                self.assertEqual((report["verdict"]["class"], report["findings"]), ("NOISE", []), report["verdict"]["headline"])
                self.assertEqual(any("the sum of 4 backward passes of one line" in n for n in report["notes"]), told, report["notes"])

    def test_of_the_scripts_own(self):
        for name, said in {
            "of_the_script": "the published formula of torch.optim.Adam, which __main__.Mine computes",
            "of_the_script_without_correction": "none of torch.optim's, are those of torch.optim.Adam without bias correction",
            "of_the_script_by_another_name": "are those of torch.optim.Adam, not of AdamW",
            "of_the_script_and_unknown": "no published formula is known that the updates of",
            "hooks": "hooks run within the step of torch.optim.Adam",
        }.items():  # fmt: skip
            with self.subTest(name):
                report, program = self.of(name)
                self.assertEqual((report["verdict"]["class"], report["findings"]), ("NOISE", []), report["verdict"]["headline"])
                self.assertIn(said, program + " ".join(report["notes"] + report["remarks"]))


if __name__ == "__main__":
    if FORKS is None:
        print(f"SKIPPED: {PYTHON} has no PyTorch")
        raise SystemExit(77)
    unittest.main()
