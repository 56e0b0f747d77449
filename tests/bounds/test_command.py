"""The command bound prints the same results with several processes."""

import json

import pytest
from typer.testing import CliRunner

from fedtrees.bounds.ceilings import lines
from fedtrees.bounds.tables import TinyTables
from fedtrees.cli.main import app
from fedtrees.core.specs import parse_composed, parse_grid, parse_list


@pytest.mark.long
def test_several_processes_print_the_same_as_one():
    defenses = ["none", "secure-sum+public-cuts"]
    arguments = ["bound", "fedtree-hist", "--rows", "1,1", "-j", "2", "--format", "json"]
    result = CliRunner().invoke(app, [*arguments, "-d", defenses[0], "-d", defenses[1]])
    assert result.exit_code == 0, result.output
    (protocol,) = parse_grid("fedtree-hist")
    tables = TinyTables(2, (1, 1))
    expected = [
        line
        for defense in parse_composed(defenses)
        for line in lines(tables, protocol, defense, ())
    ]
    assert json.loads(result.stdout) == json.loads(json.dumps(expected))


def test_aligned_parties_guess_labels_or_columns():
    tables, no_defense = TinyTables(2, (1, 1)), parse_composed(["none"])[0]
    active, passive = lines(tables, parse_grid("secureboost")[0], no_defense, ())
    for line in (active, passive):
        assert (line["rows"], line["tables"]) == (2, 64)
        assert line["blind"] == pytest.approx(2 * 0.65)
        assert line["blind"] - 1e-12 <= line["ceiling"] < 2
    (membership_line,) = lines(
        tables, parse_grid("secureboost")[0], no_defense, (), parse_list(["membership"])
    )
    assert membership_line["why"].startswith("rows are known by id")
