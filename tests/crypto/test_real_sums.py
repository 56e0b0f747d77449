"""Sums under masks and under Paillier give the same models, views and attacks as ideal sums."""

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
from fedtrees.experiments import store
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


def train_federation(protocol, defense="", federation=None):
    tables, schema = federation or sample_federation(rows=90)
    protocol_object = register.make("protocol", parse_grid(RUNS.get(protocol, protocol))[0])
    parts = [*(["grid-cuts"] if protocol == "grid" else []), *([defense] if defense else [])]
    composition = make_defense(parse_one("+".join(parts) or "none"))
    local_data = over_clients(tables)
    return train(protocol_object, local_data, schema, defense=composition, seed=1), local_data


def ideal_twin(defense):
    """Return the specification of a defense with ideal instead of real cryptography."""
    return (defense[:-1] + "," if defense.endswith("]") else defense + "[") + "mode=ideal]"


@pytest.fixture(scope="module", params=[(p, d) for p in RUNS for d in REAL], ids=" ".join)
def plain_summed_real_twin(request):
    """Train one protocol in plain text, under the ideal sum, under real cryptography and under
    its ideal twin.
    """
    protocol, defense = request.param
    trainings = [
        train_federation(protocol, defense_name)
        for defense_name in ("", "secure-sum", defense, ideal_twin(defense))
    ]
    return protocol, defense, *(training[0] for training in trainings), trainings[0][1]


def test_every_protocol_with_sums_is_tested():
    sums = (*SealedSums.handled_types, *SealedSums.permitted_types)
    classes = {name: register.get("protocol", name) for name in register.names("protocol")}
    summing = {
        n
        for n, protocol_class in classes.items()
        if protocol_class.summed_types
        or {*protocol_class.info.message_types} & {*SealedSums.applies_to}
    }
    tested_elsewhere = {"dp-forest", "dp-gbdt", "federboost-h", "horizontal-regression"}
    summing -= {*tested_elsewhere, "fedsgd-mlp", "fedavg-mlp", "fedxgbllr"}
    assert summing == {parse_grid(text)[0].name for text in RUNS.values()}
    assert set.union(*SUMMED.values()) <= {*sums}


def test_the_model_is_the_same_bit_for_bit(plain_summed_real_twin):
    protocol, _, *trained, _ = plain_summed_real_twin
    assert len({encode(as_message(training.model)) for training in trained}) == 1
    sealed_types = {
        type(delivery.message)
        for delivery in trained[2].transcript
        if has_sealed_field(delivery.message)
    }
    assert {
        kind for kind in sealed_types if any(field.metadata.get("summed") for field in fields(kind))
    } == (SUMMED[protocol])


def equal_without_payloads(a, b):
    """Return whether two messages are equal except their ciphertexts."""
    return encode(without_payload(a)) == encode(without_payload(b))


def all_threats():
    coalitions = [parties for size in (1, 2) for parties in combinations(PARTIES, size)]
    return [*coalitions, (PUBLIC,)]


def test_every_threat_has_the_same_view_except_the_bits_of_ciphertexts(plain_summed_real_twin):
    _, defense, _, _, real, twin, local_data = plain_summed_real_twin
    views = 0
    for threat in all_threats():
        if not check_fit(
            None, real.defense, None, threat, KnownFacts(roles=real.transcript.roles)
        ).ok:
            continue
        views += 1
        real_view, ideal_view = view_of(real, threat, local_data), view_of(twin, threat, local_data)
        assert len(real_view.seen) == len(ideal_view.seen) > 0
        for real_item, ideal_item in zip(real_view.seen, ideal_view.seen, strict=True):
            assert {**vars(real_item), "message": 0} == {**vars(ideal_item), "message": 0}
            assert equal_without_payloads(real_item.message, ideal_item.message)
    assert views == len(all_threats()) - defense.startswith("paillier")
    assert real.transcript.traffic() == twin.transcript.traffic()
    counts = [
        {k: v for k, v in ideal_item.transcript.costs.items() if not k.startswith("cpu")}
        for ideal_item in (real, twin)
    ]
    assert counts[0] == counts[1]
    assert all(v == 0 for k, v in twin.transcript.costs.items() if k.startswith("cpu_seconds"))


def plain_statistics(view):
    """Return the readable sums in a view, as bytes, and whether they were decrypted."""
    kinds = (Histogram, LabelSums, ValidationLoss, GridCounts, ClassTotals, ClassCounts)
    return [
        (item.opened, encode(item.message))
        for item in view.seen
        if isinstance(item.message, kinds) and not has_sealed_field(item.message)
    ]


