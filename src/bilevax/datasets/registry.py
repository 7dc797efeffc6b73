"""What is known about each data set: where it comes from, how to recognise it, under which terms.

`sha256` is that of the copies the experiments were run on. Publishers pack some files otherwise, so `content` is the
checksum of the arrays themselves (`fingerprint`), which every faithful copy shares.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bilevax.datasets.frames import read_csv
from bilevax.datasets.idx import read_idx
from bilevax.datasets.libsvm import read_dense, read_sparse
from bilevax.datasets.npz import read_newsgroups
from bilevax.datasets.ratings import read_book_crossing, read_movielens
from bilevax.datasets.tasks import read_tasks


@dataclass(frozen=True)
class DataFile:
    """One file: its role in the data set, its path in the data folder, its checksums, its reader and its source."""

    role: str
    path: str
    sha256: str
    content: str
    read: Callable[[Path], Any]
    url: str | None = None
    member: str | None = None  # the file inside the zip archive at `url`
    published: str | None = None  # the path of the publisher's version, where it is packed otherwise

    @property
    def paths(self) -> tuple[str, ...]:
        """The names it may have, the publisher's last."""
        return (self.path, self.published) if self.published else (self.path,)


@dataclass(frozen=True)
class Entry:
    """A data set: its files, its size in words, its publisher's page, the terms of use and how to get it by hand."""

    name: str
    files: tuple[DataFile, ...]
    shape: str
    source: str
    terms: str
    by_hand: str


GROUPLENS = "https://files.grouplens.org/datasets/movielens/"
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
GROUPLENS_TERMS = "Research use with acknowledgement; no commercial use and no redistribution without permission."
NO_LICENCE = "Openly posted research benchmark; no explicit licence."


def _movielens(name: str, members: str, shape: str, file: DataFile) -> Entry:
    archive = f"{GROUPLENS}{members}.zip"
    by_hand = f"Download {archive} and unpack it in the data folder."
    return Entry(name, (file,), shape, "https://grouplens.org/datasets/movielens/", GROUPLENS_TERMS, by_hand)


def _regression(name: str, rows: int, features: int, sha256: str, content: str) -> Entry:
    path, url = f"libsvm-regression/{name}_scale", f"{LIBSVM}regression/{name}_scale"
    file = DataFile("table", path, sha256, content, partial(read_dense, features=features), url)
    by_hand = f"Download {url} to {path} in the data folder."
    return Entry(name, (file,), f"{rows:,} x {features}", f"{LIBSVM}regression.html", NO_LICENCE, by_hand)


def _mnist(role: str, name: str, dimensions: int, sha256: str, content: str) -> DataFile:
    return DataFile(role, f"mnist/{name}", sha256, content, partial(read_idx, dimensions=dimensions), MNIST + name)


