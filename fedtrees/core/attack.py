"""Attacks: pure functions of a view."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Set
from typing import ClassVar

import numpy as np

from fedtrees.core.guess import Guess
from fedtrees.core.view import View


class Attack(ABC):
    """Base of all attacks. Nothing here lets truth in: a view and coins go in, a guess comes out.

    Attributes
    ----------
    name : str
        Set by ``@register.attack``.
    """

    name: ClassVar[str] = "attack"

    def inapplicable(self, offers: Set[str], roles: Set[str]) -> str | None:
        """Return why this attack cannot run on such a protocol and threat, None if it can.

        Parameters
        ----------
        offers : set of str
            What the protocol offers.
        roles : set of str
            Roles of the principals.
        """
        return None

    @abstractmethod
    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Guess what the victims hold."""