def test_parties_read_the_same_statistics_as_under_the_ideal_sum(plain_summed_real_twin):
    _, defense, _, summed, real, _, local_data = plain_summed_real_twin
    for party in (*PARTIES, PUBLIC):
        expected = plain_statistics(view_of(summed, (party,), local_data))
        readable = plain_statistics(view_of(real, (party,), local_data))
        if party == "client-0" and defense.startswith("paillier"):
            # The owner of the key decrypts the same sums as the server.
            assert (
                readable == plain_statistics(view_of(summed, ("server",), local_data)) != expected
            )
        else:
            assert readable == expected


def sealed_fields(message):
    """Return the sealed fields of a message by name."""
    return {f.name: v for f in fields(message) if isinstance(v := getattr(message, f.name), Sealed)}


def test_messages_contain_ciphertexts_and_no_plain_summands(plain_summed_real_twin):
    protocol, _, plain, _, real, _, local_data = plain_summed_real_twin
    plain_deliveries = [
        delivery
        for delivery in plain.transcript
        if delivery.sender in local_data and not has_sealed_field(delivery.message)
    ]
    open_bytes = {
        array.tobytes()
        for delivery in plain_deliveries
        for field in fields(delivery.message)
        if field.metadata.get("summed") and np.any(array := getattr(delivery.message, field.name))
    }
    all_seals = [
        seal for delivery in real.transcript for seal in sealed_fields(delivery.message).values()
    ]
    assert all(len(seal.payload) == seal.nbytes for seal in all_seals)
    payloads = b"".join(seal.payload for seal in all_seals)
    assert protocol == "grid" or open_bytes
    assert not any(part in payloads for part in open_bytes)
    for delivery in real.transcript:  # Plain sums are sent only after decryption.
        if not has_sealed_field(delivery.message) and not isinstance(delivery.message, OpenedSum):
            assert delivery.receivers == (delivery.sender,) or not any(
                field.metadata.get("summed") for field in fields(delivery.message)
            )


