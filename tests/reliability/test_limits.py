"""Limits of memory and time: refusals with numbers before the work, and steps that are whole."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax import memory
from bilevax.estimators import MatrixCompletion


def test_what_is_free_is_within_what_the_system_says(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    assert memory.available() == 4e6
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available() > 4e6
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    assert memory.available() == float("inf")


def test_a_method_that_does_not_fit_is_refused_with_numbers(monkeypatch):
    n = 5_000_000
    problem = bx.BilevelProblem(
        lambda x, y, _: jnp.mean((y - 1) ** 2), lambda x, y, _: 0.5 * jnp.sum((y - x) ** 2), bx.Box(0.0, 1.0)
    )
    x = jnp.zeros(n, jnp.float32)
    monkeypatch.setattr(memory, "available", lambda: 1e8)
    with pytest.raises(
        MemoryError, match="SOBA on 5,000,000 variables above and 5,000,000 below needs about .* are free"
    ):
        bx.solve(problem, bx.SOBA(xi=0.1, constants=bx.Constants(1.0, 1.0)), x, x, steps=2)
    monkeypatch.setattr(memory, "available", lambda: 1e12)
    assert bx.solve(problem, bx.SOBA(xi=0.1, constants=bx.Constants(1.0, 1.0)), x, x, steps=2).steps == 2


def test_the_whole_matrix_is_refused_where_it_does_not_fit(monkeypatch):
    rng = np.random.default_rng(0)
    rows, cols = np.nonzero(rng.random((20, 15)) < 0.7)
    model = MatrixCompletion(max_steps=2, effort="fast").fit((rows, cols, rng.standard_normal(len(rows))))
    monkeypatch.setattr(memory, "available", lambda: 1000.0)
    with pytest.raises(MemoryError, match=r"the whole matrix needs about .*; predict\(rows, cols\) gives"):
        model.complete()


def test_a_time_limit_is_kept_to_a_second_and_a_step():
    problem = bx.BilevelProblem(
        lambda x, y, _: jnp.mean((y - 1) ** 2), lambda x, y, _: 0.5 * jnp.sum((y - x) ** 2), bx.Box(0.0, 1.0)
    )
    x = jnp.zeros(1000)
    bx.solve(problem, bx.IBCG(), x, x, steps=100)  # compiles
    began = time.perf_counter()
    result = bx.solve(problem, bx.IBCG(), x, x, steps=10**8, time_limit=0.5)
    assert result.status.name == "TIME_LIMIT" and time.perf_counter() - began < 5
    assert 0.5 <= result.seconds <= 1.5 and result.state.k == result.steps


def test_memory_does_not_grow_with_the_steps():
    problem = bx.BilevelProblem(
        lambda x, y, _: jnp.mean((y - 1) ** 2), lambda x, y, _: 0.5 * jnp.sum((y - x) ** 2), bx.Box(0.0, 1.0)
    )
    x = jnp.zeros(10)
    counts = []
    for steps in (1000, 20_000):
        bx.solve(problem, bx.IBCG(), x, x, steps=steps, every=steps)
        counts.append(len(jax.live_arrays()))
    assert counts[1] <= counts[0] + 20
