"""Extreme eigenpairs and singular pairs by a thick-restart Lanczos method, from products alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Scalar

Vector = Float[Array, " n"]
Matrix = Float[Array, "p q"]

# Basis size and vectors kept at a restart. Larger bases need no fewer products on the matrices we tried
# (Gaussian 4000 x 3000: 42 products with 10, 48 with 200) and cost more orthogonalisation.
_BASIS, _KEPT = 10, 4
_NOISE = 1.0  # against a warm start of length one: a tenth let an old, nearly leading eigenvector pass for the answer
_FLOOR = 16.0  # in units of rounding: no residual is expected to fall below this


class Eigenpair(NamedTuple):
    """The algebraically largest eigenvalue of a symmetric operator, with what is known of its error."""

    value: Scalar
    vector: Vector
    residual: Scalar
    """`|A v - value v|`: the nearest eigenvalue is at most this far away."""
    products: Int[Array, ""]


class SingularPair(NamedTuple):
    """The largest singular value of a matrix with its vectors."""

    value: Scalar
    left: Float[Array, " p"]
    right: Float[Array, " q"]
    error: Scalar
    """Bound on `largest - value`, provided the Krylov space has met the largest one."""
    products: Int[Array, ""]


def _orthogonalise(vector: Vector, basis: Float[Array, "m n"]) -> tuple[Vector, Float[Array, " m"]]:
    # Twice is enough (Kahan): once leaves components of the size of rounding times the cancelled part.
    first = basis @ vector
    vector = vector - first @ basis
    second = basis @ vector
    return vector - second @ basis, first + second


def _extend(
    matvec: Callable[[Vector], Vector], basis: Array, small: Array, start: Array | int, key: Array
) -> tuple[Array, Array, Vector, Scalar]:
    """Grow the orthonormal rows of `basis` from `start` to full; rows past `start` must be zero.

    Returns basis, projected matrix, the next basis vector, and its coupling to the last row.
    """
    m, n = basis.shape
    eps = jnp.finfo(basis.dtype).eps

    def step(j: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        basis, small, _, _ = carry
        product = matvec(basis[j])
        rest, column = _orthogonalise(product, basis)
        small = small.at[:, j].set(column).at[j, :].set(column)
        size = jnp.linalg.norm(rest)
        # An invariant subspace: go on in a fresh direction, or the rest of the spectrum is never seen.
        lost = size <= 4 * eps * jnp.linalg.norm(product)
        fresh = jax.lax.cond(
            lost, lambda: _orthogonalise(jax.random.normal(jax.random.fold_in(key, j), (n,), rest.dtype), basis)[0],
            lambda: rest,
        )  # fmt: skip
        length = jnp.linalg.norm(fresh)
        # In a full space nothing is left: rounding of the orthogonalisation must not pass for a direction.
        exhausted = (j + 1 >= n) | (length == 0)
        following = jnp.where(exhausted, 0, fresh / jnp.where(length == 0, 1, length))
        coupling = jnp.where(lost | exhausted, 0, size)
        basis = jnp.where(j + 1 < m, basis.at[jnp.minimum(j + 1, m - 1)].set(following), basis)
        return basis, small, following, coupling

    zero = jnp.zeros((), basis.dtype)
    return jax.lax.fori_loop(start, m, step, (basis, small, jnp.zeros(n, basis.dtype), zero))


def _unit(vector: Vector, key: Array) -> Vector:
    """The vector normalised after a dose of noise, so that no warm start hides the leading direction."""
    noise = jax.random.normal(key, vector.shape, vector.dtype)
    noise = noise / jnp.linalg.norm(noise)
    size = jnp.linalg.norm(vector)
    mixed = vector / jnp.where(size == 0, 1, size) + _NOISE * noise
    return mixed / jnp.linalg.norm(mixed)


def top_eigenpair(
    matvec: Callable[[Vector], Vector],
    start: Vector,
    key: Array,
    *,
    tol: Scalar | float,
    max_products: Scalar | int = 500,
) -> Eigenpair:
    """Largest eigenvalue of the symmetric operator `matvec`, by thick-restart Lanczos.

    `start` is a guess (zeros if there is none). Stops when the eigenvalue is accurate to `tol` relative to the
    largest magnitude met, judged by the residual.
    """
    n = start.shape[0]
    m = min(_BASIS, n)
    kept = min(_KEPT, m - 1)
    dtype = start.dtype
    eps = jnp.finfo(dtype).eps
    tol = jnp.asarray(tol, dtype)

    def cycle(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        basis, small, begin, _, _, _, products, _ = carry
        round_key = jax.random.fold_in(key, products)
        basis, small, following, coupling = _extend(matvec, basis, small, begin, round_key)
        values, vectors = jnp.linalg.eigh(small)  # ascending
        tails = coupling * vectors[-1]
        ritz = vectors.T[::-1] @ basis
        value, residual = values[-1], jnp.abs(tails[-1])
        magnitude = jnp.maximum(jnp.abs(values[0]), jnp.abs(value))
        # Not r^2 / gap with the gap between Ritz values: two eigenvalues not yet told apart look like one.
        done = ~(residual > jnp.maximum(tol, _FLOOR * eps) * magnitude)  # NaN ends it too
        # Thick restart: keep the leading Ritz vectors and go on from the next Lanczos vector; its couplings
        # to them are computed with its own column.
        restart = jnp.zeros_like(basis).at[:kept].set(ritz[:kept]).at[kept].set(following)
        projected = jnp.zeros_like(small).at[jnp.arange(kept), jnp.arange(kept)].set(values[::-1][:kept])
        return restart, projected, jnp.asarray(kept), value, ritz[0], residual, products + m - begin, done

    def unfinished(carry: tuple[Any, ...]) -> Array:
        return ~carry[-1] & (carry[-2] < max_products)

    first = jnp.zeros((m, n), dtype).at[0].set(_unit(start, key))
    zero = jnp.zeros((), dtype)
    carry = (first, jnp.zeros((m, m), dtype), jnp.asarray(0), zero, first[0], zero, jnp.asarray(0), jnp.asarray(False))
    _, _, _, value, vector, residual, products, _ = jax.lax.while_loop(unfinished, cycle, carry)
    return Eigenpair(value, vector / jnp.linalg.norm(vector), residual, products)


# Compiled by themselves: called outside compiled code, a loop over a closure would be compiled again at every call.
@jax.jit
def lowest_eigenpair(
    symmetric: Float[Array, "n n"], start: Vector, key: Array, *, tol: Scalar | float, max_products: Scalar | int = 500
) -> Eigenpair:
    """The smallest eigenvalue of a dense symmetric matrix, as the largest of its negative."""
    return top_eigenpair(lambda v: -(symmetric @ v), start, key, tol=tol, max_products=max_products)


@jax.jit
def top_singular_pair(
    matrix: Matrix, start: Vector, key: Array, *, tol: Scalar | float, max_products: Scalar | int = 500
) -> SingularPair:
    """Largest singular value of a dense matrix from products with it; `start` is of its shorter side.

    `tol` is the relative error wanted in the singular value; a product with the matrix or its transpose counts one.
    """
    p, q = matrix.shape
    # Squares of tiny or huge entries would leave the range of the floating-point numbers.
    largest = jnp.max(jnp.abs(matrix)) if matrix.size else jnp.ones((), matrix.dtype)
    unit = jnp.where(largest == 0, 1, largest)

    def gram(v: Vector) -> Vector:
        # `u @ A`, never `A.T @ u`: on a CPU the latter is an order of magnitude slower in XLA.
        return ((matrix @ v) / unit) @ matrix / unit if q <= p else matrix @ ((v @ matrix) / unit) / unit

    top = top_eigenpair(gram, start, key, tol=2 * jnp.asarray(tol, matrix.dtype), max_products=max_products // 2)
    image = (matrix @ top.vector if q <= p else top.vector @ matrix) / unit
    value = jnp.linalg.norm(image)
    other = image / jnp.where(value == 0, 1, value)
    left, right = (other, top.vector) if q <= p else (top.vector, other)
    # sigma <= sqrt(value^2 + r), written so that nothing cancels.
    error = top.residual / jnp.maximum(value + jnp.sqrt(value**2 + top.residual), jnp.finfo(matrix.dtype).tiny)
    return SingularPair(value * unit, left, right, error * unit, 2 * top.products)


class Extremes(NamedTuple):
    """Both ends of a spectrum as far as a Krylov space has seen them."""

    low: Scalar
    high: Scalar
    products: Int[Array, ""]
    fall: Scalar
    """How much lower the low end was than half as many products before."""


def extreme_eigenvalues(
    matvec: Callable[[Vector], Vector], size: int, key: Array, *, max_products: int, dtype: jnp.dtype
) -> Extremes:
    """Smallest and largest eigenvalue of a symmetric operator, by Lanczos without reorthogonalisation.

    Losing orthogonality only repeats eigenvalues already found, so that no basis need be kept. The ends are looked at
    after 24 products and at every half as many again; it stops once both have settled to a percent. Ritz values lie
    inside the spectrum, and approach the end of a dense one like 1/k^2. If the low end still creeps that way when
    the products are spent, a fifth of its change over the last two stages, which is what that law leaves, is taken
    off, at most five percent.
    """
    m = max_products  # may exceed the size: without reorthogonalisation the exact end comes later
    first = jax.random.normal(key, (size,), dtype)
    first = first / jnp.linalg.norm(first)
    zero = jnp.zeros((), dtype)

    def lanczos(j: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        q, before, beta, alphas, betas = carry
        product = matvec(q)
        rest = product - beta * before
        # After an invariant subspace q is zero; a repeated inner value then leaves the ends alone.
        alpha = jnp.where(jnp.any(q != 0), rest @ q, alphas[0])
        rest = rest - alpha * q
        beta = jnp.linalg.norm(rest)
        beta = jnp.where(beta <= 4 * jnp.finfo(dtype).eps * jnp.linalg.norm(product), 0, beta)
        following = jnp.where(beta == 0, 0, rest / jnp.where(beta == 0, 1, beta))
        return following, q, beta, alphas.at[j].set(alpha), betas.at[j].set(beta)

    def ends(alphas: Array, betas: Array, k: Array) -> tuple[Scalar, Scalar]:
        inside = jnp.arange(m) < k
        diagonal = jnp.where(inside, alphas, alphas[0])  # any value inside the spectrum hides the unused part
        coupling = jnp.where(inside[1:], betas[:-1], 0)
        values = jnp.linalg.eigvalsh(jnp.diag(diagonal) + jnp.diag(coupling, 1) + jnp.diag(coupling, -1))
        return values[0], values[-1]

    def stage(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        state, k, low, high, changes, _ = carry
        goal = jnp.maximum(24, 3 * k // 2)
        goal = jnp.where(3 * goal // 2 > m, m, goal)  # no short last stage
        state = jax.lax.fori_loop(k, goal, lanczos, state)
        new_low, new_high = ends(state[3], state[4], goal)
        settled = (jnp.abs(new_low - low) <= 0.01 * jnp.abs(new_low)) & (new_high - high <= 0.01 * jnp.abs(new_high))
        exhausted = state[2] == 0
        changes = jnp.stack([changes[1], low - new_low])
        return state, goal, new_low, new_high, changes, (settled & (k > 0)) | exhausted

    def unfinished(carry: tuple[Any, ...]) -> Array:
        return ~carry[-1] & (carry[1] < m)

    state = (first, jnp.zeros_like(first), zero, jnp.zeros(m, dtype), jnp.zeros(m, dtype))
    start = (state, jnp.asarray(0), zero, zero, jnp.zeros(2, dtype), jnp.asarray(False))
    _, k, low, high, changes, settled = jax.lax.while_loop(unfinished, stage, start)
    # The first change is not one: there was no value before it.
    creeping = ~settled & (low > 0) & (changes[0] > 0) & (changes[1] > 0.3 * changes[0])
    low = low - jnp.where(creeping, jnp.minimum(0.2 * jnp.sum(changes), 0.05 * low), 0)
    return Extremes(low, high, k, jnp.maximum(changes[1], 0))
