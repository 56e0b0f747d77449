"""Tables for papers: numbers, digits, ranks and marks, and LaTeX that accepts any name."""

import io
import re

import pandas as pd
import pytest
from synthetic_run import Table

from fedtrees.core.errors import UsageError
from fedtrees.report.paper_table import (
    _WIDEST,
    MarkupTable,
    TableCell,
    decimals,
    escape_latex,
    latex,
    table_of,
    write_table,
)
from fedtrees.report.results import Selection
from fedtrees.report.statistics import Estimate

# Per dataset and defense: AUC and advantage of two seeds. A blind guess scores 0.4 of 1.
MADE = {
    "a_1": {"none": (0.90, 0.5), "shield[step=2]": (0.80, 0.1), "fog": (0.85, 0.1)},
    "b%": {"none": (0.70, 0.4), "shield[step=2]": (0.60, -0.02), "fog": (0.50, -0.01)},
}


def fill(table, datasets=MADE, attack="a"):
    for dataset, defenses in datasets.items():
        for defense, (auc, advantage) in defenses.items():
            name, _, parameters = defense.partition("[")
            place = {"dataset": dataset, "defense_params": parameters.rstrip("]")}
            for seed, shift in ((0, -0.01), (1, 0.01)):
                table.train(name, seed, auc + shift, **place)
                # The helper sets `value` to 0.5 and the blind baseline to 0.4 everywhere.
                table.attack(name, seed, attack, advantage, **place)
    return table


@pytest.fixture
def run(tmp_path):
    table = fill(Table(tmp_path / "run"))
    table.rows()
    return tmp_path / "run"


