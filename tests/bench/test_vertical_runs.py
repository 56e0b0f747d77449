"""Vertical protocols in benchmarks: threats, the reference of the active party, predictions."""

import json

import pytest
from result_rows import read_rows

from fedtrees.cli.main import main
from fedtrees.core.errors import UsageError
from fedtrees.experiments.defaults import complete_suite
from fedtrees.experiments.federation import load_dataset
from fedtrees.experiments.plan import build_plan
from fedtrees.experiments.suite import DataRef, Suite


def threats_by_layout(suite):
    threats_of = {}
    for cell in build_plan(suite).blind:
        roles = {role for _, role in cell.federation_config.roles}
        threats_of.setdefault("columns" if "passive" in roles else "rows", set()).add(cell.threat)
    return threats_of


def test_by_default_a_protocol_is_attacked_by_its_own_roles():
    quick = Suite.load("quick")

    def threats_for(**named):
        return threats_by_layout(complete_suite(quick, named))

    rows = {"client", "server", "public"}
    assert threats_for(protocols=["secureboost"]) == {"columns": {"passive", "active"}}
    assert threats_for(protocols=["fedtree-hist"]) == {"rows": rows}
    of_both_layouts = threats_for(protocols=["secureboost", "fedtree-hist"])
    assert of_both_layouts == {"columns": {"passive", "active"}, "rows": rows}
    named = ["active", "passive[count=1]"]
    assert threats_for(protocols=["secureboost"], threats=named) == {"columns": {*named}}
    plain = Suite.parse('[[grid]]\nprotocols = ["vertical-forest"]', "mine")
    assert threats_by_layout(plain) == {"columns": {"passive", "active"}}


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


def scores_of_stage(rows, stage, **conditions):
    selected = [
        row
        for row in rows
        if row["stage"] == stage and all(row[key] == v for key, v in conditions.items())
    ]
    by_name = {
        (row["metric"], row["part"]) if row["part"] else row["metric"]: row["value"]
        for row in selected
    }
    return {name: float(value) for name, value in by_name.items() if value}


@pytest.mark.long
def test_the_reference_is_the_party_with_labels_on_its_own(rows):
    """If a defense shows the others nothing, training gives the same trees as the active party."""
    reference = scores_of_stage(rows, "reference", protocol="active-only")
    defended = scores_of_stage(rows, "train", defense="id-lmid")
    undefended = scores_of_stage(rows, "train", defense="none")
    assert reference["auc"] == defended["auc"]
    assert reference["log_loss"] == defended["log_loss"] != undefended["log_loss"]


@pytest.mark.long
def test_label_inference_is_compared_with_cl_and_ciphertexts_are_counted(rows):
    attack = scores_of_stage(rows, "attack", threat="passive", defense="none")
    assert (
        attack["v_measure"]
        == scores_of_stage(rows, "blind", threat="passive", attack_params="cl")["v_measure"]
    )
    undefended, defended = (
        scores_of_stage(rows, "train", defense=defense) for defense in ("none", "id-lmid")
    )
    assert undefended["ciphertexts_of", "RowStatistics"] == 2 * 143  # trees, rows
    assert undefended["bytes_up", "BinSums"] > defended["bytes_up", "BinSums"] > 0


def test_one_command_trains_over_files_of_two_parties(tmp_path, capsys):
    lines = [
        (f"r{number}", number % 7, (number * 5) % 11, (number * 3) % 5, number % 2)
        for number in range(60)
    ]
    bank = "\n".join(["id,a,y", *(f"{row_id},{a},{y}" for row_id, a, _, _, y in lines)])
    shop = "\n".join(["b,id,c", *(f"{b},{row_id},{c}" for row_id, _, b, c, _ in reversed(lines))])
    paths = [tmp_path / "bank.csv", tmp_path / "shop.csv"]
    for path, text in zip(paths, (bank, shop), strict=True):
        path.write_text(text)
    files = ",".join(map(str, paths))
    command = ["train", "-p", "vertical-forest[trees=2]", "--csv", files, "--id", "id"]
    with pytest.raises(SystemExit) as exit_info:
        # The number of parties follows from the number of files.
        main([*command, "--target", "y", "--format", "json"])
    assert not exit_info.value.code
    facts = json.loads(capsys.readouterr().out)
    assert facts["dataset"] == "bank+shop"
    assert facts["columns"] == [1, 2]
    assert facts["training_rows"] == 48
    with pytest.raises(SystemExit) as exit_info:
        main([*command, "--target", "y", "--clients", "2", "--output", str(tmp_path / "m.npz")])
    assert exit_info.value.code
    assert "no party has the complete model of 'vertical-forest'" in capsys.readouterr().err


def test_references_are_there_for_every_setting():
    suite = complete_suite(
        Suite.load("quick"), {"protocols": ["secureboost", "vertical-forest"]}, "1"
    )
    stages = [c.stage for c in build_plan(suite).references]
    assert stages == ["reference"] * 2


def test_files_that_changed_are_read_again(tmp_path):
    first_file, second_file = tmp_path / "own.csv", tmp_path / "other.csv"
    first_file.write_text(
        "id,a,y\n" + "".join(f"r{number},{number / 7},{number % 2}\n" for number in range(40))
    )
    data = DataRef("both", csv=f"{first_file},{second_file}", id="id", target="y")
    datasets = []
    for step in (0.5, 2.25):
        second_file.write_text(
            "id,b\n" + "".join(f"r{number},{number * step}\n" for number in range(40))
        )
        datasets.append(load_dataset(data, None))
        assert load_dataset(data, None) is datasets[-1]
    assert [dataset.table.X[:, 1].max() for dataset in datasets] == [19.5, 87.75]


@pytest.mark.parametrize("threat", ["public[sensitive=0]", "passive[attributes=2]"])
def test_a_threat_that_needs_all_columns_is_refused_before_a_vertical_run(threat):
    from fedtrees.experiments.session import BenchSession

    suite = complete_suite(
        Suite.load("quick"), {"protocols": ["secureboost"], "threats": [threat]}, "1"
    )
    with pytest.raises(UsageError, match="have different columns of the same rows"):
        BenchSession(suite, None)
