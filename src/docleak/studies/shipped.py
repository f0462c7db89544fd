"""What an audit without arguments measures beside gradients: docleak's own released models, without any training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docleak.studies.study import Study
from docleak.studies.weights.config import WeightsConfig

#: The game on ``layoutlm-released``: LayoutLM (tiny) with half a million weights, trained to the last of 150 epochs to
#: guess masked tokens of 51 synthetic invoices, as ``docleak attack cdmi --criterion last`` trains it. Its pages, and
#: so its fields, are fixed; the command plays all that can be played.
GAME = WeightsConfig(trained="layoutlm-released", criterion="last", fields=60, attempts=4, calibrate=False)


def shipped_examples(seed: int, device: str) -> Iterator[tuple[str, Study[Any]]]:
    """(folder in that of the audit, study): a released model's answers, about providers and about single documents,
    then an extraction model's weights."""
    from docleak.studies.answers.study import AnswersStudy, shipped_audit, shipped_documents
    from docleak.studies.weights.study import WeightsStudy

    yield "released", AnswersStudy(shipped_audit(seed), device=device)
    yield "released-documents", AnswersStudy(shipped_documents(seed), device=device)
    yield "weights", WeightsStudy(GAME, device=device)
