"""`compare`: the same conditions for every method, failures as rows, tables, curves and files."""

import os
import re
import signal
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import known_problem

import bilevax as bx
from bilevax.runs import compare as module
from bilevax.runs import comparison, run_directory
from bilevax.solvers import COUNTS

PROBLEM = known_problem("Simplex").problem
X0, Y0 = jnp.full((5,), 0.4, float), jnp.zeros(6)
METHODS = {"open loop": bx.IBCG(), "constant": bx.IBCG(gamma=0.05)}


class Broken(bx.IBCG):
    def prepare(self, problem, x, y, key):
        raise ValueError("Broken: this set has no projection.\nA second line.")


def compare(solvers=METHODS, x0=X0, y0=Y0, problem=PROBLEM, **options):
    return bx.compare(problem, solvers, x0, y0, **{"steps": 40, "every": 10, **options})


@pytest.fixture(scope="module")
def found():
    metrics = [{"total": lambda x, y, data: jnp.sum(x)}, lambda problem, state: {"k": state.k}]
    return compare({"open loop": bx.IBCG(), "bad | one": Broken(), "constant": bx.IBCG(gamma=0.05)}, metrics=metrics)


@pytest.fixture
def solved(monkeypatch):
    """The solvers that `compare` starts, in turn."""
    calls, start = [], module.start

    def counted(problem, solver, *args):
        calls.append(solver)
        return start(problem, solver, *args)

    monkeypatch.setattr(module, "start", counted)
    return calls


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def parsed(table):
    heading, _, *lines = (line for line in table.splitlines() if line.startswith("|"))
    return {row[0]: dict(zip(cells(heading), row, strict=True)) for row in map(cells, lines)}


@pytest.mark.parametrize("key", [None, jax.random.key(7)])
def test_every_method_runs_as_it_would_alone(key):
    compared = compare(key=key, metrics=bx.exact_metrics, tol=1e-9)
    assert list(compared) == list(compared.traces) == list(METHODS) and len(compared) == 2
    for name, solver in METHODS.items():
        alone = bx.solve(PROBLEM, solver, X0, Y0, steps=40, every=10, key=key, metrics=bx.exact_metrics, tol=1e-9)
        together = compared[name]
        for one, other in zip(jax.tree.leaves(together.state), jax.tree.leaves(alone.state), strict=True):
            assert np.array_equal(one, other)
        assert (together.status, together.message) == (alone.status, alone.message)
        assert together.trace.columns == alone.trace.columns
        for column in set(alone.trace.columns) - {"seconds"}:
            assert np.array_equal(together.trace[column], alone.trace[column]), column
        assert compared.entries[name].solver is solver and compared.traces[name] is together.trace


def test_without_starts_all_methods_start_from_one_vertex():
    compared = compare(x0=None, y0=None)
    first = [trace.first["upper"] for trace in compared.traces.values()]
    alone = bx.solve(PROBLEM, METHODS["constant"], steps=40)
    assert first[0] == first[1] and np.array_equal(compared["constant"].x, alone.x)


def test_metrics_and_rules_that_can_be_read_once_serve_every_method():
    compared = compare(
        metrics=iter([{"total": lambda x, y, data: jnp.sum(x)}]),
        stop=(rule for rule in [lambda trace: trace.last["step"] >= 20]),
    )
    for name in METHODS:
        assert "total" in compared[name].trace and compared[name].steps == 20
        assert compared.entries[name].status == "STOPPED"  # by a rule, which ends one method and not the rest


def test_the_columns_of_a_trace_are_those_the_table_takes_for_its_own():
    assert set(compare().traces["constant"].columns) == set(comparison.OWN_COLUMNS)


def test_the_table(found):
    rows = parsed(str(found))
    assert list(rows) == ["open loop", r"bad \| one", "constant"]
    heading = list(rows["constant"])
    assert " ".join(heading) == (
        "method status steps seconds compile seconds gap upper lower_grad_norm total k oracle calls"
    )
    for name in METHODS:
        result, row = found[name], rows[name]
        assert (row["status"], row["steps"], row["k"], row["total"]) == ("MAX_STEPS", "40", "40", "2")
        for column in ("gap", "upper", "lower_grad_norm", "seconds"):
            assert row[column] == f"{result.trace.last[column]:.3g}"
        assert row["compile seconds"] == f"{result.compile_seconds:.3g}"
        assert row["oracle calls"] == str(sum(result.trace.last[count] for count in COUNTS))
    lines = found.table().splitlines()
    assert len({len(line) for line in lines[:5]}) == 1
    rule = cells(lines[1])
    assert [part.endswith(":") for part in rule] == [False, False] + [True] * 9  # dashes leave numbers to the right


