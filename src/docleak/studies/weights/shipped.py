"""The small extraction model that docleak ships, its public model, and the game on its weights: one without training.

LayoutLM (tiny) with half a million weights, trained to the last of 150 epochs to guess masked tokens of 51 synthetic
invoices: as ``docleak attack cdmi --criterion last`` trains it.
"""

from __future__ import annotations

from docleak.studies.weights.config import WeightsConfig

#: The model's pages, and so its fields, are fixed. ``docleak attack cdmi`` plays all that can be played.
GAME = WeightsConfig(trained="layoutlm-released", criterion="last", fields=60, attempts=4, calibrate=False)
