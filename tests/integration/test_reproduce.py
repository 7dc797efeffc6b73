"""The reproduction: runs that are kept and continued, a page drawn from files alone, and words for every obstacle."""

import errno
import json
import os
import re

import numpy as np
import pytest

import bilevax as bx
from bilevax import cli
from bilevax.experiments.paper import (
    adjoint,
    catalogue,
    completion,
    curves,
    jobs,
    multitask,
    multitask_report,
    reproduce,
    toy,
)
from bilevax.experiments.paper.jobs import PRINTED, REPAIRED, Options, Runs
from bilevax.runs import run_directory
from bilevax.runs.lock import Lock

SMALL = Options(quick=True, repeats=1, methods=("IBCG",))
HAS_DATA = pytest.mark.skipif("BILEVAX_DATA" not in os.environ, reason="BILEVAX_DATA does not name a data folder")


def experiment(name):
    return catalogue.named(name)[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which the adjoint experiment has been run at its quick size."""
    folder = tmp_path_factory.mktemp("out")
    text, missing = reproduce.reproduce([experiment("adjoint")], folder, Options(quick=True, repeats=2), progress=False)
    assert missing == []
    return folder, text


@pytest.fixture
def copied(finished, tmp_path):
    """The same runs in a folder that a test may spoil."""
    for path in finished[0].rglob("*"):
        if path.is_file():
            target = tmp_path / path.relative_to(finished[0])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return tmp_path


def again(folder, monkeypatch, options=None):
    """Reproduce once more, with every attempt to run something forbidden."""
    monkeypatch.setattr(adjoint, "solve", lambda *_, **__: pytest.fail("something was run"))
    chosen = options or Options(quick=True, repeats=2)
    return reproduce.reproduce([experiment("adjoint")], folder, chosen, progress=False)


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_runs_figures_tables_and_page_are_written(finished):
    folder, text = finished
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    for variant in (PRINTED, REPAIRED):
        for method in ("ibcg", "sbfw"):
            for repeat in (0, 1):
                assert f"runs/adjoint/{variant}/{method}/{repeat}/config.json" in names
        assert {f"figures/adjoint-{variant}.png", f"figures/adjoint-{variant}.svg"} <= names
    assert {"tables/adjoint.csv", "reproduction.md"} <= names
    assert (folder / "reproduction.md").read_text() == text
    assert "**holds**" in text and "![" in text and "figures/adjoint-printed.png" in text


def test_numbers_of_the_page_are_those_of_the_run_directories(finished):
    folder, text = finished
    ends = [run_directory.load(folder / "runs/adjoint/printed/sbfw" / str(i))[1].last["adjoint_error"] for i in (0, 1)]
    row = next(line for line in text.splitlines() if re.match(r"\| printed +\| SBFW", line))
    assert f"{np.median(ends):.3g}" in row


def test_a_finished_reproduction_runs_nothing_again_and_writes_the_same(copied, finished, monkeypatch):
    before = contents(copied)
    text, _ = again(copied, monkeypatch)
    assert text == finished[1]
    after = contents(copied)
    runs = {path for path in before if "runs" in path.parts}
    assert runs and all(before[path] == after[path] for path in runs)


def test_an_interrupted_one_goes_on_where_it_stopped(copied, monkeypatch):
    gone = copied / "runs/adjoint/repaired/sbfw/1"
    (gone / "config.json").unlink()  # the configuration is written last: a run without it did not finish
    kept = {path: data for path, data in contents(copied).items() if "runs" in path.parts and gone not in path.parents}
    calls = []
    real = adjoint.solve
    monkeypatch.setattr(adjoint, "solve", lambda *a, **k: calls.append(1) or real(*a, **k))
    reproduce.reproduce([experiment("adjoint")], copied, Options(quick=True, repeats=2), progress=False)
    assert len(calls) == 1 and (gone / "config.json").exists()
    assert all(path.read_bytes() == data for path, data in kept.items())


def test_ctrl_c_ends_it_with_the_finished_runs_kept_and_resume_makes_the_others(tmp_path, monkeypatch, capsys):
    real, calls, folder = adjoint.solve, [], tmp_path / "o"

    def stopping(*args, **options):
        calls.append(1)
        rule = (lambda trace: bx.Stop(bx.Status.STOPPED, "stopped")) if len(calls) == 2 else ()
        return real(*args, **options, stop=rule)

    monkeypatch.setattr(adjoint, "solve", stopping)
    command = ["reproduce", "adjoint", "--quick", "--out", str(folder), "--quiet"]
    command += ["--methods", "SBFW", "--variant", "repaired", "--repeats", "2"]
    assert cli.main(command) == 130
    assert "interrupted" in capsys.readouterr().err
    assert len(list(folder.rglob("config.json"))) == 1
    lock = Lock(folder)
    assert cli.main(["resume", str(folder)]) == 2
    assert "belongs to a run that is still going on" in capsys.readouterr().err
    lock.release()
    assert cli.main(["resume", str(folder)]) == 0
    assert len(list(folder.rglob("config.json"))) == 2 and len(calls) == 3


def spoil_version(config):
    config["versions"]["bilevax"] = "0.0.1"


def spoil_protocol(config):
    config["protocol"]["steps"] = 77


def spoil_format(config):
    config["format"] = 99


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_version, r"made by bilevax 0\.0\.1, this is"),
        (spoil_protocol, "made with steps = 77, now 200 is asked for"),
        (spoil_format, "format 99"),
        (None, "cannot be read"),
    ],
)
def test_a_run_in_the_way_is_refused_and_left_alone(copied, monkeypatch, spoil, words):
    path = copied / "runs/adjoint/printed/ibcg/0/config.json"
    config = json.loads(path.read_text())
    if spoil:
        spoil(config)
    path.write_text(json.dumps(config) if spoil else '{"half')
    before = contents(copied)
    with pytest.raises(jobs.UnusableRun, match=words) as error:
        again(copied, monkeypatch)
    assert str(path.parent) in str(error.value) and "nothing was changed" in str(error.value)
    assert contents(copied) == before


def test_a_full_disk_is_said_in_words_and_loses_no_finished_run(tmp_path, monkeypatch, capsys):
    real = run_directory.write_atomic

    def full(path, *args, **options):
        if path.parts[-2] == "1":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *args, **options)

    monkeypatch.setattr(run_directory, "write_atomic", full)
    arguments = ["reproduce", "adjoint", "--quick", "--variant", "printed", "--out", str(tmp_path / "o"), "--quiet"]
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error and "give the same command again" in error and error.count("\n") == 1
    assert [path.parent.name for path in (tmp_path / "o").rglob("config.json")] == ["0"]


def test_missing_data_are_named_and_the_rest_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("BILEVAX_DATA", str(tmp_path))
    monkeypatch.setenv("BILEVAX_CACHE", str(tmp_path / "cache"))
    chosen = [experiment("adjoint"), experiment("multitask-nlsy")]
    options = Options(quick=True, repeats=1, methods=("IBCG",), variants=(PRINTED,))
    text, missing = reproduce.reproduce(chosen, tmp_path / "o", options, progress=False)
    assert len(missing) == 1 and missing[0].startswith("multitask-nlsy") and "nlsy79" in missing[0]
    assert "**Not run.**" in text and (tmp_path / "o/figures/adjoint-printed.png").exists()


def test_wrong_names_and_numbers(tmp_path, capsys):
    for arguments, words in (
        (["frobnicate"], "unknown experiment 'frobnicate'; there are toy, completion-synthetic"),
        (["toy", "--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["toy", "--seed", "-1"], "--seed must be at least 0, got -1"),
        (["toy", "--methods", "Adam"], "nothing to run"),
    ):
        assert cli.main(["reproduce", *arguments, "--out", str(tmp_path / "o")]) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
    assert not list(tmp_path.rglob("config.json"))


def test_every_experiment_of_the_paper_has_jobs_with_different_folders():
    full = {name: one.jobs(Options()) for name, one in catalogue.EXPERIMENTS.items()}
    assert set(full) == {
        *("toy", "completion-synthetic", "completion-100k", "completion-1m", "sweep-gamma", "sweep-eta"),
        *("multitask-libsvm", "multitask-nlsy", "adjoint"),
    }
    for name, made in full.items():
        assert len({job.path for job in made}) == len(made), name
    shared = {job.path for job in full["sweep-gamma"]} & {job.path for job in full["sweep-eta"]}
    assert len(shared) == 1  # both sweeps contain gamma = 0.1/sqrt(K) with eta = 0.5 (1 - beta)/mu_g
    assert {job.protocol["time_limit"] for job in full["completion-1m"]} == {200.0}
    assert {job.protocol["steps"] for job in full["multitask-libsvm"]} == {10_000}
    seconds = sum(job.seconds for job in {j.path: j for made in full.values() for j in made}.values() if j_counts(job))
    assert seconds < 2 * 3600


def j_counts(job):
    """Jobs that run into their time limit; those of multi-task learning but one end after a second or two."""
    return not job.folder.startswith("multitask") or job.method == multitask.DIVIDED


@pytest.mark.slow
def test_the_toy_as_printed(tmp_path):
    one = experiment("toy")
    text, _ = reproduce.reproduce([one], tmp_path, Options(repeats=2, variants=(PRINTED,)), progress=False)
    assert text.count("**holds**") >= 2  # both figures without tuning
    for name in toy.CASES:
        assert (tmp_path / "figures" / f"toy-{name}-printed.png").stat().st_size > 10_000


def test_bands_follow_the_shortest_repeat():
    rows = [{"step": k, "gap": float(v)} for k, v in enumerate([3, 2, 1])]
    traces = [bx.Trace(rows), bx.Trace([{**row, "gap": row["gap"] + 2} for row in rows[:2]])]
    band = curves.band(Runs([jobs.Run({}, trace) for trace in traces]), "gap", "step")
    np.testing.assert_array_equal(band.middle, [4, 3])
    np.testing.assert_array_equal(band.low, [3, 2])
    np.testing.assert_array_equal(band.high, [5, 4])


def test_a_claim_of_speed_compares_two_methods_where_both_have_rows():
    def runs(method, steps, fall):
        rows = [{"step": k, "lower_grad_norm": fall**k, "upper": 2 * fall**k} for k in steps]
        config = {"method": method, "variant": PRINTED, "repeat": 0}
        return jobs.Run(config, bx.Trace(rows))

    both = Runs([runs("IBCG", range(6), 0.5), runs("SBFW", range(4), 0.9)])
    claim = multitask_report._faster(both, PRINTED, "step", "Title")
    assert claim.verdict == jobs.HOLDS
    assert f"{0.5**3:.3g} against {0.9**3:.3g}" in claim.measured  # step 3, the last that both have
    swapped = Runs([runs("IBCG", range(6), 0.9), runs("SBFW", range(4), 0.5)])
    assert multitask_report._faster(swapped, PRINTED, "step", "Title").verdict == jobs.FAILS


@HAS_DATA
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("completion-100k", "sweep-eta", "multitask-libsvm", "multitask-nlsy")
    ],
)
def test_experiments_on_real_data_at_their_quick_size(name, tmp_path):
    text, missing = reproduce.reproduce([experiment(name)], tmp_path, SMALL, progress=False)
    assert missing == [] and list((tmp_path / "figures").glob("*.png"))
    assert experiment(name).title in text


@HAS_DATA
def test_tasks_are_cut_and_scaled_as_stated():
    own = multitask.tasks("libsvm", 0)
    assert [task.name for task in own] == list(multitask.LIBSVM)
    assert all(np.abs(part.A).max() <= 1 and np.abs(part.b).max() <= 1 for task in own for part in task[1:])
    sizes = [sum(len(part.b) for part in task[1:]) for task in multitask.tasks("nlsy-parts", 0)]
    assert len(sizes) == 10 and sum(sizes) == 4908 and max(sizes) - min(sizes) <= 1
    assert all(sum(len(p.b) for p in task[1:]) >= multitask.SMALLEST for task in multitask.tasks("nlsy-grade90", 0))


@HAS_DATA
def test_ratings_are_split_and_the_start_is_inside():
    made = completion.instance("100k", 0, True)
    seen = set(zip(made.observed.rows, made.observed.cols, strict=True))
    assert not seen & set(zip(made.unseen.rows, made.unseen.cols, strict=True))
    assert np.linalg.norm(made.x0, "nuc") <= made.radius
    problem, constants = completion.posed(made, PRINTED)
    assert float(problem.data["weight"]) == pytest.approx(1 / len(made.observed.values))
    assert np.linalg.norm(made.x0) > 0 and constants.kappa < 2
