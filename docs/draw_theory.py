"""Draw the figures of `docs/theory.md`: every bound of the paper next to its measurement.

A family keeps its colour. Solid lines are measurements, dashed lines are bounds. The runs come from
`tests/theory_runs.py`, which the tests of the theory use too.

    python docs/draw_theory.py               writes docs/images/theory-*.png
    python docs/draw_theory.py --out FOLDER  writes them elsewhere
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bilevax import theory
from bilevax.drawing import figures
from bilevax.files import write_atomic
from bilevax.problems import (
    KnownProblem,
    known_nonconvex,
    known_quadratic,
    known_robust_lower,
    known_robust_upper,
)
from bilevax.sets import Simplex

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent / "tests"))

from theory_runs import Run, lagging_adjoint, measure, misled_start, overshooting  # noqa: E402

FAMILIES: dict[str, Callable[[float, int], KnownProblem]] = {
    "quadratic": lambda kappa, seed: known_quadratic(
        Simplex(), 4, 3, jax.random.key(seed), kappa=kappa, mu_g=1 / kappa, rho=1.0
    ),
    "pseudo-Huber in g": lambda kappa, seed: known_robust_lower(4, jax.random.key(seed), kappa=kappa),
    "pseudo-Huber in f (bounded)": lambda kappa, seed: known_robust_upper(
        Simplex(), 4, 3, jax.random.key(seed), kappa=kappa, mu_g=1 / kappa, rho=1.0
    ),
}
NONCONVEX = "nonconvex"
STEP = r"step $k$"


def _start(knowns: Sequence[KnownProblem], gamma: Any, *, steps: int, far: float = 0.0) -> list[Run]:
    """Runs from the middle of the set with y_0 = `far` in every entry and eta at 0.9 of its limit."""
    first = knowns[0].problem
    assert first.x_like is not None and first.y_like is not None
    n, m = first.x_like.zeros().size, first.y_like.zeros().size
    etas = [0.9 * float(known.constants.eta_limit) for known in knowns]
    return measure(knowns, np.full((len(knowns), n), 1 / n), np.full((len(knowns), m), far), gamma, etas, steps=steps)


def _one(family: str, kappa: float, gamma: float, *, steps: int, far: float = 0.0) -> tuple[Run, theory.Setting]:
    known = (
        known_nonconvex(3, 3, jax.random.key(0), kappa=kappa)
        if family == NONCONVEX
        else FAMILIES[family](kappa, list(FAMILIES).index(family))
    )
    (made,) = _start([known], gamma, steps=steps, far=far)
    return made, made.setting(gamma, 0.9 * float(known.constants.eta_limit))


def _pair(axis: Any, k: np.ndarray, measured: np.ndarray, bound: np.ndarray, colour: int, name: str = "") -> None:
    axis.plot(k, bound, "--", color=figures.PALETTE[colour], linewidth=1.4)
    axis.plot(k, measured, color=figures.PALETTE[colour], linewidth=1.6, label=name or None)


def _finish(drawn: Any, axes: Sequence[Any], labels: Sequence[tuple[str, str, str]], *, loglog: bool = False) -> None:
    for axis, (title, horizontal, vertical) in zip(axes, labels, strict=True):
        axis.set_yscale("log")
        if loglog:
            axis.set_xscale("log")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(horizontal)
        axis.set_ylabel(vertical)
    axes[0].plot([], [], color="#777777", label="measured")
    axes[0].plot([], [], "--", color="#777777", label="bound")
    figures.legend_above(drawn, axes[0])


def _save(figure: Any, path: Path) -> None:
    """A PNG of a few dozen colours: a third of the size, for pictures kept with the documentation."""
    from PIL import Image  # comes with matplotlib

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    picture = Image.open(buffer).convert("RGB").quantize(48)
    write_atomic(path, lambda stream: picture.save(stream, format="PNG", optimize=True), mode="wb")


def lipschitz_figure(path: Path) -> None:
    """Lemmas 2.1 and A.1: the largest ratio between pairs of points of the set, and the constant, against kappa."""
    drawn, axes = figures.new_figure(4)
    kappas = np.geomspace(1.3, 100, 10)
    rng = np.random.default_rng(0)
    for colour, (name, make) in enumerate(FAMILIES.items()):
        measured, bounds = [], []
        for kappa in kappas:
            known = make(float(kappa), 0)
            simplex = isinstance(known.problem.domain, Simplex)
            x = rng.dirichlet(np.full(4, 0.5), 400) if simplex else rng.uniform(-1, 1, (400, 4))
            near = x + 1e-4 * (x[::-1] - x)
            far = np.linalg.norm(x - near, axis=1)
            y = known.lower_solution(x)
            maps = (known.lower_solution, known.adjoint, known.gradient)
            moved = [float(np.max(np.linalg.norm(f(x) - f(near), axis=1) / far)) for f in maps]
            largest = float(np.linalg.norm(known.upper_grads(x, y)[1], axis=1).max())
            c = known.constants
            measured.append([moved[0], largest, moved[1], moved[2]])
            constants = (theory.lower_solution_lipschitz, theory.adjoint_lipschitz, theory.hypergradient_lipschitz)
            L_y, C_v, L_ell = (bound(c) for bound in constants)
            bounds.append([L_y, float(c.C_y_f), C_v, L_ell])
        for i, axis in enumerate(axes):
            _pair(axis, kappas, np.array(measured)[:, i], np.array(bounds)[:, i], colour, name)
    titles = (
        "Lemma 2.1 (I): $y^*$",
        r"Lemma 2.1 (II): $\nabla_y f$",
        "Lemma A.1: $v$",
        r"Lemma 2.1 (III): $\nabla\ell$",
    )
    verticals = ("Lipschitz constant", "largest norm", "Lipschitz constant", "Lipschitz constant")
    labels = [(title, r"$\kappa_g$", vertical) for title, vertical in zip(titles, verticals, strict=True)]
    _finish(drawn, axes, labels, loglog=True)
    _save(drawn, path)


def tracking_figure(path: Path, *, kappa: float = 3.0, gamma: float = 0.01, steps: int = 60) -> None:
    """Lemmas B.1, B.2 and B.3, and 4.1: how far y, w and the direction are from what they track."""
    drawn, axes = figures.new_figure(3)
    for colour, name in enumerate((*FAMILIES, NONCONVEX)):
        made, setting = _one(name, kappa, gamma, steps=steps, far=2.0)
        k = np.arange(steps + 1)
        _pair(axes[0], k, made.y_error, theory.lower_tracking_constant(setting, k), colour, name)
        _pair(axes[1], k[1:], made.w_error[1:], theory.adjoint_tracking(setting, k[1:]), colour)
        axes[1].plot(
            k[1:], theory.adjoint_tracking_step(setting, made.w_error[:-1], k[:-1]),
            ":", color=figures.PALETTE[colour], linewidth=1.2,
        )  # fmt: skip
        _pair(axes[2], k[:-1], made.direction_error, theory.hypergradient_error(setting, k[:-1]), colour)
    axes[0].plot([], [], ":", color="#777777", label="bound of one step (B.2)")
    labels = [
        ("Lemma B.1", STEP, r"$\|y_k - y^*(x_k)\|$"),
        ("Lemmas B.2 and B.3", STEP, r"$\|w_k - v(x_{k-1})\|$"),
        ("Lemma 4.1", STEP, r"$\|\nabla\ell(x_k) - F_k\|$"),
    ]
    _finish(drawn, axes, labels)
    _save(drawn, path)


def convex_figure(path: Path, *, kappa: float = 1.5, steps: int = 2000) -> None:
    """Lemma B.4 and Theorem 4.2 with gamma = log(K)/K."""
    drawn, axes = figures.new_figure(2)
    gamma = theory.convex_step(steps)
    for colour, name in enumerate(FAMILIES):
        made, setting = _one(name, kappa, gamma, steps=steps, far=1.0)
        k = np.unique(np.geomspace(1, steps, 80).astype(int))
        change = made.ell[1:] - made.ell[:-1] + gamma * made.gap[:-1]
        positive = np.where(change > 0, change, np.nan)  # a step better than its linear model needs no bound
        _pair(axes[0], k, positive[k - 1], theory.one_step_excess(setting, k - 1), colour, name)
        above = made.ell - made.known.ell_star
        bound = [theory.convex_bound(setting, int(K), float(above[0])) for K in k]
        _pair(axes[1], k, above[k], np.array(bound), colour)
    labels = [
        ("Lemma B.4", r"$k+1$", r"$\ell(x_{k+1}) - \ell(x_k) + \gamma\,\mathcal{G}(x_k)$"),
        ("Theorem 4.2", "$K$", r"$\ell(x_K) - \ell^*$"),
    ]
    _finish(drawn, axes, labels, loglog=True)
    _save(drawn, path)


def nonconvex_figure(path: Path, *, steps: int = 5000) -> None:
    """Theorem 4.4: the smallest gap so far, for two condition numbers and gamma as in Corollary 4.5."""
    drawn, axes = figures.new_figure(2)
    k = np.unique(np.geomspace(1, steps, 80).astype(int))
    for axis, kappa in zip(axes, (1.0, 2.0), strict=True):
        for seed in range(3):
            known = known_nonconvex(3, 3, jax.random.key(seed), kappa=kappa)
            gamma = theory.nonconvex_step(known.constants, steps)
            (made,) = _start([known], gamma, steps=steps, far=1.0)
            setting = made.setting(gamma, 0.9 * float(known.constants.eta_limit))
            smallest = np.minimum.accumulate(made.gap)
            bound = [theory.nonconvex_bound(setting, int(K), float(made.ell[0] - made.ell[K])) for K in k]
            _pair(axis, k, smallest[k - 1], np.array(bound), seed, f"problem {seed + 1}")
        axis.set_ylim(bottom=1e-6)  # a run that ends in a vertex goes down to rounding
    vertical = r"$\min_{k<K}\,\mathcal{G}(x_k)$"
    _finish(drawn, axes, [(rf"Theorem 4.4, $\kappa_g = {kappa}$", "$K$", vertical) for kappa in (1, 2)], loglog=True)
    _save(drawn, path)


def rates_figure(path: Path) -> None:
    """Corollaries 4.3 and 4.5: one run for each horizon, and the growth with kappa at a fixed one."""
    drawn, axes = figures.new_figure(3)
    horizons = [100, 316, 1000, 3162, 10**4, 31623, 10**5]
    for colour, (name, make) in enumerate(FAMILIES.items()):
        knowns, errors = [make(1.5, seed) for seed in range(5)], []
        for K in horizons:
            runs = _start(knowns, theory.convex_step(K), steps=K)
            errors.append(np.mean([made.known.ell(made.x[-1]) - made.known.ell_star for made in runs]))
        figures.draw_line(axes[0], np.array(horizons), np.array(errors), colour, name)
    gaps, bounds = [], []
    knowns = [known_nonconvex(3, 3, jax.random.key(seed), kappa=1.0) for seed in range(5)]
    for K in horizons:
        gamma = theory.nonconvex_step(knowns[0].constants, K)
        runs = _start(knowns, gamma, steps=K)
        gaps.append(np.mean([made.gap[:-1].min() for made in runs]))
        settings = [made.setting(gamma, 0.9 * float(made.known.constants.eta_limit)) for made in runs]
        firsts = [float(made.ell[0] - made.ell[-1]) for made in runs]
        bounds.append(np.mean([theory.nonconvex_bound(s, K, first) for s, first in zip(settings, firsts, strict=True)]))
    figures.draw_line(axes[1], np.array(horizons), np.array(gaps), 3, NONCONVEX)
    axes[1].plot(horizons, bounds, "--", color=figures.PALETTE[3], label="bound of Theorem 4.4")
    kappas = np.array([1.2, 2.0, 4.0, 8.0, 16.0, 30.0, 60.0, 120.0])
    for colour, (name, make) in enumerate(FAMILIES.items()):
        errors = []
        for kappa in kappas:
            runs = _start([make(float(kappa), seed) for seed in range(5)], theory.convex_step(10**4), steps=10**4)
            errors.append(np.mean([made.known.ell(made.x[-1]) - made.known.ell_star for made in runs]))
        figures.draw_line(axes[2], kappas, np.array(errors), colour, name)
    many = np.array(horizons, float)
    lines: list[tuple[Any, np.ndarray, np.ndarray, str]] = [
        (axes[0], many, 0.3 * np.log(many) / many, r"$\propto \log(K)/K$"),
        (axes[1], many, 3 * many**-0.5, r"$\propto K^{-1/2}$"),
    ]
    base = axes[2].lines[0].get_ydata()[0]
    lines.append((axes[2], kappas, base * (kappas / kappas[0]) ** 5, r"$\propto \kappa_g^5$"))
    lines.append((axes[2], kappas, base * (kappas / kappas[0]) ** 4, r"$\propto \kappa_g^4$"))
    for i, (axis, across, up, name) in enumerate(lines):
        axis.plot(across, up, ":" if i != 3 else "-.", color="#555555", label=name)
    labels = [
        ("Corollary 4.3", "$K$", r"$\ell(x_K) - \ell^*$"),
        ("Corollary 4.5", "$K$", r"$\min_{k<K}\,\mathcal{G}(x_k)$"),
        (r"Corollary 4.3, $K = 10^4$", r"$\kappa_g$", r"$\ell(x_K) - \ell^*$"),
    ]
    for axis, (title, horizontal, vertical) in zip(axes, labels, strict=True):
        axis.set(xscale="log", yscale="log", xlabel=horizontal, ylabel=vertical)
        axis.set_title(title, fontsize=10)
        axis.minorticks_off()
        axis.legend(frameon=False, fontsize=7.5)
    axes[2].set_ylim(1e-6, 1e9)
    axes[2].legend(frameon=False, fontsize=7.5, loc="upper left")
    _save(drawn, path)


def printed_figure(path: Path) -> None:
    """Runs that exceed a printed bound, and what the proofs give."""
    drawn, axes = figures.new_figure(3)
    made, setting = lagging_adjoint(1.2, steps=10)
    k = np.arange(1, 11)
    gammas = np.linspace(0.05, 1, 20)
    overshoots = [overshooting(float(gamma)) for gamma in gammas]
    firsts = [float(run.ell[0] - run.known.ell_star) for run, _ in overshoots]
    wrong, wrong_setting, first = misled_start(0.5, steps=8)
    K = np.arange(1, 9)

    def at_one(bound: Any) -> list[float]:
        return [bound(s, 1, f) for (_, s), f in zip(overshoots, firsts, strict=True)]

    curves = [
        (k, made.w_error[1:], theory.adjoint_tracking_as_printed(setting, k), theory.adjoint_tracking(setting, k)),
        (gammas, [float(run.ell[1] - run.known.ell_star) for run, _ in overshoots],
         at_one(theory.convex_bound_as_printed), at_one(theory.convex_bound)),
        (K, np.minimum.accumulate(wrong.gap)[:8],
         [theory.nonconvex_bound_as_printed(wrong_setting, int(i), first) for i in K],
         [theory.nonconvex_bound(wrong_setting, int(i), first) for i in K]),
    ]  # fmt: skip
    for axis, (across, measured, printed, proved) in zip(axes, curves, strict=True):
        axis.plot(across, proved, "--", color=figures.PALETTE[0], linewidth=1.8, label="bound as proved")
        axis.plot(across, printed, ":", color=figures.PALETTE[1], linewidth=2.2, label="bound as printed")
        axis.plot(across, measured, "o", color="black", markersize=4, label="measured")
        axis.fill_between(
            across, printed, measured, where=np.asarray(measured) > np.asarray(printed), interpolate=True,
            color=figures.PALETTE[1], alpha=0.15, linewidth=0, label="violation",
        )  # fmt: skip
    labels = [
        (r"Lemma B.3, $\kappa_g = 1.2$", "$k$", r"$\|w_k - v(x_{k-1})\|$"),
        (r"Theorem 4.2, $K = 1$", r"$\gamma$", r"$\ell(x_1) - \ell^*$"),
        (r"Theorem 4.4, $\gamma = 1/2$, $\beta = 0$", "$K$", r"$\min_{k<K}\,\mathcal{G}(x_k)$"),
    ]
    for axis, (title, horizontal, vertical) in zip(axes, labels, strict=True):
        axis.set_title(title, fontsize=10)
        axis.set(xlabel=horizontal, ylabel=vertical)
    axes[0].set_yscale("log")
    axes[2].set_yscale("log")
    figures.legend_above(drawn, axes[0])
    _save(drawn, path)


FIGURES: dict[str, Callable[[Path], None]] = {
    "theory-lipschitz.png": lipschitz_figure,
    "theory-tracking.png": tracking_figure,
    "theory-convex.png": convex_figure,
    "theory-nonconvex.png": nonconvex_figure,
    "theory-rates.png": rates_figure,
    "theory-printed.png": printed_figure,
}


def main() -> None:
    """Draw all figures in 64-bit arithmetic."""
    parser = argparse.ArgumentParser(description="Draw the figures of docs/theory.md.")
    parser.add_argument("--out", type=Path, default=DOCS / "images", help="folder of the figures (docs/images)")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    with jax.enable_x64(True):
        for name, figure in FIGURES.items():
            figure(folder / name)
            print(folder / name)


if __name__ == "__main__":
    main()
