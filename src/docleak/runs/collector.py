"""Imported for what it does: Python's garbage collector comes less often.

Its own numbers have it look at all that PyTorch and transformers define while these are imported, a fifth of the time.
"""

from __future__ import annotations

import gc

gc.set_threshold(20_000, 20, 20)
