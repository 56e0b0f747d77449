"""From evidence to certified counts, and to rows' boxes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedtrees.attacks.evidence.basis import Basis
from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.lattice.decoder import Decoder, Problem
from fedtrees.attacks.lattice.exact_sums import exact_sums, first_counts
from fedtrees.attacks.lattice.paths import Paths
from fedtrees.core.guess import LeafCounts
from fedtrees.core.schema import Schema, Table


@dataclass(frozen=True, eq=False)
class Decoded:
    """What is certain.

    Attributes
    ----------
    leaf_counts : tuple of LeafCounts
        Of solved leaves.
    paths : Paths or None
        Rows after the last tree up to which every leaf is solved.
    notes : mapping of str to float
        ``trees_certified``: all leaves are; ``trees_followed``: so are those of all trees before;
        ``leaves_certified``, ``leaves_open`` and ``least_open_bits``: of the trees read;
        ``rows_followed``: victims whose margin after the last tree read is certain;
        ``false_expected``: sum of the odds against the leaves certified.
    """

    leaf_counts: tuple[LeafCounts, ...] = ()
    paths: Paths | None = None
    notes: Mapping[str, float] = field(default_factory=lambda: {"trees_certified": 0.0})


def decode(
    evidence: Evidence, own: Table | None, schema: Schema, list_bits: int, doubt: float
) -> Decoded:
    """Follow the victims' rows through all trees as far as exact sums tell.

    Parameters
    ----------
    own : Table or None
        The adversary's training rows, which are in the sums.
    list_bits : int
        See `fedtrees.attacks.lattice.contents.find_contents`.
    doubt : float
        Odds against a leaf's contents above which they are not believed.
    """
    own = Table.empty(schema) if own is None else own
    if not evidence.trees:
        return Decoded()
    basis = Basis.of(evidence, own, schema)
    return decode_sums(evidence, own, basis, list_bits, doubt)


def decode_sums(
    evidence: Evidence, own: Table, basis: Basis, list_bits: int, doubt: float
) -> Decoded:
    """Do the same with the basis at hand."""
    target = exact_sums(evidence, own)
    if target is None:
        return Decoded()
    first = first_counts(target[0], evidence.base_margin)
    if first is None:
        return Decoded()
    parts = (evidence, basis.sums, target, basis.grid, basis.prior)
    decoder = Decoder(Problem(*parts), first, list_bits, doubt)
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
    }
    if len(open_bits):
        notes["least_open_bits"] = open_bits.min()
    return Decoded(
        decoder.leaf_counts(), decoder.whole, {key: float(value) for key, value in notes.items()}
    )