def test_the_table_of_chosen_columns(found):
    rows = parsed(found.table(["hvps", "oracle_calls", "seconds"]))
    assert " ".join(rows["constant"]) == "method status steps seconds compile seconds hvps oracle_calls oracle calls"
    assert rows["constant"]["oracle_calls"] == rows["constant"]["oracle calls"]
    assert parsed(found.table("hvps"))["constant"]["hvps"] == str(found["constant"].trace.last["hvps"])
    with pytest.raises(ValueError, match="no trace has a column 'nope'; there are step, seconds, gap"):
        found.table(["nope"])


def test_a_failing_method_is_a_row_among_the_others(found):
    entry = found.entries["bad | one"]
    assert (entry.name, entry.result, entry.status) == ("bad | one", None, "FAILED")
    assert entry.message == "Broken: this set has no projection."
    assert set(list(parsed(str(found)).values())[1].values()) == {r"bad \| one", "FAILED", "-"}
    assert str(found).endswith("\n\n- bad | one: FAILED, Broken: this set has no projection.")
    assert list(found.traces) == ["open loop", "constant"]
    assert repr(found) == "Comparison(open loop: MAX_STEPS, bad | one: FAILED, constant: MAX_STEPS)"
    with pytest.raises(KeyError, match=r"'bad \| one' has no result: FAILED, Broken: this set has no projection"):
        found["bad | one"]
    with pytest.raises(KeyError, match=r"no method 'nope'; there are 'open loop', 'bad \| one', 'constant'"):
        found["nope"]
    assert "constant" in found and "nope" not in found


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        (KeyError("mu_g"), "KeyError: 'mu_g'"),
        (NotImplementedError(), "NotImplementedError"),
        (TypeError("\n one | two\nthree"), "one | two"),
    ],
)
def test_the_words_of_a_failure(monkeypatch, error, words):
    def raising(*args, **options):
        raise error

    monkeypatch.setattr(module, "start", raising)
    assert compare().entries["constant"].message == words


def test_all_methods_failing():
    problem = bx.BilevelProblem(PROBLEM.upper, PROBLEM.lower, bx.WholeSpace(), PROBLEM.data)
    compared = compare(problem=problem)
    assert [entry.status for entry in compared.entries.values()] == ["FAILED", "FAILED"] and compared.traces == {}
    assert "constant: FAILED, IBCG moves by linear minimization and WholeSpace() is unbounded" in str(compared)
    assert " ".join(parsed(str(compared))["constant"]) == (
        "method status steps seconds compile seconds gap upper lower_grad_norm oracle calls"
    )
    assert all(np.isnan(value) for value in compared.seconds_to("gap", 1.0).values())
    for ask in (compared.best, compared.plot):
        with pytest.raises(ValueError, match=r"no method (ended with|has).*\n\| method"):
            ask()


def test_nonfinite_and_limited_runs_are_ordinary_rows():
    diverging = bx.IBCG(alpha=1e4, eta=0.1, warmup=0)
    compared = compare({"diverging": diverging, **METHODS}, steps=10**9, every=500, time_limit=0.05)
    assert [entry.status for entry in compared.entries.values()] == ["NONFINITE", "TIME_LIMIT", "TIME_LIMIT"]
    assert "the state before it is kept" in compared.entries["diverging"].message
    assert parsed(str(compared))["diverging"]["steps"] == str(compared["diverging"].steps)
    assert compared.best() != "diverging"


def test_best_looks_at_last_values(found):
    for column in ("gap", "upper"):
        last = {name: trace.last[column] for name, trace in found.traces.items()}
        assert found.best(column) == min(last, key=last.get)
    with pytest.raises(ValueError, match="no trace has a column 'nope'"):
        found.best("nope")


def fake(rows):
    """A result that is nothing but a trace."""
    blank = dict.fromkeys(comparison.OWN_COLUMNS, 0.0) | dict.fromkeys(COUNTS, 1)
    trace = bx.Trace([{**blank, "step": 10 * i, "seconds": 0.5 * i, **row} for i, row in enumerate(rows)])
    return bx.Result(
        None, None, bx.Status.MAX_STEPS, "", 10 * len(rows), 1.0, 0.1, trace, state=None, problem=None, solver=None
    )


def made(**columns):
    entries = {
        name: comparison.Entry(name, bx.IBCG(), fake([{"gap": v} for v in values]), "MAX_STEPS", "")
        for name, values in columns.items()
    }
    return comparison.Comparison({**entries, "bad": comparison.Entry("bad", bx.IBCG(), None, "FAILED", "why")})


NAN, INF = np.nan, np.inf


