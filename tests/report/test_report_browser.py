"""The report in a real browser: are the plots drawn, is the console quiet, is nothing fetched?"""

import re
import shutil
import subprocess

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

pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(NAMES)} on PATH")


def dom(page, profile, width=1280):
    """Return the document as the browser has it once every script has run."""
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},1600",
               "--virtual-time-budget=30000", "--enable-logging=stderr", "--dump-dom",
               page.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, console


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    few = [d for d in DEFENSES if d[0] in ("none", "split-only", "laplace-hist")]
    table = [r | {"attack": r["attack"] and r["attack"] + HOSTILE}
             for r in rows(SETTINGS[:1], few)]  # fmt: skip
    folder = tmp_path_factory.mktemp("browser")
    report = write_report(write_run(folder, table))
    return (*dom(report, folder / "profile"), report.read_text(encoding="utf-8"))


def test_every_chart_is_drawn(drawn):
    text, _, source = drawn
    assert 'data-drawn="yes"' in text
    charts = len(re.findall(r'data-chart="', source))
    assert charts == 7  # 2 frontiers, 2 attack grids, 2 feature grids, 1 cost
    assert len(re.findall(r'class="plot-container', text)) == charts
    assert len(re.findall(r'class="main-svg"', text)) >= 2 * charts


def test_the_points_are_in_the_picture(drawn):
    text, _, _ = drawn
    # 2 panels of 5 defenses and 3 seeds each; 5 defenses in the 3 series of the cost figure.
    assert len(re.findall(r'<path class="point"', text)) == 2 * 5 * 3
    assert len(re.findall(r'<path class="point plotly-customdata"', text)) == 2 * 5 + 3 * 5
    assert len(re.findall(r'class="yerror"', text)) == 2 * 5
    assert "below the dashed line: no more than blind" in text
    assert ">undefended<" in text


def test_nothing_went_wrong_and_nothing_was_fetched(drawn):
    text, console, _ = drawn
    assert "data-errors" not in text[:2000]
    assert console == []


def test_hostile_names_do_nothing_in_a_browser(drawn):
    text, _, _ = drawn
    assert "data-pwned" not in text
    assert "<img" not in re.sub(r"<script.*?</script>", "", text, flags=re.S)


def test_no_leaderboard_is_cut_in_a_window_of_1200_pixels(report, tmp_path):
    """The guarantee is its last column."""
    measure = (
        "<script>document.documentElement.dataset.cut = "
        "[...document.querySelectorAll('#leaderboard .scroll')]"
        ".map(b => b.scrollWidth - b.clientWidth).join(' ')</script></body>"
    )
    text = re.sub(r"<meta http-equiv=[^>]*>", "", report.read_text(encoding="utf-8"))
    page = tmp_path / "measured.html"
    page.write_text(text.replace("</body>", measure), encoding="utf-8")
    cut = re.search(r'data-cut="([^"]*)"', dom(page, tmp_path / "profile", 1200)[0])
    assert cut is not None
    assert set(cut[1].split()) == {"0"}


def test_nothing_is_cut_on_a_phone(report, tmp_path):
    """No window is that narrow, so the page stands in a frame and says how far it overflows."""
    measure = (
        "<script>window.addEventListener('load', () => setTimeout(() => parent.postMessage("
        "[...document.querySelectorAll('html, .scroll, caption, h1, h2, h3')]"
        ".map(b => b.scrollWidth - b.clientWidth).join(' '), '*'), 50))</script></body>"
    )
    text = re.sub(r"<meta http-equiv=[^>]*>", "", report.read_text(encoding="utf-8"))
    (tmp_path / "inner.html").write_text(text.replace("</body>", measure), encoding="utf-8")
    outer = tmp_path / "outer.html"
    outer.write_text(
        "<script>window.onmessage = e => document.documentElement.dataset.cut = e.data</script>"
        '<iframe src="inner.html" width="390" height="800" style="border: 0"></iframe>'
    )
    cut = re.search(r'data-cut="([^"]*)"', dom(outer, tmp_path / "profile")[0])
    assert cut is not None
    assert len(cut[1].split()) > 20
    assert set(cut[1].split()) == {"0"}
