"""Pages allow the inline scripts of the package and no others."""

import base64
import hashlib
import re
from importlib import resources

import pytest
from synthetic_run import DEFENSES, SETTINGS, rows, write_run

from fedtrees.benchmarks import gallery
from fedtrees.report import submissions, write_report
from fedtrees.report.figures.plot import plot
from fedtrees.report.leaderboard import board


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    two_defenses = [defense for defense in DEFENSES if defense[0] in ("none", "split-only")]
    return write_run(tmp_path_factory.mktemp("pages"), [*rows(SETTINGS[2:3], two_defenses)])


def hash_of(script):
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@pytest.mark.parametrize("page_name", ["report", "leaderboard", "frontier", "gallery"])
def test_a_page_allows_only_its_inline_scripts_by_their_hashes(run, tmp_path, page_name):
    if page_name == "gallery":
        text = gallery.page()
    elif page_name == "report":
        text = write_report(run).read_text(encoding="utf-8")
    elif page_name == "leaderboard":
        text = board([submissions.write(run, tmp_path / "one", "A. Author")], 0)
    else:
        text = plot(run, tmp_path / "figure.html").read_text(encoding="utf-8")
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    allowed = re.search(r"script-src ([^;]*);", policy)[1].split()
    scripts = re.findall(r"<script\b[^>]*>(.*?)</script>", text, re.DOTALL)
    assert scripts
    assert {*allowed} == {hash_of(script) for script in scripts}
    assert "default-src 'none'" in policy
    assert not re.search(r"<script[^>]*\bsrc=", text)
    head = text[: text.index("Content-Security-Policy")]
    assert "<script" not in head  # A policy applies only to the elements after it.


def test_every_template_takes_its_policy_from_the_script_that_it_contains():
    folder = resources.files("fedtrees.report") / "page_files"
    pages = [f for f in folder.iterdir() if f.name.endswith(".html.j2")]
    texts = [t for t in (f.read_text(encoding="utf-8") for f in pages) if "<html" in t]
    assert len(texts) == 5
    for text in texts:
        assert text.count('content="{{ policy }}"') == 1
        assert re.findall(r"<script\b[^>]*>(.*?)</script>", text) == ["{{ js }}"]
        assert not re.search(r"\son[a-z]+=", text)  # handlers in attributes have no hash
