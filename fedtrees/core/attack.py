"""Attacks: pure functions of a view."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from fedtrees.core.guess import Claim, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View


class Attack(ABC):
    """Base of all attacks. Nothing here lets truth in: a view and randomness go in, a guess comes
    out.

    Attributes
    ----------
    name : str
        Set by ``@register.attack``.
    blind : bool
        Whether it needs no transcript. Blind attacks are the line that others of the same claim
        are measured against: the metric of `gives` runs them on an empty transcript.
    gives : type of Claim or None
        What a blind attack claims.
    claims : tuple of type of Claim
        Types of the claims that it can make. Where it returns no claim (`Guess.none`), the measures
        of these claims are not settled. Empty and without `gives`: not declared, so that then no
        measure is settled.
    comparison : bool
        Whether it is a control, or a published implementation: another attack knows all that it
        does. Such attacks run where they are named; they are not among those that apply.
    candidates : bool
        Whether it is told candidates, of which it claims `Membership` and nothing else.
    most_rows : int or None
        Training rows of more than which it is not run: its cost grows faster than they do. That is
        said before anything is trained.
    numbers : bool
        Whether it also reads tables whose target is a number.
    threats : tuple of str
        Threats that it is tried under where it is named: of roles with what they must know besides.
    behaviours : tuple of str
        What principals who cheat must have done, any of it; it reads nobody else's view. Empty: it
        reads who keeps to the protocol.
    """

    name: ClassVar[str] = "attack"
    blind: ClassVar[bool] = False
    gives: ClassVar[type[Claim] | None] = None
    claims: ClassVar[tuple[type[Claim], ...]] = ()
    comparison: ClassVar[bool] = False
    candidates: ClassVar[bool] = False
    most_rows: ClassVar[int | None] = None
    numbers: ClassVar[bool] = False
    threats: ClassVar[tuple[str, ...]] = ()
    behaviours: ClassVar[tuple[str, ...]] = ()

    def inapplicable(self, view: View) -> Reason | str | None:
        """Return why there is nothing in such a view for this attack, None if there is.

        A text is what no code of `fedtrees.core.reasons` says.
        """
        return None

    @abstractmethod
    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Guess the local data of the victims.

        Returns
        -------
        Guess
            With at least one claim, or `Guess.none` with the reason why there is none.
        """


def claims_of(attack: object) -> tuple[type[Claim], ...]:
    """Return the types of claims that an attack declares, () if it declares none."""
    gives = getattr(attack, "gives", None)
    return getattr(attack, "claims", ()) or (() if gives is None else (gives,))


def contenders() -> list[str]:
    """Return the names of the attacks that a defense must withstand.

    That is all that are registered but the blind ones and those for comparison.
    """
    found = ((name, register.get("attack", name)) for name in register.names("attack"))
    marks = ("blind", "comparison")
    return [name for name, maker in found if not any(getattr(maker, m, False) for m in marks)]
