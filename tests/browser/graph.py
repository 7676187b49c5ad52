#!/usr/bin/env python3
"""Tests graph.html of `twinrun check -o` in a headless Chromium: wide and narrow, light and dark, by mouse and by keyboard.

    graph.py TWINRUN                       checks pages of a scenario and of a text with ops that are not compatible
    graph.py --shots DIR TWINRUN           also leaves screenshots

Exits with 77 and names what is missing if there is no Chromium (./dev packages test) or no Graphviz.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile

import run
import webdriver

# Two layers: one of two ops in the first is not compatible, all of the second are; one name contains markup.
STEP = """HloModule step

ENTRY main {
  w = f32[8] parameter(0)
  x = f32[8,300] parameter(1)
  a = f16[8,300] convert(x), metadata={op_name="jit(step)/dense1/convert"}
  b = f32[8,300] add(x, x), metadata={op_name="jit(step)/dense1/add"}
  c = f32[8,300] custom-call(b), custom_call_target="lapack_<b>x</b>", metadata={op_name="jit(step)/qr/qr"}
  d = f32[8,300] multiply(c, c), metadata={op_name="jit(step)/dense2/mul"}
  w2 = f32[8] add(w, w)
  loss = f32[] constant(1)
  ROOT out = (f32[8], f32[]) tuple(w2, loss)
}
"""

KEY = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}));"
SHOWN_SVG = "const svg = [...document.querySelectorAll('svg.graph')].find(e => e.getClientRects().length > 0);"
BOX = SHOWN_SVG + "return svg.getAttribute('viewBox').split(' ').map(Number);"
INK = SHOWN_SVG + "return getComputedStyle(svg.querySelector(arguments[0] + ' rect')).stroke;"
CARD = "return document.querySelector('.card').textContent;"
MIDDLE = SHOWN_SVG + "const r = svg.getBoundingClientRect(); return [Math.round(r.left + r.width / 2), Math.round(r.top + r.height / 2)];"


class Checks(run.Checks):
    def looks(self, page):
        for width, dark in ((1280, False), (1280, True), (400, False), (400, True)):
            here = f"{width} pixels, {'dark' if dark else 'light'}"
            said = self.browser.open(page, width=width, dark=dark)
            self.expect(not said, page, f"{here}: console: {said}")
            wide = self.browser.run(run.OVERFLOW.replace(".scroll, pre", ".scroll, pre, svg"))
            self.expect(not wide, page, f"{here}: wider than the window: {wide[:3]}")
            least, where = self.browser.run(run.CONTRAST)
            self.expect(least >= 4.5, page, f"{here}: contrast {least:.2f} of {where!r}")
            self.expect(self.browser.run(run.SHOWN, "svg.graph") == 1, page, f"{here}: not one picture")
        self.expect(self.browser.run(run.REQUESTS) == [], page, f"loads {self.browser.run(run.REQUESTS)}")
        for phase in range(self.browser.run("return document.querySelectorAll('[role=tab]').length;")):
            self.browser.run("document.querySelectorAll('[role=tab]')[arguments[0]].click();", phase)
            self.expect(self.browser.run(run.SHOWN, "svg.graph") == 1, page, f"tab {phase}: not one picture")

    def zooms(self, page):
        browser = self.browser
        browser.open(page, width=1280)
        before = browser.run(BOX)
        x, y = browser.run(MIDDLE)
        browser.devtools("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-240)
        browser.run("return new Promise(done => setTimeout(done, 200));")
        wheel = browser.run(BOX)
        self.expect(wheel[2] < before[2], page, f"the wheel does not zoom: {before} {wheel}")
        browser.run("document.querySelector('.tools .out').click();")
        self.expect(browser.run(BOX)[2] > wheel[2], page, "the button does not zoom out")
        browser.run("document.querySelector('.tools .in').click();")
        browser.drag((x, y), (x + 80, y + 40))
        moved = browser.run(BOX)
        self.expect(abs(moved[0] - wheel[0]) > 1, page, f"dragging does not move: {wheel} {moved}")
        self.expect(browser.run(run.SHOWN, ".inside") == 0, page, "dragging opens a layer")
        browser.run("document.querySelector('.tools .fit').click();")
        whole = browser.run(BOX)
        self.expect(whole[:2] == [0, 0], page, f"Fit shows {whole}")
        browser.run("document.querySelector('.phase:not([hidden]) .node').focus();")
        browser.run(KEY, "+")
        self.expect(browser.run(BOX)[2] < whole[2], page, "the key + does not zoom")

    def opens(self, page, search, name, words):
        """Opens a layer by keys, finds an op by search, checks its card, and goes back."""
        browser = self.browser
        browser.open(page, width=1280)
        browser.run("document.querySelector('.phase:not([hidden]) .node').focus();")
        browser.run(KEY, "Enter")
        self.expect(browser.run(run.SHOWN, ".inside .node") > 0, page, "Enter does not open a layer")
        browser.run(KEY, "Escape")
        self.expect(browser.run(run.SHOWN, ".inside") == 0, page, "Escape does not go back")
        browser.run("const s = document.querySelector('input[type=search]'); s.value = arguments[0]; s.dispatchEvent(new Event('input'));",
                    search)
        self.expect(browser.run(run.SHOWN, ".hits button") > 0, page, f"nothing found for {search}")
        self.expect(browser.run("return document.querySelectorAll('.node.hit').length;") > 0, page, "no layer is marked")
        browser.run("[...document.querySelectorAll('.hits button')].find(b => b.textContent.includes(arguments[0])).click();", name)
        card = browser.run(CARD)
        for word in words:
            self.expect(word in card, page, f"the card lacks {word!r}: {card}")
        self.expect(browser.run(run.SHOWN, ".node.chosen") == 1, page, "the chosen op is not marked")

    def tells_what_is_not_compatible(self, page):
        browser = self.browser
        browser.open(page, width=1280)
        head = browser.run("return document.querySelector('h1').textContent;")
        self.expect("7 of 9 ops" in head and "77.7% compatible" in head, page, head)
        bad, mixed, good = (browser.run(INK, kind) for kind in (".bad", ".mixed", ".good"))
        self.expect(bad == mixed != good, page, f"colours {bad} {mixed} {good}")
        labels = browser.run("return [...document.querySelectorAll('.phase .node')].map(n => n.getAttribute('aria-label'));")
        for label in ("dense1: 1 of 2 not compatible", "qr: 1 op, not compatible", "dense2: 1 op, compatible"):
            self.expect(label in labels, page, f"no {label!r} in {labels}")
        self.expect(browser.run(run.SHOWN, ".phase rect.share") == 1, page, "the mixed layer shows no share")
        listed = browser.run("return [...document.querySelectorAll('.wrong li')].map(e => e.textContent);")
        self.expect(len(listed) == 2 and "f16" in listed[0] and "lapack_<b>x</b>" in listed[1], page, f"listed {listed}")
        browser.run("document.querySelector('.wrong button').click();")
        self.expect("not compatible (red)" in browser.run(CARD), page, browser.run(CARD))

    def frames_fusions(self, page):
        """Opens an op of a fusion: the layer has a frame around it with a name, and the card names the fusion."""
        browser = self.browser
        browser.open(page, width=1280)
        name = browser.run("const data = JSON.parse(document.getElementById('data').textContent);"
                           "const groups = data.phases.flatMap(p => p.groups).filter(g => g.inside.frames.length > 0);"
                           "return data.ops[groups[0].ops.find(op => data.ops[op][7] === groups[0].inside.frames[0][0])][0];")
        browser.run("const s = document.querySelector('input[type=search]'); s.value = arguments[0]; s.dispatchEvent(new Event('input'));", name)
        browser.run("document.querySelector('.hits button').click();")
        self.expect(browser.run(run.SHOWN, ".inside rect.fusion") > 0, page, "no frame in the layer")
        named = browser.run("return document.querySelector('.inside rect.fusion title').textContent;")
        self.expect(named.startswith("fusion ") and "in one pass over" in named, page, f"a frame says {named!r}")
        self.expect("Fusion" in browser.run(CARD) and "in one pass over" in browser.run(CARD), page, browser.run(CARD))

    def without_script_or_on_paper(self, page):
        self.browser.open(page, width=1280, media="print")
        self.expect(self.browser.run(run.SHOWN, ".tools") == 0, page, "on paper there are buttons")
        text = page.read_text(encoding="utf-8")
        cut = page.with_name("noscript.html")
        cut.write_text(text[:text.index('<script type="application/json"')] + "</body></html>\n", encoding="utf-8")
        said = self.browser.open(cut, width=1280)
        self.expect(not said, page, f"without script: {said}")
        phases = text.count('<section class="phase"')
        self.expect(self.browser.run(run.SHOWN, "svg.graph") == phases, page, "without script not every phase is shown")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shots", type=pathlib.Path, help="write screenshots to this folder")
    parser.add_argument("twinrun", type=pathlib.Path, help="the program")
    options = parser.parse_args()
    absent = webdriver.missing() or ("" if shutil.which("dot") else "no Graphviz")
    if absent:
        print(f"skipped: {absent} (./dev packages test)")
        return 77
    with tempfile.TemporaryDirectory() as folder, webdriver.Browser() as browser:
        folder = pathlib.Path(folder)
        (folder / "step.hlo").write_text(STEP, encoding="ascii")
        good, bad = folder / "good" / "graph.html", folder / "bad" / "graph.html"
        twinrun = options.twinrun.resolve()
        subprocess.run([twinrun, "check", "digits_cnn", "-o", good.parent], check=True, stdout=subprocess.DEVNULL)
        failed = subprocess.run([twinrun, "check", "--program", folder / "step.hlo", "-o", bad.parent], check=False,
                                stdout=subprocess.DEVNULL).returncode
        checks = Checks(browser)
        checks.expect(failed == 1, bad, f"exit code {failed}")
        for page in (good, bad):
            checks.looks(page)
            checks.zooms(page)
            checks.without_script_or_on_paper(page)
        checks.opens(good, "conv2/conv", "conv2/convolution", ["f32[32,14,14,32]", "f32[32,14,14,32]{3,2,1,0:T(8,128)}", "compatible (green)"])
        checks.opens(bad, "dense1", "dense1/a", ["f16[8,300]", "not compatible (red)"])
        checks.frames_fusions(good)
        checks.tells_what_is_not_compatible(bad)
        if options.shots:
            options.shots.mkdir(parents=True, exist_ok=True)
            for page in (good, bad):
                for width in (1280, 400):
                    browser.open(page, width=width, dark=width == 400)
                    browser.screenshot(options.shots / f"{page.parent.name}-{width}.png", width=width)
                    browser.run("document.querySelectorAll('[role=tab]')[document.querySelectorAll('[role=tab]').length - 1].click();")
                    browser.screenshot(options.shots / f"{page.parent.name}-{width}-last.png", width=width)
    for failure in checks.failures:
        print(f"FAILED {failure}")
    print(f"2 pages, {len(checks.failures)} failures")
    return 1 if checks.failures else 0


if __name__ == "__main__":
    sys.exit(main())
