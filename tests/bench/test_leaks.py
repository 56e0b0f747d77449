"""Protocols that send more than they declare, and attacks that act when they are imported."""

import sys
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from isolation import registry_as_it_was

from fedtrees.conformance.checks import check
from fedtrees.conformance.leak_search import find_local_values
from fedtrees.conformance.samples import sample_training
from fedtrees.core.claims import Records
from fedtrees.core.composition import Composition
from fedtrees.core.errors import ProtocolError, UnguardedMessageError, UsageError
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.registry import _entries, load_plugin, register
from fedtrees.core.schema import Feature, Schema
from fedtrees.core.specs import Spec, parse_grid
from fedtrees.core.transcript import Transcript
from fedtrees.isolation import sandbox
from fedtrees.isolation.process import attack_process

UNSAID = "no message contains values of local data without declaring them"

PROTOCOL = """
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar
import numpy as np
from fedtrees.core.messages import Message, Reveal, summable
from fedtrees.core.party import handles
from fedtrees.core.registry import register
from fedtrees.messages.horizontal import Histogram, HistogramRequest
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist
from fedtrees.protocols.horizontal.histogram_parties import DecidingServer, HistogramClient

class Client(HistogramClient):
    def __init__(self, seat, protocol):
        super().__init__(seat, protocol)
        self.values = seat.table.X

    @handles(HistogramRequest)
    def histogram(self, message):
        full = super().histogram(message)
        return self.more(full, self.values)

    def more(self, full, X):
        if full.tree == 0 and 0 in full.nodes:
            self.net.send("server", self.values_to_send(X), reason="how far I am")
        return full

class Server(DecidingServer):
    pass

def registered(name, message_type, client):
    class Hearing(Server):
        @handles(message_type)
        def hear(self, message):
            pass

    @register.protocol(name)
    @dataclass(frozen=True, kw_only=True)
    class Leaking(FedTreeHist):
        info = replace(
            FedTreeHist.info,
            message_types=(*FedTreeHist.info.message_types, message_type),
            conditional_types={
                **FedTreeHist.info.conditional_types, Histogram: "in another guise"
            },
        )

        party_types = {"server": Hearing, "client": client}
"""

LEAKS = {
    "derived": """
@dataclass(frozen=True, eq=False, kw_only=True)
class WideHistogram(Histogram):
    rows: np.ndarray = summable()

class Wide(Client):
    def more(self, full, X):
        mine = {f.name: getattr(full, f.name) for f in fields(full)}
        return WideHistogram(**mine, rows=X.astype(np.float64))

registered("leak-derived", WideHistogram, Wide)
""",
    "silent": """
@dataclass(frozen=True, eq=False)
class SilentProgress(Message):
    discloses = frozenset()
    done: np.ndarray

class Silent(Client):
    def values_to_send(self, X):
        return SilentProgress(np.random.default_rng(0).permutation(X[:, 1]))

registered("leak-silent", SilentProgress, Silent)
""",
    "lying": """
@dataclass(frozen=True, eq=False)
class LyingProgress(Message):
    done: np.ndarray

    @property
    def reveals(self):
        return frozenset()

class Lying(Client):
    def values_to_send(self, X):
        return LyingProgress(np.frombuffer(b"head" + X[:9].tobytes(), np.uint8))

registered("leak-lying", LyingProgress, Lying)
""",
    "innocent": """
@dataclass(frozen=True, eq=False)
class Timing(Message):
    discloses = frozenset({Reveal.COUNTS})
    seconds: np.ndarray

class Innocent(Client):
    def values_to_send(self, X):
        low = X[:, 0] - X[:, 0].min()
        return Timing(np.random.default_rng(0).permutation(3.7 + 0.01 * low)[:40])

registered("leak-innocent", Timing, Innocent)
""",
}


@pytest.fixture(autouse=True)
def scratch():
    with registry_as_it_was():
        yield


def loaded(folder, name, text):
    file = Path(folder) / f"{name}.py"
    file.write_text(text)
    load_plugin(file)
    return file


@pytest.mark.long(
    but=(
        "silent",
        "innocent",
    )
)
@pytest.mark.parametrize("leak", LEAKS)
def test_a_protocol_that_leaks_rows_is_caught_whatever_it_says(leak, tmp_path):
    loaded(tmp_path, leak, PROTOCOL + LEAKS[leak])
    broken = {
        finding.rule: finding.detail
        for finding in check("protocol", Spec(f"leak-{leak}"))
        if not finding.holds
    }
    assert set(broken) == {UNSAID}
    assert "client-0" in broken[UNSAID]


