"""Secrets appear in no text, no pickle, no copy and no log."""

import copy
import json
import logging
import pickle
import subprocess
import sys

import pytest
from test_masks import Federation

from fedtrees.crypto import obfuscators as sources
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.primitives import ExposureError, Secret


def spellings(secret):
    """Return how a number or bytes could be written."""
    number = secret if isinstance(secret, int) else int.from_bytes(secret, "big")
    raw = secret if isinstance(secret, bytes) else number.to_bytes(-(-number.bit_length() // 8))
    return {str(number), f"{number:x}", raw.hex(), repr(raw)[2:-1]}


def texts(thing, caplog):
    """Return every text that a careless caller makes of a thing."""
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("careless").warning("%r %s", thing, thing)
    inside = {
        name: getattr(thing, name)
        for kind in type(thing).__mro__
        for name in (*getattr(kind, "__slots__", ()), *getattr(thing, "__dict__", ()))
        if hasattr(thing, name)
    }
    return repr(thing) + str(thing) + f"{thing}" + repr([thing]) + repr(inside) + caplog.text


def holders(keys):
    federation = Federation(3, 2, leaves={"c": 2}).collect()
    federation.open()
    return {
        "key": keys,
        "prime": keys.primes()[0],
        "owner": sources.OwnerObfuscators(keys),
        "djn": sources.DJNObfuscators(keys.public),
        "table": sources.FixedBase(3, 1_000_003, 64),
        "secret": Secret(b"0123456789abcdef"),
        "party": federation.parties["a"],
        "server": federation.server,
    }


def test_what_holds_secrets_is_neither_pickled_nor_copied(keys):
    for thing in holders(keys).values():
        for make in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(ExposureError, match="neither pickled nor copied"):
                make(thing)
        with pytest.raises(ExposureError):
            pickle.dumps({"inside": [thing]})
        with pytest.raises(TypeError):
            json.dumps(thing)


def test_keys_are_in_no_text(keys, caplog):
    things = holders(keys)
    forbidden = set()
    for prime in keys.primes():
        for number in (prime.p, prime.h, prime.generator, prime.square):
            forbidden |= spellings(int(number))
    shown = texts(things["key"], caplog)
    shown += "".join(f"{thing!r} {thing} {[thing]}" for thing in things.values())
    assert not [text for text in forbidden if text in shown]
    assert "<KeyPair" in shown  # something was looked at


def test_mask_secrets_are_in_no_text(keys, caplog):
    federation = Federation(3, 2, sums=2, leaves={"c": 2})
    own = {name: party._key for name, party in federation.parties.items()}
    federation.collect().open()
    for name, party in federation.parties.items():
        secrets = [own[name], *party._lock_keys, *party._seeds, *party._shares.values()]
        secrets += party._pairs[1].values()
        shown = texts(party, caplog)
        assert f"<MaskingParty '{name}'" in shown
        for secret in secrets:
            assert not [text for text in spellings(secret.reveal()) if text in shown]
    shown = texts(federation.server, caplog)
    for array in federation.arrays.values():
        assert array.tobytes().hex() not in shown
        assert str(array.ravel()[0]) not in shown


def test_an_error_tells_no_secret(keys):
    """A traceback shows no values, only the code and messages."""
    # The number is an argument: the traceback of Python 3.13 contains the lines of the code.
    code = (
        "import sys\n"
        "from fedtrees.crypto.keys import KeyPair\n"
        "from fedtrees.crypto.obfuscators import PlainObfuscators\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "keys = KeyPair.generate(1024)\n"
        "print(keys.primes()[0].p)\n"
        "PlainObfuscators(keys.public).encrypt([int(sys.argv[1]) * keys.public.n])\n"
    )
    command = [sys.executable, "-c", code, "424242424242"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "PlaintextOverflowError" in done.stderr
    assert done.stdout.strip() not in done.stderr
    assert "424242424242" not in done.stderr


def test_two_keys_are_told_apart_by_their_public_part(keys, other_keys):
    assert repr(keys) != repr(other_keys)
    assert keys.public.fingerprint in repr(keys)
    assert isinstance(keys, KeyPair)
