"""Systems that run a protocol or a defense as it is, and what is set there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Deployed:
    """What is set in a system.

    `how`: Beside parameters, as its user writes it. `names`: Of public parameters, how it is told
    of their value: ``eta={}``. `only`: Parameters that have one value there.
    """

    how: str
    names: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)

    def takes(self, parameters: Mapping[str, Any]) -> bool:
        """Tell whether the system has such parameters."""
        return all(parameters[name] == value for name, value in self.only.items())

    def settings(self, parameters: Mapping[str, Any]) -> str:
        """Write what is set."""
        told = ", ".join(text.format(parameters[name]) for name, text in self.names.items())
        return f"{self.how} ({told})" if told else self.how


#: Public parameters of boosting in XGBoost. Sampling by columns and rows is drawn otherwise there.
XGBOOST = {
    "trees": "num_boost_round={}", "max_depth": "max_depth={}", "learning_rate": "eta={}",
    "reg_lambda": "lambda={}", "gamma": "gamma={}", "min_child_weight": "min_child_weight={}",
    "max_bin": "max_bin={}",
}  # fmt: skip
