"""Order of defenses: refuse a part that acts before noise and can increase the sensitivity.

Noise is calibrated to the sensitivity, the largest change of a release when one row is added or
removed (Dwork et al. 2006). Processing after the noise does not change the privacy cost. Processing
before the noise can change the sensitivity. Therefore, a part that acts before must declare that it
does not increase the distance of two tables (`Defense.nonexpansive`). Otherwise it is refused, and
the error suggests a correct order if there is one.

A part is one defense of a composition. It acts at *sites*: message types, and the words in
`fedtrees.core.defense.SITES`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from fedtrees.core.defense import Defense, Site
from fedtrees.core.messages import Reveal
from fedtrees.core.reasons import Reason

#: A change of labels also changes everything that is computed from labels.
_OF_ROWS = ("labels", "gradients", "example-gradients")
#: The order of restrictions is irrelevant, because their masks are intersected.
_RESTRICTIONS = ("allowed_splits", "visible_nodes")


def sites(part: Defense) -> frozenset[Site]:
    """Return the sites at which a part changes private values.

    Sites are message types, kinds of `ExampleStage`, and masks of splits and nodes.
    """
    changed: set[Site] = {*part.handled_types} if "transform_message" in part.hooks else set()
    if "transform_examples" in part.hooks:
        changed |= part.example_stages
    return frozenset(changed | (part.hooks & {*_RESTRICTIONS}))


def bounded(part: Defense) -> bool:
    """Return whether a part claims a privacy budget, which requires a bounded sensitivity."""
    return part.claim().budget is not None


def misplaced(parts: Sequence[Defense]) -> Reason | None:
    """Return why a part must not act at its position, None if all positions are correct."""
    for part, site, claiming in _conflicts(parts):
        if site is None:
            return Reason("reads-rows", subject=part.name, claiming=claiming.name)
        arguments = {"subject": part.name, "at": _name(site), "claiming": claiming.name}
        valid_order = _claiming_first(parts)
        if valid_order:
            return Reason("noise-order", order=valid_order, **arguments)
        return Reason("before-noise", **arguments)
    return None


def _conflicts(parts: Sequence[Defense]) -> Iterator[tuple[Defense, Site | None, Defense]]:
    """Yield every part that acts before a part that claims a budget, where, and the latter.

    The place is None for a part that reads local data.
    """
    # Processing after a claiming part is harmless, so that only its predecessors are checked. The
    # exception is a change of single rows, which happens before every release.
    for b, claiming in enumerate(parts):
        for a, part in enumerate(parts):
            if a == b or not bounded(claiming):
                continue
            if part.requirements.reads_local_data and not bounded(part):
                yield part, None, claiming
            site = _before(part, sites(claiming))
            if site is None and a < b:
                site = _same_place(part, claiming)
            if site is not None:
                yield part, site, claiming


def misplaced_in(
    parts: Sequence[Defense],
    protocol: str,
    noised: Collection[Site],
    roles: Collection[str],
    shared: Collection[Site] = (),
) -> Reason | None:
    """Return why a part must not act in a protocol that adds noise itself, None if all may.

    Parameters
    ----------
    parts : sequence of Defense
        The defenses.
    protocol : str
        Name of the protocol, which claims a budget.
    noised : collection of Site
        Sites at which the protocol adds noise.
    roles : collection of str
        Roles that send these values before the noise is added, or with a share of it.
    shared : collection of Site
        Those of `noised` that are summed together with shares of the noise. All remaining sums are
        exact where the noise is added.
    """
    for part in parts:
        if part.requirements.reads_local_data and not bounded(part):
            return Reason("reads-rows", subject=part.name, claiming=protocol)
        # A role that reads these sums would see them before the noise is added.
        opened = {*noised} & {*part.summed_types} - {*shared}
        if part.additional_readers and opened:
            arguments = {
                "type": _name(min(opened, key=_name)),
                "who": ", ".join(sorted(part.additional_readers)),
            }
            return Reason("opens-sums", subject=part.name, protocol=protocol, **arguments)
        at = _before(part, noised)
        sent = _expanding_sites(part) & {*noised}
        if "secure_aggregation" in part.hooks:
            sent |= opened - {*part.nonexpansive}
        if at is None and sent and part.roles & {*roles}:
            at = min(sent, key=_name)
        if at is not None:
            named = {"subject": part.name, "protocol": protocol}
            return Reason("before-protocols-noise", at=_name(at), **named)
    return None


def _expanding_sites(part: Defense) -> frozenset[Site]:
    """Return the sites at which a part may increase the distance of two neighbouring tables."""
    return sites(part) - {*part.nonexpansive}


def _before(part: Defense, other_sites: Collection[Site]) -> Site | None:
    """Return a change of single rows from which the values at one of these sites are computed."""
    done = [stage for stage in _OF_ROWS if stage in _expanding_sites(part)]
    return next((s for s in done for site in other_sites if site != s and _feeds(s, site)), None)


def _feeds(stage: str, site: Site) -> bool:
    """Return whether the values of a stage enter a site."""
    if isinstance(site, str):  # gradients, splits and nodes are computed from labels
        return stage == "labels"
    return Reveal.LABELS in site.discloses


def _same_place(part: Defense, claiming: Defense) -> Site | None:
    """Return a site at which both parts act and which only the claiming part may change."""
    both = (_expanding_sites(part) & sites(claiming)) - {*_RESTRICTIONS}
    met = {site for site in both if isinstance(site, str) or part.roles & claiming.roles}
    return min(met, key=_name, default=None)


def _claiming_first(parts: Sequence[Defense]) -> str | None:
    """Return the names of the parts with all claiming parts first.

    None if the order is the same, or is not valid either.
    """
    reordered = sorted(parts, key=lambda part: not bounded(part))
    unchanged = [p.name for p in reordered] == [p.name for p in parts]
    valid = all(site is None for _, site, _ in _conflicts(reordered))
    return "+".join(p.name for p in reordered) if valid and not unchanged else None


def _name(site: Site) -> str:
    """Return the name of a site."""
    return site if isinstance(site, str) else site.__name__
