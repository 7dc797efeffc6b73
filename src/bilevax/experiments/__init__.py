"""The paper's experiments; imported by nothing but the command line."""
