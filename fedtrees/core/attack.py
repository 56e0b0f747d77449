"""Attacks: pure functions from a view to a guess.

An attack receives the view of its adversary (`fedtrees.core.view`) and a random generator, and
returns claims about the victims' local data (`fedtrees.core.claims`). Metrics compare the claims
with the ground truth, which no attack can access.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from fedtrees.core.claims import Claim, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View


class Attack(ABC):
    """Base class of all attacks.

    The only inputs of an attack are a view and a random generator. No parameter gives access to the
    ground truth.

    Attributes
    ----------
    name : str
        Registered name, set by ``@register.attack``.
    blind : bool
        Whether the attack needs no transcript. The metric of the claim type `gives` runs blind
        attacks on an empty transcript. Their score is the baseline for all attacks with the same
        claim type.
    gives : type of Claim or None
        Claim type of a blind attack.
    claims : tuple of type of Claim
        Types of the claims that the attack can make. If it returns no claim (`Guess.none`), the
        measures of these claims are reported as not settled. If both `claims` and `gives` are
        empty, the types are not declared and no measure is settled.
    comparison : bool
        Whether the attack is a control or a published implementation whose knowledge another attack
        includes. Such attacks run only if they are requested by name. They do not count as
        applicable.
    candidates : bool
        Whether the view contains candidates. The attack then claims only `Membership`.
    most_rows : int or None
        Largest number of training rows for which the attack runs, because its cost grows faster
        than the number of rows. The limit is checked before the training. None if there is no
        limit.
    numbers : bool
        Whether the attack also supports tables with a numeric target.
    threats : tuple of str
        Threat models that are tried if the attack is requested by name. Each names roles and their
        required background knowledge.
    behaviours : tuple of str
        Dishonest behaviours, of which the principals must have shown at least one. Empty if the
        attack supports honest-but-curious principals.

    Examples
    --------
    >>> from fedtrees import Attack, Guess
    >>> class Silent(Attack):
    ...     def inapplicable(self, view):
    ...         return None
    ...
    ...     def run(self, view, rng):
    ...         return Guess.none("this attack never makes a claim")
    >>> Silent().run(None, None).claims
    ()
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
        """Return why the attack cannot use a view, None if it can.

        Return a text if `fedtrees.core.reasons` has no code for the reason.
        """
        return None

    @abstractmethod
    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Guess the local data of the victims.

        Parameters
        ----------
        view : View
            Messages and local data of the adversary.
        rng : numpy.random.Generator
            The only source of randomness that the attack may use.

        Returns
        -------
        Guess
            At least one claim, or `Guess.none` with the reason why there is none.
        """


def claims_of(attack: object) -> tuple[type[Claim], ...]:
    """Return the declared claim types of an attack, () if it declares none."""
    gives = getattr(attack, "gives", None)
    return getattr(attack, "claims", ()) or (() if gives is None else (gives,))


def contenders() -> list[str]:
    """Return the names of the attacks that a defense must resist.

    These are all registered attacks except blind attacks and comparisons.
    """
    registered = ((name, register.get("attack", name)) for name in register.names("attack"))
    marks = ("blind", "comparison")
    return [name for name, maker in registered if not any(getattr(maker, m, False) for m in marks)]
