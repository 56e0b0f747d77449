"""The generated pages of attacks, defenses and protocols, and the list of references."""

import re
import sys
from pathlib import Path

import pytest

from fedtrees.benchmarks import structure
from fedtrees.core.registry import register
from fedtrees.data import catalogue

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))


@pytest.fixture(scope="module")
def results():
    from registry_pages import read_results

    return read_results()


def test_the_page_of_an_attack_names_its_views_its_messages_and_its_results(results):
    from registry_pages import page_of

    page = page_of("attack", "timberstrike", results)
    evidence = page.partition("\n## Evidence\n")[2].partition("\n## ")[0]
    assert re.search(r"`fedtree-hist`.* \| server \| .*`FeatureSketch`", evidence)
    assert re.search(r"\| client \| .*`nvflare-hist`", page)
    assert re.search(r"\| `fedtree-hist` \| breast-cancer \| server \| .*AUC|accuracy", page)
    assert "| `solver` | `max-ent` |" in page


SECTIONS = ["Threat model", "Evidence", "Algorithm", "Source", "What it achieves", "Limits"]


@pytest.mark.parametrize("name", register.names("attack"))
def test_the_page_of_an_attack_has_all_sections_and_an_algorithm_in_five_lines(name, results):
    from registry_pages import attack_notes, page_of

    page = page_of("attack", name, results)
    assert re.findall(r"^## (.+)$", page, re.M)[: len(SECTIONS)] == SECTIONS
    for section in SECTIONS:
        text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0].strip()
        assert text.endswith((".", "|")), (section, text[-40:])
    assert 2 <= len(attack_notes(name)["algorithm"]) <= 5
    assert re.search(rf"-a {name}\b", page)


@pytest.mark.parametrize("kind", ["defense", "protocol"])
def test_the_page_of_a_component_names_its_source_and_that_of_a_defense_its_claim(kind, results):
    from registry_pages import page_of

    for name in set(register.names(kind)) - {"none"}:
        page = page_of(kind, name, results)
        assert re.search(r"^- ", page.partition("\n## Source\n")[2].partition("\n## ")[0], re.M)
        assert ("\n## Claim\n" in page) == (kind == "defense"), name


def test_every_text_about_an_attack_belongs_to_a_registered_attack():
    from registry_pages import read_notes

    assert set(read_notes()) == set(register.names("attack"))


@pytest.mark.parametrize("kind", ["attack", "defense", "protocol"])
def test_every_registered_class_has_a_page_with_a_command_and_a_summary(kind, results):
    from registry_pages import page_of

    for name in register.names(kind):
        page = page_of(kind, name, results)
        assert page.startswith(f"# {name}\n\n")
        assert re.search(rf"fedtrees bench [^`]*-[adp] \"?{name}\b", page)
        assert len(page.splitlines()[2]) > 20  # the summary


def test_a_page_shows_the_mean_of_the_stored_results(results):
    rows = results[(results.attack == "timberstrike") & (results.metric == "exact_rows")]
    row = rows[(rows.threat == "server") & (rows.dataset == "breast-cancer")].iloc[0]
    assert row.seeds == 3
    assert 0 <= row.blind < row.score <= 1


def test_every_citation_in_the_documentation_is_in_the_list_of_references():
    entries = (ROOT / "docs/references.bib").read_text(encoding="utf-8")
    names = set(re.findall(r"author\s*= \{(.+?), ", entries))
    listed_names = {re.sub(r"[{}\\'\"]", "", name).replace("Gorge", "Gorgé") for name in names}
    assert "Di Gennaro" in listed_names
    for page in ROOT.glob("docs/**/*.md"):
        text = page.read_text(encoding="utf-8")
        for author in re.findall(
            r"([A-ZÀ-Ž][\w-]+(?: [A-Z]\w+)?) et al\.,? \(?(?:19|20)\d\d", text
        ):
            words = [author, author.split()[-1]]
            assert listed_names & set(words), f"{page.name}: {author} is not in docs/references.bib"


def bibtex_keys():
    entries = (ROOT / "docs/references.bib").read_text(encoding="utf-8")
    return re.findall(r"^@\w+\{([^,]+),", entries, re.M)


def test_the_list_of_references_contains_every_component_and_every_bibtex_key():
    page = (ROOT / "docs/references.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([\w-]+)(?:\[[^`]*\])?`", page))
    components = {n for kind in ("attack", "defense", "protocol") for n in register.names(kind)}
    assert components <= listed
    assert set(bibtex_keys()) <= listed


def test_every_name_in_the_list_of_references_is_registered():
    page = (ROOT / "docs/references.md").read_text(encoding="utf-8")
    kinds = ("attack", "defense", "protocol")
    registered = {name for kind in kinds for name in register.names(kind)} | set(catalogue.names())
    registered |= {*bibtex_keys(), "FedXgbBagging", "FedXgbCyclic"}
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    for name in re.findall(r"`([\w-]+)(?:\[[^`]*\])?`", "\n".join(rows)):
        assert name in registered or name.startswith("fedtrees"), name


def test_the_drawing_of_the_packages_is_up_to_date():
    drawn = (ROOT / "docs/images/structure.svg").read_text(encoding="utf-8")
    assert drawn == structure.draw(), "run: python -m fedtrees.benchmarks.structure"


def test_the_page_about_messages_documents_every_metric():
    page = (ROOT / "docs/reference/messages.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\.\. autoclass:: (\S+)$", page, re.M))
    metrics = [register.get("metric", name) for name in register.names("metric")]
    assert listed == {f"{metric.__module__}.{metric.__qualname__}" for metric in metrics}
