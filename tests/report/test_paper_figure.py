"""The figure of a paper: its width, its type, and that nothing stands on anything else."""

import itertools
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.font_manager import findfont
from matplotlib.text import Text
from synthetic_run import DEFENSES, rows, write_run

from fedtrees.cli.main import main
from fedtrees.core.errors import UsageError
from fedtrees.report.figures import static
from fedtrees.report.figures.plot import plot
from fedtrees.report.findings import RunAnalysis
from fedtrees.report.results import Selection, load_rows

TABLES = (("breast-cancer", 0.97, 0.31), ("wine", 0.93, 0.23), ("pima", 0.81, 0.15))
SETTINGS = [(d, "iid[clients=5]", "fedtree", "trees=20", auc, leak) for d, auc, leak in TABLES]
KEPT = ("", "ra", "auc", "applies")


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three datasets under two threats."""
    few = [r for r in rows(SETTINGS, DEFENSES, (0, 1)) if r["metric"] in KEPT]
    return write_run(tmp_path_factory.mktemp("three"), few)


@pytest.fixture(scope="module")
def panels(three):
    chosen = Selection(threat=["server"])
    return RunAnalysis(three, chosen.of(load_rows(three))).frontiers


def texts(figure):
    """Return every text of a figure with its box in points."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    unseen = {id(label) for ax in figure.axes for label in beyond(ax.xaxis) + beyond(ax.yaxis)}
    shown = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    shown = [t for t in shown if id(t) not in unseen]
    point = figure.dpi / 72
    found = []
    for text in shown:
        # Of an annotation the text alone, without its hair line.
        box = Text.get_window_extent(text, renderer)
        if box.width and box.height:
            found.append((text, [v / point for v in box.extents]))
    return found


def beyond(axis):
    """Return the labels of ticks that are kept but lie outside of an axis: none is drawn."""
    low, high = sorted(axis.get_view_interval())
    ticks = axis.get_major_ticks()
    return [
        label for t in ticks if not low <= t.get_loc() <= high for label in (t.label1, t.label2)
    ]


# Wide, narrow, with serifs: matplotlib brings them. The last is drawn where it is installed.
FONTS = ("DejaVu Sans", "STIXGeneral", "DejaVu Sans Mono", "Liberation Sans")


@pytest.mark.long
@pytest.mark.parametrize(
    ("width", "inches", "font"),
    [*(("column", 3.3, font) for font in FONTS), ("page", 7.0, FONTS[0])],
)
def test_no_text_of_a_figure_stands_on_another_or_outside(panels, width, inches, font, monkeypatch):
    monkeypatch.setitem(static.RC, "font.family", [font, "DejaVu Sans"])
    figure = static.frontier(panels, width=width)
    assert figure.get_size_inches()[0] == inches
    found = texts(figure)
    wide, high = figure.get_size_inches() * 72
    for text, (left, bottom, right, top) in found:
        assert left >= -0.5, text
        assert right <= wide + 0.5, text
        assert bottom >= -0.5, text
        assert top <= high + 0.5, text
    for (one, a), (other, b) in itertools.combinations(found, 2):
        over = [min(a[k + 2], b[k + 2]) - max(a[k], b[k]) for k in (0, 1)]
        assert min(over) < 0.5, (one, other)
    written = [text.get_text() for text, _ in found]
    assert len([t for t in written if t.startswith("ε=")]) == 3 * 4  # two swept defenses
    # In a column of 3.3 inches with the widest font, the long interval bars leave no place for one
    # label of a reference. A label without a place is not drawn.
    without = (width, font) == ("column", "DejaVu Sans Mono")
    expected = {"undefended": 4, "local-only": 3 - without, "blind": 3}  # one is in the legend
    assert {name: written.count(name) for name in expected} == expected
    assert {text.get_fontsize() for text, _ in found} == {7.0, 8.0}


@pytest.mark.long
def test_a_figure_is_drawn_in_the_font_it_was_laid_out_in_on_every_machine(panels):
    figure = static.frontier(panels, width="column")
    laid_out = texts(figure)
    with matplotlib.rc_context({"font.family": ["monospace"], "font.sans-serif": ["STIXGeneral"]}):
        assert [box for _, box in texts(figure)] == [box for _, box in laid_out]
        (file,) = {findfont(text.get_fontproperties()) for text, _ in laid_out}
    assert Path(file).name == "DejaVuSans.ttf"


@pytest.mark.long
def test_titles_say_in_what_panels_differ_and_labels_what_names_are_called(panels):
    labels = {"pima": "Pima", "laplace-hist": "noise", "auc": "area"}
    figure = static.frontier(panels, width="column", labels=labels)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["breast-cancer", "Pima", "wine"]
    written = {text.get_text() for text, _ in texts(figure)}
    assert {"noise", "area"} <= written
    assert not {"laplace-hist", "AUC", "pima"} & written
    with pytest.raises(UsageError, match=r"--label 'pina'.*did you mean 'pima'"):
        static.frontier(panels, labels={"pina": "Pima"})


