"""Attacks: pure functions of a view."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from fedtrees.core.guess import Claim, Guess
from fedtrees.core.view import View


class Attack(ABC):
    """Base of all attacks. Nothing here lets truth in: a view and coins go in, a guess comes out.

    Attributes
    ----------
    name : str
        Set by ``@register.attack``.
    blind : bool
        Whether it needs no transcript. Blind attacks are the line that others of the same claim
        are measured against: the metric of `gives` runs them on an empty transcript.
    gives : type of Claim or None
        What a blind attack claims.
    """

    name: ClassVar[str] = "attack"
    blind: ClassVar[bool] = False
    gives: ClassVar[type[Claim] | None] = None

    def inapplicable(self, view: View) -> str | None:
        """Return why there is nothing in such a view for this attack, None if there is."""
        return None

    @abstractmethod
    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Guess what the victims hold."""
