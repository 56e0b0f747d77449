"""The shared trees in a view, divided into the contributions of single clients.

In cyclic boosting, a client without rows passes its turn on without an announcement. A party of the
adversary sees the model at each of its turns, and knows the number of turns in between
(`turns_of`).

Clients of a bagging federation see a list of trees without names. `link` finds which trees of
different rounds come from the same client (a *chain*). The sums at a client's roots change little
from round to round. Di Gennaro et al. (2025), Sec. 5.3, match them with the Hungarian method (their
code: only the root's hessian), and one mistake makes all later rounds wrong. We also use
thresholds: a client keeps its cut points, so that its thresholds reappear in other rounds, unlike
those of other clients. Every round is matched to the chains in all other rounds, until no
assignment changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.clients.masked_hessians import hessians_from_gains, is_masked
from fedtrees.attacks.observations.applicability import released_trees
from fedtrees.attacks.observations.boosting import leaves_below
from fedtrees.attacks.observations.replay import law_of_shared
from fedtrees.core.errors import check_known
from fedtrees.core.view import View
from fedtrees.messages.horizontal import ClientModels, ClientTrees, GlobalTrees, SharedTrees
from fedtrees.messages.models import unpack
from fedtrees.trees.boosted.forest import Tree

Clues = Literal["hessian", "sums", "all"]

# Weight of the splits of all clients in every chain, in splits. 2 to 20 perform about equally.
POOLED = 5.0
SWEEPS = 20
# The changes of the sums are not independent normal draws. With full weight they mislead if splits
# already determine the chain. Blocks in the right chain, 30 clients, Pima: 55% with 1, 72% with
# 0.2, 67% with 0.
SUMS_WEIGHT = 0.2

Split = tuple[int, int]  # feature, bits of the float32 threshold


def link(rounds: Sequence[Sequence[Block]], clues: Clues = "all") -> list[list[int]]:
    """Return for every block of every round the number of its chain.

    Parameters
    ----------
    rounds : sequence of sequence of Block
        The blocks of the first round start the chains, in their order. Later rounds have no more
        blocks than the first.
    clues : {"hessian", "sums", "all"}
        Match by root hessians, as in the authors' code, by root hessians and gradients, or by both
        and thresholds. Trees without sums are matched by thresholds only.

    Raises
    ------
    UsageError
        If ``clues`` has another value.
    """
    check_known("clues", clues, get_args(Clues))
    if not rounds:
        return []
    sums = _all_roots(rounds, clues)
    chains = _in_turn(rounds, sums)
    if clues == "all":
        chains = _again(chains, [[_splits(b) for b in blocks] for blocks in rounds], sums)
    name = {c: i for i, c in enumerate(chains[0])}
    return [[name[c] for c in numbers] for numbers in chains]


def _all_roots(rounds: Sequence[Sequence[Block]], clues: Clues) -> list[Floats] | None:
    """Return the sums at all roots, (blocks, sums) per round, None if some are missing."""
    complete = all(
        t.h is not None and (t.g is not None or clues == "hessian")
        for blocks in rounds
        for b in blocks
        for t in b.trees
    )
    parts = ("h",) if clues == "hessian" else ("h", "g")

    def roots(block: Block) -> list[float]:
        return [float(getattr(t, part)[t.leaves].sum()) for t in block.trees for part in parts]

    return [np.array([roots(b) for b in blocks]) for blocks in rounds] if complete else None


def _in_turn(rounds: Sequence[Sequence[Block]], sums: list[Floats] | None) -> list[list[int]]:
    """Match every round to the round before, by sums."""
    chains = [list(range(len(rounds[0])))]
    last = None if sums is None else sums[0].copy()
    for r, blocks in enumerate(rounds[1:], start=1):
        if sums is None or last is None:
            chains.append(list(range(len(blocks))))
            continue
        chain, block = linear_sum_assignment(np.abs(last[:, None] - sums[r]).sum(axis=2))
        numbers = np.zeros(len(blocks), dtype=np.int64)
        numbers[block] = chain
        last[chain] = sums[r][block]
        chains.append(numbers.tolist())
    return chains


def _again(
    chains: list[list[int]], splits: list[list[Counter[Split]]], sums: list[Floats] | None
) -> list[list[int]]:
    """Match every round to all other rounds until no assignment changes.

    The model: a block draws its splits from those of its chain in other rounds, mixed with those of
    all clients. Its sums are those of the chain in neighbouring rounds plus a normal error.
    """
    draws = _Draws.of(splits, len(chains[0]))
    for r in range(len(chains)):  # the first pass uses only preceding rounds
        step = draws.weight(r)
        if sums is not None and r:
            near = np.zeros_like(sums[r])
            near[chains[r - 1]] = sums[r - 1]
            apart = (sums[r] - near[:, None]) ** 2
            # the median step of the nearest chains is a robust estimate of the spread
            scale = 2 * np.median(apart.min(axis=0), axis=0) + 1e-9
            step -= SUMS_WEIGHT * (apart / scale).sum(axis=2)
        if r:
            chains[r] = _best(step)
        draws.put(r, chains[r], 1)
    for _ in range(SWEEPS):
        before = [list(c) for c in chains]
        spread = None if sums is None else _spread(chains, sums)
        for r in range(len(chains)):
            draws.put(r, chains[r], -1)
            weight = draws.weight(r)
            if sums is not None and spread is not None:
                weight -= SUMS_WEIGHT * _distance(chains, sums, r, spread)
            chains[r] = _best(weight)
            draws.put(r, chains[r], 1)
        if chains == before:
            break
    return chains


def _best(weight: Floats) -> list[int]:
    """Return the chain of every block: the matching with the largest total weight, (m, blocks)."""
    chain, block = linear_sum_assignment(-weight)
    return [int(c) for _, c in sorted(zip(block, chain, strict=True))]


@dataclass(eq=False)
class _Draws:
    """Counts of how often every chain has drawn every split."""

    blocks: list[Floats]  # float64 (blocks, n_splits) per round: splits of the blocks
    chain_splits: Floats  # float64 (m, n_splits): splits of every chain in the added rounds
    pool: Floats  # float64 (n_splits,): shares of the splits in all blocks

    @staticmethod
    def of(splits: list[list[Counter[Split]]], m: int) -> _Draws:
        """Number the splits and count them per block."""
        number: dict[Split, int] = {}
        for blocks in splits:
            for counted in blocks:
                for split in counted:
                    number.setdefault(split, len(number))
        out = [np.zeros((len(blocks), max(len(number), 1))) for blocks in splits]
        for r, blocks in enumerate(splits):
            for b, counted in enumerate(blocks):
                for split, n in counted.items():
                    out[r][b, number[split]] = n
        total = sum((o.sum(axis=0) for o in out), np.zeros(out[0].shape[1]))
        return _Draws(out, np.zeros((m, out[0].shape[1])), total / max(total.sum(), 1.0))

    def put(self, r: int, numbers: list[int], sign: int) -> None:
        """Add the blocks of a round to their chains, or remove them if the sign is -1."""
        self.chain_splits[numbers] += sign * self.blocks[r]

    def weight(self, r: int) -> Floats:
        """Return the log likelihood of a round's splits for every chain, shape (m, blocks)."""
        size = self.chain_splits.sum(axis=1, keepdims=True) + POOLED
        share = (self.chain_splits + POOLED * self.pool + 1e-12) / size
        return np.asarray(np.log(share) @ self.blocks[r].T)


