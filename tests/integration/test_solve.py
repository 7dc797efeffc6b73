"""`solve` from end to end: rows, rules, limits, faults, precision, files, and what may not compile again."""

import csv
import json
import os
import re
import signal
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import known_problem

import bilevax as bx
from bilevax.runs import run_directory

KNOWN = known_problem("Simplex")
PROBLEM, RADIUS = KNOWN.problem, 2.0
X0, Y0 = jnp.full((5,), RADIUS / 5, float), jnp.zeros(6)


def solve(problem=PROBLEM, solver=None, x0=X0, y0=Y0, **options):
    return bx.solve(problem, solver or bx.IBCG(), x0, y0, **{"steps": 40, **options})


def true_gap(x):
    gradient = np.asarray(KNOWN.gradient(x))
    return gradient @ np.asarray(x) - RADIUS * gradient.min()


def distance(x, y, data):
    return jnp.sum((y - x) ** 2)


def numpy_simplex(direction):
    return RADIUS * (np.arange(5) == np.argmin(np.asarray(direction)))


def test_rows_and_columns():
    result = solve(steps=40, every=7)
    assert result.trace["step"].tolist() == [0, 7, 14, 21, 28, 35, 40]
    promised = (
        "seconds gap upper lower_grad_norm adjoint_residual upper_grads lower_grads hvps crosses lmos projections"
    )
    assert {*promised.split()} <= set(result.trace.columns)
    assert result.status is bx.Status.MAX_STEPS and result.message == "all 40 steps were taken" and result.steps == 40
    assert np.all(np.diff(result.trace["seconds"]) > 0) and result.seconds == result.trace.last["seconds"]
    assert result.trace.last["upper"] == pytest.approx(float(PROBLEM.upper_value(result.x, result.y)), rel=1e-12)
    g_y = np.asarray(PROBLEM.data["A"] @ result.y - PROBLEM.data["B"] @ result.x - PROBLEM.data["b"])
    assert result.trace.last["lower_grad_norm"] == pytest.approx(np.linalg.norm(g_y), rel=1e-9)


@pytest.mark.parametrize("steps, every", [(1, 1), (99, 1), (100, 1), (250, 2), (1000, 10)])
def test_default_rows_are_a_hundred(steps, every):
    """And some at the first steps, where fast methods end."""
    early = {2**i for i in range(20) if 2**i < every}
    assert solve(steps=steps).trace["step"].tolist() == sorted({*range(0, steps, every), steps} | early)
    assert solve(steps=steps, every=every).trace["step"].tolist() == [*range(0, steps, every), steps]


def test_compilation_is_reported_apart():
    def slow_to_trace(x, y, data):
        time.sleep(0.3)
        return PROBLEM.upper(x, y, data)

    result = solve(replace(PROBLEM, upper=slow_to_trace), steps=3)
    assert result.compile_seconds > 0.3 and result.seconds < result.compile_seconds


@pytest.mark.parametrize("warmup", [0, 3])
def test_counts_of_ibcg(warmup):
    trace = solve(solver=bx.IBCG(warmup=warmup, constants=bx.Constants(1.0, 10.0)), every=10).trace
    k = trace["step"]
    assert trace["upper_grads"].tolist() == (2 * (k + warmup)).tolist()
    assert trace["lower_grads"].tolist() == (k + warmup).tolist() == trace["hvps"].tolist()
    assert trace["crosses"].tolist() == k.tolist() == trace["lmos"].tolist()
    assert not np.any(trace["projections"])
    estimated = solve(solver=bx.IBCG(warmup=warmup), every=10)  # products spent on estimating constants count too
    spent = int(estimated.solver.constants.products)
    assert 0 < spent <= 300 and estimated.trace["hvps"].tolist() == (k + warmup + spent).tolist()


def test_observers_see_every_row_and_its_state():
    seen = []
    result = solve(every=10, observers=[lambda row, state: seen.append((row, state))] * 2)
    assert [row["step"] for row, _ in seen[::2]] == [0, 10, 20, 30, 40] == [int(s.k) for _, s in seen[1::2]]
    assert jnp.array_equal(seen[-1][1].x, result.x)


