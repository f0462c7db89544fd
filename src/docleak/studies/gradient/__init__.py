"""Attacks on what one client sends: every chosen model, page and attack; and defences compared by them."""
