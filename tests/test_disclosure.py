"""Findings in the software of other projects: complete reports, true states, and an embargo."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted((DOCS / "disclosures").glob("*.md"))
REPORTS = [page for page in PAGES if page.stem != "nvidia-risk-assessment"]
STATES = r"not reported|reported on \d{4}-\d\d-\d\d|acknowledged: .+|fixed in .+|declined: .+"


def is_embargoed(page: Path) -> bool:
    return page.read_text(encoding="utf-8").startswith("---\ntags: [embargo]\n---\n")


@pytest.mark.parametrize("page", REPORTS, ids=lambda page: page.stem)
def test_a_report_can_be_sent_as_it_is(page):
    text = page.read_text(encoding="utf-8")
    items = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text, re.M))
    assert re.search(r"\d", items["Versions in which it was seen"])
    assert re.fullmatch(STATES, items["Status"])
    assert items["Software"]
    assert items["Report to"]
    heads = re.findall(r"^## (.+)$", text, re.M)
    assert heads == ["Summary", "How to reproduce", "Impact", "Possible fix"]
    (command,) = re.findall(r"```sh\n(.+)\n```", text)
    path = next(part for part in command.split() if part.endswith((".sh", ".py")))
    assert (DOCS.parent / path).is_file()


def test_the_list_of_findings_names_the_state_of_each_report_and_none_under_embargo():
    list_page = (DOCS / "disclosure.md").read_text(encoding="utf-8")
    for page in REPORTS:
        text = page.read_text(encoding="utf-8")
        (line_of_page,) = re.findall(
            rf"^.*\(disclosures/{page.stem}\.md\).*$", list_page, re.M
        ) or [""]
        assert (line_of_page == "") == is_embargoed(page), page.stem
        if line_of_page:
            items = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text, re.M))
            cells = [cell.strip() for cell in line_of_page.strip("|").split("|")]
            assert cells[1] == items["Versions in which it was seen"]
            assert cells[3] == items["Status"]


def test_no_page_claims_that_maintainers_know_of_a_finding_that_is_not_reported():
    claims = re.compile(
        r"(we|were|was|been|are) (have )?(informed|notified|told|contacted|reported to)\b"
        r"|maintainers (have )?(confirmed|acknowledged|agreed|fixed)",
        re.I,
    )
    reported = [page for page in PAGES if "| Status | not reported" not in page.read_text()]
    assert not reported
    for page in DOCS.rglob("*.md"):
        if "_build" in page.parts:
            continue
        for sentence in re.split(r"(?<=[.!?])\s", page.read_text(encoding="utf-8")):
            if claims.search(sentence) and re.search(r"maintainer|vendor|NVIDIA|project", sentence):
                assert re.search(r"\b(no|not|No|None)\b|when the maintainers agree", sentence), (
                    page.name,
                    sentence,
                )


def test_the_site_leaves_out_pages_under_embargo():
    configuration = (DOCS / "conf.py").read_text(encoding="utf-8")

    class Tags(set):
        has = set.__contains__

    def excluded(*tags):
        names = {"tags": Tags(tags), "__file__": str(DOCS / "conf.py")}
        exec(compile(configuration, "conf.py", "exec"), names)
        return set(names["exclude_patterns"])

    hidden = {f"disclosures/{page.name}" for page in PAGES if is_embargoed(page)}
    assert len(hidden) == 4
    assert excluded() - excluded("embargo") == hidden


def test_no_page_of_the_site_links_to_a_page_under_embargo():
    for page in DOCS.rglob("*.md"):
        if not is_embargoed(page):
            for name in re.findall(r"disclosures/([\w-]+)\.md", page.read_text(encoding="utf-8")):
                assert not is_embargoed(DOCS / "disclosures" / f"{name}.md"), (page, name)