def test_metrics_of_every_kind():
    total = {"total": lambda x, y, data: jnp.sum(x)}
    assert np.allclose(solve(metrics=total).trace["total"], RADIUS, atol=1e-12)
    several = solve(metrics=[total, lambda problem, state: {"k": state.k}]).trace
    assert several["k"].tolist() == several["step"].tolist() and "total" in several


def test_exact_metrics_agree_with_the_closed_form():
    states = []
    trace = solve(metrics=bx.exact_metrics, observers=lambda row, state: states.append(state), every=8).trace
    for row, state in zip(trace, states, strict=True):
        assert row["ell"] == pytest.approx(KNOWN.ell(state.x), abs=1e-8)
        assert row["true_gap"] == pytest.approx(true_gap(state.x), abs=1e-8)
        assert row["true_grad_norm"] == pytest.approx(np.linalg.norm(KNOWN.gradient(state.x)), abs=1e-8)
        assert row["y_error"] == pytest.approx(np.linalg.norm(state.y - KNOWN.lower_solution(state.x)), abs=1e-8)
        assert row["w_error"] == pytest.approx(np.linalg.norm(state.w - KNOWN.adjoint(state.x)), abs=1e-8)


@pytest.mark.parametrize("rule", [{"tol": 0.3}, {"stop": bx.gap_below(0.3)}, {"stop": [bx.relative_gap(0.05)]}])
def test_converged_rules_end_with_a_true_gap(rule):
    result = solve(steps=2000, every=1, **rule)
    limit = 0.05 * result.trace["gap"][0] if isinstance(rule.get("stop"), list) else 0.3
    assert result.success and result.check() is result and true_gap(result.x) <= limit
    assert re.match(r"true gap .* <= ", result.message) and 0 < result.steps < 2000


def test_plateau_stalls_and_check_raises():
    result = solve(solver=bx.IBCG(gamma=0.5), steps=500, every=1, stop=bx.plateau(rows=30, ratio=0.5))
    assert result.status is bx.Status.STALLED and 30 < result.steps < 500
    with pytest.raises(bx.SolveFailed, match="STALLED: gap improved by less than 0.5 of itself over 30 rows"):
        result.check()


@pytest.mark.parametrize("verdict", [True, np.True_, bx.Status.STOPPED])
def test_user_rules_that_stop(verdict):
    def mine(trace):
        return verdict if trace.last["step"] >= 5 else None

    result = solve(stop=mine, every=1)
    assert (result.status, result.message, result.steps) == (bx.Status.STOPPED, "the rule mine said so", 5)
    told = solve(stop=lambda trace: bx.Stop(bx.Status.STALLED, "enough"))
    assert (told.status, told.message) == (bx.Status.STALLED, "enough")


@pytest.mark.parametrize("verdict", [False, np.False_, None])
def test_user_rules_that_go_on(verdict):
    assert solve(stop=lambda trace: verdict).status is bx.Status.MAX_STEPS


def test_user_rules_that_answer_nonsense():
    with pytest.raises(TypeError, match="rule <lambda> returned 'yes'; return None, True, a Status or a bx.Stop"):
        solve(stop=lambda trace: "yes")
    with pytest.raises(ValueError, match=r"must return bx.Stop\(CONVERGED, message, limit\) with a gap to verify"):
        solve(stop=lambda trace: bx.Status.CONVERGED)


def test_time_limit():
    result = solve(steps=10**9, time_limit=1.5)
    assert result.status is bx.Status.TIME_LIMIT and 0 < result.steps < 10**9 and result.seconds >= 1.5
    assert "time limit of 1.5 s" in result.message and result.trace.last["step"] == result.steps


def test_interrupt_keeps_the_state_and_restores_the_handler():
    before = signal.getsignal(signal.SIGINT)
    interrupt = lambda row, state: row["step"] == 20 and os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    result = solve(every=10, observers=interrupt)
    assert result.status is bx.Status.STOPPED and "interrupted at step 20" in result.message
    assert signal.getsignal(signal.SIGINT) is before
    assert jnp.array_equal(result.x, solve(steps=20).x) and result.steps == int(result.state.k) == 20
    with pytest.raises(KeyboardInterrupt):
        solve(every=10, observers=[interrupt, interrupt])
    assert signal.getsignal(signal.SIGINT) is before


