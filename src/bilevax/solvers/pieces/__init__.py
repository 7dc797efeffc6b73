"""What several methods share, as functions: estimates of the lower level, steps of x, y and w, defaults and checks."""
