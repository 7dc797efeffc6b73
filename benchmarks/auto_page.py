"""The table of docs/choose-a-solver.md, from the JSON files that `benchmarks/auto.py --json FILE` has written.

python benchmarks/auto_page.py FILE ...
"""

import json
import math
import re
import statistics
import sys
from pathlib import Path

from bilevax.drawing.tables import markdown

OTHERS = {
    "fista": "FISTA",
    "lbfgsb": "L-BFGS-B",
    "implicit": "jaxopt",
    "RAHGD": "RAHGD",
    "AIDBiO": "AIDBiO",
    "*": "best tuned",
    "IBCG": "IBCG",
}
PAGE = Path(__file__).parents[1] / "docs" / "choose-a-solver.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def group(family):
    """Quadratics are one line for each set; other families are on their own."""
    return re.sub(r"^(quadratic-[a-z0-9]+)-.*", r"\1", family)


def seconds(runs, method):
    """The median over the starts; infinite if it did not get there, NaN if the method cannot run."""
    if method == "*":  # each by the best step of its grid
        tuned = {name for run in runs for name in run if name.endswith("*")}
        return min((seconds(runs, name) for name in sorted(tuned)), default=math.nan)
    found = [run[method]["seconds"] for run in runs if method in run and "refused" not in run[method]["note"]]
    return statistics.median(math.inf if value is None else value for value in found) if found else math.nan


def against_printed(runs):
    """The time of its 10,000 steps over that of auto to the smallest gap it had."""
    for run in runs:
        if "printed" not in run or not run["printed"]["visits"]:
            continue
        visits = [visit for visit in run["printed"]["visits"] if visit[1] is not None]
        least = min(visit[1] for visit in visits)
        reached = [visit[0] for visit in run["auto"]["visits"] if visit[1] is not None and visit[1] <= least]
        if reached:
            yield visits[-1][0] / reached[0]


def spread(values):
    """From the smallest to the largest ratio, in words that fit into a cell."""
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return ""
    short = lambda value: "never" if math.isinf(value) else f"{value:.2g}" if value < 100 else f"{value:.0f}"  # noqa: E731
    low, high = short(min(values)), short(max(values))
    return low if low == high else f"{low} – {high}"


def table(families):
    """A row for each group: the seconds of auto, and how many times as long the others take."""
    groups = {}
    for family, runs in families.items():
        groups.setdefault(group(family), []).append(runs)
    rows = []
    for name, members in groups.items():
        auto = [seconds(runs, "auto") for runs in members]
        row = {"family": name, "problems": len(members), "auto, seconds": spread(auto)}
        for method, label in OTHERS.items():
            row[label] = spread([seconds(runs, method) / own for runs, own in zip(members, auto, strict=True)])
        row["IBCG as printed"] = spread([ratio for runs in members for ratio in against_printed(runs)])
        rows.append(row)
    return markdown(rows)


def write_page(paths):
    """Write the table into the page."""
    if not paths:
        sys.exit("auto_page: name the files that `benchmarks/auto.py --json FILE` has written.")
    families = {}
    for path in paths:
        families |= json.loads(Path(path).read_text())["families"]
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(families)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    write_page(sys.argv[1:])
