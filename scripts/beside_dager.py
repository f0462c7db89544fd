"""docleak's spans beside DAGER's own functions, on random GPT-2 and BERT: ``python scripts/beside_dager.py FOLDER``.

FOLDER is a checkout of insait-institute/dager-gradient-inversion (Petrov et al., NeurIPS 2024, Apache-2.0), of which
``get_layer_decomp`` and ``check_if_in_span`` run as they are. Compared are the distances of every candidate (word at
a position) from the span of the first layer's gradient, and what is taken: theirs below a threshold, ours blind.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from docleak.attacks.gradients.algebra.subspace import Rows, Subspace, members

VOCABULARY, WIDTH, TOKENS = 300, 64, 12
#: DAGER's first threshold for GPT-2.
THRESHOLD = 1e-3


def gpt2(seed: int) -> tuple[Tensor, Tensor, set[int]]:
    """(rows of the gradient, candidates (positions x words), true numbers of candidates)."""
    import transformers as t

    torch.manual_seed(seed)
    config = t.GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=TOKENS)
    net: Any = t.GPT2LMHeadModel(config).eval()
    ids = torch.randint(VOCABULARY, (1, TOKENS))
    net(input_ids=ids, labels=ids).loss.backward()
    body = net.transformer
    candidates = body.h[0].ln_1(body.wte.weight[None] + body.wpe.weight[:, None])
    return body.h[0].attn.c_attn.weight.grad.T, candidates.detach(), _true(ids)


def bert(seed: int) -> tuple[Tensor, Tensor, set[int]]:
    """The same of an encoder that tells two classes apart."""
    import transformers as t

    torch.manual_seed(seed)
    config = t.BertConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4,
                          intermediate_size=128, max_position_embeddings=TOKENS)  # fmt: skip
    net: Any = t.BertForSequenceClassification(config).eval()
    ids = torch.randint(VOCABULARY, (1, TOKENS))
    net(input_ids=ids, labels=torch.tensor([1])).loss.backward()
    table = net.bert.embeddings
    words = table.word_embeddings.weight[None] + table.position_embeddings.weight[:, None]
    candidates = table.LayerNorm(words + table.token_type_embeddings.weight[0])
    return net.bert.encoder.layer[0].attention.self.query.weight.grad, candidates.detach(), _true(ids)


def _true(ids: Tensor) -> set[int]:
    return {place * VOCABULARY + int(word) for place, word in enumerate(ids[0])}


def main() -> None:
    sys.path[:0] = [str(Path(sys.argv[1]).resolve())]
    peer: Any = importlib.import_module("utils.functional")
    print("| model | seed | rank, theirs and ours | largest difference of distances | true | theirs | ours, blind |")
    print("|---|---|---|---|---|---|---|")
    for name, make in (("GPT-2", gpt2), ("BERT", bert)):
        for seed in range(3):
            rows, candidates, true = make(seed)
            flat = candidates.flatten(0, 1)
            rank, basis = peer.get_layer_decomp(rows)
            theirs = peer.check_if_in_span(basis, flat.clone())
            space = Subspace.of([Rows(rows)])
            ours, found = space.residual(flat), members(space, flat)
            apart = float((theirs.double() - ours).abs().max())
            taken = {int(i) for i in (theirs < THRESHOLD).nonzero().flatten()}
            blind = {int(i) for i in found.taken.nonzero().flatten()}
            counts = [f"{len(one & true)} right, {len(one - true)} wrong" for one in (taken, blind)]
            print(f"| {name} | {seed} | {rank}, {space.rank} | {apart:.1e} | {len(true)} | {counts[0]} | {counts[1]} |")


if __name__ == "__main__":
    main()
