"""A federation of sites in one process sends the messages of the simulation, or it stops."""

import datetime
import json
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from federations import crossings, sample_federation
from present import CRYPTO, here

from fedtrees.capture.records import Capture, Run, Writer
from fedtrees.cli.main import main
from fedtrees.conformance.samples import sample_local_data
from fedtrees.core.errors import PartyError, UsageError
from fedtrees.core.files import copy_private
from fedtrees.core.local_data import over_clients
from fedtrees.core.source import code_digest
from fedtrees.core.wire import encode, encoded_size, read_call, write_call
from fedtrees.federation import agreement, coordinator
from fedtrees.federation.agreement import FederationAgreement, load, read, written
from fedtrees.federation.coordinator import RemoteNetwork, run_federation
from fedtrees.federation.deployment import job_of
from fedtrees.federation.log import LOG, STATUS
from fedtrees.federation.site import Refused, Settings, Site
from fedtrees.federation.trial import make_trial
from fedtrees.protocols.training import train

pytestmark = [
    pytest.mark.filterwarnings("ignore:a 1024-bit Paillier key is weak"),
    pytest.mark.skipif(not CRYPTO, reason="between sites nobody is an ideal functionality"),
]

RUNS = (
    ("fedtree-hist[trees=2,max_depth=2]", "masking"),
    ("fedtree-hist[trees=2,max_depth=2]", "laplace-hist[epsilon=4]+masking"),
    ("forest-hist[trees=2,max_depth=2]", "none"),
    ("flower-bagging[trees=3,max_depth=2]", "none"),
    ("fedxgbllr[trees=1,max_depth=2,rounds=1]", "masking"),
    ("secureboost[trees=1,max_depth=2,max_bin=4,crypto=real,key_bits=1024]", "none"),
)


def agreement_of(protocol, defense="none", parties=3, **changes):
    """Return an agreement about the small table with the sites site-0, site-1, ..."""
    _, schema = sample_federation(rows=60)
    options = {"name": "small", "protocol": protocol, "defense": defense, "seed": 5}
    fixed = {"noise_from": "seed", "installation": code_digest(), "schema": schema}
    draft = FederationAgreement.__new__(FederationAgreement)
    object.__setattr__(draft, "protocol", protocol)
    names = draft.made.holder_names(parties)
    sites = {name: f"site-{number}" for number, name in enumerate(names)}
    return FederationAgreement(**{**options, **fixed, "parties": sites, **changes})


def local_data(federation):
    clients, _ = sample_federation(rows=60)
    rows = federation.made.layout == "horizontal"
    return over_clients(clients) if rows else sample_local_data(federation.made)


def written_table(data, schema, path):
    """Write the local data of a party as a table; rows of vertical parties are in another order."""
    names = [schema.names[column] for column in data.columns]
    header = ["id", *names, *([] if data.y is None else [schema.target])]
    lines = [",".join(header)]
    for row in data.ids[::-1] if len(data.columns) < len(schema.names) else range(len(data)):
        cells = [f"r{row:05}"]
        for column, value in zip(data.columns, data.X[row], strict=True):
            codes = schema.features[column].categories
            cells.append(codes[int(value)] if codes else repr(float(value)))
        cells += [] if data.y is None else [schema.classes[data.y[row]]]
        lines.append(",".join(cells))
    path.write_text("\n".join(lines))


