"""Recipes of the kind ``training``: a row is a training over silos, and what its model answers on unseen documents."""
