"""Sums under masks and under Paillier: the same models, views and attacks as the ideal ones."""

import json
import logging
import math
from dataclasses import asdict, dataclass, fields, replace
from itertools import combinations, product

import numpy as np
import pytest
from federations import network_of, sample_federation
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.guarantee import Computational, join, parse
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.messages import Sealed, has_sealed_field, without_payload
from fedtrees.core.party import Party, acting, handles
from fedtrees.core.reasons import Unfit
from fedtrees.core.registry import register
from fedtrees.core.secure_sum import add_messages, from_integers, to_integers
from fedtrees.core.specs import Spec, parse_grid, parse_one
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import PUBLIC, Transcript
from fedtrees.core.wire import encode
from fedtrees.crypto import masks, primitives, shamir
from fedtrees.crypto.costs import MARK_BYTES
from fedtrees.crypto.encrypted_sums import Encrypter
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.mask_keys import TAG_BYTES
from fedtrees.crypto.masking import SUMS_AT_ONCE
from fedtrees.crypto.masks import MaskingParty
from fedtrees.crypto.primitives import (
    CryptoError,
    MissingPartyError,
    PlaintextOverflowError,
    WrongKeyError,
)
from fedtrees.defenses.secure_sum import SealedSums
from fedtrees.experiments import training_cache
from fedtrees.experiments.evaluate import make_defense
from fedtrees.experiments.explain import disclosures
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite
from fedtrees.isolation.process import attack_process
from fedtrees.messages.aggregation import MaskSurvivors, OpenedSum, PaillierKey, PaillierSeeds
from fedtrees.messages.forests import ClassCounts, ClassTotals, ClassTotalsRequest
from fedtrees.messages.horizontal import (
    GridCounts,
    Histogram,
    LabelSums,
    ValidationLoss,
)
from fedtrees.messages.models import as_message
from fedtrees.protocols.compatibility import KnownFacts, check_fit
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

pytestmark = pytest.mark.filterwarnings("ignore:a 1024-bit Paillier key is weak")

REAL = ("masking", "paillier[bits=1024]")
RUNS = {
    "boosted": "fedtree-hist[trees=2,max_depth=2,max_bin=6,early_stopping_rounds=1]",
    "all-reduce": "nvflare-hist[trees=2,max_depth=2,max_bin=6]",
    "forest": "forest-hist[trees=2,max_depth=2,max_bin=6]",
    "grid": "fedtree-hist[trees=1,max_depth=2,max_bin=6]",
}
PARTIES = ("server", "client-0", "client-1", "client-2")
ATTACKS = ("histogram-peeling", "timberstrike[chains=1,max_trees=1]")
SUMMED = {
    "boosted": {Histogram, LabelSums, ValidationLoss},
    "all-reduce": {Histogram, LabelSums},
    "forest": {ClassTotals, ClassCounts},
    "grid": {GridCounts, Histogram, LabelSums},
}


def run(protocol, defense="", federation=None):
    tables, schema = federation or sample_federation(rows=90)
    made = register.make("protocol", parse_grid(RUNS.get(protocol, protocol))[0])
    parts = [*(["grid-cuts"] if protocol == "grid" else []), *([defense] if defense else [])]
    by = make_defense(parse_one("+".join(parts) or "none"))
    held = over_clients(tables)
    return train(made, held, schema, defense=by, seed=1), held


def ideal(defense):
    return (defense[:-1] + "," if defense.endswith("]") else defense + "[") + "mode=ideal]"


@pytest.fixture(scope="module", params=[(p, d) for p in RUNS for d in REAL], ids=" ".join)
def runs(request):
    """One protocol plain, under the ideal sum, under real cryptography and under its twin."""
    protocol, defense = request.param
    made = [run(protocol, d) for d in ("", "secure-sum", defense, ideal(defense))]
    return protocol, defense, *(m[0] for m in made), made[0][1]


