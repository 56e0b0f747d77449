"""Who holds a private key: its owner, and nobody else, in one process as on many machines."""

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
from fedtrees.data.layout import lay_out
from fedtrees.data.partition import Partition
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


def told(things, keys):
    """Return the types of things that are, or are made of, the private key."""
    n, factors = keys.public.modulus, [prime.p for prime in keys.primes()]
    raw = [
        int(p).to_bytes(-(-p.bit_length() // 8), order)
        for p in factors
        for order in ("big", "little")
    ]
    found = []
    for thing in things:
        bad = isinstance(thing, SECRETS)
        if isinstance(thing, (int, type(mpz()))) and 1 < thing < n:
            bad = n % thing == 0
        elif isinstance(thing, (bytes, bytearray)):
            bad = any(text in thing for text in raw)
        elif isinstance(thing, np.ndarray) and thing.dtype != object:
            bad = any(text in thing.tobytes() for text in raw)
        if bad:
            found.append(type(thing).__name__)
    return found


@pytest.mark.parametrize(("protocol", "defense", "owner"), SEALED)
@pytest.mark.filterwarnings("ignore:a 1024-bit Paillier key is weak")
def test_nobody_but_the_owner_leads_to_the_private_key(protocol, defense, owner, monkeypatch):
    keys = seeded(1024, 7)
    monkeypatch.setattr(KeyPair, "generate", lambda bits: keys)
    theirs = PheKeyPair(keys_to_phe(keys))
    monkeypatch.setattr(PheBackend, "generate", lambda *_, base: theirs)
    text = protocol if owner == "arbiter" else f"{protocol}trees=1,max_depth=2,max_bin=4,"
    text = f"{text}key_bits=1024]" if owner else f"{text.rstrip(',')}]"
    made = register.make("protocol", parse_grid(text)[0])
    by = () if defense == "none" else (register.make("defense", parse_grid(defense)[0]),)
    table, schema = sample_table(rows=40)
    names = made.holder_names(3)
    held = lay_out(made.layout, table, schema, names, Partition("iid"), Streams(0).rng("x"))
    training = train(made, held, schema, defense=Composition(by), seed=1)
    for name in training.net.names:
        found = told(reachable(training.net.party(name)), keys)
        assert bool(found) == (name == owner), (name, found)
    assert told(reachable(keys), keys)  # the walk finds it where it is
    for delivery in training.transcript:
        assert not told([*reachable(delivery.message), encode(delivery.message)], keys)
