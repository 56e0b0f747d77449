"""The record-id graph without its matrix: twins, modularity, Louvain, spectral, components."""

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from fedtrees.attacks.labels.communities import contract, louvain, merge_to, modularity
from fedtrees.attacks.labels.graph_methods import (
    ALPHA,
    REGULARISATION,
    STEPS,
    components,
    embedding,
    spread,
)
from fedtrees.attacks.labels.published import _first_level, _members, published_communities


def small_view(seed, n=7, trees=3, leaves=3, absent=0.15):
    """Return visible leaves by odd numbers, absent rows, and what trees count."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, leaves, (n, trees)).astype(np.int32) * 5 + 2
    found[rng.random((n, trees)) < absent] = -1
    return found, 0.6 ** np.arange(trees)


def dense(leaves, eta):
    """Return A of Eq. 1, the diagonal included."""
    same = (leaves[:, None] == leaves[None]) & (leaves[:, None] >= 0)
    return same.astype(float) @ eta


def dense_modularity(A, label):
    degree, total = A.sum(axis=1), A.sum()
    same = label[:, None] == label[None]
    return ((A - np.outer(degree, degree) / total) * same).sum() / total


def partitions(n):
    """Return all partitions of n things, as labels."""
    found = [[0]]
    for _ in range(n - 1):
        found = [[*p, c] for p in found for c in range(max(p) + 2)]
    return np.array(found)


def numbered(labels):
    return np.unique(labels, return_inverse=True)[1]


@pytest.mark.parametrize("seed", range(8))
def test_contraction_loses_nothing(seed):
    leaves, eta = small_view(seed, n=60, leaves=4)
    twins, A = contract(leaves, eta), dense(*small_view(seed, n=60, leaves=4))
    assert twins.weight.sum() == 60
    rows = [tuple(r) for r in leaves]
    for i in range(60):
        alike = [j for j in range(60) if rows[j] == rows[i]]
        assert np.flatnonzero(twins.of_row == twins.of_row[i]).tolist() == alike
    np.testing.assert_allclose(twins.degree[twins.of_row], A.sum(axis=1))
    for label in np.random.default_rng(seed).integers(0, 5, (4, len(twins.weight))):
        label = numbered(label)
        assert modularity(twins, label) == pytest.approx(dense_modularity(A, label[twins.of_row]))


def test_many_trees_do_not_overflow_the_packed_key():
    rng = np.random.default_rng(0)
    leaves = rng.integers(0, 2**9, (40, 30)).astype(np.int32)
    leaves = np.vstack([leaves, leaves[::-1]])
    twins = contract(leaves)
    assert twins.weight.tolist() == [2.0] * 40
    np.testing.assert_array_equal(twins.of_row[:40], twins.of_row[:39:-1])


@pytest.mark.long
def test_some_optimum_keeps_twins_together_and_louvain_comes_close():
    """All 877 partitions of 7 rows: the twin theorem, and how often Louvain finds the best."""
    every, reached = partitions(7), 0
    for seed in range(30):
        leaves, eta = small_view(seed, leaves=2, trees=3)
        leaves[0], leaves[1] = leaves[2], leaves[3]
        A, twins = dense(leaves, eta), contract(leaves, eta)
        Q = np.array([dense_modularity(A, label) for label in every])
        group = twins.of_row
        kept = np.array(
            [all(len(set(label[group == g])) == 1 for g in set(group)) for label in every]
        )
        assert Q[kept].max() == pytest.approx(Q.max(), abs=1e-12)
        label, found = louvain(twins, np.random.default_rng(seed))
        assert found == pytest.approx(dense_modularity(A, label[group]), abs=1e-12)
        assert found <= Q.max() + 1e-12
        reached += found > Q.max() - 1e-9
    assert reached >= 22  # it climbs, and may end below the top


def test_merging_takes_the_cheapest_pair_first():
    leaves, eta = small_view(3, n=12, leaves=4)
    twins = contract(leaves, eta)
    start = numbered(np.random.default_rng(1).integers(0, 5, len(twins.weight)))
    pairs = [
        modularity(twins, numbered(np.where(start == a, b, start)))
        for a in range(5)
        for b in range(a)
    ]
    assert modularity(twins, merge_to(twins, start, 4)) == pytest.approx(max(pairs))
    assert len(np.unique(merge_to(twins, start, 2))) == 2


def test_components_are_those_of_the_dense_graph():
    for seed in range(6):
        leaves, eta = small_view(seed, n=12, leaves=9)
        twins = contract(leaves, eta)
        found = components(twins)[twins.of_row]
        told = (leaves >= 0).any(axis=1)
        true = connected_components(dense(leaves, eta) > 0)[1]
        same = found[told][:, None] == found[told][None]
        np.testing.assert_array_equal(same, true[told][:, None] == true[told][None])


def test_the_embedding_is_that_of_the_dense_matrix():
    leaves, eta = small_view(5, n=40, leaves=4)
    twins, A = contract(leaves, eta), dense(leaves, eta)
    degree = A.sum(axis=1)
    told = degree > 0
    scale = np.where(told, 1 / np.sqrt(degree + REGULARISATION * degree.mean()), 0)
    values, U = np.linalg.eigh(scale[:, None] * A * scale)
    assert np.diff(values)[-4:].min() > 1e-3  # else it is one basis of many
    U = U[:, ::-1][:, :3]
    U = U / np.maximum(np.linalg.norm(U, axis=1, keepdims=True), 1e-12)
    found = embedding(twins, 3)[twins.of_row]
    np.testing.assert_allclose(
        (found @ found.T)[told][:, told], (U @ U.T)[told][:, told], atol=1e-8
    )
    assert not found[~told].any()


def test_spreading_is_the_random_walk_on_the_dense_matrix():
    leaves, eta = small_view(2, n=30, leaves=4, absent=0.0)
    twins, A = contract(leaves, eta), dense(leaves, eta)
    known, y = np.array([1, 4, 9, 16]), np.array([0, 1, 1, 1])
    source = np.zeros((30, 2))
    source[known, y] = 1 / np.bincount(y)[y]
    scores = source.copy()
    for _ in range(STEPS):
        scores = ALPHA * (A @ scores) / A.sum(axis=1, keepdims=True) + (1 - ALPHA) * source
    counts = np.zeros((len(twins.weight), 2))
    np.add.at(counts, (twins.of_row[known], y), 1)
    found = spread(twins, counts) * 1.0
    mean = np.array([scores[twins.of_row == g].mean(axis=0) for g in range(len(counts))])
    np.testing.assert_allclose(found, mean / mean.sum(axis=1, keepdims=True), rtol=1e-9)


@pytest.mark.long
def test_the_authors_louvain_sees_earlier_rows_alone():
    """The first level again, on the dense lower triangle."""
    for seed in range(5):
        leaves, eta = small_view(seed, n=25, leaves=3)
        L = np.tril(dense(leaves, eta), -1)
        order = np.random.default_rng(seed).permutation(25)
        label, tot, whole = np.arange(25), L.sum(axis=1), L.sum()
        degree = tot.copy()
        for _ in range(100):
            before = label.copy()
            for i in order:
                onto = np.bincount(label, L[i], 25)
                tot[label[i]] -= degree[i]
                near = [c for c in dict.fromkeys(label[_near(leaves, i)]) if onto[c] > 0]
                gain = {c: onto[c] - tot[c] * degree[i] / whole for c in near}
                best = max(gain, key=gain.get, default=label[i])
                label[i] = best if gain.get(best, 0) > 0 else label[i]
                tot[label[i]] += degree[i]
            if (label == before).all() or len(set(label)) == 2:
                break
        members, ends = _members(leaves)
        found = _first_level(leaves.astype(np.int64), members, ends, eta, order)
        np.testing.assert_array_equal(found, label)
        assert len(published_communities(leaves, eta, np.random.default_rng(0))) == 25


def _near(leaves, i):
    """Return earlier rows in a leaf of row i, tree by tree."""
    rows = [np.flatnonzero(leaves[:i, t] == leaves[i, t]) for t in range(leaves.shape[1])]
    return np.concatenate(
        [r for r, t in zip(rows, leaves[i], strict=True) if t >= 0] or [[]]
    ).astype(int)


@pytest.mark.long
def test_a_graph_without_edges_has_no_communities():
    twins = contract(np.full((5, 2), -1, dtype=np.int32))
    assert louvain(twins, np.random.default_rng(0))[1] == 0
    assert not embedding(twins, 2).any()
    assert contract(np.zeros((4, 0), np.int32)).weight.tolist() == [4.0]
