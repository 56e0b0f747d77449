"""Behaviours: what a party does that does not keep to its protocol."""

from typing import ClassVar

from fedtrees.core.party import Party, acting
from fedtrees.core.reasons import Reason, Unfit
from fedtrees.core.registry import register


class Behaviour:
    """Base of all behaviours: a subclass of the honest party that it takes the place of.

    It overrides what it does otherwise. Local data boundary, host, defenses, transcript and view
    stay: it sends typed messages to parties that are honest, and its attack reads what it saw.

    `name`: Set by ``@register.behaviour``.
    `beyond`: What it does beyond the protocol, in a sentence without a full stop.
    `noticed`: Whether the others could notice, likewise.
    """

    name: ClassVar[str] = "behaviour"
    beyond: ClassVar[str] = ""
    noticed: ClassVar[str] = ""


def turn(party: Party, name: str) -> None:
    """Let a party that was made honest act by a behaviour.

    Raises `UsageError` if there is none of this name; `Unfit` if it takes the place of another.
    """
    behaviour = register.get("behaviour", name)
    assert isinstance(behaviour, type)
    honest = [base for base in behaviour.__mro__ if issubclass(base, Party)]
    honest = [base for base in honest if not issubclass(base, Behaviour)]
    if not isinstance(party, honest[0]):
        kinds = {"wanted": honest[0].__name__, "found": type(party).__name__}
        raise Unfit(Reason("behaviour-unfit", behaviour=name, party=party.name, **kinds))
    with acting(party):
        party.__class__ = type(behaviour.__name__, (behaviour, type(party)), {})
