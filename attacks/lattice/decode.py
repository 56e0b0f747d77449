"""From evidence to certified counts, and to rows' boxes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedtrees.attacks.evidence.basis import Basis
from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.lattice.decoder import Decoder
from fedtrees.attacks.lattice.exact_sums import exact_sums, first_counts
from fedtrees.attacks.lattice.paths import Paths
from fedtrees.core.guess import LeafCounts
from fedtrees.core.schema import Schema, Table


@dataclass(frozen=True, eq=False)
class Decoded:
    """What is certain."""

    leaf_counts: tuple[LeafCounts, ...] = ()  # Of solved leaves
    paths: Paths | None = None  # Rows after the last tree up to which every leaf is solved
    # ``trees_certified``: all leaves are; ``trees_followed``: so are those of all trees before;
    # ``leaves_certified``, ``leaves_open`` and ``least_open_bits``: of the trees read;
    # ``rows_followed``: victims whose margin after the last tree read is certain;
    # ``false_expected``: sum of the odds against the leaves certified;
    # ``stopped_early``: 1 where the search ran out of steps, else 0
    notes: Mapping[str, float] = field(default_factory=lambda: {"trees_certified": 0.0})


def decode(
    evidence: Evidence,
    own: Table | None,
    schema: Schema,
    list_bits: int,
    doubt: float,
    basis: Basis | None = None,
    steps: int | None = None,
) -> Decoded:
    """Follow the victims' rows through all trees as far as exact sums tell.

    Own rows are in the sums. No leaf is believed with odds above ``doubt`` against its contents;
    ``list_bits`` as of `fedtrees.attacks.lattice.contents.find_contents`. The basis is worked out
    where it is not at hand. After so many ``steps`` the search stops early. Of rounds that are
    grown on some of the rows only the first is read: its counts are of the rows it was grown on.
    """
    own = Table.empty(schema) if own is None else own
    if evidence.share < 1:
        evidence, basis = evidence.rounds(1), None
    if not evidence.trees:
        return Decoded()
    basis = Basis.of(evidence, own, schema) if basis is None else basis
    target = exact_sums(evidence, own)
    if target is None:
        return Decoded()
    first = first_counts(target[0], evidence.base_margin)
    if first is None:
        return Decoded()
    decoder = Decoder(evidence, basis, target, first, list_bits, doubt, steps)
    decoder.run()
    open_bits = decoder.open_bits()
    notes = {
        "trees_certified": sum(bool(known.all()) for known in decoder.known),
        "trees_followed": decoder.whole.trees,
        "leaves_certified": sum(int(known.sum()) for known in decoder.known),
        "leaves_open": len(open_bits),
        "rows_followed": decoder.paths.sure_rows(),
        "trees_read": decoder.paths.trees,
        "false_expected": decoder.doubt,
        "stopped_early": decoder.stopped,
    }
    if len(open_bits):
        notes["least_open_bits"] = open_bits.min()
    return Decoded(decoder.leaf_counts(), decoder.whole, {k: float(v) for k, v in notes.items()})
