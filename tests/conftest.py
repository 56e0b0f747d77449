"""What holds for every test: its own registry, and examples that no clock judges."""

import importlib.util
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


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(config, items):
    """Begin with the longest test, and skip what needs a module of an extra that is missing.

    At the end one process would wait for the longest. Where the tests of extras are asked for,
    by ``-m extra``, none is skipped: what is missing fails them. Of a long test some cases may be
    run always.
    """
    items.sort(key=lambda item: "test_every_attack" not in item.nodeid)
    for item in items:
        kept = [part for mark in item.iter_markers("long") for part in mark.kwargs.get("but", ())]
        if any(part in item.name for part in kept):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "long"]
    if config.option.markexpr.split()[:1] == ["extra"]:
        return
    for item in items:
        for mark in item.iter_markers("extra"):
            if importlib.util.find_spec(mark.args[0]) is None:
                item.add_marker(pytest.mark.skip(reason=f"needs {mark.args[0]}, of an extra"))


@pytest.fixture(autouse=True)
def own_registry():
    """Let no test see what another one registered."""
    with registry_as_it_was():
        yield


@pytest.fixture(autouse=True, scope="session")
def default_noise_from():
    """Let a run that says nothing of its noise have the same every time; return whose it has else.

    Tests compare runs and count on means over seeds; those of `noise_from` itself name it.
    """
    from fedtrees.protocols.training import train

    usual = train.__kwdefaults__["noise_from"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(train.__kwdefaults__, "noise_from", "seed")
        yield usual
