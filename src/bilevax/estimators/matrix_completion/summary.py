"""A fitted completion in words: what the model consists of, what was chosen, and how sure that is."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevax.estimators.choices import Choice

_QUESTIONS = {
    "similarity": ("similarity of rows and columns", {"yes": "used", "no": "not used"}),
    "effects": ("effects of rows and columns", {"yes": "used", "no": "not used"}),
    "noise": ("noise", {"normal": "normal", "long tails": "with long tails: values far off count little"}),
    "averaging": ("predictions", {"yes": "averaged over the posterior", "no": "not averaged over the posterior"}),
}


def describe(model: Any) -> str:
    """One screen about a fitted `MatrixCompletion`."""
    p, q = len(model.left_), len(model.right_)
    lines = [
        f"MatrixCompletion of a {p} x {q} matrix from {len(model.entry_cols_)} entries",
        f"  model        {model_words(model)}",
    ]
    lines += [f"  {part}" for part in choice_words(model.choices_)]
    if np.isfinite(model.range_[0]):
        lines.append(f"  clipped      predictions are kept between {model.range_[0]:g} and {model.range_[1]:g}")
    if hasattr(model, "status_"):  # not in a model that was read from a file
        lines.append(f"  ended        {model.status_} after {model.seconds_:.1f} s: {model.message_}")
    return "\n".join(lines)


def model_words(model: Any) -> str:
    """The parts of the model."""
    choices, n_shrunk = model.choices_, model.shrunk_.left.shape[1]
    shrunk = f"a matrix of rank {n_shrunk} in a ball of radius {model.radius_:.4g}"
    effects = "mean and effects" if np.any(model.row_effects_) or np.any(model.col_effects_) else "no effects"
    if choices["taken"] == "shrunk":
        return f"{effects}, {shrunk}"
    if choices["taken"] == "effects alone":
        return f"{effects} alone: held-out entries say that more does not predict better"
    factors = f"{model.rank_ - (n_shrunk if choices['taken'] == 'both' else 0)} factors"
    if choices["taken"] == "factors":
        return f"{effects}, {factors}"
    share = round(100 * choices["share_of_factors"])
    return f"{effects}; {share} % of {factors} and {100 - share} % of {shrunk}"


def choice_words(choices: dict[str, Any]) -> list[str]:
    """What held-out entries said, a line for each choice; differences come with a standard error."""
    if "rmse" not in choices:
        return []
    errors = {name: value for name, value in choices["rmse"].items() if name != "taken" and np.isfinite(value)}
    listed = ", ".join(f"{name} {value:.4g}" for name, value in errors.items())
    lines = [f"held out     RMSE {choices['rmse']['taken']:.4g} on {choices.get('held_out', 0)} entries ({listed})"]
    if choices["taken"] == "both":
        gain = errors["factors"] - choices["rmse"]["taken"]
        mix = Choice("mix", "of both", "with factors alone", gain, choices["standard_error"])
        lines.append(f"mix          {mix.difference()}")
    for one in choices.get("comparisons", []):
        name, answers = _QUESTIONS[one["choice"]]
        against = f"{one['other']!r}" if one["choice"] == "noise" else "the other way"
        gain = one["other_rmse"] - one["rmse"]
        lines.append(
            f"chosen       {Choice(name, answers[one['taken']], against, gain, one['standard_error']).words()}"
        )
    return lines
