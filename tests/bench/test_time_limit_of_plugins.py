"""No training that runs the code of a plug-in exceeds the time limit, nor does its import."""

import json
import sys
import time

import pytest

from fedtrees.core import registry
from fedtrees.core.errors import UsageError
from fedtrees.core.limits import TimeLimit, limited
from fedtrees.core.registry import load_plugin, register
from fedtrees.experiments.options import BenchOptions

SLEEPS = """
import time
from dataclasses import dataclass

from fedtrees.core.defense import Defense
from fedtrees.core.guarantee import Structural
from fedtrees.core.registry import register
from fedtrees.messages.horizontal import Histogram

@register.defense("sleeps")
@dataclass(frozen=True)
class Sleeps(Defense):
    roles = frozenset({"client"})
    handled_types = (Histogram,)

    def claim(self):
        return Structural()

    def transform_message(self, message, ctx):
        time.sleep(600)
        return message
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("threat", "attack"), [("client", "timberstrike"), ("server:halving", "halved-rows")]
)
def test_disclosures_and_checks_train_under_the_time_limit(tmp_path, threat, attack):
    file = tmp_path / "sleeps.py"
    file.write_text(SLEEPS)
    options = BenchOptions(
        protocol="fedtree-hist[trees=1,max_depth=2]", defense="sleeps", attack=attack,
        data="wine[rows=60]", threat=threat, seeds="1", jobs=1, time_limit=4.0,
        output=str(tmp_path / "run"), plugin=str(file),
    )  # fmt: skip
    begun = time.monotonic()
    bench = options.session()
    bench.open(resume=False)
    counts = bench.run()
    assert time.monotonic() - begun < 120  # of 600 seconds for one message
    assert counts["timeout"] >= 1
    listed = json.loads((tmp_path / "run" / "disclosure.json").read_text())
    assert {row["defense"] for row in listed} == {"none"}


HANGS = {
    "sleep": "import time\ntime.sleep(600)\n",
    "loop": "while True:\n    try:\n        x = 1\n    except Exception:\n        pass\n",
    # A file that names attacks is imported in the process of attacks.
    "attack": "from fedtrees.core.attack import Attack\nimport time\ntime.sleep(600)\n",
}


@pytest.fixture
def usual_limit():
    yield
    register.imports.seconds = registry.IMPORT_SECONDS


@pytest.mark.parametrize("name", HANGS)
def test_a_file_whose_import_does_not_end_is_named_when_the_time_limit_is_over(
    tmp_path, usual_limit, name
):
    file = tmp_path / f"{name}.py"
    file.write_text(HANGS[name])
    options = BenchOptions(data="wine", plugin=str(file), time_limit=1.0, seeds="1")
    begun = time.monotonic()
    with pytest.raises(UsageError, match=rf"plugin '.*{name}.py' was not imported within 1 second"):
        options.session()
    assert time.monotonic() - begun < 30
    assert not any(getattr(m, "__file__", None) == str(file) for m in [*sys.modules.values()])


def test_an_import_without_a_time_limit_ends_after_a_default(tmp_path, monkeypatch):
    file = tmp_path / "hangs.py"
    file.write_text(HANGS["sleep"])
    assert register.imports.seconds == registry.IMPORT_SECONDS > 0
    monkeypatch.setattr(register.imports, "seconds", 0.5)
    with pytest.raises(UsageError, match=r"was not imported within 0.5 seconds; look for a loop"):
        load_plugin(file)
    monkeypatch.setattr(register.imports, "seconds", 500)
    with pytest.raises(TimeLimit), limited(0.5):  # the limit of the cell that needs the plug-in
        load_plugin(file)


def test_an_installed_package_whose_import_does_not_end_is_named(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "hanging", "hangs = hanging_module:Metric")
    (tmp_path / "hanging_module.py").write_text(HANGS["sleep"])
    monkeypatch.setattr(register.imports, "seconds", 0.5)
    with pytest.raises(UsageError, match=r"metric 'hangs' of the package hanging 1.0 was not"):
        register.get("metric", "hangs")


# The second name is a metric of fedtrees.
@pytest.mark.parametrize("name", ["mine", "records"])
def test_two_installed_packages_with_one_name_are_refused_with_the_names_of_both(
    tmp_path, monkeypatch, name
):
    install(tmp_path, monkeypatch, "first-package", f"{name} = first_module:Metric")
    install(tmp_path, monkeypatch, "second-package", f"{name} = second_module:Metric")
    with pytest.raises(UsageError) as error_info:
        registry.Registry().get("metric", name)
    text = str(error_info.value)
    assert "first-package 1.0 (first_module:Metric)" in text
    assert "second-package 1.0 (second_module:Metric)" in text
    assert ("fedtrees " in text) == (name == "records")
    assert not register.is_ours("metric", name)


def test_one_package_that_is_listed_twice_is_no_clash(tmp_path, monkeypatch):
    (tmp_path / "one_module.py").write_text("class Metric:\n    pass\n")
    install(tmp_path, monkeypatch, "one-package", "mine = one_module:Metric")
    install(tmp_path, monkeypatch, "one-package-old", "mine = one_module:Metric")
    assert registry.Registry().get("metric", "mine").__name__ == "Metric"


def install(folder, monkeypatch, package, entry):
    """Install a package that registers a metric by an entry point."""
    about = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[fedtrees.metrics]\n{entry}\n")
    monkeypatch.syspath_prepend(str(folder))
    # Read the entry points again for every name, because the cache has those of before.
    uncached = getattr(registry._entries, "__wrapped__", registry._entries)
    monkeypatch.setattr(registry, "_entries", uncached)
