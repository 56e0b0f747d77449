"""A federation of sites, in one process: the simulation's crossings, and what stops it."""

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


def agreed(protocol, defense="none", parties=3, **more):
    """Return a federation on the small table: site-0, site-1, ..."""
    _, schema = sample_federation(rows=60)
    said = {"name": "small", "protocol": protocol, "defense": defense, "seed": 5}
    named = {"noise_from": "seed", "installation": code_digest(), "schema": schema}
    first = FederationAgreement.__new__(FederationAgreement)
    object.__setattr__(first, "protocol", protocol)
    names = first.made.holder_names(parties)
    sites = {name: f"site-{i}" for i, name in enumerate(names)}
    return FederationAgreement(**{**said, **named, "parties": sites, **more})


def local_data(federation):
    clients, _ = sample_federation(rows=60)
    rows = federation.made.layout == "horizontal"
    return over_clients(clients) if rows else sample_local_data(federation.made)


def written_table(held, schema, path):
    """Write what a party holds as a table of its own, rows in another order where ids tell."""
    names = [schema.names[c] for c in held.columns]
    head = ["id", *names, *([] if held.y is None else [schema.target])]
    lines = [",".join(head)]
    for i in held.ids[::-1] if len(held.columns) < len(schema.names) else range(len(held)):
        cells = [f"r{i:05}"]
        for c, value in zip(held.columns, held.X[i], strict=True):
            codes = schema.features[c].categories
            cells.append(codes[int(value)] if codes else repr(float(value)))
        cells += [] if held.y is None else [schema.classes[held.y[i]]]
        lines.append(",".join(cells))
    path.write_text("\n".join(lines))


class Sites:
    """Sites behind lines of bytes, and what they said to their owners."""

    def __init__(self, federation, folder, held=None, **settings):
        self.federation, self.folder, self.said, self.sites = federation, folder, [], {}
        for name, own in (held or local_data(federation)).items():
            site, path = federation.site(name), folder / f"{name}.csv"
            written_table(own, federation.schema, path)
            out = str(folder / site)
            given = Settings(str(path), out, (federation.hash,), id="id")
            given = replace(given, **settings.get(name.replace("-", "_"), {}))
            self.sites[name] = Site(site, lambda given=given: given, self.said.append)

    def send(self, party, blob, seconds):
        return self.sites[party].call(self.federation.site(self.federation.coordinator), blob)

    def run(self, **more):
        federation = self.federation
        own, driving = None, self.sites.get(federation.coordinator)
        if driving is not None:
            own = driving.own(federation, driving.agree(federation, federation.hash))
        out = self.folder / "coordinator"
        more = {"send": self.send, **more}
        return run_federation(federation, out=out, say=self.said.append, site_data=own, **more)


@pytest.mark.parametrize(("protocol", "defense"), RUNS)
def test_between_sites_it_is_the_simulation(protocol, defense, tmp_path, monkeypatch):
    federation = agreed(protocol, defense)
    nets = []

    class Noted(RemoteNetwork):
        def __init__(self, *given):
            super().__init__(*given)
            nets.append(self)

    monkeypatch.setattr(coordinator, "RemoteNetwork", Noted)
    held = local_data(federation)
    folder = Sites(federation, tmp_path, held).run()
    simulated = train(
        federation.made, held, federation.schema, defense=federation.composed, seed=5,
        noise_from="seed",
    )  # fmt: skip
    first, *others = crossings(nets[0].transcript)
    mine = replace(simulated.transcript)
    drives = federation.coordinator
    mine.deliveries = [d for d in mine if d.receivers != (d.sender,) or d.sender == drives]
    assert first == crossings(mine)[0]
    assert others[1:] == list(crossings(simulated.transcript)[2:])
    told = json.loads((folder / STATUS).read_text())
    assert told["stopped"] == ""
    seen = list(Capture(folder / LOG))
    assert [encode(r.message) for r in seen] == [encode(d.message) for d in nets[0].transcript]
    for name in federation.answering:
        log = list(Capture(tmp_path / federation.site(name) / "small" / LOG))
        sent = [encode(r.message) for r in log if r.sender == name and r.receivers != (name,)]
        assert sent == [encode(r.message) for r in seen if r.sender == name]
        assert sent
    models = list(tmp_path.rglob("model.*"))
    assert len(models) == (len(held) + 1 if federation.made.released else 0)
    assert len({path.read_bytes() for path in models}) <= 1


