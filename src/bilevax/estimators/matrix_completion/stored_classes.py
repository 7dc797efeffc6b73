"""Which classes a checkpoint of a fit may hold."""

from __future__ import annotations

from bilevax.encoding import Form, of_named_tuple
from bilevax.estimators.matrix_completion.new_rows import NewRows, Shrunk
from bilevax.estimators.matrix_completion.similarity import Similarity
from bilevax.runs.trace import Trace

_FORMS = {
    "Trace": Form(Trace, list, Trace),
    **{kind.__name__: of_named_tuple(kind) for kind in (Shrunk, NewRows, Similarity)},
}


def forms(name: str) -> Form | None:
    """The form of a class by its name."""
    return _FORMS.get(name)
