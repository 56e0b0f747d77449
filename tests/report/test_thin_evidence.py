"""Few seeds, few rows and surprising default measures are announced, in Python and in commands."""

import warnings

import pytest
from synthetic_run import Table

import fedtrees
from fedtrees.cli.main import main
from fedtrees.report.results import read_records

SEEDS = "d has 3 seeds. Intervals over fewer than 5 seeds are wide"
ROWS = "at most 150 rows of d were attacked. One row is 0.7% of them"
DIFFERENT = "leak of each adversary: ra for client and exact_rows for server"
NONE_LEAKS = "no leak to client was found, so that ra is shown"
USES = {
    "leaks": lambda run: run.leaks,
    "best": lambda run: run.best,
    "figure": lambda run: run.figure(),
    "table": lambda run: run.table(),
}


def written(folder, seeds, rows, client=0.3):
    """Write a run in which the server reads exact rows and the client may read values."""
    table = Table(folder)
    for seed in range(seeds):
        for defense, auc, left in (("none", 0.9, 1.0), ("split-only", 0.89, 0.1)):
            table.train(defense, seed, auc + 0.001 * seed)
            for threat, metric, advantage in (
                ("server", "exact_rows", 0.4), ("server", "ra", 0.4), ("client", "ra", client),
            ):  # fmt: skip
                remaining_advantage = left * advantage + 0.001 * seed
                more = {"value": 0.4 + 0.6 * remaining_advantage, "n": rows}
                table.attack(defense, seed, "a", remaining_advantage, metric, **more)
                table.lines[-1]["threat"] = threat
    table.rows()
    return folder


def noted(action):
    """Return the texts of the warnings that an action gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(w.message) for w in caught if w.category is UserWarning]


@pytest.mark.parametrize("use", USES)
def test_few_seeds_and_few_rows_are_announced_in_python(tmp_path, use):
    texts = noted(lambda: USES[use](fedtrees.Run(written(tmp_path, 3, 150))))
    assert [text.startswith(SEEDS) for text in texts].count(True) == 1
    assert [text.startswith(ROWS) for text in texts].count(True) == 1


@pytest.mark.parametrize("use", USES)
def test_enough_seeds_and_rows_give_no_warning(tmp_path, use):
    run = fedtrees.Run(written(tmp_path, 5, 250))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        USES[use](run)
    assert not [w for w in caught if "seeds" in str(w.message) or "rows of" in str(w.message)]


def test_a_warning_points_to_the_line_of_the_user(tmp_path):
    run = fedtrees.Run(written(tmp_path, 3, 150))
    for use in USES.values():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            use(run)
        assert {w.filename for w in caught if w.category is UserWarning} == {__file__}


@pytest.mark.parametrize("use", ["figure", "table"])
def test_a_default_measure_that_differs_between_adversaries_is_announced(tmp_path, use):
    run = fedtrees.Run(written(tmp_path, 5, 250))
    assert [DIFFERENT in text for text in noted(lambda: USES[use](run))] == [True]
    # A chosen measure, or one adversary, cannot surprise.
    assert noted(lambda: getattr(run, use)(metric="ra")) == []
    assert noted(lambda: getattr(run, use)(threat="server")) == []


@pytest.mark.parametrize("use", ["figure", "table"])
def test_a_default_measure_without_a_leak_is_announced(tmp_path, use):
    run = fedtrees.Run(written(tmp_path, 5, 250, client=0.0))
    assert [NONE_LEAKS in text for text in noted(lambda: USES[use](run))] == [True]


@pytest.mark.parametrize("command", [("plot",), ("results", "table")])
def test_commands_print_the_same_warnings_on_stderr(tmp_path, command, capsys):
    folder = str(written(tmp_path, 3, 150))
    with pytest.raises(SystemExit) as stopped:
        main([*command, folder])
    printed = " ".join(capsys.readouterr().err.split())
    assert not stopped.value.code
    for text in (SEEDS, ROWS, DIFFERENT):
        assert printed.count(text) == 1
    with pytest.raises(SystemExit):
        main([*command, folder, "--metric", "ra"])
    assert "different measures" not in capsys.readouterr().err


@pytest.mark.long
def test_a_recommendation_from_one_seed_is_announced(tmp_path, capsys):
    arguments = {
        "protocol": "fedtree-hist[trees=1,max_depth=2]", "defense": "split-only",
        "threat": "public", "jobs": 1, "minutes": 0, "output": str(tmp_path / "run"),
    }  # fmt: skip
    data = "breast-cancer[rows=90]"
    with pytest.warns(UserWarning, match="has 1 seed.*run more with --minutes"):
        result = fedtrees.recommend(data, **arguments)
    # The attacked rows are the training rows of the named recipe.
    assert any("were attacked. One row is" in text for text in result.warnings)
    options = [part for key, value in arguments.items() for part in (f"--{key}", str(value))]
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(["recommend", "--data", data, *options, "--resume"])
    assert not stopped.value.code
    printed = " ".join(capsys.readouterr().err.split())
    assert "has 1 seed. Intervals over fewer than 5 seeds are wide" in printed
    assert "were attacked. One row is" in printed


@pytest.mark.parametrize("use", ["figure", "table"])
def test_a_protocol_without_a_point_in_a_figure_is_announced_with_the_reason(tmp_path, use):
    folder = written(tmp_path, 5, 250)
    table = Table(folder)
    table.lines = [row.to_dict() for _, row in read_records(folder).iterrows()]
    for seed in range(5):
        table.train("none", seed, 0.9, protocol="no-attack")
        table.train("none", seed, 0.9, protocol="no-fit")
        table.trouble("none", seed, "a", "skipped")
        table.lines[-1] |= {"protocol": "no-fit", "threat": "server"}
    table.rows()
    texts = noted(lambda: USES[use](fedtrees.Run(folder)))
    assert texts == [
        *texts[:-2],
        "a figure has no point for no-fit with no defense, because no attack that ran applies to "
        "server",
        "a figure has no point for no-attack with no defense, because no attack ran",
    ]
