"""Python-paillier in place of our arithmetic: equal sums, models and messages, exchanged keys."""

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
from columns import run as run_vertical
from federations import sample_federation
from hypothesis import given, settings
from hypothesis import strategies as st
from phe import PaillierPrivateKey, PaillierPublicKey
from phe import paillier as phe
from present import here
from regression_runs import by_columns, table, trained
from seeded_keys import seeded

from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import Computational
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import without_payload
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_grid, parse_one
from fedtrees.core.wire import encode
from fedtrees.crypto import phe_backend
from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.encrypted_sums import Adder, Encrypter, KeyHolder
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.modes import BACKENDS, load_backend
from fedtrees.crypto.packing import Slots
from fedtrees.crypto.phe_backend import (
    PheKeyPair,
    PheObfuscators,
    PhePublicKey,
    ciphertexts_from_phe,
    ciphertexts_to_phe,
    keys_from_phe,
    keys_to_phe,
    public_from_phe,
    public_to_phe,
)
from fedtrees.crypto.primitives import ExposureError, MalformedError, PlaintextOverflowError, Secret
from fedtrees.defenses.paillier import Paillier
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.models import as_message
from fedtrees.protocols.training import train

pytestmark = pytest.mark.filterwarnings("ignore:a 1024-bit Paillier key is weak")

