"""Random compositions on tiny tables: one row never moves the outputs by more than the epsilon."""

from collections import Counter

import numpy as np
import pytest
from neighbours import moved, with_other_label, without_last_row
from present import here

from fedtrees.core import composition
from fedtrees.core.errors import (
    BeyondParametersError,
    DataError,
    UnguardedMessageError,
    UsageError,
)
from fedtrees.core.guarantee import MutualInformation
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_grid, parse_one
from fedtrees.crypto.primitives import MissingPartyError, TooFewPartiesError
from fedtrees.experiments.epsilon_audit import largest_node
from fedtrees.experiments.evaluate import make_defense

# The parameters of each name; one value of every list is drawn.
_HIST = "[trees=1,2;max_depth=1,2;max_bin=4;cuts=public,sketch;base_score=0.5,0.9,none;"
PROTOCOLS = {
    "fedtree-hist": _HIST + "early_stopping_rounds=0,0,1;validation_fraction=0.5]",
    "nvflare-hist": _HIST + "subsample=1.0,0.5]",
    "dp-gbdt": "[epsilon=0.5,4;trees=2;max_depth=1;noise=central,distributed]",
    "dp-forest": "[epsilon=0.5,4;trees=2;depth=1;rows=noised;"
    "mechanism=geometric,published,majority;noise=central,distributed]",
    "secureboost": "[trees=1,2;max_depth=2;crypto=ideal]",
    "vertical-forest": "[trees=2;max_depth=2;crypto=ideal]",
    "vertical-regression": "[rounds=1,4;lr=0.1,5.0;degree=1,3;fake=0,2;intercept=true,false;"
    "statistics=public,public,own;batch=0,0,2]",
}
DEFENSES = {
    "split-only": "",
    "secure-sum": "",
    "masking": "[mode=ideal;threshold=2;exposing=true;dropout=0.0,0.3]",
    "paillier": "[mode=ideal]",
    "hist-rounding": "[step=0.05,0.5,2.0;random=true,false]",
    "min-bin": "[k=2,3;by=client,server]",
    "leaf-rounding": "[decimals=1,3]",
    "laplace-hist": "[epsilon=0.1,1.0;clip=0.3,1.0;calibrated=true,false]",
    "laplace-gradient": "[epsilon=1.0]",
    "dp-grid-cuts": "[epsilon=0.5,2.0;cells=4;rounds=1,2;survivors=none,2]",
    "grid-cuts": "[cells=4;rounds=1]",
    "public-cuts": "",
    "dp-quantile-cuts": "[epsilon=1.0;quantiles=3]",
    "sketch-rounding": "[digits=1]",
    "lp-1st": "[epsilon=0.5,2.0]",
    "lp-mst": "[epsilon=1.0;stages=2]",
    "grafting-ldp": "[epsilon=1.0;stages=2]",
    "id-lmid": "[xi=0.3,0.6]",
    "reduced-leakage": "[trees=1]",
    "dp-gd": "[epsilon=0.5,4.0;clip=0.3,2.0;parties=2,3]",
}
OVER_ROWS = tuple(DEFENSES)[:14]
OVER_COLUMNS = tuple(DEFENSES)[14:-1]
REFUSED = "refused"


def drawn(name, grid, rng):
    """Return a spec with one value of each list."""
    axes = [axis.partition("=") for axis in grid.strip("[]").split(";") if axis]
    chosen = [f"{key}={rng.choice(values.split(','))}" for key, _, values in axes]
    return f"{name}[{','.join(chosen)}]" if chosen else name


def tiny(rng, layout):
    """Return a table of 4 to 9 rows, laid out over three clients or two holders of columns."""
    n, d = int(rng.integers(4, 10)), int(rng.integers(1, 3)) + (layout == "vertical")
    features = tuple(Feature(f"x{i}", low=0.0, high=1.0) for i in range(d))
    X = rng.choice([0.1, 0.4, 0.6, 0.9], (n, d)).astype(np.float32)
    y = np.concatenate([[0, 1, 0], rng.integers(0, 2, n - 3)])
    schema = Schema(features, "y", ("0", "1"))
    if layout == "vertical":
        ids, columns = np.arange(n), np.array_split(np.arange(d), 2)
        parts = [LocalData(ids, c, X[:, c], y if k == 0 else None) for k, c in enumerate(columns)]
        return dict(zip(("active", "passive-1"), parts, strict=True)), schema
    if rng.random() < 0.5:  # rows that are alike meet in one bin, where one more counts most
        X[:], y[:] = X[0], y[0]
    ends = sorted(rng.choice(np.arange(1, n), 2, replace=False))
    return over_clients([Table(X[p], y[p]) for p in np.split(np.arange(n), ends)]), schema


