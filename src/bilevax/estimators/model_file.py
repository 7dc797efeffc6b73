"""A fitted estimator on disk: a JSON header and arrays in one NPZ file, never pickle.

An estimator lists what it keeps in a `ModelFormat`. Arrays of double precision are kept in single precision. Files of
others are read with suspicion: no size is believed that the file does not prove, and parts that do not fit together
are refused with a ValueError.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from bilevax import zips
from bilevax.estimators.choices import Choice
from bilevax.files import write_atomic
from bilevax.packed import UNEXPECTED
from bilevax.tables import Schema

_MOST_HEADER = 40_000_000  # bytes
_LABELS, _NUMBERS = "biufSU", "iuf"


class StoredModel(NamedTuple):
    """A file that is open: its header, and its arrays on request."""

    header: dict[str, Any]
    archive: zipfile.ZipFile

    def arrays(self, names: Iterable[str], labels: Iterable[str] = ()) -> dict[str, np.ndarray]:
        """Arrays by name, in double precision where they were numbers; all but the labels are finite."""
        found = zips.read_arrays(self.archive, [*names, *labels])
        check_finite({name: found[name] for name in names})
        return {name: array.astype(float) if array.dtype == np.float32 else array for name, array in found.items()}


class Format(Protocol):
    """What `load` needs to know of a kind of file."""

    @property
    def kind(self) -> str:
        """The name of the kind, which the header holds."""

    @property
    def newest(self) -> int:
        """The number of the newest format that can be read."""

    def read(self, stored: StoredModel) -> Any:
        """What `load` returns; a ValueError for a file that is not sound."""


def set_attributes(model: Any, values: Mapping[str, Any]) -> None:
    """Give the model everything that its file holds."""
    for name, value in values.items():
        setattr(model, name, value)


@dataclass(frozen=True)
class ModelFormat:
    """What a file of an estimator holds.

    Args:
        kind: its name in the header, such as "bilevax feature weights".
        estimator: the class, which is made from its parameters.
        numbers: attributes that stand in the header, each with its type: float, int, bool, str; dict for numbers by
            name; list for numbers and texts in lists. Numbers are finite.
        arrays: attributes that are arrays of numbers, each with a letter for every axis; axes with one letter have one
            length. The axis of features has the letter f. A digit is a length. "f|cf" allows both shapes; an array
            without axes comes back as a number.
        labels: arrays of numbers or text, such as the names of tasks.
        optional: names of the lists above that a model may lack, or have as None.
        derived: values of the lists above that are not attributes of these names, made from the model.
        restore: gives a new model all values by name; needed where `derived` is.
        check: a last look at a model that was read; it raises a ValueError for one that is not sound.
        newest: the number of the format, to be raised when the list changes.

    The parameters of the constructor are kept if they are plain values, and `choices_` if it is a list of `Choice`.
    """

    kind: str
    estimator: Callable[..., Any]
    numbers: Mapping[str, type]
    arrays: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    derived: Callable[[Any], Mapping[str, Any]] = lambda model: {}
    restore: Callable[[Any, Mapping[str, Any]], None] = set_attributes
    check: Callable[[Any], None] = lambda model: None
    newest: int = 1

    def save(self, model: Any, path: str | Path, schema: Schema | None = None) -> Path:
        """Write a model whole or not at all, with the schema of the table that it learned from, if there is one."""
        derived, names = self.derived(model), (*self.numbers, *self.arrays, *self.labels)
        held = {name: getattr(model, name) for name in names if name not in derived and hasattr(model, name)}
        held |= derived
        numbers = {name: _plain_number(held[name]) for name in self.numbers if held.get(name) is not None}
        arrays = {name: _array(held[name]) for name in self._array_names if held.get(name) is not None}
        absent = [name for name in names if name in held and held[name] is None]
        self._check(numbers, arrays, absent, schema)
        choices = [choice.as_plain() for choice in getattr(model, "choices_", [])]
        plain = None if schema is None else schema.as_plain()
        header = {"schema": plain, "numbers": numbers, "choices": choices, "absent": absent}
        return write(path, self, model, header, arrays)

    def read(self, stored: StoredModel) -> tuple[Any, Schema | None]:
        """The model, and the schema of its table or None."""
        header, held = stored.header, zips.array_names(stored.archive)
        wanted, labels = ([name for name in part if name in held] for part in (self.arrays, self.labels))
        arrays, numbers, absent = stored.arrays(wanted, labels), dict(header["numbers"]), list(header["absent"])
        schema = None if header["schema"] is None else Schema.of_plain(header["schema"])
        self._check(numbers, arrays, absent, schema)
        if not isinstance(header["choices"], list):
            raise ValueError("its choices are not a list")
        values: dict[str, Any] = {name: numbers[name] for name in self.numbers if name in numbers}
        values |= {name: array if array.ndim else array.item() for name, array in arrays.items()}
        values |= dict.fromkeys(absent)
        values["choices_"] = [Choice.of_plain(choice) for choice in header["choices"]]
        model = self.estimator(**plain_parameters(header["parameters"]))
        self.restore(model, values)
        self.check(model)
        return model, schema

    @property
    def _array_names(self) -> tuple[str, ...]:
        return (*self.arrays, *self.labels)

    def _check(
        self, numbers: Mapping[str, Any], arrays: Mapping[str, np.ndarray], absent: Sequence[str], schema: Schema | None
    ) -> None:
        for name in (*self.numbers, *self._array_names):
            if name not in numbers and name not in arrays and name not in self.optional:
                raise ValueError(f"{name} is missing")
        if not set(absent) <= self.optional:
            raise ValueError(f"{str(absent)[:60]} are missing")
        for name in self.numbers:
            if name in numbers and not _is_of(self.numbers[name], numbers[name]):
                raise ValueError(f"{name} is {str(numbers[name])[:60]!r}")
        check_finite({name: array for name, array in arrays.items() if name in self.arrays})
        sizes = check_shapes(arrays, {**self.arrays, **self.labels}, dict.fromkeys(self.labels, _LABELS))
        if schema is not None and sizes.get("f", len(schema.encoder.names)) != len(schema.encoder.names):
            raise ValueError(f"the model has {sizes['f']} features and its table {len(schema.encoder.names)}")


def write(path: str | Path, form: Format, model: Any, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Path:
    """Write header and arrays whole or not at all, with the parameters of the model that are plain values."""
    given = {name: value for name, value in model.get_params().items() if _is_plain(value) and name != "checkpoint"}
    whole = {"format": form.newest, "kind": form.kind, "parameters": given, **header}
    words = np.array(json.dumps(whole))
    stored: dict[str, Any] = {name: _compact(_array(array)) for name, array in arrays.items()}
    return write_atomic(path, lambda stream: np.savez_compressed(stream, header=words, **stored), "wb")


def load(path: str | Path, formats: Iterable[Format]) -> Any:
    """What the format of this file's kind reads; a ValueError in one line for a file that is none of them."""
    path = Path(path)
    try:
        with zips.opened(path) as archive:
            header = _header(archive)
            form = next((form for form in formats if form.kind == header.get("kind")), None)
            if form is None:
                raise ValueError(f"its kind is {str(header.get('kind'))[:60]!r}, which this bilevax does not know")
            version = header["format"]
            if isinstance(version, bool) or not isinstance(version, int):
                raise ValueError("its format is not a number")
            if version <= form.newest:
                return form.read(StoredModel(header, archive))
    except UNEXPECTED as error:
        raise ValueError(f"{path} is not a model written by bilevax, or it is damaged: {zips.words(error)}.") from error
    number = str(version)[:20]
    raise ValueError(f"{path} has format {number}; this bilevax reads up to {form.newest}. Update bilevax.")


