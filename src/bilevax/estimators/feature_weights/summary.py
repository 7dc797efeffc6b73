"""What a fitted model says of itself."""

from __future__ import annotations

from typing import Any

import numpy as np


def describe(model: Any, names: Any = None) -> str:
    """A few lines: the loss, what was chosen, how sure that is, and the most useful features."""
    classes = getattr(model, "classes_", None)
    names = getattr(model, "feature_names_in_", None) if names is None else names
    kind = "squared loss" if classes is None else f"logistic loss, {len(classes)} classes"
    unit = "squared loss" if classes is None else "log loss"
    spread = np.log10(model.weights_.max() / model.weights_.min())
    lines = [
        f"FeatureWeights ({kind}) of {len(model.weights_)} features",
        f"  held out     {unit} {model.held_out_loss_:.5g}; the weights spread over {spread:.1f} powers of ten",
    ]
    lines += [f"  chosen       {choice.words()}" for choice in model.choices_]
    if model.moderation_ > 0:
        lines.append(f"  moderated    probabilities, by {model.moderation_:.2g} times the uncertainty of the score")
    best = [str(j if names is None else names[j]) for j in model.ranking_[:10]]
    lines.append(f"  most useful  {', '.join(best)}{', ...' if len(model.weights_) > 10 else ''}")
    if hasattr(model, "message_"):  # not in a model that was read from a file
        lines.append(f"  ended        {model.status_} after {model.seconds_:.1f} s: {model.message_}")
    return "\n".join(lines)
