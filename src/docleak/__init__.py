"""docleak: train document models together, and measure what they leak."""

__version__ = "0.1.0"
