"""Canaries are chosen by the class of a protocol, or by the hooks of plug-ins of version 1.0."""

from dataclasses import dataclass

import pytest
from present import here

from fedtrees.core.composition import Composition
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.privacy_audit.canaries import choose_audit_setting, create_canaries
from fedtrees.protocols.base import Protocol

NONE = Composition(())


@pytest.mark.parametrize("name", here("protocol", ["fedtree-hist", "nvflare-hist", "federboost-h"]))
def test_a_setting_is_chosen_for_subclasses_of_a_registered_class(name):
    protocol = register.make("protocol", Spec(name))
    chosen, canaries = choose_audit_setting(protocol, NONE)
    assert (type(chosen), chosen.trees) == (type(protocol), 1)
    assert type(canaries) is not type(create_canaries(protocol))


def test_a_protocol_without_registered_canaries_has_none():
    protocol = register.make("protocol", Spec("forest-hist"))
    assert choose_audit_setting(protocol, NONE) == (protocol, None)


def test_methods_of_a_protocol_of_version_1_0_are_called():
    @dataclass(frozen=True, kw_only=True)
    class Older(Protocol):
        def create_party(self, seat):
            raise NotImplementedError

        def canaries(self):
            return "canaries"

        def worst_case(self, defense):
            return self, "worst"

    assert create_canaries(Older()) == "canaries"
    assert choose_audit_setting(Older(), NONE) == (Older(), "worst")
