"""Messages that contain trees: packing, unpacking, joining and encoding."""

from dataclasses import fields, replace

import numpy as np
import pytest
from shared_trees_world import sent, tables

from fedtrees.core.errors import DataError
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import Reveal
from fedtrees.core.wire import decode, encode
from fedtrees.messages.horizontal import ClientModels, ClientTrees, GlobalTrees
from fedtrees.messages.models import join, pack, unpack
from fedtrees.protocols.horizontal.tree_sharing import FlowerBagging, LocalEnsembles
from fedtrees.protocols.training import train
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.cut_points import xgboost_cuts


def forest(params):
    (table, *_), _ = tables(0, missing=0.1)
    cuts = xgboost_cuts(table.X)
    return grow_forest(table.X, table.y, cuts, params)


def test_trees_are_unpacked_with_their_gradient_sums():
    params = FlowerBagging(trees=4, max_depth=4, reg_lambda=0.7)
    grown = forest(params).trees
    message = ClientTrees(0, **pack(grown, params), base_score=np.float32([0.5]))
    for tree, unpacked in zip(grown, unpack(message, 0.3, 0.7), strict=True):
        for name in ("feature", "threshold", "left", "right", "default_left", "value", "gain"):
            np.testing.assert_array_equal(getattr(unpacked, name), getattr(tree, name))
        np.testing.assert_allclose(unpacked.h, tree.h, rtol=1e-7)
        np.testing.assert_allclose(unpacked.g, tree.g, atol=1e-5)
    assert all(tree.g is None for tree in unpack(message))
    without_statistics = replace(message, sum_hessian=None, base_weights=None, loss_changes=None)
    assert all(
        (t.g, t.h, t.gain) == (None, None, None) for t in unpack(without_statistics, 0.3, 0.7)
    )


def test_joined_messages_omit_fields_that_one_of_them_lacks():
    params = FlowerBagging(trees=3, max_depth=3)
    grown = forest(params).trees
    parts = [ClientTrees(0, **pack([tree], params), base_score=np.float32([0.5])) for tree in grown]
    packed = pack(grown, params)
    for name, array in join(parts).items():
        np.testing.assert_array_equal(array, packed[name])
    parts[1] = replace(parts[1], loss_changes=None)
    assert set(packed) - set(join(parts)) == {"loss_changes"}


def test_arrays_that_do_not_fit_the_sizes_are_refused():
    params = FlowerBagging(trees=1, max_depth=3)
    message = ClientTrees(0, **pack(forest(params).trees, params), base_score=np.float32([0.5]))
    for broken in (
        replace(message, sizes=message.sizes + 1),
        replace(message, sum_hessian=message.sum_hessian[1:]),
    ):
        with pytest.raises(DataError, match="node arrays do not fit"):
            unpack(broken)


@pytest.mark.parametrize("message_type", [ClientTrees, GlobalTrees, ClientModels])
@pytest.mark.parametrize("without_statistics", [False, True])
def test_messages_survive_encoding_and_their_arrays_are_read_only(message_type, without_statistics):
    clients, schema = tables(1)
    protocol = LocalEnsembles if message_type is ClientModels else FlowerBagging
    message = sent(
        train(protocol(trees=2, max_depth=2), over_clients(clients), schema), message_type
    )[-1]
    if without_statistics:
        message = replace(message, sum_hessian=None, base_weights=None, loss_changes=None)
    assert (Reveal.COUNTS in message.reveals) == (not without_statistics)
    assert message.reveals <= message_type.discloses
    decoded = decode(encode(message))
    assert type(decoded) is message_type
    for field in fields(message):
        np.testing.assert_array_equal(getattr(decoded, field.name), getattr(message, field.name))
        if isinstance(getattr(decoded, field.name), np.ndarray):
            assert not getattr(decoded, field.name).flags.writeable
