"""Rows of data that are larger than memory: sources, windows for mini-batches, and means over blocks of all rows."""