def test_every_protocol_with_sums_is_among_them():
    sums = (*SealedSums.handled_types, *SealedSums.permitted_types)
    made = {name: register.get("protocol", name) for name in register.names("protocol")}
    summing = {
        n
        for n, p in made.items()
        if p.summed_types or {*p.info.message_types} & {*SealedSums.applies_to}
    }
    of_their_own = {"dp-forest", "dp-gbdt", "federboost-h", "horizontal-regression"}
    summing -= {*of_their_own, "fedsgd-mlp", "fedavg-mlp", "fedxgbllr"}
    assert summing == {parse_grid(text)[0].name for text in RUNS.values()}
    assert set.union(*SUMMED.values()) <= {*sums}


def test_the_model_is_the_same_bit_for_bit(runs):
    protocol, _, *trained, _ = runs
    assert len({encode(as_message(t.model)) for t in trained}) == 1
    crossed = {type(d.message) for d in trained[2].transcript if has_sealed_field(d.message)}
    assert {kind for kind in crossed if any(f.metadata.get("summed") for f in fields(kind))} == (
        SUMMED[protocol]
    )


def alike(a, b):
    return encode(without_payload(a)) == encode(without_payload(b))


def threats():
    some = [who for n in (1, 2) for who in combinations(PARTIES, n)]
    return [*some, (PUBLIC,)]


def test_every_threat_has_the_same_view_real_and_ideal_but_for_the_bits_of_ciphertexts(runs):
    _, defense, _, _, real, twin, held = runs
    views = 0
    for who in threats():
        if not check_fit(None, real.defense, None, who, KnownFacts(roles=real.transcript.roles)).ok:
            continue
        views += 1
        one, other = view_of(real, who, held), view_of(twin, who, held)
        assert len(one.seen) == len(other.seen) > 0
        for s, t in zip(one.seen, other.seen, strict=True):
            assert {**vars(s), "message": 0} == {**vars(t), "message": 0}
            assert alike(s.message, t.message)
    assert views == len(threats()) - defense.startswith("paillier")
    assert real.transcript.traffic() == twin.transcript.traffic()
    counts = [
        {k: v for k, v in t.transcript.costs.items() if not k.startswith("cpu")}
        for t in (real, twin)
    ]
    assert counts[0] == counts[1]
    assert all(v == 0 for k, v in twin.transcript.costs.items() if k.startswith("cpu_seconds"))


def statistics(view):
    """Return what a view has of sums in the open, as bytes, with whether they were opened."""
    kinds = (Histogram, LabelSums, ValidationLoss, GridCounts, ClassTotals, ClassCounts)
    return [
        (s.opened, encode(s.message))
        for s in view.seen
        if isinstance(s.message, kinds) and not has_sealed_field(s.message)
    ]


def test_the_server_reads_what_it_reads_under_the_ideal_sum_and_clients_no_more(runs):
    _, defense, _, summed, real, _, held = runs
    for who in (*PARTIES, PUBLIC):
        expected = statistics(view_of(summed, (who,), held))
        found = statistics(view_of(real, (who,), held))
        if who == "client-0" and defense.startswith("paillier"):
            # the holder of the key opens what the server opens
            assert found == statistics(view_of(summed, ("server",), held)) != expected
        else:
            assert found == expected


def seals(message):
    return {f.name: v for f in fields(message) if isinstance(v := getattr(message, f.name), Sealed)}


