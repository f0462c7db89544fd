"""Recipes of the kind ``release``: a row is an attack on a released model, and how that model was trained."""
