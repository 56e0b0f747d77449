"""`fedtrees.bench(...)` runs the same benchmark as the command and returns its results."""

import inspect
import pydoc

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from sklearn.datasets import load_wine

import fedtrees
from fedtrees.api import Run, bench
from fedtrees.api.bench import with_table_written
from fedtrees.cli.bench import bench as command
from fedtrees.cli.main import main
from fedtrees.core.errors import DataError, StoreError, UsageError
from fedtrees.experiments.federation import load_dataset
from fedtrees.experiments.options import BenchOptions

TINY = {
    "protocol": "fedtree-hist[trees=1,max_depth=2]",
    "defense": "split-only",
    "attack": "random-leaf",
    "seeds": 1,
    "jobs": 1,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fedtrees.bench(data="wine", output=tmp_path_factory.mktemp("py") / "run", **TINY)


def test_options_equal_those_of_the_command():
    of_function, of_command = (
        inspect.signature(function).parameters for function in (bench, command)
    )
    assert set(of_command) - set(of_function) == {"dry_run", "format", "on"}
    assert set(of_function) - set(of_command) == {"unknown"}  # refuses misspelled options


def test_equivalent_ways_to_give_options_are_equal_objects():
    from_lists = BenchOptions(defense=["min-bin", "none"], seeds=[0, 4], clients=2, csv=None)
    assert from_lists == BenchOptions(defense=("min-bin", "none"), seeds="0,4,", clients=(2,))
    assert from_lists.grid == {"defenses": ["min-bin", "none"], "clients": [2]}
    for wrong_options, rule in (({"jobs": 0}, "--jobs 0"),
                        ({"sep": "ab", "csv": "a", "target": "y"}, "one"),
                        ({"resume": True}, "--output RUN"),
                        ({"csv": "a", "data": "wine"}, "not both"),
                        ({"margin": 2.0}, "margin 2"), ({"target": 3}, "give text")):  # fmt: skip
        with pytest.raises(UsageError, match=rule):
            BenchOptions(**wrong_options)


@pytest.mark.long
def test_the_rows_equal_those_of_the_command(run, tmp_path):
    options = [("-p", "protocol"), ("-d", "defense"), ("-a", "attack"), ("-j", "jobs")]
    arguments = [str(part) for flag, key in options for part in (flag, TINY[key])]
    with pytest.raises(SystemExit) as exit_info:
        main(
            [
                "bench",
                *arguments,
                "--data",
                "wine",
                "--seeds",
                "1",
                "--output",
                str(tmp_path / "run"),
            ]
        )
    assert not exit_info.value.code
    frame_of_command = Run(tmp_path / "run").frame
    timed = ("seconds",)
    frame_without_times = run.frame[run.frame["unit"] != "seconds"].drop(columns=[*timed])
    pd.testing.assert_frame_equal(
        frame_without_times,
        frame_of_command[frame_of_command["unit"] != "seconds"].drop(columns=[*timed]),
    )


def test_the_frame_is_tidy_and_the_verdict_is_text(run):
    frame = run.frame
    assert {"train", "attack", "blind", "reference", "adversary"} == set(frame["stage"])
    assert set(frame.loc[frame["stage"] == "train", "defense"]) == {"none", "split-only"}
    assert frame["claimed"].map(type).eq(str).all()
    assert "split-only" in run.verdict or "wine" in run.verdict


def test_a_measure_without_a_value_states_why(run):
    frame = run.frame
    scored = frame["stage"].isin(["train", "attack", "blind", "reference"])
    measured = frame[scored & (frame["metric"] != "") & (frame["status"] == "ok")]
    missing = measured[measured["value"].isna()]
    # Tables with columns that are not binary have no Hamming distance.
    assert "hamming" in set(missing["metric"])
    assert set(missing["state_code"]) == {"undefined"}
    assert set(missing["reason_code"]) == {"no-value"}
    reason = missing.loc[missing["metric"] == "hamming", "reason"].iloc[0]
    assert reason == "hamming is not defined for this table or for this claim"
    plain = measured[measured["value"].notna() & (measured["reason_code"] != "blind-perfect")]
    assert set(plain["state_code"]) == {"ok"}


@pytest.mark.long
def test_figures_tables_and_copies(run, tmp_path):
    assert isinstance(run.figure(threat="client", width="column"), Figure)
    assert run.figure(tmp_path / "f.svg").stat().st_size
    assert set(run.table()["defense"]) == {"none", "split-only"}
    assert "split-only" in run.table(tmp_path / "t.tex", data="wine").read_text()
    copy = run.save(tmp_path / "copy")
    pd.testing.assert_frame_equal(copy.frame, run.frame)
    with pytest.raises(StoreError, match="is there already"):
        run.save(tmp_path / "copy")


@pytest.mark.long
def test_a_table_in_memory_gives_the_same_result_as_its_csv_file(tmp_path):
    X, y = load_wine(return_X_y=True, as_frame=True)
    options = {**TINY, "defense": "none", "data": (X, (y == 1).rename("grape"))}
    from_memory = fedtrees.bench(output=tmp_path / "a", **options)
    assert set(from_memory.frame["dataset"]) == {"table"}
    table = X.assign(grape=(y == 1))
    table.to_csv(tmp_path / "table.csv", index=False)
    options.pop("data")
    from_file = fedtrees.bench(
        csv=str(tmp_path / "table.csv"), target="grape", output=tmp_path / "b", **options
    )
    auc_from_memory, auc_from_file = (
        r.frame[r.frame["metric"] == "auc"]["value"].tolist() for r in (from_memory, from_file)
    )
    assert auc_from_memory == auc_from_file
    resumed = fedtrees.bench(data=table, target="grape", output=tmp_path / "a", resume=True)
    assert len(resumed.frame) == len(from_memory.frame)
    with pytest.raises(StoreError, match="a run of another table"):
        fedtrees.bench(data=(X[:100], y[:100] == 1), output=tmp_path / "a", resume=True)


def test_tables_that_do_not_fit_are_refused(tmp_path):
    rows = np.zeros((4, 2))
    output = {"output": tmp_path / "run"}
    with pytest.raises(DataError, match=r"4 rows in X but y of shape \(3,\)"):
        fedtrees.bench(data=(rows, [0, 1, 0]), **output)
    with pytest.raises(UsageError, match="needs target=COLUMN; the columns are 0, 1"):
        fedtrees.bench(data=pd.DataFrame(rows), **output)
    with pytest.raises(UsageError, match="did you mean 'split-only'"):
        fedtrees.bench(data="wine", defense="split-onyl", **output)
    assert not (tmp_path / "run" / "suite.toml").exists()


def test_text_columns_are_categories_and_a_named_index_is_a_column(tmp_path):
    severities = [("None", "Mild", "Severe")[row % 3] for row in range(30)]
    frame = pd.DataFrame({"age": np.arange(30) / 7, "rh": ["+", "-"] * 15, "severity": severities})
    options = {"data": frame.set_index("age"), "target": "severity", "output": tmp_path / "run"}
    (ref,) = BenchOptions(**with_table_written(options)[0]).session().suite.grids[0].data
    data = load_dataset(ref, None)
    assert data.schema.classes == ("Mild", "None", "Severe")
    assert data.schema.names == ("age", "rh")
    assert data.schema.features[1].categories == ("-", "+")


def test_a_refused_table_leaves_nothing_behind(tmp_path):
    rows = (np.arange(40.0).reshape(20, 2), np.arange(20) % 2)
    with pytest.raises(UsageError, match="did you mean 'split-only'"):
        fedtrees.bench(data=rows, defense="split-onyl", output=tmp_path / "new" / "run")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "kept.txt").write_text("x")
    with pytest.raises(UsageError):
        fedtrees.bench(data=rows, defense="split-onyl", output=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_calls_that_make_no_sense_name_the_remedy():
    with pytest.raises(UsageError, match="no option 'defence'; did you mean 'defense'"):
        fedtrees.bench(defence="split-only")
    with pytest.raises(UsageError, match=r"data=5: give a text or a list of texts, a DataFrame"):
        fedtrees.bench(data=5)
    with pytest.raises(UsageError, match=r"threat=\['server', 3\]: give a text"):
        fedtrees.bench(data="wine", threat=["server", 3])


def test_help_prints_how_it_is_called():
    text = pydoc.render_doc(fedtrees.bench, renderer=pydoc.plaintext)
    assert "defense: str | collections.abc.Sequence[str] | fedtrees.core.defense.Defense" in text
    assert "data : str, sequence of str, DataFrame, or (X, y), optional" in text


def test_defenses_and_protocols_can_be_objects():
    from fedtrees.core.composition import Composition
    from fedtrees.core.registry import register
    from fedtrees.core.specs import Spec

    noise = register.make("defense", Spec("laplace-hist", {"epsilon": 4}))
    split = register.make("defense", Spec("split-only"))
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 3, "max_depth": 2}))
    options = BenchOptions(
        defense=["none", noise, Composition((split, noise)), type(split)], protocol=protocol
    )
    assert options.defense == (
        "none", "laplace-hist[epsilon=4]", "split-only+laplace-hist[epsilon=4]", "split-only",
    )  # fmt: skip
    assert options.protocol == ("fedtree-hist[trees=3,max_depth=2]",)
    assert BenchOptions(defense=noise).defense == ("laplace-hist[epsilon=4]",)
    with pytest.raises(UsageError, match=r"an instance of a class with @register\.defense"):
        BenchOptions(defense=[object()])


def test_a_run_has_leaks_a_best_defense_and_a_short_repr():
    run = Run("benchmarks/leaderboard/default-bench")
    assert repr(run) == "<Run benchmarks/leaderboard/default-bench>"
    first = run.leaks[0]
    assert (first.threat, first.metric, first.blind) == ("server", "exact_rows", 0.0)
    assert first.low < first.advantage < first.high
    assert first.sentence in str(first)
    assert first.sentence.split(" (")[0] in " ".join(run.verdict.split())
    assert run.best is not None
    assert f'-d "{run.best.defense}"' in " ".join(run.verdict.split())
    assert run.best.low < run.best.utility_change < run.best.high


def test_the_old_name_of_the_output_still_works(tmp_path):
    with (
        pytest.warns(DeprecationWarning, match="is now output"),
        pytest.raises(UsageError, match="did you mean 'split-only'"),
    ):
        fedtrees.bench(data="wine", defense="split-onyl", out=tmp_path / "run")


def test_files_can_be_given_as_paths(tmp_path):
    table = tmp_path / "patients.csv"
    assert BenchOptions(csv=table, target="ill") == BenchOptions(csv=str(table), target="ill")
    assert BenchOptions(plugin=[table]).plugin == (str(table),)
