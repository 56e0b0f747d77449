"""The command bound: what several processes say together."""

import json

import pytest
from typer.testing import CliRunner

from fedtrees.bounds.ceilings import lines
from fedtrees.bounds.tables import TinyTables
from fedtrees.cli.main import app
from fedtrees.core.specs import parse_composed, parse_grid, parse_list


@pytest.mark.long
def test_several_processes_say_what_one_would():
    defenses = ["none", "secure-sum+public-cuts"]
    asked = ["bound", "fedtree-hist", "--rows", "1,1", "-j", "2", "--format", "json"]
    found = CliRunner().invoke(app, [*asked, "-d", defenses[0], "-d", defenses[1]])
    assert found.exit_code == 0, found.output
    (protocol,) = parse_grid("fedtree-hist")
    tables = TinyTables(2, (1, 1))
    alone = [line for d in parse_composed(defenses) for line in lines(tables, protocol, d, ())]
    assert json.loads(found.stdout) == json.loads(json.dumps(alone))


def test_who_knows_rows_by_id_guesses_labels_and_who_has_these_columns():
    tables, none = TinyTables(2, (1, 1)), parse_composed(["none"])[0]
    active, passive = lines(tables, parse_grid("secureboost")[0], none, ())
    for line in (active, passive):
        assert (line["rows"], line["tables"]) == (2, 64)
        assert line["blind"] == pytest.approx(2 * 0.65)
        assert line["blind"] - 1e-12 <= line["ceiling"] < 2
    (asked,) = lines(tables, parse_grid("secureboost")[0], none, (), parse_list(["membership"]))
    assert asked["why"].startswith("rows are known by id")
