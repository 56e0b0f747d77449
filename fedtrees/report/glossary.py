"""What the words mean: one source for the report, its hover texts and the docs' concepts page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import getdoc

from fedtrees.core.errors import FedtreesError
from fedtrees.core.registry import register
from fedtrees.report.markup import Html, esc, join, tag


@dataclass(frozen=True)
class Term:
    """A word, what it means, and how else it is written."""

    word: str
    meaning: str
    also: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """The name of its place in the glossary."""
        return "word-" + re.sub(r"[^a-z0-9]+", "-", self.word.lower()).strip("-")


#: Words of the design, then words of scores and of the verdict.
TERMS = (
    Term("party, role", "who takes part: `server` and `client`; `active` (has labels) and "
         "`passive`; whatever roles a protocol names. `public` is whoever holds the released model",
         ("party without labels", "parties without labels", "party with the labels",
          "whoever has the released model")),
    Term("holding", "what one party holds: ids of rows, some columns, perhaps labels. It stays "
         "behind a glass wall that raises when anybody else reads it"),
    Term("layout", "how a table is spread over holdings: whole `rows`, `columns`, or the `whole` "
         "table with one party"),
    Term("protocol", "parties, one of them the coordinator, and their choreography; yields a model "
         "and a transcript"),
    Term("message", "a frozen dataclass, tagged with what it reveals; a field may be `Sealed`"),
    Term("threat", "whose view is attacked (several may collude), and how many rows they may ask "
         "an inference endpoint for", ("adversary",)),
    Term("view", "what those parties saw: own holdings, messages received and sent, public "
         "parameters, the oracle"),
    Term("defense, claim", "hooks on the protocol, and the guarantee they state: pure DP, "
         "computational, structural, none", ("claimed",)),
    Term("channel", "the law of what is sent given what is true, on numbers that are changed "
         "together; stated by a defense or protocol, applied by it, read by attacks"),
    Term("attack, guess", "a function from a view to a guess: a tuple of claims (`Records`, "
         "`LeafCounts`, `Labels`, your own)"),
    Term("metric", "what a type of claim is compared with, how, and what adversaries claim who "
         "never looked"),
    Term("truth, blind", "what the harness alone holds; the claims of the same adversary with an "
         "empty transcript: one who never looked. The best of several such guesses counts",
         ("one who never looked", "blind adversary", "blind")),
    Term("advantage", "`(score - blind) / (best - blind)`: 0 learned nothing, 1 everything, "
         "negative is worse than not attacking. Undefined where the blind adversary already scores "
         "the best value"),
    Term("population", "what whoever knows other rows, which nobody in the federation holds, "
         "guesses without looking; beside attacks of those who hold no rows. What does not exceed "
         "it any useful model tells", ("what the population tells", "who knows other rows")),
    Term("worst advantage", "per seed, the largest advantage over the attacks of a threat that "
         "ran; then the mean over seeds. The largest of several noisy scores lies above each of "
         "their means: a small positive figure may be chance",
         ("worst-case advantage", "Worst-case advantage")),
    Term("cell", "one hashed unit of work; a suite is a grid of cells, a run is its results"),
    Term("exposure", "which attacks apply to a view, whether they run or not: all registered ones "
         "but controls and replicas of published code", ("attacks that apply",
         "applicable attacks", "attack that applies", "applicable attack")),
    Term("frontier", "utility against the worst advantage over the applicable attacks"),
    Term("rebuilt exactly", "a row whose guessed row is right in every column: equal categories, "
         "numbers within 0.319 standard deviations", ("in every column", "exactly", "exact rows")),
    Term("values guessed right", "reconstruction accuracy: guessed and true rows are matched, and "
         "the cells that agree are counted. Rows drawn without looking score high, too: read it "
         "beside the blind line", ("reconstruction accuracy", "values right")),
    Term("V-measure", "how well guessed clusters of rows agree with their classes, whatever the "
         "clusters are called: 0 nothing, 1 all"),
    Term("leaf", "where a tree sends rows that answer its questions alike; a count of its rows "
         "tells about few people where the leaf is small", ("leaves",)),
    Term("utility", "how well the model predicts held-out rows that were never used for anything "
         "else: AUC and others"),
    Term("AUC", "chance that the model ranks a case above a non-case: 0.5 is a coin, 1 is perfect "
         "(of several classes, the mean of each against the rest)"),
    Term("training alone", "the mean utility of parties that train with nobody else",
         ("local-only", "active-only", "training alone")),
    Term("change", "the difference to the undefended run of the same seed, then mean and 95% t "
         "interval",
         ("changes", "paired by seed")),
    Term("interval", "the 95% percentile bootstrap interval over seeds. With few seeds it cannot "
         "be wider than the range of the seeds: read it as a lower limit on doubt",
         ("bootstrap interval", "bootstrap intervals")),
    Term("no clear difference", "the difference, paired by seed, lies within its 95% t interval "
         "over the seeds; below two seeds nothing is clear", ("not clearly changed",)),
    Term("within a margin of blind", "a claim of equivalence: every attack that applies has run, "
         "there are at least 3 seeds, and by every headline score that was measured the upper end "
         "of the 95% t interval over seeds of the worst advantage lies below the margin. More "
         "noise widens the interval and shows less. Scores are over all columns: a single one may "
         "leak more", ("down to blind", "by every score")),
    Term("no guarantee", "a bound was claimed, and the accountant found none on what was really "
         "sent: what stands is what these attacks found"),
    Term("spent, measured", "spent: what an accountant composes from the noise actually drawn; "
         "measured: a lower bound from an audit, where one ran, and the most that it could have "
         "shown", ("spent", "measured")),
    Term("stopped early", "an attack's search was cut short by its limit: given longer it may read "
         "more"),
    Term("hollow", "an applicable attack is missing or failed: the advantage is known only from "
         "below, and a failed attack is not a defense"),
    Term("not dominated", "no other point has at least its utility and at most its advantage, and "
         "is better in one. Points where an attack failed take no part",
         ("non-dominated", "not dominated")),
)  # fmt: skip


def markdown() -> str:
    """Return the words as the table of the docs."""
    lines = (f"| {term.word} | {term.meaning} |" for term in TERMS)
    return "\n".join(["| word | meaning |", "|---|---|", *lines])


def glossary() -> Html:
    """Return the words as a list that links lead to."""
    items = (
        join([tag("dt", t.word, id=t.anchor), tag("dd", _code(t.meaning + "."))])
        for t in sorted(TERMS, key=lambda t: t.word.lower())
    )
    return tag("dl", join(items))


def _code(text: str) -> Html:
    pieces = text.split("`")
    return join(tag("code", p) if k % 2 else esc(p) for k, p in enumerate(pieces))


class Explained:
    """Puts the meaning behind every first use of a word, of a defense or of an attack.

    Parameters
    ----------
    names : iterable of (kind, name)
        Of what is registered: a hover text tells what it says of itself.
    """

    def __init__(self, names: Iterable[tuple[str, str]] = ()) -> None:
        self._marks: dict[str, Callable[[str], Html]] = {}
        for term in TERMS:
            for word in (term.word, *term.also):
                self._marks.setdefault(word.lower(), _link(term))
        for kind, name in names:
            about = _about(kind, name)
            if about and name.lower() not in self._marks:
                self._marks[name.lower()] = _hover(about)
        longest = sorted(self._marks, key=lambda word: (-len(word), word))
        words = "|".join(map(re.escape, longest))
        self._pattern = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE)

    def __call__(self, text: str, seen: set[str] | None = None) -> Html:
        """Return a text as markup; a word in `seen` was explained above and stays as it is."""
        done = set() if seen is None else seen
        parts: list[object] = []
        at = 0
        for found in self._pattern.finditer(text):
            word = found[0].lower()
            if word in done:
                continue
            done.add(word)
            parts += [text[at : found.start()], self._marks[word](found[0])]
            at = found.end()
        return join([*parts, text[at:]])


def _link(term: Term) -> Callable[[str], Html]:
    meaning = term.meaning.replace("`", "")

    def mark(word: str) -> Html:
        return tag("a", tag("abbr", word, title=meaning), href=f"#{term.anchor}", class_="term")

    return mark


def _hover(about: str) -> Callable[[str], Html]:
    return lambda word: tag("abbr", word, title=about)


def _about(kind: str, name: str) -> str:
    """Return the first line of what a defense or an attack says of itself, "" if unknown."""
    try:
        return (getdoc(register.get(kind, name)) or "").split("\n")[0]
    except FedtreesError:
        return ""