def test_a_diverging_lower_level_is_named_and_the_last_finite_state_kept():
    solver = bx.IBCG(alpha=1e4, eta=0.1, warmup=0)
    result = solve(solver=solver, steps=2000, every=500)
    assert result.status is bx.Status.NONFINITE and 0 < result.steps < 200
    assert re.match(rf"step {result.steps} made (the direction|w|y) non-finite; the state before", result.message)
    assert bool(jnp.all(jnp.isfinite(result.x))) and bool(jnp.all(jnp.isfinite(result.y)))
    see = lambda state, info: (state.y, info.direction)  # noqa: E731
    _, (ys, directions) = bx.run(PROBLEM, solver, X0, Y0, steps=result.steps + 1, collect=see)
    assert np.allclose(ys[-1], result.y, rtol=1e-9)
    # Up to the last step but one everything is finite; that step ends in an infinite direction, x or y.
    assert np.all(np.isfinite(directions[:-1])) and np.all(np.isfinite(ys))
    following, _ = bx.run(PROBLEM, solver, X0, Y0, steps=result.steps + 1)
    assert not (np.all(np.isfinite(directions[-1])) and np.all(np.isfinite(following.y)))


def test_an_upper_level_that_turns_nan_is_named():
    # x_k = 1 - 0.9^k passes 1/2 at k = 7, and from there on the gradient of f is NaN.
    problem = bx.BilevelProblem(
        lambda x, y, _: -jnp.sum(jnp.where(x > 0.5, jnp.nan, 1.0) * x), distance, bx.Box(0.0, 1.0)
    )
    result = solve(problem, bx.IBCG(gamma=0.1), jnp.zeros(1), jnp.zeros(1), every=20)
    assert result.status is bx.Status.NONFINITE and result.steps == 7
    assert result.message == "step 7 made the direction non-finite; the state before it is kept"
    assert float(result.x[0]) == pytest.approx(1 - 0.9**7, abs=1e-12)


@pytest.mark.parametrize("every", [1, 40])
def test_a_single_infinite_direction_is_noticed_whatever_the_rows(every):
    # The first step ends in a vertex, where the square root has an infinite slope; the second leaves it again.
    upper = lambda x, y, _: 0.5 * jnp.sum((y - 0.3) ** 2) - 0.1 * jnp.sum(jnp.sqrt(x))  # noqa: E731
    problem = bx.BilevelProblem(upper, distance, bx.Simplex())
    result = solve(problem, x0=jnp.ones(3) / 3, y0=jnp.zeros(3), every=every)
    assert result.status is bx.Status.NONFINITE and result.steps == 1


def test_a_warm_up_that_overflows_keeps_a_finite_state():
    result = solve(solver=bx.IBCG(alpha=1e30, warmup=50))
    assert result.status is bx.Status.NONFINITE and bool(jnp.all(jnp.isfinite(result.y)))


def test_rows_change_no_bit_and_the_key_fixes_the_run():
    first, *others = (solve(every=every, key=jax.random.key(7)) for every in (1, 3, 40, 40))
    for other in others:
        assert np.array_equal(first.x, other.x) and np.array_equal(first.y, other.y)


