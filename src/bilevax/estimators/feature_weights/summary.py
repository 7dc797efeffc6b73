"""What a fitted model says of itself."""

from __future__ import annotations

from typing import Any

import numpy as np


def describe(model: Any) -> str:
    """A few lines: the loss, what was chosen, how sure that is, and the most useful features."""
    classes = getattr(model, "classes_", None)
    names = getattr(model, "feature_names_in_", None)
    kind = "squared loss" if classes is None else f"logistic loss, {len(classes)} classes"
    chosen = next(choice for choice in model.choices_ if choice["chosen"])
    spread = np.log10(model.weights_.max() / model.weights_.min())
    lines = [
        f"FeatureWeights: {kind}, {len(model.weights_)} features, {model.status_} in {model.seconds_:.1f} s",
        f"  {model.message_}",
        f"  chosen: {chosen['weights']}, held-out loss {chosen['held_out_loss']:.5g}; "
        f"weights spread over {spread:.1f} powers of ten",
    ]
    for choice in model.choices_:
        if not choice["chosen"]:
            lines.append(
                f"  {choice['weights']}: {choice['difference']:+.2g} (standard error {choice['standard_error']:.2g})"
            )
    if model.moderation_ > 0:
        lines.append(f"  probabilities are moderated by {model.moderation_:.2g} times the uncertainty of the score")
    best = [str(j if names is None else names[j]) for j in model.ranking_[:10]]
    lines.append(f"  most useful features: {', '.join(best)}{', ...' if len(model.weights_) > 10 else ''}")
    return "\n".join(lines)