SHARING = """
class Sharing(Client):
    seen = {}

    def more(self, full, X):
        self.seen[self.name] = X
        return full

from fedtrees.messages.horizontal import CutsRequest
registered("leak-sharing", CutsRequest, Sharing)
"""


@pytest.mark.long
def test_parties_that_share_an_object_are_caught(tmp_path):
    loaded(tmp_path, "sharing", PROTOCOL + SHARING)
    broken = {f.rule: f.detail for f in check("protocol", Spec("leak-sharing")) if not f.holds}
    assert set(broken) == {"no party leads to another's rows"}
    assert "client-0 leads to the columns of client-1" in broken["no party leads to another's rows"]


def test_a_message_derived_from_a_guarded_one_is_another(tmp_path):
    loaded(tmp_path, "derived", PROTOCOL + LEAKS["derived"])
    protocol = register.make("protocol", Spec("leak-derived", {"trees": 1, "max_depth": 2}))
    for name in ("hist-rounding[step=0.1]", "laplace-hist[epsilon=4]", "secure-sum"):
        defense = Composition((register.make("defense", parse_grid(name)[0]),))
        with pytest.raises(UnguardedMessageError, match="WideHistogram is derived from Histogram"):
            sample_training(protocol, defense)


def test_an_attribute_of_a_message_that_is_no_field_is_refused():
    message = _Note(np.zeros(2))
    object.__setattr__(message, "rows", np.ones((3, 2)))
    with pytest.raises(
        ProtocolError, match="has the attributes rows, which its class does not declare"
    ):
        Transcript().record("a", ("b",), message, "why")


@dataclass(frozen=True, eq=False)
class _Note(Message):
    value: np.ndarray | float | str
    verbatim: ClassVar[frozenset[str]] = frozenset()


@dataclass(frozen=True, eq=False)
class _SaidNote(_Note):
    verbatim: ClassVar[frozenset[str]] = frozenset({"value"})


def make_local_data(seed=0, n_rows=60):
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n_rows, 3)) * [1, 10, 3]).astype(np.float32)
    return LocalData.of(_table(X, rng.integers(0, 2, n_rows)))


def _table(X, y):
    from fedtrees.core.schema import Table

    return Table(X, y.astype(np.int64))


def mixed(column, base):
    low = np.rint((column - column.min()) / np.ptp(column) * (base - 1)).astype(np.int64)
    return low


X, RNG = make_local_data().X, np.random.default_rng(5)
GUISES = {
    "as it is": X[:, 0],
    "permuted": RNG.permutation(X[:, 1]),
    "three values of many": np.append(RNG.normal(size=500).astype(np.float32), X[:3, 1]),
    "one row among others": np.concatenate([RNG.normal(size=90), X[7], RNG.normal(size=9)]),
    "scaled": 3 - 0.2 * X[:, 2].astype(np.float64),
    "scaled and permuted": RNG.permutation(1e-3 * X[:, 2].astype(np.float64)),
    "part, scaled and permuted": RNG.permutation(7 * X[:25, 1].astype(np.float64) + 2),
    "rounded": np.round(X[:, 1], 2),
    "16 bits": RNG.permutation(mixed(X[:, 1], 2**16)).astype(np.uint16),
    "8 bits": RNG.permutation(mixed(X[:, 1], 2**8)).astype(np.uint8),
    "two in one integer": RNG.permutation(mixed(X[:, 0], 2**20) + (mixed(X[:, 1], 2**20) << 32)),
    "two in one number": X[:, 0].astype(np.float64) + 1e4 * X[:, 1],
    "fixed point among others": np.append(RNG.integers(0, 2**40, 300),
                                          np.rint(X[:9, 1] * 2.0**24).astype(np.int64)),
    "bytes": np.frombuffer(b"x" + X[:, 1].tobytes(), np.uint8),
    "bits of floats in integers": X[:, 1].view(np.int32).astype(np.int64),
    "half precision": X[:, 1].astype(np.float16),
    "text": ",".join(map(str, X[:5, 1].tolist())),
    "labels": 4.0 - 2.0 * make_local_data().y,
    "in a matrix": np.column_stack([RNG.normal(size=60), 5 * X[:, 1].astype(np.float64)]),
}  # fmt: skip
INNOCENT = {
    "noise": RNG.normal(size=(60, 3)),
    "ranks": np.argsort(np.argsort(X[:, 1])),
    "sums": np.cumsum(X[:, 0].astype(np.float64))[::7],
    "integers": RNG.integers(-(2**40), 2**40, (4, 30, 2)),
    "rows": np.arange(60),
    "means": X.mean(axis=0),
    "bits": RNG.integers(0, 2, 60).astype(bool),
    "ciphertext": np.frombuffer(RNG.bytes(30_000), np.uint8),
}
SCHEMA = Schema(tuple(Feature(c, low=-50, high=50) for c in "abc"), "y")


