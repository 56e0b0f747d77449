"""vertical protocols in the bench: their threats, the active party alone, predictions."""

import json

import pytest
from result_rows import read_rows

from fedtrees.cli.main import main
from fedtrees.core.errors import UsageError
from fedtrees.experiments.defaults import complete_suite
from fedtrees.experiments.federation import load_dataset
from fedtrees.experiments.plan import build_plan
from fedtrees.experiments.suite import DataRef, Suite


def threats(suite):
    found = {}
    for cell in build_plan(suite).blind:
        roles = {role for _, role in cell.federation_config.roles}
        found.setdefault("columns" if "passive" in roles else "rows", set()).add(cell.threat)
    return found


def test_a_protocol_is_attacked_by_its_own_roles_where_nobody_names_any():
    quick = Suite.load("quick")

    def of(**named):
        return threats(complete_suite(quick, named))

    rows = {"client", "server", "public"}
    assert of(protocols=["secureboost"]) == {"columns": {"passive", "active"}}
    assert of(protocols=["fedtree-hist"]) == {"rows": rows}
    both = of(protocols=["secureboost", "fedtree-hist"])
    assert both == {"columns": {"passive", "active"}, "rows": rows}
    named = ["active", "passive[count=1]"]
    assert of(protocols=["secureboost"], threats=named) == {"columns": {*named}}
    plain = Suite.parse('[[grid]]\nprotocols = ["vertical-forest"]', "mine")
    assert threats(plain) == {"columns": {"passive", "active"}}


def test_a_threat_that_no_role_has_is_still_an_error():
    from fedtrees.experiments.session import BenchSession

    suite = complete_suite(
        Suite.load("quick"), {"protocols": ["secureboost"], "threats": ["client"]}
    )
    with pytest.raises(UsageError, match="the roles of this protocol are active, passive"):
        BenchSession(suite, None)


def test_a_defense_without_its_budget_is_run_with_several():
    def named(*defenses):
        suite = Suite.load("quick").override({"defenses": defenses})
        return list(map(str, suite.grids[0].defenses))

    assert named("id-lmid", "grafting-ldp[stages=3]", "lp-1st[epsilon=1]") == [
        "none",
        *(f"id-lmid[xi={xi}]" for xi in ("0.3", "0.5", "0.8")),
        *(f"grafting-ldp[stages=3,epsilon={epsilon}]" for epsilon in ("0.5", "2")),
        "lp-1st[epsilon=1]",
    ]
    assert len(named("id-lmid+lp-mst")) == 7
    assert named("split-only") == ["none", "split-only"]
    assert named("of-a-plugin") == ["none", "of-a-plugin"]  # it is loaded later


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vertical") / "run"
    with pytest.raises(SystemExit) as stopped:
        main(
            [
                *("bench", "-p", "secureboost[trees=2,colsample_bytree=1.0]"),
                *("-d", "id-lmid[xi=1e-9]", "-a", "cl", "--data", "wine", "--clients", "2"),
                *("--seeds", "1", "-j", "1", "--output", str(folder)),
            ]
        )
    assert not stopped.value.code
    return read_rows(folder)


def values(rows, stage, **wanted):
    here = [r for r in rows if r["stage"] == stage and all(r[k] == v for k, v in wanted.items())]
    named = {(r["metric"], r["part"]) if r["part"] else r["metric"]: r["value"] for r in here}
    return {name: float(value) for name, value in named.items() if value}


@pytest.mark.long
def test_the_line_to_beat_is_the_labelled_party_alone(rows):
    """A bound that shows nothing leaves just that: two ways to the same trees."""
    alone = values(rows, "reference", protocol="active-only")
    bound = values(rows, "train", defense="id-lmid")
    free = values(rows, "train", defense="none")
    assert alone["auc"] == bound["auc"]
    assert alone["log_loss"] == bound["log_loss"] != free["log_loss"]


@pytest.mark.long
def test_labels_are_scored_beside_cl_and_ciphertexts_are_counted(rows):
    attack = values(rows, "attack", threat="passive", defense="none")
    assert (
        attack["v_measure"]
        == values(rows, "blind", threat="passive", attack_params="cl")["v_measure"]
    )
    free, bound = (values(rows, "train", defense=d) for d in ("none", "id-lmid"))
    assert free["ciphertexts_of", "RowStatistics"] == 2 * 143  # trees, rows
    assert free["bytes_up", "BinSums"] > bound["bytes_up", "BinSums"] > 0


def test_one_command_trains_over_files_of_two_parties(tmp_path, capsys):
    lines = [(f"r{i}", i % 7, (i * 5) % 11, (i * 3) % 5, i % 2) for i in range(60)]
    bank = "\n".join(["id,a,y", *(f"{k},{a},{y}" for k, a, _, _, y in lines)])
    shop = "\n".join(["b,id,c", *(f"{b},{k},{c}" for k, _, b, c, _ in reversed(lines))])
    paths = [tmp_path / "bank.csv", tmp_path / "shop.csv"]
    for path, text in zip(paths, (bank, shop), strict=True):
        path.write_text(text)
    files = ",".join(map(str, paths))
    command = ["train", "-p", "vertical-forest[trees=2]", "--csv", files, "--id", "id"]
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--target", "y", "--format", "json"])  # a party a file, without being told
    assert not stopped.value.code
    facts = json.loads(capsys.readouterr().out)
    assert facts["dataset"] == "bank+shop"
    assert facts["columns"] == [1, 2]
    assert facts["training_rows"] == 48
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--target", "y", "--clients", "2", "--output", str(tmp_path / "m.npz")])
    assert stopped.value.code
    assert "no party has the complete model of 'vertical-forest'" in capsys.readouterr().err


def test_references_are_there_for_every_setting():
    suite = complete_suite(
        Suite.load("quick"), {"protocols": ["secureboost", "vertical-forest"]}, "1"
    )
    stages = [c.stage for c in build_plan(suite).references]
    assert stages == ["reference"] * 2


def test_files_that_changed_are_read_again(tmp_path):
    own, other = tmp_path / "own.csv", tmp_path / "other.csv"
    own.write_text("id,a,y\n" + "".join(f"r{i},{i / 7},{i % 2}\n" for i in range(40)))
    data = DataRef("both", csv=f"{own},{other}", id="id", target="y")
    found = []
    for step in (0.5, 2.25):
        other.write_text("id,b\n" + "".join(f"r{i},{i * step}\n" for i in range(40)))
        found.append(load_dataset(data, None))
        assert load_dataset(data, None) is found[-1]
    assert [dataset.table.X[:, 1].max() for dataset in found] == [19.5, 87.75]


@pytest.mark.parametrize("threat", ["public[sensitive=0]", "passive[attributes=2]"])
def test_a_threat_that_needs_all_columns_is_refused_before_a_vertical_run(threat):
    from fedtrees.experiments.session import BenchSession

    suite = complete_suite(
        Suite.load("quick"), {"protocols": ["secureboost"], "threats": [threat]}, "1"
    )
    with pytest.raises(UsageError, match="have different columns of the same rows"):
        BenchSession(suite, None)