def told_by(capsys, *command):
    """Run a command and return what it says."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, command), "--format", "json"])
    assert ended.value.code in (0, None), capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.long
def test_a_sites_log_says_what_it_sent_and_attacks_read_it(tmp_path, capsys):
    said = partial(told_by, capsys)
    federation = agreed(*RUNS[0])
    own = Sites(federation, tmp_path).run() / LOG
    log = tmp_path / "site-1" / "small" / LOG
    told = said("explain", log)
    assert told["as"] == "client-1"
    left = [
        r.message for r in Capture(log) if r.sender == "client-1" and r.receivers == ("server",)
    ]
    assert sum(row["count"] for row in told["sent"]) == len(left)
    assert sum(row["bytes"] for row in told["sent"]) == sum(map(encoded_size, left))
    assert {row["to"] for row in told["sent"]} == {"server"}
    assert all(row["why"] for row in told["sent"])
    apply = said("explain", own)["apply"]
    assert {*apply} == {"server", "client-0", "public"}
    assert "histogram-peeling" in apply["server"]
    Writer(tmp_path / "other.capture", Run("xgboost", "3.2", "", "", {})).close()
    for other in ("other.capture", "client-0.csv"):
        with pytest.raises(SystemExit) as ended:
            main(["explain", str(tmp_path / other)])
        assert ended.value.code in (2, 5), other
    capsys.readouterr()
    tables = [f"--truth={path}" for path in sorted(tmp_path.glob("client-*.csv"))]
    told = said("attack", own, "-a", "histogram-peeling,forest-boxes", *tables)
    assert {row["attack"]: "scores" in row for row in told["attacks"]} == {
        "histogram-peeling": True, "forest-boxes": False
    }  # fmt: skip
    assert told["verdict"][-1] == "LEAK      not known: no attack that applies returned a claim"


def test_the_file_says_all_of_it_and_any_change_is_another_hash(tmp_path):
    federation = agreed("fedtree-hist", "masking")
    (tmp_path / "fed.toml").write_text(written(federation))
    assert load(tmp_path / "fed.toml") == federation
    assert load(tmp_path / "fed.toml").hash == federation.hash
    plain = federation.plain()
    twelve = agreed("fedtree-hist", "masking", parties=12).plain()
    again = read(json.loads(json.dumps(twelve, sort_keys=True)))
    assert [*again.parties] == [f"client-{i}" for i in range(12)]
    other = {"name": "big", "protocol": "forest-hist", "defense": "masking[threshold=2]", "seed": 6,
             "noise_from": "system", "round_timeout": 5.0, "installation": "0", "target": "t",
             "classes": ["no", "yes"], "columns": plain["columns"][:-1],
             "parties": {"client-0": "a", "client-1": "b"}}  # fmt: skip
    assert {*other} == {*plain}
    hashes = {read(plain | {key: value}).hash for key, value in other.items()}
    assert len(hashes - {federation.hash}) == len(other)


@pytest.mark.parametrize(
    ("protocol", "defense", "said"),
    [
        (protocol, defense, said)
        for protocol, defense, said in (
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
def test_nobody_is_an_ideal_functionality_between_machines(protocol, defense, said):
    with pytest.raises(UsageError, match=said):
        agreed(protocol, defense)


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
    plain = agreed("fedtree-hist", "masking").plain()
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
    plain = agreed("fedtree-hist", "masking").plain()
    plain["columns"][0] = {**plain["columns"][0], **changes}
    with pytest.raises(UsageError, match=r"fed\.toml: .*(column|feature|range)"):
        read(plain, "fed.toml")


@pytest.mark.parametrize("sites", [{"client-1": 7}, {"client-1": "server"}, {"client-1": "a\nb"}])
def test_a_site_has_a_name_that_is_not_the_one_of_the_server(sites):
    plain = agreed("fedtree-hist", "masking").plain()
    with pytest.raises(UsageError, match=r"\[parties\] client-1 = "):
        read(plain | {"parties": plain["parties"] | sites})


def test_a_date_in_the_file_is_no_traceback(tmp_path, capsys):
    path = tmp_path / "fed.toml"
    text = written(agreed("fedtree-hist", "masking"))
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
    plain = agreed("fedtree-hist", "masking").plain()
    plain["columns"][1] = {**plain["columns"][1], "lo": 0}
    with pytest.raises(UsageError, match=r"mine.toml: unknown key 'lo' of column 'b'"):
        read(plain, "mine.toml")


def test_a_site_says_nothing_of_a_late_beat_or_of_the_end_of_a_run_it_refused(tmp_path):
    sites = Sites(agreed("fedtree-hist", "masking"), tmp_path, client_1={"allow": ("0" * 32,)})
    said = stopped(sites, "'client-1' at 'site-1' .*has not allowed")
    assert "out of turn" not in said
    for does in ("beat", "stop"):
        told = read_call(sites.send("client-0", write_call({"does": does}), 1))[0]
        assert told == {"refused": "not-asked"}


def stopped(sites, match, **more):
    """Run, and see that it stops, by name, and that nobody has a model."""
    with pytest.raises(PartyError, match=match):
        sites.run(**more)
    assert not list(sites.folder.rglob("model.*"))
    for path in sites.folder.rglob(STATUS):
        assert json.loads(path.read_text())["stopped"]
    return " ".join(sites.said)


def test_a_site_that_did_not_allow_it(tmp_path):
    sites = Sites(agreed("fedtree-hist", "masking"), tmp_path, client_1={"allow": ("0" * 32,)})
    stopped(sites, "'client-1' at 'site-1' .*has not allowed")


def test_another_version(tmp_path):
    sites = Sites(agreed("fedtree-hist", "masking", installation="f" * 16), tmp_path)
    stopped(sites, "'client-0' .*another version")


def test_a_table_that_does_not_match(tmp_path):
    sites = Sites(agreed("fedtree-hist", "masking"), tmp_path)
    table = tmp_path / "client-2.csv"
    table.write_text(table.read_text().replace("id,a,b", "id,a,secret"))
    assert "lacks the columns b" in stopped(sites, "'client-2' .*table does not match")


def test_values_outside_of_the_declared_range(tmp_path):
    sites = Sites(agreed("fedtree-hist", "masking"), tmp_path)
    table = tmp_path / "client-0.csv"
    head, first, *rows = table.read_text().splitlines()
    cells = first.split(",")
    cells[1] = "8128.5"
    table.write_text("\n".join([head, ",".join(cells), *rows]))
    assert "8128" not in stopped(sites, "table does not match")


def test_other_rows_of_a_vertical_party(tmp_path):
    sites = Sites(agreed(RUNS[-1][0], parties=2), tmp_path, sample_local_data_of_two())
    table = tmp_path / "passive-1.csv"
    table.write_text(table.read_text().replace("r00007", "r90007"))
    stopped(sites, "tables do not match")


def sample_local_data_of_two():
    return sample_local_data(agreed(RUNS[-1][0], parties=2).made, parties=2)


def test_a_party_that_is_lost_stops_the_run_in_any_round(tmp_path):
    for n, last in enumerate((1, 4, 9)):
        (tmp_path / str(n)).mkdir()
        sites = Sites(agreed(*RUNS[0]), tmp_path / str(n))
        asked = []

        def send(party, blob, seconds, sites=sites, asked=asked, last=last):
            asked.append(party)
            if party == "client-1" and asked.count(party) > last:
                raise PartyError("'client-1' at 'site-1' does not answer")
            return sites.send(party, blob, seconds)

        stopped(sites, "'client-1'", send=send)


def test_why_it_stopped_is_written_before_the_others_are_told(tmp_path):
    sites, told = Sites(agreed(*RUNS[0]), tmp_path), []

    def send(party, blob, seconds):
        told.append(read_call(blob)[0].get("does"))
        if told[-1] == "begin":
            raise PartyError("'client-1' is lost")
        return sites.send(party, blob, seconds)

    stopped(sites, "'client-1' is lost", send=send, stopped=told.append)
    first = next(k for k, said in enumerate(told) if "is lost" in said)
    assert "stop" not in told[:first]
    assert told[-1] == "stop"


def test_all_who_are_lost_together_are_named(tmp_path):
    sites = Sites(agreed(*RUNS[0]), tmp_path)

    def send(party, blob, seconds):
        if party != "client-0" and read_call(blob)[0].get("does") == "begin":
            time.sleep(0.05 * (party == "client-1"))
            raise PartyError(f"{party!r} does not answer")
        return sites.send(party, blob, seconds)

    stopped(sites, "'client-1' does not answer; 'client-2' does not answer", send=send)


@pytest.mark.long
def test_sites_hear_a_slow_coordinator_and_leave_one_that_is_lost(tmp_path):
    federation = agreed(*RUNS[0], round_timeout=4.0)  # room for a busy machine
    sites, asked = Sites(federation, tmp_path), []

    def send(party, blob, seconds):
        asked.append(read_call(blob)[0].get("does"))
        if asked[-1] == "ask" and asked.count("ask") == 5:
            time.sleep(5)
        return sites.send(party, blob, seconds)

    folder = sites.run(send=send)
    assert json.loads((folder / STATUS).read_text())["stopped"] == ""
    assert asked.count("beat") >= 3
    (tmp_path / "again").mkdir()
    silent = Sites(federation, tmp_path / "again")
    for name in federation.parties:
        asks = {"federation": federation.plain(), "hash": federation.hash, "key": ""}
        silent.send(name, write_call({"does": "agree", **asks}), 1)
        silent.send(name, write_call({"does": "begin", "rows": 60}), 1)
    until, ended = time.monotonic() + 60, list[Path]()
    while len(ended) < 3 and time.monotonic() < until:
        time.sleep(0.2)
        ended = [*(tmp_path / "again").rglob(STATUS)]
    said = {json.loads(path.read_text())["stopped"] for path in ended}
    assert said == {"the coordinator is lost: not heard for 3.6 s"}
    assert len(ended) == 3


def test_the_commands_make_a_trial_tell_its_hash_and_note_what_a_site_allows(tmp_path, capsys):
    said = partial(told_by, capsys)
    trial = tmp_path / "trial"
    made = said("new", "federation", "trial", "-o", trial)
    told = said("federate", trial / "federation.toml", "--dry-run")
    assert told["hash"] == made["hash"] == load(trial / "federation.toml").hash
    assert told["coordinator"] == "server"
    assert Settings.load(trial / "sites" / "site-1.toml").allow == (made["hash"],)
    table, at = trial / "tables" / "client-0.csv", tmp_path / "site.toml"
    said("site", "--csv", table, "--allow", made["hash"], "-o", tmp_path / "logs", "--to", at)
    assert Settings.load(at) == Settings(str(table), str(tmp_path / "logs"), (made["hash"],))
    assert at.stat().st_mode & 0o077 == 0


def test_who_is_not_the_coordinator_is_not_answered(tmp_path):
    federation = agreed("fedtree-hist", "masking")
    sites = Sites(federation, tmp_path)
    site = sites.sites["client-0"]
    asks = {"does": "agree", "federation": federation.plain(), "hash": federation.hash, "key": ""}

    def said(caller, header):
        return read_call(site.call(caller, write_call(header)))[0]

    assert said("site-1", asks) == {"refused": "not-asked"}
    assert said("server", {"does": "ask"}) == {"refused": "not-asked"}
    assert "declared" in said("server", asks)
    assert said("server", asks) == {"refused": "not-asked"}  # a second run beside the first
    assert said("site-1", {"does": "begin", "rows": 60}) == {"refused": "not-asked"}
    with pytest.raises(Refused):
        site.agree(federation, "0" * 32)


DP = ("dp-gbdt[epsilon=2,trees=2,max_depth=2,noise=distributed]", "dp-grid-cuts[epsilon=1]+masking")


def test_an_allowed_hash_is_good_for_one_run(tmp_path):
    federation = agreed(*RUNS[0])
    Sites(federation, tmp_path).run()
    again = Sites(federation, tmp_path)
    said = stopped_again(again, "'client-0' at 'site-0' .*as many runs as its owner allowed")
    assert "1 of 1 allowed" in said
    records = agreement.records_of(tmp_path / "site-1")
    assert [r["federation"] for r in records] == [federation.hash]
    assert (tmp_path / "site-1" / agreement.FILE).stat().st_mode & 0o777 == 0o600
    other = agreed(*RUNS[0], seed=6)  # another agreement of the same rows is another count
    Sites(other, tmp_path).run()
    assert len(agreement.records_of(tmp_path / "site-1")) == 2


def stopped_again(sites, match):
    """Run, and see that it stops; models of the run before stay."""
    before = sorted(sites.folder.rglob("model.*"))
    with pytest.raises(PartyError, match=match):
        sites.run()
    assert sorted(sites.folder.rglob("model.*")) == before
    return " ".join(sites.said)


def test_the_coordinating_site_counts_its_runs_too(tmp_path):
    federation = agreed(RUNS[-1][0], parties=2)
    Sites(federation, tmp_path, sample_local_data_of_two()).run()
    again = Sites(federation, tmp_path, sample_local_data_of_two())
    driving = again.sites[federation.coordinator]
    with pytest.raises(Refused) as err:
        driving.agree(federation, federation.hash)
    assert err.value.code == "used-up"
    assert len(agreement.records_of(tmp_path / driving.name)) == 1


def test_a_run_that_stops_after_it_began_counts_and_one_that_never_began_does_not(tmp_path):
    federation = agreed(*RUNS[0])
    refused = Sites(federation, tmp_path, client_2={"allow": ("0" * 32,)})
    stopped(refused, "'client-2' .*has not allowed")
    assert agreement.records_of(tmp_path / "site-0") == []
    sites, asked = Sites(federation, tmp_path), []

    def send(party, blob, seconds):
        asked.append(read_call(blob)[0].get("does"))
        if "ask" in asked:
            raise PartyError("'client-0' is lost")
        return sites.send(party, blob, seconds)

    stopped(sites, "is lost", send=send)
    assert len(agreement.records_of(tmp_path / "site-0")) == 1


@pytest.mark.skipif(not here("protocol", [DP[0]]), reason="needs dp-gbdt")
def test_the_epsilons_of_runs_add_up_and_the_owner_sees_the_total(tmp_path):
    federation = agreed(*DP, noise_from="system")
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
    federation = agreed(*RUNS[0])
    first, second = Sites(federation, tmp_path), Sites(federation, tmp_path)
    asks = {"federation": federation.plain(), "hash": federation.hash, "key": ""}
    for sites in (first, second):
        told = read_call(sites.send("client-0", write_call({"does": "agree", **asks}), 1))[0]
        assert "declared" in told
    begin = write_call({"does": "begin", "rows": 60})
    assert read_call(first.send("client-0", begin, 1))[0] == {"begun": True}
    assert read_call(second.send("client-0", begin, 1))[0] == {"refused": "used-up"}


def test_a_damaged_count_of_runs_refuses(tmp_path):
    federation = agreed(*RUNS[0])
    (tmp_path / "site-0").mkdir()
    (tmp_path / "site-0" / agreement.FILE).write_text('{"federation": 1}\n')
    said = stopped(Sites(federation, tmp_path), "'client-0' at 'site-0' does not take part")
    assert "it counts the runs on your rows" in said


def test_another_folder_of_logs_does_not_reset_the_count(tmp_path, capsys):
    said = partial(told_by, capsys)
    federation = agreed(*DP)
    agreement.begin_run(tmp_path / "old", federation, 1)
    table, at = tmp_path / "table.csv", tmp_path / "site.toml"
    table.write_text("a\n1\n")
    given = ("site", "--csv", table, "--allow", federation.hash, "--to", at)
    assert said(*given, "-o", tmp_path / "old")["counted"] == {federation.hash: 1}
    told = said(*given, "-o", tmp_path / "new", "--runs", 2)
    assert told["counted"] == {federation.hash: 1}
    assert told["epsilon"] == agreement.total_epsilon(agreement.records_of(tmp_path / "old")) > 2
    assert told["runs"] == Settings.load(at).runs == 2
    assert agreement.begin_run(tmp_path / "new", federation, 2) == 2
    assert agreement.begin_run(tmp_path / "new", federation, 2) is None


def test_logs_of_a_run_and_their_copy_are_private_under_a_permissive_umask(tmp_path):
    before = os.umask(0o022)
    try:
        Sites(agreed(*RUNS[0]), tmp_path).run()
        archive = tmp_path / "archive" / "fedtrees"
        (archive / "small").mkdir(parents=True)
        (archive / "small" / LOG).write_bytes(b"messages")
        (archive / "progress.txt").write_text("done")
        out = tmp_path / "run"
        out.mkdir(mode=0o755)
        copy_private(archive, out)
        copy_private(archive, out)  # what is there already is replaced
    finally:
        os.umask(before)
    assert (archive / "small" / LOG).stat().st_mode & 0o777 == 0o644
    assert (out / "small" / LOG).read_bytes() == b"messages"
    for folder in (out, *(tmp_path / name / "small" for name in ("coordinator", "site-0"))):
        paths = [folder, *folder.rglob("*")]
        assert len(paths) > 3
        for path in paths:
            assert path.stat().st_mode & 0o077 == 0, path


def test_trials_and_jobs_are_private_under_a_permissive_umask(tmp_path):
    before = os.umask(0o022)
    try:
        federation = make_trial(tmp_path / "trial")
        (tmp_path / "jobs").mkdir(mode=0o700)
        job_of(federation, tmp_path / "jobs")
    finally:
        os.umask(before)
    for folder, least in ((tmp_path / "trial", 8), (tmp_path / "jobs", 7)):
        paths = [folder, *folder.rglob("*")]
        assert len(paths) > least
        modes = {path: path.stat().st_mode & 0o777 for path in paths}
        assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in paths}
