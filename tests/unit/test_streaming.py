"""Rows that are not in memory: the same answers as with arrays, windows that are fair, and readers that fail loudly."""

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.problem import LowerStructure
from bilevax.streaming.windows import Order, Windows, on_windows
from bilevax.verdict.assumptions import examine

TRAIN, VALID, FEATURES = 700, 450, 4


def loss(y, part):
    return 0.5 * jnp.mean((part["A"] @ y - part["b"]) ** 2)


def upper(x, y, data):
    return loss(y, data["valid"])


def lower(x, y, data):
    return loss(y, data["train"]) + 0.5 * jnp.sum(jnp.exp(x) * y**2)


def curved_lower(x, y, data):
    part = data["train"]
    return jnp.mean(jnp.logaddexp(0, -part["b"] * (part["A"] @ y))) + 0.5 * jnp.sum(jnp.exp(x) * y**2)


QUADRATIC_AND_CURVED = [(upper, lower), pytest.param((upper, curved_lower), marks=pytest.mark.slow)]


def arrays(dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    truth, data = rng.standard_normal(FEATURES), {}
    for name, rows in (("train", TRAIN), ("valid", VALID)):
        A = rng.standard_normal((rows, FEATURES))
        data[name] = {"A": A.astype(dtype), "b": (A @ truth + rng.standard_normal(rows)).astype(dtype)}
    return data


def problem(data, sampler=None, functions=(upper, lower)):
    return bx.BilevelProblem(*functions, bx.Box(-5.0, 3.0), data, sampler)


def streams(data, windows=(300, 128)):
    return {n: bx.Stream(part, window=w) for (n, part), w in zip(data.items(), windows, strict=True)}


def batches(size=8):
    return bx.PerPart({"train": bx.Minibatch(size, TRAIN), "valid": bx.Minibatch(size, VALID)})


START = jnp.zeros(FEATURES, jnp.float32)
Y = jnp.asarray(np.linspace(-1, 1, FEATURES), jnp.float32)


class Rows:
    """`len` and `getitem` for single rows, as data sets of deep-learning packages have."""

    def __init__(self, part, fails_at=None):
        self.part, self.fails_at = part, fails_at

    def __len__(self):
        return len(self.part["b"])

    def __getitem__(self, i):
        if not isinstance(i, int):
            raise TypeError("one row at a time")
        if i == self.fails_at:
            raise OSError("the disk is gone")
        return {"A": self.part["A"][i], "b": self.part["b"][i]}


class Slices(Rows):
    """The same for slices."""

    def __getitem__(self, i):
        return {"A": self.part["A"][i], "b": self.part["b"][i]}


def write_parquet(path, part, group=64, first=0, last=None):
    import pyarrow
    import pyarrow.parquet

    rows = slice(first, last)
    columns = {f"f{i}": part["A"][rows, i] for i in range(FEATURES)} | {"label": part["b"][rows]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=group)


COLUMNS = {"A": [f"f{i}" for i in range(FEATURES)], "b": "label"}


# What is read


@pytest.mark.parametrize("kind", ["arrays", "memmap", "slice of a memmap", "rows", "slices", "file", "folder", "lists"])
def test_every_source_gives_the_same_rows(kind, tmp_path):
    part = arrays()["train"]
    if kind in ("memmap", "slice of a memmap"):
        more = 13 if kind != "memmap" else 0
        for name, v in part.items():
            np.save(tmp_path / f"{name}.npy", np.concatenate([v[:more] + 1, v]))
        mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r")[more:] for name in part}
        stream = bx.Stream(mapped, window=100)
    elif kind in ("file", "folder"):
        write_parquet(tmp_path / "2.parquet", part, first=0 if kind == "file" else 200)
        if kind == "folder":
            write_parquet(tmp_path / "1.parquet", part, last=200)
        stream = bx.Stream.parquet(tmp_path / "2.parquet" if kind == "file" else tmp_path, COLUMNS, window=100)
    elif kind == "lists":
        import pyarrow
        import pyarrow.parquet

        columns = {"A": list(part["A"]), "b": part["b"]}
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "rows.parquet", row_group_size=50)
        stream = bx.Stream.parquet(tmp_path / "rows.parquet", {"A": "A", "b": "b"}, window=100)
    else:
        stream = bx.Stream({"arrays": part, "rows": Rows(part), "slices": Slices(part)}[kind], window=100)
    assert len(stream) == TRAIN and stream.resumable
    for start, stop in ((0, TRAIN), (0, 1), (37, 412), (TRAIN - 5, TRAIN), (9, 9)):
        read = stream.read(start, stop)
        for name in part:
            np.testing.assert_array_equal(read[name], part[name][start:stop])
            assert read[name].dtype == part[name].dtype


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel")
def test_a_stream_of_a_mapped_file_maps_no_page(tmp_path):
    """A page that is read through the map counts as memory of the process until the map is closed."""
    np.save(tmp_path / "A.npy", np.arange(2_000_000, dtype=np.float32).reshape(-1, 2))
    mapped = np.load(tmp_path / "A.npy", mmap_mode="r")

    def resident():
        after = Path("/proc/self/smaps").read_text().split(str(tmp_path / "A.npy"))[1]
        return next(int(line.split()[1]) for line in after.splitlines() if line.startswith("Rss:"))

    stream = bx.Stream(mapped, window=1000)
    np.testing.assert_array_equal(stream.read(999_000, 1_000_000)[:, 1], np.arange(1_998_001, 2_000_000, 2))
    stream.read(0, 1_000_000)
    assert resident() <= 200  # kB, of 8 MB
    mapped.sum()
    assert resident() > 7000


