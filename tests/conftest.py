"""What holds for every test: its own registry, and examples that no clock judges."""

import os

import pytest
from hypothesis import HealthCheck, settings
from isolation import registry_as_it_was

# Neither a deadline nor a slow start fails a test. Where CI runs, the examples are the same every
# time: a red build is then about the change.
settings.register_profile(
    "fedtrees",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("fedtrees")


def pytest_addoption(parser, pluginmanager):
    """Take the options of pyproject.toml where pytest-xdist is switched off."""
    if not pluginmanager.hasplugin("xdist"):
        for option in ("--numprocesses", "--dist"):
            parser.addoption(option, help="of pytest-xdist, which is off: nothing")


def pytest_collection_modifyitems(items):
    """Begin with the longest test: at the end one process would wait for it."""
    items.sort(key=lambda item: "test_every_attack" not in item.nodeid)


@pytest.fixture(autouse=True)
def own_registry():
    """Let no test see what another one registered."""
    with registry_as_it_was():
        yield