def cells(text):
    """Return the cells of a Markdown table, the ruler left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[c.strip() for c in line.strip("|").split(" | ")] for line in lines[:1] + lines[2:]]


@pytest.mark.long
def test_names_become_neither_formulas_nor_lines(tmp_path):
    name = '=HYPERLINK("http://x")\nrest|more'
    table = fill(Table(tmp_path / "run"), {name: MADE["a_1"], "+1": MADE["b%"]})
    table.rows()
    paper_table = table_of([tmp_path / "run"])
    frame = pd.read_csv(io.StringIO(paper_table.csv()))
    assert set(frame["dataset"]) == {f"'{name}", "'+1"}
    assert set(frame["defense"]) == {"none", "shield[step=2]", "fog"}
    assert frame["mean"].dtype == float
    lines = [line for line in paper_table.md().splitlines() if line.strip()]
    n_columns = {line.count("|") - line.count(r"\|") for line in lines if line.startswith("|")}
    assert len(n_columns) == 1
    assert not any(line.startswith("rest") for line in lines)


def test_rows_are_defenses_in_a_block_per_dataset(run):
    head, *lines = cells(table_of([run]).md())
    assert head == ["dataset", "defense", "AUC", "RA, t"]
    assert [line[:2] for line in lines[:4]] == [
        ["a_1", "blind"], ["a_1", "undefended"], ["a_1", "fog"], ["a_1", "shield[step=2]"],
    ]  # fmt: skip
    assert [line[0] for line in lines[4:]] == ["b%"] * 4 + ["mean rank"] * 3
    assert lines[0][2:] == lines[4][2:] == ["", "0.400"]
    assert lines[1][2:] == ["0.90 ± 0.13", "0.500 ± 0.000"]
    assert lines[5][2:] == ["0.70 ± 0.13", "0.500 ± 0.000"]
    # AUC: 1, 1; 2, 3; 3, 2. Advantage: 3, 3; the others are alike at 0.1, and both below blind.
    assert [line[2:] for line in lines[8:]] == [["1.0", "3.0"], ["2.5", "1.5"], ["2.5", "1.5"]]


def test_the_numbers_are_in_the_csv_file(run, tmp_path):
    frame = pd.read_csv(write_table(table_of([run]), tmp_path / "t.csv"))
    auc = frame[(frame["metric"] == "auc") & (frame["defense"] == "none")].set_index("dataset")
    assert auc.loc["a_1", ["mean", "low", "high", "seeds"]].tolist() == pytest.approx(
        [0.90, 0.90 - 0.12706, 1.0, 2], abs=1e-5
    )  # 0.01 times the 97.5% quantile of Student's t with one degree of freedom, cut at an AUC of 1
    assert set(frame.loc[frame["threat"] == "t", "strongest_attack"]) == {"a"}


@pytest.mark.parametrize(
    ("halves", "digits"), [([0.2], 2), ([0.02], 2), ([0.01], 2), ([0.006], 3), ([4e-6], 4), ([], 3)]
)
def test_decimals_show_the_first_digit_of_the_spread(halves, digits):
    assert decimals([Estimate(0.5, 0.5 - h, 0.5 + h, 3) for h in halves]) == digits


def test_missing_results_are_marked_and_failed_attacks_have_no_rank(tmp_path):
    table = fill(Table(tmp_path / "run"))
    for dataset in MADE:
        for seed in (0, 1):
            table.trouble("fog", seed, "milp", "failed")
            table.lines[-1]["dataset"] = dataset
            table.train("seal", seed, 0.75, dataset=dataset)
            table.trouble("seal", seed, "a", "skipped", "nothing is sent")
            table.lines[-1]["dataset"] = dataset
    table.rows()
    paper_table = table_of([tmp_path / "run"])
    rows = {tuple(row[:2]): row[2:] for row in cells(paper_table.md())}
    assert rows["a_1", "fog"][1] == "0.500 ± 0.000†"
    assert rows["mean rank", "fog"][-1] == "–"
    assert rows["a_1", "seal"][1] == "n/a"
    # Equal to the blind baseline: rank 1 on one dataset, tied with shield on the other.
    assert rows["mean rank", "seal"][-1] == "1.2"
    assert len(paper_table.notes) == 4


def test_an_attack_below_blind_is_marked_and_has_no_rank(tmp_path):
    table = Table(tmp_path / "run")
    fill(
        table, {dataset: {**defenses, "fog": (0.85, -0.3)} for dataset, defenses in MADE.items()}
    ).rows()
    paper_table = table_of([tmp_path / "run"])
    rows = {tuple(row[:2]): row[2:] for row in cells(paper_table.md())}
    assert rows["a_1", "fog"][1].endswith("‡")
    assert rows["mean rank", "fog"][-1] == "–"
    assert any(
        "scored worse than a blind guess: nothing is shown" in note for note in paper_table.notes
    )
    assert set(paper_table.frame().query("attack_failed")["defense"]) == {"fog"}


def test_a_small_score_is_marked_if_another_attack_returned_no_claim(tmp_path):
    table = fill(Table(tmp_path / "run"))
    for dataset in MADE:
        for seed in (0, 1):
            for defense in ("none", "fog"):
                table.trouble(defense, seed, "b", "no-claim")
                table.lines[-1] |= {"dataset": dataset, "metric": "ra", "state_code": "no-claim"}
            table.attack("shield", seed, "b", 0.0, dataset=dataset, defense_params="step=2")
    table.rows()
    paper_table = table_of([tmp_path / "run"])
    assert set(paper_table.frame().query("no_claim")["defense"]) == {"fog"}
    rows = {tuple(row[:2]): row[2:] for row in cells(paper_table.md())}
    assert rows["b%", "fog"][1].endswith("§")
    assert not rows["b%", "undefended"][1].endswith("§")
    assert "§ an attack returned no claim" in paper_table.notes[-1]
    assert r"\S{} an attack returned no claim" in paper_table.tex()


def test_several_runs_are_one_table_and_a_cell_counts_once(run, tmp_path):
    other_datasets = {
        dataset: {"none": defenses["none"], "mist": (0.65, 0.3)}
        for dataset, defenses in MADE.items()
    }
    fill(Table(tmp_path / "other"), other_datasets).rows()
    paper_table = table_of([run, tmp_path / "other", run])
    assert [row[2] for row in paper_table.rows] == ["none", "fog", "mist", "shield[step=2]"]
    assert set(paper_table.frame()["seeds"]) == {2}
    other_datasets["b%"]["none"] = (0.71, 0.4)
    fill(Table(tmp_path / "wrong"), other_datasets).rows()
    with pytest.raises(UsageError, match=r"both contain b% .* auc is 0\.69 there and 0\.7 here"):
        table_of([run, tmp_path / "wrong"])


def test_the_population_baseline_is_below_the_blind_baseline_in_the_table(tmp_path):
    table = Table(tmp_path / "run")
    for seed in (0, 1):
        table.train("none", seed, 0.9)
        table.attack("none", seed, "a", 0.3, population=0.45)
    table.rows()
    text = write_table(table_of([tmp_path / "run"]), tmp_path / "t.md").read_text()
    assert [row[0] for row in cells(text)][:4] == ["defense", "blind", "population", "undefended"]
    assert cells(text)[2][2].startswith("0.45")
    assert "knows other rows of the population" in text


def test_protocols_become_rows_and_one_dataset_has_no_ranks(tmp_path):
    table = fill(Table(tmp_path / "run"), {"d": {"none": (0.9, 0.5)}})
    for seed in (0, 1):
        table.train("none", seed, 0.8, protocol="other")
        table.attack("none", seed, "a", 0.2, protocol="other")
    table.rows()
    head, _, *rows = cells(table_of([tmp_path / "run"], labels={"q": "Q"}).md())
    assert head == ["protocol", "AUC", "RA, t"]
    assert [row[0] for row in rows] == ["other", "Q"]
    only = table_of([tmp_path / "run"], chosen=Selection(protocol=["other"]))
    assert [row[1] for row in only.rows] == ["other"]


def special_characters(text):
    """Return the characters that LaTeX would interpret, apart from known commands."""
    remaining = re.sub(
        r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar)"
        r"\{\}|\\[{}$&#_%]|\{[][]\}",
        "",
        text,
    )
    remaining = re.sub(r"\$(\\pm|-|\^\\dagger|\^2|\\varepsilon|\\xi|\\cdot)\$", "", remaining)
    return re.findall(r"[\\{}$&#_%~^<>|\n]|[][]", remaining)


def test_every_character_is_escaped():
    printable = "".join(map(chr, range(32, 127))) + "±\N{MINUS SIGN}–†²εξ·\n"
    assert special_characters(escape_latex(printable)) == []
    assert special_characters("a_b")
    assert escape_latex("f[eps=1]_50%") == r"f{[}eps=1{]}\_50\%"


def test_latex_is_a_tabular_of_escaped_cells(run):
    labels = {"fog": "[fog] & \\mist{}", "auc": "50%_$"}
    text = table_of([run], labels=labels).tex()
    preamble, after_toprule = text.split("\\toprule\n")
    body, after_bottomrule = after_toprule.split("\\bottomrule\n")
    assert preamble.splitlines()[0] == r"% \usepackage{booktabs}"
    (columns,) = re.findall(r"\\begin\{tabular\}\{@\{\}(l+r+)@\{\}\}\n$", preamble)
    assert columns == "lrr"
    *notes, ending = after_bottomrule.rpartition("\\end{tabular}")[::2]
    assert ending == "\n\\endgroup\n"
    assert "Mean rank over datasets" in notes[0]
    assert preamble.count("{") == preamble.count("}")
    lines = body.splitlines()
    assert [line for line in lines if not line.endswith(r" \\")] == [r"\midrule"] * 3
    names = [line for line in lines if line.startswith(r"\multicolumn")]
    assert names == [rf"\multicolumn{{3}}{{@{{}}l}}{{\emph{{{name}}}}} \\"
                     for name in (r"a\_1", r"b\%", "mean rank")]  # fmt: skip
    rows = [line for line in lines if line.endswith(r" \\") and line not in names]
    split_rows = [re.split(r"(?<!\\)&", row.removesuffix(r" \\")) for row in rows]
    assert {len(row) for row in split_rows} == {len(columns)}
    assert split_rows[2][1:] == [r" 0.90$_{\pm.13}$ ", r" 0.500$_{\pm.000}$"]
    cells_without_spread = [re.sub(r"\$_\{\\pm\.\d+\}\$(\$\^\{\\dagger\}\$)?", "", cell)
             for row in split_rows for cell in row]  # fmt: skip
    assert not [cell for cell in cells_without_spread if special_characters(cell)]
    assert r"\textbackslash{}mist\{\}" in text


def test_a_long_label_takes_several_lines_and_fits_into_a_text_column():
    long_label = "split-only+secure-sum+dp-grid-cuts[epsilon=1]+hist-rounding[step=0.1]"
    markup = MarkupTable(
        ["defense", "AUC", "RA, t"],
        1,
        [("d", [[long_label, TableCell("0.91", "0.02", "†"), "n/a"]])],
    )
    lines = latex(markup).splitlines()
    assert [line for line in lines if "&" in line][1:] == [
        r"split-only+secure-sum+ & 0.91$_{\pm.02}$$^{\dagger}$ & n/a \\",
        r"\enspace dp-grid-cuts{[}epsilon=1{]}+ &  &  \\",
        r"\enspace hist-rounding{[}step=0.1{]} &  &  \\",
    ]
    # At 8 points, a letter is 4 points wide, a number with its spread 33, and a column 252.
    assert 4 * _WIDEST + 3 * (33 + 6) < 252


def test_an_unknown_label_or_suffix_is_refused(run, tmp_path):
    with pytest.raises(UsageError, match=r"--label: .*'fogg'; did you mean 'fog'"):
        table_of([run], labels={"fogg": "x"})
    with pytest.raises(UsageError, match=r"end the name in \.tex, \.csv or \.md"):
        write_table(table_of([run]), tmp_path / "t.xlsx")
    assert len(pd.read_csv(io.StringIO(table_of([run]).csv()))) == 12


def test_a_failed_attack_has_its_own_mark_in_latex():
    cells = ["x", TableCell("0.91", "0.02", "‡"), TableCell("0.91", "0.02", "†‡")]
    text = latex(MarkupTable(["defense", "AUC", "RA"], 1, [("d", [cells])]))
    assert r"0.91$_{\pm.02}$$^{\ddagger}$" in text
    assert r"$^{\dagger\ddagger}$" in text
