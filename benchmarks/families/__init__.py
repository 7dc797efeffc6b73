"""The problems of `benchmarks/auto.py`: `FAMILIES` holds all of them by name."""

from families import convex, nonconvex, quadratics
from families.family import Family, Instance

FAMILIES = {family.name: family for family in [*convex.FAMILIES, *quadratics.FAMILIES, *nonconvex.FAMILIES]}

__all__ = ["FAMILIES", "Family", "Instance"]
