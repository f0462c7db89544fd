"""One case: what the client did, what the server sees and knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from docleak.attacks.gradients.selftest import self_test
from docleak.documents import Field, Page, Question, Word, blank_template, private_mask
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.errors import DocumentError, GradientError
from docleak.models import DocumentModel, image_of, load_model, pixels_of, trainable
from docleak.studies.gradient.case import blank_page, build_case, of_truth, pages_for, question_of, read_gradient
from docleak.studies.gradient.config import Exposure


@pytest.fixture(scope="module")
def model() -> DocumentModel:
    return load_model("layoutlmv3-start")


@pytest.fixture(scope="module")
def pages(model: DocumentModel) -> list[Page]:
    return list(make_pages(3, seed=0, size=model.image_size))


def test_a_case_of_the_users_own_pages(model: DocumentModel, tmp_path: Path) -> None:
    """From disk, at a size of their own."""
    originals = list(make_pages(2, seed=4, size=(250, 300)))
    save(originals, tmp_path / "pages")
    fitted = pages_for(model, str(tmp_path / "pages"), count=2, seed=0)
    assert [page.name for page in fitted] == [page.name for page in originals]
    assert all((page.width, page.height) == model.image_size for page in fitted)
    case = build_case(model, fitted[:1], Exposure(), seed=0)
    assert case.pages == (fitted[0],)
    assert case.question == originals[0].questions[0]
    assert torch.equal(case.pixels[0], pixels_of(fitted[0].image))
    assert torch.equal(case.knowledge.private[0], torch.from_numpy(private_mask(fitted[0])))
    assert (image_of(case.knowledge.template[0]) == blank_template(fitted[0])).all()
    assert case.view.batch_size == 1 and not case.view.train_mode
    assert self_test(case.view, case.pixels, case.inputs).passed


def test_the_adversarys_side_does_not_hold_the_private_pixels(model: DocumentModel, pages: list[Page]) -> None:
    """Pages that differ in private pixels only give the same knowledge."""
    page = pages[0]
    other = page.with_image(np.where(private_mask(page)[..., None], 77, page.image).astype(np.uint8))
    one, two = (build_case(model, [p], Exposure(), seed=0).knowledge for p in (page, other))
    assert torch.equal(one.template, two.template)
    assert torch.equal(one.private, two.private)


def test_fewer_pages_than_asked_for_are_what_there_is(model: DocumentModel, tmp_path: Path) -> None:
    save(make_pages(2, seed=0), tmp_path / "pages")
    assert len(pages_for(model, str(tmp_path / "pages"), count=5, seed=0)) == 2
    assert len(pages_for(model, str(tmp_path / "pages"), count=1, seed=0)) == 1


def test_pages_without_private_fields_are_passed_over(model: DocumentModel, tmp_path: Path) -> None:
    one, two = make_pages(2, seed=0)
    save([replace(one, fields=()), two], tmp_path / "pages")
    assert [page.name for page in pages_for(model, str(tmp_path / "pages"), count=1, seed=0)] == [two.name]


@pytest.mark.parametrize("kind", ["none", "public", "without a place"])
def test_no_private_field_at_all_is_refused(kind: str, model: DocumentModel, tmp_path: Path) -> None:
    pages = []
    for page in make_pages(2, seed=0):
        fields = {
            "none": (),
            "public": tuple(replace(f, private=False) for f in page.fields),
            "without a place": tuple(replace(f, words=()) for f in page.fields),
        }[kind]
        pages.append(replace(page, fields=fields))
    save(pages, tmp_path / "pages")
    with pytest.raises(DocumentError, match=r"none of 2 pages .* has a private field with a place"):
        pages_for(model, str(tmp_path / "pages"), count=1, seed=0)


def test_synthetic_pages_fill_the_models_input_and_are_scaled_down_where_it_is_small(model: DocumentModel) -> None:
    from docleak.models.tiny import donut_start

    (page,) = pages_for(model, "synthetic", count=1, seed=2)
    assert (page.image == make_pages(1, seed=2, size=model.image_size)[0].image).all()
    small = donut_start(seed=0, size=(64, 96))
    (scaled,) = pages_for(small, "synthetic", count=1, seed=2)
    assert (scaled.width, scaled.height) == (64, 96)
    assert scaled.private_fields


def a_page(*questions: Question) -> Page:
    image = np.full((20, 30, 3), 255, dtype=np.uint8)
    return Page("p", image, (Word("7", (1, 1, 5, 9)),), (Field("due_date", "7", (0,)),), questions)


def test_the_first_question_with_an_answer_is_asked() -> None:
    right = Question("When?", ("7",), "due_date")
    assert (
        question_of(a_page(Question("Empty?", ()), Question("Blank?", (" ",)), right, Question("No?", ("8",)))) == right
    )


def test_without_one_the_first_private_field_is_asked_for() -> None:
    assert question_of(a_page()) == Question("What is the due date?", ("7",), "due_date")


def test_a_batch_of_two(model: DocumentModel, pages: list[Page]) -> None:
    case = build_case(model, pages[:2], Exposure(), seed=0)
    assert case.view.batch_size == len(case.inputs) == len(case.knowledge.inputs) == 2
    assert case.pixels.shape[0] == case.knowledge.template.shape[0] == case.knowledge.private.shape[0] == 2
    alone = [build_case(model, [page], Exposure(), seed=0).view.gradient for page in pages[:2]]
    for name, value in case.view.gradient.items():
        torch.testing.assert_close(value, (alone[0][name] + alone[1][name]) / 2, rtol=1e-3, atol=1e-6)
    assert self_test(case.view, case.pixels, case.inputs).passed


def test_only_the_stages_that_are_sent(model: DocumentModel, pages: list[Page]) -> None:
    case = build_case(model, pages[:1], Exposure(stages=("vision", "output")), seed=0)
    assert {model.stage(name) for name in case.view.names} == {"vision", "output"}
    assert len(case.view.names) < len(list(trainable(model.module)))


@pytest.mark.parametrize(("question", "answer"), [(False, True), (True, False), (False, False), (True, True)])
def test_what_is_not_known_is_random(question: bool, answer: bool, model: DocumentModel, pages: list[Page]) -> None:
    exposure = Exposure(question_known=question, answer_known=answer)
    case, again, other = (build_case(model, pages[:1], exposure, seed=seed) for seed in (0, 0, 1))
    truth, known = case.inputs[0].tensors, case.knowledge.inputs[0].tensors
    assert torch.equal(truth["input_ids"], known["input_ids"]) is question
    assert (torch.equal(truth["start"], known["start"]) and torch.equal(truth["end"], known["end"])) is answer
    assert (case.knowledge.question_known, case.knowledge.answer_known) == (question, answer)
    assert all(torch.equal(known[key], value) for key, value in again.knowledge.inputs[0].tensors.items())
    redrawn = any(not torch.equal(known[key], value) for key, value in other.knowledge.inputs[0].tensors.items())
    assert redrawn is not (question and answer)
    assert self_test(case.view, case.pixels, case.inputs).passed, "the evaluator holds the truth"


def test_dropout_is_drawn_from_the_seed(model: DocumentModel, pages: list[Page]) -> None:
    one, same, other = (build_case(model, pages[:1], Exposure(train_mode=True), seed=s).view for s in (1, 1, 2))
    name = one.names[-1]
    assert one.train_mode
    assert torch.equal(one.gradient[name], same.gradient[name])
    assert not torch.equal(one.gradient[name], other.gradient[name])


@pytest.fixture(scope="module")
def recorded(model: DocumentModel, pages: list[Page]) -> dict[str, torch.Tensor]:
    return dict(build_case(model, pages[:1], Exposure(), seed=0).view.gradient)


def test_a_recorded_gradient_is_what_the_server_sees(
    model: DocumentModel, pages: list[Page], recorded: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    save_file({name: value.half() for name, value in recorded.items()}, tmp_path / "update.safetensors")
    exposure = Exposure(gradient_file=str(tmp_path / "update.safetensors"))
    case = build_case(model, pages[:1], exposure, seed=0)
    assert set(case.view.names) == set(recorded)
    for name, value in case.view.gradient.items():
        assert torch.equal(value, recorded[name].half().float())


def test_a_gradient_as_a_torch_loop_saves_it_is_understood(
    model: DocumentModel, pages: list[Page], recorded: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Of weights that the loss does not reach torch has no gradient ("lacks 3 of the model's parameters ... Record all
    named parameters"), and wrappers put their own before every name ("the model has no such trainable parameter")."""
    reached = {f"_module.{name}": value for name, value in recorded.items() if bool(value.any())}
    assert len(reached) == len(recorded) - 3
    save_file(reached, tmp_path / "update.safetensors")
    case = build_case(model, pages[:1], Exposure(gradient_file=str(tmp_path / "update.safetensors")), seed=0)
    assert case.view.gradient.keys() == recorded.keys()
    assert all(torch.equal(value, recorded[name]) for name, value in case.view.gradient.items())


