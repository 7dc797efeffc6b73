"""Tables from the user's own files and frames, and the arrays that estimators learn from.

`read` holds the entry point. `text` opens a text file and `text_table` parses it; `typed` reads Parquet, Arrow and
frames. `table` is the result. `encoder` turns its columns into numbers, and `schema` says what each column is for.
"""

from bilevax.tables.encoder import Encoder
from bilevax.tables.read import read_table
from bilevax.tables.schema import Schema, describe, schema_of
from bilevax.tables.table import Table

__all__ = ["Encoder", "Schema", "Table", "describe", "read_table", "schema_of"]
