"""The experiments of the IBCG paper: their runs, and the figures, tables and claims drawn from them."""