class Sites:
    """Sites that exchange bytes, and the messages to their owners."""

    def __init__(self, federation, folder, data_of_parties=None, **settings):
        self.federation, self.folder, self.said, self.sites = federation, folder, [], {}
        for name, data in (data_of_parties or local_data(federation)).items():
            site, path = federation.site(name), folder / f"{name}.csv"
            written_table(data, federation.schema, path)
            log_folder = str(folder / site)
            settings_of_site = Settings(str(path), log_folder, (federation.hash,), id="id")
            settings_of_site = replace(settings_of_site, **settings.get(name.replace("-", "_"), {}))
            self.sites[name] = Site(
                site, lambda settings_of_site=settings_of_site: settings_of_site, self.said.append
            )

    def send(self, party, blob, seconds):
        return self.sites[party].call(self.federation.site(self.federation.coordinator), blob)

    def run(self, **options):
        federation = self.federation
        own_data, coordinating_site = None, self.sites.get(federation.coordinator)
        if coordinating_site is not None:
            own_data = coordinating_site.own(
                federation, coordinating_site.agree(federation, federation.hash)
            )
        coordinator_folder = self.folder / "coordinator"
        options = {"send": self.send, **options}
        return run_federation(
            federation, out=coordinator_folder, say=self.said.append, site_data=own_data, **options
        )


@pytest.mark.parametrize(("protocol", "defense"), RUNS)
def test_sites_send_the_messages_of_the_simulation(protocol, defense, tmp_path, monkeypatch):
    federation = agreement_of(protocol, defense)
    nets = []

    class Noted(RemoteNetwork):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            nets.append(self)

    monkeypatch.setattr(coordinator, "RemoteNetwork", Noted)
    data_of_parties = local_data(federation)
    folder = Sites(federation, tmp_path, data_of_parties).run()
    simulated = train(
        federation.made, data_of_parties, federation.schema, defense=federation.composed, seed=5,
        noise_from="seed",
    )  # fmt: skip
    sent_contents, *other_facts = crossings(nets[0].transcript)
    simulated_transcript = replace(simulated.transcript)
    coordinator_name = federation.coordinator
    simulated_transcript.deliveries = [
        delivery
        for delivery in simulated_transcript
        if delivery.receivers != (delivery.sender,) or delivery.sender == coordinator_name
    ]
    assert sent_contents == crossings(simulated_transcript)[0]
    assert other_facts[1:] == list(crossings(simulated.transcript)[2:])
    status = json.loads((folder / STATUS).read_text())
    assert status["stopped"] == ""
    records = list(Capture(folder / LOG))
    assert [encode(record.message) for record in records] == [
        encode(delivery.message) for delivery in nets[0].transcript
    ]
    for name in federation.answering:
        log = list(Capture(tmp_path / federation.site(name) / "small" / LOG))
        sent = [
            encode(record.message)
            for record in log
            if record.sender == name and record.receivers != (name,)
        ]
        assert sent == [encode(record.message) for record in records if record.sender == name]
        assert sent
    models = list(tmp_path.rglob("model.*"))
    assert len(models) == (len(data_of_parties) + 1 if federation.made.released else 0)
    assert len({path.read_bytes() for path in models}) <= 1


def json_output_of(capsys, *arguments):
    """Run a command and return its output in JSON."""
    with pytest.raises(SystemExit) as exit_info:
        main([*map(str, arguments), "--format", "json"])
    assert exit_info.value.code in (0, None), capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.long
def test_the_log_of_a_site_contains_what_it_sent_and_attacks_read_it(tmp_path, capsys):
    run_command = partial(json_output_of, capsys)
    federation = agreement_of(*RUNS[0])
    coordinator_log = Sites(federation, tmp_path).run() / LOG
    site_log = tmp_path / "site-1" / "small" / LOG
    result = run_command("explain", site_log)
    assert result["as"] == "client-1"
    sent_to_server = [
        record.message
        for record in Capture(site_log)
        if record.sender == "client-1" and record.receivers == ("server",)
    ]
    assert sum(row["count"] for row in result["sent"]) == len(sent_to_server)
    assert sum(row["bytes"] for row in result["sent"]) == sum(map(encoded_size, sent_to_server))
    assert {row["to"] for row in result["sent"]} == {"server"}
    assert all(row["why"] for row in result["sent"])
    applicable = run_command("explain", coordinator_log)["apply"]
    assert {*applicable} == {"server", "client-0", "public"}
    assert "histogram-peeling" in applicable["server"]
    Writer(tmp_path / "other.capture", Run("xgboost", "3.2", "", "", {})).close()
    for file_name in ("other.capture", "client-0.csv"):
        with pytest.raises(SystemExit) as exit_info:
            main(["explain", str(tmp_path / file_name)])
        assert exit_info.value.code in (2, 5), file_name
    capsys.readouterr()
    tables = [f"--truth={path}" for path in sorted(tmp_path.glob("client-*.csv"))]
    result = run_command("attack", coordinator_log, "-a", "histogram-peeling,forest-boxes", *tables)
    assert {row["attack"]: "scores" in row for row in result["attacks"]} == {
        "histogram-peeling": True, "forest-boxes": False
    }  # fmt: skip
    assert result["verdict"][-1] == "LEAK      not known: no attack that applies returned a claim"


