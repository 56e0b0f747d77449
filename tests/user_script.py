"""A script of a user, which a strict type checker reads: every public name, with its types.

`tests/test_public_examples.py` checks that no revealed type contains `Any`. The script is not run.
"""

from pathlib import Path
from typing import reveal_type

import numpy as np

import fedtrees
from fedtrees import (
    ApproximateDP,
    Attack,
    AttackScore,
    AttackScores,
    Behaviour,
    BestDefense,
    ChannelDefense,
    Claim,
    Computational,
    Coordinator,
    DataError,
    Dataset,
    Defense,
    DefenseInfo,
    EveryRecord,
    Feature,
    FederatedForestClassifier,
    FederatedGBDTClassifier,
    FederatedGBDTRegressor,
    FederatedVerticalGBDTClassifier,
    FedtreesError,
    Guess,
    Labels,
    LeafCounts,
    LocalData,
    Measure,
    Membership,
    Message,
    Metric,
    ModelAudit,
    NoGuarantee,
    Party,
    Protocol,
    ProtocolError,
    ProtocolInfo,
    PureDP,
    Recommendation,
    Records,
    Requirements,
    Reveal,
    Run,
    RunLeak,
    Schema,
    Score,
    StoreError,
    Structural,
    Table,
    Training,
    Trait,
    UsageError,
    View,
    handles,
    leakage,
    load_model,
    permit_types_with,
    register,
    train,
    types_with,
    view_of,
)

X = np.zeros((20, 2), dtype=np.float32)
y = np.arange(20) % 2


def run_a_benchmark() -> Run:
    run = fedtrees.bench("breast-cancer", defense=["split-only", "min-leaf[k=20]"], seeds=5)
    reveal_type(run)
    reveal_type(run.folder)
    reveal_type(run.verdict)
    reveal_type(run.leaks)
    reveal_type(run.best)
    reveal_type(run.report())
    reveal_type(run.figure("frontier.pdf"))
    reveal_type(run.table("table.tex"))
    reveal_type(run.save("copy"))
    leak: RunLeak = run.leaks[0]
    reveal_type(leak.advantage)
    best: BestDefense | None = run.best
    if best is not None:
        reveal_type(best.defense)
    return run


def ask_for_a_recommendation() -> Recommendation:
    result = fedtrees.recommend(csv="patients.csv", target="ill", min_auc=0.8, minutes=5)
    reveal_type(result)
    reveal_type(result.protocol)
    reveal_type(result.defense)
    reveal_type(result.verdict)
    reveal_type(result.report)
    return result


def audit_a_file() -> ModelAudit:
    result = fedtrees.audit("model.json", scrub="published.json", rows=569)
    reveal_type(result)
    reveal_type(result.verdict)
    reveal_type(result.findings.summary)
    reveal_type(result.copy)
    reveal_type(load_model(Path("model.json")))
    return result


def train_and_attack_estimators() -> AttackScores:
    model = FederatedGBDTClassifier(n_estimators=2, defense="split-only").fit(X, y)
    reveal_type(model)
    scores = model.attack("timberstrike", threat="client-2")
    reveal_type(scores)
    reveal_type(scores.advantage)
    reveal_type(scores.scores)
    score: AttackScore = scores["exact_rows"]
    reveal_type(score.blind)
    reveal_type(model.view("server"))
    reveal_type(model.training_)
    reveal_type(model.apply(X))
    reveal_type(model.predict_proba(X))
    reveal_type(FederatedGBDTRegressor().fit(X, y).predict(X))
    reveal_type(FederatedForestClassifier().fit(X, y))
    reveal_type(FederatedVerticalGBDTClassifier().fit(X, y, columns=[[0], [1]]))
    reveal_type(leakage("timberstrike", threat="server"))
    return scores


def train_a_protocol(protocol: Protocol, defense: Defense) -> Training:
    table = Table(X, y)
    reveal_type(len(table))
    schema = Schema((Feature("age", low=0, high=120), Feature("bmi")), "ill", ("no", "yes"))
    reveal_type(schema.features)
    local_data = {"client-0": LocalData.of(table)}
    reveal_type(local_data)
    reveal_type(Dataset("patients", schema, table).digest)
    training = train(protocol, local_data, schema)
    reveal_type(training)
    reveal_type(training.transcript)
    reveal_type(training.claims)
    reveal_type(view_of(training, ["client-0"], local_data))
    reveal_type(protocol.info)
    reveal_type(defense.requirements)
    return training


class Silent(Attack):
    """An attack that makes one claim."""

    def inapplicable(self, view: View) -> str | None:
        reveal_type(view.n_rows)
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        claims: list[Claim] = [
            Records(Table(X, y)),
            EveryRecord(Table(X, y)),
            Labels(np.arange(2), np.arange(2)),
            LeafCounts(0, np.arange(1), np.ones((1, 2), dtype=np.int64)),
            Membership("loss", np.zeros(3)),
        ]
        reveal_type(claims)
        return Guess.of(claims, otherwise="nothing to claim")


def use_the_remaining_names() -> None:
    guarantees = [
        PureDP(1.0),
        ApproximateDP(1.0, 1e-5),
        Structural(),
        Computational(),
        NoGuarantee(),
    ]
    reveal_type(guarantees)
    reveal_type(register.names("attack"))
    reveal_type(Reveal.LABELS)
    reveal_type(Score("exact_rows", 0.5).value)
    reveal_type(Measure("key", "name").best)
    reveal_type(DefenseInfo().bench_grid)
    reveal_type(Requirements().gradient_clip)
    reveal_type(ProtocolInfo().adversaries)
    reveal_type(Trait.SUMMED)
    declarations = (handles, types_with, permit_types_with)
    extension = (Behaviour, ChannelDefense, Coordinator, Message, Metric, Party)
    errors: tuple[type[FedtreesError], ...] = (DataError, ProtocolError, StoreError, UsageError)
    reveal_type(errors)
    assert len(extension) + len(errors) + len(declarations) == 13