def test_integers_are_narrowed_with_a_check_and_floats_cast_on_request():
    stream = bx.Stream({"i": np.arange(10), "v": np.ones(10)}, window=4, dtype=np.float32)
    assert stream.read(2, 4)["v"].dtype == np.float32
    wide = np.array([1, 2**40, 3])
    assert bx.Stream(wide).read(0, 2).dtype == np.int64
    with jax.enable_x64(False):
        narrow = bx.Stream(wide)
        assert narrow.read(2, 3).dtype == np.int32
        with pytest.raises(RuntimeError, match="beyond 32 bits"):
            narrow.read(0, 2)


# All rows


@pytest.mark.parametrize(
    "windows",
    [(300, 128), *(pytest.param(w, marks=pytest.mark.slow) for w in ((128, 300), (700, 90), (1000, 1000))), (70, 45)],
)
@pytest.mark.parametrize("functions", QUADRATIC_AND_CURVED, ids=["quadratic", "curved"])
def test_oracles_are_means_over_all_rows(windows, functions):
    data = arrays()
    whole, streamed = problem(data, None, functions), problem(streams(data, windows), None, functions)
    w = jnp.ones(FEATURES, jnp.float32)
    for name in ("upper_value", "lower_value", "upper_grads", "lower_grad", "lower_grads", "upper_value_and_grads"):
        expected, got = (jax.tree.leaves(getattr(p, name)(START, Y)) for p in (whole, streamed))
        for a, b in zip(expected, got, strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=1e-6, err_msg=name)
    for name in ("lower_hvp", "lower_cross"):
        np.testing.assert_allclose(getattr(streamed, name)(START, Y, w), getattr(whole, name)(START, Y, w), 2e-5, 1e-6)


def test_a_function_of_two_streams_of_different_lengths_has_its_exact_mean():
    data = arrays(np.float64)
    both = lambda x, y, data: loss(y, data["train"]) - 2 * loss(y, data["valid"])  # noqa: E731
    y = jnp.asarray(np.linspace(-1, 1, FEATURES))
    got = problem(streams(data, (130, 77)), None, (both, lower)).upper_value(y, y)
    residual = {n: part["A"] @ np.linspace(-1, 1, FEATURES) - part["b"] for n, part in data.items()}
    expected = 0.5 * np.mean(residual["train"] ** 2) - np.mean(residual["valid"] ** 2)
    np.testing.assert_allclose(got, expected, rtol=1e-13)


