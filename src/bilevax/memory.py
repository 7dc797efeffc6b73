"""How much memory is free, and refusals before it would run out: a process that is killed tells nobody why."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
_LIMITS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


class NotEnoughMemory(MemoryError):
    """Raised before work that would need more memory than there is."""


def available() -> float:
    """Bytes that this process may still take: what the system has free, within the limit of a container.

    Infinity where the system does not tell.
    """
    free = [_system(), *(_container(*names) for names in _LIMITS)]
    return min(free)


def _system() -> float:
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if ":" in line)
        return float(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return float("inf")


def _container(limit: str, used: str) -> float:
    try:
        return float((_GROUP / limit).read_text()) - float((_GROUP / used).read_text())
    except (OSError, ValueError):  # there is none, or its limit is the word "max"
        return float("inf")


def words(size: float) -> str:
    """A number of bytes to read."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"


def check(what: str, needed: float, way_out: str) -> None:
    """Refuse what needs more bytes than there are, with both numbers and a way out."""
    free = available()
    if needed > free:
        raise NotEnoughMemory(f"{what} needs about {words(needed)}, and {words(free)} are free; {way_out}.")
