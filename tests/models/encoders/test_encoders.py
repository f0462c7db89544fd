"""Token encoders: pages in pieces, labels, heads and losses, BROS without pairs, files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

from docleak.documents import Field, Page, Word
from docleak.documents.page import Entity
from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models.base import IGNORED
from docleak.models.encoders import EncoderModel, TokenPage, load_encoder
from docleak.models.encoders.bros import quicken
from docleak.models.encoders.loading import save_encoder
from docleak.models.encoders.questions import asked
from docleak.models.encoders.tasks import NOTHING, RARE, TASKS, Task, classes_of, label_of, labelled, mask_tokens
from docleak.models.encoders.tiny import SPECIALS, bert_tokenizer, shipped_tokenizer, tiny_encoder
from docleak.models.encoders.vision import VisionConfig
from docleak.models.shipped import SHIPPED_ENCODERS

ARCHITECTURES = ("layoutlm", "bros", "bert")
EYE = VisionConfig(size=(64, 96), channels=(4, 8))


@lru_cache(maxsize=1)
def pages() -> tuple[Page, ...]:
    return tuple(make_pages(3, seed=5, split="validation"))


def form() -> Page:
    """A question, its two-word answer, and a header: "Name : ada  lovelace" under "FORM"."""
    texts = ("FORM", "Name:", "Ada", "Lovelace")
    words = tuple(Word(text, (10.0 + 40 * i, 20.0, 45.0 + 40 * i, 30.0)) for i, text in enumerate(texts))
    return Page(
        name="form",
        image=np.full((100, 200, 3), 255, np.uint8),
        words=words,
        fields=(Field("Name", "Ada Lovelace", (2, 3)),),
        entities=(Entity("header", (0,)), Entity("question", (1,)), Entity("answer", (2, 3))),
        links=((1, 2), (0, 1)),
    )


@lru_cache(maxsize=32)
def model(architecture: str = "layoutlm", task: Task = "mlm", bimodal: bool = False) -> EncoderModel:
    start = tiny_encoder(architecture, shipped_tokenizer(), seed=1, vision=EYE if bimodal else None)
    classes = ("answer", "header", "question", *classes_of(pages())) if task.startswith("ee") else ()
    if task == "classify":
        classes = (*sorted({label_of(page) for page in pages()}), RARE)
    return start if task == "mlm" else start.for_task(task, classes, seed=2)


def ready(m: EncoderModel, page: Page) -> TokenPage:
    """The page with labels, also for "mlm", and with its first question."""
    tokens = m.encode(page)
    if m.task != "mlm":
        return asked(tokens)[0]
    (masked,) = mask_tokens(
        [tokens], vocabulary=torch.tensor([50]), mask_id=4, generator=torch.Generator().manual_seed(3)
    )
    return masked


def page_for(task: Task, number: int = 0) -> Page:
    return form() if task == "el" else pages()[number]


# -- pages in pieces ---------------------------------------------------------------------------------------------------


def test_pieces_carry_the_words_and_their_boxes() -> None:
    tokens = model().encode(form())
    tokenizer = model().tokenizer
    assert tokens.ids[0] == tokenizer.cls_token_id and tokens.ids[-1] == tokenizer.sep_token_id
    for i, word in enumerate(form().words):
        mine = tokens.words == i
        assert tokenizer.decode(tokens.ids[mine]).replace(" ", "") == word.text.lower()
        x0, y0, x1, y1 = word.box
        assert tokens.boxes[mine].unique(dim=0).tolist() == [[x0 * 5, y0 * 10, x1 * 5, y1 * 10]]
    assert tokens.first.sum() == 4 and tokens.image is None and tokens.cut == 0
    assert tokens.boxes[0].tolist() == [0] * 4 and tokens.boxes[-1].tolist() == [1000] * 4


def test_what_does_not_fit_is_cut_and_counted() -> None:
    long = replace(form(), words=form().words * 200, fields=(), entities=(), links=())
    tokens = model().encode(long)
    assert len(tokens) == model().max_tokens and tokens.cut > 0
    assert tokens.cut + len(set(tokens.words.tolist()) - {-1}) == 800


def test_a_page_without_words_is_refused() -> None:
    with pytest.raises(ModelError, match="no words"):
        model().encode(replace(form(), words=(), fields=(), entities=(), links=()))


def test_the_picture_is_the_model_s_size() -> None:
    tokens = model(bimodal=True).encode(pages()[0])
    assert tokens.image is not None and tokens.image.shape == (3, 96, 64) and tokens.image.dtype == torch.uint8


# -- labels ------------------------------------------------------------------------------------------------------------


def test_labels_by_hand() -> None:
    tokens = model().encode(form())
    classes = ("answer", "header", "question")
    first = tokens.first.nonzero().flatten().tolist()  # the four words
    answer = ((tokens.words == 2) | (tokens.words == 3)).nonzero().flatten().tolist()
    tag = labelled(tokens, form(), "ee-bio", classes).labels["tag"]
    assert tag[0] == tag[-1] == IGNORED
    assert tag[first[0]] == 3 and tag[first[1]] == 5  # B-header, B-question
    assert tag[answer].tolist() == [1] + [2] * (len(answer) - 1)  # B-answer, I-answer ...
    rows = labelled(tokens, form(), "ee-spade", classes).labels
    assert rows["initial"][first].tolist() == [2, 3, 1, 0]
    assert rows["predecessor"][answer].tolist() == [NOTHING, *answer[:-1]]
    assert rows["initial"][answer[1:2]].tolist() == [IGNORED] or answer[1] == first[3]
    source = labelled(tokens, form(), "el", ()).labels["source"]
    assert source[first].tolist() == [NOTHING, first[0], first[1], NOTHING]


def test_what_cannot_be_labelled_is_refused() -> None:
    tokens = model().encode(form())
    with pytest.raises(ModelError, match=r"entities \['answer'"):
        labelled(tokens, form(), "ee-bio", ("other",))
    with pytest.raises(ModelError, match="no links"):
        labelled(tokens, replace(form(), links=()), "el", ())
    with pytest.raises(ModelError, match="0 kinds"):
        classes_of([replace(form(), fields=(), entities=(), links=())])


def test_masking_takes_the_shares_it_says() -> None:
    tokens = model().encode(pages()[0])
    many = [tokens] * 300
    masked = mask_tokens(many, vocabulary=torch.tensor([50]), mask_id=4, generator=torch.Generator().manual_seed(0))
    asked = torch.stack([page.labels["token"] != IGNORED for page in masked])
    ids = torch.stack([page.ids for page in masked])
    assert not asked[:, [0, -1]].any()
    assert float(asked[:, 1:-1].float().mean()) == pytest.approx(0.15, abs=0.01)
    assert float((ids[asked] == 4).float().mean()) == pytest.approx(0.8, abs=0.03)
    assert float((ids[asked] == 50).float().mean()) == pytest.approx(0.1, abs=0.03)
    assert torch.equal(ids[~asked], tokens.ids.expand(300, -1)[~asked])
    assert all(torch.equal(page.labels["token"][a], tokens.ids[a]) for page, a in zip(masked, asked, strict=True))


# -- losses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bimodal", [False, True])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_page_s_loss_does_not_depend_on_its_batch(architecture: str, task: Task, bimodal: bool) -> None:
    m = model(architecture, task, bimodal)
    made = [ready(m, page_for(task, 0)), ready(m, page_for(task, 1))]
    if task == "el":
        longer = replace(form(), words=(*form().words, *form().words))
        made[1] = ready(m, longer)
    with torch.no_grad():
        together = m.loss(m.collate(made))
        alone = torch.cat([m.loss(m.collate([page])) for page in made])
    assert together.shape == (2,)
    assert torch.allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_losses_are_the_cross_entropies_they_should_be() -> None:
    """Each head's loss again, from its raw scores, in plain loops."""
    for task in TASKS:
        m = model(task=task)
        page = ready(m, page_for(task))
        batch = m.collate([page])
        with torch.no_grad():
            hidden = m.hidden(batch)
            loss = float(m.loss(batch)[0])
            by_hand = sum(float(torch.stack(rows).mean()) for rows in _cross_entropies(m, page, hidden[0]))
        assert loss == pytest.approx(by_hand, rel=1e-4), task


