"""The graph of record ids without its matrix: twins, modularity, Louvain, spectral clustering,
components.
"""

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from fedtrees.attacks.labels.communities import contract, louvain, merge_to, modularity
from fedtrees.attacks.labels.graph_methods import (
    ALPHA,
    REGULARISATION,
    STEPS,
    _first_level,
    _members,
    components,
    embedding,
    published_communities,
    spread,
)


def small_view(seed, n=7, trees=3, leaves=3, absent=0.15):
    """Return visible leaves, some of which are absent (-1), and the weights of the trees."""
    rng = np.random.default_rng(seed)
    visible_leaves = rng.integers(0, leaves, (n, trees)).astype(np.int32) * 5 + 2
    visible_leaves[rng.random((n, trees)) < absent] = -1
    return visible_leaves, 0.6 ** np.arange(trees)


def dense_adjacency(leaves, eta):
    """Return the adjacency matrix A of Eq. 1, including the diagonal."""
    is_same_leaf = (leaves[:, None] == leaves[None]) & (leaves[:, None] >= 0)
    return is_same_leaf.astype(float) @ eta


def dense_modularity(A, label):
    degree, total = A.sum(axis=1), A.sum()
    is_same_label = label[:, None] == label[None]
    return ((A - np.outer(degree, degree) / total) * is_same_label).sum() / total


def partitions(n):
    """Return all partitions of n items, as labels."""
    labelings = [[0]]
    for _ in range(n - 1):
        labelings = [
            [*labeling, label] for labeling in labelings for label in range(max(labeling) + 2)
        ]
    return np.array(labelings)


def renumber_labels(labels):
    return np.unique(labels, return_inverse=True)[1]


@pytest.mark.parametrize("seed", range(8))
def test_contraction_keeps_degrees_and_modularity(seed):
    leaves, eta = small_view(seed, n=60, leaves=4)
    twins, A = contract(leaves, eta), dense_adjacency(*small_view(seed, n=60, leaves=4))
    assert twins.weight.sum() == 60
    rows = [tuple(row) for row in leaves]
    for i in range(60):
        equal_rows = [j for j in range(60) if rows[j] == rows[i]]
        assert np.flatnonzero(twins.of_row == twins.of_row[i]).tolist() == equal_rows
    np.testing.assert_allclose(twins.degree[twins.of_row], A.sum(axis=1))
    for label in np.random.default_rng(seed).integers(0, 5, (4, len(twins.weight))):
        label = renumber_labels(label)
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
    """Compare with all 877 partitions of 7 rows: some optimum keeps twins together, and Louvain
    often reaches it.
    """
    all_labels, n_optimal = partitions(7), 0
    for seed in range(30):
        leaves, eta = small_view(seed, leaves=2, trees=3)
        leaves[0], leaves[1] = leaves[2], leaves[3]
        A, twins = dense_adjacency(leaves, eta), contract(leaves, eta)
        Q = np.array([dense_modularity(A, label) for label in all_labels])
        group = twins.of_row
        keeps_twins = np.array(
            [
                all(len(set(label[group == twin])) == 1 for twin in set(group))
                for label in all_labels
            ]
        )
        assert Q[keeps_twins].max() == pytest.approx(Q.max(), abs=1e-12)
        label, louvain_modularity = louvain(twins, np.random.default_rng(seed))
        assert louvain_modularity == pytest.approx(dense_modularity(A, label[group]), abs=1e-12)
        assert louvain_modularity <= Q.max() + 1e-12
        n_optimal += louvain_modularity > Q.max() - 1e-9
    assert n_optimal >= 22  # Louvain is a local search, so it may end below the optimum.


def test_merging_takes_the_cheapest_pair_first():
    leaves, eta = small_view(3, n=12, leaves=4)
    twins = contract(leaves, eta)
    start = renumber_labels(np.random.default_rng(1).integers(0, 5, len(twins.weight)))
    pairs = [
        modularity(twins, renumber_labels(np.where(start == a, b, start)))
        for a in range(5)
        for b in range(a)
    ]
    assert modularity(twins, merge_to(twins, start, 4)) == pytest.approx(max(pairs))
    assert len(np.unique(merge_to(twins, start, 2))) == 2


def test_components_equal_those_of_the_dense_graph():
    for seed in range(6):
        leaves, eta = small_view(seed, n=12, leaves=9)
        twins = contract(leaves, eta)
        component = components(twins)[twins.of_row]
        has_leaf = (leaves >= 0).any(axis=1)
        expected = connected_components(dense_adjacency(leaves, eta) > 0)[1]
        is_same = component[has_leaf][:, None] == component[has_leaf][None]
        np.testing.assert_array_equal(
            is_same, expected[has_leaf][:, None] == expected[has_leaf][None]
        )


