"""Python-paillier instead of fedtrees' arithmetic gives equal sums, models and messages, and
keys are exchangeable.
"""

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

BOUND = 2**509 - 1  # The bound is below n // 3 - 1 of every 512-bit key.
values = st.lists(st.integers(-BOUND, BOUND), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def both_key_pairs(keys):
    """Return the same key as an object of both backends."""
    return keys, PheKeyPair(keys_to_phe(keys))


def test_the_arithmetic_of_both_backends_gives_the_same_ciphertexts(both_key_pairs):
    """All operations are deterministic except the drawing of obfuscators."""
    fedtrees_key, phe_key = both_key_pairs[0].public, both_key_pairs[1].public
    obfuscators = PheObfuscators(phe_key).take(3)
    plaintexts = [0, 12345, -BOUND]
    sealed = fedtrees_key.encrypt(plaintexts, obfuscators)
    assert phe_key.encrypt(plaintexts, obfuscators) == sealed
    assert phe_key.add(sealed, sealed[::-1]) == fedtrees_key.add(sealed, sealed[::-1])
    shifts = [5, -5, 3 * fedtrees_key.n + 1]
    assert phe_key.shift(sealed, shifts) == fedtrees_key.shift(sealed, shifts)
    for factor in (0, 1, -3, 2**80):
        assert phe_key.multiply(sealed[1], factor) == fedtrees_key.multiply(sealed[1], factor)
    totals = [[*sealed], [*sealed]]
    for public, cells in zip((fedtrees_key, phe_key), totals, strict=True):
        public.add_to_cells(cells, sealed[1], [0, -1, 2, 0])
    assert totals[0] == totals[1] != sealed
    assert (
        both_key_pairs[1].residues(sealed)
        == both_key_pairs[0].residues(sealed)
        == [0, 12345, fedtrees_key.n - BOUND]
    )


def test_obfuscators_of_phe_are_fresh_encryptions_of_zero(both_key_pairs):
    ledger = OperationCounter()
    obfuscators = PheObfuscators(both_key_pairs[1].public, ledger).take(100)
    assert len({*obfuscators}) == 100
    assert both_key_pairs[0].decrypt(obfuscators) == [0] * 100
    assert ledger.done == {"obfuscators": 100}


@settings(max_examples=20)
@given(numbers=values)
def test_each_backend_decrypts_sums_of_both(both_key_pairs, numbers):
    halves = [number // 2 for number in numbers]
    sealed = [
        PheObfuscators(both_key_pairs[1].public).encrypt(halves),
        load_backend().short(both_key_pairs[0].public, OperationCounter()).encrypt(halves),
    ]
    for keys in both_key_pairs:
        total = keys.public.add(*sealed)
        assert keys.decrypt(total) == [2 * number for number in halves]


def test_keys_are_exchanged_in_both_directions():
    phe_public, private = phe.generate_paillier_keypair(n_length=512)
    keys = keys_from_phe(private)
    assert public_from_phe(phe_public) == keys.public
    assert keys_to_phe(keys) == private
    fedtrees_keys = seeded(512, 9)
    assert public_to_phe(fedtrees_keys.public) == PaillierPublicKey(fedtrees_keys.public.n)
    assert keys_from_phe(keys_to_phe(fedtrees_keys)).public.n == fedtrees_keys.public.n
    # The bytes that a party sends are the modulus that phe's constructor takes.
    n = int.from_bytes(fedtrees_keys.public.payload(obfuscators=False), "big")
    assert PaillierPublicKey(n) == public_to_phe(fedtrees_keys.public)


def test_ciphertexts_are_exchanged_in_both_directions(both_key_pairs):
    fedtrees_keys, private = both_key_pairs[0], keys_to_phe(both_key_pairs[0])
    numbers = [3, -4, 10**20]
    sealed = ciphertexts_from_phe([private.public_key.encrypt(value) for value in numbers])
    assert fedtrees_keys.decrypt(sealed) == numbers
    encrypted_numbers = ciphertexts_to_phe(
        PheObfuscators(both_key_pairs[1].public).encrypt(numbers), fedtrees_keys.public
    )
    assert [private.decrypt(number + 1) for number in encrypted_numbers] == [
        value + 1 for value in numbers
    ]
    with pytest.raises(MalformedError, match="encrypt an integer"):
        ciphertexts_from_phe([private.public_key.encrypt(0.5)])


def test_a_result_of_phe_is_obfuscated_before_it_is_sent(both_key_pairs):
    public = public_to_phe(both_key_pairs[0].public)
    number = public.encrypt(1) + public.encrypt(2)
    bare = number.ciphertext(be_secure=False)
    (sent,) = ciphertexts_from_phe([number])
    assert sent != bare
    assert both_key_pairs[0].decrypt([sent]) == [3]


def test_overflow_is_refused_before_encryption_and_detected_after(both_key_pairs):
    bound, source = (
        both_key_pairs[1].public.largest_plaintext,
        PheObfuscators(both_key_pairs[1].public),
    )
    with pytest.raises(PlaintextOverflowError, match="encrypt smaller numbers"):
        source.encrypt([bound + 1])
    sealed = source.encrypt([bound])
    with pytest.raises(PlaintextOverflowError, match="a sum has overflowed"):
        both_key_pairs[1].decrypt(both_key_pairs[1].public.add(sealed, sealed))


@pytest.mark.parametrize("base", [False, True])
def test_generated_keys_have_the_requested_length_and_base(base, monkeypatch):
    keys = load_backend("phe").generate(1024, base)
    assert isinstance(keys.public, PhePublicKey)
    assert keys.public.bits == 1024
    assert (keys.public.djn is not None) == base
    # A party with the other backend can use the base.
    if base:
        public_key = load_backend().read(keys.public.payload(), 1024)
        assert all(prime.p % 4 == 3 for prime in keys.primes())
        assert math.gcd(*(int(prime.p) - 1 for prime in keys.primes())) == 2
        obfuscators = load_backend().short(public_key, OperationCounter()).take(5)
        assert keys.decrypt(obfuscators) == [0] * 5


def test_a_short_key_warns_and_another_length_is_refused():
    with pytest.warns(UserWarning, match="1024-bit Paillier key is weak"):
        load_backend("phe").generate(1024, base=False)
    with pytest.raises(UsageError, match="one of 1024, 2048, 3072"):
        load_backend("phe").generate(512, base=False)
    with pytest.raises(UsageError, match="unknown backend 'pheh'; did you mean 'phe'"):
        load_backend("pheh")


def test_the_private_key_of_phe_is_neither_printed_nor_pickled(both_key_pairs):
    keys = both_key_pairs[1]
    printed = f"{keys!r} {keys.__slots__} {keys._private!r} {keys.public!r}"
    for prime in keys.primes():
        assert str(int(prime.p)) not in printed
    assert isinstance(keys._private, Secret)
    with pytest.raises(ExposureError, match="neither pickled nor copied"):
        keys.__reduce_ex__(2)


@pytest.mark.parametrize("holder", BACKENDS)
@pytest.mark.parametrize("sender", BACKENDS)
@pytest.mark.parametrize("adder", BACKENDS)
def test_parties_with_different_backends_are_compatible(holder, sender, adder):
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
NO_CALLS = {"encrypt": 0, "add": 0, "decrypt": 0}


@pytest.fixture
def call_counts(monkeypatch):
    """Count the operations that phe computes."""
    counts = dict(NO_CALLS)

    def count_calls(owner, method, name):
        original = getattr(owner, method)

        def call(self, *arguments, **keyword_arguments):
            counts[name] += 1
            return original(self, *arguments, **keyword_arguments)

        monkeypatch.setattr(owner, method, call)

    count_calls(PaillierPublicKey, "raw_encrypt", "encrypt")
    count_calls(phe_backend.EncryptedNumber, "__add__", "add")
    count_calls(PaillierPrivateKey, "raw_decrypt", "decrypt")
    return counts


def messages_and_costs(training):
    """Return all messages without ciphertexts, in order, and the counts of all operations."""
    messages = [
        (
            delivery.sender,
            delivery.receivers,
            encode(without_payload(delivery.message)),
            delivery.nbytes,
        )
        for delivery in training.transcript
    ]
    costs = {
        name: cost for name, cost in training.transcript.costs.items() if not name.startswith("cpu")
    }
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
def test_histograms_under_phe_give_the_same_model_and_transcript(protocol, call_counts):
    tables, schema = sample_federation(rows=60)
    local_data = over_clients(tables)
    protocol_object = register.make("protocol", parse_grid(protocol)[0])

    def run(defense):
        composition = make_defense(parse_one(defense))
        return train(
            protocol_object, local_data, schema, defense=composition, seed=1, noise_from="seed"
        )

    plain_training, fedtrees_training = run("none"), run("paillier[bits=1024,djn=false]")
    assert call_counts == NO_CALLS
    phe_training = run("paillier[bits=1024,backend=phe]")
    assert min(call_counts.values()) > 0
    assert call_counts["decrypt"] == phe_training.transcript.costs["decrypted"]
    models = [
        encode(as_message(training.model))
        for training in (plain_training, fedtrees_training, phe_training)
    ]
    assert models[0] == models[1] == models[2]
    assert messages_and_costs(phe_training) == messages_and_costs(fedtrees_training)


@pytest.mark.parametrize("protocol", ["secureboost", "vertical-forest"])
def test_vertical_trees_under_phe_are_the_same(protocol, call_counts):
    text = f"{protocol}[trees=1,max_depth=2,max_bin=4,key_bits=1024,crypto=%s]"
    (fedtrees_training, _) = run_vertical(text % "real", 2, n=40)
    assert call_counts == NO_CALLS
    (phe_training, _) = run_vertical(text % "phe", 2, n=40)
    assert min(call_counts.values()) > 0
    assert call_counts["decrypt"] == phe_training.transcript.costs["decrypted"]
    for fedtrees_tree, phe_tree in zip(
        fedtrees_training.model.trees, phe_training.model.trees, strict=True
    ):
        for field in ("feature", "threshold", "left", "default_left", "value"):
            if hasattr(fedtrees_tree, field):
                np.testing.assert_array_equal(
                    getattr(fedtrees_tree, field), getattr(phe_tree, field)
                )
    assert messages_and_costs(phe_training) == messages_and_costs(fedtrees_training)


@pytest.mark.parametrize("degree", [1, 3] * bool(here("protocol", ["vertical-regression"])))
def test_a_regression_under_phe_is_the_same(degree, call_counts):
    rows, schema = table(6, 5)
    text = f"vertical-regression[rounds=2,degree={degree},arbiter=%s,key_bits=1024]"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fedtrees_training = trained(text % "real", by_columns(rows, 3), schema)
        assert call_counts == NO_CALLS
        phe_training = trained(text % "phe", by_columns(rows, 3), schema)
    assert min(call_counts.values()) > 0
    assert np.array_equal(fedtrees_training.predict(rows.X), phe_training.predict(rows.X))
    assert messages_and_costs(phe_training) == messages_and_costs(fedtrees_training)


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


def test_the_default_backend_loads_no_phe():
    assert type(load_backend().generate(1024, base=True)) is KeyPair
    code = (
        "import sys, fedtrees.defenses.paillier, fedtrees.crypto.bin_sums\n"
        "print(*sys.modules)\n"
        "from fedtrees.crypto.modes import load_backend; load_backend()\n"
        "print(*sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    imported, computing = process.stdout.splitlines()
    assert "gmpy2" not in imported.split()
    assert "gmpy2" in computing.split()
    assert "phe" not in computing.split()