def _neighbours(chains: list[list[int]], sums: list[Floats], r: int) -> Floats:
    """Return the mean sums of every chain in the rounds before and after, shape (m, s)."""
    m = len(chains[0])
    out, seen = np.zeros((m, sums[r].shape[1])), np.zeros((m, 1))
    for near in (r - 1, r + 1):
        if 0 <= near < len(sums):
            out[chains[near]] += sums[near]
            seen[chains[near]] += 1
    return np.asarray(out / np.maximum(seen, 1))


def _spread(chains: list[list[int]], sums: list[Floats]) -> Floats:
    """Return the mean square step of the sums within chains, shape (s,)."""
    steps = [sums[r] - _neighbours(chains, sums, r)[chains[r]] for r in range(len(sums))]
    return np.asarray(np.mean(np.concatenate(steps) ** 2, axis=0) + 1e-9)


def _distance(chains: list[list[int]], sums: list[Floats], r: int, scale: Floats) -> Floats:
    """Return the negative log likelihood of a round's sums for every chain, (m, blocks)."""
    apart = sums[r] - _neighbours(chains, sums, r)[:, None]
    return np.asarray((apart**2 / (2 * scale)).sum(axis=2))


def _splits(block: Block) -> Counter[Split]:
    out: Counter[Split] = Counter()
    for tree in block.trees:
        inner = tree.feature >= 0
        bits = np.ascontiguousarray(tree.threshold[inner]).view(np.int32)
        out.update(zip(tree.feature[inner].tolist(), bits.tolist(), strict=True))
    return out


