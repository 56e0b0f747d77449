"""Existing systems that implement a protocol or a defense, and their settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Deployed:
    """Settings of a system.

    Attributes
    ----------
    how : str
        Settings that are not parameters, in the notation of the system.
    names : mapping of str to str
        Notation of public parameters, for example ``eta={}``.
    only : mapping of str to object
        Parameters that have a fixed value in the system.
    """

    how: str
    names: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)

    def takes(self, parameters: Mapping[str, Any]) -> bool:
        """Return whether the system supports the parameters."""
        return all(parameters[name] == value for name, value in self.only.items())

    def settings(self, parameters: Mapping[str, Any]) -> str:
        """Return the settings as text."""
        values = ", ".join(text.format(parameters[name]) for name, text in self.names.items())
        return f"{self.how} ({values})" if values else self.how


#: Public parameters of boosting in XGBoost. Subsampling is left out, because XGBoost draws rows and
#: columns differently.
XGBOOST = {
    "trees": "num_boost_round={}", "max_depth": "max_depth={}", "learning_rate": "eta={}",
    "reg_lambda": "lambda={}", "gamma": "gamma={}", "min_child_weight": "min_child_weight={}",
    "max_bin": "max_bin={}",
}  # fmt: skip