_ALL = (
    _movielens(
        "movielens-100k",
        "ml-100k",
        "100,000 ratings of 1,682 movies by 943 users",
        DataFile(
            "ratings",
            "ml-100k/u.data",
            "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490",
            "b8341b7afdf2ddc9555a2fb0de9edb4847cf2a29e3894bb59c710366297c5e8f",
            partial(read_movielens, separator=b"\t"),
            GROUPLENS + "ml-100k.zip",
            "ml-100k/u.data",
        ),
    ),
    _movielens(
        "movielens-1m",
        "ml-1m",
        "1,000,209 ratings of 3,706 movies by 6,040 users",
        DataFile(
            "ratings",
            "ml-1m/ratings.dat.gz",
            "286bf74147e03c483e5eaef1480df636c39c538c05201ac024f3c9caddd92b58",
            "06d4db1891177130ae22285099e57c4e2cddb9f29d14e9e9a2f5e0cebaee05d3",
            partial(read_movielens, separator=b"::"),
            GROUPLENS + "ml-1m.zip",
            "ml-1m/ratings.dat",
            "ml-1m/ratings.dat",
        ),
    ),
    Entry(
        "book-crossing",
        (
            DataFile(
                "ratings",
                "book-crossing/BX-Book-Ratings.csv.gz",
                "4ea2299540190899cc3218878c669c1db6e97bd18643ed64b73177fa9824469a",
                "dc25adcec99b731e50eb5325ff998bb7063d1caa18c754ccc062ba786c0b8c81",
                read_book_crossing,
                published="book-crossing/BX-Book-Ratings.csv",
            ),
        ),
        "1,149,780 ratings (433,671 explicit) of 340,556 books by 105,283 users",
        "http://www2.informatik.uni-freiburg.de/~cziegler/BX/",
        "Published for research use with acknowledgement; no licence came with it.",
        "Take BX-Book-Ratings.csv (latin-1, with `;`) out of BX-CSV-Dump.zip of C.-N. Ziegler (2005), which several "
        "mirrors hold, and save it as book-crossing/BX-Book-Ratings.csv in the data folder.",
    ),
    _regression(
        "bodyfat",
        252,
        14,
        "c0b4ccfaf708b2b11b4e40fdf8651a58c6f67a7fff8411a13fb1069eaac74191",
        "11ccfaec4c703bee37a123d14975045ed66b3f668c3bd8dfb74c1c56c06358a5",
    ),
    _regression(
        "housing",
        506,
        13,
        "1e272bad4eff64598f4a4ddfb700de7d26335cdee130d5c86243cccc15c2252b",
        "6b956ba51e555c543673dbf904907992f8083a5b411b3f5e87f12b90153f2311",
    ),
    _regression(
        "mg",
        1385,
        6,
        "e342e615311a85cbb2f3c65c57a7c6a04f1942ee53f288a0df57ebd80c40ab51",
        "0bbaf503334ac2533778de43ce418859ba576f86d32d9168d1da8cb62ea95383",
    ),
    _regression(
        "mpg",
        392,
        7,
        "8903ac529e4eb76384a03b5dd213da3a2993162391794a03d6470974ee567f5d",
        "3c9292bc56dbec7ee50ba4a5ecee42620e8d86118ee854d7b90f73d944b569a1",
    ),
    _regression(
        "space_ga",
        3107,
        6,
        "dd7bc85fd20d1ebd317cbb4cdf24625e739bc76fbd40b0b8000765c0226e8d02",
        "68bcb16306f7b3067414a473081927fde7102ba0a21d9afb174a4e553400d5ce",
    ),
    Entry(
        "nlsy79",
        (
            DataFile(
                "table",
                "nlsy79/national_longitudinal_survey_4908x18.csv",
                "eb9aac72c2856c9b339be78ea0d937bae773e02d86fcdd0f92bfd509de72e4a2",
                "c8c2330bc68935b68f9907d3b88458c273e34f42692e0f36572f9999645d99ea",
                read_csv,
            ),
        ),
        "4,908 rows, 18 columns",
        "https://cran.r-project.org/package=fairml",
        "Public-use survey data (US Bureau of Labor Statistics); the R package fairml is MIT licensed.",
        "Write the data frame national.longitudinal.survey of the R package fairml 0.8 with write.csv(..., row.names = "
        "FALSE) to nlsy79/national_longitudinal_survey_4908x18.csv in the data folder.",
    ),
    Entry(
        "nlsy79-labor-income",
        (
            DataFile(
                "table",
                "nlsy79/nlsy79_labor_income_12686x18.csv.gz",
                "7e53658128ce716ce27f89abc00f65682973972f5e979994e496c5fef05d25f8",
                "da4bc68a311eddc9e96bba2caefaecabeb195914621de3c2af020184417d08c6",
                read_csv,
                published="nlsy79/nlsy79_labor_income_12686x18.csv",
            ),
        ),
        "12,686 rows (5,640 complete), 18 columns",
        "https://github.com/tvogl/econ121",
        "Public-use survey data (US Bureau of Labor Statistics); no licence given for the extract.",
        "Convert the NLSY79 extract of the course (a Stata file) to CSV with its column names, empty where a value is "
        "missing, and save it as nlsy79/nlsy79_labor_income_12686x18.csv in the data folder.",
    ),
    Entry(
        "mnist",
        (
            _mnist(
                "train-images",
                "train-images-idx3-ubyte.gz",
                3,
                "0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971",
                "157fe16da1dbced4a1376f4be5df2d665d51d11177dcaf7aa4848b1ff033343f",
            ),
            _mnist(
                "train-labels",
                "train-labels-idx1-ubyte.gz",
                1,
                "1787548bbe0bff1ec2ecdc0ef292b02df999e2d1a6002d27500982c652b17203",
                "e6a049a9876d2010dddfc2322bb8cad03f5934de9a0b5012c7251eca5b5a7201",
            ),
            _mnist(
                "test-images",
                "t10k-images-idx3-ubyte.gz",
                3,
                "1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be",
                "fbf9701b11f5659e6366884b0bbf01ea129fb049e3239251eddb226ada72239e",
            ),
            _mnist(
                "test-labels",
                "t10k-labels-idx1-ubyte.gz",
                1,
                "b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b",
                "6a90c4ebf8538b9b76438e5dddb0f5afc42d636e8e259d894485f9314cdad47d",
            ),
        ),
        "60,000 + 10,000 images of 28 x 28",
        "http://yann.lecun.com/exdb/mnist/",
        "Freely used for research; commonly listed as CC BY-SA 3.0.",
        f"Download the four .gz files from {MNIST} to mnist/ in the data folder.",
    ),
    Entry(
        "a9a",
        (
            DataFile(
                "train",
                "libsvm-classification/a9a.gz",
                "b301f3e87350539f3ebc751d07b4691a8c66f0bf38c1d179c86bbf5e2d9623b2",
                "f3147a49a49576693b00742ffdad3162163f3a460c199d921d31a476b407ae1d",
                partial(read_sparse, features=123),
                f"{LIBSVM}binary/a9a",
                published="libsvm-classification/a9a",
            ),
            DataFile(
                "test",
                "libsvm-classification/a9a.t.gz",
                "af250ea3a89aab35a35782783488bcac86960ee38f05a3b1cdf896969a1f6152",
                "caad73e92f64b8212222c91d3bfe33b3c233f6936b2e17bb32aac750625b0b83",
                partial(read_sparse, features=123),
                f"{LIBSVM}binary/a9a.t",
                published="libsvm-classification/a9a.t",
            ),
        ),
        "32,561 + 16,281 x 123",
        f"{LIBSVM}binary.html",
        NO_LICENCE,
        f"Download {LIBSVM}binary/a9a and a9a.t to libsvm-classification/ in the data folder.",
    ),
    Entry(
        "ijcnn1",
        (
            DataFile(
                "table",
                "libsvm-classification/ijcnn1.mat",
                "d6c45434ac100a448e177a78473f875edef43aa6caf64909dc5e185d268a0aaa",
                "ca93d1fdede2cc5a9f5a658da40b20e30f589df07cb543b4cbf33f2195bc1e03",
                partial(read_dense, features=22),
                f"{LIBSVM}binary/ijcnn1.bz2",
                published="libsvm-classification/ijcnn1.bz2",
            ),
        ),
        "49,990 x 22",
        f"{LIBSVM}binary.html",
        NO_LICENCE,
        f"Download {LIBSVM}binary/ijcnn1.bz2 to libsvm-classification/ in the data folder.",
    ),
    Entry(
        "20newsgroups",
        (
            DataFile(
                "counts",
                "20newsgroups/20newsgroups_18221x36568.npz",
                "b843a95bffe47802fe2006be578eb4a8dae787263a17cdfc9eb829c798439bc2",
                "8081de2b97151c072b2fb159a7a5bf4518fd8725d7309cedbb16a2223836cf73",
                read_newsgroups,
            ),
        ),
        "18,221 documents x 36,568 terms, 20 classes in 6 groups",
        "https://github.com/sanghosuh/lens_nmf-matlab",
        NO_LICENCE,
        "Save the term counts of that repository with numpy.savez as the parts of a CSR matrix (data, indices, indptr, "
        "shape) and the labels y20 and y6, as 20newsgroups/20newsgroups_18221x36568.npz in the data folder.",
    ),
    Entry(
        "school",
        (
            DataFile(
                "pupils",
                "school/school.mat",
                "57fb3238fdd03a9aa17276e2ce18d9bbb5d128c3261e794fe6233b58b6909068",
                "bc1054eadeb938a88b7ca88d6346e8a6ae7a459629eb08062e0d104d93873e12",
                partial(read_tasks, features=28),
                "https://github.com/jiayuzhou/MALSAR/raw/fb9751594983df020ddc4f7e4a40520ee7c37989/data/school.mat",
            ),
        ),
        "15,362 pupils of 139 schools, 28 features",
        "https://github.com/jiayuzhou/MALSAR",
        "Exam records of the Inner London Education Authority. " + NO_LICENCE,
        "Save data/school.mat of the MALSAR repository as school/school.mat in the data folder.",
    ),
)
ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _ALL}


def describe(name: str) -> Entry:
    """What is known about a data set."""
    if name not in ENTRIES:
        close = difflib.get_close_matches(name, ENTRIES, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"datasets: no data set is called {name!r}; {hint}There are {', '.join(ENTRIES)}.")
    return ENTRIES[name]
