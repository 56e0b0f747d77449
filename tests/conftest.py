"""Fixtures for all tests: a separate registry for each test, and deterministic runs."""

import gc
import importlib.util
import os

import pytest
from hypothesis import HealthCheck, settings
from isolation import registry_as_it_was

# Tests do not fail because of a deadline or a slow start. In CI, the examples are always the same,
# so that a failure is due to the change.
settings.register_profile(
    "fedtrees",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("fedtrees")


def pytest_addoption(parser, pluginmanager):
    """Accept the options in pyproject.toml if pytest-xdist is disabled."""
    if not pluginmanager.hasplugin("xdist"):
        for option in ("--numprocesses", "--dist"):
            parser.addoption(option, help="of pytest-xdist, which is off: nothing")


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers
def pytest_collection_modifyitems(config, items):
    """Start with the longest test, and skip tests that need a missing optional module.

    If the longest test were last, one process would run it while the remaining processes are idle.
    With ``-m extra``, no test is skipped, so that missing modules fail. The parameter ``but`` of a
    long test lists cases that always run.
    """
    items.sort(key=lambda item: "test_every_attack" not in item.nodeid)
    for item in items:
        always_run = [
            part for mark in item.iter_markers("long") for part in mark.kwargs.get("but", ())
        ]
        if any(part in item.name for part in always_run):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "long"]
    if config.option.markexpr.split()[:1] == ["extra"]:
        return
    for item in items:
        for mark in item.iter_markers("extra"):
            if importlib.util.find_spec(mark.args[0]) is None:
                item.add_marker(pytest.mark.skip(reason=f"needs {mark.args[0]}, of an extra"))


def pytest_collection_finish():
    """Search for cycles of unused objects less often than by default.

    A process of the tests contains hundreds of thousands of objects, which each full search visits.
    Tests that parse all source files take two thirds of the time.
    """
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def own_registry():
    """Hide from each test the names that another test registered."""
    with registry_as_it_was():
        yield


@pytest.fixture(autouse=True, scope="session")
def default_noise_from():
    """Make noise reproducible by default, and return the usual default.

    Tests compare runs and rely on means over seeds. Tests of `noise_from` pass it explicitly.
    """
    from fedtrees.protocols.training import train

    usual = train.__kwdefaults__["noise_from"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(train.__kwdefaults__, "noise_from", "seed")
        yield usual