def test_the_embedding_equals_that_of_the_dense_matrix():
    leaves, eta = small_view(5, n=40, leaves=4)
    twins, A = contract(leaves, eta), dense_adjacency(leaves, eta)
    degree = A.sum(axis=1)
    has_edges = degree > 0
    scale = np.where(has_edges, 1 / np.sqrt(degree + REGULARISATION * degree.mean()), 0)
    values, U = np.linalg.eigh(scale[:, None] * A * scale)
    # Otherwise the basis of the eigenvectors is not unique.
    assert np.diff(values)[-4:].min() > 1e-3
    U = U[:, ::-1][:, :3]
    U = U / np.maximum(np.linalg.norm(U, axis=1, keepdims=True), 1e-12)
    embedded = embedding(twins, 3)[twins.of_row]
    np.testing.assert_allclose(
        (embedded @ embedded.T)[has_edges][:, has_edges],
        (U @ U.T)[has_edges][:, has_edges],
        atol=1e-8,
    )
    assert not embedded[~has_edges].any()


def test_spreading_equals_the_random_walk_on_the_dense_matrix():
    leaves, eta = small_view(2, n=30, leaves=4, absent=0.0)
    twins, A = contract(leaves, eta), dense_adjacency(leaves, eta)
    labeled_rows, y = np.array([1, 4, 9, 16]), np.array([0, 1, 1, 1])
    source = np.zeros((30, 2))
    source[labeled_rows, y] = 1 / np.bincount(y)[y]
    scores = source.copy()
    for _ in range(STEPS):
        scores = ALPHA * (A @ scores) / A.sum(axis=1, keepdims=True) + (1 - ALPHA) * source
    counts = np.zeros((len(twins.weight), 2))
    np.add.at(counts, (twins.of_row[labeled_rows], y), 1)
    spread_scores = spread(twins, counts) * 1.0
    expected = np.array([scores[twins.of_row == g].mean(axis=0) for g in range(len(counts))])
    np.testing.assert_allclose(
        spread_scores, expected / expected.sum(axis=1, keepdims=True), rtol=1e-9
    )


@pytest.mark.long
def test_the_published_louvain_uses_earlier_rows_only():
    """Repeat the first level of the published implementation on the dense lower triangle."""
    for seed in range(5):
        leaves, eta = small_view(seed, n=25, leaves=3)
        L = np.tril(dense_adjacency(leaves, eta), -1)
        order = np.random.default_rng(seed).permutation(25)
        label, total_degree, total_weight = np.arange(25), L.sum(axis=1), L.sum()
        degree = total_degree.copy()
        for _ in range(100):
            before = label.copy()
            for i in order:
                weight_to = np.bincount(label, L[i], 25)
                total_degree[label[i]] -= degree[i]
                neighbour_labels = [
                    label_of_neighbour
                    for label_of_neighbour in dict.fromkeys(
                        label[_earlier_rows_in_leaves(leaves, i)]
                    )
                    if weight_to[label_of_neighbour] > 0
                ]
                gain = {
                    label_of_neighbour: weight_to[label_of_neighbour]
                    - total_degree[label_of_neighbour] * degree[i] / total_weight
                    for label_of_neighbour in neighbour_labels
                }
                best = max(gain, key=gain.get, default=label[i])
                label[i] = best if gain.get(best, 0) > 0 else label[i]
                total_degree[label[i]] += degree[i]
            if (label == before).all() or len(set(label)) == 2:
                break
        members, ends = _members(leaves)
        first_level = _first_level(leaves.astype(np.int64), members, ends, eta, order)
        np.testing.assert_array_equal(first_level, label)
        assert len(published_communities(leaves, eta, np.random.default_rng(0))) == 25


def _earlier_rows_in_leaves(leaves, i):
    """Return the earlier rows in each leaf of row i, tree by tree."""
    rows = [np.flatnonzero(leaves[:i, leaf] == leaves[i, leaf]) for leaf in range(leaves.shape[1])]
    return np.concatenate(
        [rows_of_tree for rows_of_tree, leaf in zip(rows, leaves[i], strict=True) if leaf >= 0]
        or [[]]
    ).astype(int)


@pytest.mark.long
def test_a_graph_without_edges_has_no_communities():
    twins = contract(np.full((5, 2), -1, dtype=np.int32))
    assert louvain(twins, np.random.default_rng(0))[1] == 0
    assert not embedding(twins, 2).any()
    assert contract(np.zeros((4, 0), np.int32)).weight.tolist() == [4.0]
