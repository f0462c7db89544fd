"""The audit of captured updates: what a federated server received, attacked and held against the clients' pages."""
