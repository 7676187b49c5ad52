"""The numbers and the page of ./dev bench, by hand: bench/figures.py, bench/page.py, bench/profiles.py, the choice of OpenBLAS's core in bench/peers.py."""

import copy
import json
import math
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import commands  # noqa: E402
import figures  # noqa: E402
import page  # noqa: E402
import peers  # noqa: E402
import profiles  # noqa: E402

LINE = {
    "row": "dot f32 1024x1024x1024",
    "threads": 1,
    "unit": "GFLOP/s",
    "smaller": False,
    "target": 1.0,
    "ours": [100.0, 110.0, 90.0],
    "peers": {"OpenBLAS": [200.0, 100.0, 100.0], "JAX": [50.0, 50.0, 60.0]},
}
CEILING = {**LINE, "row": "ceiling fma avx512, dot f32 1024^3", "target": None, "peers": {"machine": [200.0, 200.0, 200.0]}}
KNOWN = {"OpenBLAS": {"version": "0.3.34", "says": "SkylakeX", "setting": "none"}, "JAX": {"why": "no wheel"}}


def measured(*lines):
    rows = [figures.summary(line) for line in lines]
    return page.merged({}, "Xeon, 2 cores", {"os": "Linux"}, KNOWN, rows, "2026-11-26", "abc")


class Figures(unittest.TestCase):
    def test_median_and_quartiles(self):
        self.assertEqual(figures.spread([5, 1, 2, 4, 3]), [3, 2, 4])
        self.assertEqual(figures.spread([1, 2, 3, 4]), [2.5, 1.75, 3.25])
        self.assertEqual(figures.spread([7]), [7, 7, 7])

    def test_ratios_are_of_neighbouring_samples(self):
        self.assertEqual(figures.ratios([10, 30], [20, 10], smaller=False), [0.5, 3])
        self.assertEqual(figures.ratios([10, 30], [20, 15], smaller=True), [2, 0.5])
        self.assertEqual(figures.ratios([10, 20], [5], smaller=True), [0.5, 0.25])    # a limit

    def test_the_target_is_against_the_best_peer(self):
        row = figures.summary(LINE)
        self.assertEqual(row["best"], "OpenBLAS")
        self.assertEqual(row["ratio"][0], 0.9)    # the median of 0.5, 1.1, 0.9
        self.assertEqual(row["ratios"]["JAX"][0], 2.0)
        self.assertIs(row["met"], False)
        self.assertIs(figures.summary({**LINE, "target": 0.9})["met"], True)
        self.assertIsNone(figures.summary({**LINE, "target": None})["met"])

    def test_slope_of_a_power(self):
        fitted, error = figures.slope([(x, 3 * x**1.5) for x in (1, 2, 4, 8)])
        self.assertAlmostEqual(fitted, 1.5)
        self.assertAlmostEqual(error, 0)

    def test_error_of_a_slope(self):
        # log2: x = 0, 1, 2, y = 0, 2, 2. Slope 1, residuals -1/3, 2/3, -1/3; variance (6/9)/1/2 = 1/3; t for one degree 12.706.
        fitted, error = figures.slope([(1, 1), (2, 4), (4, 4)])
        self.assertAlmostEqual(fitted, 1)
        self.assertAlmostEqual(error, 12.706 * math.sqrt(1 / 3))
        with self.assertRaises(ValueError):
            figures.slope([(1, 1), (2, 2)])

    def test_growth_may_not_exceed_its_work(self):
        faster = {"growth": "growth batch", "threads": 2, "points": [[x, x**1.2 * (1 + 0.001 * (x % 3))] for x in (1, 2, 4, 8, 16)]}
        self.assertIs(figures.growth(faster)["met"], False)
        linear = {**faster, "points": [[x, x * (1 + 0.001 * (x % 3))] for x in (1, 2, 4, 8, 16)]}
        self.assertIs(figures.growth(linear)["met"], True)

    def test_share_of_the_ceiling(self):
        rows = [figures.summary(LINE), figures.summary(CEILING)]
        self.assertEqual(figures.share(rows, "OpenBLAS"), 0.5)    # a median of 100 of 200
        self.assertIsNone(figures.share(rows[:1], "OpenBLAS"))
        self.assertIsNone(figures.share(rows, "oneDNN"))


