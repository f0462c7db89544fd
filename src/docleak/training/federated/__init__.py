"""Federated training: what a client does, what the server does with it; engine-free."""
