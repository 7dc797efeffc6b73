"""The rates of Corollaries 4.3 and 4.5, measured, and the step counts computed from the theorems."""

import jax
import numpy as np
import pytest
import zoo
from theory_runs import measure

import bilevax as bx
from bilevax import theory
from bilevax.problems import known_nonconvex, known_quadratic, known_robust_lower, known_robust_upper

pytestmark = pytest.mark.slow  # alike to quicker tests of the same claims
HORIZONS = [10**2, 10**3, 10**4, 10**5]
SEEDS = 5
CONVEX = {
    "quadratic": lambda i: known_quadratic(bx.Simplex(), 4, 3, jax.random.key(i), kappa=2.0, rho=1.0),
    "robust lower": lambda i: known_robust_lower(4, jax.random.key(i), kappa=2.0),
    "robust upper": lambda i: known_robust_upper(bx.Simplex(), 4, 3, jax.random.key(i), kappa=2.0),
}


def started(knowns, gamma, steps, share=0.9):
    """Runs from the middle of the set, with eta at a share of its limit."""
    etas = [share * float(known.constants.eta_limit) for known in knowns]
    n, m = (like.zeros().size for like in (knowns[0].problem.x_like, knowns[0].problem.y_like))
    x0, y0 = np.full((len(knowns), n), 0.25), np.zeros((len(knowns), m))
    return measure(knowns, x0, y0, gamma, etas, steps=steps)


def slope(horizontal, vertical):
    return np.polyfit(np.log(horizontal), np.log(vertical), 1)[0]


@pytest.mark.parametrize("family", zoo.every_second(CONVEX))
def test_corollary_4_3_rate(family):
    """gamma = log(K)/K: the error falls like 1/K up to the logarithm, which alone gives a slope of -0.87 here."""
    knowns = [CONVEX[family](i) for i in range(SEEDS)]
    errors = []
    for K in HORIZONS:
        runs = started(knowns, theory.convex_step(K), K)
        errors.append([float(run.known.ell(run.x[-1]) - run.known.ell_star) for run in runs])
    for one in np.transpose(errors):
        assert slope(HORIZONS, one) <= -0.85


@pytest.mark.parametrize("kappa", [1.0, 2.0])
def test_corollary_4_5_rate(kappa):
    """gamma = kappa^-2.5 K^-0.5: the smallest true gap falls at least like K^-0.5."""
    knowns = [known_nonconvex(3, 3, jax.random.key(i), kappa=kappa) for i in range(SEEDS)]
    gaps = []
    for K in HORIZONS:
        runs = started(knowns, theory.nonconvex_step(knowns[0].constants, K), K)
        gaps.append([np.min(run.gap[:-1]) for run in runs])
    for one in np.transpose(gaps):
        assert slope(HORIZONS, np.maximum(one, 1e-14)) <= -0.45


KAPPAS = [1.0, 2.0, 5.0, 10.0, 30.0]


@pytest.mark.parametrize(("make", "power"), [(known_quadratic, 5), (known_robust_upper, 4)])
def test_corollary_4_3_growth_with_kappa(make, power):
    """mu_g = 1/kappa, L_g = 1, all else equal: at fixed K the error grows at most like kappa^5, kappa^4 if bounded."""
    K = 10**4
    errors = []
    for kappa in KAPPAS:
        knowns = [
            make(bx.Simplex(), 4, 3, jax.random.key(i), kappa=kappa, mu_g=1 / kappa, rho=1.0) for i in range(SEEDS)
        ]
        runs = started(knowns, theory.convex_step(K), K)
        errors.append(np.mean([run.known.ell(run.x[-1]) - run.known.ell_star for run in runs]))
    assert slope(KAPPAS, errors) <= power
    assert np.all(np.array(errors) / errors[0] <= np.array(KAPPAS) ** power)


def start_of(known):
    """The errors of y and w and the distance of ell from its optimum with which `started` begins.

    A theorem promises nothing for a run that begins with larger errors than the theorem was given. So the tests below
    give it these errors, not round numbers: with errors of 1 and 2, below the true 1.65 and 2.21, the promise was void
    and its check never ran. Each epsilon is below the first value, so that the promise is not true from the start.
    """
    (run,) = started([known], 1.0, 1)
    return float(run.y_error[0]), float(run.w_error[0]), float(run.ell[0] - known.ell_star)


@pytest.mark.parametrize("epsilon", [0.5, 0.1, 0.01])
def test_steps_from_theorem_4_2(epsilon):
    known = known_quadratic(bx.Simplex(), 4, 3, jax.random.key(0), kappa=2.0)
    eta, (y_error, w_error, first) = 0.5 * float(known.constants.eta_limit), start_of(known)
    K = theory.convex_iterations(known.constants, eta, y_error, w_error, first, epsilon)

    def bound(K):
        setting = theory.Setting(known.constants, theory.convex_step(K), eta, y_error, w_error)
        return theory.convex_bound(setting, K, first)

    assert K > 10
    assert bound(K) <= epsilon < bound(K // 2)
    (run,) = started([known], theory.convex_step(K), K, share=0.5)
    assert run.ell[-1] - known.ell_star <= epsilon < first


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("epsilon", [0.7, 0.3])
def test_steps_from_theorem_4_4(epsilon, bounded):
    known = known_robust_upper(bx.Simplex(), 4, 3, jax.random.key(0), kappa=2.0)
    eta, (y_error, w_error, first) = 0.5 * float(known.constants.eta_limit), start_of(known)
    K = theory.nonconvex_iterations(known.constants, eta, y_error, w_error, first, epsilon, bounded=bounded)

    def bound(K):
        gamma = theory.nonconvex_step(known.constants, K, bounded=bounded)
        return theory.nonconvex_bound(theory.Setting(known.constants, gamma, eta, y_error, w_error), K, first)

    assert K > 3
    assert bound(K) <= epsilon < bound(K // 2)
    (run,) = started([known], theory.nonconvex_step(known.constants, K, bounded=bounded), K, share=0.5)
    assert np.min(run.gap[:-1]) <= epsilon < run.gap[0]


def test_an_accuracy_out_of_reach_is_refused():
    known = known_robust_upper(bx.Simplex(), 4, 3, jax.random.key(0), kappa=2.0)
    with pytest.raises(ValueError, match="steps would be needed"):
        theory.convex_iterations(known.constants, 0.1, 1.0, 1.0, 1.0, 1e-9, limit=1000)


def test_steps_of_the_corollaries():
    constants = theory.Constants(0.5, 2.0)
    np.testing.assert_allclose(theory.convex_step(1000), np.log(1000) / 1000)
    np.testing.assert_allclose(theory.nonconvex_step(constants, 10**4), 4**-2.5 / 100)
    np.testing.assert_allclose(theory.nonconvex_step(constants, 10**4, bounded=True), 4**-2.0 / 100)
    assert theory.convex_step(1) == 1
