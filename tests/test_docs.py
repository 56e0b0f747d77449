"""The commands and claims of the documentation work."""

import doctest
import json
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from result_rows import read_rows
from typer.main import get_command

from fedtrees.cli.commands import GROUPS, OLD_COMMANDS
from fedtrees.cli.help import commands_of
from fedtrees.cli.main import app, main
from fedtrees.core.registry import register

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))


def shell_blocks(text):
    """Return the shell code blocks of a page."""
    return re.findall(r"```(?:sh|bash)\n(.*?)```", text, flags=re.S)


def test_the_readme_has_two_set_up_commands_of_one_line_and_ci_runs_the_second():
    blocks = [block.strip() for block in shell_blocks((ROOT / "README.md").read_text())]
    assert len(blocks) == 2
    assert all(
        "\n" not in block and block.startswith("python3 -m venv .venv && ") for block in blocks
    )
    assert blocks[0].endswith("fedtrees bench")
    assert blocks[1].endswith("pytest")
    ci_lines = (ROOT / ".ci" / "run").read_text().splitlines()
    following_lines = ci_lines[
        ci_lines.index(blocks[1]) + 1 :
    ]  # literally the same command, followed by the extras
    assert [line for line in following_lines if line.startswith(".venv/")] == [
        '.venv/bin/pytest -m "long and not slow"'
    ]


def test_the_constraints_meet_the_requirements_and_both_commands_use_them():
    from packaging.requirements import Requirement

    blocks = shell_blocks((ROOT / "README.md").read_text())
    assert all("pip install -q -c constraints.txt -e" in block for block in blocks)
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {}
    for line in lines:
        if not line.startswith("#"):
            name, version = re.fullmatch(
                r"([\w.-]+)==([\w.]+)", line
            ).groups()  # neither a URL nor a hash
            pinned[name.lower().replace("_", "-")] = version
    assert "torch" not in pinned
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *extras["test"], *extras["docs"], *extras["perf"]]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[requirement.name.lower()]), text


def test_the_conda_recipe_has_the_requirements_of_the_package():
    from packaging.requirements import Requirement

    conda_names = {
        "xgboost": "py-xgboost",
        "ortools": "ortools-python",
        "matplotlib": "matplotlib-base",
    }
    recipe = (ROOT / ".ci/recipe.yaml").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [Requirement(text) for text in project["dependencies"]]
    expected = [
        f"python {project['requires-python']}",
        *(
            f"{conda_names.get(requirement.name, requirement.name)} {requirement.specifier}"
            for requirement in requirements
        ),
    ]
    run_section = recipe.partition("  run:\n")[2].partition("\n\n")[0]
    assert [line.strip().removeprefix("- ") for line in run_section.splitlines()] == expected
    assert f'version: "{project["version"]}"' in recipe


def test_the_constraints_name_the_command_of_the_docs():
    (command,) = re.findall(
        r"\$ (python3.11 .* pip)$", (ROOT / "docs/how-to/reproduce.md").read_text(), re.M
    )
    head = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "#" in line]
    assert f"# {command} > constraints.txt" in head


def test_the_readme_and_the_reference_show_every_command():
    text = (ROOT / "README.md").read_text() + (ROOT / "docs" / "reference/commands.md").read_text()
    paths = [
        path.split(" ", 1)[1] for path in commands_of(get_command(app), "fedtrees") if " " in path
    ]
    paths = [path for path in paths if path not in GROUPS]
    assert [path for path in paths if f"fedtrees {path}" not in text] == []


def test_the_documentation_uses_the_present_names_of_commands():
    """The names of the previous release work, but a page that uses them would soon be wrong."""
    groups = {"capture": "record|attack|diff", "leaderboard": "submit|build"}
    old = [
        f"{name}(?! (?:{groups[name]})\\b)(?=[ `])" if name in groups else rf"{name}(?=[ `\n])"
        for name in OLD_COMMANDS
    ]
    pattern = re.compile(rf"(?<![\w./-])fedtrees (?:{'|'.join(old)})")
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.sh")]
    uses = {
        f"{page.relative_to(ROOT)}: {match[0]}"
        for page in pages
        for match in pattern.finditer(page.read_text(encoding="utf-8"))
    }
    explained = "docs/reference/commands.md: fedtrees audit"  # the page that explains old names
    assert {use for use in uses if "/adr/" not in use} == {explained}


