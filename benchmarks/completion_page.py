"""The page docs/completion.md, from the figures of `completion_ablation.py`."""

import platform
import statistics
import textwrap

import jax
import numpy as np
from completion_variants import (
    BEST_RADIUS,
    CHOSEN,
    DEFAULTS,
    LEFT_OUT,
    LEVELS,
    LOSSES,
    NO_BOUND,
    OPTIMUM,
    OTHER_OPTIMUM,
    OUTLIER_SHARES,
    PARTS,
    RADII,
    RANDOM_SHARES,
    RANKS,
    SPLITS,
    SQUARED,
    SYNTHETIC,
)

import bilevax as bx
from bilevax.drawing.tables import markdown

NAMES = {"100k": "MovieLens 100K", "1m": "MovieLens 1M"}


class Summary:
    """Means over seeds of the fits under one name, and differences between fits with the same seed."""

    def __init__(self, figures, data, seeds):
        """Take the figures of these data and seeds."""
        self.figures, self.data, self.seeds = figures, data, seeds

    def values(self, name, what="rmse"):
        """One for each seed."""
        return [self.figures[f"{self.data}/{seed}/{name}"][what] for seed in self.seeds]

    def mean(self, name, what="rmse"):
        """The mean over the seeds."""
        return statistics.mean(self.values(name, what))

    def has(self, name):
        """Whether it was run."""
        return f"{self.data}/{self.seeds[0]}/{name}" in self.figures

    def differences(self, name, to=DEFAULTS):
        """The difference of RMSE for each seed; positive means worse."""
        return [a - b for a, b in zip(self.values(name), self.values(to), strict=True)]

    def difference(self, name, to=DEFAULTS):
        """The mean difference of RMSE."""
        return rounded_mean(self.differences(name, to))

    def time(self, name):
        """As a share of that of the defaults."""
        return f"{self.mean(name, 'seconds') / self.mean(DEFAULTS, 'seconds'):.0%}"

    def cells(self, name, to):
        """RMSE and difference, each with its standard deviation, rank and seconds."""
        if not self.has(name):
            return dict.fromkeys(("RMSE", "difference", "rank", "seconds"), "–")
        return {
            "RMSE": spread(self.values(name), "{:.4f}"),
            "difference": "" if name == to else spread(self.differences(name, to), "{:+.4f}"),
            "rank": f"{self.mean(name, 'rank'):.0f}",
            "seconds": f"{self.mean(name, 'seconds'):.1f}",
        }


def rounded_mean(values):
    """To four digits, and no minus before a zero."""
    return round(statistics.mean(values), 4) + 0.0


def spread(values, form):
    """Mean ± standard deviation; the value alone if there is one."""
    mean = form.format(rounded_mean(values))
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.4f}"


def table(summaries, names, first, to=DEFAULTS, *, held_out=False):
    """A row for each name; columns for each summary."""
    rows = []
    for name in names:
        row = {first: name}
        for summary in summaries:
            label = f", {summary.data.upper()}" if len(summaries) > 1 else ""
            cells = summary.cells(name, to)
            if held_out:
                cells["held-out RMSE"] = f"{statistics.mean(min(p) for p in summary.values(name, 'path')):.4f}"
            row |= {key + label: cell for key, cell in cells.items()}
        rows.append(row)
    return markdown(rows)


def prose(*sentences):
    """A paragraph."""
    words = " ".join(" ".join(sentences).split())
    return textwrap.fill(words, 120, break_long_words=False, break_on_hyphens=False)


def section(title, *blocks):
    """A heading and what is below it."""
    return "\n\n".join([f"## {title}", *blocks])


def compared(value):
    """A difference in words, to four digits."""
    return f"{abs(value):.4f} {'higher' if value > 0 else 'lower'}"


def write_page(figures, data, seeds, command):
    """The whole page; `figures` has a dictionary for each fit, by data, seed and variant."""
    clean = [Summary(figures, d, seeds if d == "100k" else seeds[:1]) for d in data]
    parts = [introduction(figures, seeds, data, command)]
    parts += [write(clean) for write in (part_section, rank_section, radius_section, level_section)]
    if "100k" in data:
        parts += [split_section(Summary(figures, "100k", seeds)), disturbed_section(figures, seeds)]
    parts += [synthetic_section(figures, seeds), long_fits_section()]
    return "\n\n".join(parts) + "\n"


