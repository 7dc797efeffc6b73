"""Radii chosen by a held-out score: scalar curves, closed forms, best radii in hindsight, and refusals."""

import math
import re
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.estimators import MatrixCompletion
from bilevax.problems import sparse_completion
from bilevax.runs.radius_search import best_radius, search_radius

CURVES = {  # of the radius over the best one
    "parabola": lambda ratio: 1 + math.log(ratio) ** 2,
    "kink": lambda ratio: 0.01 + abs(math.log(ratio)),
    "lopsided": lambda ratio: ratio - math.log(ratio),
}


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("first", [1e-3, 0.7, 5.0, 6.9, 1e4])
def test_the_minimum_is_found_within_ten_percent(curve, first):
    calls = []
    found = search_radius(lambda radius, near: calls.append((radius, near)) or curve(radius / 5), first, refine=6)
    assert 5 / 1.1 < found.radius < 5 * 1.1 and [radius for radius, _ in found.tried] == [r for r, _ in calls]
    for i, (radius, near) in enumerate(calls):  # warm starts come from the largest smaller radius
        assert near == max((r for r, _ in calls[:i] if r < radius), default=None)


def tried(*scores, **options):
    """The radii that are tried where these are the scores at 1, 2, 4, 8, ..."""
    at = lambda radius, near: scores[max(0, min(round(math.log2(radius)), len(scores) - 1))]  # noqa: E731
    return [radius for radius, _ in search_radius(at, 1.0, **{"refine": 0} | options).tried]


def test_one_flat_step_is_passed_over_and_a_second_or_a_rise_ends_the_growth():
    assert tried(3, 2, 2, 1, 1.5) == [1, 2, 4, 8, 16]
    assert tried(3, 2, 2, 2, 1) == [1, 2, 4, 8]
    assert tried(3, 2, 2.1, 1) == tried(3, 2, math.nan, 1) == [1, 2, 4]
    assert tried(6, 5, 4, 3, 2, 1, most=4) == [1, 2, 4, 8]
    assert tried(3, 1, 2, refine=4, spread=2.5) == [1, 2, 4] != tried(3, 1, 2, refine=4)


def test_of_equal_scores_the_smallest_radius_is_chosen():
    flat = search_radius(lambda radius, near: 2.0, 1.0)
    assert flat.radius == min(radius for radius, _ in flat.tried) and len(flat.tried) == 5
    assert best_radius({1.0: 1.00009, 2.0: 1.0}) == 1.0 and best_radius({1.0: 1.00011, 2.0: 1.0}) == 2.0
    assert best_radius({1.0: -0.5, 2.0: -0.99995, 4.0: -1.0}) == 2.0


def test_a_failed_radius_never_wins_and_a_stopped_search_has_the_best_so_far():
    above = search_radius(lambda radius, near: math.nan if radius > 3 else 1 / radius, 1.0)
    assert 2.5 < above.radius <= 3 and any(math.isnan(score) for _, score in above.tried)
    first = search_radius(lambda radius, near: math.nan if radius > 0.3 else 1 / radius, 0.5)
    assert 0.25 <= first.radius <= 0.3
    assert math.isnan(search_radius(lambda radius, near: math.nan, 1.0).radius)
    calls = []
    found = search_radius(lambda radius, near: calls.append(radius) or 1 / radius, 1.0, stop=lambda: len(calls) == 3)
    assert found.radius == 4.0 and calls == [1.0, 2.0, 4.0]


C = jnp.array([3.0, -2.0, 0.6, 0.4, -0.2])
upper = lambda x, y, data: jnp.sum((y - data["c"]) ** 2)  # noqa: E731
lower = lambda x, y, data: jnp.sum((y - x) ** 2)  # noqa: E731
held_out = lambda x, y, data: jnp.sum((y - data["truth"]) ** 2) + 0.01  # noqa: E731