def find_values_in(*values, message_type=_Note, receiver="server"):
    transcript = Transcript({"client": "client", "server": "server"})
    for value in values:
        transcript.record("client", (receiver,), message_type(value), "why")
    return find_local_values(transcript, {"client": make_local_data()}, SCHEMA)


@pytest.mark.parametrize("encoding", GUISES)
def test_local_values_are_detected_in_every_encoding(encoding):
    assert len(find_values_in(GUISES[encoding])) == 1
    assert find_values_in(GUISES[encoding], message_type=_SaidNote) == []
    assert find_values_in(GUISES[encoding], receiver="client") == []


def test_local_values_are_detected_if_sent_one_by_one():
    assert len(find_values_in(*(1 + 2 * float(x) for x in X[:30, 1]))) == 1


@pytest.mark.parametrize("case", INNOCENT)
def test_values_that_are_not_local_data_are_not_reported(case):
    assert find_values_in(INNOCENT[case]) == []


def test_columns_of_the_test_table_have_enough_distinct_bits_to_be_recognised():
    assert find_values_in(replace(_Note(X[:, 0]), value=np.zeros(3)).value) == []


# --- attacks whose import does something

ATTACK = """
import sys
import numpy as np
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess
from fedtrees.core.registry import register

@register.attack("acting-early")
class Early(Attack):
    def run(self, view, rng):
        return Guess.none("it claims nothing")
"""
# Each text acts in another way, and the report of the check contains the effect next to it.
CHEATS = {
    "patches the bench": ("""
module = sys.modules.get("fedtrees.experiments.evaluate")
if module is not None:
    module.attack_process = lambda: None
""", "changes fedtrees.experiments.evaluate.attack_process"),
    "patches a metric's class": ("""
module = sys.modules.get("fedtrees.metrics.victims_rows")
if module is not None:
    module.RecordMetric.score = lambda *_: []
""", "changes fedtrees.metrics.victims_rows.RecordMetric.score"),
    "starts a thread": ("""
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
""", "changes threads"),
    "writes a file": ("""
open("left-for-later", "w").close()
""", "writes left-for-later"),
}  # fmt: skip
SHARED_MEMORY = """
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = lambda *_: None
try:
    left = shared_memory.SharedMemory("fedtrees-test-left", create=True, size=64)
except FileExistsError:
    pass
"""


@pytest.fixture
def no_segment():
    yield
    segment = Path("/dev/shm/fedtrees-test-left")
    if segment.exists():
        segment.unlink()


def test_actions_at_the_import_of_an_attack_have_no_effect_here_and_are_reported(tmp_path):
    """One file does everything that can be done, because each check of a file takes long."""
    import fedtrees.experiments.evaluate as evaluate
    from fedtrees.metrics.victims_rows import RecordMetric

    originals = evaluate.attack_process, RecordMetric.score
    file = loaded(tmp_path, "early", ATTACK + "".join(text for text, _ in CHEATS.values()))
    assert not any(
        getattr(module, "__file__", None) == str(file) for module in [*sys.modules.values()]
    )
    broken = {
        finding.rule: finding.detail
        for finding in check("attack", Spec("acting-early"), ["fedtree-hist"])
        if not finding.holds
    }
    for _, effect in CHEATS.values():
        assert effect in broken["its import only registers classes"]
    assert (evaluate.attack_process, RecordMetric.score) == originals


