"""Reconstruction accuracy as Di Gennaro et al. (2025) take it, beside their figures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedtrees.bench.federation import Federation
from fedtrees.core.guess import Guess
from fedtrees.core.schema import Table
from fedtrees.core.streams import Streams
from fedtrees.metrics.blind import blind_guesses
from fedtrees.metrics.records import score_records
from fedtrees.protocols.base import client_names


def published_scores(
    guess: Guess,
    federation: Federation,
    principals: tuple[str, ...],
    blind: dict[str, float],
    seed: int,
) -> Iterator[tuple[str, float, float | None]]:
    """Yield metric, score and blind score: over the union of all rows, or over one client's.

    ``ra_union``: the adversary's own rows are among those scored; the blind adversary knows them
    and guesses the others. ``ra_owner``, where rows have named owners: RA on the rows of the
    largest owner alone, as their victim was, and so is its blind line. Shares are over the columns
    there are; theirs, where no column is categorical, are over one more that is always right
    (`fedtrees.benchmarks.papers.timberstrike_published`).
    """
    if guess.records is None:
        return
    own, truth, schema = (
        federation.own(principals),
        federation.victims(principals),
        federation.schema,
    )
    if guess.owner is None:
        share = 0.0 if own is None else len(own) / (len(own) + len(truth))
        everyone = truth if own is None else Table.concat([own, truth])
        line = share + (1 - share) * blind["ra"] if "ra" in blind else None
        yield "ra_union", score_records(guess.records, everyone, schema).ra, line
        return
    names = client_names(len(federation.clients))
    owners = np.array(guess.owner)
    held = {n: federation.clients[names.index(n)] for n in sorted(set(guess.owner))}
    name = max(held, key=lambda n: len(held[n]))
    rng = Streams(seed).child("blind").rng("owners")
    drawn = blind_guesses(own, schema, len(held[name]), rng)
    line = max(score_records(g, held[name], schema).ra for g in drawn.values())
    yield "ra_owner", score_records(guess.records.take(owners == name), held[name], schema).ra, line