def nearest(domain, best=2.0):
    """A problem whose solution is the point of the set nearest to c; the truth is the one at the best radius."""
    data = {"c": C, "truth": type(domain)(best).project(C)} if hasattr(domain, "radius") else {"c": C, "truth": C}
    return bx.BilevelProblem(upper, lower, domain, data, x_like=C, y_like=C)


@pytest.mark.parametrize(("domain", "best"), [(bx.L2Ball(9.0), 1.9), (bx.L1Ball(), 4.1), (bx.Simplex(0.3), 2.2)])
@pytest.mark.parametrize("radii", [0.25, pytest.param(None, marks=pytest.mark.slow)])
def test_the_search_ends_at_the_radius_of_the_truth(domain, best, radii):
    found = bx.path(nearest(domain, best), radii, bx.ProjectedIBCG(), score=held_out, steps=40)
    assert best / 1.16 < found.radius < 1.16 * best
    np.testing.assert_allclose(found.best.x, type(domain)(found.radius).project(C), atol=1e-5)
    radii = [row["radius"] for row in found.rows]
    assert radii == sorted(radii) == [float(result.problem.domain.radius) for result in found.results]
    row = found.rows[radii.index(found.radius)]
    assert row["score"] == min(row["score"] for row in found.rows) and row["status"] == "MAX_STEPS"
    assert row["gap"] == found.best.trace.last["gap"] and row["steps"] == found.best.steps == 40


@pytest.mark.parametrize("domain", [bx.L2Ball(), bx.Simplex()])
def test_each_radius_starts_from_the_solution_before_and_a_score_is_needed_for_a_best_one(domain):
    problem = nearest(domain, 3.65)
    found = bx.path(problem, [2.0, 3.0, 3.6], bx.ProjectedIBCG(), score=held_out, steps=40)
    for before, after in zip(found.results, found.results[1:], strict=False):
        ratio = float(after.problem.domain.radius / before.problem.domain.radius)
        x = before.x * (1.0 if isinstance(domain, bx.L2Ball) else ratio)  # entries of a simplex sum to its radius
        assert after.trace.first["upper"] == pytest.approx(float(upper(x, x, problem.data)), rel=1e-6)
    assert found.radius == 3.6 and "3.6. It is the largest one tried: also try larger ones." in str(found)
    found = bx.path(problem, [0.5, 1.0], bx.ProjectedIBCG(), steps=5)
    assert len(found.results) == 2 and math.isnan(found.radius) and "No radius has a finite score" in str(found)
    with pytest.raises(ValueError, match="no radius has a finite score"):
        found.best  # noqa: B018


def test_a_radius_at_which_the_set_is_empty_has_failed():
    like, domain = jnp.eye(4), bx.Spectraplex(1.0, 0.1)
    problem = bx.BilevelProblem(upper, lower, domain, {"c": like}, x_like=like, y_like=like)
    found = bx.path(problem, score=lambda x, y, data: jnp.trace(y), steps=30)
    assert 0.4 <= found.radius < 0.46 and found.radius == found.rows[0]["radius"]


def test_a_time_limit_and_ctrl_c_keep_what_there_is():
    problem, solver = nearest(bx.L2Ball()), bx.ProjectedIBCG()
    found = bx.path(problem, 0.5, solver, score=held_out, steps=40, time_limit=1e-9)
    assert [row["status"] for row in found.rows] == ["TIME_LIMIT"]
    calls = iter([None, None, signal.SIGINT])  # at the start, at the first radius, at the second
    pressing = lambda *point: (signal.raise_signal(number) if (number := next(calls)) else 0) or held_out(*point)  # noqa: E731
    found = bx.path(problem, [0.5, 1.0, 1.5], solver, score=pressing, steps=40)
    assert [row["radius"] for row in found.rows] == [0.5, 1.0] and found.radius == 1.0


def matrix(shape, rank, share, noise, seed):
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
    rows, cols = np.nonzero(rng.random(shape) < share)
    return truth, rows, cols, truth[rows, cols] + noise * rng.standard_normal(len(rows))


