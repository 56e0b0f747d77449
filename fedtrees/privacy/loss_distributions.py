"""Privacy loss distributions through Google's dp-accounting: tighter than Rényi orders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from fedtrees.core.errors import UsageError, check_share
from fedtrees.core.transcript import BudgetEvent
from fedtrees.privacy.accounting import pure_epsilon


def loss_epsilon(events: Iterable[BudgetEvent], delta: float) -> float:
    """Return the epsilon, in nats, at which releases together are (epsilon, delta)-DP.

    By numerical composition of privacy losses (Koskela et al. 2020, Doroshenko et al. 2022), which
    rounds up. Parties as in `fedtrees.privacy.renyi.renyi_epsilon`.

    Parameters
    ----------
    events : iterable of BudgetEvent
    delta : float
        Between 0 and 1.

    Raises
    ------
    UsageError
        If dp-accounting is not installed, or delta is no such number.
    """
    check_share("delta", delta)
    try:
        from dp_accounting.pld import privacy_loss_distribution as losses
    except ImportError:
        raise UsageError(
            "privacy loss distributions need dp-accounting: pip install 'fedtrees[accounting]', or "
            "compose Rényi divergences (fedtrees.privacy.renyi)"
        ) from None
    by_party: dict[str, Any] = defaultdict(losses.identity)
    for event in events:
        one = _loss(event, losses)
        by_party[event.party] = by_party[event.party].compose(
            one if event.count == 1 else one.self_compose(event.count)
        )
    found = (float(own.get_epsilon_for_delta(delta)) for own in by_party.values())
    return max(found, default=0.0)


def _loss(event: BudgetEvent, losses: Any) -> Any:
    if event.mechanism in ("gaussian", "discrete-gaussian"):
        # A discrete Gaussian vector is bounded by the Gaussian's divergences, and its losses differ
        # from the Gaussian's by less than the grid.
        return losses.from_gaussian_mechanism(event.scale, sensitivity=event.l2)
    if event.mechanism == "laplace":
        return losses.from_laplace_mechanism(event.scale, sensitivity=event.l1)
    if event.mechanism == "geometric" and event.l1 == int(event.l1):
        return losses.from_discrete_laplace_mechanism(1 / event.scale, sensitivity=int(event.l1))
    parameters = losses.common.DifferentialPrivacyParameters(pure_epsilon(event) / event.count)
    return losses.from_privacy_parameters(parameters)
