"""The two ways in which a data set can fail its user."""

from __future__ import annotations


class DatasetUnavailable(OSError):
    """Neither on this computer nor to be had from the publisher; the message says how to get it by hand."""


class DatasetCorrupt(ValueError):
    """A file whose content is not that of the data set; it is never used."""
