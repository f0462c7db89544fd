"""Every table and figure of the papers as a named, declarative experiment."""

from docleak.recipes.recipe import Recipe, Row, find_recipe, list_recipes, read_recipe

__all__ = ["Recipe", "Row", "find_recipe", "list_recipes", "read_recipe"]
