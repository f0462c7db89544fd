"""The threat model of a gradient audit, in words a report can print."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docleak.evidence.audit import AuditConfig


def threat_model(config: AuditConfig) -> dict[str, object]:
    """Who the adversary is, what it sees and knows, what it wants and cannot do."""
    exposure = config.exposure
    number = "one example" if config.batch_size == 1 else f"a batch of {config.batch_size} pages, averaged"
    parts = f"of the {' and '.join(exposure.stages)} parameters" if exposure.stages else "of every trainable parameter"
    sent = f"one client's gradient {parts}, computed on {number}, "
    weights = "the weights the client started from"
    if config.rounds > 1:
        sent = f"one client's gradients {parts} in {config.rounds} rounds, all computed on {number}, "
        weights = f"the weights of each of these rounds, {config.round_steps} training steps on other pages apart"
    dropout = "in training mode (dropout on)" if exposure.train_mode else "with dropout off"
    return {
        "title": "Honest-but-curious server of a federated training",
        "adversary": "the server (or whoever reads its traffic): it follows the protocol and looks at what it receives",
        "sees": [
            sent + dropout,
            weights,
        ],
        "knows": [
            "the blank template of the page and where its private fields are",
            *_text_known(config),
        ],
        "wants": "the private fields' pixels, legible enough for an OCR engine to read",
        "cannot": ["change the model or the protocol", "see any page, or the other clients' data"],
    }


def _text_known(config: AuditConfig) -> list[str]:
    """What the adversary has of the text side before it looks for pixels."""
    exposure = config.exposure
    if exposure.recover_text:
        return [
            "nothing of the text: no question, no answer, no OCR words; what the attacks use of them was read out of "
            "the gradient first"
        ]
    return [
        "the client's question" if exposure.question_known else "no question: random tokens stand in for it",
        "the answer" if exposure.answer_known else "no answer: random tokens stand in for it",
        "for models that read OCR words beside the picture (LayoutLMv3): those words and boxes, as in the paper; "
        "there the attack shows what the picture alone gives away",
    ]