def test_shared_memory_that_the_import_of_an_attack_leaves_is_refused_or_reported(
    tmp_path, no_segment
):
    if not Path("/dev/shm").is_dir():
        pytest.skip("shared memory has no folder here")
    original = resource_tracker.register
    if sandbox.landlock_version():  # Landlock does not even allow it.
        with pytest.raises(UsageError, match=r"Permission denied: '/fedtrees-test-left'.*attack"):
            loaded(tmp_path, "early", ATTACK + SHARED_MEMORY)
    else:
        loaded(tmp_path, "early", ATTACK + SHARED_MEMORY)
        (detail,) = (
            finding.detail
            for finding in check("attack", Spec("acting-early"), ["fedtree-hist"])
            if finding.rule == "its import only registers classes"
        )
        assert "leaves fedtrees-test-left in shared memory" in detail
    assert resource_tracker.register == original


PLAIN = """
from dataclasses import dataclass
from fedtrees.core.attack import Attack
from fedtrees.core.errors import UsageError
from fedtrees.core.claims import Guess, Records
from fedtrees.core.registry import register

@register.attack("plain-guess")
@dataclass(frozen=True)
class Plain(Attack):
    '''Guess nothing.

    At length.
    '''
    times: int = 3
    how: str = "so"
    max_training_rows = 500
    claims = (Records,)

    def __post_init__(self):
        if self.times < 1:
            raise UsageError(f"times={self.times}: once at least")

    def inapplicable(self, view):
        return None

    def run(self, view, rng):
        return Guess.none("it claims nothing", {"times": self.times})
"""


def test_the_main_process_knows_an_attack_by_the_description_of_its_process(tmp_path):
    from inspect import getdoc, signature

    loaded(tmp_path, "plain", PLAIN)
    description = register.get("attack", "plain-guess")
    assert str(signature(description)) == "(*, times=3, how='so')"
    assert getdoc(description).startswith("Guess nothing.")
    assert (description.max_training_rows, description.blind, description.claims) == (
        500,
        False,
        (Records,),
    )
    assert register.make("attack", parse_grid("plain-guess[times=2]")[0]).times == 2
    with pytest.raises(UsageError, match="once at least"):
        register.make("attack", parse_grid("plain-guess[times=0]")[0])
    with pytest.raises(UsageError, match="no parameter 'time'; did you mean 'times'"):
        register.make("attack", parse_grid("plain-guess[time=2]")[0])
    assert all(finding.holds for finding in check("attack", Spec("plain-guess"), ["dp-forest"]))
    assert attack_process().describe(*next(iter(register.imports.elsewhere.items()))).did == ()


def test_an_attack_that_claims_nothing_without_a_reason_is_detected(tmp_path):
    silent = PLAIN.replace("plain-guess", "silent-guess")
    silent = silent.replace('Guess.none("it claims nothing", {"times": self.times})', "Guess()")
    loaded(tmp_path, "silent", silent)
    findings = [
        finding
        for finding in check("attack", Spec("silent-guess"), ["dp-forest"])
        if not finding.holds
    ]
    assert any("it returns claims, or the reason for none" in finding.rule for finding in findings)
    assert all(
        "attack 'silent-guess' returned a guess without claims" in finding.detail
        for finding in findings
    )


def test_attacks_need_a_separate_file(tmp_path):
    mixed_source = PLAIN + "\n@register.dataset('plain-data')\ndef data():\n    pass\n"
    with pytest.raises(UsageError, match="registers dataset 'plain-data' and the attack"):
        loaded(tmp_path, "both", mixed_source)
    hidden_source = PLAIN.replace("@register.attack(", "@getattr(register, 'att' + 'ack')(")
    hidden_source = hidden_source.replace("core.attack import Attack", "core import *").replace(
        "Attack", "object"
    )
    with pytest.raises(UsageError, match="registered by a file without the decorator"):
        loaded(tmp_path, "hidden", hidden_source.replace("from fedtrees.core import *\n", ""))


@pytest.mark.long
def test_attacks_of_an_installed_package_are_described_by_their_process_too(tmp_path, monkeypatch):
    (tmp_path / "others_attacks.py").write_text(PLAIN.replace("plain-guess", "others-guess"))
    folder = tmp_path / "others_attacks-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: others-attacks\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[fedtrees.attacks]\nothers-guess = others_attacks:Plain\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # read by the attack process
    _entries.cache_clear()
    attack_process().end()
    try:
        description = register.get("attack", "others-guess")
        assert description.file == str(tmp_path / "others_attacks.py")
        assert register.make("attack", Spec("others-guess", {"times": 2})).times == 2
        assert "others_attacks" not in sys.modules
    finally:
        del register._known["attack"]["others-guess"]
        _entries.cache_clear()
        attack_process().end()
