"""Public data sets, found in a folder of yours or fetched from their publishers, and verified before use."""

from bilevax.datasets.errors import DatasetCorrupt, DatasetUnavailable
from bilevax.datasets.fetching import Availability, available, fetch, table
from bilevax.datasets.frames import Frame
from bilevax.datasets.libsvm import SparseTable, Table
from bilevax.datasets.load import (
    REGRESSION,
    Images,
    a9a,
    book_crossing,
    ijcnn1,
    libsvm_regression,
    mnist,
    movielens_1m,
    movielens_100k,
    newsgroups,
    nlsy79,
    nlsy79_labor_income,
    school,
)
from bilevax.datasets.npz import Newsgroups
from bilevax.datasets.registry import DataFile, Entry, describe
from bilevax.datasets.tasks import Tasks
from bilevax.ratings.table import Ratings

__all__ = [
    "REGRESSION",
    "Availability",
    "DataFile",
    "DatasetCorrupt",
    "DatasetUnavailable",
    "Entry",
    "Frame",
    "Images",
    "Newsgroups",
    "Ratings",
    "SparseTable",
    "Table",
    "Tasks",
    "a9a",
    "available",
    "book_crossing",
    "describe",
    "fetch",
    "ijcnn1",
    "libsvm_regression",
    "mnist",
    "movielens_1m",
    "movielens_100k",
    "newsgroups",
    "nlsy79",
    "nlsy79_labor_income",
    "school",
    "table",
]