BOUND = 2**509 - 1  # below n // 3 - 1 of every 512-bit key
values = st.lists(st.integers(-BOUND, BOUND), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def both(keys):
    """Return the same key as an object of both backends."""
    return keys, PheKeyPair(keys_to_phe(keys))


def test_the_arithmetic_of_both_backends_gives_the_same_ciphertexts(both):
    """All operations but the drawing of obfuscators are deterministic."""
    ours, theirs = both[0].public, both[1].public
    rho = PheObfuscators(theirs).take(3)
    plain = [0, 12345, -BOUND]
    sealed = ours.encrypt(plain, rho)
    assert theirs.encrypt(plain, rho) == sealed
    assert theirs.add(sealed, sealed[::-1]) == ours.add(sealed, sealed[::-1])
    shifts = [5, -5, 3 * ours.n + 1]
    assert theirs.shift(sealed, shifts) == ours.shift(sealed, shifts)
    for factor in (0, 1, -3, 2**80):
        assert theirs.multiply(sealed[1], factor) == ours.multiply(sealed[1], factor)
    totals = [[*sealed], [*sealed]]
    for public, cells in zip((ours, theirs), totals, strict=True):
        public.add_to_cells(cells, sealed[1], [0, -1, 2, 0])
    assert totals[0] == totals[1] != sealed
    assert both[1].residues(sealed) == both[0].residues(sealed) == [0, 12345, ours.n - BOUND]


def test_obfuscators_of_phe_are_fresh_encryptions_of_zero(both):
    ledger = OperationCounter()
    made = PheObfuscators(both[1].public, ledger).take(100)
    assert len({*made}) == 100
    assert both[0].decrypt(made) == [0] * 100
    assert ledger.done == {"obfuscators": 100}


@settings(max_examples=20)
@given(numbers=values)
def test_each_backend_decrypts_sums_of_both(both, numbers):
    halves = [v // 2 for v in numbers]
    sealed = [
        PheObfuscators(both[1].public).encrypt(halves),
        load_backend().short(both[0].public, OperationCounter()).encrypt(halves),
    ]
    for keys in both:
        total = keys.public.add(*sealed)
        assert keys.decrypt(total) == [2 * v for v in halves]


def test_keys_are_exchanged_in_both_directions():
    theirs, private = phe.generate_paillier_keypair(n_length=512)
    keys = keys_from_phe(private)
    assert public_from_phe(theirs) == keys.public
    assert keys_to_phe(keys) == private
    ours = seeded(512, 9)
    assert public_to_phe(ours.public) == PaillierPublicKey(ours.public.n)
    assert keys_from_phe(keys_to_phe(ours)).public.n == ours.public.n
    # The bytes that a party sends are the modulus that phe's constructor takes.
    n = int.from_bytes(ours.public.payload(obfuscators=False), "big")
    assert PaillierPublicKey(n) == public_to_phe(ours.public)


def test_ciphertexts_are_exchanged_in_both_directions(both):
    ours, private = both[0], keys_to_phe(both[0])
    numbers = [3, -4, 10**20]
    sealed = ciphertexts_from_phe([private.public_key.encrypt(v) for v in numbers])
    assert ours.decrypt(sealed) == numbers
    sent = ciphertexts_to_phe(PheObfuscators(both[1].public).encrypt(numbers), ours.public)
    assert [private.decrypt(number + 1) for number in sent] == [v + 1 for v in numbers]
    with pytest.raises(MalformedError, match="encrypt an integer"):
        ciphertexts_from_phe([private.public_key.encrypt(0.5)])


def test_a_result_of_phe_is_obfuscated_before_it_is_sent(both):
    public = public_to_phe(both[0].public)
    number = public.encrypt(1) + public.encrypt(2)
    bare = number.ciphertext(be_secure=False)
    (sent,) = ciphertexts_from_phe([number])
    assert sent != bare
    assert both[0].decrypt([sent]) == [3]


def test_overflow_is_refused_before_encryption_and_found_after(both):
    bound, source = both[1].public.largest_plaintext, PheObfuscators(both[1].public)
    with pytest.raises(PlaintextOverflowError, match="encrypt smaller numbers"):
        source.encrypt([bound + 1])
    sealed = source.encrypt([bound])
    with pytest.raises(PlaintextOverflowError, match="a sum has overflowed"):
        both[1].decrypt(both[1].public.add(sealed, sealed))


@pytest.mark.parametrize("base", [False, True])
def test_generated_keys_have_the_length_of_ours_and_a_base_on_request(base, monkeypatch):
    keys = load_backend("phe").generate(1024, base)
    assert isinstance(keys.public, PhePublicKey)
    assert keys.public.bits == 1024
    assert (keys.public.djn is not None) == base
    # A party with the other backend can use the base.
    if base:
        read = load_backend().read(keys.public.payload(), 1024)
        assert all(p.p % 4 == 3 for p in keys.primes())
        assert math.gcd(*(int(p.p) - 1 for p in keys.primes())) == 2
        made = load_backend().short(read, OperationCounter()).take(5)
        assert keys.decrypt(made) == [0] * 5


def test_a_short_key_warns_and_another_length_is_refused():
    with pytest.warns(UserWarning, match="1024-bit Paillier key is weak"):
        load_backend("phe").generate(1024, base=False)
    with pytest.raises(UsageError, match="one of 1024, 2048, 3072"):
        load_backend("phe").generate(512, base=False)
    with pytest.raises(UsageError, match="unknown backend 'pheh'; did you mean 'phe'"):
        load_backend("pheh")


def test_the_private_key_of_phe_is_neither_printed_nor_pickled(both):
    keys = both[1]
    shown = f"{keys!r} {keys.__slots__} {keys._private!r} {keys.public!r}"
    for prime in keys.primes():
        assert str(int(prime.p)) not in shown
    assert isinstance(keys._private, Secret)
    with pytest.raises(ExposureError, match="neither pickled nor copied"):
        keys.__reduce_ex__(2)


@pytest.mark.parametrize("holder", BACKENDS)
@pytest.mark.parametrize("sender", BACKENDS)
@pytest.mark.parametrize("adder", BACKENDS)
def test_parties_with_different_backends_understand_each_other(holder, sender, adder):
    names, slots = ["b", "c"], Slots(1000, 2)
    opener = KeyHolder(2, 1024, False, OperationCounter(), load_backend(holder))
    senders = {n: Encrypter(n, False, OperationCounter(), load_backend(sender)) for n in names}
    server = Adder(names, OperationCounter(), load_backend(adder))
    for side in (*senders.values(), server):
        side.learn(opener.public_key(), 1024)
    opener.take_seeds({n: side.encrypt_seed() for n, side in senders.items()})
    array = np.arange(-50, 50)
    texts = {n: side.encrypt(array, slots, b"x") for n, side in senders.items()}
    total = server.add(texts, len(array), slots)
    assert np.array_equal(opener.decrypt_sum(total, len(array), slots, b"x"), 2 * array)


#: Numbers of calls of phe, by operation.
CALLS = {"encrypt": 0, "add": 0, "decrypt": 0}


@pytest.fixture
def calls(monkeypatch):
    """Count the operations that phe computes."""
    counts = dict(CALLS)

    def counted(owner, method, name):
        original = getattr(owner, method)

        def call(self, *given, **named):
            counts[name] += 1
            return original(self, *given, **named)

        monkeypatch.setattr(owner, method, call)

    counted(PaillierPublicKey, "raw_encrypt", "encrypt")
    counted(phe_backend.EncryptedNumber, "__add__", "add")
    counted(PaillierPrivateKey, "raw_decrypt", "decrypt")
    return counts


def shown(training):
    """Return all messages without ciphertexts, in order, and the counts of all operations."""
    messages = [
        (d.sender, d.receivers, encode(without_payload(d.message)), d.nbytes)
        for d in training.transcript
    ]
    costs = {k: v for k, v in training.transcript.costs.items() if not k.startswith("cpu")}
    return messages, costs


@pytest.mark.parametrize(
    "protocol",
    [
        "fedtree-hist[trees=1,max_depth=2,max_bin=6,early_stopping_rounds=1]",
        "nvflare-hist[trees=1,max_depth=2,max_bin=6]",
        "forest-hist[trees=1,max_depth=2,max_bin=6]",
        "dp-forest[trees=1,depth=2,epsilon=8,noise=distributed]",
        "dp-gbdt[trees=1,epsilon=8,noise=distributed]",
    ],
)
def test_histograms_under_phe_give_the_same_model_and_transcript(protocol, calls):
    tables, schema = sample_federation(rows=60)
    held = over_clients(tables)
    made = register.make("protocol", parse_grid(protocol)[0])

    def run(defense):
        by = make_defense(parse_one(defense))
        return train(made, held, schema, defense=by, seed=1, noise_from="seed")

    plain, ours = run("none"), run("paillier[bits=1024,djn=false]")
    assert calls == CALLS
    theirs = run("paillier[bits=1024,backend=phe]")
    assert min(calls.values()) > 0
    assert calls["decrypt"] == theirs.transcript.costs["decrypted"]
    models = [encode(as_message(t.model)) for t in (plain, ours, theirs)]
    assert models[0] == models[1] == models[2]
    assert shown(theirs) == shown(ours)


@pytest.mark.parametrize("protocol", ["secureboost", "vertical-forest"])
def test_vertical_trees_under_phe_are_the_same(protocol, calls):
    text = f"{protocol}[trees=1,max_depth=2,max_bin=4,key_bits=1024,crypto=%s]"
    (ours, _) = run_vertical(text % "real", 2, n=40)
    assert calls == CALLS
    (theirs, _) = run_vertical(text % "phe", 2, n=40)
    assert min(calls.values()) > 0
    assert calls["decrypt"] == theirs.transcript.costs["decrypted"]
    for a, b in zip(ours.model.trees, theirs.model.trees, strict=True):
        for field in ("feature", "threshold", "left", "default_left", "value"):
            if hasattr(a, field):
                np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
    assert shown(theirs) == shown(ours)


@pytest.mark.parametrize("degree", [1, 3] * bool(here("protocol", ["vertical-regression"])))
def test_a_regression_under_phe_is_the_same(degree, calls):
    rows, schema = table(6, 5)
    text = f"vertical-regression[rounds=2,degree={degree},arbiter=%s,key_bits=1024]"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = trained(text % "real", by_columns(rows, 3), schema)
        assert calls == CALLS
        theirs = trained(text % "phe", by_columns(rows, 3), schema)
    assert min(calls.values()) > 0
    assert np.array_equal(ours.predict(rows.X), theirs.predict(rows.X))
    assert shown(theirs) == shown(ours)


def test_the_claim_under_phe_needs_no_short_powers():
    assert Paillier().strength() == (112, ("paillier", "djn"))
    assert Paillier(backend="phe").strength() == (112, ("paillier",))
    assert Paillier(backend="phe", bits=1024).claim() == Computational(
        80, "paillier", Paillier().claim().uncovered
    )
    with pytest.raises(UsageError, match="leave out djn"):
        Paillier(backend="phe", djn=True)
    with pytest.raises(UsageError, match="unknown backend 'gmp'"):
        Paillier(backend="gmp")


def test_the_default_backend_is_ours_and_loads_no_phe():
    assert type(load_backend().generate(1024, base=True)) is KeyPair
    code = (
        "import sys, fedtrees.defenses.paillier, fedtrees.crypto.bin_sums\n"
        "print(*sys.modules)\n"
        "from fedtrees.crypto.modes import load_backend; load_backend()\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported, computing = done.stdout.splitlines()
    assert "gmpy2" not in imported.split()
    assert "gmpy2" in computing.split()
    assert "phe" not in computing.split()
