"""The command bound: what several processes say together."""

import json

import pytest
from typer.testing import CliRunner

from fedtrees.bounds.cells import lines
from fedtrees.bounds.tables import TinyTables
from fedtrees.cli.main import app
from fedtrees.core.specs import parse_composed, parse_grid


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


def test_parties_with_columns_have_no_ceiling_instead_of_a_false_one():
    (line,) = lines(
        TinyTables(2, (1, 1)), parse_grid("secureboost")[0], parse_composed(["none"])[0], ()
    )
    assert line["why"].startswith("no table is trained on: ")
