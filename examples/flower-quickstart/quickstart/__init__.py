"""Flower's quickstart with a document model."""