def _cross_entropies(m: EncoderModel, page: TokenPage, hidden: torch.Tensor) -> list[list[torch.Tensor]]:
    head: Any = m.module.head
    if m.task == "mlm":
        scores: Callable[[int], torch.Tensor] = lambda t: m.token_scores(hidden[t, None])[0]  # noqa: E731
        rows = {"token": scores}
    elif m.task == "ee-bio":
        rows = {"tag": lambda t: head.tags(hidden[t])}
    elif m.task == "classify":
        rows = {"class": lambda t: head.classes(hidden[t])}
    elif m.task == "qa":
        return [[_of_span(m, page, hidden, name, column)] for column, name in enumerate(("start", "end"))]
    else:
        words = page.words >= 0 if m.task == "ee-spade" else page.first
        nothing = head.pointer.key(head.pointer.nothing)

        def pointing(t: int) -> torch.Tensor:
            query = head.pointer.query(hidden[t])
            dots = [query @ head.pointer.key(hidden[j]) if words[j] and j != t else torch.tensor(-1e4)
                    for j in range(len(page))]  # fmt: skip
            return torch.stack([*dots, query @ nothing])

        rows = {"predecessor" if m.task == "ee-spade" else "source": pointing}
        if m.task == "ee-spade":
            rows["initial"] = lambda t: head.initial(hidden[t])
    losses = []
    for name, scores in rows.items():
        labels = page.labels[name].tolist()
        losses.append(
            [
                F.cross_entropy(scores(t)[None], torch.tensor([len(page) if label == NOTHING else label]))
                for t, label in enumerate(labels)
                if label != IGNORED
            ]
        )
    return losses


