"""Keys that tests can draw again: short ones, in test mode."""

import pytest

from fedtrees.crypto.coins import INSECURE_VARIABLE
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.obfuscators import OwnerObfuscators


@pytest.fixture(autouse=True)
def insecure_keys(monkeypatch):
    monkeypatch.setenv(INSECURE_VARIABLE, "1")


@pytest.fixture(scope="session")
def keys():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(INSECURE_VARIABLE, "1")
        return KeyPair.seeded(512, 1)


@pytest.fixture(scope="session")
def other_keys():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(INSECURE_VARIABLE, "1")
        return KeyPair.seeded(512, 2)


@pytest.fixture(scope="session")
def owner(keys):
    return OwnerObfuscators(keys)
