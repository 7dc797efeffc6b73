"""Regressions of several tasks that share what they have in common."""