class Core(unittest.TestCase):
    WIDE = {"avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl"}

    def test_zen_is_not_a_core_of_512_bits(self):
        self.assertEqual(peers.core_type(["Zen"], self.WIDE), "SkylakeX")
        self.assertEqual(peers.core_type(["SkylakeX", "Prescott"], self.WIDE), "SkylakeX")

    def test_a_fitting_choice_is_left_alone(self):
        self.assertIsNone(peers.core_type(["SkylakeX", "Sapphirerapids"], self.WIDE))
        self.assertIsNone(peers.core_type(["Zen"], {"avx2"}))

    def test_without_wide_vectors(self):
        self.assertEqual(peers.core_type(["Prescott"], {"avx2"}), "Haswell")
        self.assertIsNone(peers.core_type(["Prescott"], {"sse2"}))


class Profiles(unittest.TestCase):
    # `perf report -q --stdio --sort dso,symbol`.
    REPORT = """
    61.20%  twinrun_bench      [.] twinrun::(anonymous namespace)::f32_tile<twinrun::(anonymous namespace)::Avx512, 14, 2>     -      -
    20.00%  twinrun_bench      [.] twinrun::(anonymous namespace)::f32_tile<twinrun::(anonymous namespace)::Avx512, 13, 2>     -      -
     8.50%  [kernel.kallsyms]  [k] clear_page_erms
     1.50%  [kernel.kallsyms]  [k] exc_page_fault
     4.00%  libc.so.6          [.] __memmove_avx512_unaligned_erms
     2.00%  twinrun_bench      [.] twinrun::pack_b
"""

    def test_shares_by_function(self):
        found = profiles.shares(self.REPORT)
        self.assertEqual(list(found), ["f32_tile", "kernel", "__memmove_avx512_unaligned_erms", "pack_b"])
        self.assertAlmostEqual(found["f32_tile"], 0.812)
        self.assertAlmostEqual(found["kernel"], 0.1)
        self.assertEqual(profiles.top(found), {"f32_tile": 0.812, "kernel": 0.1, "__memmove_avx512_unaligned_erms": 0.04})

    def test_names_of_functions(self):
        for symbol, name in (
            ("twinrun::FusedKernel::fetch", "fetch"),
            ("twinrun::(anonymous namespace)::segment_line<twinrun::F32, false, twinrun::JoinSum>", "segment_line"),
            ("std::_Function_handler<void (long), twinrun::data::make()::{lambda(long)#1}>::_M_invoke", "make"),
            ("twinrun::(anonymous namespace)::judge(twinrun::Op const&)::{lambda(long)#1}::operator()(long) const", "judge"),
            ("twinrun::run_dot(twinrun::KernelContext const&, twinrun::Op const&) [clone .isra.0]", "run_dot"),
            ("XXH_INLINE_XXH3_128bits_update.isra.0", "XXH_INLINE_XXH3_128bits_update"),
        ):
            self.assertEqual(profiles.short(symbol), name, symbol)

    def test_what_holds_memory_is_shown_from_the_largest_part_on(self):
        held = {"batch": 0.04, "activations and gradients": 60.25, "weights and the optimizer's state": 81}
        self.assertEqual(profiles.text({"held": held}), "weights and the optimizer's state 81 MiB, activations and gradients 60.2 MiB")

    def test_commands_of_rows(self):
        words = commands.words_of("start-up twinrun train, one step", "twinrun", "/tmp/f")
        self.assertEqual(words[:3] + words[-1:], ["twinrun", "train", "digits_mlp", "/tmp/f/run.h5"])
        for name in ("diagnose mlp_bn, one seed, 200 steps", "watched step mlp_bn"):
            self.assertEqual(commands.words_of(name, "twinrun", "/tmp/f")[:3], ["twinrun", "diagnose", "mlp_bn"])
        self.assertIsNone(commands.words_of("dot f32 512x512x512", "twinrun", "/tmp/f"))