@pytest.mark.long
def test_the_exposure_table_equals_the_output_of_explain(capsys):
    text = (ROOT / "docs" / "reference/exposure.md").read_text()
    lines = text.partition("|---|---|---|\n")[2].partition("<!-- end -->")[0].splitlines()
    cells = [[re.findall(r"[][\w=-]+", cell) for cell in line.split("|")[1:-1]] for line in lines]
    on_page = [
        [[name], [role], attacks]
        for names, roles, attacks in cells
        for name in names
        for role in roles
    ]
    with pytest.raises(SystemExit):
        main(["explain", "--format", "json"])
    rows = json.loads(capsys.readouterr().out)
    on_page = [line for line in on_page if not register.get("protocol", line[0][0]).missing()]
    printed = [[[row["protocol"]], [row["threat"]], row["attacks"]] for row in rows]
    assert sorted(on_page) == sorted(printed)


def test_the_tutorial_runs_with_the_stated_results(capsys):
    results = runpy.run_path(str(ROOT / "docs" / "tutorials" / "first_bench.py"))
    assert results["same_predictions"]
    assert results["exact"] == {"none": 1.0, "split-only": 1.0}
    assert "same predictions: True" in capsys.readouterr().out


@pytest.mark.long
def test_the_first_audit_runs_with_the_stated_results():
    results = runpy.run_path(str(ROOT / "docs" / "tutorials" / "first_audit.py"))
    assert results["right"]
    assert results["done"].same
    assert results["stranger"].summary.counted == 0
    assert results["insider"].summary.counted == sum(len(tree.leaf) for tree in results["first"])


SHORT = ("-p", "fedtree-hist[trees=4,max_depth=3]")
BENCHED = {  # options of the bench of each example, and the resulting leaderboards
    "my_protocol": (
        ("-p", "my-protocol[trees=4,max_depth=3]", "-d", "split-only", "-a", "timberstrike"),
        {"client": 2, "public": 2, "server": 2},
    ),
    "my_defense": (
        (*SHORT, "-d", "my-defense[step=0.5,4]", "-a", "timberstrike"),
        {"client": 3, "public": 3, "server": 3},
    ),
    "my_attack": (
        (*SHORT, "-d", "none", "--threat", "server", "-a", "my-attack"),
        {"server": 1},
    ),
    "forest_counts": (
        (
            *("-p", "forest-hist[trees=3,bootstrap=false]", "-d", "split-only"),
            *("--threat", "public", "-a", "forest-counts"),
        ),
        {"public": 2},
    ),
    "minimal_defense": (
        (*SHORT, "-d", "histogram-noise[epsilon=4]", "--threat", "client", "-a", "timberstrike"),
        {"client": 2},
    ),
    # No attack reads their messages, so that there is nothing to bench.
    "minimal_protocol": ((), {}),
    "minimal_behaviour": ((), {}),
    "plain_vertical": (
        ("-p", "plain-vertical[trees=3]", "-d", "none", "--threat", "passive", "-a", "cl"),
        {"passive": 1},
    ),
    "gradient_signs": (
        (
            *("-p", "plain-vertical[trees=3]", "-d", "none"),
            *("--threat", "passive", "-a", "gradient-signs"),
        ),
        {"passive": 1},
    ),
}
BENCHED["my_metric"] = (
    (*SHORT, "-d", "split-only", "--threat", "client", "-a", "timberstrike"),
    {"client": 2},
)
BESIDE = {"gradient_signs": ["plain_vertical"]}


NEW = [Path(f"my_{kind}.py") for kind in ("protocol", "defense", "attack", "metric")]