@dataclass(frozen=True)
class Span:
    """The turns between two observations of the model.

    Attributes
    ----------
    who : tuple of str
        Clients in the order of their turns, none twice.
    begin, end : int
        They grew the blocks ``begin <= block < end``.
    """

    who: tuple[str, ...]
    # half-open range of blocks
    begin: int
    end: int


@dataclass
class ClientAttendance:
    """Clients that grow trees, clients that do not, and clients whose state is guessed."""

    present: set[str]
    absent: set[str]
    # Their number is right, but not necessarily their names.
    guessed: set[str] = field(default_factory=set)

    def determine(self, spans: Sequence[Span]) -> None:
        """Determine who grows trees from the number of blocks of every span, and guess the rest."""
        all_turns = [w for span in spans for w in span.who]
        is_certain = True
        while any(map(self.is_undetermined, all_turns)):
            before = len(self.present) + len(self.absent)
            for span in spans:
                self._settle(span, is_certain)
            if len(self.present) + len(self.absent) == before:
                is_certain = False
                self._take(True, next(filter(self.is_undetermined, all_turns)), is_certain)

    def is_undetermined(self, name: str) -> bool:
        """Return whether the state of a client is undetermined."""
        return name not in self.present | self.absent

    def _settle(self, span: Span, is_certain: bool) -> None:
        left = [w for w in span.who if self.is_undetermined(w)]
        missing_blocks = span.end - span.begin - sum(w in self.present for w in span.who)
        if missing_blocks in (0, len(left)):
            for name in left:
                self._take(missing_blocks > 0, name, is_certain)

    def _take(self, present: bool, name: str, is_certain: bool) -> None:
        (self.present if present else self.absent).add(name)
        if not is_certain:
            self.guessed.add(name)


