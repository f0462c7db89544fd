"""One page of a batch: read where it outweighs the others, believed where its own gradient is the batch's."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from docleak.attacks.gradients import closed_form
from docleak.attacks.gradients.algebra.dominant import recover_dominant
from docleak.attacks.gradients.algebra.likeliest import Spans, owners
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.metrics import psnr
from docleak.models import DocumentModel, image_of, load_model
from docleak.studies.gradient.case import Case, build_case, pages_for
from docleak.studies.gradient.config import Exposure
from docleak.studies.gradient.texts import one_page, text_record


@lru_cache
def model(name: str) -> DocumentModel:
    return load_model(name)


@lru_cache
def batch(name: str, seed: int, count: int = 4) -> Case:
    pages = pages_for(model(name), "synthetic", count=count, seed=seed)
    return build_case(model(name), pages, Exposure(), seed=seed)


def planted(rng: np.random.Generator, share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors of very different lengths, which of ten sums each is in, and the sums beside a rest of that share."""
    vectors = rng.standard_normal((30, 64)) * 10 ** rng.uniform(-2, 0, size=(30, 1))
    owner = rng.integers(0, 8, size=30)
    sums = share * rng.standard_normal((10, 64)) * 10 ** rng.uniform(-2, 0, size=(10, 1))
    np.add.at(sums, owner, vectors)
    return vectors, owner, sums


def test_owners_are_told_beside_a_rest_of_unknown_size() -> None:
    vectors, owner, sums = planted(np.random.default_rng(0), 0.003)
    likeliest = owners(vectors, sums)
    np.testing.assert_array_equal(likeliest.owner, owner)
    assert likeliest.odds.min() > 20
    wrong = owners(vectors, sums, start=np.roll(owner, 1))
    assert wrong.likelihood <= likeliest.likelihood + 1e-9


def test_owners_are_unsure_where_the_rest_drowns_the_vectors() -> None:
    vectors, owner, sums = planted(np.random.default_rng(0), 10.0)
    likeliest = owners(vectors, sums)
    assert (likeliest.owner != owner).sum() > 10
    assert likeliest.odds.min() < 5


def test_spans_are_tied_by_their_sizes() -> None:
    rng = np.random.default_rng(1)
    edges, sizes = np.array([3, 10, 40, 44]), np.array([4, 7, 34])
    pairs = np.array([[0, 1], [1, 3], [2, 3]])
    low, high, extent = (rng.standard_normal((3, width)) for width in (32, 32, 24))
    edge_sums, size_sums = 0.001 * rng.standard_normal((4, 32)), 0.001 * rng.standard_normal((3, 24))
    for word, (first, last) in enumerate(pairs):
        edge_sums[first] += low[word]
        edge_sums[last] += high[word]
        size_sums[list(sizes).index(edges[last] - edges[first])] += extent[word]
    likeliest = Spans(low, high, extent, edge_sums, size_sums, edges, sizes).likeliest()
    np.testing.assert_array_equal(likeliest.owner, edges[pairs])
    assert likeliest.odds.min() > 20


@pytest.mark.parametrize("seed", [5, 6])
def test_a_page_that_outweighs_the_others_is_read_whole_and_believed(seed: int) -> None:
    case = batch("layoutlmv3-trained", seed)
    dominant = recover_dominant(case.view, case.knowledge)
    (read,) = dominant.recovered.inputs
    (true,) = [
        example for example in case.inputs
        if all(torch.equal(example.tensors[key], read.tensors[key]) for key in example.tensors)
        if example.tensors["input_ids"].shape == read.tensors["input_ids"].shape
    ]  # fmt: skip
    assert dominant.claimed and dominant.recovered.exact and dominant.sure == len(read.tensors["input_ids"])
    assert case.inputs[dominant.slot] is true, "the picture fits the template of the same page"


