"""Flower's quickstart for PyTorch with a document model."""
