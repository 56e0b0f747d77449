"""What acts before noise, and so changes what one row can move there: found, and refused.

Noise is calibrated to the most that a row which comes or goes moves a release (Dwork et al. 2006).
What is done to a release costs nothing more; what is done before changes how far a row moves it.
So a part that acts before must say that it brings no two tables farther apart
(`Defense.nonexpansive`), or is refused, with the order that is right where there is one.
"""

from collections.abc import Collection, Sequence

from fedtrees.core.defense import Defense, Site
from fedtrees.core.messages import Reveal
from fedtrees.core.reasons import Reason

#: What is done to single rows goes into all that is made of their labels.
_OF_ROWS = ("labels", "gradients", "example-gradients")
#: Restrictions add up: one more never widens another, whichever is first.
_RESTRICTIONS = ("candidates", "shown")


def sites(part: Defense) -> frozenset[Site]:
    """Return where a part changes what rows bring: types of message, kinds of `Stage`, masks."""
    found: set[Site] = {*part.guards} if "outgoing" in part.acts_through else set()
    if "rows" in part.acts_through:
        found |= part.acts_on
    return frozenset(found | {*part.acts_through} & {*_RESTRICTIONS})


def bounded(part: Defense) -> bool:
    """Tell whether a part claims a budget: what it counts on must then hold."""
    return part.claim().budget is not None


def misplaced(parts: Sequence[Defense]) -> Reason | None:
    """Return why a part may not stand where it does, None if all may."""
    for b, claiming in enumerate(parts):
        if not bounded(claiming):
            continue
        for a, part in enumerate(parts):
            if a == b:
                continue
            if part.reads_rows and not bounded(part):
                return Reason("reads-rows", subject=part.name, claiming=claiming.name)
            at = _before(part, sites(claiming))
            if at is None and a < b:
                at = _same_place(part, claiming)
            if at is not None:
                said = {"subject": part.name, "at": _name(at), "claiming": claiming.name}
                right = _reordered(parts)
                if right:
                    return Reason("noise-order", order=right, **said)
                return Reason("before-noise", **said)
    return None


def misplaced_in(
    parts: Sequence[Defense],
    protocol: str,
    noised: Collection[Site],
    roles: Collection[str],
    shared: Collection[Site] = (),
) -> Reason | None:
    """Return why a part may not act where a protocol adds noise of its own, None if all may.

    `protocol`: Its name; it claims a budget.
    `noised`: What it adds noise to.
    `roles`: Who sends that before the noise is added, or with a share of it.
    `shared`: Of these, what is summed with shares of the noise; other sums are exact where it is
    added.
    """
    for part in parts:
        if part.reads_rows and not bounded(part):
            return Reason("reads-rows", subject=part.name, claiming=protocol)
        opened = {*noised} & {*part.summed()} - {*shared}
        if part.opens_to and opened:
            told = {"type": _name(min(opened, key=_name)), "who": ", ".join(sorted(part.opens_to))}
            return Reason("opens-sums", subject=part.name, protocol=protocol, **told)
        at = _before(part, noised)
        sent = _open(part) & {*noised}
        if "aggregation" in part.acts_through:
            sent |= opened - {*part.nonexpansive}
        if at is None and sent and part.at & {*roles}:
            at = min(sent, key=_name)
        if at is not None:
            named = {"subject": part.name, "protocol": protocol}
            return Reason("before-protocols-noise", at=_name(at), **named)
    return None


def _open(part: Defense) -> frozenset[Site]:
    """Return where a part may bring two tables farther apart."""
    return sites(part) - {*part.nonexpansive}


def _before(part: Defense, others: Collection[Site]) -> Site | None:
    """Return what a part does to single rows that goes into one of these sites."""
    done = [stage for stage in _OF_ROWS if stage in _open(part)]
    return next((s for s in done for site in others if site != s and _feeds(s, site)), None)


def _feeds(stage: str, site: Site) -> bool:
    if isinstance(site, str):  # gradients, splits and nodes are made of labels
        return stage == "labels"
    return Reveal.LABELS in site.discloses


def _same_place(part: Defense, claiming: Defense) -> Site | None:
    both = (_open(part) & sites(claiming)) - {*_RESTRICTIONS}
    met = {site for site in both if isinstance(site, str) or part.at & claiming.at}
    return min(met, key=_name, default=None)


def _reordered(parts: Sequence[Defense]) -> str | None:
    """Return the parts with those that claim a budget first, None where that is no better."""
    first = sorted(parts, key=lambda part: not bounded(part))
    again = [p.name for p in first] == [p.name for p in parts]
    return None if again or _wrong(first) else "+".join(p.name for p in first)


def _wrong(parts: Sequence[Defense]) -> bool:
    """Tell whether any part acts before one that claims a budget."""
    return any(
        _before(part, sites(one)) or (a < b and _same_place(part, one))
        for b, one in enumerate(parts)
        for a, part in enumerate(parts)
        if a != b and bounded(one)
    )


def _name(site: Site) -> str:
    return site if isinstance(site, str) else site.__name__