def test_what_crosses_are_ciphertexts_of_what_is_opened_and_nothing_open(runs):
    protocol, _, plain, _, real, _, held = runs
    alone = [d for d in plain.transcript if d.sender in held and not has_sealed_field(d.message)]
    open_bytes = {
        array.tobytes()
        for d in alone
        for f in fields(d.message)
        if f.metadata.get("summed") and np.any(array := getattr(d.message, f.name))
    }
    seen = [s for d in real.transcript for s in seals(d.message).values()]
    assert all(len(s.payload) == s.nbytes for s in seen)
    payloads = b"".join(s.payload for s in seen)
    assert protocol == "grid" or open_bytes
    assert not any(part in payloads for part in open_bytes)
    for d in real.transcript:  # in the clear it crosses only where it is opened
        if not has_sealed_field(d.message) and not isinstance(d.message, OpenedSum):
            assert d.receivers == (d.sender,) or not any(
                f.metadata.get("summed") for f in fields(d.message)
            )


def test_the_ciphertexts_that_crossed_multiply_to_the_one_that_is_opened():
    done, _ = run("boosted", "paillier[bits=1024]")
    (key, *_) = (d.message for d in done.transcript if isinstance(d.message, PaillierKey))
    n = int.from_bytes(key.key.payload[: 1024 // 8], "big")
    waiting, checked = [], 0
    for d in done.transcript:
        sealed = seals(d.message)
        if not sealed or isinstance(d.message, (PaillierKey, PaillierSeeds)):
            continue
        if d.sender != "server":
            waiting.append(sealed)
            continue
        assert len(waiting) == 2  # who opens the sum adds its own in the open
        for name, total in sealed.items():
            size = 1024 // 4
            parts = [w[name].payload for w in waiting]
            for at in range(MARK_BYTES, len(total.payload), size):
                found = math.prod(mpz(int.from_bytes(p[at : at + size], "big")) for p in parts)
                expected = int.from_bytes(total.payload[at : at + size], "big")
                assert found % (n * n) == expected
                checked += 1
        waiting = []
    assert checked > 10


class Telling(Party):
    """Answers the same whatever it is asked."""

    role = "client"

    def __init__(self, name, counts):
        super().__init__(name)
        self.counts = np.array(counts)

    @handles(ClassTotalsRequest)
    def tell(self, message):
        return ClassTotals(0, self.counts)


@dataclass(frozen=True)
class Missing(Defense):
    """Lets a request not reach some parties."""

    names: list

    def audience(self, message, receivers, ctx):
        return [name for name in receivers if name not in self.names]


def summing(mode, counts, rows):
    """Return what asks clients with so many rows each for a sum under a key, and who is missing."""
    how = register.make("defense", Spec("paillier", {"bits": 1024, "mode": mode}))
    clients = [Telling(f"client-{i}", told) for i, told in enumerate(counts)]
    (table,), schema = sample_federation(rows=rows, clients=1)
    held = {c.name: LocalData.of(table, np.arange(rows) + rows * i) for i, c in enumerate(clients)}
    server, missing = Party("server"), Missing([])
    net = network_of([server, *clients], schema, Composition((how, missing)), held=held)

    def ask():
        with acting(server):
            total = net.request_sum("client", ClassTotalsRequest(0), reason="a test")
        return total.counts.tolist()

    return ask, missing.names


@pytest.mark.parametrize("mode", ["real", "ideal"])
def test_a_paillier_sum_without_somebody_is_refused(mode):
    """Of the holder of the key, too, whose array crosses nowhere."""
    ask, missing = summing(mode, [[i, 1] for i in range(3)], rows=3)
    assert ask() == [3, 3]
    for i in range(3):
        missing[:] = [f"client-{i}"]
        with pytest.raises(MissingPartyError, match=f"arrays of client-{i} are missing"):
            ask()


def test_the_sum_is_made_of_what_arrives(monkeypatch):
    name = "nvflare-hist[trees=1,max_depth=1,max_bin=6,base_score=0.5]"
    mask = MaskingParty.mask

    def changed(self, index, array, *told):
        made = mask(self, index, array, *told)
        values = np.frombuffer(made[:-TAG_BYTES], "<u8") + np.uint64(self.name == "client-1")
        return values.tobytes() + made[-TAG_BYTES:]

    monkeypatch.setattr(MaskingParty, "mask", changed)
    with pytest.raises(WrongKeyError, match="the array of 'client-1' in sum 0 does not match"):
        run(name, "masking")


@pytest.mark.long
def test_attacks_guess_the_same_on_real_and_ideal(runs):
    protocol, _, _, _, real, twin, held = runs
    guessed = 0
    for who, name in product(("server", "client-2"), ATTACKS):
        spec = parse_grid(name)[0]
        one, other = (attack_process().run(spec, view_of(t, (who,), held)) for t in (real, twin))
        assert one.reason == other.reason
        if one.guess is not None:
            guessed += 1
            np.testing.assert_equal(asdict(one.guess), asdict(other.guess))
    assert guessed >= (0 if protocol == "forest" else 2)


def test_targets_that_are_numbers_and_weights_sum_to_the_same_bit():
    tables, schema = sample_federation(rows=60)
    schema = replace(schema, classes=())
    rng = np.random.default_rng(0)
    odd = [
        replace(t, y=(rng.normal(size=len(t)) * 10.0 ** rng.integers(-9, 6, len(t))),
                weight=rng.random(len(t)).astype(np.float32))
        for t in tables
    ]  # fmt: skip
    protocol = "fedtree-hist[trees=2,max_depth=2,max_bin=6]"
    made = [run(protocol, d, (odd, schema))[0] for d in ("", *REAL)]
    assert len({encode(as_message(t.model)) for t in made}) == 1


floats = st.floats(-1e50, 1e50).filter(lambda x: x == 0 or abs(x) > 1e-40)


@given(st.lists(st.tuples(floats, floats), min_size=1, max_size=6))
def test_floats_sum_exactly_and_are_rounded_once(rows):
    arrays = [np.array(row) for row in rows]
    sums = sum(to_integers(a) for a in arrays)
    found = from_integers(sums, (2,), np.dtype(np.float64))
    assert found.tolist() == [math.fsum(column) for column in zip(*rows, strict=True)]
    added = add_messages([LabelSums(a) for a in arrays])
    assert added.sums.tolist() == found.tolist()


def test_floats_without_a_place_are_refused():
    for wrong in (np.nan, np.inf, 2.0**192):
        with pytest.raises(DataError, match="cannot be summed securely"):
            to_integers(np.array([1.0, wrong]))


def test_who_undoes_it_is_told_and_gets_no_view():
    done, held = run("boosted", "paillier[bits=1024,mode=ideal]")
    with pytest.raises(Unfit, match=r"client-0 has the key.*'masking'"):
        view_of(done, ("server", "client-0"), held)
    assert view_of(done, ("server", "client-1", "client-2"), held).seen
    five = {"server": "server", **{f"client-{i}": "client" for i in range(5)}}
    masks = register.make("defense", Spec("masking", {"threshold": 3}))
    assert masks.broken_by(("server", "client-1", "client-2"), five) is None
    assert "3 shares are sufficient" in str(
        masks.broken_by(("server", *[f"client-{i}" for i in (1, 2, 4)]), five)
    )
    assert masks.broken_by(tuple(five)[1:4], five) is None  # without the server nobody has them


@pytest.mark.parametrize(
    ("defense", "what"),
    [
        ("masking+paillier", "each encrypt or mask every sum"),
        ("masking[threshold=1]", "2 or more"),
        ("masking[mode=fake]", "unknown mode"),
        ("paillier[bits=512]", "one of 1024, 2048, 3072"),
        ("paillier[packing=65]", "from 8 to 64"),
        ("masking[threshold=4]", "from 2 to 3"),
    ],
)
def test_what_makes_no_sense_is_refused(defense, what):
    with pytest.raises(UsageError, match=what):
        run("boosted", defense)


@pytest.mark.parametrize("mode", ["real", "ideal"])
def test_a_sum_that_does_not_fit_stops_the_run(mode):
    with pytest.raises(PlaintextOverflowError, match="larger limit"):
        run("all-reduce", f"paillier[bits=1024,packing=24,mode={mode}]")
    noisy, _ = run("all-reduce", f"laplace-hist[epsilon=0.001]+paillier[bits=1024,mode={mode}]")
    plain, _ = run("all-reduce", "laplace-hist[epsilon=0.001]")
    assert encode(as_message(noisy.model)) == encode(as_message(plain.model))


@pytest.mark.parametrize("mode", ["real", "ideal"])
def test_a_party_that_brings_more_than_it_has_rows_stops_the_run(mode):
    """The sum of all would leave its place: a sum in it would be a wrong one."""
    assert summing(mode, [[5, 1], [5, 1]], rows=5)[0]() == [10, 2]
    for counts in ([[6, 1], [4, 1]], [[4, 1], [6, 1]]):
        with pytest.raises(PlaintextOverflowError, match="beyond 0 and 5"):
            summing(mode, counts, rows=5)[0]()


def test_a_client_without_rows_has_its_part_in_sums():
    tables, schema = sample_federation(rows=60, clients=2)
    parts = [*tables, tables[0].take(np.arange(0))]
    protocol = "nvflare-hist[trees=1,max_depth=1,max_bin=6]"
    models = [run(protocol, d, (parts, schema))[0].model for d in ("", "paillier[mode=ideal]")]
    assert len({encode(as_message(model)) for model in models}) == 1


def test_one_client_has_nobody_to_hide_among():
    for defense in ("masking", "paillier[bits=1024]"):
        with pytest.raises(UsageError, match="two"):
            run("boosted", defense, sample_federation(rows=40, clients=1))


def test_the_claim_names_what_it_does_not_cover():
    done, _ = run("boosted", "paillier[bits=1024]")
    (claim,), (spent,) = done.defense.claims(), done.defense.spent(done.transcript)
    uncovered = ("cut-summaries", "sums-to-clients", "sums-to-key-holder")
    assert claim == Computational(80, ("paillier", "djn"), uncovered)
    assert spent == replace(claim, uncovered=("cut-summaries", "sums-to-key-holder"))
    assert parse(join([claim])) == (claim,)
    public, _ = run("nvflare-hist[trees=1,max_bin=6]", "public-cuts+masking[mode=ideal]")
    assert public.defense.spent(public.transcript)[1] == Computational(
        128, "x25519+chacha20", "sums-to-clients", "ideal"
    )


@pytest.mark.long
def test_explaining_says_who_can_read():
    done, _ = run("boosted", "paillier[bits=1024]")
    rows = disclosures(done.transcript, done.defense)
    readers = {(r["type"], r["from"], r["to"]): (r["readable_by"], r["sealed"]) for r in rows}
    assert readers["Histogram", "client", "server"] == ("client-0", True)
    assert readers["OpenedSum", "client", "server"] == ("server", False)
    assert readers["PaillierKey", "client", "server"] == ("nobody", True)


SUITE = """
name = "tiny"
seeds = [0]
[[grid]]
data = ["breast-cancer[rows=90]"]
protocols = ["fedtree-hist[trees=1,max_depth=1,max_bin=6]"]
defenses = ["masking", "paillier[bits=1024]"]
attacks = ["random-leaf"]
threats = ["server", "server+client[index=0]"]
"""


@pytest.mark.long
def test_no_secret_is_in_anything_that_is_kept(tmp_path, monkeypatch, caplog, capfd):
    """Private keys, mask seeds, their shares, one client's sums: in no file, checkpoint or log."""
    drawn, secrets, pairs, plain, dealt = [], [], [], [], []
    make, draw, deal = KeyPair.generate.__func__, primitives.draw_key, shamir.share
    caplog.set_level(logging.DEBUG)

    def generate(cls, bits):
        drawn.append(make(cls, bits))
        return drawn[-1]

    def key(randomness):
        secrets.append(draw(randomness))
        return secrets[-1]

    monkeypatch.setattr(KeyPair, "generate", classmethod(generate))

    def shared(secret, *given):
        found = deal(secret, *given)
        dealt.append((secret, found))
        return found

    def noted(method):
        def call(self, *given):
            plain.extend(a.tobytes() for a in given if isinstance(a, np.ndarray) and a.size > 20)
            return method(self, *given)

        return call

    def derived(function):
        def found(*given):
            pairs.append(function(*given))
            return pairs[-1]

        return found

    monkeypatch.setattr("fedtrees.crypto.masks.draw_key", key)
    for name in ("pair_key", "pair_seed"):
        made = derived(getattr(masks, name))
        monkeypatch.setattr(masks, name, made)
    monkeypatch.setattr(shamir, "share", shared)
    monkeypatch.setattr(training_cache, "drop", lambda folder, key: None)
    for kind, method in ((MaskingParty, "mask"), (Encrypter, "encrypt")):
        monkeypatch.setattr(kind, method, noted(getattr(kind, method)))
    sealed, save = [], training_cache.save

    def saved(training, *where):
        sealed.append(training.transcript)
        save(training, *where)

    monkeypatch.setattr(training_cache, "save", saved)
    bench = BenchSession(Suite.parse(SUITE, "tiny"), tmp_path / "run")
    bench.open(resume=True)
    bench.run()
    for i, transcript in enumerate(t for t in sealed if t.costs):
        transcript.save(tmp_path / f"{i}.npz")  # a checkpoint has none that is sealed
    assert len(drawn) >= 1
    assert len(secrets) >= 3 * (1 + 2 * 32)
    assert len(pairs) >= 3 * 2 * (1 + 32)
    words = [s.reveal() for s in (*secrets, *pairs)]
    for pair in drawn:
        for prime in pair.primes():
            p = int(prime.p)
            words += [str(p).encode(), b"%x" % p]
            words += [p.to_bytes(64, order) for order in ("big", "little")]
    words += [w.hex().encode() for w in words if len(w) == 32]
    assert len(plain) > 10
    words += plain
    batch = 1 + 2 * SUMS_AT_ONCE  # a party draws its key, those of its locks, and its seeds
    locks = {id(s) for i, s in enumerate(secrets) if 0 < i % batch <= SUMS_AT_ONCE}
    told = [text for secret, found in dealt if id(secret) in locks for text in found.values()]
    assert len(told) >= 9 * SUMS_AT_ONCE  # nobody leaves: no share of the key to a lock is told
    words += told
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kept = {path: Transcript.load(path) for path in files if path.suffix == ".npz"}
    texts = [text for path, text in files.items() if path not in kept or kept[path].costs]
    kept = [t for t in kept.values() if t.costs]  # what is not defended is run and kept as well
    assert len(kept) == 2
    printed = capfd.readouterr()
    texts += [(caplog.text + printed.out + printed.err).encode()]
    texts += [encode(d.message) for t in kept for d in t]
    texts += [json.dumps([vars(t)["costs"], str(t.acted)]).encode() for t in kept]
    assert len(texts) > 50
    for text in texts:
        assert not any(word in text for word in words)
    assert any(isinstance(d.message, MaskSurvivors) for t in kept for d in t)
    contexts = (tmp_path / "run" / "contexts.csv").read_text()
    assert "client-0 has the key" in contexts  # a threat that undoes it is a skip with the reason
    assert "ciphertexts_of,Histogram" in (tmp_path / "run" / "rows.csv").read_text()
    for thing in (*drawn, *secrets):
        with pytest.raises(CryptoError):
            __import__("pickle").dumps(thing)


def test_threats_of_roles_pick_who_holds_no_key():
    roles = {"server": "server", **{f"client-{i}": "client" for i in range(3)}}
    assert Threat.parse("client").principals(roles) == ("client-2",)
