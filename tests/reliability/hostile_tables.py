"""The readers of tables and of models that learned from them, for the same tests as `hostile_readers`."""

import gzip
import io
import json
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
from hostile_readers import Reader, forged, forged_model, in_archive, raw
from small_estimator import FORMAT, SmallRidge

from bilevax import estimators
from bilevax.estimators import FeatureWeights, MultiTaskRegression
from bilevax.estimators.choices import Choice
from bilevax.estimators.feature_weights.regression import Spread
from bilevax.estimators.model_file import load
from bilevax.tables import Encoder, Schema, read_table, schema_of

TABLE = b"size,colour,sold,task,y\n1.5,red,true,p,1\n-2e3,blue,false,q,2.5\n,red,NA,p,3\n0.25,red,true,q,4\n"
QUOTED = b'"size";"colour";"y"\n"1.5";"dark; blue";1\n2;"re""d";2\n'
ROWS = {"size": [1.5, -2e3, None, 0.25], "colour": ["red", "blue", "red", "red"], "task": list("pqpq"), "y": range(4)}
SCHEMA = schema_of(read_table(ROWS), target="y", task="task", missing="impute", min_count=1)
D = len(SCHEMA.encoder.names)


@cache
def typed_table(kind):
    """The same rows as Parquet, as Feather, which is packed, or as a stream in two batches."""
    colours = pyarrow.array(["red", "blue", "red", None]).dictionary_encode()
    rows = pyarrow.table(
        {"size": [1.5, None, 2.0, 3.0], "colour": colours, "name": list("abca"), "sold": [True, None] * 2}
    )
    out = io.BytesIO()
    if kind == "parquet":
        pyarrow.parquet.write_table(rows, out)
    elif kind == "stream":
        with pyarrow.ipc.new_stream(out, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=2)
    else:
        pyarrow.feather.write_feather(rows, out, compression=kind)
    return out.getvalue()


@cache
def table_model_file():
    rng = np.random.default_rng(0)
    model = SmallRidge().fit(
        rng.normal(size=(20, len(SCHEMA.encoder.names))), rng.normal(size=20), np.array(["p", "q"] * 10)
    )
    with tempfile.TemporaryDirectory() as folder:
        return FORMAT.save(model, Path(folder) / "model.npz", SCHEMA).read_bytes()


def saved(model):
    with tempfile.TemporaryDirectory() as folder:
        return model.save(Path(folder) / "model.npz", SCHEMA).read_bytes()


def with_values(model, **values):
    """A fitted model without a fit."""
    vars(model).update(values, n_features_in_=D, status_="CONVERGED", n_iter_=3, seconds_=0.5)
    model.choices_ = [Choice("links", "used", "none", 0.1, 0.01)]
    return model


@cache
def tasks_model_file():
    rng = np.random.default_rng(0)
    matrices = {name: rng.normal(size=(2, D)) for name in ("coef_", "coef_std_", "own_coef_")}
    vectors = {name: rng.random(2) for name in ("intercept_", "own_intercept_", "pull_", "n_rows_by_task_")}
    pooled = {"pooled_coef_": rng.normal(size=D), "pooled_intercept_": np.array(0.5)}
    words = {"shares_": True, "mix_": [("a common mean", 1.0)], "columns_by_task_": [np.arange(D), np.arange(2)]}
    words["held_out_"] = {"model": 1.0, "alone": 2.0, "pooled": 3.0}
    labels = {"tasks_": np.array(["p", "q"]), "classes_": np.array(["no", "yes"])}
    related = dict.fromkeys(("task_covariance_", "task_correlation_"), np.eye(2))
    return saved(with_values(MultiTaskRegression(), **matrices, **vectors, **pooled, **words, **labels, **related))


