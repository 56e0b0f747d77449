"""Models that are no forests are written, too."""

import numpy as np
import pytest
from federations import sample_federation
from present import here

from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_grid
from fedtrees.core.wire import decode
from fedtrees.protocols.base import ENCODED_FILE
from fedtrees.protocols.training import train


@pytest.mark.parametrize(
    "protocol",
    here(
        "protocol", ["horizontal-regression[rounds=2]", "fedxgbllr[trees=1,max_depth=2,rounds=1]"]
    ),
)
def test_what_is_read_again_predicts_the_same(protocol, tmp_path):
    clients, schema = sample_federation(rows=60)
    made = register.make("protocol", parse_grid(protocol)[0])
    done = train(made, over_clients(clients), schema)
    assert made.info.model_file == ENCODED_FILE
    made.save(done, tmp_path / "model.ftm")
    again = decode((tmp_path / "model.ftm").read_bytes()).model()
    X = clients[0].X
    np.testing.assert_array_equal(again.predict(X), done.model.predict(X))