def test_the_file_contains_the_complete_agreement_and_any_change_changes_its_hash(tmp_path):
    federation = agreement_of("fedtree-hist", "masking")
    (tmp_path / "fed.toml").write_text(written(federation))
    assert load(tmp_path / "fed.toml") == federation
    assert load(tmp_path / "fed.toml").hash == federation.hash
    plain = federation.plain()
    twelve = agreement_of("fedtree-hist", "masking", parties=12).plain()
    parsed = read(json.loads(json.dumps(twelve, sort_keys=True)))
    assert [*parsed.parties] == [f"client-{number}" for number in range(12)]
    changed_values = {
        "name": "big",
        "protocol": "forest-hist",
        "defense": "masking[threshold=2]",
        "seed": 6,
        "noise_from": "system",
        "round_timeout": 5.0,
        "installation": "0",
        "target": "t",
        "classes": ["no", "yes"],
        "columns": plain["columns"][:-1],
        "parties": {"client-0": "a", "client-1": "b"},
    }
    assert {*changed_values} == {*plain}
    hashes = {read(plain | {key: value}).hash for key, value in changed_values.items()}
    assert len(hashes - {federation.hash}) == len(changed_values)


@pytest.mark.parametrize(
    ("protocol", "defense", "error_message"),
    [
        (protocol, defense, error_message)
        for protocol, defense, error_message in (
            ("fedtree-hist", "masking[mode=ideal]", "mode=real"),
            ("fedtree-hist", "secure-sum", "masking"),
            ("fedtree-hist", "dp-grid-cuts[epsilon=4]", "masking"),
            ("secureboost[crypto=ideal]", "none", "crypto=real"),
            ("vertical-regression[arbiter=real]", "none", "arbiter"),
            ("lightgbm-data", "none", "send messages to each other"),
        )
        if here("protocol", [protocol])
    ],
)
def test_protocols_with_an_ideal_functionality_or_direct_messages_are_refused(
    protocol, defense, error_message
):
    with pytest.raises(UsageError, match=error_message):
        agreement_of(protocol, defense)


DATE = datetime.date(1979, 5, 27)
WRONG = [
    *[("seed", v, "give a whole number from 0") for v in
      ("x", float("nan"), 1.5, [], DATE, True, -1, 2**60, None, {})],
    *[("round_timeout", v, "give a number from 1 to 86400") for v in
      ("60", 0, 1e-9, float("nan"), float("inf"), True, DATE, [60])],
    *[("installation", v, "installation") for v in (1, DATE, "", [], "xyz", None)],
    *[("name", v, "name") for v in (1, DATE, "", "../a", "a" * 101, ["a"])],
    *[("protocol", v, "protocol") for v in (1, DATE, ["fedtree-hist"], "")],
    *[("defense", v, "defense") for v in (1, DATE, ["masking"], "", None)],
    *[("noise_from", v, "noise_from") for v in (1, DATE, ["seed"], "moon", None)],
    *[("target", v, "target") for v in (1, DATE, ["y"], "", "a")],
    *[("classes", v, "classes") for v in
      (["0", "0"], "01", [DATE, "1"], ["0"], [0.0, 1.0], [["0"], "1"], 2, {"0": 1}, [True, "1"])],
    *[("parties", v, "parties") for v in ([], "x", 1, DATE)],
    *[("columns", v, "column") for v in ([], "x", 1, {"name": "a"}, ["a"], [["a"]])],
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "message"), WRONG)
def test_a_value_of_a_wrong_type_or_range_is_refused_by_its_key(key, value, message):
    plain = agreement_of("fedtree-hist", "masking").plain()
    with pytest.raises(UsageError, match=rf"fed.toml: .*{message}"):
        read({**plain, key: value}, "fed.toml")


