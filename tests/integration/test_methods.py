"""`bilevax methods`: no method is forgotten, Table 1 is the paper's, and what is measured is the truth."""

import re
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import zoo

import bilevax as bx
from bilevax import cli
from bilevax.experiments.methods import measure, page, table1
from bilevax.solvers.pieces.x_step import moves_both_ways

SIZE = 5
PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
# Method, oracle, C or NC, assumption, complexity, metric: a second transcription, line by line as the paper has them.
TABLE_1 = """
SUSTAIN*  none  NC  bounded     Õ(poly(κ) m^2 ε^-1.5)†                E‖∇ℓ(x_k*)‖²
FSLA*     none  NC  bounded     O(poly(κ) m^2 ε^-2)                   E‖∇ℓ(x_k*)‖²
AIDBiO    none  NC  bounded     O((κ^3.5 m^2 + m κ^4) ε^-1)           ‖∇ℓ(x_k*)‖²
F3SA      none  NC  bounded     Õ(poly(κ) m ε^-1.5)                   ‖∇ℓ(x_k*)‖²
AmIGO     none  NC  bounded     O((κ^4 m^2 + m κ^4) ε^-1)             ‖∇ℓ(x_k*)‖²
RAHGD     none  NC  bounded     O(κ^3.25 m^2 ε^-0.875)                ‖∇ℓ(x_k*)‖²
ABA       PO    NC  bounded     O(κ^4.5 m^3 ε^-1 + κ^5 m ε^-1.25)     ‖∇ℓ(x_k*)‖²
ABA       PO    C   bounded     O(κ^4.5 m^3 ε^-0.5 + κ^5 m ε^-0.75)   ℓ(x_K) − ℓ(x*)
TTSA*     PO    NC  bounded     Õ(poly(κ) m^2 ε^-2.5)                 E‖x_k* − prox_ρℓ(x_k*)‖²
TTSA*     PO    C   bounded     Õ(poly(κ) m^2 ε^-4)                   E[ℓ(x_K) − ℓ(x*)]
SBFW*     LMO   NC  bounded     Õ(poly(κ) m^2 ε^-4)                   E[G(x_k*)]
SBFW*     LMO   C   bounded     Õ(poly(κ) m^2 ε^-3)                   E[ℓ(x_K) − ℓ(x*)]
IBCG      LMO   NC  Lip. cont.  O(κ^5 m^2 ε^-2)                       G(x_k*)
IBCG      LMO   C   Lip. cont.  Õ(κ^5 m^2 ε^-1)                       ℓ(x_K) − ℓ(x*)
IBCG      LMO   NC  bounded     O(κ^4 m^2 ε^-2)                       G(x_k*)
IBCG      LMO   C   bounded     Õ(κ^4 m^2 ε^-1)                       ℓ(x_K) − ℓ(x*)
"""


