"""Models other than forests are written and read, too."""

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
def test_a_model_file_predicts_the_same_when_read(protocol, tmp_path):
    clients, schema = sample_federation(rows=60)
    protocol_object = register.make("protocol", parse_grid(protocol)[0])
    training = train(protocol_object, over_clients(clients), schema)
    assert protocol_object.info.model_file == ENCODED_FILE
    protocol_object.save(training, tmp_path / "model.ftm")
    decoded = decode((tmp_path / "model.ftm").read_bytes()).model()
    X = clients[0].X
    np.testing.assert_array_equal(decoded.predict(X), training.model.predict(X))