def _of_span(m: EncoderModel, page: TokenPage, hidden: torch.Tensor, name: str, column: int) -> torch.Tensor:
    """Over the page's words only: neither special tokens nor the question can be the answer."""
    scores: dict[int, torch.Tensor] = {}
    for t in range(len(page)):
        if page.words[t] >= 0:
            scores[t] = m.module.head.span(hidden[t])[column]  # type: ignore[operator]
    target = page.labels[name].tolist().index(1)
    return F.cross_entropy(torch.stack(list(scores.values()))[None], torch.tensor([list(scores).index(target)]))


def test_layout_and_picture_matter_where_they_should() -> None:
    for architecture in ARCHITECTURES:
        m = model(architecture, bimodal=True)
        batch = m.collate([m.encode(pages()[0])])
        moved = replace(batch, boxes=batch.boxes.flip(1))
        other = replace(batch, images=255 - batch.images) if batch.images is not None else batch
        with torch.no_grad():
            here = m.hidden(batch)
            assert not torch.allclose(here, m.hidden(other), atol=1e-4), f"{architecture} does not see"
            blind = model(architecture)
            difference = (
                (blind.hidden(replace(batch, images=None)) - blind.hidden(replace(moved, images=None))).abs().max()
            )
        assert (difference == 0) == (architecture == "bert")


def test_a_bimodal_model_without_pictures_says_so() -> None:
    m = model(bimodal=True)
    blind = model().encode(pages()[0])
    with pytest.raises(ModelError, match="without pictures"):
        m.hidden(m.collate([blind]))


# -- BROS --------------------------------------------------------------------------------------------------------------


def test_bros_without_pairs_is_bros() -> None:
    torch.manual_seed(0)
    config = transformers.BrosConfig(
        vocab_size=50, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, dim_bbox=8, bbox_scale=100.0,
    )  # fmt: skip
    theirs = transformers.BrosModel._from_config(config, attn_implementation="eager", add_pooling_layer=False).eval()
    ours = transformers.BrosModel._from_config(config, attn_implementation="eager", add_pooling_layer=False)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    names = sorted(name for name, _ in theirs.named_parameters())
    quicken(ours)
    assert sorted(name for name, _ in ours.named_parameters()) == names
    missing = ours.load_state_dict(theirs.state_dict(), strict=False).missing_keys
    assert not missing
    ours.eval()
    ids, boxes = torch.randint(0, 50, (3, 20)), torch.rand(3, 20, 4)
    mask = torch.ones(3, 20, dtype=torch.int64)
    mask[1, 12:] = 0
    results = []
    for net in (theirs, ours):
        out = net(input_ids=ids, bbox=boxes, attention_mask=mask).last_hidden_state[mask.bool()]
        net.zero_grad()
        out.pow(3).sum().backward()
        results.append((out.detach(), net.bbox_embeddings.bbox_projection.weight.grad))
    (expected, slope), (states, gradient) = results
    assert torch.allclose(states, expected, atol=1e-5)
    assert torch.allclose(gradient, slope, rtol=1e-3, atol=1e-4)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED_ENCODERS)
def test_shipped_encoders_load_and_guess(name: str) -> None:
    """Guessing masked tokens of unseen invoices: far better than the commonest token, and as their card says."""
    m = load_encoder(name)
    generator = torch.Generator().manual_seed(0)
    vocabulary = torch.arange(5, len(m.tokenizer))
    encoded = [m.encode(page) for page in make_pages(30, seed=0, split="validation")]
    batch = m.collate(
        mask_tokens(encoded, vocabulary=vocabulary, mask_id=m.tokenizer.mask_token_id, generator=generator)
    )
    with torch.no_grad():
        guessed = m.predict(batch)["token"]
    asked = batch.labels["token"] != IGNORED
    right = float((guessed == batch.labels["token"])[asked].float().mean())
    common = float((batch.labels["token"][asked] == batch.labels["token"][asked].mode().values).float().mean())
    card = json.loads(
        (Path(load_encoder.__code__.co_filename).parents[1] / "checkpoints" / name / "docleak.json").read_text()
    )
    assert right > common + 0.1
    assert right == pytest.approx(card["masked_accuracy"], abs=0.08)


