"""The suite `exact` runs the published solvers and fast attacks under one time limit."""

import json
import tomllib

import numpy as np
import pytest
from typer.testing import CliRunner

from fedtrees.cli.main import app
from fedtrees.experiments.suite import Suite
from fedtrees.report.results import load_rows

#: Published solvers of the suite, by the parameter that chooses them.
PUBLISHED = {("draft-dp", "cpsat-rows"), ("timberstrike", "local-search")}


def solver_of(attack):
    return attack.name, attack.params.get("mode", attack.params.get("solver", ""))


def test_the_suite_has_every_published_solver_and_fast_attacks():
    suite = Suite.load("exact")
    assert len(suite.seeds) >= 3
    solvers = {solver_of(attack) for grid in suite.grids for attack in grid.attacks}
    assert solvers > PUBLISHED
    assert {name for name, _ in solvers - PUBLISHED} == {"draft-dp", "timberstrike"}
    for grid in suite.grids:
        assert len({attack.name for attack in grid.attacks}) == 1
        limits = [attack.params["limit"] for attack in grid.attacks if "limit" in attack.params]
        # The limit of the suite ends every attack, and the solvers stop before it.
        assert all(limit < suite.time_limit for limit in limits)


@pytest.mark.long
def test_every_attack_of_the_suite_finishes_on_a_small_table(tmp_path):
    """The tables of the papers have to be downloaded, so two other tables replace them."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (25, 5))
    lines = ["a,b,c,d,e,y", *(",".join(map(str, [*row, row[0] ^ row[1]])) for row in X)]
    (tmp_path / "bits.csv").write_text("\n".join(lines) + "\n")
    text = Suite.load("exact").to_toml()
    bits = (
        f'[{{csv = "{tmp_path / "bits.csv"}", target = "y", '
        'categorical = ["a", "b", "c", "d", "e"]}]'
    )
    for old, new in {
        'data = ["compas-binary[rows=63]"]': f"data = {bits}",
        'data = ["pima"]': 'data = ["breast-cancer[rows=60]"]',
        "seeds = [0, 1, 2]": "seeds = [0]",
        '"dp-forest[trees=10,depth=3,epsilon=1]", "dp-forest[trees=10,depth=3,epsilon=5]", ': "",
    }.items():
        assert old in text
        text = text.replace(old, new)
    assert tomllib.loads(text)["grid"][0]["attacks"] == [
        str(attack) for attack in Suite.load("exact").grids[0].attacks
    ]
    # Small programmes find a table early, but a proof of optimality would use the complete limit.
    (tmp_path / "small.toml").write_text(text.replace("limit=30", "limit=5"))
    options = [
        "--suite",
        str(tmp_path / "small.toml"),
        "--output",
        str(tmp_path / "run"),
        "-j",
        "1",
    ]
    result = CliRunner().invoke(app, ["bench", *options, "--format", "json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["leaderboards"]
    rows = load_rows(tmp_path / "run")
    rows = rows[(rows["stage"] == "attack") & (rows["metric"] == "ra")]
    assert set(rows["status"]) == {"ok"}
    ra = rows.groupby(["attack", "attack_params", "protocol_params", "defense"], dropna=False)
    assert len(ra) == 2 * 3 + 2 * 2
    exact = rows[rows["attack_params"].fillna("").str.contains("cpsat")]
    # Without noise, the published programme finds most values.
    noiseless = exact[exact["protocol_params"].str.contains("inf")]["value"]
    assert len(noiseless) == 1
    assert noiseless.min() > 0.8
