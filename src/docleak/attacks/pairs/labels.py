"""The classes of a batch, read out of the gradient of a classifier's head.

iDLG (Zhao et al., 2020) for one example: the gradient of logit k is p_k, and p_k - 1 only for the true class, so the
one negative number of the bias's gradient is it. For a batch the mean gradient is p̄_k - n_k / B; with p̄ taken from the
model's own outputs on made-up inputs, n_k = B (p̄_k - g_k) up to that error, rounded so that the counts add up to B
(as Wainakh et al., 2022, do with other estimates).
"""

from __future__ import annotations

import torch
from torch import Tensor

from docleak.attacks.pairs.view import PairView
from docleak.errors import AttackError
from docleak.models.pair.model import Modality
from docleak.spec import counted_words


def labels_of(view: PairView, modality: Modality, probabilities: Tensor) -> tuple[int, ...]:
    """The classes of the batch, ascending; ``probabilities`` (K,) are the model's on made-up inputs, on average.

    A fused model has one head's bias for both. Raises AttackError where the head's gradient was not sent, and for a
    batch where only a head without bias was.
    """
    modality = "image" if view.model.module.fused else modality
    part = view.parts[modality]
    bias, weight = part.get(f"{modality}.head.bias"), part.get(f"{modality}.head.weight")
    if bias is None and (weight is None or view.batch_size > 1):
        raise AttackError(
            f"the gradient lacks {modality}.head.bias, so the classes of "
            f"{counted_words(view.batch_size, 'example')} cannot be read out of it. "
            "Expected the head's gradient among the parameters sent."
        )
    if bias is None:
        assert weight is not None
        return (_by_rows(weight),)
    if view.batch_size == 1:
        return (int(bias.argmin()),)
    return _counted(bias, probabilities, view.batch_size)


def _by_rows(weight: Tensor) -> int:
    """iDLG's own rule: the row (g_k times the features) that points against all others."""
    gram = weight.double() @ weight.double().T
    off = gram - torch.diag(gram.diagonal())
    return int((off.clamp_max(0).sum(1) - off.clamp_min(0).sum(1)).argmin())


def _counted(bias: Tensor, probabilities: Tensor, batch: int) -> tuple[int, ...]:
    share = batch * (probabilities - bias).double().clamp_min(0)
    counts = share.floor()
    while int(counts.sum()) > batch:  # the estimate of p̄ was too high: take back where it overshoots most
        counts[int((counts - share).masked_fill(counts == 0, float("-inf")).argmax())] -= 1
    while int(counts.sum()) < batch:
        counts[int((share - counts).argmax())] += 1
    return tuple(k for k in range(len(counts)) for _ in range(int(counts[k])))
