"""Figures for papers: width, fonts, and texts that do not overlap."""

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
    """Write a run of three datasets with two threats."""
    kept_rows = [row for row in rows(SETTINGS, DEFENSES, (0, 1)) if row["metric"] in KEPT]
    return write_run(tmp_path_factory.mktemp("three"), kept_rows)


@pytest.fixture(scope="module")
def panels(three):
    chosen = Selection(threat=["server"])
    return RunAnalysis(three, chosen.of(load_rows(three))).frontiers


def texts(figure):
    """Return every text of a figure with its box in points."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    ids_outside = {id(label) for ax in figure.axes for label in beyond(ax.xaxis) + beyond(ax.yaxis)}
    visible_texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    visible_texts = [t for t in visible_texts if id(t) not in ids_outside]
    point = figure.dpi / 72
    texts_and_boxes = []
    for text in visible_texts:
        # For an annotation, take the box of its text without the leader line.
        box = Text.get_window_extent(text, renderer)
        if box.width and box.height:
            texts_and_boxes.append((text, [coordinate / point for coordinate in box.extents]))
    return texts_and_boxes


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
def test_texts_of_a_figure_neither_overlap_nor_leave_it(panels, width, inches, font, monkeypatch):
    monkeypatch.setitem(static.RC, "font.family", [font, "DejaVu Sans"])
    figure = static.frontier(panels, width=width)
    assert figure.get_size_inches()[0] == inches
    boxes = texts(figure)
    width_points, height_points = figure.get_size_inches() * 72
    for text, (left, bottom, right, top) in boxes:
        assert left >= -0.5, text
        assert right <= width_points + 0.5, text
        assert bottom >= -0.5, text
        assert top <= height_points + 0.5, text
    for (text_1, box_1), (text_2, box_2) in itertools.combinations(boxes, 2):
        overlaps = [
            min(box_1[axis + 2], box_2[axis + 2]) - max(box_1[axis], box_2[axis]) for axis in (0, 1)
        ]
        assert min(overlaps) < 0.5, (text_1, text_2)
    texts_written = [text.get_text() for text, _ in boxes]
    assert (
        len([label for label in texts_written if label.startswith("ε=")]) == 3 * 4
    )  # two swept defenses
    expected = {
        "undefended": 4,
        "local-only": 3,
        "blind": 3,
    }  # one is in the legend
    assert {name: texts_written.count(name) for name in expected} == expected
    assert {text.get_fontsize() for text, _ in boxes} == {7.0, 8.0}


@pytest.mark.long
def test_a_figure_is_drawn_in_the_font_it_was_laid_out_in_on_every_machine(panels):
    figure = static.frontier(panels, width="column")
    laid_out = texts(figure)
    with matplotlib.rc_context({"font.family": ["monospace"], "font.sans-serif": ["STIXGeneral"]}):
        assert [box for _, box in texts(figure)] == [box for _, box in laid_out]
        (file,) = {findfont(text.get_fontproperties()) for text, _ in laid_out}
    assert Path(file).name == "DejaVuSans.ttf"


@pytest.mark.long
def test_titles_name_the_differences_of_panels_and_labels_replace_names(panels):
    labels = {"pima": "Pima", "laplace-hist": "noise", "auc": "area"}
    figure = static.frontier(panels, width="column", labels=labels)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["breast-cancer", "Pima", "wine"]
    texts_written = {text.get_text() for text, _ in texts(figure)}
    assert {"noise", "area"} <= texts_written
    assert not {"laplace-hist", "AUC", "pima"} & texts_written
    with pytest.raises(UsageError, match=r"--label: .*'pina'; did you mean 'pima'"):
        static.frontier(panels, labels={"pina": "Pima"})


def test_a_selection_keeps_the_named_rows_and_the_references(three):
    all_rows = load_rows(three)
    selected = Selection(data=["wine"], threat=["server"], protocol=["fedtree"]).of(all_rows)
    assert set(selected["dataset"]) == {"wine"}
    assert set(selected["threat"]) == {"", "server"}
    assert (selected["stage"] == "reference").any()
    assert len(Selection(protocol=["fedtree[trees=20]"]).of(all_rows)) == len(all_rows)
    with pytest.raises(UsageError, match="--data: this run does not contain 'wines'; did you mean"):
        Selection(data=["wines"]).of(all_rows)


def test_a_selection_of_defenses_keeps_the_undefended_run(three):
    all_rows = load_rows(three)
    selected = Selection(defense=["laplace-hist"]).of(all_rows)
    assert {"none"} < set(selected["defense_spec"]) - {""}
    assert {*selected["defense"]} - {"", "none"} == {"laplace-hist"}
    assert set(Selection(defense=["undefended"]).of(all_rows)["defense"]) - {""} == {"none"}
    with pytest.raises(UsageError, match=r"--defense: .* 'laplace-hits'; did you mean"):
        Selection(defense=["laplace-hits"]).of(all_rows)


def test_a_metric_for_the_other_axis_is_refused_with_the_option_to_use(three, tmp_path):
    with pytest.raises(UsageError, match="measures the model, give --utility auc"):
        plot(three, tmp_path / "f.svg", metric="auc")
    with pytest.raises(UsageError, match="measures a leak, give --metric ra"):
        plot(three, tmp_path / "f.svg", utility="ra")


def test_widths_and_labels_are_of_paper_figures(three, tmp_path):
    with pytest.raises(UsageError, match=r"only for \.svg, \.png and \.pdf"):
        plot(three, tmp_path / "f.html", width="page")
    with pytest.raises(UsageError, match="unknown width 'pages'; did you mean 'page'"):
        plot(three, tmp_path / "f.svg", width="pages")


@pytest.mark.long
def test_points_at_one_place_are_rings_with_one_label(panels):
    (panel,) = (point for point in panels if point.panel.setting.dataset == "wine")
    base = panel.point("none")
    points = [
        replace(point, utilities=base.utilities, leakage=base.leakage)
        if point.defense in ("split-only", "masking") else point
        for point in panel.points
    ]  # fmt: skip
    figure = static.frontier([replace(panel, points=tuple(points))], width="column")
    texts_written = [text.get_text() for text, _ in texts(figure)]
    assert "undefended, masking,\nsplit-only" in texts_written or (
        "undefended, masking, split-only" in texts_written
    )
    assert "rings: same position" in texts_written
    place = (base.utility.mean, base.advantage.mean)
    marks = [line for line in figure.axes[0].lines
             if line.get_marker() not in ("None", "|", "_", None)
             and [*zip(*line.get_data(), strict=True)] == [place]]  # fmt: skip
    sizes = sorted(line.get_markersize() for line in marks)
    assert len(set(sizes)) == 3
    assert [mark.get_markerfacecolor() == "none" for mark in sorted(marks, key=sizes_of)] == [
        False, True, True,
    ]  # fmt: skip


def sizes_of(line):
    return line.get_markersize()


def test_a_label_for_a_name_that_all_panels_share_is_accepted(panels):
    figure = static.frontier(panels[:1], labels={"breast-cancer": "BC", "server": "S"})
    assert figure.axes[0].get_title(loc="left") == ""


def test_a_title_breaks_between_its_parts_and_within_long_parameters():
    assert static._break_title("a · b", 10) == "a · b"
    assert static._break_title("alpha · beta · c", 10) == "alpha\nbeta · c"
    assert (
        static._break_title("hist[trees=10,depth=4] · client", 16)
        == "hist[trees=10,\ndepth=4]\nclient"
    )


def test_several_runs_are_one_figure_and_a_cell_counts_once(tmp_path, capsys):
    kept_rows = [row for row in rows(SETTINGS[:1], DEFENSES, (0, 1)) if row["metric"] in KEPT]
    whole = write_run(tmp_path / "whole", kept_rows)
    names = sorted({row["defense"] for row in kept_rows})
    halves = (names[:2], [names[0], *names[2:]])  # one defense is in both
    folders = [
        write_run(
            tmp_path / str(number),
            [row for row in kept_rows if row["defense"] in half or not row["defense"]],
        )
        for number, half in enumerate(halves)
    ]
    combined = plot([*folders, folders[0]], tmp_path / "several.svg", metric="ra")
    assert combined.read_bytes() == plot(whole, tmp_path / "one.svg", metric="ra").read_bytes()
    assert (
        combined.read_bytes() != plot(folders[0], tmp_path / "half.svg", metric="ra").read_bytes()
    )
    path = tmp_path / "printed.html"
    with pytest.raises(SystemExit) as exit_info:
        main(["plot", *map(str, folders), "-o", str(path)])
    assert not exit_info.value.code
    assert path.read_text().startswith("<!doctype html>")
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_info:
        main(["plot", *map(str, folders)])
    assert exit_info.value.code == 2
    assert "give -o FILE" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no run to plot"):
        plot([], path)


def test_runs_that_contradict_one_another_are_not_drawn(three, tmp_path):
    changed_rows = [dict(r) for r in rows(SETTINGS, DEFENSES, (0, 1)) if r["metric"] in KEPT]
    for row in changed_rows:
        if row["stage"] == "train" and row["metric"] == "auc":
            row["value"] = float(row["value"]) - 0.1
    with pytest.raises(UsageError, match=r"both contain .* auc is"):
        plot([three, write_run(tmp_path / "other", changed_rows)], tmp_path / "f.svg")