def long_fits_section():
    """How a long fit survives."""
    return section(
        "Long fits",
        prose(
            '`MatrixCompletion(checkpoint="folder")` saves its work every ten seconds. After a crash the same `fit`',
            "goes on and ends with the same bits ([Runs that survive](reliability.md)). On the command line:",
        ),
        "```\nbilevax complete ratings.csv --out run --checkpoint saved\nbilevax resume saved\n```",
    )


def introduction(figures, seeds, data, command):
    """What was done, and how."""
    minutes = sum(row["seconds"] for row in figures.values()) / 60
    versions = f"bilevax {bx.__version__}, jax {jax.__version__}, numpy {np.__version__}"
    machine = f"{platform.system()} {platform.machine()}"
    blocks = [
        "# Matrix completion, part by part",
        prose(
            "This page is about the shrunk matrix, `bx.estimators.MatrixCompletion(refit=False)`, which adds up a",
            "mean, effects of rows and columns (ridge 5), and a low-rank matrix in a weighted nuclear-norm ball. By",
            "default the estimator fits factors as well",
            "([decision 18](decisions/0018-factors-that-estimate-their-ridges.md)), and is more accurate.",
            "The norm weights rows and columns by their number of entries, and it treats rows, and columns, with",
            "entries in the same places as similar. Held-out entries choose the radius of the ball. The page leaves",
            "out one part at a time, and then asks what the lower level of the bilevel problem adds. The",
            "defaults are those of this part. The page is written by",
        ),
        f"```\n{command}\n```",
        prose(
            "A seed s decides the test set: the ratings where `numpy.random.default_rng(s).random(n) < 0.1`. The fit",
            "uses the other ratings, and holds out a tenth of them to choose the radius. Figures are means ± standard",
            f"deviation over {len(seeds)} seeds." if len(seeds) > 1 else "deviation.",
            f"{NAMES['1m']} is run for seed {seeds[0]} only." if "1m" in data else "",
            "Unless noted, each difference is computed per seed against the defaults; positive means worse. Use the",
            "standard deviation of the differences to judge them. The rank is that of the low-rank part. Seconds are",
            "CPU seconds of one fit without compilation, on a core that had other work at the same time: they are",
            "rough.",
        ),
        prose(f"{len(figures)} fits, {minutes:.0f} minutes of fitting; {versions}, {machine}."),
    ]
    return "\n\n".join(blocks)


def part_section(clean):
    """Similarity, weights, effects."""
    _, similarity, weighted, both, none, before = PARTS
    results = [
        f"On {NAMES[s.data]} the RMSE is {compared(s.difference(similarity))} without similarity, "
        f"{compared(s.difference(weighted))} without weights, {compared(s.difference(both))} "
        f"without both, {compared(s.difference(none))} without effects, and "
        f"{compared(s.difference(before))} if the effects are fitted before."
        for s in clean
    ]
    remark = (
        "Similarity is worth most: who rated what says something about tastes that the ratings alone do not. It also "
        "takes time, most of the time of a small fit. Without effects the low-rank part has to spend its norm on them."
    )
    return section("What each part is worth", table(clean, PARTS, "left out"), prose(*results, remark))


def rank_section(clean):
    """The bound on the rank."""
    results = [
        f"On {NAMES[s.data]} rank 10 costs {s.difference('`max_rank=10`'):+.4f} and takes {s.time('`max_rank=10`')} of "
        f"the time, rank 20 costs {s.difference('`max_rank=20`'):+.4f} and takes {s.time('`max_rank=20`')}."
        for s in clean
    ]
    results += [
        f"Without a bound the RMSE on {NAMES[s.data]} changes by {s.difference(NO_BOUND):+.4f} and a fit takes "
        f"{s.time(NO_BOUND)}; the chosen radius needs a rank of {s.mean(NO_BOUND, 'rank'):.0f}."
        for s in clean
        if s.has(NO_BOUND)
    ]
    results += [
        f"On {NAMES[s.data]} the rank reaches the bound of 100; with 200 the RMSE changes by "
        f"{s.difference('`max_rank=200`'):+.4f} and a fit takes {s.time('`max_rank=200`')}."
        for s in clean
        if s.mean(DEFAULTS, "rank") == 100
    ]
    return section("Rank", "The default is 100.", table(clean, RANKS, "bound"), prose(*results))


