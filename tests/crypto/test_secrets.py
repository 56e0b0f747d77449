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


def text_forms(secret):
    """Return the texts that may represent a number or bytes."""
    number = secret if isinstance(secret, int) else int.from_bytes(secret, "big")
    raw = secret if isinstance(secret, bytes) else number.to_bytes(-(-number.bit_length() // 8))
    return {str(number), f"{number:x}", raw.hex(), repr(raw)[2:-1]}


def all_texts(candidate, caplog):
    """Return every text into which careless code may convert an object."""
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("careless").warning("%r %s", candidate, candidate)
    inside = {
        name: getattr(candidate, name)
        for kind in type(candidate).__mro__
        for name in (*getattr(kind, "__slots__", ()), *getattr(candidate, "__dict__", ()))
        if hasattr(candidate, name)
    }
    return (
        repr(candidate)
        + str(candidate)
        + f"{candidate}"
        + repr([candidate])
        + repr(inside)
        + caplog.text
    )


def objects_with_secrets(keys):
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


def test_objects_with_secrets_are_neither_pickled_nor_copied(keys):
    for secret_object in objects_with_secrets(keys).values():
        for copy_function in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(ExposureError, match="neither pickled nor copied"):
                copy_function(secret_object)
        with pytest.raises(ExposureError):
            pickle.dumps({"inside": [secret_object]})
        with pytest.raises(TypeError):
            json.dumps(secret_object)


def test_keys_are_in_no_text(keys, caplog):
    objects = objects_with_secrets(keys)
    forbidden = set()
    for prime in keys.primes():
        for number in (prime.p, prime.h, prime.generator, prime.square):
            forbidden |= text_forms(int(number))
    text = all_texts(objects["key"], caplog)
    text += "".join(
        f"{secret_object!r} {secret_object} {[secret_object]}" for secret_object in objects.values()
    )
    assert not [form for form in forbidden if form in text]
    assert "<KeyPair" in text  # The text contains the object.


def test_mask_secrets_are_in_no_text(keys, caplog):
    federation = Federation(3, 2, sums=2, leaves={"c": 2})
    initial_keys = {name: party._key for name, party in federation.parties.items()}
    federation.collect().open()
    for name, party in federation.parties.items():
        secrets = [initial_keys[name], *party._lock_keys, *party._seeds, *party._shares.values()]
        secrets += party._pairs[1].values()
        text = all_texts(party, caplog)
        assert f"<MaskingParty '{name}'" in text
        for secret in secrets:
            assert not [form for form in text_forms(secret.reveal()) if form in text]
    text = all_texts(federation.server, caplog)
    for array in federation.arrays.values():
        assert array.tobytes().hex() not in text
        assert str(array.ravel()[0]) not in text


def test_an_error_contains_no_secret(keys):
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
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "PlaintextOverflowError" in process.stderr
    assert process.stdout.strip() not in process.stderr
    assert "424242424242" not in process.stderr


def test_two_keys_are_distinguished_by_their_public_part(keys, other_keys):
    assert repr(keys) != repr(other_keys)
    assert repr(keys.public) != repr(other_keys.public)
    assert isinstance(keys, KeyPair)
