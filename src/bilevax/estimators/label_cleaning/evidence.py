"""Scores of the classes of each row, made from soft labels of other rows only.

A soft label is a probability for each class. Each kind of evidence has a few settings, such as the strength of a ridge.
`first` scores rows by all others, which is honest as long as the labels are those that were given. Estimated soft
labels hold what their neighbours say, and with them rows would judge themselves: `held_out` scores a fold by the labels
of the other folds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

Setting = tuple[float, float]
_LANDMARKS = 1000
_WIDTHS = (0.5, 1.0, 2.0)
"""Of the kernel: exp(-width * squared distance / its median)."""
_RIDGES = tuple(np.geomspace(0.003, 100.0, 10))
_DIRECTIONS, _MOST_DENSE = 50, 3000
_REFERENCES = 50_000
"""Neighbours are looked for among at most so many rows."""
_BLOCK = 4096
_SPARE = 2
"""Neighbours that are kept for each one that votes: some of them are in the fold that is held out."""


class Folds(NamedTuple):
    """For each fold the rows to learn from and the rows that are held out."""

    learned: list[np.ndarray]
    held_out: list[np.ndarray]


class Evidence(Protocol):
    """One way to score the classes of rows."""

    name: str

    def first(self, rows: np.ndarray, soft: np.ndarray) -> Iterator[tuple[Setting, np.ndarray]]:
        """Scores of some rows, each without its own label, for a few settings; `soft` are the labels of all rows."""

    def prepare(self, folds: Folds, setting: Setting) -> None:
        """Make ready for folds with the kind of features that `setting` names."""

    def within(self, k: int, soft: np.ndarray, setting: Setting) -> np.ndarray:
        """Scores of the rows that fold k learns from, each without its own label; `soft` are their labels."""

    def held_out(self, k: int, soft: np.ndarray, settings: Sequence[Setting]) -> list[np.ndarray]:
        """Scores of the rows that fold k holds out, for each setting; `soft` are the labels of the others."""

    def near(self, setting: Setting, *, all_of_them: bool) -> list[Setting]:
        """Settings to compare with this one that need no other preparation."""


def comparable(X: Any) -> Any:
    """Features in single precision with a mean squared norm of 1; a sparse matrix is not centred."""
    if scipy.sparse.issparse(X):
        X = scipy.sparse.csr_array(X).astype(np.float32)
        size = np.sqrt(X.multiply(X).sum() / X.shape[0])
    else:
        X = np.asarray(X, np.float32)
        X = X - X.mean(axis=0)
        size = np.sqrt(np.einsum("ij,ij->", X, X, dtype=float) / len(X))
    return X * np.float32(1 / size if size > 0 else 1.0)


def _dense(A: Any) -> np.ndarray:
    return A.toarray() if scipy.sparse.issparse(A) else np.asarray(A)


def _squared_norms(X: Any) -> np.ndarray:
    if scipy.sparse.issparse(X):
        return np.asarray(X.multiply(X).sum(axis=1)).ravel()
    return np.einsum("ij,ij->i", X, X)


class Ridge:
    """Ridge regression of the soft labels, on the features or on a kernel with some rows as landmarks.

    One eigendecomposition serves all ridges, and leaves every row out in closed form.
    """

    def __init__(self, X: Any, rng: np.random.Generator, *, kernel: bool) -> None:
        self.name = "kernel" if kernel else "linear"
        self._X, self._kernel = X, kernel
        self._plain = not kernel and X.shape[1] <= _LANDMARKS
        self._norms = _squared_norms(X)
        self._landmarks = rng.choice(X.shape[0], min(_LANDMARKS, X.shape[0]), replace=False)
        sample = self._landmarks[:500]
        self._middle = max(float(np.median(self._distances(sample))), 1e-12)

    def _distances(self, rows: np.ndarray) -> np.ndarray:
        """Squared distances to the landmarks."""
        products = _dense(self._X[rows] @ self._X[self._landmarks].T)
        return np.maximum(self._norms[rows, None] + self._norms[self._landmarks] - 2 * products, 0)

    def _similarities(self, rows: np.ndarray, width: float) -> np.ndarray:
        if self._kernel:
            return np.exp(np.float32(-width / self._middle) * self._distances(rows))
        return _dense(self._X[rows] @ self._X[self._landmarks].T)

    def _features(self, rows: np.ndarray, width: float) -> np.ndarray:
        """Features whose products are the kernel, as far as the landmarks can tell; centred."""
        if self._plain:
            made = _dense(self._X[rows])
        else:
            K = self._similarities(self._landmarks, width).astype(float)
            K[np.diag_indices(len(K))] += 1e-4 * np.trace(K) / len(K)
            root = np.linalg.cholesky(K).astype(np.float32)
            blocks = [rows[i : i + _BLOCK] for i in range(0, len(rows), _BLOCK)]
            made = np.concatenate(
                [scipy.linalg.solve_triangular(root, self._similarities(b, width).T, lower=True).T for b in blocks]
            )
        centred: np.ndarray = made - made.mean(axis=0)
        return centred

    def first(self, rows: np.ndarray, soft: np.ndarray) -> Iterator[tuple[Setting, np.ndarray]]:
        """As `Evidence.first`; the rows learn from each other."""
        for width in _WIDTHS if self._kernel else (0.0,):
            F = self._features(rows, width)
            values, vectors = _spectrum(F.T @ F)
            Q = F @ vectors
            for ridge in _RIDGES[1::2]:
                yield (width, ridge), _left_out(Q, values, soft[rows], ridge)

    def prepare(self, folds: Folds, setting: Setting) -> None:
        """As `Evidence.prepare`."""
        self._F, self._folds = self._features(np.arange(self._X.shape[0]), setting[0]), folds
        gram = self._F.T @ self._F
        self._spectra = [_spectrum(gram - self._F[held].T @ self._F[held]) for held in folds.held_out]
        self._leverages: dict[tuple[int, float], np.ndarray] = {}

    def within(self, k: int, soft: np.ndarray, setting: Setting) -> np.ndarray:
        """As `Evidence.within`."""
        F, (values, vectors), ridge = self._F[self._folds.learned[k]], self._spectra[k], setting[1]
        if (k, ridge) not in self._leverages:
            inverse = (1 / (values + ridge)).astype(np.float32)
            parts = [((F[i : i + _BLOCK] @ vectors) ** 2) @ inverse for i in range(0, len(F), _BLOCK)]
            self._leverages[k, ridge] = np.concatenate(parts)
        mean = soft.mean(axis=0)
        fitted = F @ self._coefficients(k, soft - mean, ridge)
        return _without_own(fitted, soft - mean, self._leverages[k, ridge]) + mean

    def held_out(self, k: int, soft: np.ndarray, settings: Sequence[Setting]) -> list[np.ndarray]:
        """As `Evidence.held_out`."""
        mean, F = soft.mean(axis=0), self._F[self._folds.held_out[k]]
        return [F @ self._coefficients(k, soft - mean, ridge) + mean for _, ridge in settings]

    def _coefficients(self, k: int, off: np.ndarray, ridge: float) -> np.ndarray:
        values, vectors = self._spectra[k]
        right = vectors.T @ (self._F[self._folds.learned[k]].T @ off)
        found: np.ndarray = vectors @ (right / (values + ridge).astype(np.float32)[:, None])
        return found

    def near(self, setting: Setting, *, all_of_them: bool) -> list[Setting]:
        """As `Evidence.near`."""
        i = _RIDGES.index(setting[1])
        ridges = _RIDGES if all_of_them else _RIDGES[max(i - 1, 0) : i + 2]
        return [(setting[0], ridge) for ridge in ridges]


def _spectrum(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, vectors = np.linalg.eigh(gram.astype(float))
    return np.maximum(values, 0.0), vectors.astype(np.float32)


def _left_out(Q: np.ndarray, values: np.ndarray, soft: np.ndarray, ridge: float) -> np.ndarray:
    mean, inverse = soft.mean(axis=0), (1 / (values + ridge)).astype(np.float32)
    fitted = Q @ ((Q.T @ (soft - mean)) * inverse[:, None])
    return _without_own(fitted, soft - mean, (Q * Q) @ inverse) + mean


def _without_own(fitted: np.ndarray, off: np.ndarray, leverage: np.ndarray) -> np.ndarray:
    """What a row would get if its own label were not there; the mean counts for 1 / n of it."""
    own = (leverage + 1 / len(off))[:, None]
    left: np.ndarray = (fitted - own * off) / np.maximum(1 - own, 1e-3)
    return left.astype(np.float32)


class Neighbours:
    """Votes of the nearest rows, in the leading directions of the features."""

    name = "neighbours"

    def __init__(self, X: Any, rng: np.random.Generator) -> None:
        n = X.shape[0]
        Z = _leading(X)
        references = np.arange(n) if n <= _REFERENCES else np.sort(rng.choice(n, _REFERENCES, replace=False))
        self._n = n
        self._counts = [float(k) for k in (5, 10, 20, 40, 80) if k * _SPARE < len(references) - 1] or [1.0]
        most = min(int(_SPARE * self._counts[-1]), len(references) - 1)
        norms, self._nearest = _squared_norms(Z[references]), np.empty((n, most), np.int32)
        for i in range(0, n, _BLOCK):
            rows = np.arange(i, min(i + _BLOCK, n))
            distances = norms - 2 * (Z[rows] @ Z[references].T)
            distances[rows[:, None] == references] = np.inf
            near = np.argpartition(distances, most - 1, axis=1)[:, :most]
            order = np.argsort(np.take_along_axis(distances, near, axis=1), axis=1)
            self._nearest[rows] = references[np.take_along_axis(near, order, axis=1)]

    def first(self, rows: np.ndarray, soft: np.ndarray) -> Iterator[tuple[Setting, np.ndarray]]:
        """As `Evidence.first`; all rows vote."""
        settings = self.near((0.0, self._counts[0]), all_of_them=True)
        yield from zip(settings, self._votes(self._nearest[rows], soft, settings), strict=True)

    def prepare(self, folds: Folds, setting: Setting) -> None:
        """As `Evidence.prepare`."""
        self._folds, self._voters = folds, []
        most = int(self._counts[-1])
        for learned in folds.learned:
            place = np.full(self._n, -1, np.int32)
            place[learned] = np.arange(len(learned), dtype=np.int32)
            voters = place[self._nearest]
            order = np.argsort(voters < 0, axis=1, kind="stable")[:, :most]  # those of the fold, the nearest first
            self._voters.append(np.maximum(np.take_along_axis(voters, order, axis=1), 0))

    def within(self, k: int, soft: np.ndarray, setting: Setting) -> np.ndarray:
        """As `Evidence.within`."""
        return self._votes(self._voters[k][self._folds.learned[k]], soft, [setting])[0]

    def held_out(self, k: int, soft: np.ndarray, settings: Sequence[Setting]) -> list[np.ndarray]:
        """As `Evidence.held_out`."""
        return self._votes(self._voters[k][self._folds.held_out[k]], soft, settings)

    @staticmethod
    def _votes(voters: np.ndarray, soft: np.ndarray, settings: Sequence[Setting]) -> list[np.ndarray]:
        """Logarithms of mean votes; the mean of all labels has one vote, so that none is zero."""
        mean, total = soft.mean(axis=0), np.zeros((len(voters), soft.shape[1]), np.float32)
        found, counted = {}, 0
        for count in sorted(int(count) for _, count in settings):
            for j in range(counted, min(count, voters.shape[1])):
                total += soft[voters[:, j]]
            counted = count
            found[count] = np.log((total + mean) / (count + 1) + 1e-6)
        return [found[int(count)] for _, count in settings]

    def near(self, setting: Setting, *, all_of_them: bool) -> list[Setting]:
        """As `Evidence.near`."""
        i = self._counts.index(setting[1])
        counts = self._counts if all_of_them else self._counts[max(i - 1, 0) : i + 2]
        return [(0.0, count) for count in counts]


def _leading(X: Any) -> np.ndarray:
    """Coordinates in the leading directions; distances in them are nearly those of all features."""
    if X.shape[1] <= _DIRECTIONS:
        return _dense(X)
    d = X.shape[1]
    if d > _MOST_DENSE:
        vectors = scipy.sparse.linalg.svds(X, _DIRECTIONS, random_state=0)[2].T
    else:
        vectors = scipy.linalg.eigh(_dense(X.T @ X).astype(float), subset_by_index=(d - _DIRECTIONS, d - 1))[1]
    return np.asarray(X @ vectors.astype(np.float32))
