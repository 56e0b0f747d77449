"""The report in a real browser: no overlapping labels, nothing cut off, no foreign script."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from synthetic_run import DEFENSES, SETTINGS, rows, write_run

from fedtrees.report import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
HOSTILE = '<img src=x onerror="document.documentElement.dataset.pwned=1"><b>x</b>'
# A script that reports, for each frame, overlapping or outside labels, overflowing elements and the
# height.
MEASURE = """<script>window.addEventListener('load', () => setTimeout(() => {
const boxes = [...document.querySelectorAll('svg.frontier')].map(svg => {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text.lab')].map(t => t.getBoundingClientRect());
  const hit = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 2 && b.top < a.bottom - 2;
  let on = 0;
  texts.forEach((a, i) => texts.slice(i + 1).forEach(b => { on += hit(a, b) && a.width > 0; }));
  const out = texts.filter(t => t.width && (t.left < frame.left - 1 || t.right > frame.right + 1));
  return [texts.length, on, out.length];
});
const wide = [...document.querySelectorAll('html, h1, h2, h3, .tile, .recipe, figure')]
  .filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0).length;
const setting = document.querySelector('article.setting');
const shown = setting.getBoundingClientRect().height;
setting.querySelectorAll('.vh').forEach(e => e.remove());
parent.postMessage(JSON.stringify(
  {boxes, wide, shown, words: setting.innerText.split(/\\s+/).length}), '*');
}, 50));</script></body>"""

pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(NAMES)} on PATH")


def dom(page, profile, width=1600, *more):
    """Return the document after every script has run, and the lines of the console."""
    command = [BROWSER, *FLAGS, *more, f"--user-data-dir={profile}", f"--window-size={width},1600",
               "--virtual-time-budget=20000", "--enable-logging=stderr", "--dump-dom",
               page.as_uri()]  # fmt: skip
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return process.stdout, [line for line in process.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def measured(report, tmp_path_factory):
    """Measure frames of two widths, because no window is as narrow as a telephone."""
    folder = tmp_path_factory.mktemp("browser")
    text = re.sub(r"<meta http-equiv=[^>]*>", "", report.read_text(encoding="utf-8"))
    (folder / "inner.html").write_text(text.replace("</body>", MEASURE), encoding="utf-8")
    frames = "".join(
        f'<iframe src="inner.html" width="{width}" height="900" style="border:0"></iframe>'
        for width in (1400, 390)
    )
    outer = folder / "outer.html"
    outer.write_text(
        "<script>const measurements = []; window.onmessage = e => { measurements.push([[...document"
        ".querySelectorAll('iframe')].findIndex(f => f.contentWindow === e.source), e.data]);"
        "document.documentElement.dataset.found = JSON.stringify(measurements); };</script>"
        + frames
    )
    text, _ = dom(outer, folder / "profile")
    match = re.search(r'data-found="([^"]*)"', text)
    assert match is not None
    pairs = json.loads(match[1].replace("&quot;", '"'))
    return {frame: json.loads(data) for frame, data in pairs}


@pytest.mark.long
@pytest.mark.parametrize("frame", [0, 1])
def test_no_label_of_a_frontier_overlaps_another_or_is_outside(measured, frame):
    boxes = [box for box in measured[frame]["boxes"] if box[0]]
    assert len(boxes) >= 2
    assert all(labels >= 5 for labels, _, _ in boxes)
    assert [n_overlapping for _, n_overlapping, _ in boxes] == [0] * len(boxes)
    assert [n_outside for _, _, n_outside in boxes] == [0] * len(boxes)


@pytest.mark.long
@pytest.mark.parametrize("frame", [0, 1])
def test_nothing_is_wider_than_its_place(measured, frame):
    assert measured[frame]["wide"] == 0


@pytest.mark.long
def test_a_setting_fits_on_a_few_screens(measured):
    """The setting has eleven defenses and two adversaries; folded parts are not counted."""
    assert measured[0]["shown"] <= 3600
    assert measured[0]["words"] <= 760


@pytest.mark.long
def test_no_table_of_scores_is_wider_than_the_page(tmp_path):
    table = list(rows(SETTINGS[:1]))
    of_server = [row for row in table if row["threat"] == "server"]
    roles = ("public", "client[count=2]", "server+client")
    table += [row | {"threat": role} for role in roles for row in of_server]
    page = write_report(write_run(tmp_path, table))
    script = """<script>document.documentElement.dataset.widths = JSON.stringify(
      [...document.querySelectorAll('.scroll:has(.matrix)')].map(
      e => [e.scrollWidth, e.clientWidth]));</script></body>"""
    text = re.sub(r"<meta http-equiv=[^>]*>", "", page.read_text(encoding="utf-8"))
    page.write_text(text.replace("</body>", script), encoding="utf-8")
    document, _ = dom(page, tmp_path / "profile", 1400)
    widths = json.loads(re.search(r'data-widths="([^"]*)"', document)[1])
    assert len(widths) == 2  # 15 measures of five adversaries
    for table_width, place in widths:
        assert table_width <= place


AXE = Path(__file__).parents[2] / ".axe/node_modules/axe-core/axe.min.js"  # .ci/run installs it
CHECKED = """<script>window.addEventListener('load', () => axe.run().then(results => {
document.documentElement.dataset.axe = JSON.stringify([results.passes.length,
  results.violations.map(v => [v.id, v.nodes.map(n => n.html.slice(0, 120))])]);
}));</script></body>"""


@pytest.mark.long
@pytest.mark.skipif(not AXE.is_file(), reason="needs npm install --prefix .axe axe-core")
def test_the_report_has_no_accessibility_barrier(report, tmp_path):
    text = re.sub(r"<meta http-equiv=[^>]*>", "", report.read_text(encoding="utf-8"))
    shutil.copy(AXE, tmp_path)
    page = tmp_path / "axe.html"
    script = f'<script src="{AXE.name}"></script>{CHECKED}'
    page.write_text(text.replace("</body>", script), encoding="utf-8")
    match = re.search(r'data-axe="([^"]*)"', dom(page, tmp_path / "profile", 1400)[0])
    assert match is not None
    passes, violations = json.loads(html.unescape(match[1]))
    assert violations == []
    assert passes > 20


WIDER = """<script>const frame = document.querySelector('iframe'); frame.onload = () => {
const all = [...frame.contentDocument.querySelectorAll('html, h1, h2, p, figure')];
document.documentElement.dataset.wider = JSON.stringify(all.filter(
  e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0).map(e => e.outerHTML.slice(0, 90)));
}; frame.src = 'inner.html';</script>"""


def overflowing_elements(page, folder, width=390):
    """Return the elements of a page that are wider than their place on a telephone."""
    text = re.sub(r"<meta http-equiv=[^>]*>", "", page.read_text(encoding="utf-8"))
    (folder / "inner.html").write_text(text, encoding="utf-8")
    (folder / "outer.html").write_text(f'<iframe width="{width}" height="900"></iframe>{WIDER}')
    document, _ = dom(folder / "outer.html", folder / "p", 1600, "--allow-file-access-from-files")
    match = re.search(r'data-wider="([^"]*)"', document)
    assert match is not None
    return json.loads(html.unescape(match[1]))


@pytest.mark.long
def test_hostile_names_do_nothing_and_the_console_is_quiet(tmp_path):
    two_defenses = [defense for defense in DEFENSES if defense[0] in ("none", "split-only")]
    table = [
        row | {"attack": row["attack"] and row["attack"] + HOSTILE}
        for row in rows(SETTINGS[:1], two_defenses)
    ]
    text, console = dom(write_report(write_run(tmp_path, table)), tmp_path / "profile")
    assert "data-pwned" not in text
    assert "<img" not in re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert console == []
    (button,) = re.findall(r'<button id="theme"[^>]*>', text)
    assert "hidden" not in button  # The script of the page ran under its policy.
