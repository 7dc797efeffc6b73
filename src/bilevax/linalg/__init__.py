"""Linear algebra on products alone: extreme eigenpairs, low-rank steps, sparse patterns, and loops on the host."""
