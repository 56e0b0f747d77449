"""Blind guesses of batches have as many rows as the batch, and rounds of equal size share them."""

import numpy as np
import pytest
from federations import sample_federation

from fedtrees.core.claims import BatchRows
from fedtrees.core.local_data import over_clients
from fedtrees.core.streams import Streams
from fedtrees.metrics.batches import Batches
from fedtrees.metrics.metric import Case

CLIENTS, SCHEMA = sample_federation(rows=60)
ROLES = {"server": "server"} | {f"client-{k}": "client" for k in range(3)}


@pytest.fixture(scope="module")
def batches():
    sizes = [4, 4, 5, 3]  # rows that the rounds drew
    return Batches(
        Case(
            over_clients(CLIENTS), ROLES, ("client-0",), SCHEMA, Streams(1), "client",
            grown_on=lambda name, round: np.arange(20) < sizes[round],
        )
    )  # fmt: skip


def claim(round, rows=4):
    return BatchRows(("client-1",), round, CLIENTS[0].take(np.arange(rows)))


@pytest.mark.long
def test_rounds_of_equal_size_share_one_blind_guess(batches):
    first = batches.blind(claim(0))
    assert batches.blind(claim(1)) is first
    assert batches.blind(claim(3)) is first  # Fewer rows were drawn than announced.
    assert {len(table) for table in first.values()} == {4}


@pytest.mark.long
@pytest.mark.parametrize(("round", "claimed_rows", "expected_rows"), [(2, 4, 12), (0, 1, 9)])
def test_a_claim_of_too_few_rows_is_compared_with_the_rows_of_the_batch(
    batches, round, claimed_rows, expected_rows
):
    assert {len(table) for table in batches.blind(claim(round, claimed_rows)).values()} == {
        expected_rows
    }