@pytest.mark.parametrize(
    "changes",
    [
        {"low": float("nan")}, {"high": float("inf")}, {"low": "0"}, {"high": True}, {"low": DATE},
        {"low": 5, "high": 1}, {"kind": "wavy"}, {"kind": 1}, {"name": ""}, {"name": 1},
        {"name": DATE}, {"categories": "abc"}, {"categories": ["x", "x"]}, {"categories": [DATE]},
        {"cuts": 1}, {"cuts": ["1", "2"]}, {"cuts": [0.0, float("inf")]}, {"cuts": [1.0, 0.0]},
        {"cuts": [DATE, 1.0]}, {"complete": "yes"}, {"complete": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_value_of_a_column_names_the_file(changes):
    plain = agreement_of("fedtree-hist", "masking").plain()
    plain["columns"][0] = {**plain["columns"][0], **changes}
    with pytest.raises(UsageError, match=r"fed\.toml: .*(column|feature|range)"):
        read(plain, "fed.toml")


@pytest.mark.parametrize("sites", [{"client-1": 7}, {"client-1": "server"}, {"client-1": "a\nb"}])
def test_a_site_has_a_name_that_is_not_the_one_of_the_server(sites):
    plain = agreement_of("fedtree-hist", "masking").plain()
    with pytest.raises(UsageError, match=r"\[parties\] client-1 = "):
        read(plain | {"parties": plain["parties"] | sites})


def test_a_date_in_the_file_is_no_traceback(tmp_path, capsys):
    path = tmp_path / "fed.toml"
    text = written(agreement_of("fedtree-hist", "masking"))
    for line in ("seed = 1979-05-27", "seed = 07:32:00", f"seed = 1{'0' * 5000}", "seed = [[1]]"):
        path.write_text(text.replace("seed = 5", line))
        assert line in path.read_text()
        with pytest.raises(SystemExit) as ended:
            main(["federation", "run", str(path), "--dry-run"])
        assert ended.value.code == 2
        assert "a bug" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "csv = 1\nout = 'x'", "csv = 'x'\nout = 1979-05-27", "csv = 'x'\nout = 'x'\nallow = 'abc'",
        "csv = 'x'\nout = 'x'\nallow = [1]", "csv = 'x'\nout = 'x'\nruns = 0",
        "csv = 'x'\nout = 'x'\nruns = inf", "csv = 'x'\nout = 'x'\nruns = true", "out = 'x'",
    ],
)  # fmt: skip
def test_settings_of_a_site_have_types_too(tmp_path, text):
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(UsageError, match=r"site\.toml: "):
        Settings.load(tmp_path / "site.toml")


def test_a_wrong_key_of_a_column_names_file_and_column():
    plain = agreement_of("fedtree-hist", "masking").plain()
    plain["columns"][1] = {**plain["columns"][1], "lo": 0}
    with pytest.raises(UsageError, match=r"mine.toml: unknown key 'lo' of column 'b'"):
        read(plain, "mine.toml")


def test_a_site_reports_neither_a_late_beat_nor_the_end_of_a_run_that_it_refused(tmp_path):
    sites = Sites(
        agreement_of("fedtree-hist", "masking"), tmp_path, client_1={"allow": ("0" * 32,)}
    )
    messages = run_until_stopped(sites, "'client-1' at 'site-1' .*has not allowed")
    assert "out of turn" not in messages
    for operation in ("beat", "stop"):
        reply = read_call(sites.send("client-0", write_call({"does": operation}), 1))[0]
        assert reply == {"refused": "not-asked"}


def run_until_stopped(sites, match, **options):
    """Run a federation that must stop with this error, and check that no party has a model."""
    with pytest.raises(PartyError, match=match):
        sites.run(**options)
    assert not list(sites.folder.rglob("model.*"))
    for path in sites.folder.rglob(STATUS):
        assert json.loads(path.read_text())["stopped"]
    return " ".join(sites.said)


def test_a_site_that_did_not_allow_it(tmp_path):
    sites = Sites(
        agreement_of("fedtree-hist", "masking"), tmp_path, client_1={"allow": ("0" * 32,)}
    )
    run_until_stopped(sites, "'client-1' at 'site-1' .*has not allowed")


def test_another_version(tmp_path):
    sites = Sites(agreement_of("fedtree-hist", "masking", installation="f" * 16), tmp_path)
    run_until_stopped(sites, "'client-0' .*another version")


def test_a_table_that_does_not_match(tmp_path):
    sites = Sites(agreement_of("fedtree-hist", "masking"), tmp_path)
    table = tmp_path / "client-2.csv"
    table.write_text(table.read_text().replace("id,a,b", "id,a,secret"))
    assert "lacks the columns b" in run_until_stopped(sites, "'client-2' .*table does not match")


def test_values_outside_of_the_declared_range(tmp_path):
    sites = Sites(agreement_of("fedtree-hist", "masking"), tmp_path)
    table = tmp_path / "client-0.csv"
    head, first, *rows = table.read_text().splitlines()
    cells = first.split(",")
    cells[1] = "8128.5"
    table.write_text("\n".join([head, ",".join(cells), *rows]))
    assert "8128" not in run_until_stopped(sites, "table does not match")


def test_other_rows_of_a_vertical_party(tmp_path):
    sites = Sites(agreement_of(RUNS[-1][0], parties=2), tmp_path, sample_local_data_of_two())
    table = tmp_path / "passive-1.csv"
    table.write_text(table.read_text().replace("r00007", "r90007"))
    run_until_stopped(sites, "tables do not match")


def sample_local_data_of_two():
    return sample_local_data(agreement_of(RUNS[-1][0], parties=2).made, parties=2)


def test_a_party_that_is_lost_stops_the_run_in_any_round(tmp_path):
    for number, last_call in enumerate((1, 4, 9)):
        (tmp_path / str(number)).mkdir()
        sites = Sites(agreement_of(*RUNS[0]), tmp_path / str(number))
        called_parties = []

        def send(
            party, blob, seconds, sites=sites, called_parties=called_parties, last_call=last_call
        ):
            called_parties.append(party)
            if party == "client-1" and called_parties.count(party) > last_call:
                raise PartyError("'client-1' at 'site-1' does not answer")
            return sites.send(party, blob, seconds)

        run_until_stopped(sites, "'client-1'", send=send)


def test_the_reason_for_a_stop_is_written_before_the_other_sites_receive_it(tmp_path):
    sites, events = Sites(agreement_of(*RUNS[0]), tmp_path), []

    def send(party, blob, seconds):
        events.append(read_call(blob)[0].get("does"))
        if events[-1] == "begin":
            raise PartyError("'client-1' is lost")
        return sites.send(party, blob, seconds)

    run_until_stopped(sites, "'client-1' is lost", send=send, stopped=events.append)
    position = next(k for k, event in enumerate(events) if "is lost" in event)
    assert "stop" not in events[:position]
    assert events[-1] == "stop"


def test_all_parties_that_are_lost_at_once_are_named(tmp_path):
    sites = Sites(agreement_of(*RUNS[0]), tmp_path)

    def send(party, blob, seconds):
        if party != "client-0" and read_call(blob)[0].get("does") == "begin":
            time.sleep(0.05 * (party == "client-1"))
            raise PartyError(f"{party!r} does not answer")
        return sites.send(party, blob, seconds)

    run_until_stopped(sites, "'client-1' does not answer; 'client-2' does not answer", send=send)


@pytest.mark.long
def test_sites_wait_for_a_slow_coordinator_and_leave_a_lost_one(tmp_path):
    # This leaves time for a busy machine.
    federation = agreement_of(*RUNS[0], round_timeout=4.0)
    sites, operations = Sites(federation, tmp_path), []

    def send(party, blob, seconds):
        operations.append(read_call(blob)[0].get("does"))
        if operations[-1] == "ask" and operations.count("ask") == 5:
            time.sleep(5)
        return sites.send(party, blob, seconds)

    folder = sites.run(send=send)
    assert json.loads((folder / STATUS).read_text())["stopped"] == ""
    assert operations.count("beat") >= 3
    (tmp_path / "again").mkdir()
    sites_without_coordinator = Sites(federation, tmp_path / "again")
    for name in federation.parties:
        agree_request = {"federation": federation.plain(), "hash": federation.hash, "key": ""}
        sites_without_coordinator.send(name, write_call({"does": "agree", **agree_request}), 1)
        sites_without_coordinator.send(name, write_call({"does": "begin", "rows": 60}), 1)
    time_limit, status_files = time.monotonic() + 60, list[Path]()
    while len(status_files) < 3 and time.monotonic() < time_limit:
        time.sleep(0.2)
        status_files = [*(tmp_path / "again").rglob(STATUS)]
    reasons = {json.loads(path.read_text())["stopped"] for path in status_files}
    assert reasons == {"the coordinator is lost: not heard for 3.6 s"}
    assert len(status_files) == 3


def test_the_commands_create_a_trial_print_its_hash_and_write_what_a_site_allows(tmp_path, capsys):
    run_command = partial(json_output_of, capsys)
    trial = tmp_path / "trial"
    trial_facts = run_command("new", "federation", "trial", "-o", trial)
    agreement_facts = run_command("federate", trial / "federation.toml", "--dry-run")
    assert agreement_facts["hash"] == trial_facts["hash"] == load(trial / "federation.toml").hash
    assert agreement_facts["coordinator"] == "server"
    assert Settings.load(trial / "sites" / "site-1.toml").allow == (trial_facts["hash"],)
    table, settings_path = trial / "tables" / "client-0.csv", tmp_path / "site.toml"
    run_command(
        "site",
        "--csv",
        table,
        "--allow",
        trial_facts["hash"],
        "-o",
        tmp_path / "logs",
        "--to",
        settings_path,
    )
    assert Settings.load(settings_path) == Settings(
        str(table), str(tmp_path / "logs"), (trial_facts["hash"],)
    )
    assert settings_path.stat().st_mode & 0o077 == 0


def test_a_caller_that_is_not_the_coordinator_gets_no_answer(tmp_path):
    federation = agreement_of("fedtree-hist", "masking")
    sites = Sites(federation, tmp_path)
    site = sites.sites["client-0"]
    agree_request = {
        "does": "agree",
        "federation": federation.plain(),
        "hash": federation.hash,
        "key": "",
    }

    def reply_to(caller, header):
        return read_call(site.call(caller, write_call(header)))[0]

    assert reply_to("site-1", agree_request) == {"refused": "not-asked"}
    assert reply_to("server", {"does": "ask"}) == {"refused": "not-asked"}
    assert "declared" in reply_to("server", agree_request)
    # The request would start a second run during the first one.
    assert reply_to("server", agree_request) == {"refused": "not-asked"}
    assert reply_to("site-1", {"does": "begin", "rows": 60}) == {"refused": "not-asked"}
    with pytest.raises(Refused):
        site.agree(federation, "0" * 32)


DP = ("dp-gbdt[epsilon=2,trees=2,max_depth=2,noise=distributed]", "dp-grid-cuts[epsilon=1]+masking")


def test_an_allowed_hash_is_valid_for_one_run(tmp_path):
    federation = agreement_of(*RUNS[0])
    Sites(federation, tmp_path).run()
    same_sites = Sites(federation, tmp_path)
    messages = run_again_until_stopped(
        same_sites, "'client-0' at 'site-0' .*as many runs as its owner allowed"
    )
    assert "1 of 1 allowed" in messages
    records = agreement.records_of(tmp_path / "site-1")
    assert [record["federation"] for record in records] == [federation.hash]
    assert (tmp_path / "site-1" / agreement.FILE).stat().st_mode & 0o777 == 0o600
    # Another agreement about the same rows has a separate count.
    other_agreement = agreement_of(*RUNS[0], seed=6)
    Sites(other_agreement, tmp_path).run()
    assert len(agreement.records_of(tmp_path / "site-1")) == 2


def run_again_until_stopped(sites, match):
    """Run a federation that must stop; check that the models of the earlier run remain."""
    models_before = sorted(sites.folder.rglob("model.*"))
    with pytest.raises(PartyError, match=match):
        sites.run()
    assert sorted(sites.folder.rglob("model.*")) == models_before
    return " ".join(sites.said)


def test_the_coordinating_site_counts_its_runs_too(tmp_path):
    federation = agreement_of(RUNS[-1][0], parties=2)
    Sites(federation, tmp_path, sample_local_data_of_two()).run()
    same_sites = Sites(federation, tmp_path, sample_local_data_of_two())
    coordinating_site = same_sites.sites[federation.coordinator]
    with pytest.raises(Refused) as error_info:
        coordinating_site.agree(federation, federation.hash)
    assert error_info.value.code == "used-up"
    assert len(agreement.records_of(tmp_path / coordinating_site.name)) == 1


def test_a_run_that_stops_after_its_start_counts_and_one_that_never_started_does_not(tmp_path):
    federation = agreement_of(*RUNS[0])
    refusing_sites = Sites(federation, tmp_path, client_2={"allow": ("0" * 32,)})
    run_until_stopped(refusing_sites, "'client-2' .*has not allowed")
    assert agreement.records_of(tmp_path / "site-0") == []
    sites, operations = Sites(federation, tmp_path), []

    def send(party, blob, seconds):
        operations.append(read_call(blob)[0].get("does"))
        if "ask" in operations:
            raise PartyError("'client-0' is lost")
        return sites.send(party, blob, seconds)

    run_until_stopped(sites, "is lost", send=send)
    assert len(agreement.records_of(tmp_path / "site-0")) == 1


@pytest.mark.skipif(not here("protocol", [DP[0]]), reason="needs dp-gbdt")
def test_the_epsilons_of_runs_add_up_and_the_owner_sees_the_total(tmp_path):
    federation = agreement_of(*DP, noise_from="system")
    clients = {f"client_{i}": {"runs": 2} for i in range(3)}
    first, second = (Sites(federation, tmp_path, **clients) for _ in range(2))
    first.run()
    claims = [federation.made.claim_with(federation.composed), *federation.composed.claims()]
    epsilon = sum(g.epsilon for g in claims if hasattr(g, "epsilon"))
    assert 2 < epsilon < 5
    assert any(f"1 of 2 allowed, total epsilon {epsilon:g};" in line for line in first.said)
    second.run()
    assert any(f"2 of 2 allowed, total epsilon {2 * epsilon:g};" in line for line in second.said)
    records = agreement.records_of(tmp_path / "site-0")
    assert agreement.total_epsilon(records) == pytest.approx(2 * epsilon, rel=1e-5)


def test_two_jobs_at_once_cannot_share_the_last_run(tmp_path):
    federation = agreement_of(*RUNS[0])
    first, second = Sites(federation, tmp_path), Sites(federation, tmp_path)
    agree_request = {"federation": federation.plain(), "hash": federation.hash, "key": ""}
    for sites in (first, second):
        reply = read_call(
            sites.send("client-0", write_call({"does": "agree", **agree_request}), 1)
        )[0]
        assert "declared" in reply
    begin = write_call({"does": "begin", "rows": 60})
    assert read_call(first.send("client-0", begin, 1))[0] == {"begun": True}
    assert read_call(second.send("client-0", begin, 1))[0] == {"refused": "used-up"}


def test_with_a_damaged_count_of_runs_a_site_refuses(tmp_path):
    federation = agreement_of(*RUNS[0])
    (tmp_path / "site-0").mkdir()
    (tmp_path / "site-0" / agreement.FILE).write_text('{"federation": 1}\n')
    messages = run_until_stopped(
        Sites(federation, tmp_path), "'client-0' at 'site-0' does not take part"
    )
    assert "it counts the runs on your rows" in messages


def test_another_log_folder_does_not_reset_the_count(tmp_path, capsys):
    run_command = partial(json_output_of, capsys)
    federation = agreement_of(*DP)
    agreement.begin_run(tmp_path / "old", federation, 1)
    table, settings_path = tmp_path / "table.csv", tmp_path / "site.toml"
    table.write_text("a\n1\n")
    arguments = ("site", "--csv", table, "--allow", federation.hash, "--to", settings_path)
    assert run_command(*arguments, "-o", tmp_path / "old")["counted"] == {federation.hash: 1}
    result = run_command(*arguments, "-o", tmp_path / "new", "--runs", 2)
    assert result["counted"] == {federation.hash: 1}
    assert result["epsilon"] == agreement.total_epsilon(agreement.records_of(tmp_path / "old")) > 2
    assert result["runs"] == Settings.load(settings_path).runs == 2
    assert agreement.begin_run(tmp_path / "new", federation, 2) == 2
    assert agreement.begin_run(tmp_path / "new", federation, 2) is None


def test_logs_of_a_run_and_their_copy_are_private_under_a_permissive_umask(tmp_path):
    umask_before = os.umask(0o022)
    try:
        Sites(agreement_of(*RUNS[0]), tmp_path).run()
        archive = tmp_path / "archive" / "fedtrees"
        (archive / "small").mkdir(parents=True)
        (archive / "small" / LOG).write_bytes(b"messages")
        (archive / "progress.txt").write_text("done")
        run_folder = tmp_path / "run"
        run_folder.mkdir(mode=0o755)
        copy_private(archive, run_folder)
        copy_private(archive, run_folder)  # Existing files are replaced.
    finally:
        os.umask(umask_before)
    assert (archive / "small" / LOG).stat().st_mode & 0o777 == 0o644
    assert (run_folder / "small" / LOG).read_bytes() == b"messages"
    for folder in (run_folder, *(tmp_path / name / "small" for name in ("coordinator", "site-0"))):
        paths = [folder, *folder.rglob("*")]
        assert len(paths) > 3
        for path in paths:
            assert path.stat().st_mode & 0o077 == 0, path


def test_trials_and_jobs_are_private_under_a_permissive_umask(tmp_path):
    umask_before = os.umask(0o022)
    try:
        federation = make_trial(tmp_path / "trial")
        (tmp_path / "jobs").mkdir(mode=0o700)
        job_of(federation, tmp_path / "jobs")
    finally:
        os.umask(umask_before)
    for folder, minimum in ((tmp_path / "trial", 8), (tmp_path / "jobs", 7)):
        paths = [folder, *folder.rglob("*")]
        assert len(paths) > minimum
        modes = {path: path.stat().st_mode & 0o777 for path in paths}
        assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in paths}
