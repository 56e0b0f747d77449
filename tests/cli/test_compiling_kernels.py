"""The first run reports that it compiles kernels, and how many it has compiled."""

import time

from fedtrees.cli.bench import Log
from fedtrees.isolation import kernels


def test_kernels_that_any_process_stores_are_counted(tmp_path, monkeypatch):
    (tmp_path / "old.1.nbc").touch()
    monkeypatch.setattr(kernels, "cache_folders", lambda: [tmp_path, tmp_path / "not-there"])
    counts = []
    with kernels.report_compilation(counts.append, interval=0.01):
        for name in ("a.1.nbc", "a.nbi", "b.1.nbc"):
            (tmp_path / name).touch()
        until = time.monotonic() + 20
        while counts[-1:] != [2] and time.monotonic() < until:
            time.sleep(0.01)
    assert counts[-1] == 2
    assert counts == sorted(set(counts))


def test_nothing_is_reported_if_all_kernels_are_stored(tmp_path, monkeypatch):
    (tmp_path / "old.1.nbc").touch()
    monkeypatch.setattr(kernels, "cache_folders", lambda: [tmp_path])
    counts = []
    with kernels.report_compilation(counts.append, interval=0.01):
        time.sleep(0.1)
    assert counts == []


def test_the_folders_of_all_kernels_are_watched():
    from fedtrees.attacks.joint import sampler
    from fedtrees.blind_baselines import consensus

    folders = kernels.cache_folders()
    for module in (sampler, consensus):
        kernel = next(k for k in vars(module).values() if hasattr(k, "py_func"))
        assert any(str(folder) == kernel._cache.cache_path for folder in folders)


def test_without_a_terminal_the_first_kernels_are_reported_at_once_and_others_at_intervals(capsys):
    log = Log(2, every=1000)
    log.compiled(3)
    log.compiled(9)
    log("ok", "train a")
    log.compiled(12)
    lines = capsys.readouterr().err.splitlines()
    text = "compiling kernels (first run only): 3 so far, about 100 for the default suite, 0 s"
    assert lines == [text]
    log.every = 0
    log.compiled(13)
    assert "13 so far" in capsys.readouterr().err