def plain_parameters(parameters: Any) -> dict[str, Any]:
    """Parameters of a header; a ValueError if one of them is neither a number nor text."""
    if not isinstance(parameters, dict) or not all(_is_plain(value) for value in parameters.values()):
        raise ValueError("a parameter is neither a number nor text")
    return parameters


def check_finite(arrays: Mapping[str, np.ndarray]) -> None:
    """A ValueError says which array holds NaN or infinities, of which every prediction would be one."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{name} holds numbers that are not finite")


def check_shapes(
    arrays: Mapping[str, np.ndarray], shapes: Mapping[str, str], kinds: Mapping[str, str]
) -> dict[str, int]:
    """The size of each letter in `shapes`; a ValueError says which array does not fit. `kinds` are those of numpy."""
    sizes: dict[str, int] = {}
    for name, array in arrays.items():
        if array.dtype.kind not in kinds.get(name, _NUMBERS):
            raise ValueError(f"{name} holds {array.dtype}")
        letters = next((form for form in shapes[name].split("|") if len(form) == array.ndim), None)
        if letters is None:
            raise ValueError(f"{name} has shape {array.shape}")
        for letter, size in zip(letters, array.shape, strict=True):
            expected = int(letter) if letter.isdecimal() else sizes.setdefault(letter, size)
            if expected != size:
                raise ValueError(f"{name} has shape {array.shape}, which does not fit the other arrays")
    return sizes


def is_number(value: Any) -> bool:
    """Whether a value of a header is a number that numpy can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, float) or abs(value) < 2**63


def _header(archive: zipfile.ZipFile) -> dict[str, Any]:
    if archive.getinfo("header.npy").file_size > _MOST_HEADER:
        raise ValueError(f"its header has more than {_MOST_HEADER} bytes")
    header = json.loads(str(zips.read_arrays(archive, ["header"])["header"]))
    if not isinstance(header, dict):
        raise ValueError("its header is not that of a model")
    return header


def _array(values: Any) -> np.ndarray:
    """An array; one of Python objects, such as names, as text."""
    array = np.asarray(values)
    return array.astype(str) if array.dtype.kind == "O" else array


def _compact(array: np.ndarray) -> np.ndarray:
    """Half the bytes where that changes no prediction by more than a rounding of single precision."""
    if array.dtype == np.float64 and array.ndim and np.all(np.abs(array) < np.finfo(np.float32).max):
        return array.astype(np.float32)
    fits = array.dtype == np.int64 and array.size and abs(int(array.max())) < 2**31 > abs(int(array.min()))
    return array.astype(np.int32) if fits else array


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _plain_number(value: Any) -> Any:
    """Numbers of Python instead of numpy, lists instead of tuples."""
    if isinstance(value, (list, tuple)):
        return [_plain_number(part) for part in value]
    if isinstance(value, dict):
        return {name: _plain_number(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def _is_of(kind: type, value: Any) -> bool:
    if kind is float:
        return is_number(value) and math.isfinite(value)
    if kind is int:
        return is_number(value) and isinstance(value, int)
    if kind is dict:
        return isinstance(value, dict) and all(_is_of(float, part) for part in value.values())
    if kind is list:
        return isinstance(value, list) and all(_is_of(type(part), part) for part in value)
    return kind in (bool, str) and isinstance(value, kind)
