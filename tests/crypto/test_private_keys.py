"""Private keys are accessible only to their owner, in one process as on many machines."""

import numpy as np
import pytest
from gmpy2 import mpz
from present import here
from seeded_keys import seeded

from fedtrees.conformance.leak_search import reachable
from fedtrees.conformance.samples import sample_table
from fedtrees.core.composition import Composition
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_grid
from fedtrees.core.streams import Streams
from fedtrees.core.wire import encode
from fedtrees.crypto.keys import KeyPair, Prime
from fedtrees.crypto.obfuscators import OwnerObfuscators
from fedtrees.crypto.phe_backend import PheBackend, PheKeyPair, keys_to_phe
from fedtrees.data.partition import Partition, lay_out
from fedtrees.protocols.training import train

SECRETS = (KeyPair, Prime, OwnerObfuscators)
SEALED = [
    ("secureboost[crypto=real,", "none", "active"),
    ("vertical-forest[crypto=real,", "none", "active"),
    *(
        (f"{name}[arbiter=real,rounds=1,bits=16,", "none", "arbiter")
        for name in here("protocol", ["vertical-regression"])
    ),
    ("fedtree-hist[", "paillier[bits=1024]", None),
    ("secureboost[crypto=phe,", "none", "active"),
    ("fedtree-hist[", "paillier[bits=1024,backend=phe]", None),
]


def find_private_values(objects, keys):
    """Return the types of objects that are the private key or contain it."""
    n, factors = keys.public.modulus, [prime.p for prime in keys.primes()]
    raw = [
        int(factor).to_bytes(-(-factor.bit_length() // 8), order)
        for factor in factors
        for order in ("big", "little")
    ]
    type_names = []
    for candidate in objects:
        is_private = isinstance(candidate, SECRETS)
        if isinstance(candidate, (int, type(mpz()))) and 1 < candidate < n:
            is_private = n % candidate == 0
        elif isinstance(candidate, (bytes, bytearray)):
            is_private = any(text in candidate for text in raw)
        elif isinstance(candidate, np.ndarray) and candidate.dtype != object:
            is_private = any(text in candidate.tobytes() for text in raw)
        if is_private:
            type_names.append(type(candidate).__name__)
    return type_names


@pytest.mark.parametrize(("protocol", "defense", "owner"), SEALED)
@pytest.mark.filterwarnings("ignore:a 1024-bit Paillier key is weak")
def test_only_the_owner_has_references_to_the_private_key(protocol, defense, owner, monkeypatch):
    keys = seeded(1024, 7)
    monkeypatch.setattr(KeyPair, "generate", lambda bits: keys)
    phe_keys = PheKeyPair(keys_to_phe(keys))
    monkeypatch.setattr(PheBackend, "generate", lambda *_, base: phe_keys)
    text = protocol if owner == "arbiter" else f"{protocol}trees=1,max_depth=2,max_bin=4,"
    text = f"{text}key_bits=1024]" if owner else f"{text.rstrip(',')}]"
    protocol_object = register.make("protocol", parse_grid(text)[0])
    defenses = () if defense == "none" else (register.make("defense", parse_grid(defense)[0]),)
    table, schema = sample_table(rows=40)
    names = protocol_object.holder_names(3)
    local_data = lay_out(
        protocol_object.layout, table, schema, names, Partition("iid"), Streams(0).rng("x")
    )
    training = train(protocol_object, local_data, schema, defense=Composition(defenses), seed=1)
    for name, host in training.net.hosts.items():
        private_types = find_private_values(reachable(host.party), keys)
        assert bool(private_types) == (name == owner), (name, private_types)
    assert find_private_values(reachable(keys), keys)  # The search finds the key in the key object.
    for delivery in training.transcript:
        assert not find_private_values(
            [*reachable(delivery.message), encode(delivery.message)], keys
        )