def test_streams_of_one_length_are_cut_alike():
    """Rows of very different sizes, which alone would be read in blocks of different sizes."""
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((3000, 2000)).astype(np.float32), np.arange(3000, dtype=np.float32)
    loss = lambda x, y, data: jnp.mean(data["b"] * (data["A"] @ y)) + jnp.sum((y - x) ** 2)  # noqa: E731
    data = {"A": bx.Stream(A, window=2000), "b": bx.Stream(b, window=1500)}
    zero = jnp.zeros(2000, jnp.float32)
    got = bx.BilevelProblem(loss, loss, bx.Box(-1.0, 1.0), data).lower_grad(zero, zero)
    np.testing.assert_allclose(got, b.astype(float) @ A.astype(float) / 3000, rtol=1e-3, atol=0.05)
    with pytest.raises(TypeError, match="arrays with a row for each of its rows belong into it"):
        mixed = bx.BilevelProblem(loss, loss, bx.Box(-1.0, 1.0), {"A": data["A"], "b": b})
        bx.solve(mixed, None, zero, zero)


def test_only_the_streams_are_read_that_a_level_reads():
    data = arrays()
    broken = {
        "train": bx.Stream(Rows(data["train"]), window=100),
        "valid": bx.Stream(Rows(data["valid"], 440), window=100),
    }
    streamed = problem(broken)
    streamed.lower_grad(START, Y)
    with pytest.raises(RuntimeError, match="rows 400 to 450 of Rows could not be read: OSError: the disk is gone"):
        streamed.upper_value(START, Y)


@pytest.mark.parametrize("functions", QUADRATIC_AND_CURVED, ids=["quadratic", "curved"])
def test_audits_agree_with_those_of_arrays(functions):
    data = arrays()
    whole, streamed = problem(data, None, functions), problem(streams(data), None, functions)
    expected, got = bx.audit(whole, START, Y), bx.audit(streamed, START, Y)
    np.testing.assert_allclose([got.gap, got.ell], [expected.gap, expected.ell], rtol=1e-12)
    np.testing.assert_allclose(got.gradient, expected.gradient, rtol=1e-6)
    assert got.certified == expected.certified != ""
    assert 0 < got.grad_error < 100 * expected.grad_error
    assert examine(streamed, START, got.y, START, Y) == ("", "")


@pytest.mark.slow
def test_audits_by_conjugate_gradients_agree_too(monkeypatch):
    monkeypatch.setattr("bilevax.verdict.bounded_gradient.ALWAYS_DENSE", 0)
    monkeypatch.setattr("bilevax.verdict.assumptions._WHOLE_ON_STREAMS", 0)
    data = arrays()
    whole, streamed = problem(data), problem(streams(data))
    expected, got = bx.audit(whole, START, Y), bx.audit(streamed, START, Y)
    np.testing.assert_allclose([got.gap, got.ell], [expected.gap, expected.ell], rtol=1e-10)
    assert got.certified == "estimated"
    assert examine(streamed, START, got.y, START, Y) == ("", "")


@pytest.mark.slow
def test_the_solution_is_that_of_the_normal_equations():
    """All rows by passes: ell at the end, with y from numpy, is that of a run on arrays."""
    data = arrays()
    result = bx.solve(problem(streams(data)), None, START, START, steps=60, tol=1e-4, every=20)
    assert result.success and result.certified == "proved", result.message
    A, b = (np.float64(data["train"][name]) for name in "Ab")
    ridge = np.diag(np.exp(np.float64(result.x)))
    y = np.linalg.solve(A.T @ A / TRAIN + ridge, A.T @ b / TRAIN)
    np.testing.assert_allclose(result.y, y, rtol=1e-4, atol=1e-6)
    V, v = (np.float64(data["valid"][name]) for name in "Ab")
    assert result.audit().ell == pytest.approx(0.5 * np.mean((V @ y - v) ** 2), rel=1e-6)


KNOWN = {"constants": bx.Constants(mu_g=0.5, L_g=5.0)}


