"""Ratings of items by users, from the user's own files: text in any usual layout, Parquet, and NPZ.

`read` holds the entry points. `text` opens a text file, `columns` decides which column is which, and `text_ratings`
parses it; `arrays` does the same for NPZ and Parquet. `table` is the result, and `hold_out` splits it.
"""

from bilevax.ratings.hold_out import split, split_by_time
from bilevax.ratings.read import read_pairs, read_ratings, read_titles
from bilevax.ratings.table import Ratings

__all__ = ["Ratings", "read_pairs", "read_ratings", "read_titles", "split", "split_by_time"]
