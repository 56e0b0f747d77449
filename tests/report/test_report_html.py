"""The page: complete, self-contained, escaped, the same bytes twice, robust to a broken part."""

import json
import os
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from synthetic_run import DEFENSES, SETTINGS, rows, write_run

from fedtrees.core.errors import StoreError, UsageError
from fedtrees.report import glossary, load_rows, plot, write_report
from fedtrees.report import html as page_of
from fedtrees.report.html import SECTIONS, render
from fedtrees.report.markup import tag
from fedtrees.report.study import Study

HOSTILE = '"><script>window.pwned=1</script><img src=x onerror="window.pwned=1">%{x}$a$'
VOID = {"meta", "br", "wbr", "img", "link", "input"}


class Page(HTMLParser):
    """What a browser would make of the page, scripts and styles apart."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.text, self.open, self.scripts, self.bad = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID and tag not in {"path", "circle", "rect"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.bad.append(tag)

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        (self.scripts if inside in {"script", "style"} else self.text).append(data)

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
    """One setting, two defenses: enough where the contents do not matter."""
    few = [d for d in DEFENSES if d[0] in ("none", "laplace-hist")]
    folder = tmp_path_factory.mktemp("small")
    return write_run(folder, list(rows(SETTINGS[:1], few, (0, 1))))


def test_every_section_is_there_and_none_of_them_broke(page):
    names = [a.get("id") for a in page.all("section")]
    assert names == [name for name, *_ in SECTIONS]
    links = {a["href"] for a in page.all("a")}
    assert {f"#{n}" for n in names} < links
    assert "could not be made" not in " ".join(page.text)


def test_nothing_is_loaded_from_anywhere(page):
    for name, attrs in page.tags:
        for key in ("src", "srcset", "data", "action", "poster", "background"):
            assert key not in attrs, (name, attrs)
        assert attrs.get("href", "#").startswith("#")
    assert not page.all("link")
    css = "".join(s for s in page.scripts if s.lstrip().startswith(":root"))
    assert css
    assert "url(" not in css
    assert "@import" not in css
    (policy,) = (a["content"] for a in page.all("meta") if "Content-Security-Policy" in str(a))
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_plotly_is_inlined_once(text):
    assert text.count("* plotly.js v") == 1
    assert len(text) < 7_000_000


def test_tags_are_closed_in_order(page):
    assert not page.bad
    assert not page.open


def test_tables_have_captions_and_header_cells(page):
    assert len(page.all("table")) > 15
    assert len(page.all("caption")) == len(page.all("table"))
    scopes = {a.get("scope") for a in page.all("th")}
    assert scopes == {"row", "col"}


def test_every_figure_says_in_words_what_it_is(page):
    charts = [a for a in page.all("div") if "data-chart" in a]
    # 4 frontiers, 2 x 2 attack grids, 4 feature grids, 2 costs, alone and against protection
    assert len(charts) == 16
    grids = [a["aria-label"] for a in charts if "per threat and attack" in a["aria-label"]]
    assert [("(exact_rows)" in label) for label in grids] == [False, True] * 2
    assert all(a["role"] == "img" and len(a["aria-label"]) > 20 for a in charts)


def test_headings_do_not_skip_a_level(page):
    levels = [int(t[1]) for t, _ in page.tags if re.fullmatch("h[1-6]", t)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


def test_the_page_tells_what_failed_and_how_to_repeat(page):
    text = " ".join(page.text)
    assert "600 s limit" in text
    assert "ProtocolError: no tree <0> in the view & nothing else" in text
    assert "paillier guards Histogram; bagging sends whole trees" in text
    assert 'name = "synthetic"' in text
    assert "local gradient sums" in text


def test_the_same_run_gives_the_same_bytes(small):
    first = write_report(small).read_bytes()
    assert write_report(small).read_bytes() == first


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    few = [d for d in DEFENSES if d[0] == "none"]
    table = [r | {"dataset": HOSTILE, "threat": r["threat"] and HOSTILE,
                  "attack": r["attack"] and HOSTILE, "reason": r["reason"] and HOSTILE,
                  "metric": r["metric"].replace("age", HOSTILE), "run": HOSTILE}
             for r in rows(SETTINGS[:1], few, (0, 1))]  # fmt: skip
    folder = write_run(tmp_path_factory.mktemp("hostile"), table)
    entry = dict.fromkeys(("protocol", "defense", "type", "from", "to", "why"), HOSTILE)
    (folder / "disclosure.json").write_text(json.dumps([entry | {"reveals": [HOSTILE]}]))
    (folder / "suite.toml").write_text(f"# {HOSTILE}\n</pre></script>")
    (folder / "environment.json").write_text(json.dumps({HOSTILE: HOSTILE}))
    return write_report(folder)


def test_hostile_names_stay_text(hostile):
    text = hostile.read_text(encoding="utf-8")
    page = Page(text)
    assert not page.bad
    assert not page.all("img")
    assert len(page.all("script")) == 3  # the data, plotly, ours
    assert all(not k.startswith("on") for _, attrs in page.tags for k in attrs)
    assert HOSTILE in " ".join(page.text)
    assert "could not be made" not in " ".join(page.text)
    assert not re.search(r"<script>window\.pwned", text)


def test_hostile_names_are_harmless_to_plotly(hostile):
    text = hostile.read_text(encoding="utf-8")
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', text, re.S).group(1))

    def strings(value):
        if isinstance(value, dict):
            for v in value.values():
                yield from strings(v)
        elif isinstance(value, list):
            for v in value:
                yield from strings(v)
        elif isinstance(value, str):
            yield value

    tags = {t for s in strings(charts) for t in re.findall(r"<(\w+)", s)}
    assert tags <= {"b", "br", "extra"}
    assert all("%{x}" not in s for s in strings(charts))


def test_a_section_that_breaks_becomes_a_note_and_the_rest_stays(small, monkeypatch):
    def broken(study, charts):
        charts.add({"": "{}"}, "half made")
        raise ZeroDivisionError("no <axis>")

    changed = tuple((n, s, t, broken if n == "cost" else b) for n, s, t, b in SECTIONS)
    monkeypatch.setattr(page_of, "SECTIONS", changed)
    page = Page(render(Study(small, load_rows(small))))
    text = " ".join(page.text)
    assert "This section could not be made (ZeroDivisionError: no <axis>)" in text
    assert len(page.all("section")) == len(SECTIONS)
    assert "half made" not in str(page.tags)
    assert not page.bad


def test_a_run_without_side_files_still_reports(tmp_path, small):
    folder = write_run(tmp_path, list(rows(SETTINGS[:1], DEFENSES[:1], (0,))))
    for name in ("suite.toml", "environment.json", "disclosure.json"):
        (folder / name).unlink()
    text = " ".join(Page(write_report(folder).read_text(encoding="utf-8")).text)
    assert "could not be made" not in text
    assert "no disclosure record" in text


def test_a_run_that_only_trained_still_reports(tmp_path):
    table = [r for r in rows(SETTINGS[:1], DEFENSES[:2], (0,)) if r["stage"] == "train"]
    page = Page(write_report(write_run(tmp_path, table)).read_text(encoding="utf-8"))
    assert "could not be made" not in " ".join(page.text)
    assert "No attack has run yet" in " ".join(page.text)


def test_an_empty_run_still_reports(tmp_path):
    text = write_report(write_run(tmp_path, [])).read_text(encoding="utf-8")
    assert "could not be made" not in " ".join(Page(text).text)


def test_an_unwritable_report_leaves_nothing_behind(small, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = sorted(p.name for p in small.iterdir())
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreError, match="No space left"):
        write_report(small)
    assert sorted(p.name for p in small.iterdir()) == before


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Two defenses, one threat, one panel."""
    few = [r for r in rows(SETTINGS[:1], DEFENSES[:2], (0, 1)) if r["threat"] != "client"]
    table = [r | {"dataset": "cost_$a$_b"} for r in few]
    return write_run(tmp_path_factory.mktemp("tiny"), table)


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf", "html"])
def test_plot_writes_the_format_of_the_suffix_twice_the_same(tiny, tmp_path, suffix):
    start = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF", "html": b"<!DOCTYPE html>"}
    first = plot(tiny, tmp_path / f"a.{suffix}").read_bytes()
    assert first.startswith(start[suffix])
    assert plot(tiny, tmp_path / f"b.{suffix}").read_bytes() == first


