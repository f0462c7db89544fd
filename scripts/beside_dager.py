"""docleak's spans beside DAGER's own functions, on random GPT-2 and BERT: ``python scripts/beside_dager.py FOLDER``.

FOLDER is a checkout of insait-institute/dager-gradient-inversion (Petrov et al., NeurIPS 2024, Apache-2.0), of which
``get_layer_decomp``, ``check_if_in_span``, ``filter_decoder`` and ``filter_encoder`` run as they are. Compared are the
distances of every candidate (word at a position) from the span of the first layer's gradient, what is taken (theirs
below a threshold, ours blind), and, with ``--sequences``, the sequences that the second layer's span leaves of it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import sys
import time
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from docleak.attacks.gradients.algebra.sequences import arrange, grow
from docleak.attacks.gradients.algebra.subspace import Rows, Subspace, members

VOCABULARY, WIDTH, TOKENS = 300, 64, 12
#: DAGER's thresholds: of words, its default of words for GPT-2 (of BERT's it leaves none), and that of sequences.
THRESHOLD, FIRST, SECOND = 1e-3, 1e-5, 1e-3
#: Width of the models whose sequences are compared, and how many sequences one gradient is of.
BROAD, BATCHES = 96, (1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4)


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


@dataclass(frozen=True)
class Text:
    """A random model of three layers, the sequences behind its gradient, the gradient's first two layers (rows, d), and
    what the first reads of each word at each position (positions, words, d). ``told`` are the tokens that are sent."""

    net: Any
    ids: Tensor
    first: Tensor
    second: Tensor
    candidates: Tensor
    told: Tensor

    @classmethod
    def decoder(cls, seed: int, count: int) -> Text:
        """GPT-2; of the last token nothing is sent, for nothing follows it."""
        import transformers as t

        torch.manual_seed(seed)
        config = t.GPT2Config(vocab_size=VOCABULARY, n_embd=BROAD, n_layer=3, n_head=4, n_positions=TOKENS,
                              bos_token_id=None, eos_token_id=None)  # fmt: skip
        net: Any = t.GPT2LMHeadModel(config).eval()
        ids = torch.randint(VOCABULARY, (count, TOKENS))
        net(input_ids=ids, labels=ids).loss.backward()
        body = net.transformer
        first, second = (body.h[i].attn.c_attn.weight.grad.T for i in range(2))
        candidates = body.h[0].ln_1(body.wte.weight[None] + body.wpe.weight[:, None]).detach()
        return cls(net, ids, first, second, candidates, ids[:, :-1])

    @classmethod
    def encoder(cls, seed: int, count: int) -> Text:
        """BERT telling two classes apart, which begins with token 1 and ends with token 2."""
        import transformers as t

        torch.manual_seed(seed)
        config = t.BertConfig(vocab_size=VOCABULARY, hidden_size=BROAD, num_hidden_layers=3, num_attention_heads=4,
                              intermediate_size=2 * BROAD, max_position_embeddings=TOKENS)  # fmt: skip
        net: Any = t.BertForSequenceClassification(config).eval()
        ids = torch.randint(3, VOCABULARY, (count, TOKENS))
        ids[:, 0], ids[:, -1] = 1, 2
        net(input_ids=ids, labels=torch.arange(count) % 2).loss.backward()
        table, layers = net.bert.embeddings, net.bert.encoder.layer
        words = table.word_embeddings.weight[None] + table.position_embeddings.weight[:, None]
        candidates = table.LayerNorm(words + table.token_type_embeddings.weight[0]).detach()
        first, second = (layers[i].attention.self.query.weight.grad for i in range(2))
        return cls(net, ids, first, second, candidates, ids)

    def reads(self, rows: Tensor) -> Tensor:
        """What the second layer reads (n, t, d)."""
        with torch.no_grad():
            if "gpt2" in self.net.config.model_type:
                hidden = self.net.transformer(rows, output_hidden_states=True).hidden_states[1]
                return self.net.transformer.h[1].ln_1(hidden)  # type: ignore[no-any-return]
            return self.net.bert(rows, output_hidden_states=True).hidden_states[1]  # type: ignore[no-any-return]

    # What DAGER's filters ask of a model.
    pad_token, start_token, eos_token = -1, None, 2

    def get_layer_inputs(self, rows: Tensor, *_: Any, **__: Any) -> list[Tensor]:
        return [self.reads(rows)]

    def has_rope(self) -> bool:
        return False

    def has_bos(self) -> bool:
        return False

    def is_bert(self) -> bool:
        return False


def theirs(peer: Any, text: Text, count: int) -> set[tuple[int, ...]]:
    """The sequences that DAGER's filters leave, at its thresholds."""
    bases = [peer.functional.get_layer_decomp(rows)[1] for rows in (text.first, text.second)]
    distances = [peer.functional.check_if_in_span(bases[0], at.clone()) for at in text.candidates]
    limit = FIRST if "gpt2" in text.net.config.model_type else THRESHOLD
    ids = [(near < limit).nonzero().flatten().tolist() for near in distances]
    options = Namespace(batch_size=count, pad="right", dist_norm="l2", defense_noise=None, parallel=1000, device="cpu",
                        l2_span_thresh=SECOND, distinct_thresh=0.7, reduce_incorrect=0, maxC=100_000)  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), torch.no_grad():
        if "gpt2" in text.net.config.model_type:
            rows, scores, *_ = peer.filtering_decoder.filter_decoder(options, text, bases, [one for one in ids if one])
        else:
            peer.filtering_encoder.args = options  # a name of its module that its script binds
            rows, scores = peer.filtering_encoder.filter_encoder(
                options, text, bases[1], TOKENS - 1, 0, ids, [], [], [], -1, count
            )
    return {tuple(map(int, row)) for row, score in zip(rows, scores, strict=True) if score < SECOND}


