#!/usr/bin/env python3
"""Tests report.html in a headless Chromium: with and without script, narrow, dark, printed.

    run.py REPORT_PAGES                    checks the examples that the program REPORT_PAGES writes
    run.py --shots DIR report.html..       also writes screenshots: 1280 and 400 pixels wide, light and dark

Exits with 77 and names what is missing if there is no Chromium (./dev packages test).
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

import webdriver

# Number of painted pixels of each chart; a drawn chart has many.
PAINTED = """
return [...document.querySelectorAll('figure.chart')].map(figure => {
  let painted = 0;
  for (const canvas of figure.querySelectorAll('canvas')) {
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    for (let i = 3; i < data.length; i += 4) painted += data[i] > 0;
  }
  return painted;
});"""

# The least contrast of a text with its background (WCAG 2), and the place of that text.
CONTRAST = """
const parse = color => (color.match(/[\\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = element => {
  for (let e = element; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c;
  }
  return [255, 255, 255];
};
let worst = [99, ''];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !element.getClientRects().length) continue;
  const style = getComputedStyle(element);
  const ink = parse(element.namespaceURI.endsWith('svg') ? style.fill : style.color);
  const [a, b] = [light(ink), light(ground(element))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < worst[0]) worst = [ratio, element.tagName + ': ' + walker.currentNode.textContent.trim().slice(0, 40)];
}
return worst;"""

BROKEN_LINKS = """
return [...document.querySelectorAll('a[href]')].filter(
  a => !a.getAttribute('href').startsWith('#') || !document.getElementById(a.getAttribute('href').slice(1))).map(
  a => a.getAttribute('href'));"""

REQUESTS = "return performance.getEntriesByType('resource').map(entry => entry.name);"
OVERFLOW = """
const wide = document.documentElement.clientWidth;
return document.documentElement.scrollWidth <= wide ? [] : [...document.querySelectorAll('body *')].filter(
  e => !e.closest('.scroll, pre') && e.getBoundingClientRect().right > wide + 1).map(e => e.outerHTML.slice(0, 80));"""
SHOWN = "return [...document.querySelectorAll(arguments[0])].filter(e => e.getClientRects().length > 0).length;"
CHART_AT = """
const chart = document.querySelector('.canvas');
chart.scrollIntoView({block: 'center', behavior: 'instant'});
const box = chart.getBoundingClientRect();
return [0.4, 0.7].map(part => [Math.round(box.left + part * box.width), Math.round(box.top + box.height / 2)]);"""
READ = "return document.querySelector('.readout').textContent;"
WHOLE = "return document.querySelector('.reset').hidden;"


# Presses an entry of the first chart's legend; returns whether it is pressed, and its name.
TOGGLE = """
const button = document.querySelector('.chart .toggle');
button.click();
return [button.getAttribute('aria-pressed'), button.querySelector('b').textContent];"""
SMOOTH = """
const select = document.querySelector('.smoothing select');
if (!select) return null;
const before = select.value;
select.selectedIndex = 1;
select.dispatchEvent(new Event('change'));
return before;"""
ZOOMED = "return [...document.querySelectorAll('.reset')].map(button => !button.hidden);"


class Checks:
    def __init__(self, browser):
        self.browser = browser
        self.failures = []

    def expect(self, true, page, words):
        if not true:
            self.failures.append(f"{page.name}: {words}")

    def page(self, page):
        browser, expect = self.browser, self.expect
        for width, dark in ((1280, False), (1280, True), (400, False), (400, True)):
            said = browser.open(page, width=width, dark=dark)
            here = f"{width} pixels, {'dark' if dark else 'light'}"
            expect(not said, page, f"{here}: console: {said}")
            wide = browser.run(OVERFLOW)
            expect(not wide, page, f"{here}: wider than the window: {wide[:3]}")
            least, where = browser.run(CONTRAST)
            expect(least >= 4.5, page, f"{here}: contrast {least:.2f} of {where!r}")
            for painted in browser.run(PAINTED):
                expect(painted > 500, page, f"{here}: a chart has {painted} pixels")
            charts = browser.run(SHOWN, "figure.chart")
            expect(browser.run(SHOWN, ".canvas") == charts, page, f"{here}: not every chart is interactive")
            expect(browser.run(SHOWN, ".chart .plot svg") == 0, page, f"{here}: a chart is there twice")
        expect(browser.run(REQUESTS) == [], page, f"loads {browser.run(REQUESTS)}")
        dead = [link for link in browser.run(BROKEN_LINKS) if not (page.parent / link).is_file()]
        expect(not dead, page, f"dead links {dead}")
        unnamed = browser.run("return [...document.querySelectorAll('svg:not([aria-hidden])')].filter(e => "
                              "!e.getAttribute('aria-label') && !e.querySelector('title')).length;")
        expect(unnamed == 0, page, f"{unnamed} pictures without a text")
        browser.open(page, width=1280)
        if charts:
            start, end = browser.run(CHART_AT)
            browser.drag(start, start)
            expect(browser.run(READ).startswith("step"), page, f"pointing at a chart reads {browser.run(READ)!r}")
            browser.drag(start, end)
            expect(not browser.run(WHOLE), page, "dragging over a chart does not zoom it")
            expect(all(browser.run(ZOOMED)), page, "the charts are not zoomed together")
            browser.run("document.querySelector('.reset').click();")
            expect(browser.run(WHOLE), page, "the whole range does not come back")
            expect(not any(browser.run(ZOOMED)), page, "the other charts stay zoomed")
            self.toggles(page, start)
        browser.open(page, width=1280, media="print")
        expect(browser.run(SHOWN, ".chart .plot svg") == charts, page, "on paper the charts are not the static ones")
        self.without_script(page, charts)

    def toggles(self, page, start):
        """A press hides a curve and another one shows it; moving averages are off at first."""
        browser, expect = self.browser, self.expect
        for pressed in ("false", "true"):
            state, name = browser.run(TOGGLE)
            expect(state == pressed, page, f"the button of {name!r} is {state}, not {pressed}")
            browser.drag([start[0] - 40, start[1]], start)
            browser.run("document.querySelector('.reset').click();")
            browser.drag(start, start)
            expect((f"{name}: " in browser.run(READ)) == (pressed == "true"), page, f"{name!r}: {browser.run(READ)!r}")
        before = browser.run(SMOOTH)
        expect(before in (None, "1"), page, f"smoothing is {before} at first")
        browser.drag(start, start)
        expect(before is None or "mean of" in browser.run(READ), page, f"smoothed: {browser.run(READ)!r}")

    def without_script(self, page, charts):
        """chromedriver needs scripts to inspect a page, so the page's own scripts are removed from a copy."""
        text = page.read_text(encoding="utf-8")
        cut = text[:text.index("<script>\n/*")] + "</body></html>\n"
        with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8", delete=False) as copy:
            copy.write(cut)
        try:
            for width in (1280, 400):
                said = self.browser.open(copy.name, width=width)
                self.expect(not said, page, f"without script: {said}")
                self.expect(self.browser.run(SHOWN, ".chart .plot svg") == charts, page, "without script no charts")
                wide = self.browser.run(OVERFLOW)
                self.expect(not wide, page, f"without script, {width} pixels: too wide: {wide[:3]}")
        finally:
            pathlib.Path(copy.name).unlink()
        for start in range(0, cut.count("<svg")):
            piece = cut.split("<svg")[start + 1]
            try:
                xml.etree.ElementTree.fromstring("<svg" + piece[:piece.index("</svg>") + 6])
            except xml.etree.ElementTree.ParseError as error:
                self.expect(False, page, f"SVG {start}: {error}")


def shots(browser, page, folder):
    for width in (1280, 400):
        for dark in (False, True):
            name = f"{page.parent.name if page.stem == 'report' else page.stem}-{width}-{'dark' if dark else 'light'}"
            browser.open(page, width=width, dark=dark)
            browser.screenshot(folder / f"{name}-first.png", width=width)
            browser.screenshot(folder / f"{name}.png", whole=True, width=width)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shots", type=pathlib.Path, help="write screenshots to this folder")
    parser.add_argument("what", nargs="+", type=pathlib.Path, help="pages, or the program that writes them")
    options = parser.parse_args()
    if webdriver.missing():
        print(f"skipped: {webdriver.missing()} (./dev packages test)")
        return 77
    with tempfile.TemporaryDirectory() as folder, webdriver.Browser() as browser:
        pages = [path for path in options.what if path.suffix == ".html"]
        for program in options.what:
            if program.suffix != ".html":
                subprocess.run([program.resolve(), folder], check=True)
                pages += sorted(pathlib.Path(folder).glob("*.html"))
        checks = Checks(browser)
        for page in pages:
            checks.page(page)
            if options.shots:
                options.shots.mkdir(parents=True, exist_ok=True)
                shots(browser, page, options.shots)
    for failure in checks.failures:
        print(f"FAILED {failure}")
    print(f"{len(pages)} pages, {len(checks.failures)} failures")
    return 1 if checks.failures or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