def completion():
    """A problem that learns from nine tenths of the entries, and the error on the others."""
    truth, rows, cols, values = matrix((30, 20), 2, 0.7, 0.3, 0)
    known = np.random.default_rng(1).random(len(values)) < 0.9
    options = {"shape": truth.shape, "omega1": known, "omega2": known, "lambda1": 0.0, "lambda2": 0.05}
    return sparse_completion(rows, cols, values, 1.0, **options)[0], lambda x, y, data: float(
        np.mean((np.asarray(x.values) - values)[~known] ** 2)
    )


@pytest.mark.slow
def test_on_completion_it_is_as_good_as_the_best_radius_in_hindsight():
    problem, score = completion()
    found = bx.path(problem, 10.0, bx.BlockIBCG(), score=score, steps=20)
    grid = bx.path(problem, np.geomspace(15, 100, 6), bx.BlockIBCG(), score=score, steps=20)
    scores = [row["score"] for row in grid.rows]
    assert score(found.best.x, None, None) < 1.02 * min(scores) < 0.7 * max(scores)


@pytest.mark.parametrize("kind", ["compiled", "host"])
def test_another_radius_compiles_nothing(kind):
    problem, score = completion() if kind == "host" else (nearest(bx.Simplex()), held_out)
    solver = bx.BlockIBCG() if kind == "host" else bx.ProjectedIBCG()
    compiled, counts = [], []
    listen = lambda name, _, **__: compiled.append(name) if "backend_compile" in name else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for radii in ([3.0, 4.0], [2.7], [2.5, 7.0, 9.0]):
            compiled.clear()
            bx.path(problem, radii, solver, score=score, steps=3)
            counts.append(len(compiled))
    finally:
        jax.monitoring.clear_event_listeners()
    assert counts[2] == counts[1] and (kind == "host" or counts[2] == 0)  # checking the start may compile


@pytest.mark.slow
def test_the_estimator_chooses_a_radius_close_to_the_best_in_hindsight():
    truth, rows, cols, values = matrix((100, 60), 3, 0.4, 0.0, 1)
    size, error = np.linalg.norm(truth, "nuc"), {}
    for radius in ("auto", 0.95 * size, 0.975 * size, 1.0 * size):
        model = MatrixCompletion(radius, refit=False, similarity=0.0).fit((rows, cols, values))
        error[radius] = float(np.linalg.norm(model.complete() - truth))
        assert 0.9 * size <= model.radius_ < 1.1 * size
    assert error.pop("auto") < 1.2 * min(error.values())


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"problem": "p"}, TypeError, "first argument must be a bx.BilevelProblem, got str"),
        ({"problem": nearest(bx.Box(-1.0, 1.0))}, ValueError, r"path: Box\(-1, 1\) has no radius; use a set"),
        ({"solver": bx.IBCG}, TypeError, "the solver is the class IBCG"),
        ({"radii": [2.0, 1.0]}, ValueError, r"radii must be .* increasing, got \[2.0, 1.0\]; sort them"),
        ({"radii": -1.0}, ValueError, "radii must be positive, .* got -1.0"),
        ({"radii": []}, TypeError, r"one number or an increasing list of numbers, got \[\]"),
        ({"radii": 2.0, "score": None}, ValueError, "from 2 on, scores choose the radii; give score="),
        ({"score": 3}, TypeError, r"score must be a function of \(x, y, data\), got 3"),
        ({"score": lambda x, y, data: y}, ValueError, r"score\(x, y, data\) must return one real .* shape \(5,\)"),
    ],
)
def test_bad_input_is_refused_before_any_run(change, error, words, monkeypatch):
    monkeypatch.setattr("bilevax.runs.path.start", None)
    with pytest.raises(error, match=words):
        bx.path(**{"problem": nearest(bx.L2Ball()), "radii": [1.0, 2.0], "score": held_out} | change)


def test_the_example_of_the_guide_runs(capsys):
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    exec(re.search(r"## Choose a radius by held-out error.*?```python\n(.*?)```", guide, re.S).group(1), {})
    assert "The best radius is" in capsys.readouterr().out
