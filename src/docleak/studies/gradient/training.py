"""The pages that an audited model is trained on here, before the attacked gradient and between rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from docleak.documents import Page, Question, load_pages
from docleak.documents.loaders import SYNTHETIC
from docleak.documents.synthetic import make_pages
from docleak.errors import DocumentError
from docleak.models import DocumentModel
from docleak.studies.gradient.config import GradientConfig


@dataclass(frozen=True)
class TrainingPages:
    """Pages of ``documents`` that are of no document among the first ``attacked`` with private fields, which are what
    is attacked; synthetic ones are others. ``seed`` is the audit's, ``image_size`` that of the audited model."""

    documents: str
    attacked: int
    seed: int
    image_size: tuple[int, int] | None

    @classmethod
    def of(cls, config: GradientConfig) -> TrainingPages:
        """Those of an audit."""
        return cls(config.documents, config.pages + config.batch_size - 1, config.seed, config.image_size)

    @property
    def said(self) -> str:
        """In words."""
        if self.documents == SYNTHETIC:
            return "other synthetic pages"
        return f"the other pages of {self.documents}, none of a document that is attacked"

    def first(self, model: DocumentModel, count: int, seed: int) -> Sequence[Page]:
        """The first ``count`` at most, each with a question at least, synthetic ones made with ``seed``; DocumentError
        where there is none."""
        if self.documents == SYNTHETIC:
            return make_pages(count, seed=seed, size=model.image_size, split="train")
        pages = list(islice(self._others(), count))
        if not pages:
            raise DocumentError(
                f"{self.documents!r} has no page to train on beside the {self.attacked} that are attacked: a training "
                "before the gradient, or between rounds, takes other documents with questions or private fields. Give "
                "more documents, or attack fewer (--pages)."
            )
        return pages

    def _others(self) -> Iterator[Page]:
        source = load_pages(self.documents, seed=self.seed)
        with_fields = (page.document for page in source if page.private_fields)
        attacked = set(islice(with_fields, self.attacked))
        return (asked for page in source if page.document not in attacked and (asked := _asked(page)).questions)


def _asked(page: Page) -> Page:
    """The page with those of its questions that have an answer; without any, with one of each private field."""
    questions = tuple(q for q in page.questions if q.answers and q.answers[0].strip())
    made = tuple(Question(f"What is the {f.key.replace('_', ' ')}?", (f.value,), f.key) for f in page.private_fields)
    return replace(page, questions=questions or made)