@pytest.mark.long(but=("my_defense", "my_metric", "minimal"))
@pytest.mark.parametrize("path", [*EXAMPLES, *NEW], ids=lambda p: p.stem)
def test_an_example_is_short_conforms_and_benches(path, capsys, tmp_path):
    if path in NEW:
        path = tmp_path / path
        with pytest.raises(SystemExit):
            main(["plugin", "new", path.stem[3:], path.stem.replace("_", "-"), "-o", str(path)])
        assert str(path) in capsys.readouterr().out
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) < {"plain_vertical": 90, "minimal_protocol": 70}.get(path.stem, 60)
    files = [str(path.with_stem(name)) for name in (*BESIDE.get(path.stem, ()), path.stem)]
    options, boards = BENCHED[path.stem]
    plugins = [part for file in files for part in ("--plugin", file)]
    run = ("--output", str(tmp_path / "run"), "--data", "wine", "--seeds", "1", "-j", "1")
    bench = ["bench", *plugins, *run, *options, "--format", "json"]
    for arguments in (["check", *files], *([bench] if boards else [])):
        with pytest.raises(SystemExit) as exit_info:
            main(arguments)
        output, errors = capsys.readouterr()
        assert not exit_info.value.code, output + errors
    if not boards:
        return
    boards_found = json.loads(output)["leaderboards"]
    assert {board["threat"]: len(board["defenses"]) for board in boards_found} == boards
    advantages = [
        entry["advantage"]["mean"] for board in boards_found for entry in board["defenses"]
    ]
    assert all(advantage is not None for advantage in advantages)
    # The signs of plaintext gradients are labels, and `cl` is the blind baseline.
    if path.stem == "gradient_signs":
        assert advantages == [1.0]
    # The attack `cl` uses no messages, so that it has no advantage beyond chance.
    if path.stem == "plain_vertical":
        assert advantages[0] <= 0.05
    if path.stem == "my_metric":
        scored = [row for row in read_rows(tmp_path / "run") if row["metric"] == "my_metric"]
        blind = [float(row["value"]) for row in scored if row["stage"] == "blind"]
        attacked = [row for row in scored if row["stage"] == "attack"]
        assert len(attacked) == 2
        assert all(float(row["blind"]) == min(blind) >= 0 for row in attacked)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "abels inferred" in page or "passive" not in boards


def test_the_template_of_an_attack_infers_every_count_of_the_first_tree(monkeypatch):
    """The template of a new attack infers exact counts. The bench above only checks its score."""
    from sklearn.datasets import load_wine

    import fedtrees
    from fedtrees.core.registry import register

    # The registration must not affect later tests, which run all registered attacks.
    monkeypatch.setitem(register._known, "attack", dict(register._known["attack"]))
    template = runpy.run_path(str(ROOT / "fedtrees" / "cli" / "templates" / "attack.py"))
    LeafStatistics = template["LeafStatistics"]

    X, y = load_wine(return_X_y=True)
    model = fedtrees.FederatedGBDTClassifier(n_estimators=1, max_depth=3, random_state=0)
    model.fit(X, y == 1)
    (claim,) = LeafStatistics(expected_share=0.4).run(model.view("server"), None).claims
    leaf = model.apply(X)[:, 0]
    truth = [[int(((leaf == k) & ((y == 1) == c)).sum()) for c in (0, 1)] for k in claim.leaf]
    assert claim.counts.tolist() == truth


