"""One client with a batch of pairs: the evaluator's truth, what the server sees, and reconstructions against it."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import cast

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from docleak.attacks.gradients.engine import inference_mode_of
from docleak.attacks.gradients.matching import dummy_of, relative
from docleak.attacks.gradients.selftest import TOLERANCE, SelfTest, self_test
from docleak.attacks.gradients.view import GradientView
from docleak.attacks.pairs.together import PairFinding
from docleak.attacks.pairs.view import PairKnowledge, PairView, inputs_of, words_in
from docleak.defenses.gradients import GradientNoise
from docleak.documents.page import Image
from docleak.documents.pairs import Pair, resized
from docleak.errors import DocumentError
from docleak.metrics import psnr, ssim
from docleak.metrics.text import rouge
from docleak.models.base import DocumentModel, Encoded, image_of, trainable
from docleak.models.pair.aligner import Aligner
from docleak.models.pair.language import LanguageModel
from docleak.models.pair.model import MODALITIES, Modality, PairModel
from docleak.studies.pairs.privacy import LONGEST, PairPrivacy, encodings_of, noise_of, sent
from docleak.training.private.pairs import Encodings

#: A client without privacy.
OPEN = PairPrivacy()
#: Pictures that were in no gradient and that what came back is held against, to see what is like any.
UNSEEN = 20
#: Of two texts that fit alike, a target gets the one that came with its picture.
TIE = 1e-6


@dataclass(frozen=True)
class PairCase:
    """``pixels``, ``ids`` and ``labels`` are the truth; ``view`` and ``knowledge`` the adversary's."""

    pairs: tuple[Pair, ...]
    pixels: Tensor
    ids: Tensor
    mask: Tensor
    labels: tuple[Tensor, Tensor]
    view: PairView
    knowledge: PairKnowledge

    @property
    def texts(self) -> tuple[str, ...]:
        """The true texts as the model reads them: cut, in its tokens' characters."""
        tokenizer = self.view.model.tokenizer
        return tuple(tokenizer.decode(row) for row in self.rows)

    @property
    def rows(self) -> list[list[int]]:
        """The true tokens without special ones."""
        return [[int(i) for i in row[there]][1:-1] for row, there in zip(self.ids, self.mask, strict=True)]

    def known(self) -> tuple[str, ...]:
        """What the adversary knows in plain words: beforehand, and of the client's noise."""
        noise, clips = self.view.noise, "that the client clips, and " if self.view.imitate else ""
        added = f"{clips}the standard deviation of the noise on every number ({noise:.3g})"
        return (*self.knowledge.sentences(), *([added] if noise else []))


def build_pair_case(
    model: PairModel,
    pairs: Sequence[Pair],
    *,
    aligner: Aligner | None = None,
    language: LanguageModel | None = None,
    privacy: PairPrivacy = OPEN,
    sigma: float = 0.0,
    noise: torch.Generator | None = None,
    told: str = "",
) -> PairCase:
    """Let a client compute the gradient of the batch. The pairs' pictures are resized to the model's size.

    The batch is ordered by the length of its texts, longest first, as the adversary's knowledge is. With ``privacy`` it
    is a step of DP-SGD; without, every number gets noise of standard deviation ``sigma``. Both come from ``noise``.
    ``told`` says what the evaluator gave the adversary besides.
    """
    if not pairs:
        raise DocumentError("no pair was given; expected a batch of 1 or more.")
    sizes = [int(model.token_ids([pair.text], longest=LONGEST)[1].sum()) for pair in pairs]
    ordered = [pairs[i] for i in sorted(range(len(pairs)), key=lambda i: -sizes[i])]
    batch = encodings_of(model, ordered)
    plan = privacy.plan(len(ordered))
    if noise is None and (plan is not None or sigma):
        raise DocumentError("the client adds noise, and there is no stream to draw it from; expected a Generator.")
    if plan is None:
        gradient, std = pair_gradient(model, batch), sigma
        if noise is not None and sigma:
            gradient = GradientNoise(sigma).protect(gradient, cast(DocumentModel, model), generator=noise)
    else:
        assert noise is not None
        gradients = (pair_gradient(model, batch.rows([i])) for i in range(len(ordered)))
        gradient, std = sent(model, gradients, plan, noise), noise_of(plan)
    view = PairView(model, gradient, len(ordered), noise=std, imitate=privacy.imitate())
    lengths = tuple(int(n) - 2 for n in batch.mask.sum(1))
    knowledge = PairKnowledge(lengths, aligner, language, words_in(view), told)
    return PairCase(tuple(ordered), batch.pixels, batch.ids, batch.mask, batch.labels, view, knowledge)