HOSTED = {
    "lmo": bx.UserSet(numpy_simplex, host=True),
    "projection": bx.UserSet(numpy_simplex, project=lambda x: np.clip(np.asarray(x), 0, RADIUS), host=True),
    "solves": bx.LowerStructure(
        solve_lower=lambda x, y, d: np.linalg.solve(d["A"], d["B"] @ x + d["b"]),
        solve_adjoint=lambda x, y, b, d: np.linalg.solve(d["A"], b), host=True,
    ),
    "products": bx.LowerStructure(
        hvp=lambda x, y, w, d: np.asarray(d["A"]) @ np.asarray(w),
        cross=lambda x, y, w, d: -np.asarray(w) @ np.asarray(d["B"]), host=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTED)
def test_host_stepping_gives_the_compiled_answer(kind):
    part = "domain" if kind in ("lmo", "projection") else "structure"
    problem = replace(PROBLEM, **{part: HOSTED[kind]})
    constants = bx.Constants(1.0, 10.0)
    hosted, compiled = (solve(p, bx.IBCG(constants=constants), steps=400, tol=1.0) for p in (problem, PROBLEM))
    assert np.allclose(hosted.x, compiled.x, atol=1e-10) and np.allclose(hosted.y, compiled.y, atol=1e-10)
    assert hosted.status is compiled.status is bx.Status.CONVERGED


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_precision_follows_the_start(dtype):
    data = jax.tree.map(lambda v: v.astype(dtype), PROBLEM.data)
    result = solve(replace(PROBLEM, data=data), x0=X0.astype(dtype), y0=Y0.astype(dtype), steps=2000, tol=0.3)
    assert {v.dtype for v in jax.tree.leaves((result.x, result.y, result.state.w))} == {np.dtype(dtype)}
    assert result.success and KNOWN.ell(np.asarray(result.x, float)) - KNOWN.ell_star <= 0.3


def test_nested_points_on_both_levels():
    target = jnp.array([0.5, 0.2])
    problem = bx.BilevelProblem(
        lambda x, y, t: 0.5 * jnp.sum((y["u"] - t) ** 2) + 0.5 * jnp.sum((y["v"][0] + 1) ** 2),
        lambda x, y, _: jnp.sum((y["u"] - x[0]) ** 2) + jnp.sum((y["v"][0] - 2 * x[1]["c"]) ** 2),
        bx.Product((bx.L1Ball(3.0), {"c": bx.Box(-1.0, 1.0)})), target,
    )  # fmt: skip
    x0, y0 = (jnp.zeros(2), {"c": jnp.zeros(3)}), {"u": jnp.zeros(2), "v": [jnp.zeros(3)]}
    result = solve(problem, bx.IBCG(), x0, y0, steps=5000, tol=1e-2)
    assert result.success and jax.tree.structure((result.x, result.y)) == jax.tree.structure((x0, y0))
    assert np.allclose(result.x[0], target, atol=0.15) and np.allclose(result.x[1]["c"], -0.5, atol=0.08)


def test_the_printed_result():
    shown = str(solve(tol=1e-12))
    for words in (
        "MAX_STEPS  IBCG, 40 steps", "true gap ", "feasibility  x is in the set", "mu_g = 1 (estimated)",
        "D_X = 2.828 (exact)", "oracle calls upper_grads", "next  ",
    ):  # fmt: skip
        assert words in shown
    assert "mu_g = 1 (given), L_g = 10 (given)" in str(solve(solver=bx.IBCG(constants=bx.Constants(1.0, 10.0))))
    assert "CONVERGED" in (shown := str(solve(tol=5.0))) and "next         nothing" in shown
    outside = bx.UserSet(lambda d: 3 * jnp.sign(d), contains=lambda x: jnp.all(jnp.abs(x) < 2))
    left = str(solve(replace(PROBLEM, domain=outside), bx.IBCG(gamma=1.0), steps=1))
    assert "feasibility  its own membership test says no" in left


def test_run_directory_round_trip(tmp_path):
    result = solve(replace(PROBLEM, domain=bx.UserSet(lambda d: RADIUS * jax.nn.one_hot(jnp.argmin(d), 5))))
    config, trace = run_directory.load(result.save(tmp_path / "run"))
    assert (config["status"], config["steps"], config["format"]) == ("MAX_STEPS", 40, 1)
    np.testing.assert_equal(list(trace), list(result.trace))  # for which NaN is NaN
    assert "NaN" not in (tmp_path / "run" / "config.json").read_text()  # which is not JSON


def test_trace_files_and_frames(tmp_path):
    trace = solve(metrics={"missing": lambda *_: np.nan, "third": lambda *_: 1 / 3}).trace
    with open(trace.to_csv(tmp_path / "t.csv"), newline="") as stream:
        assert [float(row["gap"]) for row in csv.DictReader(stream)] == trace["gap"].tolist()
    back = bx.Trace.from_csv(tmp_path / "t.csv")
    columns, frame = json.loads(trace.to_json(tmp_path / "t.json").read_text()), trace.to_dataframe()
    for name in trace.columns:
        assert np.array_equal(back[name], trace[name], equal_nan=True) and back[name].dtype == trace[name].dtype
        assert np.array_equal(frame[name].to_numpy(), trace[name], equal_nan=True)
        assert columns[name] == [None if np.isnan(v) else v for v in trace[name].tolist()]


def test_progress_goes_to_stderr_only(capsys):
    solve(progress="my run")
    shown = capsys.readouterr()
    assert shown.out == "" and re.search(r"my run .*100%  step 40/40  gap .*MAX_STEPS\n$", shown.err)
    solve()
    assert capsys.readouterr() == ("", "")
