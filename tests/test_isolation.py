"""Tests do not see names that other tests registered."""

import sys

import pytest
from isolation import registry_as_it_was

from fedtrees.core.errors import UsageError
from fedtrees.core.messages import message_type
from fedtrees.core.registry import load_plugin, register

PLUGIN = """
from dataclasses import dataclass
from fedtrees.core.defense import Defense
from fedtrees.core.messages import Message
from fedtrees.core.registry import register

@dataclass(frozen=True, eq=False)
class PassingNote(Message):
    text: str

@register.defense("passing-through")
class Passing(Defense):
    pass
"""


def test_names_types_and_modules_of_a_plugin_are_forgotten(tmp_path):
    file = tmp_path / "passing.py"
    file.write_text(PLUGIN)
    names = register.names("defense")
    for _ in range(2):  # the second turn shows that it can be loaded again
        with registry_as_it_was():
            module = f"fedtrees_plugin_{load_plugin(file)[:12]}"
            assert module in sys.modules
            assert register.get("defense", "passing-through").__module__ == module
            assert message_type("PassingNote").__module__ == module
        assert module not in sys.modules
        assert register.names("defense") == names
        assert message_type("PassingNote") is None
        with pytest.raises(UsageError, match="unknown defense"):
            register.get("defense", "passing-through")


def test_modules_of_the_package_stay_loaded():
    with registry_as_it_was():
        protocol_class = register.get("protocol", "local-forests")
    assert register.get("protocol", "local-forests") is protocol_class
    assert message_type("PooledForest") is not None


def test_a_replaced_name_is_restored():
    attack_class = register.get("attack", "lattice")
    with registry_as_it_was():
        register._known["attack"]["lattice"] = object
    assert register.get("attack", "lattice") is attack_class
