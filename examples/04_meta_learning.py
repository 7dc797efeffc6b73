"""Meta-learning on MovieLens: a new user has rated five films; predict that user's other ratings.

A film has a few features, user t has weights y_t, and a rating is their product. Five ratings do not determine the
weights, so they are shrunk towards a point x common to all users, and x is what is learned:

    lower level:  y_t = argmin 1/(2n) |A_t y - a_t|^2 + lambda/2 |y - x|^2   on the n = 5 given ratings of user t
    upper level:  x in an l2 ball minimises the mean squared error of all y_t on 20 other ratings of each user

Film features come from 400 users, x from 300 others, and the errors at the end from users that neither has seen.
"""

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx

SHOTS, QUERIES, FEATURES = 5, 20, 10
LAMBDAS = jnp.array([0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0])


def film_features(table):
    """A constant, the film's mean and its leading factors; all but the first are zero for a film nobody rated."""
    means = np.nansum(table, axis=0) / (np.sum(~np.isnan(table), axis=0) + 5)  # few ratings: close to the overall mean
    rest = table - means
    rest = np.nan_to_num(rest - np.nanmean(rest, axis=1, keepdims=True)) / np.sqrt(len(rest))
    _, sizes, factors = np.linalg.svd(rest, full_matrices=False)
    return np.vstack([np.ones_like(means), means, (sizes[:, None] * factors)[: FEATURES - 2]]).T


def load(seed=0):
    """Users for features, meta-training and tests, the tasks of the last two; users with few ratings are left out."""
    ratings, rng = bx.datasets.movielens_100k(), np.random.default_rng(seed)
    table = np.full(ratings.shape, np.nan)
    table[ratings.rows, ratings.cols] = ratings.values
    groups = np.split(rng.permutation(len(table)), [400, 700])
    groups[1:] = [users[np.bincount(ratings.rows)[users] >= SHOTS + QUERIES] for users in groups[1:]]
    table -= np.nanmean(table[groups[0]])
    features, tasks = film_features(table[groups[0]]), []
    for users in groups[1:]:
        films = np.array([rng.permutation(np.flatnonzero(~np.isnan(table[u])))[: SHOTS + QUERIES] for u in users])
        tasks.append({"A": jnp.asarray(features[films]), "a": jnp.asarray(table[users[:, None], films])})
    return groups, *tasks


def upper(x, y, data):
    return jnp.mean((jnp.einsum("tni,ti->tn", data["A"], y) - data["a"])[:, SHOTS:] ** 2)


def lower(x, y, data):
    misfit = jnp.sum((jnp.einsum("tni,ti->tn", data["A"], y) - data["a"])[:, :SHOTS] ** 2) / (2 * SHOTS)
    return misfit + data["lambda"] / 2 * jnp.sum((y - x) ** 2)


def pooled_weights(tasks):  # one ridge regression on all ratings of all users
    A, a = tasks["A"].reshape(-1, FEATURES), tasks["a"].ravel()
    return jnp.linalg.solve(A.T @ A / len(a) + 0.01 * jnp.eye(FEATURES), A.T @ a / len(a))


def meta_problem(tasks, lam):  # the ball is half as wide again as the pooled weights need, whatever lambda is
    ball = bx.L2Ball(1.5 * jnp.linalg.norm(pooled_weights(tasks)))
    return bx.BilevelProblem(upper, lower, ball, {**tasks, "lambda": lam})


def rmse(x, lam, tasks):  # y*(x) is one small linear system for each user
    A, a = tasks["A"][:, :SHOTS], tasks["a"][:, :SHOTS]
    gram = jnp.einsum("tni,tnj->tij", A, A) + SHOTS * lam * jnp.eye(FEATURES)
    y = jnp.linalg.solve(gram, (jnp.einsum("tni,tn->ti", A, a) + SHOTS * lam * x)[..., None])[..., 0]
    return jnp.sqrt(upper(x, y, tasks))


@jax.jit
def choose_lambdas(tasks):
    """The best lambda for each kind of x: x comes from two thirds of the users, the error from the other third."""
    cut = 2 * len(tasks["a"]) // 3
    fit, held = ({name: part[rows] for name, part in tasks.items()} for rows in (slice(cut), slice(cut, None)))
    start = jnp.zeros(FEATURES), jnp.zeros((cut, FEATURES))
    learned = jax.vmap(lambda lam: bx.run(meta_problem(fit, lam), bx.IBCG(), *start, steps=500)[0].x)(LAMBDAS)
    kinds = {"zero": 0 * learned, "pooled": 0 * learned + pooled_weights(fit), "learned": learned}
    return {name: LAMBDAS[jnp.argmin(jax.vmap(rmse, (0, 0, None))(x, LAMBDAS, held))] for name, x in kinds.items()}


if __name__ == "__main__":
    groups, seen, unseen = load()
    print(f"{len(groups[1])} of 300 users to learn from and {len(groups[2])} of 243 new ones rated 25 films or more.\n")
    lam, x0, y0 = choose_lambdas(seen), jnp.zeros(FEATURES), jnp.zeros((len(groups[1]), FEATURES))
    methods = {"IBCG": bx.IBCG(), "AIDBiO, Frank-Wolfe": bx.AIDBiO(x_step="fw"), "AIDBiO": bx.AIDBiO()}
    methods |= {"SOBA": bx.SOBA(), "RAHGD": bx.RAHGD()}
    found = bx.compare(meta_problem(seen, lam["learned"]), methods, x0, y0, steps=1000, metrics=bx.exact_metrics)
    print(found.table(["ell", "true_gap"]))
    # The solution is inside the ball, where Frank-Wolfe is slow; gradient steps are too, ell being flat in the factors.
    x = {"zero": x0, "pooled": pooled_weights(seen), "learned": found["IBCG"].x}
    print(f"IBCG: |x| = {jnp.linalg.norm(x['learned']):.2f}, the radius is {1.5 * jnp.linalg.norm(x['pooled']):.2f}.\n")
    means = {"user": unseen["a"][:, :SHOTS].mean(axis=1, keepdims=True), "film": unseen["A"][:, SHOTS:, 1]}
    errors = {f"the {who}'s mean": jnp.sqrt(jnp.mean((unseen["a"][:, SHOTS:] - m) ** 2)) for who, m in means.items()}
    errors |= {f"ridge towards {name}, lambda {lam[name]:g}": rmse(x[name], lam[name], unseen) for name in x}
    print("RMSE on 20 ratings of each new user:", *(f"  {e:.3f}  {name}" for name, e in errors.items()), sep="\n")
    # Ten seeds gave gains of 5.5 to 7.1 %. The pooled weights are as good a point: they did better in four of the ten.
    gain = 1 - rmse(x["learned"], lam["learned"], unseen) / rmse(x["zero"], lam["zero"], unseen)
    print(f"Meta-learning lowers the RMSE of ridge regression by {gain:.1%}.")
