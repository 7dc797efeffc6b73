"""Which labels of a table are wrong."""
