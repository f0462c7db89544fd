"""Differential privacy: the plan that samples, clips, adds noise and accounts, and its budget."""
