"""Attacks: pure functions from a view to a guess.

An attack receives the view of its adversary (`fedtrees.core.view`) and a random generator, and
returns claims about the victims' local data (`fedtrees.core.claims`). Metrics compare the claims
with the ground truth, which no attack can access.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from fedtrees.core.claims import Claim, Guess
from fedtrees.core.errors import refuse_old_names
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View

#: Former names of the attributes of an attack, for one release.
RENAMED = {
    "comparison": "is_reference",
    "candidates": "receives_candidates",
    "gives": "claims, a tuple of claim types",
    "most_rows": "max_training_rows",
    "numbers": "supports_regression",
}


class Attack(ABC):
    """Base class of all attacks.

    The only inputs of an attack are a view and a random generator. No parameter gives access to the
    ground truth.

    Attributes
    ----------
    name : str
        Registered name, set by ``@register.attack``.
    claims : tuple of type of Claim
        Types of the claims that the attack can make. If it returns no claim (`Guess.none`), the
        measures of these claims are reported as not settled. Without `claims`, the report cannot
        name the measures that remain open, and ``fedtrees check`` reports this.
    blind : bool
        Whether the attack needs no transcript. Each metric of one of its `claims` runs it on an
        empty transcript. Its score is a blind baseline for all attacks with the same claim type.
    is_reference : bool
        Whether the attack only serves as a reference: a control, or a published implementation,
        whose knowledge another attack includes. It runs only if it is requested by name, and it
        does not count as an attack that a defense must resist.
    receives_candidates : bool
        Whether the view contains candidates for membership inference. The attack then claims only
        `Membership`.
    max_training_rows : int or None
        Largest number of training rows for which the attack runs, because its cost grows faster
        than the number of rows. The limit is checked before the training. None if there is no
        limit.
    supports_regression : bool
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
    claims: ClassVar[tuple[type[Claim], ...]] = ()
    blind: ClassVar[bool] = False
    is_reference: ClassVar[bool] = False
    receives_candidates: ClassVar[bool] = False
    max_training_rows: ClassVar[int | None] = None
    supports_regression: ClassVar[bool] = False
    threats: ClassVar[tuple[str, ...]] = ()
    behaviours: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        refuse_old_names(cls, "attack", RENAMED)

    def inapplicable(self, view: View) -> Reason | str | None:
        """Return why the attack cannot use a view, None if it can.

        Parameters
        ----------
        view : View
            Messages and local data of the adversary.

        Returns
        -------
        reason : Reason, str or None
            A text if `fedtrees.core.reasons` has no code for the reason.
        """
        return None

    @abstractmethod
    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Guess the local data of the victims.

        The method must return a guess for every view. ``fedtrees check`` and blind baselines call
        it on an empty transcript, even if `inapplicable` returns a reason for it.

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
    """Return the declared claim types of an attack.

    Parameters
    ----------
    attack : Attack or type
        An attack, or its class.

    Returns
    -------
    tuple of type
        Subclasses of `fedtrees.core.claims.Claim`. Empty if the attack declares none.
    """
    claims: tuple[type[Claim], ...] = getattr(attack, "claims", ())
    return claims


def contenders() -> list[str]:
    """Return the names of the attacks that a defense must resist.

    These are all registered attacks except blind attacks and references.
    """
    registered = ((name, register.get("attack", name)) for name in register.names("attack"))
    marks = ("blind", "is_reference")
    return [name for name, maker in registered if not any(getattr(maker, m, False) for m in marks)]
