"""Pair attacks against the truth: a case, its scores, a run of several, and its table."""
