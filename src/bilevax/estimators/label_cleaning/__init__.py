"""Which labels of a table are wrong: the evidence. No estimator uses it yet."""
