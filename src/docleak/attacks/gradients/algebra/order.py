"""The words of a decoder in their order: the question and answer of a vision-language client, the answers of a T5.

``sequences`` says which continuations the span of the first layer behind an attention allows. That layer must read
nothing at a word but what the adversary can compute. In a vision-language model this is the second layer, where a word
has seen the picture before it: the picture must be read first (``tower``). In a T5's decoder it is the first query of
cross-attention, where a token has seen the answer's tokens before it and neither page nor question.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from docleak.attacks.gradients.algebra.patches import pixels_of_system
from docleak.attacks.gradients.algebra.recovered import Condition, Recovered
from docleak.attacks.gradients.algebra.sequences import Sequences, grow
from docleak.attacks.gradients.algebra.subspace import FAR, SLACK, Rows, Subspace, members
from docleak.attacks.gradients.algebra.tower import tower_system
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.attacks.hooks import reached, read_by
from docleak.errors import AttackError
from docleak.models.base import AnswerLayers
from docleak.models.vlm.model import VisionLanguage

#: How alike a replay of the decoder and the network itself are, where it reads from left to right.
ALIKE = 1e-4
#: Which of the distances of known places counts, and how many continuations are held at once beside a picture.
TYPICAL, BESIDE = 0.95, 8
#: Tokens of an answer at most.
LONGEST = 256
#: A question and an answer that no client has, for the replay's test.
MADE_UP = "Which is it, 3 or 5?"


@dataclass(frozen=True)
class Answers:
    """The answers of a T5 client's batch, token by token; ``exact`` is the adversary's belief that these are all."""

    tokens: tuple[tuple[int, ...], ...]
    exact: bool
    conditions: tuple[Condition, ...]
    seconds: float


def recover_answers(view: GradientView) -> Answers:
    """The answers of a batch, without what ends them, in no order, of a T5's client (or UDOP's, or Pix2Struct's).

    AttackError for other models, and where the decoder's first layer sent nothing. An answer that begins another, or
    equals it, is not told from it.
    """
    started, model = time.perf_counter(), view.model
    layers: AnswerLayers | None = getattr(model, "answer_layers", None)
    if layers is None:
        raise AttackError(f"answers are read of a T5's decoder; {model.name!r} is a {model.architecture}.")
    decoder: Any = model.module.get_submodule(layers.decoder)
    query = decoder.get_submodule(layers.second)
    first = [f"{layers.decoder}.{name}.weight" for name in layers.first]
    table = decoder.embed_tokens.weight
    words = members(_span(view, first), decoder.get_submodule(layers.norm)(table))
    space = _span(view, [f"{layers.decoder}.{layers.second}.weight"])
    ids = words.taken.nonzero().flatten()
    width = table.shape[1]

    def reads(rows: Tensor) -> Tensor:
        ids, encoded = rows.to(decoder.device), torch.zeros(len(rows), 1, width, device=decoder.device)
        run = partial(decoder, input_ids=ids, encoder_hidden_states=encoded, use_cache=False)
        return reached(query, run)[:, -1]

    start = torch.tensor([[int(decoder.config.decoder_start_token_id)]])
    others = ids[ids != start[0, 0]]  # repeated, it gives the same vectors for ever
    texts = grow(space, lambda _: others, reads, begun=start, longest=LONGEST)
    if not texts.rows:
        raise AttackError("no token of the decoder's first layer continues an answer in the span of its second.")
    answers = tuple(row[1:] for row in texts.rows)
    read = {token for answer in answers for token in answer}
    conditions = (
        *_of_span(space, texts),
        Condition("the words of the first layer are those of the answers", f"{len(read)} of "
                  f"{len(others)}", words.clear and set(others.tolist()) <= read),
        Condition("as many answers as examples", f"{len(answers)} of {view.batch_size}",
                  len(answers) == view.batch_size),
    )  # fmt: skip
    return Answers(answers, all(c.holds for c in conditions), conditions, time.perf_counter() - started)


def recover_order(view: GradientView, knowledge: Knowledge, words: Sequence[int]) -> Recovered:
    """Question and answer of a vision-language client, of whom ``words`` were read without order, and its page.

    AttackError for batches and other models, where the picture has no closed form, where the decoder does not read from
    left to right, and where what was read is no question and answer to its end.
    """
    started, model = time.perf_counter(), view.model
    if not isinstance(model, VisionLanguage) or model.two_sided:
        raise AttackError(f"the order of words is read of decoders that see pictures; {model.name!r} is none.")
    pixels, determined, conditions = pixels_of_system(tower_system(view), knowledge.template, knowledge.private)
    prompt = knowledge.inputs[0].tensors["prompt_ids"]
    from_, to = knowledge.inputs[0].tensors["question_at"].tolist()
    head, tail = (prompt, prompt[:0]) if knowledge.question_known else (prompt[:from_], prompt[to:])
    replay = _Replay.of(model, pixels, head)
    replay.require_left_to_right(answering=knowledge.question_known)
    space = _span(view, replay.weights)
    ids = torch.tensor(sorted(words))
    known = float(space.residual(replay.known).quantile(TYPICAL))
    texts = grow(space, lambda _: ids, replay.reads, begun=head.new_zeros(1, 0), longest=model.positions - len(head),
                 most=BESIDE, allowed=min(FAR, SLACK * known))  # fmt: skip
    examples = [parts for row in texts.rows if (parts := _parts(row, tail.tolist())) is not None]
    if not examples:
        longest = max((len(row) for row in texts.rows), default=0)
        raise AttackError(
            f"the second layer's span holds {longest} tokens in a row behind the picture, and no answer to its end: "
            f"it is {space.rank} of {space.width} wide, behind {len(head)} tokens and more."
        )
    asked, said = max(examples, key=lambda parts: len(parts[0]) + len(parts[1]))
    middle = prompt[from_:to] if knowledge.question_known else prompt.new_tensor(asked)
    example = model.told(middle, prompt.new_tensor(said))
    conditions = (
        *conditions,
        *_of_span(space, texts),
        Condition("one question and answer fits", f"{len(examples)} do", len(examples) == 1),
        Condition("its words are those of the first layer", f"{len(set(words) - model.tokens_moved(example))} are left",
                  model.tokens_moved(example) == set(words)),
    )  # fmt: skip
    exact = all(c.holds for c in conditions)
    return Recovered((example,), exact, conditions, time.perf_counter() - started, pixels, determined)


def _of_span(space: Subspace, found: Sequences) -> tuple[Condition, ...]:
    said = f"furthest taken {found.furthest:.1e} of what noise explains, nearest left out {found.nearest:.1e}"
    return (
        Condition("the deeper span is narrower than the layer", f"{space.rank} of {space.width}",
                  0 < space.rank < space.width),
        Condition("a gap separates continuations", said, found.clear),
    )  # fmt: skip


def _span(view: GradientView, names: Sequence[str]) -> Subspace:
    sent = [view.gradient[name] for name in names if name in view.gradient and bool(view.gradient[name].any())]
    if not sent:
        raise AttackError(f"the gradient says nothing of {names[0]} and its like: they were frozen or not sent.")
    return Subspace.of([Rows(value, view.noise) for value in sent])


def _parts(row: Sequence[int], tail: Sequence[int]) -> tuple[Sequence[int], Sequence[int]] | None:
    """Question and answer of a row, which the template's ``tail`` parts at its first place; None where it is not in."""
    if not tail:
        return (), row
    at = next((i for i in range(len(row)) if list(row[i : i + len(tail)]) == tail), None)
    return None if at is None else (row[:at], row[at + len(tail) :])


