"""The checkpoints that come with docleak, and what their cards say; nothing that computes is imported here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docleak.errors import ModelError
from docleak.files import read_json_object

CHECKPOINTS = Path(__file__).parent / "checkpoints"

#: Shipped checkpoints: name -> what it is.
SHIPPED: dict[str, str] = {
    "donut-start": "Donut (tiny), start of federated training",
    "donut-trained": "Donut (tiny), trained to answer questions",
    "layoutlmv3-start": "LayoutLMv3 (tiny), start of federated training",
    "layoutlmv3-trained": "LayoutLMv3 (tiny), trained to answer questions",
    "vt5-start": "VT5 (tiny), start of federated training",
    "vt5-public": "VT5 (tiny), trained a little on invoices, never asked about their issuers",
    "vt5-released": "VT5 (tiny), vt5-public trained on the private documents of half of 240 providers",
    "vt5-trained": "VT5 (tiny), trained to answer questions, about issuers too",
    "llava-trained": "LLaVA (tiny), trained to answer questions",
    "aya-trained": "Aya Vision (tiny, sees tiles), trained to answer questions",
    "fedocvqa-start": "FeDocVQA's T5 (tiny), start of federated training",
}
#: Shipped encoders: name -> what it is.
SHIPPED_ENCODERS: dict[str, str] = {
    "layoutlm-tiny": "LayoutLM (tiny), trained to guess masked tokens of synthetic invoices",
    "bros-tiny": "BROS (tiny), trained to guess masked tokens of synthetic invoices",
    "bert-tiny": "BERT (tiny), trained to guess masked tokens of synthetic invoices",
}
#: Of pairs, what an attack on them is given: the aligners, and GIFD's generator.
SHIPPED_ALIGNERS, SHIPPED_GENERATOR = ("aligner-tiny", "aligner-described"), "generator-tiny"
SHIPPED_FOR_PAIRS: dict[str, str] = {
    "aligner-tiny": "aligner of pictures and texts (tiny), trained on scenes",
    "aligner-described": "aligner of pictures and texts (tiny), trained on described scenes",
    "generator-tiny": "GIFD's generator of pictures (tiny), trained on scenes",
}
SHIPPED_ALIGNER = SHIPPED_ALIGNERS[0]


def model_card(source: str) -> dict[str, Any]:
    """How a checkpoint was made (docleak.json beside its weights), or nothing where it does not say."""
    from docleak.models.published.made import made_at

    folder = CHECKPOINTS / source if source in SHIPPED else made_at(source) or Path(source)
    file = folder / "docleak.json"
    if not file.is_file():
        return {}
    return read_json_object(file, error=ModelError, advice="Save the model again, or take that file away.")
