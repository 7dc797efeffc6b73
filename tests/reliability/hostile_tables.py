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

from bilevax.estimators.model_file import load
from bilevax.tables import Encoder, Schema, read_table, schema_of

TABLE = b"size,colour,sold,task,y\n1.5,red,true,p,1\n-2e3,blue,false,q,2.5\n,red,NA,p,3\n0.25,red,true,q,4\n"
QUOTED = b'"size";"colour";"y"\n"1.5";"dark; blue";1\n2;"re""d";2\n'
ROWS = {"size": [1.5, -2e3, None, 0.25], "colour": ["red", "blue", "red", "red"], "task": list("pqpq"), "y": range(4)}
SCHEMA = schema_of(read_table(ROWS), target="y", task="task", missing="impute", min_count=1)


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


TABLE_READERS = {
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
