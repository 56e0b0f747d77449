"""Compatibility of encrypted sums with the noise of protocols."""

import pytest

from fedtrees.core.reasons import FITS
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.experiments.evaluate import make_defense
from fedtrees.protocols.compatibility import check_fit


@pytest.mark.parametrize("noise", ["central", "distributed"])
def test_decrypting_a_sum_before_its_noise_is_refused(noise):
    protocol = register.make("protocol", parse_grid(f"dp-gbdt[noise={noise}]")[0])
    opened = check_fit(protocol, make_defense(parse_composed(["paillier"])[0]).parts)
    assert str(opened) == (
        str(FITS)
        if noise == "distributed"
        else "'paillier' reveals sums of LeafSums to a client before "
        "'dp-gbdt' adds noise to them; use 'masking' or 'secure-sum', or noise=distributed"
    )
    (masking,) = make_defense(parse_composed(["masking"])[0]).parts
    nonexpansive_sums = type(
        "OwnSums", (type(masking),), {"nonexpansive": (), "name": "own-sums"}
    )()
    assert check_fit(protocol, [nonexpansive_sums]).ok == (noise == "distributed")
