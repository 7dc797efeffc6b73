"""The problems of `benchmarks/auto.py`: `FAMILIES` holds all of them by name."""

from families import quadratics
from families.family import Family, Instance

FAMILIES = {family.name: family for family in [*quadratics.FAMILIES]}

__all__ = ["FAMILIES", "Family", "Instance"]
