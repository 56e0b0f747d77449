"""What holds for every test: its own registry, and examples that no clock judges."""

import os

import pytest
from hypothesis import settings
from isolation import registry_as_it_was

# Where CI runs, the same examples every time: a red build is then about the change.
settings.register_profile(
    "fedtrees", deadline=None, derandomize="CI" in os.environ, database=None, print_blob=True
)
settings.load_profile("fedtrees")


def pytest_addoption(parser, pluginmanager):
    """Take the options of pyproject.toml where pytest-xdist is switched off."""
    if not pluginmanager.hasplugin("xdist"):
        for option in ("--numprocesses", "--dist"):
            parser.addoption(option, help="of pytest-xdist, which is off: nothing")


@pytest.fixture(autouse=True)
def own_registry():
    """Let no test see what another one registered."""
    with registry_as_it_was():
        yield
