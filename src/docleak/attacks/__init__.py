"""Attacks: what an adversary recovers from a View and prior knowledge, never from the truth."""
