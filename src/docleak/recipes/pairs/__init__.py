"""Recipes of the kind ``pairs``: attacks on clients that train on pictures with texts (MMGIA's tables)."""
