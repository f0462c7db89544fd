"""Attacks on answers: what a published model's replies tell about the providers of its training documents."""
