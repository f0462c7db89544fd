"""Where a model looks while it answers."""