def radius_section(clean):
    """The search against a fixed radius."""
    results = [
        f"On {NAMES[s.data]} a fit at the chosen radius takes {s.time(CHOSEN)} of the time of the search, and its RMSE "
        f"is {compared(s.difference(CHOSEN))}. Half that radius costs {s.difference('half of it'):+.4f}, twice it "
        f"{s.difference('twice it'):+.4f}."
        for s in clean
    ]
    results += [
        f"Close to the optimum for that radius the difference is {s.difference(OPTIMUM):+.4f}: by default a fit stops "
        "when a step changes the training error by less than a thousandth, so that its result depends on the start."
        for s in clean
        if s.has(OPTIMUM)
    ]
    given = prose(
        "By default held-out entries choose the radius: a search tries growing radii, then radii around the best one.",
        "Each fit begins with the matrix of the next smaller radius. The other fits in the table get a radius and the",
        "similarity that was chosen with it, and begin with the zero matrix.",
    )
    return section("Radius", given, table(clean, RADII, "radius"), prose(*results))


def level_section(clean):
    """The paper's lower level on clean ratings."""
    given = prose(
        "With Ω₁ = Ω₂ and without regularizer, λ₁ = 0, the lower level has the solution Y = (M + λ₂ X) / (1 + λ₂), so",
        "that X − Y is the residual X − M over 1 + λ₂. The bilevel problem then is least squares times 1 / (1 + λ₂)².",
        "The defaults are this case with λ₂ = 0.05. The ridge of the effects does not have this factor. So with λ₂ = 1",
        "the ridge is multiplied by the ratio of the two factors, in all lines but one. The data term is a sum; as",
        "printed, a mean, it learns nothing (see [the reproduction](reproduction.md)).",
    )
    results = [
        f"On {NAMES[s.data]} λ₂ = 1 instead of 0.05 changes the RMSE by {s.difference('λ₁ = 0, λ₂ = 1'):+.4f} (by "
        f"{s.difference('λ₁ = 0, λ₂ = 1, ridge 5'):+.4f} if the ridge stays), the printed weights by "
        f"{s.difference('λ₁ = 0.05, λ₂ = 0.05 (printed)'):+.4f}, λ₁ = 0.5 by "
        f"{s.difference('λ₁ = 0.5, λ₂ = 0.05'):+.4f} with λ₂ = 0.05 and "
        f"{s.difference('λ₁ = 0.5, λ₂ = 1'):+.4f} with λ₂ = 1."
        for s in clean
    ]
    results.append(
        "So the lower level adds nothing on clean ratings. Without regularizer this follows from the formula; the "
        "difference that is left comes from the steps of the effects: they are shorter with λ₂ = 1, and the fit ends "
        "elsewhere."
    )
    results += [
        f"Close to the optimum at the same radius, λ₂ = 1 and λ₂ = 0.05 differ by "
        f"{s.difference(OTHER_OPTIMUM, OPTIMUM):+.4f} on {NAMES[s.data]}."
        for s in clean
        if s.has(OPTIMUM)
    ]
    last = "The regularizer pulls all values towards the mean; a little of it changes nothing, more of it does harm."
    return section(
        "The lower level on clean ratings", given, table(clean, LEVELS, "lower level"), prose(*results, last)
    )


def split_section(small):
    """Omega1 against Omega2."""
    same, half, other, _ = SPLITS
    given = (
        "The paper lets Ω₁ and Ω₂ differ. Here effects are fitted before, to all entries; differences are to Ω₁ = Ω₂."
    )
    results = prose(
        f"With a random half of the entries in the upper level the RMSE is {compared(small.difference(half, same))}:",
        "only entries of Ω₁ move X, and the others are lost. If Ω₂ is the other half, the lower level observes no",
        "entry of Ω₁. Without regularizer Y = X there, and f is zero for every X; with it the best X is zero. Nothing",
        f"is learned (rank {small.mean(other, 'rank'):.0f}), and the RMSE is that of the effects alone.",
    )
    return section("Entries of the two levels", given, table([small], SPLITS, "entries", same), results)


