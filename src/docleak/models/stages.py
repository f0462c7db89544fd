"""Where a parameter of a document model acts."""

from __future__ import annotations

from typing import Literal

#: Before the modalities meet (vision, text), while they meet, or after.
Stage = Literal["vision", "text", "fusion", "output"]
STAGES: tuple[Stage, ...] = ("vision", "text", "fusion", "output")