def test_when_a_column_fell_to_a_value():
    compared = made(a=[3.0, 2.0, 1.0, 2.0], b=[NAN, INF, 4.0, 0.5], c=[NAN] * 4)
    assert compared.steps_to("gap", 2.0) == pytest.approx({"a": 10, "b": 30, "c": NAN, "bad": NAN}, nan_ok=True)
    assert compared.seconds_to("gap", 1.0) == pytest.approx({"a": 1.0, "b": 1.5, "c": NAN, "bad": NAN}, nan_ok=True)
    assert compared.seconds_to("gap", 3.0)["a"] == 0 and np.isnan(compared.steps_to("gap", 0.1)["b"])
    assert compared.steps_to("oracle_calls", 6.0)["c"] == 0
    with pytest.raises(ValueError, match="no trace has a column 'nope'"):
        compared.steps_to("nope", 1.0)


def test_columns_of_nan():
    compared = made(a=[3.0, 2.0], b=[1.0, NAN], c=[NAN, NAN], d=[1.0, -INF])
    assert compared.best() == "a"  # what was finite once tells nothing of the point that was returned
    rows = parsed(str(compared))
    assert [rows[name]["gap"] for name in "abcd"] == ["2", "nan", "nan", "-inf"] and rows["bad"]["gap"] == "-"
    figure = compared.plot("gap")
    assert [len(line.get_ydata()) for line in figure.axes[0].lines] == [2, 1, 0, 1]
    with pytest.raises(ValueError, match="no method ended with a finite 'gap'"):
        made(a=[NAN]).best()
    made(a=[NAN, NAN]).plot()


def test_a_column_that_only_some_methods_have():
    one, other = fake([{"extra": 2.0}]), fake([{}])
    entries = {name: comparison.Entry(name, bx.IBCG(), r, "MAX_STEPS", "") for name, r in (("a", one), ("b", other))}
    compared = comparison.Comparison(entries)
    assert [row["extra"] for row in parsed(str(compared)).values()] == ["2", "-"]
    assert compared.best("extra") == "a" and np.isnan(compared.steps_to("extra", 3.0)["b"])


@pytest.mark.parametrize("against", ["seconds", "step", "oracle_calls", "hvps"])
def test_plots_against_each_axis(found, tmp_path, against):
    figure = found.plot(["gap", "total"], against=against, path=tmp_path / "p.png", title="methods")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    for axis, column in zip(figure.axes, ["gap", "total"], strict=True):
        assert [line.get_label() for line in axis.lines] == ["open loop", "constant"]
        for line, trace in zip(axis.lines, found.traces.values(), strict=True):
            summed = sum(trace[count] for count in COUNTS)
            assert np.array_equal(line.get_xdata(), summed if against == "oracle_calls" else trace[against])
            assert np.array_equal(line.get_ydata(), trace[column])
    assert "oracle_calls" not in found.traces["constant"]  # only the copies that are drawn have it


def test_plots_of_the_default_columns_and_of_unknown_ones(found):
    assert len(found.plot().axes) == 3
    for wrong in ({"columns": ["nope"]}, {"against": "nope"}):
        with pytest.raises(ValueError, match="has no column 'nope'; it has step, seconds"):
            found.plot(**wrong)


def test_saved_runs_load_again(found, tmp_path):
    folder = found.save(tmp_path / "a" / "b")
    assert sorted(path.name for path in folder.iterdir()) == ["constant", "open-loop", "table.md"]
    for name, slug in (("open loop", "open-loop"), ("constant", "constant")):
        config, trace = run_directory.load(folder / slug)
        assert (config["status"], config["steps"]) == ("MAX_STEPS", 40) and list(trace) == list(found.traces[name])
    assert (folder / "table.md").read_text() == f"{found}\n"
    found.save(folder)  # a second time is no harm
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(ValueError, match="file is a file; give the path of a folder"):
        found.save(file)
    assert file.read_text() == "x"