def disturbed_section(figures, seeds):
    """Random ratings."""
    by_share = {share: Summary(figures, f"random {share}", seeds) for share in RANDOM_SHARES}
    given = prose(
        "Random ratings, uniform from 1 to 5, replace some of the ratings to learn from; the test set is not",
        'changed. The robust lower level (`data_loss="pseudo-huber"` and `outlier=d` of',
        "`bx.problems.sparse_completion`) replaces (V − M)² by 2d²(√(1+((V−M)/d)²)−1), which grows linearly",
        "beyond d. Y then follows X away from an outlier, |X − Y| is at most d/λ₂, and the upper level has a bounded",
        "loss for the entry. Both losses are fitted in the same way, and both search for the radius. Differences are",
        "to the squared loss with λ₂ = 0.05, the defaults. The line with random ratings left out uses the knowledge of",
        "which ratings are random: it shows how much there is to gain. We tried six settings of the robust loss on",
        "seed 0 beforehand and show three. Of the others d = 0.5 with λ₂ = 1 was worse than the squared loss even with",
        "10 % random ratings. No held-out entries chose d: a gain of the best line is a gain in hindsight.",
    )
    tables = []
    for share, summary in by_share.items():
        names = [name for name in (*LOSSES, LEFT_OUT) if summary.has(name)]
        tables += [f"{share:.0%} random:", table([summary], names, "data loss", SQUARED, held_out=True)]

    def changes(name):
        return ", ".join(f"{s.difference(name, SQUARED):+.4f} ({k:.0%})" for k, s in by_share.items() if s.has(name))

    results = prose(
        f"The robust loss changes the RMSE by {changes('robust, λ₂ = 1, d = 1')} with λ₂ = 1 and d = 1, and by",
        f"{changes('robust, λ₂ = 1, d = 2')} with d = 2. Leaving out the random ratings changes it by",
        f"{changes(LEFT_OUT)}. So the robust loss regains a part of what random ratings cost where they are many. It",
        "also gives little weight to unusual but honest ratings, which costs accuracy where few ratings are random. A",
        "random rating is at most four stars off, hardly more than an honest one: there is little to tell them apart.",
        "Some of the held-out entries are random themselves, and the robust loss counts large errors less, so that the",
        "held-out RMSE does not show which loss is better.",
    )
    return section("The lower level on ratings with errors", given, *tables, results)


def synthetic_section(figures, seeds):
    """Gross errors."""
    clean, spoiled = (Summary(figures, f"synthetic {share}", seeds) for share in OUTLIER_SHARES)
    squared, good = "squared, λ₂ = 1", "robust, λ₂ = 1, d = 3"
    given = prose(
        "The paper's synthetic instance (n = 250, rank 10, noise 0.5, 80 % observed), without and with outliers: an",
        "outlier is an observed entry, 5 % of them, to which we add or from which we subtract ten standard deviations",
        "of all observed entries. There are no effects, no weights, no similarity and no bound on the rank. The RMSE",
        "compares the entries not observed with the matrix without noise, whose entries have a standard deviation of",
        "about 3.2. Outliers mislead the search for the radius too. So a line shows the squared loss with the radius",
        "that is best on the test set, among 1, 1/2, ... 1/32 times the nuclear norm of the truth. Differences are to",
        "the first line. Here too d is not chosen by the data; λ₂ = 0.3 with d = 1 and 3, tried on seed 0 only, gave",
        "similar results.",
    )
    results = prose(
        f"With outliers the squared loss has an RMSE of {spoiled.mean(squared):.2f}, and of",
        f"{spoiled.mean(BEST_RADIUS):.2f} with the best radius. The robust one with d = 3 has",
        f"{spoiled.mean(good):.2f}; on data without outliers the squared loss has {clean.mean(squared):.2f}. This is",
        "where the bilevel problem does what least squares cannot: with a d above the noise and well below the",
        "outliers, they have almost no influence; with d = 10, a third of their size, they keep some. Without",
        f"outliers the search chooses a radius that costs {clean.difference(squared, BEST_RADIUS):+.4f} against the",
        "best one in hindsight.",
    )
    tables = [table([s], SYNTHETIC, "data loss", squared) for s in (clean, spoiled)]
    return section(
        "The lower level on data with outliers", given, "No outliers:", tables[0], "5 % outliers:", tables[1], results
    )