def test_the_decrypted_ciphertext_is_the_product_of_the_sent_ones():
    training, _ = train_federation("boosted", "paillier[bits=1024]")
    (key, *_) = (
        delivery.message
        for delivery in training.transcript
        if isinstance(delivery.message, PaillierKey)
    )
    n = int.from_bytes(key.key.payload[: 1024 // 8], "big")
    received, checked = [], 0
    for delivery in training.transcript:
        sealed = sealed_fields(delivery.message)
        if not sealed or isinstance(delivery.message, (PaillierKey, PaillierSeeds)):
            continue
        if delivery.sender != "server":
            received.append(sealed)
            continue
        assert len(received) == 2  # The party that decrypts the sum adds its plain array.
        for name, total in sealed.items():
            size = 1024 // 4
            parts = [sealed_message[name].payload for sealed_message in received]
            for start in range(MARK_BYTES, len(total.payload), size):
                computed_product = math.prod(
                    mpz(int.from_bytes(payload[start : start + size], "big")) for payload in parts
                )
                expected = int.from_bytes(total.payload[start : start + size], "big")
                assert computed_product % (n * n) == expected
                checked += 1
        received = []
    assert checked > 10


class ConstantClient(Party):
    """A client that always answers the same counts."""

    role = "client"

    def __init__(self, name, counts):
        super().__init__(name)
        self.counts = np.array(counts)

    @handles(ClassTotalsRequest)
    def tell(self, message):
        return ClassTotals(0, self.counts)


@dataclass(frozen=True)
class DropParties(Defense):
    """A defense that drops requests to some parties."""

    names: list

    def audience(self, message, receivers, ctx):
        return [name for name in receivers if name not in self.names]


def request_of_sum(mode, counts, rows):
    """Return a function that requests a sum over clients with `rows` rows each, and the list of
    missing names.
    """
    composition_of_sum = register.make("defense", Spec("paillier", {"bits": 1024, "mode": mode}))
    clients = [
        ConstantClient(f"client-{i}", client_counts) for i, client_counts in enumerate(counts)
    ]
    (table,), schema = sample_federation(rows=rows, clients=1)
    local_data = {
        client.name: LocalData.of(table, np.arange(rows) + rows * i)
        for i, client in enumerate(clients)
    }
    server, dropping = Party("server"), DropParties([])
    net = network_of(
        [server, *clients],
        schema,
        Composition((composition_of_sum, dropping)),
        local_data=local_data,
    )

    def ask():
        with acting(server):
            total = net.request_sum("client", ClassTotalsRequest(0), reason="a test")
        return total.counts.tolist()

    return ask, dropping.names


@pytest.mark.parametrize("mode", ["real", "ideal"])
def test_a_paillier_sum_with_a_missing_party_is_refused(mode):
    """This includes the owner of the key, whose array is never sent."""
    ask, missing_names = request_of_sum(mode, [[i, 1] for i in range(3)], rows=3)
    assert ask() == [3, 3]
    for i in range(3):
        missing_names[:] = [f"client-{i}"]
        with pytest.raises(MissingPartyError, match=f"arrays of client-{i} are missing"):
            ask()


def test_a_changed_array_is_detected_by_its_tag(monkeypatch):
    name = "nvflare-hist[trees=1,max_depth=1,max_bin=6,base_score=0.5]"
    mask = MaskingParty.mask

    def mask_with_change(self, index, array, *arguments):
        masked = mask(self, index, array, *arguments)
        values = np.frombuffer(masked[:-TAG_BYTES], "<u8") + np.uint64(self.name == "client-1")
        return values.tobytes() + masked[-TAG_BYTES:]

    monkeypatch.setattr(MaskingParty, "mask", mask_with_change)
    with pytest.raises(WrongKeyError, match="the array of 'client-1' in sum 0 does not match"):
        train_federation(name, "masking")


@pytest.mark.long
def test_attacks_guess_the_same_on_real_and_ideal(plain_summed_real_twin):
    protocol, _, _, _, real, twin, local_data = plain_summed_real_twin
    n_guesses = 0
    for party, name in product(("server", "client-2"), ATTACKS):
        spec = parse_grid(name)[0]
        real_result, ideal_result = (
            attack_process().run(spec, view_of(training, (party,), local_data))
            for training in (real, twin)
        )
        assert real_result.reason == ideal_result.reason
        if real_result.guess is not None:
            n_guesses += 1
            np.testing.assert_equal(asdict(real_result.guess), asdict(ideal_result.guess))
    assert n_guesses >= (0 if protocol == "forest" else 2)


def test_numeric_targets_and_weights_have_exactly_equal_sums():
    tables, schema = sample_federation(rows=60)
    schema = replace(schema, classes=())
    rng = np.random.default_rng(0)
    weighted_tables = [
        replace(table, y=(rng.normal(size=len(table)) * 10.0 ** rng.integers(-9, 6, len(table))),
                weight=rng.random(len(table)).astype(np.float32))
        for table in tables
    ]  # fmt: skip
    protocol = "fedtree-hist[trees=2,max_depth=2,max_bin=6]"
    trainings = [
        train_federation(protocol, defense_name, (weighted_tables, schema))[0]
        for defense_name in ("", *REAL)
    ]
    assert len({encode(as_message(table.model)) for table in trainings}) == 1


floats = st.floats(-1e50, 1e50).filter(lambda x: x == 0 or abs(x) > 1e-40)


@given(st.lists(st.tuples(floats, floats), min_size=1, max_size=6))
def test_floats_sum_exactly_and_are_rounded_once(rows):
    arrays = [np.array(row) for row in rows]
    sums = sum(to_integers(array) for array in arrays)
    rounded = from_integers(sums, (2,), np.dtype(np.float64))
    assert rounded.tolist() == [math.fsum(column) for column in zip(*rows, strict=True)]
    added = add_messages([LabelSums(array) for array in arrays])
    assert added.sums.tolist() == rounded.tolist()


def test_floats_without_a_place_are_refused():
    for wrong in (np.nan, np.inf, 2.0**192):
        with pytest.raises(DataError, match="cannot be summed securely"):
            to_integers(np.array([1.0, wrong]))


def test_an_adversary_with_the_key_gets_no_view():
    training, local_data = train_federation("boosted", "paillier[bits=1024,mode=ideal]")
    with pytest.raises(Unfit, match=r"client-0 has the key.*'masking'"):
        view_of(training, ("server", "client-0"), local_data)
    assert view_of(training, ("server", "client-1", "client-2"), local_data).seen
    roles_of_five = {"server": "server", **{f"client-{i}": "client" for i in range(5)}}
    masks = register.make("defense", Spec("masking", {"threshold": 3}))
    assert masks.broken_by(("server", "client-1", "client-2"), roles_of_five) is None
    assert "3 shares are sufficient" in str(
        masks.broken_by(("server", *[f"client-{i}" for i in (1, 2, 4)]), roles_of_five)
    )
    # Without the server the coalition has no masked arrays.
    assert masks.broken_by(tuple(roles_of_five)[1:4], roles_of_five) is None


@pytest.mark.parametrize(
    ("defense", "message"),
    [
        ("masking+paillier", "each encrypt or mask every sum"),
        ("masking[threshold=1]", "2 or more"),
        ("masking[mode=fake]", "unknown mode"),
        ("paillier[bits=512]", "one of 1024, 2048, 3072"),
        ("paillier[packing=65]", "from 8 to 64"),
        ("masking[threshold=4]", "from 2 to 3"),
    ],
)
def test_invalid_options_are_refused(defense, message):
    with pytest.raises(UsageError, match=message):
        train_federation("boosted", defense)


@pytest.mark.parametrize("mode", ["real", "ideal"])
def test_a_sum_that_does_not_fit_stops_the_run(mode):
    with pytest.raises(PlaintextOverflowError, match="larger limit"):
        train_federation("all-reduce", f"paillier[bits=1024,packing=24,mode={mode}]")
    noisy, _ = train_federation(
        "all-reduce", f"laplace-hist[epsilon=0.001]+paillier[bits=1024,mode={mode}]"
    )
    plain, _ = train_federation("all-reduce", "laplace-hist[epsilon=0.001]")
    assert encode(as_message(noisy.model)) == encode(as_message(plain.model))


@pytest.mark.parametrize("mode", ["real", "ideal"])
def test_a_party_with_counts_above_its_rows_stops_the_run(mode):
    """A larger sum would overflow its slot."""
    assert request_of_sum(mode, [[5, 1], [5, 1]], rows=5)[0]() == [10, 2]
    for counts in ([[6, 1], [4, 1]], [[4, 1], [6, 1]]):
        with pytest.raises(PlaintextOverflowError, match="beyond 0 and 5"):
            request_of_sum(mode, counts, rows=5)[0]()


def test_a_client_without_rows_has_its_part_in_sums():
    tables, schema = sample_federation(rows=60, clients=2)
    parts = [*tables, tables[0].take(np.arange(0))]
    protocol = "nvflare-hist[trees=1,max_depth=1,max_bin=6]"
    models = [
        train_federation(protocol, d, (parts, schema))[0].model
        for d in ("", "paillier[mode=ideal]")
    ]
    assert len({encode(as_message(model)) for model in models}) == 1


def test_secure_sums_need_two_clients():
    for defense in ("masking", "paillier[bits=1024]"):
        with pytest.raises(UsageError, match="two"):
            train_federation("boosted", defense, sample_federation(rows=40, clients=1))


def test_the_claim_lists_unprotected_values():
    training, _ = train_federation("boosted", "paillier[bits=1024]")
    (claim,), (spent,) = training.defense.claims(), training.defense.spent(training.transcript)
    uncovered = ("cut-summaries", "sums-to-clients", "sums-to-key-holder")
    assert claim == Computational(80, ("paillier", "djn"), uncovered)
    assert spent == replace(claim, uncovered=("cut-summaries", "sums-to-key-holder"))
    assert parse(join([claim])) == (claim,)
    training_with_public_cuts, _ = train_federation(
        "nvflare-hist[trees=1,max_bin=6]", "public-cuts+masking[mode=ideal]"
    )
    assert training_with_public_cuts.defense.spent(training_with_public_cuts.transcript)[
        1
    ] == Computational(128, "x25519+chacha20", "sums-to-clients", "ideal")


@pytest.mark.long
def test_disclosures_name_the_readers_of_messages():
    training, _ = train_federation("boosted", "paillier[bits=1024]")
    rows = disclosures(training.transcript, training.defense)
    readers = {
        (row["type"], row["from"], row["to"]): (row["readable_by"], row["sealed"]) for row in rows
    }
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
def test_no_secret_is_stored_or_printed(tmp_path, monkeypatch, caplog, capfd):
    """Private keys, mask seeds, their shares, and sums of one client are in no file, checkpoint
    or log.
    """
    key_pairs, secrets, pairs, plain_arrays, shared_secrets = [], [], [], [], []
    generate_pair, draw_secret, share_secret = (
        KeyPair.generate.__func__,
        primitives.draw_key,
        shamir.share,
    )
    caplog.set_level(logging.DEBUG)

    def record_pair(cls, bits):
        key_pairs.append(generate_pair(cls, bits))
        return key_pairs[-1]

    def record_secret(randomness):
        secrets.append(draw_secret(randomness))
        return secrets[-1]

    monkeypatch.setattr(KeyPair, "generate", classmethod(record_pair))

    def record_shares(secret, *arguments):
        shares = share_secret(secret, *arguments)
        shared_secrets.append((secret, shares))
        return shares

    def record_arrays(method):
        def call(self, *arguments):
            plain_arrays.extend(
                a.tobytes() for a in arguments if isinstance(a, np.ndarray) and a.size > 20
            )
            return method(self, *arguments)

        return call

    def record_derived(function):
        def call_and_record(*arguments):
            pairs.append(function(*arguments))
            return pairs[-1]

        return call_and_record

    monkeypatch.setattr("fedtrees.crypto.masks.draw_key", record_secret)
    for name in ("pair_key", "pair_seed"):
        recording = record_derived(getattr(masks, name))
        monkeypatch.setattr(masks, name, recording)
    monkeypatch.setattr(shamir, "share", record_shares)
    monkeypatch.setattr(store, "drop_training", lambda folder, key: None)
    for kind, method in ((MaskingParty, "mask"), (Encrypter, "encrypt")):
        monkeypatch.setattr(kind, method, record_arrays(getattr(kind, method)))
    transcripts, save = [], store.save_training

    def record_training(training, *where):
        transcripts.append(training.transcript)
        save(training, *where)

    monkeypatch.setattr(store, "save_training", record_training)
    bench = BenchSession(Suite.parse(SUITE, "tiny"), tmp_path / "run")
    bench.open(resume=True)
    bench.run()
    for i, transcript in enumerate(t for t in transcripts if t.costs):
        transcript.save(tmp_path / f"{i}.npz")  # The checkpoint contains no sealed value.
    assert len(key_pairs) >= 1
    assert len(secrets) >= 3 * (1 + 2 * 32)
    assert len(pairs) >= 3 * 2 * (1 + 32)
    words = [s.reveal() for s in (*secrets, *pairs)]
    for pair in key_pairs:
        for prime in pair.primes():
            p = int(prime.p)
            words += [str(p).encode(), b"%x" % p]
            words += [p.to_bytes(64, order) for order in ("big", "little")]
    words += [w.hex().encode() for w in words if len(w) == 32]
    assert len(plain_arrays) > 10
    words += plain_arrays
    # A party draws its key, the keys of its locks, and its seeds.
    batch = 1 + 2 * SUMS_AT_ONCE
    locks = {id(s) for i, s in enumerate(secrets) if 0 < i % batch <= SUMS_AT_ONCE}
    lock_shares = [
        text for secret, shares in shared_secrets if id(secret) in locks for text in shares.values()
    ]
    # No client drops out, so no share of a key to a lock is sent.
    assert len(lock_shares) >= 9 * SUMS_AT_ONCE
    words += lock_shares
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    stored_transcripts = {path: Transcript.load(path) for path in files if path.suffix == ".npz"}
    texts = [
        text
        for path, text in files.items()
        if path not in stored_transcripts or stored_transcripts[path].costs
    ]
    # The bench also stores the training without a defense.
    stored_transcripts = [t for t in stored_transcripts.values() if t.costs]
    assert len(stored_transcripts) == 2
    printed = capfd.readouterr()
    texts += [(caplog.text + printed.out + printed.err).encode()]
    texts += [encode(d.message) for t in stored_transcripts for d in t]
    texts += [json.dumps([vars(t)["costs"], str(t.acted)]).encode() for t in stored_transcripts]
    assert len(texts) > 50
    for text in texts:
        assert not any(word in text for word in words)
    assert any(isinstance(d.message, MaskSurvivors) for t in stored_transcripts for d in t)
    contexts = (tmp_path / "run" / "contexts.csv").read_text()
    # A threat with the key is skipped with this reason.
    assert "client-0 has the key" in contexts
    assert "ciphertexts_of,Histogram" in (tmp_path / "run" / "rows.csv").read_text()
    for thing in (*key_pairs, *secrets):
        with pytest.raises(CryptoError):
            __import__("pickle").dumps(thing)


def test_a_threat_of_a_role_chooses_a_party_without_the_key():
    roles = {"server": "server", **{f"client-{i}": "client" for i in range(3)}}
    assert Threat.parse("client").principals(roles) == ("client-2",)