@pytest.mark.parametrize(
    "solver",
    [
        bx.AdaptiveIBCG(),
        bx.IBCG(0.1, **KNOWN),
        *(pytest.param(s, marks=pytest.mark.slow) for s in (bx.SOBA(0.05, 0.1, **KNOWN), bx.AIDBiO(0.05, **KNOWN))),
    ],
    ids=lambda solver: type(solver).__name__,
)
def test_methods_without_a_sampler_take_the_same_steps_by_passes(solver):
    data = arrays()
    whole, streamed = (bx.solve(problem(d), solver, START, START, steps=3, every=3) for d in (data, streams(data)))
    np.testing.assert_allclose(streamed.x, whole.x, rtol=1e-4, atol=1e-5)
    assert not np.array_equal(streamed.x, START)


def test_a_formula_of_the_user_is_averaged_and_checked():
    data = arrays()
    hvp = lambda x, y, w, data: (  # noqa: E731
        data["train"]["A"].T @ (data["train"]["A"] @ w) / len(data["train"]["b"]) + jnp.exp(x) * w
    )
    given = LowerStructure(hvp=hvp)
    whole, streamed = (replace(problem(d), structure=given) for d in (data, streams(data)))
    w = jnp.ones(FEATURES, jnp.float32)
    np.testing.assert_allclose(streamed.lower_hvp(START, Y, w), whole.lower_hvp(START, Y, w), rtol=1e-5)
    wrong = LowerStructure(hvp=lambda x, y, w, data: 2 * hvp(x, y, w, data))
    with pytest.raises(ValueError, match="hvp disagrees with autodiff"):
        bx.solve(replace(streamed, structure=wrong), bx.IBCG(), START, START, steps=1)
    with pytest.raises(TypeError, match="need all rows at once"):
        replace(streamed, structure=LowerStructure(solve_lower=lambda x, y, data: y))


# Windows


