"""The guard: a model that a silo is asked to train, inspected before any gradient leaves."""