def turns_of(view: View, blocks: int, trees_per_block: int) -> list[tuple[str, bool]]:
    """Return the grower of each block of a cyclic model, and whether it is certain.

    Blocks with the same name come from one client, even if its name is a guess.

    Parameters
    ----------
    view : View
        The adversary's view.
    blocks : int
        Number of blocks.
    trees_per_block : int
        Number of trees per block.
    """
    names = [name for name, role in view.roles.items() if role == "client"]
    observed_models = {
        (m.round, (m.first + len(m.sizes)) // trees_per_block)
        for _, m in view.messages(GlobalTrees)
    }
    observed_models |= {(0, 0), (int(view.parameters["trees"]), blocks)}
    spans = [
        Span(tuple(names[t % len(names)] for t in range(a[0], b[0])), a[1], b[1])
        for a, b in pairwise(sorted(observed_models))
    ]
    replies = [(d.sender, len(m.sizes)) for d, m in view.messages(ClientTrees)]
    attendance = ClientAttendance(
        {w for w, size in replies if size}, {w for w, size in replies if not size}
    )
    attendance.determine(spans)
    out = [("", False)] * blocks
    for span in spans:
        growing = [w for w in span.who if w in attendance.present]
        for block, name in zip(range(span.begin, span.end), growing, strict=False):
            out[block] = (name, name not in attendance.guessed)
    return out


Floats = NDArray[np.float64]
Scores = NDArray[np.float32]
TreeWithErrors = tuple[
    Tree, Floats | None
]  # a tree, and the errors of sums that were reconstructed


@dataclass(frozen=True, eq=False)
class Block:
    """Trees that one client sent at one time.

    Attributes
    ----------
    round : int
        Round of the federation.
    first_tree : int
        Number of the first tree in the released model.
    trees : tuple of Tree
        They have ``g`` and ``h`` if the message contains them or if they can be computed.
    sender : str or None
        The client. None if the view does not reveal it.
    score : float32 array, shape (K,), or None
        Base score of the client's first trees in XGBoost's units. None if it is unknown.
    h_error : tuple of (float64 array, shape (J,), or None)
        Error of each tree's hessian sums per leaf. None if the message contains them in float32.
    chain : str or None
        Label that all blocks of one client share, if the view shows that they belong together.
    """

    round: int
    first_tree: int
    trees: tuple[Tree, ...]
    sender: str | None = None
    score: Scores | None = None
    h_error: tuple[Floats | None, ...] = ()
    chain: str | None = None


@dataclass(frozen=True, eq=False)
class Blocks:
    """All blocks of a view in the order of the model.

    Attributes
    ----------
    blocks : tuple of Block
        The blocks.
    score : float32 array, shape (K,), or None
        Base score of the global model. None if every block is a separate model.
    per_round : bool
        True in bagging, where all clients of a round extend the same model. False in cyclic
        boosting, where each client extends the model of the client before.
    kind : type
        Type of the messages that contained the trees.
    usual : float32 array, shape (K,), or None
        Approximate base score if none is known.
    """

    blocks: tuple[Block, ...]
    score: Scores | None
    per_round: bool
    kind: type[SharedTrees] = GlobalTrees
    usual: Scores | None = None


def blocks_of(view: View) -> Blocks | None:
    """Return the shared trees of a view, None if there are none."""
    messages = [m for kind in (ClientModels, GlobalTrees) for _, m in view.messages(kind)]
    shared = messages or released_trees(view)
    if shared and isinstance(shared[0], ClientModels):
        blocks, usual = tuple(_models(view, shared[0])), None
        if not messages:
            usual = shared[0].base_score[0]
            blocks = tuple(replace(b, score=None) for b in blocks)
        return Blocks(blocks, None, False, ClientModels, usual)
    sent: dict[int, Block] = {}
    for message in shared:
        for block in _parts(view, message):  # type: ignore[arg-type]
            sent.setdefault(block.first_tree, block)
    if not sent:
        return None
    score = shared[0].base_score
    per_round = "arrival" in view.parameters
    ordered = [sent[first_tree] for first_tree in sorted(sent)]
    return Blocks(tuple(_name_senders(view, ordered, per_round)), score, per_round)


def trees_of(view: View, message: SharedTrees) -> list[TreeWithErrors]:
    """Return the trees of a message with their sums. Masked sums are restored if possible."""
    if law_of_shared(view, type(message)) is None or message.base_weights is None:
        return _trees_as_sent(view, message)
    eta = np.float32(view.parameters["learning_rate"])
    exact = replace(message, value=_leaf_values(message, message.base_weights, eta))
    restored = zip(_trees_as_sent(view, exact), unpack(message), strict=True)
    return [(replace(tree, value=sent.value), error) for (tree, error), sent in restored]


def _leaf_values(message: SharedTrees, weights: Scores, eta: np.float32) -> Scores:
    """Return leaf values from weights, which lack eta if the root is the only leaf."""
    root_only = np.repeat(message.sizes == 1, message.sizes)
    return np.where(message.feature < 0, np.where(root_only, eta * weights, weights), np.float32(0))


def _trees_as_sent(view: View, message: SharedTrees) -> list[TreeWithErrors]:
    eta = float(np.float32(view.parameters["learning_rate"]))  # factor of the leaf values
    reg_lambda, reg_alpha = view.parameters["reg_lambda"], view.parameters["reg_alpha"]
    sums = message.sum_hessian
    if sums is None or not is_masked(sums, message.sizes):
        return [(tree, None) for tree in unpack(message, eta, reg_lambda, reg_alpha)]
    weights = message.base_weights
    trees = [replace(t, h=None, g=None) for t in unpack(message)]
    if weights is None or message.loss_changes is None:
        return [(tree, None) for tree in trees]
    ends = np.cumsum(message.sizes)
    return [
        _unmasked(t, weights[end - len(t) : end], eta, reg_lambda, reg_alpha)
        for t, end in zip(trees, ends.tolist(), strict=True)
    ]


def _unmasked(
    tree: Tree, weight: NDArray[np.float32], eta: float, reg_lambda: float, reg_alpha: float
) -> TreeWithErrors:
    # expressed in weights, gains do not depend on an L1 penalty
    assert tree.gain is not None
    restored = hessians_from_gains(tree, weight, tree.gain, eta, reg_lambda)
    if restored is None:
        return tree, None
    h = leaves_below(tree) @ restored[0]
    w = np.where(tree.feature < 0, tree.value / np.float64(eta), weight)
    return replace(tree, h=h, g=-w * (h + reg_lambda) - reg_alpha * np.sign(w)), restored[1]


def _block(
    trees_with_errors: Sequence[TreeWithErrors],
    round: int,
    first_tree: int,
    sender: str | None = None,
    score: Scores | None = None,
) -> Block:
    trees, errors = zip(*trees_with_errors, strict=True) if trees_with_errors else ((), ())
    return Block(round, first_tree, tuple(trees), sender, score, tuple(errors))


def _clients(view: View) -> list[str]:
    return [name for name, role in view.roles.items() if role == "client"]


def _models(view: View, message: ClientModels) -> Iterator[Block]:
    trees, names = trees_of(view, message), _clients(view)
    first_tree = 0
    for owner, count, score in zip(message.owner, message.trees, message.base_score, strict=True):
        client_trees = trees[first_tree : first_tree + int(count)]
        yield _block(client_trees, 0, first_tree, names[int(owner)], score)
        first_tree += int(count)


def _parts(view: View, message: GlobalTrees) -> Iterator[Block]:
    """Divide a message into the trees of single clients."""
    trees = trees_of(view, message)
    each = int(view.parameters.get("local_trees", 1)) * len(message.base_score)
    for i in range(0, len(trees), each):
        yield _block(trees[i : i + each], message.round, message.first + i)


def _name_senders(view: View, blocks: Sequence[Block], per_round: bool) -> list[Block]:
    """Add the sender of every block that its position or a reply of the adversary reveals."""
    if per_round:
        out = [
            replace(b, sender=name)
            for b, name in zip(blocks, _arrival_order(view, blocks), strict=True)
        ]
    else:
        turns = turns_of(view, len(blocks), len(blocks[0].trees))
        out = [
            replace(b, round=i, sender=name if is_known else None, chain=name)
            for i, (b, (name, is_known)) in enumerate(zip(blocks, turns, strict=True))
        ]
    taken: set[int] = set()
    for item, m in view.messages(ClientTrees):
        reply = _block(trees_of(view, m), m.round, -1, item.sender, m.base_score)
        places = [
            i
            for i, b in enumerate(out)
            if i not in taken and b.sender in (None, item.sender)
            and (b.round == m.round or not per_round)
        ]  # fmt: skip
        # the adversary knows the sender of its replies, and their exact values
        at = _place(reply, places, out)
        if at is not None:
            taken.add(at)
            out[at] = replace(
                reply, first_tree=out[at].first_tree, round=out[at].round, chain=out[at].chain
            )
    return out


def _arrival_order(view: View, blocks: Sequence[Block]) -> list[str | None]:
    """Return the sender of every bagging block, None if clients do not arrive in order."""
    names, rounds = _clients(view), [b.round for b in blocks]
    full = all(count == len(names) for count in Counter(rounds).values())
    if view.parameters["arrival"] != "client" or not full:
        return [None] * len(blocks)
    return [names[i % len(names)] for i in range(len(blocks))]


def _place(reply: Block, places: Sequence[int], blocks: Sequence[Block]) -> int | None:
    """Return the block that a reply became: equal splits, closest values and sums."""

    def equal_splits(a: Tree, b: Tree) -> bool:
        return np.array_equal(a.feature, b.feature) and np.array_equal(a.threshold, b.threshold)

    def apart(place: int) -> float:
        return sum(
            float(np.abs(x - y).max())
            for a, b in zip(blocks[place].trees, reply.trees, strict=True)
            for x, y in ((a.value, b.value), (a.h, b.h))
            if x is not None and y is not None
        )

    matches = [
        i
        for i in places
        if len(blocks[i].trees) == len(reply.trees)
        and all(equal_splits(a, b) for a, b in zip(blocks[i].trees, reply.trees, strict=True))
    ]
    return min(matches, key=apart, default=None)