class Page(unittest.TestCase):
    def test_a_missed_row_without_a_note_is_named(self):
        text, unexplained = page.render(measured(LINE), [])
        self.assertEqual(unexplained, ["Xeon, 2 cores: dot f32 1024x1024x1024, 1 threads"])
        self.assertIn("No reason is written yet", text)

    def test_a_note_explains_the_rows_that_it_names(self):
        note = {"rows": "^dot f32 1024", "machine": "^Xeon", "why": "Packing.", "next": "Wider blocks."}
        text, unexplained = page.render(measured(LINE), [note])
        self.assertEqual(unexplained, [])
        self.assertIn("- Packing.\n  - Xeon, 2 cores: dot f32 1024x1024x1024 ×1 90%\n", text)
        self.assertNotEqual(page.render(measured(LINE), [{**note, "machine": "EPYC"}])[1], [])
        self.assertNotEqual(page.render(measured(LINE), [{**note, "rows": "^conv"}])[1], [])

    def test_only_the_largest_misses_are_shown_but_each_needs_a_reason(self):
        lines = [{**LINE, "row": f"dot f32 {n}x1x1", "ours": [float(n)] * 3} for n in range(1, page.LARGEST + 3)]
        text, unexplained = page.render(measured(*lines), [])
        self.assertIn("dot f32 10x1x1 ×1 10%", text)
        self.assertNotIn("11x1x1 ×1 11%", text)
        self.assertEqual(len(unexplained), page.LARGEST + 2)

    def test_a_row_for_each_group(self):
        better = {**LINE, "row": "dot f32 2x2x2", "threads": 2, "ours": [300.0, 300.0, 300.0]}
        text, _ = page.render(measured(LINE, better, {**better, "row": "dot bf16/own 2x2x2", "target": None}, CEILING), [])
        self.assertIn("| products in binary32 | 2 | 1.95 | 3.00 2x2x2 ×2 | 0.90 1024x1024x1024 ×1 | 1 | 1/2 |\n", text)
        self.assertIn("| the same, our own in binary32 | 1 | 3.00 | 3.00 2x2x2 ×2 | 3.00 2x2x2 ×2 |  |  |\n", text)
        self.assertIn("\n4 rows, 1 of 2 targets missed.\n", text)
        self.assertIn("OpenBLAS 0.3.34 (50%); JAX missing: no wheel.\n", text)

    def test_other_rows_are_kept(self):
        first = measured(LINE, CEILING)
        again = figures.summary({**LINE, "ours": [300.0, 300.0, 300.0]})
        both = page.merged(copy.deepcopy(first), "Xeon, 2 cores", {}, {}, [again], "2026-11-27", "def")
        rows = both["Xeon, 2 cores"]["rows"]
        self.assertEqual(len(rows), 2)
        self.assertEqual(rows["dot f32 1024x1024x1024|1"]["day"], "2026-11-27")
        self.assertEqual(rows["ceiling fma avx512, dot f32 1024^3|1"]["day"], "2026-11-26")
        self.assertIn("OpenBLAS", both["Xeon, 2 cores"]["peers"])
        other = page.merged(both, "EPYC, 2 cores", {}, {}, [again], "2026-11-27", "def")
        self.assertEqual(list(other), ["Xeon, 2 cores", "EPYC, 2 cores"])

    def test_data_survives_its_file(self):
        first = measured({**LINE, "ours": [100.123456, 100.123456]})
        kept = json.loads(page.to_json(first))
        self.assertEqual(kept["Xeon, 2 cores"]["rows"]["dot f32 1024x1024x1024|1"]["ours"], [100.1] * 3)
        self.assertEqual(json.loads(page.to_json(kept)), kept)

    def test_only_what_is_between_the_markers_is_replaced(self):
        old = "# Speed\n\n" + page.BEGIN + "old\n" + page.END + "\n## By hand\n"
        self.assertEqual(page.replaced(old, "new\n"), "# Speed\n\n" + page.BEGIN + "\nnew\n\n" + page.END + "\n## By hand\n")
        with self.assertRaises(ValueError):
            page.replaced("# Speed\n", "new")


if __name__ == "__main__":
    unittest.main()
