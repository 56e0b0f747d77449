"""The site of the documentation: no warning, no page under embargo, no barrier for readers."""

import fcntl
import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import fedtrees

sys.path.insert(0, str(Path(__file__).parent / "report"))
from test_report_browser import AXE, BROWSER, CHECKED, dom, overflowing_elements

ROOT = Path(__file__).parents[1]
SHOWN = ("index", "studies/peeling", "notebooks/view_attack")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site, built with the theme that is published, once for all processes of a test run."""
    for module in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(module, reason="the docs extra is not installed")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, finished = shared / "site", shared / "site.finished"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.is_file():
            process = subprocess.run(
                [*command, str(ROOT / "docs"), str(folder)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert process.returncode == 0, process.stderr[-3000:]
            finished.touch()
    return folder


@pytest.mark.long
def test_the_site_builds_without_a_warning_and_contains_the_gallery_and_the_leaderboard(site):
    for name in ("index", "gallery", "leaderboard", "search", *SHOWN):
        assert (site / f"{name}.html").is_file()
    links = re.findall(r'href="([\w-]+)\.html"', (site / "index.html").read_text(encoding="utf-8"))
    assert {"gallery", "leaderboard", "faq"} <= set(links)
    assert "timberstrike" in (site / "searchindex.js").read_text(encoding="utf-8")


@pytest.mark.long
def test_every_public_name_has_a_page_with_its_documentation(site):
    for name in set(fedtrees.__all__) - {"__version__"}:
        page = (site / f"reference/api/fedtrees.{name}.html").read_text(encoding="utf-8")
        assert f"<h1>{name}" in page


def broken_links(site):
    """Return the links between pages whose file or whose heading does not exist."""
    identifiers = {
        page: set(re.findall(r'\bid="([^"]+)"', page.read_text(encoding="utf-8")))
        for page in site.rglob("*.html")
    }
    broken = []
    for page in identifiers:
        for link in set(re.findall(r'(?:href|src)="([^"]+)"', page.read_text(encoding="utf-8"))):
            parts = urlsplit(html.unescape(link))
            if parts.scheme:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            heading = unquote(parts.fragment)
            known = identifiers.get(target, {heading})
            if not target.exists() or (heading and heading not in known):
                broken.append((page.relative_to(site).as_posix(), link))
    return broken


@pytest.mark.long
def test_every_link_between_pages_leads_to_a_page_and_a_heading(site):
    assert broken_links(site) == []


def test_a_broken_link_is_reported(tmp_path):
    text = '<h1 id="top">A</h1><a href="#top">a</a><a href="b.html">b</a><a href="#no">c</a>'
    (tmp_path / "a.html").write_text(text, encoding="utf-8")
    assert sorted(broken_links(tmp_path)) == [("a.html", "#no"), ("a.html", "b.html")]


@pytest.mark.long
def test_pages_under_embargo_are_neither_built_nor_linked_nor_found_by_the_search(site):
    hidden = [
        page.stem
        for page in (ROOT / "docs/disclosures").glob("*.md")
        if page.read_text(encoding="utf-8").startswith("---\ntags: [embargo]")
    ]
    assert hidden
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    for name in hidden:
        assert not (site / f"disclosures/{name}.html").exists()
        assert not (site / f"_sources/disclosures/{name}.md.txt").exists()
        assert name not in index


@pytest.mark.long
@pytest.mark.skipif(not (BROWSER and AXE.is_file()), reason="needs chromium and axe-core")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", SHOWN)
def test_a_screen_reader_meets_no_barrier_on_a_page(site, name, theme, tmp_path):
    page = site / f"{name}.html"
    copy = page.with_name(
        f"axe-{theme}-{page.name}"
    )  # in the folder of the page, because of its relative links
    text = page.read_text(encoding="utf-8")
    chosen = f"<script>localStorage.setItem('theme', '{theme}')</script>"
    text = re.sub(r"(<head[^>]*>)", lambda head: head[1] + chosen, text, count=1)
    script = f'<script src="{AXE.as_uri()}"></script>{CHECKED}'
    copy.write_text(text.replace("</body>", script), encoding="utf-8")
    document, _ = dom(copy, tmp_path / "profile", 1400)
    copy.unlink()
    assert f'data-theme="{theme}"' in document
    passes, violations = json.loads(html.unescape(re.search(r'data-axe="([^"]*)"', document)[1]))
    assert violations == []
    assert passes > 20


@pytest.mark.long
@pytest.mark.skipif(not BROWSER, reason="needs chromium")
@pytest.mark.parametrize("name", SHOWN)
def test_no_page_is_wider_than_a_telephone(site, name, tmp_path):
    copy = shutil.copytree(site, tmp_path / "site")
    folder = (copy / f"{name}.html").parent
    assert overflowing_elements(folder / f"{Path(name).name}.html", folder) == []