def test_a_selection_keeps_what_it_names_and_the_references(three):
    every = load_rows(three)
    kept = Selection(data=["wine"], threat=["server"], protocol=["fedtree"]).of(every)
    assert set(kept["dataset"]) == {"wine"}
    assert set(kept["threat"]) == {"", "server"}
    assert (kept["stage"] == "reference").any()
    assert len(Selection(protocol=["fedtree[trees=20]"]).of(every)) == len(every)
    with pytest.raises(UsageError, match="--data 'wines' is nothing in this run; did you mean"):
        Selection(data=["wines"]).of(every)


def test_widths_and_labels_are_of_paper_figures(three, tmp_path):
    with pytest.raises(UsageError, match=r"as \.svg, \.png or \.pdf"):
        plot(three, tmp_path / "f.html", width="page")
    with pytest.raises(UsageError, match="unknown width 'pages'; did you mean 'page'"):
        plot(three, tmp_path / "f.svg", width="pages")


@pytest.mark.long
def test_points_in_one_place_are_rings_under_one_label(panels):
    (panel,) = (p for p in panels if p.panel.setting.dataset == "wine")
    base = panel.point("none")
    points = [
        replace(p, utilities=base.utilities, leakage=base.leakage)
        if p.defense in ("split-only", "masking") else p
        for p in panel.points
    ]  # fmt: skip
    figure = static.frontier([replace(panel, points=tuple(points))], width="column")
    written = [text.get_text() for text, _ in texts(figure)]
    assert "undefended, masking,\nsplit-only" in written or (
        "undefended, masking, split-only" in written
    )
    assert "ring: in one place" in written
    here = (base.utility.mean, base.advantage.mean)
    marks = [line for line in figure.axes[0].lines
             if line.get_marker() not in ("None", "|", "_", None)
             and [*zip(*line.get_data(), strict=True)] == [here]]  # fmt: skip
    sizes = sorted(line.get_markersize() for line in marks)
    assert len(set(sizes)) == 3
    assert [m.get_markerfacecolor() == "none" for m in sorted(marks, key=sizes_of)] == [
        False, True, True,
    ]  # fmt: skip


def sizes_of(line):
    return line.get_markersize()


def test_a_label_of_what_all_panels_share_is_no_mistake(panels):
    figure = static.frontier(panels[:1], labels={"breast-cancer": "BC", "server": "S"})
    assert figure.axes[0].get_title(loc="left") == ""


def test_a_title_breaks_between_its_parts_and_within_long_parameters():
    assert static._break_title("a · b", 10) == "a · b"
    assert static._break_title("alpha · beta · c", 10) == "alpha\nbeta · c"
    assert (
        static._break_title("hist[trees=10,depth=4] · client", 16)
        == "hist[trees=10,\ndepth=4]\nclient"
    )


def test_several_runs_are_one_figure_and_a_cell_counts_once(three, tmp_path, capsys):
    chosen = [r for r in rows(SETTINGS, DEFENSES, (0, 1)) if r["metric"] in KEPT]
    names = sorted({r["defense"] for r in chosen})
    halves = (names[:2], [names[0], *names[2:]])  # one defense is in both
    folders = [
        write_run(
            tmp_path / str(k), [r for r in chosen if r["defense"] in half or not r["defense"]]
        )
        for k, half in enumerate(halves)
    ]
    together = plot([*folders, folders[0]], tmp_path / "several.svg", metric="ra")
    assert together.read_bytes() == plot(three, tmp_path / "one.svg", metric="ra").read_bytes()
    assert (
        together.read_bytes() != plot(folders[0], tmp_path / "half.svg", metric="ra").read_bytes()
    )
    out = tmp_path / "printed.html"
    with pytest.raises(SystemExit) as stopped:
        main(["plot", *map(str, folders), "-o", str(out)])
    assert not stopped.value.code
    assert out.read_text().startswith("<!doctype html>")
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(["plot", *map(str, folders)])
    assert stopped.value.code == 2
    assert "give -o FILE" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no run to plot"):
        plot([], out)


def test_runs_that_contradict_one_another_are_not_drawn(three, tmp_path):
    other = [dict(r) for r in rows(SETTINGS, DEFENSES, (0, 1)) if r["metric"] in KEPT]
    for row in other:
        if row["stage"] == "train" and row["metric"] == "auc":
            row["value"] = float(row["value"]) - 0.1
    with pytest.raises(UsageError, match=r"both contain .* auc is"):
        plot([three, write_run(tmp_path / "other", other)], tmp_path / "f.svg")