@pytest.mark.parametrize(("rows", "window"), [(1000, 100), (1003, 128), (129, 128), (5000, 65), (300, 64)])
def test_every_row_comes_once_in_a_pass(rows, window):
    pieces = np.array([0, 37, 90]) if rows == 300 else None
    order = Order(rows, window, pieces, jax.random.key(3))
    sequence = np.concatenate([np.arange(a, b) for j in range(3 * rows // window + 2) for a, b in order.pieces(j)])
    first, second = sequence[:rows], sequence[rows : 2 * rows]
    np.testing.assert_array_equal(np.sort(first), np.arange(rows))
    np.testing.assert_array_equal(np.sort(second), np.arange(rows))
    assert not np.array_equal(first, second)
    again = Order(rows, window, pieces, jax.random.key(3))
    assert again.pieces(2) == order.pieces(2)  # whatever was asked before
    assert Order(rows, window, pieces, jax.random.key(4)).pieces(2) != order.pieces(2)


@pytest.mark.slow
def test_every_place_of_a_window_holds_every_row_equally_often():
    """Runs of unequal length: 23 rows in runs of 5."""
    rows, draws = 23, 600
    counts = np.zeros((2, rows))
    for seed in range(draws):
        order = Order(rows, 320, None, jax.random.key(seed))
        taken = [row for a, b in order.pieces(0) for row in range(a, b)]
        counts[0, taken[0]] += 1
        counts[1, taken[11]] += 1
    expected = draws / rows
    chi = np.sum((counts - expected) ** 2 / expected, axis=1)
    assert np.all(chi < 22 + 5 * np.sqrt(2 * 22))


def test_rows_of_a_window_come_from_all_over_the_source():
    taken = np.array([a for a, _ in Order(100_000, 6400, None, jax.random.key(0)).pieces(0)])
    assert len(taken) >= 64 and np.ptp(taken) > 90_000


def test_row_groups_are_decoded_once_in_a_pass(tmp_path, monkeypatch):
    part = arrays()["train"]
    write_parquet(tmp_path / "rows.parquet", part, group=50)
    stream = bx.Stream.parquet(tmp_path / "rows.parquet", COLUMNS, window=64)
    decoded, group = [], stream.source._group

    def counted(i):
        if i not in stream.source._cache:
            decoded.append(i)
        return group(i)

    monkeypatch.setattr(stream.source, "_group", counted)
    order = Order(TRAIN, 64, stream.source.pieces, jax.random.key(0))
    for j in range(TRAIN // 64 + 1):
        stream.gather(order.pieces(j))
    assert len(decoded) <= 14 + 8  # the groups, and those that the pass began in the middle of
    assert sum(len(v[0]) for v in stream.source._cache.values()) <= 4 * 64 + 50


def test_streams_of_one_length_keep_their_rows_together():
    A = np.arange(500, dtype=np.float32)
    data = {"A": bx.Stream(A, window=96), "b": bx.Stream(2 * A, window=96), "c": np.ones(3)}
    drawn = on_windows(bx.Minibatch(10, 500), data)
    assert drawn.batches == 9 and drawn.sampler.total == 90  # of 96 rows, nine whole batches
    windows = Windows(data, drawn.rows, jax.random.key(0), 9, 100)
    for k in (0, 9, 18, 60):
        now = windows.at(k)
        batch = drawn.sampler.take(now, drawn.sampler.draw(jax.random.key(1), jnp.asarray(k)))
        np.testing.assert_array_equal(batch["b"], 2 * batch["A"])
        assert batch["A"].shape == (10,) and batch["c"].shape == (3,)
    windows.close()


@pytest.mark.parametrize("replacement", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_batches_of_windows_are_unbiased(replacement):
    data = {"v": np.arange(40, dtype=np.float32)}
    stream = {"v": bx.Stream(data["v"], window=16)}
    drawn = on_windows(bx.Minibatch(4, 40, replacement=replacement), stream)
    means = []
    for seed in range(100):
        windows = Windows(stream, drawn.rows, jax.random.key(seed), drawn.batches, 1)
        batch = drawn.sampler.take(windows.at(0), drawn.sampler.draw(jax.random.key(seed + 1000), jnp.asarray(1)))
        means.append(float(jnp.mean(batch["v"])))
    assert abs(np.mean(means) - 19.5) < 4.5 * np.std(means) / 10


# Runs


def test_a_run_has_the_same_bits_however_it_is_cut(monkeypatch):
    data = arrays()
    one = problem(streams(data), batches())
    solve = lambda **options: bx.solve(one, bx.SOBA(0.01, 0.05), START, START, steps=90, **options)  # noqa: E731
    first, second = solve(every=90), solve(every=7)
    monkeypatch.setattr("bilevax.runs.loop._CHUNK_SECONDS", 1e-9)  # one step a call
    third = solve(every=45)
    for other in (second, third):
        for a, b in zip(jax.tree.leaves(first.state), jax.tree.leaves(other.state), strict=True):
            np.testing.assert_array_equal(a, b)
    assert not np.array_equal(solve(every=90, key=jax.random.key(1)).x, first.x)


def test_rows_of_the_trace_describe_all_rows():
    data = arrays()
    metric = lambda x, y, data: jnp.mean(data["train"]["b"] * (data["train"]["A"] @ y))  # noqa: E731
    one = problem(streams(data), batches())
    result = bx.solve(one, bx.SOBA(0.01, 0.05), START, START, steps=40, every=40, metrics={"m": metric})
    V, v, A, b = (np.float64(data[part][name]) for part in ("valid", "train") for name in "Ab")
    y = np.float64(result.y)
    assert result.trace.last["upper"] == pytest.approx(0.5 * np.mean((V @ y - v) ** 2), rel=1e-5)
    assert result.trace.last["m"] == pytest.approx(np.mean(b * (A @ y)), rel=1e-5)
    g_y = A.T @ (A @ y - b) / TRAIN + np.exp(np.float64(result.x)) * y
    assert result.trace.last["lower_grad_norm"] == pytest.approx(np.linalg.norm(g_y), rel=1e-4)


def test_mini_batches_come_from_windows_and_the_end_from_all_rows():
    data = arrays()
    states = []
    options = {"steps": 300, "tol": 1e-3, "observers": lambda row, state: states.append(state)}
    result = bx.solve(problem(streams(data), batches()), bx.SampledIBCG(passes=2000.0), START, START, **options)
    assert result.success, result.message
    assert states[2].sampling and not states[-1].sampling
    expected = bx.solve(problem(data), None, START, START, steps=200, tol=1e-4)
    assert result.audit().ell == pytest.approx(expected.audit().ell, abs=1e-3)
    assert len(result.trace) > 2 and np.all(np.diff(result.trace["step"]) > 0)


def test_data_that_one_window_holds_are_arrays():
    data = arrays()
    one = problem(streams(data, (TRAIN, VALID)), batches())
    result = bx.solve(one, bx.SOBA(0.01, 0.05), START, START, steps=20)
    expected = bx.solve(problem(data, batches()), bx.SOBA(0.01, 0.05), START, START, steps=20)
    assert not result.problem.streamed
    np.testing.assert_array_equal(result.x, expected.x)


def test_one_part_may_be_in_memory():
    data = arrays()
    mixed = {"train": bx.Stream(data["train"], window=128), "valid": jax.tree.map(jnp.asarray, data["valid"])}
    result = bx.solve(problem(mixed, batches()), bx.SOBA(0.01, 0.05), START, START, steps=60)
    assert np.isfinite(result.audit().gap) and result.steps == 60


def test_an_iterable_feeds_a_run_that_is_never_called_converged():
    data = arrays()

    class Chunks:
        def __iter__(self):
            return (
                {"A": data["train"]["A"][i : i + 50], "b": data["train"]["b"][i : i + 50]} for i in range(0, 700, 50)
            )

    stream = bx.Stream(Chunks(), window=128)
    assert not stream.resumable
    with pytest.raises(TypeError, match="has no length"):
        len(stream)
    mixed = {"train": stream, "valid": data["valid"]}
    one = problem(mixed, bx.PerPart({"train": bx.Minibatch(8, 128), "valid": bx.Minibatch(8, VALID)}))
    result = bx.solve(one, bx.SOBA(0.01, 0.05), START, START, steps=100, tol=1e3)
    assert result.status is bx.Status.MAX_STEPS and "without length" in result.message
    assert float(result.trace.last["upper"]) < float(result.trace.first["upper"])
    with pytest.raises(ValueError, match="uses all rows"):
        bx.solve(problem(mixed), bx.ProjectedIBCG(), START, START, steps=1)
    with pytest.raises(TypeError, match="has no length, and all rows are asked for"):
        bx.audit(one, START, Y)


def test_threads_end_with_the_run_and_errors_of_the_reader_are_raised():
    readers = lambda: [t for t in threading.enumerate() if t.name.startswith("bilevax reader")]  # noqa: E731
    data = arrays()
    bx.solve(problem(streams(data), batches()), bx.SOBA(0.01, 0.05), START, START, steps=30)
    assert not readers()

    class Breaks(Slices):
        reads = 0

        def __getitem__(self, i):
            self.reads += 1
            if self.reads > 120:
                raise OSError("the disk is gone")
            return super().__getitem__(i)

    broken = {"train": bx.Stream(Breaks(data["train"]), window=128), "valid": data["valid"]}
    with pytest.raises(RuntimeError, match=r"rows \d+ to \d+ of Breaks could not be read: OSError: the disk is gone"):
        bx.solve(problem(broken, batches()), bx.SOBA(0.01, 0.05), START, START, steps=400)
    assert not readers()

    class Slow(Slices):
        def __getitem__(self, i):
            time.sleep(0.003)
            return super().__getitem__(i)

    def stop(row, state):
        raise KeyboardInterrupt

    slow = {"train": bx.Stream(Slow(data["train"]), window=128), "valid": data["valid"]}
    with pytest.raises(KeyboardInterrupt):
        bx.solve(problem(slow, batches()), bx.SOBA(0.01, 0.05, **KNOWN), START, START, steps=400, observers=stop)
    assert not readers()


# Bad input


def test_bad_sources_are_refused(tmp_path):
    with pytest.raises(ValueError, match="same number of rows, got"):
        bx.Stream({"A": np.ones((3, 2)), "b": np.ones(4)})
    with pytest.raises(TypeError, match=r"\['b'\] is a float"):
        bx.Stream({"A": np.ones((3, 2)), "b": 1.0})
    with pytest.raises(TypeError, match="rows hold real numbers only"):
        bx.Stream(np.array(["a", "b"]))
    with pytest.raises(TypeError, match="the source is a float"):
        bx.Stream(2.0)
    with pytest.raises(ValueError, match="has no rows"):
        bx.Stream(np.ones((0, 2)))
    with pytest.raises(ValueError, match="window must be a whole number"):
        bx.Stream(np.ones(3), window=0)
    with pytest.raises(IndexError, match="there are 3"):
        bx.Stream(np.ones(3)).read(1, 5)
    with pytest.raises(RuntimeError, match="the shape is"):
        ragged = Rows({"A": [np.ones(2), np.ones(2), np.ones(3)], "b": np.ones(3)})
        bx.Stream(ragged, window=2).read(0, 3)


def test_bad_parquet_is_refused_before_any_row_is_read(tmp_path):
    import pyarrow
    import pyarrow.parquet

    part = arrays()["train"]
    write_parquet(tmp_path / "1.parquet", part)
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        bx.Stream.parquet(tmp_path / "absent.parquet", COLUMNS)
    with pytest.raises(ValueError, match="no column 'age'; it has f0"):
        bx.Stream.parquet(tmp_path / "1.parquet", {"A": "age"})
    with pytest.raises(TypeError, match="columns= maps"):
        bx.Stream.parquet(tmp_path / "1.parquet", ["f0"])
    write = lambda name, column: pyarrow.parquet.write_table(  # noqa: E731
        pyarrow.table({"v": column}), tmp_path / name, row_group_size=2
    )
    write("nulls", pyarrow.array([1.0, 2.0, 3.0, None]))
    with pytest.raises(ValueError, match="'v' of .* holds nulls"):
        bx.Stream.parquet(tmp_path / "nulls", {"v": "v"})
    write("words", pyarrow.array(["a", "b"]))
    with pytest.raises(ValueError, match="holds string"):
        bx.Stream.parquet(tmp_path / "words", {"v": "v"})
    write("ragged", pyarrow.array([[1.0], [1.0, 2.0]]))
    with pytest.raises(ValueError, match="several lengths"):
        bx.Stream.parquet(tmp_path / "ragged", {"v": "v"})
    write("2.parquet", pyarrow.array([1.0]))
    with pytest.raises(ValueError, match="2.parquet has no column 'f0'"):
        bx.Stream.parquet(tmp_path, COLUMNS)


@pytest.mark.parametrize(
    ("solver", "sampler", "words"),
    [
        (
            bx.SABA(),
            bx.PerPart({"train": bx.Blocks(10, TRAIN), "valid": bx.Blocks(10, VALID)}),
            "SABA needs all batches",
        ),
        (bx.SRBA(), batches(), "SRBA needs all batches .* use bx.SOBA"),
        (bx.ITDBiO(), None, "ITDBiO differentiates its steps .* use bx.AIDBiO"),
        (bx.SOBA(), bx.PerPart({"train": bx.Minibatch(400, TRAIN)}), "larger than the window of 300 rows"),
        (bx.SOBA(), bx.PerPart({"train": bx.Minibatch(8, TRAIN - 1)}), "found nothing to draw from"),
    ],
    ids=["SABA", "SRBA", "ITDBiO", "a large batch", "wrong rows"],
)
def test_what_a_stream_cannot_do_is_refused_by_name(solver, sampler, words):
    with pytest.raises(ValueError, match=words):
        bx.solve(problem(streams(arrays()), sampler), solver, START, START, steps=1)


def test_an_array_beside_a_stream_with_as_many_rows_is_refused():
    data = {"A": bx.Stream(np.ones((50, 2), np.float32), window=10), "b": np.ones(50, np.float32)}
    with pytest.raises(ValueError, match="b is an array with 50 rows beside a bx.Stream"):
        on_windows(bx.Minibatch(5, 50), data)


def test_double_precision_is_refused_without_64_bits():
    match = r"data\['train'\]\['A'\] is float64 but JAX runs in 32 bits"
    with jax.enable_x64(False), pytest.raises(TypeError, match=match):
        bx.solve(problem(streams(arrays(np.float64))), None, START, START)


def test_run_refuses_streams():
    with pytest.raises(ValueError, match="data hold a bx.Stream"):
        bx.run(problem(streams(arrays())), bx.IBCG(), START, START, steps=1)
