"""Replies of the attack process are validated, because the code of a plug-in may forge them."""

import math

import numpy as np
import pytest

from fedtrees.core.claims import Labels
from fedtrees.core.errors import ProtocolError, UsageError
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.isolation import plugins, process, transfer
from fedtrees.isolation.process import AttackProcess

FACTS = {
    "name": "plain-guess",
    "qualname": "Plain",
    "module": "fedtrees_plugin_0123456789ab",
    "file": "/somewhere/plain.py",
    "doc": "Guess.",
    "parameters": (("times", True, 1),),
    "blind": False,
    "is_reference": False,
    "receives_candidates": False,
    "max_training_rows": None,
    "supports_regression": False,
    "claims": (),
}
GUESS = {"claims": (), "notes": {}, "reason": ("no-trees", {})}


def test_an_honest_description_is_taken():
    facts = transfer.facts_of_reply(FACTS)
    assert (facts.name, facts.parameters) == ("plain-guess", (("times", True, 1),))


@pytest.mark.parametrize(
    "forged",
    [
        {"parameters": (("a b", True, 1),)},
        {"parameters": (("class", True, 1),)},
        {"parameters": (("a", True, 1), ("a", True, 2))},
        {"parameters": (("a", True, [1]),)},
        {"parameters": [("a", True, 1)]},
        {"parameters": "ab"},
        {"name": "a,b"},
        {"name": ""},
        {"name": "x" * 1000},
        {"name": 5},
        {"qualname": "a b"},
        {"qualname": "Pl\0ain"},
        {"module": "fedtrees.attacks.timberstrike.attack"},
        {"file": "/etc/shadow"},
        {"doc": "x" * 10**6},
        {"blind": "yes"},
        {"max_training_rows": 1.5},
        {"max_training_rows": True},
        {"claims": (5,)},
        {"supports_regression": None},
    ],
)
def test_a_forged_description_is_refused(forged):
    with pytest.raises(ProtocolError, match="the process of attacks answered with"):
        transfer.facts_of_reply(FACTS | forged)


def test_a_description_with_other_fields_is_refused():
    for value in ({**FACTS, "more": 1}, {k: v for k, v in FACTS.items() if k != "doc"}, None, 5):
        with pytest.raises(ProtocolError, match="description of an attack"):
            transfer.facts_of_reply(value)


def test_a_plugin_cannot_register_the_attack_of_another_file(monkeypatch):
    monkeypatch.setattr(AttackProcess, "_answered", lambda *_: {
        "attacks": (FACTS,), "others": (), "did": (),
    })  # fmt: skip
    with pytest.raises(ProtocolError, match="the attack 'plain-guess' of another file"):
        plugins.register_attacks_of("/other.py", "f" * 64)


@pytest.mark.parametrize("name", ["timberstrike", "joint"])
def test_a_plugin_cannot_describe_itself_as_a_built_in_attack(monkeypatch, name):
    forged = FACTS | {"name": name}
    monkeypatch.setattr(AttackProcess, "_answered", lambda *_: {
        "attacks": (forged,), "others": (), "did": (),
    })  # fmt: skip
    with pytest.raises(UsageError, match=f"attack '{name}' is already defined by fedtrees"):
        plugins.register_attacks_of("/somewhere/plain.py", "0123456789ab" + "0" * 52)
    assert register.get("attack", name).__module__.startswith("fedtrees.")


@pytest.mark.parametrize(
    "forged",
    [
        {"notes": {"x": "text"}},
        {"notes": {"x" * 10**6: 1.0}},
        {"notes": {str(n): 1.0 for n in range(2000)}},
        {"notes": [1.0]},
        {"reason": ("no-trees", {"code": [1]})},
        {"reason": "no-trees"},
        {"reason": ("no-such-code", {})},
        {"reason": None},
        {"claims": ("text",), "reason": None},
    ],
)
def test_a_forged_guess_is_refused(forged):
    with pytest.raises(ProtocolError):
        transfer.guess_of(GUESS | forged)


def test_an_honest_guess_is_taken():
    claim = Labels(np.arange(3), np.zeros(3, int))
    value = {"claims": (claim,), "notes": {"n": 10**400}, "reason": None}
    assert transfer.guess_of(value).notes == {"n": math.inf}
    assert transfer.guess_of(GUESS).reason == Reason("no-trees")


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "1", True, 10**400])
def test_a_duration_that_is_none_is_refused(value):
    with pytest.raises(ProtocolError, match="number of seconds"):
        transfer.read_seconds(value)


def test_an_error_is_one_of_a_known_type_and_of_bounded_length():
    forged = {"failed": "Problems", "text": "x" * 10**6, "traceback": "y" * 10**6}
    assert isinstance(transfer.read_error(forged), ProtocolError)  # Problems takes more than a text
    unknown = transfer.read_error(forged | {"failed": "exec"})
    assert isinstance(unknown, process.AttackError)
    assert len(str(unknown)) == len(unknown.traceback) == transfer.MOST_TEXT
