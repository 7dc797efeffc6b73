"""The page about the reproduction: protocol, the paper's values, ours, and a verdict on every claim."""

from __future__ import annotations

from dataclasses import dataclass

from bilevax.drawing.tables import markdown
from bilevax.experiments.paper.jobs import FAILS, HOLDS, UNKNOWN, Experiment, Report, Runs

NAME = "reproduction.md"


@dataclass(frozen=True)
class Section:
    """An experiment with what it has to show, or why it has nothing."""

    experiment: Experiment
    runs: Runs
    report: Report | None
    missing: str | None


_HEAD = """# The paper, reproduced

This page is written by `bilevax reproduce`; every number on it comes from a run directory, and nothing is typed by hand
but the paper's own values. **As printed** follows the paper to the letter, misprints included; **repaired** is the same
experiment posed so that it does what the text describes, with steps that work. Seconds count steps only, compilation
apart. f(x, y) is the value at the tracked y, ℓ(x) the true one with the lower level solved: f can lie below the optimum
while y lags, so that a low f alone proves nothing.
"""

_MISPRINTS = """## Misprints and open choices

| what the paper prints | what it changes | what we do |
| --- | --- | --- |
| completion: data term divided by the number of observations | the optimum is x = 0 up to a thousandth, and a perfect solver has normalized error 1 | printed, and repaired with the sum |
| w_0 = y_0 | a random, dense adjoint error that decays like ρ^k | printed as it is; our default is 0 with a warm-up |
| SBFW: powers 1 to k of I − H/L_g, times k/L_g | the identity term is lost, the mean tends to H⁻¹ − I/L_g and the variance grows like k | printed; corrected: powers 0 to κ log k |
| SBFW in multi-task learning: η, ρ × 10³ (× 100) | steps beyond 1 leave the set; clipped, the first step lands on a singular Ω | printed with clipping and a warning; η and ρ divided as another reading |
| multi-task set Ω ⪰ 0 | Ω⁻¹ does not exist at the vertices, L_g is infinite | printed with constants at Ω_0; repaired with Ω ⪰ 0.05 I |
| multi-task γ = 1/(10⁴√K), 1/(10⁸√K) | Ω moves by at most 1 % or 10⁻⁶ of the way | printed; repaired with 2/(k+2) |
| TTSA: t_max(0) = κ log 1 = 0 | an empty range for p | k counted from 1, so that there is always a term |
| TTSA: direction at y_k | the original uses the new y_{k+1} | printed at y_k; otherwise at y_{k+1} |
| toy: neither A nor the four points | figures cannot be compared point by point | ours in `problems/coreset.py` |
| completion of ratings: no radius, start or error | figures cannot be compared point by point | stated under each experiment |
| NLSY79: 6,213 × 19 | not public | the public table of 4,908 rows |
"""


def write(sections: list[Section]) -> str:
    """The page as markdown, with figures at `figures/NAME.png`."""
    parts = [_HEAD, _machine(sections), _claims(sections), *map(_section, sections), _MISPRINTS]
    return "\n".join(part for part in parts if part)


def _machine(sections: list[Section]) -> str:
    # Sections that share a run load it once.
    runs = list({id(run): run for section in sections for run in section.runs}.values())
    if not runs:
        return ""
    minutes = sum(run.config.get("wall_seconds") or run.seconds for run in runs) / 60
    cores = sorted({run.cores for run in runs})
    words = "one core" if cores == [1] else f"{' or '.join(map(str, cores))} cores"
    versions = runs[0].versions
    return (
        f"{len(runs)} runs, {minutes:.0f} minutes, each on {words} of a {runs[0].system} machine; "
        f"bilevax {versions['bilevax']}, jax {versions['jax']}, float64.\n"
    )


def _claims(sections: list[Section]) -> str:
    claims = [(section.runs, claim) for section in sections if section.report for claim in section.report.claims]
    if not claims:
        return ""
    counts = {verdict: sum(c.verdict == verdict for _, c in claims) for verdict in (HOLDS, FAILS, UNKNOWN)}
    rows = [
        {
            "claim": claim.text,
            "runs": _folder(runs),
            "variant": claim.variant,
            "rule": claim.rule,
            "measured": claim.measured,
            "verdict": f"**{claim.verdict}**",
        }
        for runs, claim in claims
    ]
    words = {HOLDS: "hold", FAILS: "do not hold", UNKNOWN: "cannot be checked"}
    summary = ", ".join(f"{count} {words[verdict]}" for verdict, count in counts.items() if count)
    return f"## Claims\n\n{summary}.\n\n{markdown(rows)}\n"


def _section(section: Section) -> str:
    experiment, report = section.experiment, section.report
    lines = [f"## {experiment.title}\n", f"**Paper.** {experiment.shows}\n", f"**Protocol.** {experiment.protocol}\n"]
    if section.missing:
        lines.append(f"**Not run.** {section.missing.splitlines()[0]}\n")
    if report is None:
        return "\n".join(lines)
    for figure in report.figures:
        lines.append(f"![{figure.caption}](figures/{figure.name}.png)\n\n*{figure.caption}*\n")
    for table in report.tables:
        lines.append(f"{table.caption} Runs: `runs/{_folder(section.runs)}`.\n\n{markdown(table.rows)}\n")
    return "\n".join(lines)


def _folder(runs: Runs) -> str:
    return ", ".join(dict.fromkeys(str(folder).split("/")[0] for folder in runs.values("folder")))
