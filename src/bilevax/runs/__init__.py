"""A run: the loop, its chunks, clock, checks, rows, rules and result, and several runs compared."""