@pytest.mark.parametrize("seed", [5, 6])
def test_pages_that_weigh_alike_are_not_claimed(seed: int) -> None:
    case = batch("layoutlmv3-start", seed)
    dominant = recover_dominant(case.view, case.knowledge)
    assert not dominant.claimed and not dominant.recovered.exact


def test_a_batch_that_is_filled_up_with_one_page_is_read_as_that_page() -> None:
    """As a sampler does that repeats what it has until a batch is full."""
    (page,) = pages_for(model("layoutlmv3-start"), "synthetic", count=1, seed=5)
    case = build_case(model("layoutlmv3-start"), [page] * 3, Exposure(), seed=5)
    record = one_page(case)
    assert record["claimed"] and record["believed_exact"] and record["exact"] and all(record["fields_read"])


def test_a_gradient_of_another_model_is_not_believed() -> None:
    """The same batch, its gradient multiplied: every sum says the same, but no page of a mean of four has it."""
    case = batch("layoutlmv3-trained", 5)
    twice = {name: 2 * value for name, value in case.view.gradient.items()}
    dominant = recover_dominant(replace(case.view, gradient=twice), case.knowledge)
    assert torch.equal(dominant.recovered.inputs[0].tensors["input_ids"], case.inputs[2].tensors["input_ids"])
    assert not dominant.claimed and not dominant.recovered.exact


def test_noise_takes_the_belief() -> None:
    case = batch("layoutlmv3-trained", 5)
    drawn = torch.Generator().manual_seed(0)
    sent = {n: g + 1e-4 * torch.randn(g.shape, generator=drawn) for n, g in case.view.gradient.items()}
    assert not recover_dominant(replace(case.view, gradient=sent, noise=1e-4), case.knowledge).recovered.exact


def test_what_lacks_the_patches_is_refused_by_name() -> None:
    case = batch("layoutlmv3-start", 5)
    text = {name: value for name, value in case.view.gradient.items() if "patch" not in name}
    with pytest.raises(AttackError, match="patch_embed"):
        recover_dominant(replace(case.view, gradient=text), case.knowledge)
    assert "failed" in one_page(replace(case, view=replace(case.view, gradient=text)))


def test_the_record_compares_with_the_page_it_is_most_like() -> None:
    case = batch("layoutlmv3-trained", 5)
    record = text_record(case)
    assert record is not None and isinstance(record["one"], dict)
    one = record["one"]
    assert one["exact"] and one["believed_exact"] and one["number"] == 2 and one["page"] == case.pages[2].name
    assert one["tokens_right"] == one["tokens"] == len(case.inputs[2].tensors["input_ids"])
    assert all(one["fields_read"]) and len(one["fields_read"]) == len(case.pages[2].private_fields)
    others = replace(case, inputs=[case.inputs[0]] * 4)
    wrong = one_page(others)
    assert not wrong["exact"] and wrong["tokens_right"] < one["tokens_right"], "what it is compared with counts"


def test_closed_form_puts_its_picture_beside_the_other_templates() -> None:
    case = batch("layoutlmv3-trained", 5)
    finding = closed_form.ATTACK.run(case.view, case.knowledge, budget=1, generator=torch.Generator().manual_seed(0))
    assert finding.evaluations == 0
    for number in (0, 1, 3):
        assert torch.equal(finding.pixels[number], case.knowledge.template[number])
    assert psnr(image_of(finding.pixels[2]), case.pages[2].image, case.knowledge.private[2].numpy()) > 30


def test_closed_form_goes_on_by_optimisation_where_no_page_outweighs() -> None:
    case = batch("layoutlmv3-start", 5, 2)
    finding = closed_form.ATTACK.run(case.view, case.knowledge, budget=1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(finding.pixels, case.knowledge.template), "the budget does not suffice for it"


def test_donuts_have_no_such_tables() -> None:
    donut = load_model("donut-start")
    case = build_case(donut, make_pages(2, seed=0, size=donut.image_size), Exposure(), seed=0)
    with pytest.raises(AttackError, match="learned absolute position"):
        recover_dominant(case.view, case.knowledge)
