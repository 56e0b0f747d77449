"""Behaviours: deviations of a dishonest party from its protocol."""

from typing import ClassVar

from fedtrees.core.party import Party, acting
from fedtrees.core.reasons import Reason, Unfit
from fedtrees.core.registry import register


class Behaviour:
    """Base class of all behaviours.

    A behaviour is a subclass of the honest party that it replaces.

    It overrides the methods in which the dishonest party deviates. Local data boundary, host,
    defenses, transcript and view are unchanged: the party sends typed messages to honest parties,
    and its attack receives its view.

    Attributes
    ----------
    name : str
        Registered name, set by ``@register.behaviour``.
    beyond : str
        The deviation from the protocol, as a sentence without a full stop.
    noticed : str
        Whether the honest parties could detect it, as a sentence without a full stop.
    """

    name: ClassVar[str] = "behaviour"
    beyond: ClassVar[str] = ""
    noticed: ClassVar[str] = ""


def turn(party: Party, name: str) -> None:
    """Replace the behaviour of an honest party.

    Raises
    ------
    # The combined class inherits the methods of the party that the behaviour does not override.
    UsageError
        If no behaviour has this name.
    Unfit
        If the behaviour replaces another class of party.
    """
    behaviour = register.get("behaviour", name)
    assert isinstance(behaviour, type)
    honest = [base for base in behaviour.__mro__ if issubclass(base, Party)]
    honest = [base for base in honest if not issubclass(base, Behaviour)]
    if not isinstance(party, honest[0]):
        class_names = {"wanted": honest[0].__name__, "found": type(party).__name__}
        raise Unfit(Reason("behaviour-unfit", behaviour=name, party=party.name, **class_names))
    with acting(party):
        party.__class__ = type(behaviour.__name__, (behaviour, type(party)), {})