@dataclass(frozen=True)
class _Replay:
    """A vision-language decoder up to the layer that is read, with ``head``, the picture among it, behind it.

    ``layer`` reads the same as all of ``weights``, and ``known`` (T, d) at the head. ``cache`` holds the first layer's
    keys and values of ``head``, and ``positions`` its places, (..., T), where the network counts them itself.
    """

    model: VisionLanguage
    pixels: Tensor
    head: Tensor
    weights: tuple[str, ...]
    layer: nn.Module
    known: Tensor
    cache: Any
    positions: Tensor | None

    @classmethod
    def of(cls, model: VisionLanguage, pixels: Tensor, head: Tensor) -> _Replay:
        from transformers import DynamicCache

        decoder: Any = model.module.get_decoder()
        weights, layer = _second(model, decoder)
        cache = DynamicCache(config=decoder.config)
        given: list[Any] = []
        handle = decoder.register_forward_pre_hook(
            lambda _, __, options: given.append(options.get("position_ids")), with_kwargs=True
        )
        try:
            known = reached(layer, lambda: model.forward_to(pixels, head, head[:0], cache))[0]
        finally:
            handle.remove()
        return cls(model, pixels, head, weights, layer, known, cache, given[0])

    def reads(self, rows: Tensor) -> Tensor:
        """What the layer reads at the last of each of the rows (n, t) behind the head."""
        decoder: Any = self.model.module.get_decoder()
        cache = copy.deepcopy(self.cache)
        cache.batch_repeat_interleave(len(rows))
        places = None
        if self.positions is not None:
            known = self.positions.expand(*self.positions.shape[:-2], len(rows), -1)
            last = known[..., -1:] if known.ndim == 2 else _last(known)
            places = last + 1 + torch.arange(rows.shape[1], device=last.device)
        embedded = self.model.module.get_input_embeddings()(rows.to(self.device))
        run = partial(decoder, inputs_embeds=embedded, past_key_values=cache, position_ids=places, use_cache=True)
        return reached(self.layer, run)[:, -1]

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return torch.device(next(self.model.module.parameters()).device)

    def require_left_to_right(self, *, answering: bool) -> None:
        """AttackError unless a made-up continuation of a prompt, or answer to it, is read as by the whole network."""
        made = torch.tensor(self.model.processor.answer_ids("?", MADE_UP))
        asked, said = (self.head, made) if answering else (torch.cat([self.head, made]), made[:0])
        whole = reached(self.layer, lambda: self.model.forward_to(self.pixels, asked, said))[0, len(self.head) :]
        for t in (1, len(made) // 2, len(made)):
            replayed = self.reads(made[None, :t])[0]
            if float((replayed - whole[t - 1]).norm()) > ALIKE * float(whole[t - 1].norm()):
                raise AttackError(
                    f"the decoder of this {self.model.architecture} does not read its prompt from left to right, "
                    "so that no word is told before those behind it."
                )


def _last(places: Tensor) -> Tensor:
    """The last place (k, n, 1) of each kind of place (k, n, T): of pictures' the largest, which counts on; where there
    are four kinds the first is the text's own."""
    largest = places[-3:].amax((0, -1), keepdim=True).expand(3, -1, -1)
    return torch.cat([places[:-3, :, -1:], largest])


def _second(model: VisionLanguage, decoder: Any) -> tuple[tuple[str, ...], nn.Module]:
    """The linear layers behind the first attention that read the same, by their weights' names, and one of them."""
    names = {module: name for name, module in model.module.named_modules()}
    linear = (layer for layer in decoder.layers[1].modules() if isinstance(layer, nn.Linear))
    with torch.no_grad(), read_by(linear) as read:
        decoder(input_ids=torch.tensor([[5, 6, 7]], device=next(decoder.parameters()).device), use_cache=False)
    first, value = read[0]
    alike = [layer for layer, other in read if other.shape == value.shape and torch.equal(other, value)]
    return tuple(f"{names[layer]}.weight" for layer in alike), first
