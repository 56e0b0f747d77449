"""The page is self-contained, escaped and deterministic, even if parts of the run are missing."""

import os
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from synthetic_run import DEFENSES, SETTINGS, rows, write_run

from fedtrees.core.errors import StoreError, UsageError
from fedtrees.report import load_rows, plot, write_report

HOSTILE = '"><script>window.pwned=1</script><img src=x onerror="window.pwned=1">%{x}$a${{7*7}}'
VOID = {"meta", "br", "wbr", "img", "link", "input", "line", "rect", "circle", "path"}


class Page(HTMLParser):
    """The elements and texts of a page, apart from scripts and styles."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.text, self.open, self.scripts, self.bad = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.bad.append(tag)

    def handle_data(self, data):
        parent = self.open[-1] if self.open else ""
        (self.scripts if parent in {"script", "style"} else self.text).append(data)

    def all(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]


@pytest.fixture(scope="module")
def text(report):
    return report.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    two_defenses = [defense for defense in DEFENSES if defense[0] in ("none", "laplace-hist")]
    return write_run(
        tmp_path_factory.mktemp("small"), list(rows(SETTINGS[:1], two_defenses, (0, 1)))
    )


def test_nothing_is_loaded_from_anywhere(page):
    for name, attrs in page.tags:
        for key in ("src", "srcset", "data", "action", "poster", "background"):
            assert key not in attrs, (name, attrs)
        assert attrs.get("href", "#").startswith("#")
    assert not page.all("link")
    assert "url(" not in "".join(page.scripts)
    assert "@import" not in "".join(page.scripts)
    (policy,) = (a["content"] for a in page.all("meta") if "Content-Security-Policy" in str(a))
    assert policy.startswith("default-src 'none'")


def test_it_is_small_and_no_cell_is_blank(page, text):
    assert len(text.encode()) < 250_000
    assert "n/a" not in " ".join(page.text)
    assert "nan" not in re.findall(r"\bnan\b", " ".join(page.text))


def test_tags_are_closed_in_order_and_headings_skip_no_level(page):
    assert not page.bad
    assert not page.open
    levels = [int(t[1]) for t, _ in page.tags if re.fullmatch("h[1-6]", t)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


def test_every_mark_has_a_label_in_words_and_links_to_its_row(page):
    marks = [element for element in page.all("a") if element.get("class") == "pt"]
    assert len(marks) > 20
    ids = {element["id"] for element in page.all("tr") if "id" in element}
    assert {element["href"][1:] for element in marks} <= ids
    assert all(len(element["aria-label"]) > 20 for element in marks)
    assert {element.get("scope") for element in page.all("th")} <= {"row", "col", "colgroup"}


def test_failures_and_the_command_to_repeat_the_run_are_stated(page):
    text = " ".join(page.text)
    assert "600 s limit" in text
    assert "ProtocolError: no tree <0> in the view & nothing else" in text
    assert "paillier guards Histogram; bagging sends whole trees" in text
    assert 'name = "synthetic"' in text
    assert "local gradient sums" in text


@pytest.mark.long
def test_the_same_run_gives_the_same_bytes(small):
    first = write_report(small).read_bytes()
    assert write_report(small).read_bytes() == first


def test_hostile_names_stay_text(tmp_path):
    two_defenses = [defense for defense in DEFENSES if defense[0] in ("none", "split-only")]
    table = [
        row | {"attack": row["attack"] and row["attack"] + HOSTILE, "dataset": "d" + HOSTILE,
             "reason": row["reason"] + HOSTILE}
        for row in rows(SETTINGS[:1], two_defenses)
    ]  # fmt: skip
    page = Page(write_report(write_run(tmp_path, table)).read_text(encoding="utf-8"))
    assert "window.pwned" not in "".join(page.scripts)
    assert not page.all("img")
    assert "{{7*7}}" in " ".join(page.text)
    assert not page.bad


def test_a_run_without_side_files_still_reports(tmp_path, small):
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "rows.csv").write_bytes((small / "rows.csv").read_bytes())
    assert "kept no suite.toml" in write_report(folder).read_text(encoding="utf-8")


@pytest.mark.parametrize("stages", [("train", "reference"), ("reference",), ()])
def test_a_run_that_attacked_nothing_still_reports(tmp_path, stages):
    table = [r for r in rows(SETTINGS[:1]) if r["stage"] in stages]
    assert write_report(write_run(tmp_path, table)).stat().st_size > 10_000


def test_an_unwritable_report_leaves_nothing_behind(small, monkeypatch):
    (small / "report.html").unlink(missing_ok=True)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        write_report(small)
    assert not [p.name for p in small.iterdir() if "report" in p.name]


def test_a_margin_is_an_advantage(small):
    with pytest.raises(UsageError, match="above 0 and below 1"):
        write_report(small, margin=1.5)


@pytest.mark.long(but=("[svg]",))
@pytest.mark.parametrize("suffix", ["html", "svg", "png", "pdf"])
def test_plot_is_deterministic_and_follows_the_suffix(small, tmp_path, suffix):
    contents = [plot(small, tmp_path / f"{number}.{suffix}").read_bytes() for number in range(2)]
    assert contents[0] == contents[1]
    first_bytes = {"html": b"<!doctype html>", "svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    assert contents[0].startswith(first_bytes[suffix])
    if suffix == "html":
        assert contents[0].count(b"* plotly.js v") == 1


def test_an_unknown_suffix_and_metric_are_answered(small, tmp_path):
    with pytest.raises(UsageError, match="end the name in"):
        plot(small, tmp_path / "x.jpg")
    with pytest.raises(UsageError, match="did you mean 'exact_rows'"):
        plot(small, tmp_path / "x.svg", metric="exact_row")


def test_rows_of_the_run_are_those_that_are_shown(small):
    assert len(load_rows(small)) > 100
