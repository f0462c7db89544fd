"""The reconstruction game played against a trained extraction model: CDMI, its baseline, and what they read."""