def test_a_recorded_gradient_is_cut_to_the_stages_that_are_sent(
    model: DocumentModel, pages: list[Page], recorded: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """The report says that only these are seen, so an attack must not use the others."""
    vision = {name: value for name, value in recorded.items() if model.stage(name) == "vision"}
    for gradient in (recorded, vision):
        save_file(gradient, tmp_path / "update.safetensors")
        exposure = Exposure(stages=("vision",), gradient_file=str(tmp_path / "update.safetensors"))
        assert set(build_case(model, pages[:1], exposure, seed=0).view.names) == set(vision)


def test_a_recorded_gradient_that_does_not_fit(
    model: DocumentModel, pages: list[Page], recorded: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    file = tmp_path / "update.safetensors"
    exposure = Exposure(gradient_file=str(file))
    first = sorted(recorded)[0]
    save_file({name: value for name, value in recorded.items() if name != first}, file)
    with pytest.raises(GradientError, match=f"lacks 1 of the model's parameters, first: {first}.*--stages"):
        build_case(model, pages[:1], exposure, seed=0)
    for wrong in ({**recorded, "other.weight": torch.ones(2)}, {**recorded, first: torch.ones(1, 2, 3)}):
        save_file(wrong, file)
        with pytest.raises(GradientError, match="does not fit model 'layoutlmv3-start'"):
            build_case(model, pages[:1], exposure, seed=0)
    save_file({**recorded, "other.weight": torch.ones(2)}, file)
    with pytest.raises(GradientError, match=r"other\.weight: the model has no such"):
        build_case(model, pages[:1], replace(exposure, stages=("vision",)), seed=0)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_gradient_that_was_recorded_in_half_precision_is_rounded_and_no_other(
    model: DocumentModel, pages: list[Page], recorded: dict[str, torch.Tensor], tmp_path: Path, kind: torch.dtype
) -> None:
    file = tmp_path / "update.safetensors"
    save_file({name: value.to(kind) for name, value in recorded.items()}, file)
    case, other = (build_case(model, [p], Exposure(gradient_file=str(file)), seed=0) for p in pages[:2])
    assert self_test(case.clean, case.pixels, case.inputs).passed
    assert not self_test(other.clean, other.pixels, other.inputs).passed


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x10\x00\x00\x00\x00\x00\x00\x00{}", None])
def test_a_file_that_is_no_gradient(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "update.safetensors"
    if content is None:
        said = "there is no gradient file"
    else:
        file.write_bytes(content)
        said = "is not a safetensors file"
    with pytest.raises(GradientError) as caught:
        read_gradient(file)
    assert said in str(caught.value) and str(file) in str(caught.value)


def test_a_truncated_gradient(recorded: dict[str, torch.Tensor], tmp_path: Path) -> None:
    file = tmp_path / "update.safetensors"
    save_file(recorded, file)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(GradientError, match="is not a safetensors file"):
        read_gradient(file)


def test_the_blank_page_of_a_templates_owner_has_no_repeat_of_a_private_word() -> None:
    texts = ("Name", "Schmidt", "Dear", "Schmidt", "thanks")
    words = tuple(Word(text, (1 + 40 * i, 1, 38 + 40 * i, 12)) for i, text in enumerate(texts))
    page = Page("p", np.full((20, 210, 3), 255, np.uint8), words, (Field("name", "Schmidt", (1,)),))
    assert [word.text for word in blank_page(page).words] == ["Name", "Dear", "thanks"]


@pytest.mark.parametrize(("defense", "whole"), [("none", True), ("clip:norm=0.1", True), ("noise:sigma=0.01", False)])
def test_what_the_true_page_explains_is_told_where_it_is_not_all(
    defense: str, whole: bool, model: DocumentModel, pages: list[Page]
) -> None:
    told = of_truth(build_case(model, pages[:1], Exposure(defense=defense), seed=0))
    assert (told == {}) is whole and all(share < 0.5 for share in told.values())


def test_noise_that_nobody_announces_is_told_by_it_too(model: DocumentModel, pages: list[Page]) -> None:
    case = build_case(model, pages[:1], Exposure(), seed=0)
    noisy = {name: value + 10 * value.abs().max() for name, value in case.view.gradient.items()}
    told = of_truth(replace(case, view=replace(case.view, gradient=noisy)))
    assert told["of_truth"] < 0.99 and told["noise"] == 0
