"""Short keys that tests draw from seeds."""

import pytest
from seeded_keys import seeded

from fedtrees.crypto.obfuscators import OwnerObfuscators


@pytest.fixture(scope="session")
def keys():
    return seeded(512, 1)


@pytest.fixture(scope="session")
def other_keys():
    return seeded(512, 2)


@pytest.fixture(scope="session")
def owner(keys):
    return OwnerObfuscators(keys)