def test_folders_have_different_harmless_names():
    slugs = comparison._slugs(["IBCG γ=0.1", "ibcg 0.1", "ibcg-0-1-2", "../..", "γ", "table.md", "a" * 300])
    assert slugs == ["ibcg-0-1", "ibcg-0-1-2", "ibcg-0-1-2-2", "method", "method-2", "table-md", "a" * 80]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"solvers": bx.IBCG()}, "compare: the second argument must be a dictionary of named solvers .* got IBCG"),
        ({"solvers": [bx.IBCG()]}, "dictionary of named solvers .* got list"),
        ({"solvers": {}}, "there are no solvers"),
        ({"solvers": {3: bx.IBCG()}}, "name of a method must be a string with something in it, got 3"),
        ({"solvers": {" ": bx.IBCG()}}, "name of a method must be a string with something in it, got ' '"),
        ({"solvers": {**METHODS, "c": bx.IBCG}}, r"'c' is not one. .*is the class IBCG; write IBCG\(\)"),
        ({"solvers": {**METHODS, "c": 3}}, "'c' is not one. .* must be a solver such as"),
        ({"solvers": {**METHODS, "c": None}}, r"'c' is None; write bx.auto\(problem, x0\)"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"every": 0}, "every must be a whole number"),
        ({"time_limit": -1.0}, "time_limit must be a positive number"),
        ({"tol": 0.0}, "tol must be a positive number, the true gap to reach, got 0.0"),
        ({"tol": "small"}, "tol must be a positive number, the true gap to reach, got 'small'"),
        ({"stop": 3}, "stop= takes a function or several of them, got 3"),
        ({"stop": [0.1]}, r"stop= takes a function or several of them, got \[0.1\]"),
        ({"metrics": 3}, "metrics= takes {name: function}, a function or several of them, got 3"),
        ({"metrics": "gap"}, "metrics= takes {name: function}, a function or several of them, got 'gap'"),
        ({"metrics": [bx.exact_metrics, 3]}, "metrics= takes {name: function}, a function or several of them, got .*3"),
        ({"metrics": {"a": 3}}, r"the metric 'a' must be a function of \(x, y, data\), got 3"),
        ({"metrics": {"gap": jnp.sum}}, "a metric is named 'gap', which is taken"),
        ({"metrics": {"oracle_calls": jnp.sum}}, "a metric is named 'oracle_calls', which is taken"),
        ({"metrics": {"steps": jnp.sum}}, "a metric is named 'steps', which is taken"),
        ({"metrics": [{"a": jnp.sum}, {"a": jnp.sum}]}, "a metric is named 'a', which is taken"),
        ({"stpes": 3}, "compare: there is no option 'stpes'; it takes those of bx.solve: steps, tol, "),
        ({"key": 3}, "key must be a JAX random key, got 3"),
        ({"x0": 2 * X0}, "x0 is not in Simplex"),
        ({"x0": None, "problem": replace(PROBLEM, x_like=None)}, "no x0 and no x_like"),
        ({"y0": jnp.zeros(4)}, r"y0 does not match y_like: got \(4,\)"),
        ({"problem": 3}, "must be a bx.BilevelProblem, got int"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_before_any_run(solved, wrong, words):
    with pytest.raises((TypeError, ValueError), match=words):
        compare(**wrong)
    assert solved == []


def interrupting(at):
    """A metric that presses Ctrl-C at the rows where `at(problem, state)` holds."""

    def metric(problem, state):
        for _ in range(at(problem, state)):
            os.kill(os.getpid(), signal.SIGINT)
        return {"pressed": 0.0}

    return metric


THREE = {"open loop": bx.IBCG(), "constant": bx.IBCG(gamma=0.05), "third": bx.IBCG(gamma=0.1)}


def test_ctrl_c_ends_the_present_method_and_leaves_out_the_rest(solved):
    before = signal.getsignal(signal.SIGINT)
    compared = compare(THREE, metrics=interrupting(lambda _, state: len(solved) == 2 and int(state.k) == 20))
    assert [entry.status for entry in compared.entries.values()] == ["MAX_STEPS", "STOPPED", "NOT RUN"]
    assert compared["constant"].steps == 20 and len(solved) == 2 and signal.getsignal(signal.SIGINT) is before
    assert str(compared).endswith("\n- third: NOT RUN, interrupted before it had a result")
    assert list(compared.entries) == list(THREE) and list(compared.traces) == ["open loop", "constant"]


def test_ctrl_c_twice_keeps_the_methods_that_ended(solved):
    compared = compare(THREE, metrics=interrupting(lambda _, state: 2 * (len(solved) == 2 and int(state.k) == 20)))
    assert [entry.status for entry in compared.entries.values()] == ["MAX_STEPS", "NOT RUN", "NOT RUN"]
    assert len(solved) == 2


def test_ctrl_c_twice_with_nothing_to_keep_raises(solved):
    with pytest.raises(KeyboardInterrupt):
        compare({"bad": Broken(), **THREE}, metrics=interrupting(lambda *_: 2))
    assert len(solved) == 2


def test_ctrl_c_while_a_method_is_prepared_keeps_the_others():
    class Slow(bx.IBCG):
        def prepare(self, problem, x, y, key):
            raise KeyboardInterrupt

    compared = compare({"open loop": bx.IBCG(), "slow": Slow(), "constant": bx.IBCG(gamma=0.05)})
    assert [entry.status for entry in compared.entries.values()] == ["MAX_STEPS", "NOT RUN", "NOT RUN"]


def test_progress_names_the_methods(capsys):
    compare(progress=True)
    assert re.search(r"^open loop .*MAX_STEPS\nconstant .*MAX_STEPS\n$", capsys.readouterr().err)
    compare(progress="toy,")
    assert re.search(r"^toy, open loop .*\ntoy, constant .*\n$", capsys.readouterr().err)
    compare()
    assert capsys.readouterr() == ("", "")