def tables(text):
    """The tables of a page, each a list of rows of cells."""
    blocks = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    return [[[cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()] for block in blocks]


def column(table, name):
    return [row[table[0].index(name)] for row in table[2:]]


def test_every_exported_solver_has_a_row():
    assert set(table1.METHODS) == zoo.exported("solver")
    for name, method in table1.METHODS.items():
        assert method.solver is getattr(bx, name)
        assert page.about(name).count("Reference: ") == 1


def test_table_1_is_the_papers():
    wanted = {tuple(re.split(r"\s{2,}", line.strip())) for line in TABLE_1.strip().splitlines()}
    rows = [tuple(row.values()) for row in table1.printed_rows(table1.METHODS)]
    printed = [row for row in rows if row[1:] != ("–",) * 5]
    assert set(printed) == wanted and len(printed) == len(wanted) == 16
    in_paper = {row[0].rstrip("*") for row in wanted}
    assert len(in_paper) == 10 and {row[0].rstrip("*") for row in rows} == zoo.exported("solver") >= in_paper


def test_the_committed_page_has_every_exported_solver():
    paper, code, others = tables(PAGE.read_text())
    assert {name.rstrip("*") for name in column(paper, "method")} == zoo.exported("solver")
    assert {name.split()[0] for name in column(code, "method")} == zoo.exported("solver")
    rows = {tuple(row[:2]) for row in code[2:]}
    assert [row[:2] for row in others] == [row[:2] for row in code]
    for name in zoo.exported("solver"):
        both = moves_both_ways(getattr(bx, name)())
        assert len({moves for method, moves in rows if method == name}) == (2 if both else 1), name
        assert f"- `{name}`: " in PAGE.read_text()


def test_what_is_known_beforehand_is_printed_without_a_run(monkeypatch, capsys):
    monkeypatch.setattr(measure, "solve", None)
    assert cli.main(["methods", "--no-measure"]) == 0
    printed = capsys.readouterr()
    paper, code = tables(printed.out)
    solvers = len(zoo.exported("solver"))  # ten of them in the paper's table, with 16 lines
    assert len(paper) == 2 + 16 + solvers - 10 and len(code) == 2 + solvers and not printed.err
    assert ["IBCG", "lmo", "1"] in code and ["AIDBiO", "projection or lmo", "2"] in code
    assert ["ABA", "projection", "2"] in code


def test_two_methods_converge_on_a_small_problem(capsys):
    assert cli.main(["methods", "--only", "IBCG, SOBA,IBCG", "--size", str(SIZE), "--one-problem"]) == 0
    printed = capsys.readouterr()
    paper, code = tables(printed.out)
    assert column(paper, "method") == ["IBCG"] * 4 + ["SOBA"]
    assert [row[:7] for row in code[2:]] == [
        ["IBCG", "lmo", "1", "2", "1", "1", "1"],
        ["SOBA", "projection", "1", "2", "1", "1", "1"],
        ["SOBA", "lmo", "1", "2", "1", "1", "1"],
    ]
    assert column(code, "converged") == ["yes"] * 3
    for steps, calls in zip(column(code, "steps"), column(code, "calls"), strict=True):
        assert 1 < int(steps) < 2000 and int(calls) >= 5 * int(steps)
    lines = printed.err.splitlines()
    assert len(lines) == 3 and lines[1].startswith("l2 ball: 2/3  SOBA (projection): converged after")


def test_a_method_is_judged_by_the_true_gap(monkeypatch):
    """The steps reported are the first row after which the audited gap is small enough."""
    monkeypatch.setattr(measure, "REPEATS", 1)
    common, solver = measure.bench(SIZE), bx.SABA(0.05)
    measured = measure.measure("SABA", "SABA", solver, common)
    problem, solver = (
        replace(common.problem, sampler=bx.Blocks(SIZE, SIZE)),
        replace(solver, constants=common.constants),
    )

    def ratio(steps):
        x = bx.solve(problem, solver, common.x, common.y, steps=steps).x
        return float(bx.audit(problem, x, common.y).gap / bx.audit(problem, common.x, common.y).gap)

    assert measured.converged and measured.moves == "projection" and measured.left <= measure.RATIO
    assert ratio(measured.steps) == pytest.approx(measured.left, rel=1e-6)
    assert ratio(measured.steps - max(1, measured.steps // 20)) > measure.RATIO


@pytest.mark.parametrize("place", [measure.COMMON, *measure.ELSEWHERE], ids=lambda place: place.name)
def test_the_closed_form_of_the_gap_is_the_audited_one(place, key):
    bench = measure.bench(10, place)
    x = bench.x + 0.02 * jax.random.uniform(key, bench.x.shape)
    x = x / x.sum() if place.name == "simplex" else x
    true = bx.audit(bench.problem, x, bench.y)
    np.testing.assert_allclose(measure.true_gap(place.farthest)(x, bench.y, bench.problem.data), true.gap, rtol=1e-9)
    assert float(true.gap) > 1e-2


@pytest.mark.slow
def test_other_problems_are_measured_too(monkeypatch, capsys):
    monkeypatch.setattr(measure, "REPEATS", 1)
    assert cli.main(["methods", "--only", "BlockIBCG", "--size", "10", "--quiet"]) == 0
    others = tables(capsys.readouterr().out)[2]
    assert others[0] == ["method", "x moves by", "l2 ball", "simplex", "nuclear ball", "κ = 10^4"]
    assert others[2][0] == "BlockIBCG" and others[2][3] == "not for it" and float(others[2][4]) > 0


def test_a_method_that_is_late_says_what_is_left(monkeypatch, capsys):
    monkeypatch.setattr(measure, "LIMITS", (200,))
    monkeypatch.setattr(measure, "RATIO", 1e-9)
    assert cli.main(["methods", "--only", "IBCG", "--size", str(SIZE), "--quiet", "--one-problem"]) == 0
    printed = capsys.readouterr()
    row = tables(printed.out)[1][2]
    assert re.fullmatch(r"no, [0-9.e-]+ left", row[-1]) and "200" in row and not printed.err
    assert "gap reached: IBCG (lmo) " in printed.out


def test_a_page_is_written(tmp_path, capsys):
    out = tmp_path / "new" / "methods.md"
    assert cli.main(["methods", "--only", "ABA,TTSA", "--no-measure", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"Saved in {out}.\n"
    written = out.read_text()
    assert written.startswith("# Methods\n") and written.endswith("\n") and not written.endswith("\n\n")
    assert column(tables(written)[1], "method") == ["ABA", "TTSA"]
    assert "`ABA`: Accelerated bilevel approximation" in written and "IBCG`: " not in written


def test_wrong_input_is_one_line_before_any_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measure, "measure_all", None)
    file = tmp_path / "file"
    file.write_text("x")
    for arguments, words in (
        (["--only", "IBCG,SOBBA"], "unknown method 'SOBBA'; there are IBCG, SBFW"),
        (["--only", ""], "unknown method ''"),
        (["--size", "1"], "--size must be at least 2, got 1"),
        (["--out", str(tmp_path)], "is a folder; give a file"),
        (["--out", str(file / "page.md")], "is a file; give another path"),
    ):
        assert cli.main(["methods", *arguments]) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
    assert file.read_text() == "x" and list(tmp_path.iterdir()) == [file]