@pytest.mark.parametrize("task", TASKS)
def test_saved_models_come_back(tmp_path: Path, task: Task) -> None:
    m = model("bros", task, True)
    save_encoder(m, tmp_path / "m")
    again = load_encoder(str(tmp_path / "m"))
    assert again.config == m.config
    batch = m.collate([ready(m, page_for(task))])
    with torch.no_grad():
        assert torch.equal(again.loss(batch), m.loss(batch))
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert not any("decoder" in name for name in stored), "the tied output layer is stored once"
    save_encoder(again, tmp_path / "m")  # in the place of the old one
    assert not [p for p in tmp_path.iterdir() if p.name != "m"]


def test_another_task_keeps_the_backbone_and_gets_a_new_head() -> None:
    start = model()
    other = start.for_task("ee-bio", ("date",), seed=3)
    named, old = dict(other.module.named_parameters()), dict(start.module.named_parameters())
    assert all(torch.equal(named[key], old[key]) for key in old if not key.startswith("head."))
    same = start.for_task("mlm", (), seed=3)
    assert all(torch.equal(p, old[key]) for key, p in same.module.named_parameters())
    same.module.embeddings.weight.data.add_(1)
    assert not torch.equal(same.module.embeddings.weight, start.module.embeddings.weight), "a copy, not the same"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_backbones_that_transformers_saved(tmp_path: Path, architecture: str) -> None:
    """LayoutLM and BERT come with their masked-language head; the scores are transformers' own."""
    names = {"layoutlm": "LayoutLMForMaskedLM", "bert": "BertForMaskedLM", "bros": "BrosModel"}
    config = tiny_encoder(architecture, shipped_tokenizer(), seed=0).module.backbone.config
    torch.manual_seed(4)
    theirs = getattr(transformers, names[architecture])(type(config)(**config.to_dict())).eval()
    if architecture != "bros":
        torch.nn.init.normal_(theirs.cls.predictions.bias)
    theirs.save_pretrained(tmp_path)
    shipped_tokenizer().save_pretrained(tmp_path)
    m = load_encoder(str(tmp_path), task="mlm")
    batch = m.collate([m.encode(pages()[0])])
    boxes = (
        {} if architecture == "bert" else {"bbox": batch.boxes if architecture == "layoutlm" else batch.boxes / 1000}
    )
    with torch.no_grad():
        out = theirs(input_ids=batch.ids, attention_mask=batch.mask.long(), **boxes)
        hidden = m.hidden(batch)
        if architecture == "bros":
            assert torch.allclose(hidden, out.last_hidden_state, atol=1e-5)
        else:
            assert torch.allclose(m.token_scores(hidden[0]), out.logits[0], atol=1e-4)
    with pytest.raises(ModelError, match="name the task"):
        load_encoder(str(tmp_path))
    assert load_encoder(str(tmp_path), task="ee-bio", classes=("a",), vision=EYE).bimodal


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'nowhere' is neither a directory nor a hub model"):
        load_encoder("nowhere", task="mlm")
    with pytest.raises(ModelError, match=r"no encoder 'layoutlm-tny'\. Did you mean 'layoutlm-tiny'"):
        load_encoder("layoutlm-tny", task="mlm")
    save_encoder(model(), tmp_path / "a")
    weights = load_file(tmp_path / "a" / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "dense" not in k}, tmp_path / "a" / "model.safetensors")
    with pytest.raises(ModelError, match="lacks"):
        load_encoder(str(tmp_path / "a"))
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    (tmp_path / "a" / "config.json").write_text(json.dumps({**config, "surprise": 1}))
    with pytest.raises(ModelError, match="surprise"):
        load_encoder(str(tmp_path / "a"))
    (tmp_path / "a" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ModelError, match="gpt2"):
        load_encoder(str(tmp_path / "a"), task="mlm")


def test_a_tokenizer_of_another_model_is_refused() -> None:
    vocabulary = {piece: i for i, piece in enumerate([*SPECIALS, *map(str, range(3000))])}
    with pytest.raises(ModelError, match="belongs to another model"):
        EncoderModel(model().module, bert_tokenizer(vocabulary), model().config, name="x")
    with pytest.raises(ModelError, match="lacks special"):
        bert_tokenizer({"a": 0})


def test_a_head_that_does_not_guess_says_so() -> None:
    with pytest.raises(ModelError, match="no head that guesses"):
        model(task="ee-bio").token_scores(torch.zeros(1, 64))