def test_the_example_in_the_template_of_an_attack_runs(monkeypatch):
    from fedtrees.core.registry import register

    monkeypatch.setitem(register._known, "attack", dict(register._known["attack"]))
    file = ROOT / "fedtrees" / "cli" / "templates" / "attack.py"
    names = runpy.run_path(str(file))
    example = doctest.DocTestParser().get_doctest(names["__doc__"], names, "attack", str(file), 0)
    assert doctest.DocTestRunner().run(example) == (0, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("attak", "mine"), "did you mean 'attack'"),
        (("attack", "timberstrike"), "is already registered"),
        (("defense", "My Defense"), "small letters"),
        (("defense", "class"), "small letters"),
        (("defense", "mine", "-o", "mine.txt"), "end the name in .py"),
    ],
)
def test_a_new_file_needs_a_kind_and_a_name(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["plugin", "new", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_every_package_is_listed_and_in_fedtrees():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(project["tool"]["setuptools"]["packages"])
    packages = set()
    for top_folder in ("fedtrees", "defenses", "attacks", "benchmarks"):
        for init in (ROOT / top_folder).rglob("__init__.py"):
            name = ".".join(init.parent.relative_to(ROOT).parts)
            packages.add(name if top_folder == "fedtrees" else f"fedtrees.{name}")
    assert listed == packages


def wheel_of(source, target):
    """Build the wheel of a source tree, or of a source archive, without network access."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(target), str(source)], check=True, capture_output=True)
    (wheel,) = target.glob("*.whl")
    return wheel


def clone_of_the_committed_state(target):
    """Clone the committed state of the repository."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(target)], check=True)
    return target


@pytest.mark.long
def test_a_wheel_installs_nothing_outside_fedtrees(tmp_path):
    wheel = wheel_of(clone_of_the_committed_state(tmp_path / "source"), tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    tops = {n.split("/")[0] for n in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"fedtrees"}
    assert "fedtrees/benchmarks/suites/quick.toml" in names
    assert "fedtrees/attacks/timberstrike/attack.py" in names


@pytest.mark.slow
def test_a_wheel_of_the_source_archive_runs_outside_the_repository(tmp_path):
    source = clone_of_the_committed_state(tmp_path / "source")
    archive = f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp_path)!r})"
    options = {"cwd": source, "check": True, "capture_output": True}
    subprocess.run([sys.executable, "-c", archive], **options)
    (archive_path,) = tmp_path.glob("*.tar.gz")
    wheel = wheel_of(archive_path, tmp_path)

    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]  # its dependencies
    (site / "dependencies.pth").write_text("\n".join(borrowed) + "\n")

    def output_of(*command):
        options_of_command = {"cwd": tmp_path, "capture_output": True, "text": True, "check": True}
        return subprocess.run([str(part) for part in command], **options_of_command).stdout

    assert output_of(python, "-c", "import fedtrees; print(fedtrees.__file__)").startswith(
        str(site)
    )
    fedtrees = python.with_name("fedtrees")
    assert "results" in output_of(fedtrees, "--help")
    planned = output_of(fedtrees, "bench", "--dry-run")
    assert re.search(r"^data +breast-cancer", planned, re.M)
    assert "into runs/quick" in planned
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["defenses", "attacks", "benchmarks"])
def test_the_bare_folders_refuse_to_be_imported(name):
    process = subprocess.run(
        [sys.executable, "-c", f"import {name}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode != 0
    assert f"fedtrees.{name}" in process.stderr


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "fedtrees.experiments.session.default_workers", lambda: 1
    )  # it starts no other processes
    names = {}
    exec(block, names)
    assert (tmp_path / "model.json").is_file()
    assert list(names["seen"].seen)


def test_the_citation_agrees_with_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = dict(
        line.split(": ", 1)
        for line in (ROOT / "CITATION.cff").read_text().splitlines()
        if re.match(r"(title|version|license): ", line)
    )
    deposited = json.loads((ROOT / ".zenodo.json").read_text())
    assert cited["version"] == deposited["version"] == project["version"]
    assert cited["license"] == deposited["license"] == project["license"]
    assert cited["title"].strip('"') == deposited["title"]
    authors = [author["name"] for author in project["authors"]]
    assert [who["name"] for who in deposited["creators"]] == authors
    assert f"  - name: {authors[0]}\n" in (ROOT / "CITATION.cff").read_text()
    assert deposited["keywords"] == project["keywords"]


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "ARTIFACT-APPENDIX.md"]
)
def test_links_of_the_pages_in_the_root_folder_exist(page):
    links = re.findall(r"\]\(([^)#]+)(?:#([\w-]+))?\)", (ROOT / page).read_text())
    assert links
    for path, anchor in links:
        if path.startswith("https://"):  # checked by hand
            continue
        assert (ROOT / path).exists(), path
        if anchor:
            heads = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in heads}


def test_the_functions_on_the_path_of_a_command_exist():
    """The table of `concepts` names functions and classes by which a developer finds the code."""
    page = (ROOT / "docs/explanation/concepts.md").read_text(encoding="utf-8")
    section = page.partition("## From a command to its verdict")[2].partition("\n## ")[0]
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for top in ("fedtrees", "defenses", "attacks")
        for path in (ROOT / top).rglob("*.py")
    )
    names = set()
    for line in section.splitlines():
        if re.match(r"\| \d", line):
            names |= {*re.findall(r"`([\w.]+)`", line.split("|")[2])}
    names = {name for name in names if not name.startswith("fedtrees.")} - {"fedtree-hist"}
    assert len(names) > 25
    missing = {
        part
        for name in names
        for part in name.split(".")
        if not re.search(rf"^\s*(?:class|def) {part}\b", sources, re.M)
    }
    assert not missing