def blind(text: Text) -> tuple[set[tuple[int, ...]], bool]:
    """The sequences that docleak reads, and whether a gap separates them."""
    taken = members(Subspace.of([Rows(text.first)]), text.candidates.flatten(0, 1)).taken.view(TOKENS, VOCABULARY)
    words, space = [row.nonzero().flatten() for row in taken], Subspace.of([Rows(text.second)])
    if "gpt2" in text.net.config.model_type:
        begun = torch.zeros(1, 0, dtype=torch.long)
        reading = grow(space, lambda t: words[t], lambda rows: text.reads(rows)[:, -1], begun=begun, longest=TOKENS)
    else:
        reading = arrange(space, words, text.reads)
    return set(reading.rows), reading.clear


def sequences(peer: Any) -> None:
    """A table of both."""
    print("| model | sequences | seed | theirs | s | ours, blind | a gap | s | the same |")
    print("|---|---|---|---|---|---|---|---|---|")
    kinds = [("GPT-2", Text.decoder, BATCHES), ("BERT", Text.encoder, (1, 1, 1, 2, 2))]
    for name, made, batches in kinds:
        for seed, count in enumerate(batches):
            text, started = made(seed, count), time.perf_counter()
            true, other = {tuple(row) for row in text.told.tolist()}, theirs(peer, text, count)
            between = time.perf_counter()
            ours, clear = blind(text)
            seconds = f"{between - started:.1f}", f"{time.perf_counter() - between:.1f}"
            said = [f"{len(one & true)} of {len(true)}, {len(one - true)} wrong" for one in (other, ours)]
            gap, same = ("yes" if one else "no" for one in (clear, other == ours))
            cells = [name, count, seed, said[0], seconds[0], said[1], gap, seconds[1], same]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sequences", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sys.path[:0] = [str(arguments.folder.resolve())]
    names = ("functional", "filtering_decoder", "filtering_encoder") if arguments.sequences else ("functional",)
    peer: Any = Namespace(**{name: importlib.import_module(f"utils.{name}") for name in names})
    if arguments.sequences:
        sequences(peer)
    else:
        words(peer.functional)


def words(peer: Any) -> None:
    """A table of words at positions, by both."""
    print("| model | seed | rank, theirs and ours | largest difference of distances | true | theirs | ours, blind |")
    print("|---|---|---|---|---|---|---|")
    for name, make in (("GPT-2", gpt2), ("BERT", bert)):
        for seed in range(3):
            rows, candidates, true = make(seed)
            flat = candidates.flatten(0, 1)
            rank, basis = peer.get_layer_decomp(rows)
            theirs = peer.check_if_in_span(basis, flat.clone())
            space = Subspace.of([Rows(rows)])
            ours, inside = space.residual(flat), members(space, flat)
            apart = float((theirs.double() - ours).abs().max())
            taken = {int(i) for i in (theirs < THRESHOLD).nonzero().flatten()}
            chosen = {int(i) for i in inside.taken.nonzero().flatten()}
            counts = [f"{len(one & true)} right, {len(one - true)} wrong" for one in (taken, chosen)]
            print(f"| {name} | {seed} | {rank}, {space.rank} | {apart:.1e} | {len(true)} | {counts[0]} | {counts[1]} |")


if __name__ == "__main__":
    main()
