"""How well `MatrixCompletion` completes matrices of many kinds, against other methods and against the noise.

    python benchmarks/completion_families.py [--only low-rank|other] [--sizes 100x60 250x250 1000x800] [--seeds 0 1 2]
        [--json FILE] [--references FILE] [--ours-only | --references-only] [--quick]

Low-rank matrices have three sizes, two ranks, four levels of noise and three shares of observed entries. The other
families are matrices that are not of low rank, or whose entries or noise are unusual. A seed decides the matrix, the
noise and the observed entries. Errors are the RMSE on the unobserved entries against the noiseless truth; the script
judges means over the seeds.

The file of `--json` is written after every figure, and figures that it already holds are not measured again.
`--references` names a file with figures of the other methods, which do not depend on our code. Seconds are CPU time of
one fit (for the references with tuning), compilation included. Needs cmfrec. For comparable seconds, set
OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from completion_references import Instance, cmfrec, effects_alone, ridge_als, soft_impute
from sklearn.metrics import roc_auc_score

from bilevax.drawing.tables import markdown
from bilevax.estimators import MatrixCompletion

OURS, DATA = "ours", "instance"
HINDSIGHT, SOFT, CMFREC, EFFECTS = "ridge ALS in hindsight", "soft-impute tuned", "cmfrec tuned", "effects alone"
REFERENCES = {HINDSIGHT: ridge_als, SOFT: soft_impute, CMFREC: cmfrec, EFFECTS: effects_alone}
SIZES = {"100x60": (100, 60), "250x250": (250, 250), "1000x800": (1000, 800)}
RANKS, NOISES, SHARES = (3, 10), (0.0, 0.1, 0.3, 0.6), (0.2, 0.4, 0.8)
OUTLIER_SHARE = 0.05


class Case(NamedTuple):
    """A family of matrices with its parameters."""

    family: str
    shape: tuple[int, int] = (300, 200)
    share: float = 0.3
    """Of observed entries, chosen uniformly at random."""
    noise: float = 0.0
    rank: int = 0
    """0 where the matrix is not of low rank."""
    scale: float = 1.0
    """The standard deviation of the entries of a low-rank matrix."""
    outliers: float = 0.0
    """The size of outliers, in standard deviations of the observed entries; 0 for no outliers."""

    @property
    def name(self):
        """The family and its parameters in words."""
        p, q = self.shape
        parts = [f"{self.family} {p}x{q}", f"{self.share:.0%}", f"noise {self.noise:g}"]
        parts += [f"rank {self.rank}"] if self.rank else []
        parts += [f"outliers of {self.outliers:g} sd"] if self.outliers else []
        return ", ".join(parts)

    @property
    def dof(self):
        """Degrees of freedom of a matrix of this rank."""
        return self.rank * (sum(self.shape) - self.rank)


def low_rank(rng, case):
    """Return a product of Gaussian factors, scaled."""
    p, q = case.shape
    truth = rng.standard_normal((p, case.rank)) @ rng.standard_normal((case.rank, q))
    return case.scale * truth / truth.std()


def slow_spectrum(rng, case):
    """Return a matrix with singular values 1, 1/2, 1/3, ... and random singular vectors, scaled."""
    left, right = (np.linalg.qr(rng.standard_normal((n, min(case.shape))))[0] for n in case.shape)
    truth = left / np.arange(1, min(case.shape) + 1) @ right.T
    return truth / truth.std()


def blocks(rng, case):
    """Return 8 x 6 blocks: each row and column has a random group, and each pair of groups a random mean."""
    rows, cols = (rng.integers(count, size=n) for count, n in zip((8, 6), case.shape, strict=True))
    return rng.standard_normal((8, 6))[rows][:, cols]


def row_effects(rng, case):
    """Return a matrix with one number for each row."""
    return np.repeat(rng.standard_normal((case.shape[0], 1)), case.shape[1], axis=1)


class Family(NamedTuple):
    """How the truth and noise of unit scale are drawn, and whether all of row 0 is observed."""

    truth: Callable
    noise: Callable = np.random.Generator.standard_normal
    dense_row: bool = False


FAMILIES = {
    "low rank": Family(low_rank),
    "spectrum 1/k": Family(slow_spectrum),
    "blocks": Family(blocks),
    "row effects": Family(row_effects),
    "pure noise": Family(lambda rng, case: np.zeros(case.shape)),
    "one dense row": Family(low_rank, dense_row=True),
    "heavy-tailed noise": Family(low_rank, lambda rng, shape: rng.standard_t(2, shape)),
    "outliers": Family(low_rank),
}
LOW_RANK = [
    Case("low rank", shape, share, noise, rank)
    for shape, rank, noise, share in product(SIZES.values(), RANKS, NOISES, SHARES)
]
OTHER = [
    Case("spectrum 1/k"),
    Case("blocks", noise=0.5),
    Case("row effects", noise=0.5),
    Case("pure noise", noise=1.0),
    Case("one dense row", share=0.05, noise=0.1, rank=3),
    Case("heavy-tailed noise", noise=0.3, rank=3),
    Case("outliers", noise=0.3, rank=5, outliers=5),
    Case("outliers", noise=0.3, rank=5, outliers=10),
    Case("outliers", (250, 250), 0.8, 0.5, 10, 3.2, 10),
]
QUICK = [case for case in LOW_RANK if case[1:4] in {((100, 60), 0.4, 0.0), ((100, 60), 0.4, 0.3)}] + OTHER[3:8:3]


def make(case, seed):
    """Draw the matrix, the noise, the observed entries and the outliers."""
    rng, family = np.random.default_rng(seed), FAMILIES[case.family]
    truth = family.truth(rng, case)
    values = truth + case.noise * family.noise(rng, case.shape)
    observed = rng.random(case.shape) < case.share
    observed[0] |= family.dense_row
    outlying = observed & (rng.random(case.shape) < OUTLIER_SHARE * (case.outliers > 0))
    values += outlying * case.outliers * values[observed].std() * rng.choice([-1.0, 1.0], case.shape)
    return Instance(truth, values, observed, case.rank, case.noise, outlying)


def describe(case, made):
    """Return the number of observed entries, the fewest in a row or column, and the oracle error."""
    fewest = min(made.observed.sum(axis=axis).min() for axis in (0, 1))
    count = int(made.observed.sum())
    return {"observed": count, "fewest": int(fewest), "oracle": case.noise * (case.dof / count) ** 0.5}


def complete(made):
    """Fit our estimator with its defaults; return the completed matrix, the model and its CPU seconds."""
    began = time.process_time()
    model = MatrixCompletion().fit(made.entries())
    spent = time.process_time() - began
    rows, cols = np.indices(made.observed.shape)
    return model.predict(rows.ravel(), cols.ravel()).reshape(made.observed.shape), model, spent


def measure_ours(made):
    completed, model, spent = complete(made)
    figures = {"rmse": made.error(completed), "seconds": spent, "rank": int(model.rank_)}
    figures["taken"] = str(getattr(model, "choices_", {}).get("taken"))
    if made.outlying.any():
        without = complete(made._replace(observed=made.observed & ~made.outlying))[0]
        far = np.abs(made.values - completed)[made.observed]
        figures |= {"clean rmse": made.error(without), "auc": float(roc_auc_score(made.outlying[made.observed], far))}
    return figures


def measure_reference(method, made):
    began = time.process_time()
    completed, setting = REFERENCES[method](made)
    return {"rmse": made.error(completed), "seconds": time.process_time() - began, "setting": setting}


def measure(case, seed, methods, figures, save):
    """Add the figures that are missing."""
    missing = [method for method in methods if f"{case.name}/{seed}/{method}" not in figures]
    made = make(case, seed) if missing else None
    for method in missing:
        if method == DATA:
            new = describe(case, made)
        else:
            new = measure_ours(made) if method == OURS else measure_reference(method, made)
            print(f"{case.name}, seed {seed}, {method}: {new['rmse']:.4g} in {new['seconds']:.1f} s", flush=True)
        figures[f"{case.name}/{seed}/{method}"] = new
        save()


class Means:
    """Means over the seeds of the figures of each case."""

    def __init__(self, figures, seeds):
        """Take the figures of these seeds."""
        self.figures, self.seeds = figures, seeds

    def all(self, case, method, what):
        """The figure for each seed, or nothing if some seed lacks it."""
        found = [self.figures.get(f"{case.name}/{seed}/{method}", {}).get(what) for seed in self.seeds]
        return [] if None in found else found

    def mean(self, case, method, what="rmse"):
        """The mean, or NaN if some seed lacks the figure."""
        return statistics.mean(self.all(case, method, what) or [float("nan")])

    def ratios(self, cases, method, what="rmse"):
        """Our error over that of a method, for each case that has both."""
        found = {case.name: self.mean(case, OURS) / self.mean(case, method, what) for case in cases}
        return {name: ratio for name, ratio in found.items() if not np.isnan(ratio)}

    def determined(self, case):
        """Whether there are at least two observed entries for each degree of freedom."""
        return self.mean(case, DATA, "observed") >= 2 * case.dof

    def recoverable(self, case):
        """Whether, besides, all rows and columns have more entries than the rank."""
        return self.determined(case) and min(self.all(case, DATA, "fewest"), default=0) > case.rank


class Verdict(NamedTuple):
    """A claim that holds where the figures are at most a limit."""

    claim: str
    limit: float
    figures: dict

    def failures(self):
        """The cases above the limit, the worst one first."""
        over = {name: value for name, value in self.figures.items() if value > self.limit}
        return sorted(over.items(), key=lambda pair: -pair[1])

    def row(self):
        """The row of the table of verdicts."""
        worst = max(self.figures, key=self.figures.get)
        return {
            "claim": self.claim,
            "cases": len(self.figures),
            "limit": self.limit,
            "median": statistics.median(self.figures.values()),
            "worst": f"{self.figures[worst]:.4g}",
            "failures": len(self.failures()),
            "verdict": "FAIL" if self.failures() else "pass",
            "worst case": worst,
        }


def verdicts(means, cases):
    known = [case for case in cases if means.all(case, OURS, "rmse") and means.all(case, DATA, "observed")]
    low, other = ([case for case in known if (case.family == "low rank") is flag] for flag in (True, False))
    noisy = means.ratios([case for case in low if case.noise and means.determined(case)], HINDSIGHT)
    median = {"all of them": statistics.median(noisy.values())} if noisy else {}
    scarce = [case for case in low if not means.determined(case)]
    exact = [case for case in low if not case.noise and means.recoverable(case)]
    outliers = [case for case in other if case.outliers]
    found = [
        Verdict("noise, entries >= 2 dof: median of ours / ridge ALS in hindsight", 1.1, median),
        Verdict("noise, entries >= 2 dof: ours / ridge ALS in hindsight", 1.3, noisy),
        Verdict("entries < 2 dof: ours / effects alone", 1.01, means.ratios(scarce, EFFECTS)),
        Verdict("no noise, recoverable: our error", 1e-4, {case.name: means.mean(case, OURS) for case in exact}),
    ]
    for peer in (SOFT, CMFREC):
        comparable = [case for case in low if case.noise or means.mean(case, peer) > 1e-3]
        found.append(Verdict(f"low rank: ours / {peer}", 1.02, means.ratios(comparable, peer)))
    found += [
        Verdict("other families: ours / effects alone", 1.01, means.ratios(other, EFFECTS)),
        Verdict("outliers: ours / ours without the outliers", 1.1, means.ratios(outliers, OURS, "clean rmse")),
        Verdict("outliers: 1 - AUC", 0.01, {case.name: 1 - means.mean(case, OURS, "auc") for case in outliers}),
    ]
    return [verdict for verdict in found if verdict.figures]


def tables(means, cases):
    """Return a markdown table of errors for the low-rank cases, and one for the others."""
    low, other = [], []
    for case in cases:
        row = {"case": case.name}
        if case.family == "low rank":
            row["entries/dof"] = f"{means.mean(case, DATA, 'observed') / case.dof:.1f}"
            row["oracle"] = means.mean(case, DATA, "oracle")
        row |= {method: means.mean(case, method) for method in (HINDSIGHT, SOFT, CMFREC, EFFECTS, OURS)}
        if case.family != "low rank":
            del row[HINDSIGHT]
            row |= {"ours without outliers": means.mean(case, OURS, "clean rmse"), "AUC": means.mean(case, OURS, "auc")}
        row["our seconds"] = means.mean(case, OURS, "seconds")
        (low if case.family == "low rank" else other).append(row)
    return "\n\n".join(markdown(rows) for rows in (low, other) if rows).replace(" nan ", "     ")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["low-rank", "other"])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="of the low-rank matrices")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path, help="write the figures to this file, and add to what it holds")
    parser.add_argument("--references", type=Path, help="take the figures of the other methods from this file")
    parser.add_argument("--quick", action="store_true", help="a few small cases; for trying the script")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--ours-only", action="store_true")
    which.add_argument("--references-only", action="store_true")
    options = parser.parse_args()
    sizes = [SIZES[name] for name in options.sizes]
    cases = [case for case in (QUICK if options.quick else LOW_RANK + OTHER) if case in OTHER or case.shape in sizes]
    cases = [case for case in cases if options.only in (None, "other" if case in OTHER else "low-rank")]
    own = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    others = json.loads(options.references.read_text()) if options.references else {}
    figures = {key: figure for key, figure in others.items() if not key.endswith(f"/{OURS}")} | own
    given = set(figures) - set(own)

    def save():
        if options.json:
            kept = {key: figure for key, figure in figures.items() if key not in given}
            options.json.write_text(json.dumps(kept, indent=1) + "\n")

    for case, seed in product(cases, options.seeds):
        references = [name for name in REFERENCES if name != HINDSIGHT or case.family == "low rank"]
        methods = [DATA] + references * (not options.ours_only) + [OURS] * (not options.references_only)
        measure(case, seed, methods, figures, save)
    means = Means(figures, options.seeds)
    print("\n" + tables(means, cases))
    found = verdicts(means, cases)
    if found:
        print("\n" + markdown([verdict.row() for verdict in found]))
    for verdict in found:
        for name, value in verdict.failures():
            print(f"FAIL {verdict.claim} <= {verdict.limit:g}: {value:.4g} for {name}")


if __name__ == "__main__":
    main()
