"""Flower's quickstart for Hugging Face with a document model."""
