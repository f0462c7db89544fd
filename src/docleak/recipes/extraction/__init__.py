"""Recipes whose rows attack extraction models with CDMI."""
