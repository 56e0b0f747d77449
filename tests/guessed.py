"""Short access to the claims in a guess."""

from typing import NamedTuple

from fedtrees.core.claims import LeafCounts, Records


class Told(NamedTuple):
    """Counts of one tree with two classes."""

    tree: int
    leaf: object
    n0: object
    n1: object


def rows(guess):
    """Return the table of guessed rows, None if no rows were claimed."""
    claim = guess.first(Records)
    return None if claim is None else claim.table


def owner(guess):
    """Return the claimed owners of the guessed rows."""
    return guess.first(Records).owner


def confidence(guess):
    """Return the confidence in the guessed rows."""
    return guess.first(Records).confidence


def counts(guess):
    """Return the leaf counts of every tree in the guess."""
    return tuple(
        Told(c.tree, c.leaf, c.counts[:, 0], c.counts[:, 1]) for c in guess.all(LeafCounts)
    )