@cache
def weights_model_file():
    rng = np.random.default_rng(0)
    model = with_values(
        FeatureWeights(),
        weights_=rng.random(D) + 0.1,
        ranking_=rng.permutation(D),
        coef_=rng.normal(size=(1, D)),
        intercept_=np.array([0.5]),
        classes_=np.array(["no", "yes"]),
        adaptivity_=1.0,
        moderation_=0.5,
        held_out_loss_=0.3,
    )
    model._mean, model._spread = rng.normal(size=D), Spread(rng.random((D + 1, 1)), None)
    return saved(model)


# ---- what a result must satisfy


def table(path):
    """Reads a table, and encodes all of its columns."""
    found = read_table(path)
    for column in found.columns.values():
        assert len(column) == len(found) > 0
        if column.dtype == object:
            assert all(entry is None or type(entry) is str for entry in column)
        else:
            assert column.dtype == float and not np.isinf(column).any()
    encoder = Encoder.fit(found, found.names, missing="impute", min_count=1)
    X = encoder.transform(found)
    assert X.shape == (len(found), len(encoder.names)) and np.isfinite(X).all()


def plain_schema(path):
    try:
        schema = Schema.of_plain(json.loads(path.read_text()))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
    try:
        schema.features_of(read_table({"size": [1.0, None], "colour": ["red", None], "task": ["p", "q"], "y": [1, 2]}))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def table_model(path):
    found, schema = load(path, [FORMAT])
    assert found.predict(np.ones((1, found.coef_.shape[1])), found.tasks_[:1]).shape == (1,) and str(found)
    assert schema is None or len(schema.encoder.names) == found.coef_.shape[1]


def tasks_model(path):
    found, _ = estimators.load(path)
    assert isinstance(found, MultiTaskRegression) and str(found)
    with np.errstate(all="ignore"):
        if found.task_column is None:
            found.predict(np.ones((2, found.n_features_in_)), task=[found.tasks_[0], "new"])
        if found.columns_by_task_ is not None:
            found.predict_tasks([np.ones((1, len(columns))) for columns in found.columns_by_task_])
        low, high = found.coef_intervals()
    assert low.shape == high.shape == found.coef_.shape


def weights_model(path):
    found, _ = estimators.load(path)
    assert isinstance(found, FeatureWeights) and str(found)
    X = np.ones((2, found.n_features_in_))
    with np.errstate(all="ignore"):
        assert found.predict(X).shape == (2,) and found.transform(X).shape == X.shape
        if hasattr(found, "classes_"):
            assert found.predict_proba(X).shape == (2, len(found.classes_))


TABLE_READERS = {
    "tasks model": Reader(raw(tasks_model_file), tasks_model, "model.npz"),
    "tasks model, arrays": Reader(in_archive(tasks_model_file), tasks_model, "model.npz"),
    "tasks model, forged header": Reader(forged_model(tasks_model_file), tasks_model, "model.npz"),
    "weights model": Reader(raw(weights_model_file), weights_model, "model.npz"),
    "weights model, arrays": Reader(in_archive(weights_model_file), weights_model, "model.npz"),
    "weights model, forged header": Reader(forged_model(weights_model_file), weights_model, "model.npz"),
    "table model": Reader(raw(table_model_file), table_model, "model.npz"),
    "table model, arrays": Reader(in_archive(table_model_file), table_model, "model.npz"),
    "table model, forged header": Reader(forged_model(table_model_file), table_model, "model.npz"),
    "table CSV": Reader(raw(lambda: TABLE), table, "table.csv"),
    "table quoted": Reader(raw(lambda: QUOTED), table, "table.csv"),
    "table gzip": Reader(raw(lambda: gzip.compress(TABLE, mtime=0)), table, "table.csv.gz"),
    "table Parquet": Reader(raw(lambda: typed_table("parquet")), table, "table.parquet"),
    "table Feather": Reader(raw(lambda: typed_table("lz4")), table, "table.feather"),
    "table Arrow stream": Reader(raw(lambda: typed_table("stream")), table, "table.arrows"),
    "schema, forged": Reader(
        lambda change, part: json.dumps(forged(SCHEMA.as_plain(), change, part)).encode(), plain_schema, "schema.json"
    ),
}
