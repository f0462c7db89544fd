"""Attacks on clients that train on pictures with texts: MMGIA and its peers."""
