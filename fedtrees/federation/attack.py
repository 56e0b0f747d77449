"""A party's log of a federation attacked: what that very run told whoever kept it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtrees.capture.attack import kind_of, said_of, scored
from fedtrees.capture.records import Capture, Record
from fedtrees.core.attack import contenders
from fedtrees.core.codec import encoded_size
from fedtrees.core.errors import FedtreesError, UsageError, did_you_mean
from fedtrees.core.local_data import LocalData
from fedtrees.core.specs import Spec
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import PUBLIC
from fedtrees.core.view import Seen, View
from fedtrees.federation.agreed import Agreed, read
from fedtrees.federation.site import Settings, own_of
from fedtrees.isolation.process import attacks
from fedtrees.metrics.metric import Case
from fedtrees.protocols.views import stated


def report(file: str, who: str, truth: Sequence[str], id: str, run: int | None) -> dict[str, Any]:
    """Return everything that `fedtrees attack` says of a federation's log, as plain values.

    Raises `UsageError` if `who` is no party of it; `DataError` as `Capture` and `own_of`.
    """
    capture = Capture(file, run)
    federation = read(capture.told.told["federation"])
    kept_by = str(capture.told.told["party"])
    who = who or kept_by
    parties = [*federation.agreement.roles]
    if who not in parties:
        raise UsageError(f"no party {who!r} in {file}{did_you_mean(who, parties)}")
    records = [r for r in capture if who in (r.sender, *r.receivers) or PUBLIC in r.receivers]
    held = _truth(federation, truth, id)
    view = _view(federation, who, records, int(capture.told.told["rows"]), held)
    sees, size = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for record in (r for r in records if r.sender != who or r.receivers == (who,)):
        key = kind_of(record, who)
        sees[key] += 1
        size[key] += encoded_size(record.message)
    columns = ("message", "from", "to", "reveals")
    found = list(_attacks(view, held))
    notes = [] if who == kept_by else [f"{kept_by} kept this log: it has only what crossed there"]
    how = f"{federation.protocol}, {federation.defense}"
    return {
        "framework": f"fedtrees {capture.told.version}, {how}",
        "as": who,
        "parties": parties,
        "promises": [],
        "sees": [
            dict(zip(columns, key, strict=True)) | {"count": n, "bytes": size[key]}
            for key, n in sees.items()
        ],
        "scored": bool(held),
        "readings": [],
        "attacks": found,
        "notes": notes,
        "verdict": verdict(federation, who, found, bool(held)),
    }


def _truth(federation: Agreed, files: Sequence[str], id: str) -> dict[str, LocalData]:
    found = {}
    for text in files:
        party, equals, path = text.partition("=")
        party, path = (party, path) if equals else (Path(text).stem, text)
        if party not in federation.parties:
            known = did_you_mean(party, federation.parties)
            raise UsageError(f"--truth of {party!r}: no party is called so{known}")
        found[party] = own_of(Settings(path, "", (), id), federation, party).held
    return found


def _view(
    federation: Agreed, who: str, records: list[Record], rows: int, held: Mapping[str, LocalData]
) -> View:
    made, schema, roles = federation.made, federation.schema, dict(federation.agreement.roles)
    if made.released:
        roles[PUBLIC] = PUBLIC
    return View(
        principals=(who,),
        roles=roles,
        own=(held[who],) if who in held else (),
        schema=schema,
        protocol=made.name,
        parameters=made.parameters,
        n_rows=rows,
        defense=federation.composed,
        seen=tuple(Seen(0, r.sender, r.receivers, r.message, r.why) for r in records),
        stated=stated(made, schema),
    )


def _attacks(view: View, held: Mapping[str, LocalData]) -> Iterator[dict[str, Any]]:
    names = [str(name) for name in contenders()]
    specs = [Spec(name) for name in names]
    case = _case(view, held)
    for name, reason in zip(names, attacks().reasons(specs, view), strict=True):
        if not reason.ok:
            continue
        try:
            guess = attacks().run(Spec(name), view).guess
            assert guess is not None
            scores = {} if case is None else scored(name, guess, case)
        except FedtreesError as err:
            yield {"attack": name, "said": f"failed: {err}"}
            continue
        yield {"attack": name, "said": said_of(guess), "scores": scores,
               "certain": sum(claim.certain for claim in guess.claims)}  # fmt: skip


def _case(view: View, held: Mapping[str, LocalData]) -> Case | None:
    """Return what guesses are scored against; None where somebody's rows are not given."""
    holders = {name for name, role in view.roles.items() if role not in ("server", PUBLIC)}
    if not holders - {*view.principals} <= {*held}:
        return None
    order = {name: held[name] for name in view.roles if name in held}
    begin, told = 0, {}
    whole = view.schema.features
    for name, own in order.items():
        apart = len(own.columns) == len(whole)  # whole rows are nobody else's
        ids = own.ids + (begin if apart else 0)
        told[name] = LocalData(ids, own.columns, own.X, own.y)
        begin += len(own)
    threat = view.roles[view.principals[0]]
    return Case(told, dict(view.roles), view.principals, view.schema, Streams(0), threat)


def verdict(federation: Agreed, who: str, found: list[dict[str, Any]], truth: bool) -> list[str]:
    """Say in a few lines what the run told a party."""
    ran = [a for a in found if "scores" in a]
    lines = [f"RAN       {len(ran)} attacks apply to what {who} was told in this run"]
    certain = sum(a["certain"] for a in ran)
    if certain:
        lines.append(f"CERTAIN   {certain:,} claims that follow from the messages alone")
    gains = [
        (value - blind, a["attack"], metric, value, blind)
        for a in ran
        for metric, (value, blind) in a["scores"].items()
        if blind is not None
    ]
    if gains:
        gain, attack, metric, value, blind = max(gains)
        least = "no attack scores above the blind baseline"
        more = f"{attack}: {metric} {value:.3g}, blind {blind:.3g}"
        lines.append(f"LEAK      {more if gain > 0 else least + f' ({more})'}")
    elif not truth:
        lines.append("LEAK      not scored: give --truth PARTY=FILE, the tables of the others")
    return lines