def try_composition(seed):
    """Return the outcome of one random composition, and the contradictions to its claims."""
    rng = np.random.default_rng(seed)
    name = str(rng.choice(list(PROTOCOLS), p=[0.32, 0.22, 0.1, 0.1, 0.1, 0.1, 0.06]))
    try:
        protocol = register.make("protocol", parse_grid(drawn(name, PROTOCOLS[name], rng))[0])
    except UsageError:  # Some kinds of noise cannot be shared.
        return REFUSED, []
    labels = protocol.layout == "vertical" and name != "vertical-regression"
    pool = OVER_COLUMNS if labels else OVER_ROWS if protocol.layout != "vertical" else ["dp-gd"]
    names = rng.choice(pool, min(len(pool), int(rng.integers(1, 5))), replace=False)
    text = "+".join(drawn(n, DEFENSES[n], rng) for n in names)
    local_data, schema = tiny(rng, protocol.layout)
    changed_client = str(
        rng.choice(
            [
                client
                for client in local_data
                if local_data[client].y is not None and len(local_data[client])
            ]
        )
    )
    neighbour = (
        with_other_label(local_data, changed_client, 2)
        if labels
        else without_last_row(local_data, changed_client)
    )
    if pool == ["dp-gd"]:  # Every party has a part of each row.
        neighbour = without_last_row(neighbour, "passive-1")
    try:
        effect = moved(
            protocol,
            (local_data, neighbour),
            schema,
            make_defense(parse_one(text)),
            changed_client,
            seed,
        )
    except (UsageError, DataError, UnguardedMessageError, MissingPartyError):
        return REFUSED, []
    except TooFewPartiesError:
        return "too few are left", []
    contradictions = [
        f"{protocol.name} with {text}: {contradiction}" for contradiction in effect.contradicts()
    ]
    measured_bound = largest_node(effect.runs[0], local_data)
    for bound in (
        guarantee for guarantee in effect.spent if isinstance(guarantee, MutualInformation)
    ):
        if measured_bound is not None and measured_bound.xi > bound.xi * (1 + 1e-6):
            contradictions.append(
                f"{protocol.name} with {text}: {bound}, and it is {measured_bound}"
            )
    finite = [
        guarantee
        for guarantee in effect.spent
        if guarantee.budget and np.isfinite(guarantee.budget[1])
    ]
    return ("bounded" if finite else "open"), contradictions


def try_compositions(seeds):
    """Return counts of the outcomes, and all contradictions."""
    outcomes, contradictions = Counter(), []
    for seed in seeds:
        outcome, new_contradictions = try_composition(seed)
        outcomes[outcome] += 1
        contradictions += new_contradictions
    return outcomes, contradictions


@pytest.mark.long
def test_no_random_composition_claims_less_than_a_row_moves_its_outputs():
    outcomes, contradictions = try_compositions(range(400))
    assert contradictions == []
    assert outcomes["bounded"] > 40
    assert outcomes["refused"] > 100


@pytest.mark.slow
def test_none_of_ten_thousand_compositions_claims_less_than_a_row_moves_its_outputs():
    outcomes, contradictions = try_compositions(range(10_000))
    assert contradictions == []
    assert min(outcomes["bounded"], outcomes["refused"]) > 1000


def effect_of_last_row(
    text, n_rows=12, protocol="fedtree-hist[trees=1,max_depth=1,max_bin=2,cuts=public,"
):
    """Return the effect of the last of n equal rows of a client that has most of the rows."""
    protocol_object = register.make("protocol", parse_grid(protocol + "base_score=0.5]")[0])
    schema = Schema((Feature("x", low=0.0, high=1.0),), "y", ("0", "1"))
    rows = Table(np.full((n_rows, 1), 0.9, np.float32), np.zeros(n_rows, dtype=np.int64))
    single_row = rows.take(np.arange(1))
    local_data = over_clients([rows, single_row, single_row])
    neighbour = without_last_row(local_data, "client-0")
    return moved(
        protocol_object, (local_data, neighbour), schema, make_defense(parse_one(text)), "client-0"
    )


@pytest.mark.parametrize(
    ("text", "n_rows", "minimum_effect"),
    [
        ("min-bin[k=12]+laplace-hist[epsilon=1,calibrated=true]", 12, 3.5),
        ("hist-rounding[step=3]+laplace-hist[epsilon=1,calibrated=true]", 3, 2.0),
        ("hist-rounding[step=3]+laplace-hist[epsilon=1,calibrated=true]", 6, 2.0),
    ],
)
def test_a_refused_order_of_defenses_would_contradict_its_claim(
    monkeypatch, text, n_rows, minimum_effect
):
    monkeypatch.setattr(composition, "misplaced", lambda parts: None)
    effect = effect_of_last_row(text, n_rows)
    assert effect.noisy > minimum_effect
    assert len([*effect.contradicts()]) == 1
    first, second = text.split("+")
    assert [*effect_of_last_row(f"{second}+{first}", n_rows).contradicts()] == []


@pytest.mark.parametrize("defense", here("defense", ["masking"]))
def test_a_missing_share_of_noise_would_contradict_the_claim(defense, monkeypatch):
    module = "fedtrees.crypto.masking"
    monkeypatch.setattr(f"{module}._check_noise", lambda *_: None)
    method = f"{module}.MaskedAggregation.loses"
    monkeypatch.setattr(method, lambda self, name, *_: name == "client-2")
    grid = "dp-grid-cuts[epsilon=1,cells=4,rounds=1,colluders=0]"  # without a spare share of noise
    text = f"{defense}[mode=ideal,threshold=2,exposing=true]+{grid}"
    # A server that does not check the number of shares is refused by the clients.
    with pytest.raises(BeyondParametersError, match="3 parties share the noise of that sum"):
        effect_of_last_row(text)
    monkeypatch.setattr(f"{module}._check_shares", lambda *_: None)
    effect = effect_of_last_row(text)
    assert effect.cuts > 1.3
    assert len([*effect.contradicts()]) == 1