def pair_gradient(model: PairModel, batch: Encodings) -> dict[str, Tensor]:
    """What the client sends: the gradient of the batch's mean loss over named parameters, without dropout."""
    chosen = dict(trainable(model.module))
    loss = model.loss(batch.pixels, batch.ids, batch.mask, batch.labels).mean()
    values = torch.autograd.grad(loss, list(chosen.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if value is None else value.detach().clone()
        for (name, parameter), value in zip(chosen.items(), values, strict=True)
    }


def self_tests(case: PairCase) -> dict[Modality, SelfTest]:
    """The truth must reproduce each modality's gradient, or an attack on it would prove nothing."""
    model = case.view.model
    x: dict[Modality, Tensor] = {
        "image": case.pixels,
        "text": torch.nn.functional.embedding(case.ids, model.table.detach()),
    }
    tests: dict[Modality, SelfTest] = {}
    for number, modality in enumerate(MODALITIES):
        other = MODALITIES[1 - number]
        logits = model.other_logits(other, x[other], case.mask) if model.module.fused else None
        labels = case.labels[0 if model.module.fused else number].tolist()
        inputs = inputs_of(labels, case.mask if modality == "text" else None)
        side = case.view.side(modality, logits)
        tests[modality] = (
            self_test(side, x[modality], inputs) if modality == "image" else _text_test(side, x["text"], inputs)
        )
    return tests


def _text_test(side: GradientView, embeddings: Tensor, inputs: Sequence[Encoded]) -> SelfTest:
    """As ``self_test``, whose causes are about pixels."""
    with inference_mode_of(side):
        dummy = dummy_of(side, embeddings, inputs, create_graph=False)
        distance = float(relative(side)(side.as_sent(dummy)).detach())
    causes = ("other tokens, marks or padding", "dropout was on", "loss scale: sum instead of mean", "other labels")
    return SelfTest(distance, () if distance <= TOLERANCE else causes)


@dataclass(frozen=True)
class PairScore:
    """One target. ``tokens`` is the share of its tokens read exactly in place, of the ``written`` ones, those of which
    its vocabulary has a word: what it lacks (CJK, say) enters as one token for all. ROUGE is in 0..1.

    ``together`` says whether picture and text of this target came out as one pair (always so for a batch of one).
    ``others`` are the SSIM of what came back to pictures of pairs that were in no gradient, ``other_tokens`` the shares
    of tokens that it has in place of texts as long that were in none.
    """

    name: str
    ssim: float
    psnr: float
    rouge1: float
    rouge2: float
    rouge_l: float
    tokens: float
    label: bool
    together: bool
    read: str
    true: str
    written: int
    unwritten: int
    others: tuple[float, ...] = ()
    other_tokens: tuple[float, ...] = ()


def words_named(case: PairCase) -> dict[str, int] | None:
    """What the word table's gradient names of the batch's different words: {"named", "right", "true"}; None where it
    names none, or all that there are."""
    if case.knowledge.words is None:
        return None
    named, plain = ({int(i) for i in ids} for ids in (case.knowledge.words, case.view.model.plain_ids()))
    true = {i for row in case.rows for i in row} & plain
    return {"named": len(named), "right": len(named & true), "true": len(true)}


def assign(gains: Sequence[Sequence[float]]) -> list[int]:
    """The column of each row such that the gains add up to the most (Hungarian method)."""
    rows, columns = linear_sum_assignment(-np.asarray(gains, dtype=np.float64))
    return [int(columns[list(rows).index(i)]) for i in range(len(rows))]


def score_pairs(case: PairCase, finding: PairFinding, others: Sequence[Pair] = ()) -> list[PairScore]:
    """Each target with the reconstruction that is its own: pictures by SSIM, texts by ROUGE-L, the best in sum.
    ``others`` were in no gradient; each is held against the one that it is most like, as the targets are."""
    truths, reconstructed = ([image_of(p) for p in pixels] for pixels in (case.pixels, finding.pixels))
    texts = case.texts
    learnt = case.labels[0], case.labels[0 if case.view.model.module.fused else 1]  # fused: the pictures' for both
    pictures = assign([[ssim(t, f) for f in reconstructed] for t in truths])
    words = assign([
        [rouge(read, true).rouge_l + TIE * (column == pictures[number]) for column, read in enumerate(finding.texts)]
        for number, true in enumerate(texts)
    ])  # fmt: skip
    unseen = [resized(pair, case.view.model.image_size).image for pair in others[:UNSEEN]]
    like = tuple(max(ssim(image, one) for one in reconstructed) for image in unseen)
    rows = [case.view.model.token_ids([pair.text], longest=LONGEST)[0][0].tolist()[1:-1] for pair in others]
    plain, scores = {*case.view.model.plain_ids().tolist()}, []
    for number, (pair, picture, text) in enumerate(zip(case.pairs, pictures, words, strict=True)):
        read, true = finding.texts[text], texts[number]
        shared = rouge(read, true)
        told = _in_place(case.rows[number], finding.tokens[text], plain)
        alike = [row for row in rows if len(row) == len(case.rows[number]) and row not in case.rows]
        other_tokens = ([_in_place(row, tokens, plain) for tokens in finding.tokens] for row in alike)
        labels = (finding.labels[0][picture], finding.labels[1][text])
        scores.append(
            PairScore(
                pair.name, ssim(truths[number], reconstructed[picture]), psnr(truths[number], reconstructed[picture]),
                shared.rouge1, shared.rouge2, shared.rouge_l,
                sum(told) / len(told) if told else 0.0,
                labels == tuple(int(side[number]) for side in learnt), picture == text, read, true,
                len(told), len(case.rows[number]) - len(told),
                like,
                tuple(max(sum(one) / len(one) for one in of) for of in other_tokens if of[0]),
            )
        )  # fmt: skip
    return scores


def _in_place(true: Sequence[int], read: Sequence[int], plain: Container[int]) -> list[bool]:
    """Of each token of a text that can be written whether it was read in place."""
    return [mine == other for mine, other in zip_longest(true, read) if mine in plain]


def pictures_of(case: PairCase, finding: PairFinding, number: int) -> dict[str, Image]:
    """The true picture of target ``number`` and the one reconstructed of it."""
    truths, reconstructed = ([image_of(p) for p in pixels] for pixels in (case.pixels, finding.pixels))
    column = assign([[ssim(t, f) for f in reconstructed] for t in truths])[number]
    return {"truth": truths[number], "reconstruction": reconstructed[column]}