def test_the_paper_figure_has_real_text_and_the_width_of_a_column(tmp_path, tiny):
    svg = plot(tiny, tmp_path / "f.svg").read_text(encoding="utf-8")
    assert "undefended" in svg
    assert float(re.search(r'width="([\d.]+)pt"', svg).group(1)) < 3.5 * 72
    plot(tiny, tmp_path / "h.svg", figure="heatmap")
    assert "cost_$a$_b" in (tmp_path / "h.svg").read_text(encoding="utf-8")


def test_an_unknown_suffix_names_the_known_ones(small, tmp_path):
    with pytest.raises(UsageError, match=r"\.html, \.svg, \.png, \.pdf"):
        plot(small, tmp_path / "f.jpeg")


def test_an_unknown_metric_is_answered_with_the_nearest(small, tmp_path):
    with pytest.raises(UsageError, match="did you mean 'exact_rows'"):
        plot(small, tmp_path / "f.svg", metric="exact_row")
    with pytest.raises(UsageError, match="did you mean 'auc'"):
        write_report(small, utility="aucc")


def test_the_chosen_metric_is_the_one_shown(small):
    study = Study(small, load_rows(small), "leaf_mass_exact", "log_loss")
    assert {(f.metric, f.utility) for f in study.frontiers} == {("leaf_mass_exact", "log_loss")}


def test_markup_escapes_everything_that_is_not_markup():
    made = tag("p", "<b>", title='"><x', hidden=True, role=None)
    assert made == '<p title="&quot;&gt;&lt;x" hidden>&lt;b&gt;</p>'


def test_the_docs_and_the_report_have_one_glossary(page):
    concepts = (Path(__file__).parents[2] / "docs" / "explanation/concepts.md").read_text(encoding="utf-8")
    assert glossary.markdown() in concepts
    anchors = {a["id"] for a in page.all("dt")}
    assert anchors == {term.anchor for term in glossary.TERMS}
    links = {a["href"] for a in page.all("a") if a.get("class") == "term"}
    assert links
    assert {link.removeprefix("#") for link in links} <= anchors


def test_words_are_explained_once_and_only_whole():
    words = glossary.Explained([("defense", "split-only")])
    text = words("blind <b> and blind again, blindly; split-only[k=1] and AUC")
    assert text.count("<abbr") == 3
    assert "&lt;b&gt;" in text
    assert ">blind</abbr></a> &lt;b&gt; and blind again, blindly" in text
    assert 'title="' in text.partition("split-only</abbr>")[0][-400:]


def test_the_first_box_answers_every_adversary_and_says_what_to_do(page, rows):
    text = " ".join("".join(page.text).split())
    for words in (
        "The party 'server' can rebuild",
        "The party 'client' can rebuild",
        "What to do, in order",
    ):
        assert words in text
    assert "Not tried: " in text or "Still open: " in text
