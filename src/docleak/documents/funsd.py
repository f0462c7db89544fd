"""FUNSD: noisy scanned forms whose entities (question, answer, header, other) are linked to each other.

Layout: ``dataset/{training_data,testing_data}/{images/*.png, annotations/*.json}``; see
Jaume et al. (2019), "FUNSD: A Dataset for Form Understanding in Noisy Scanned Documents".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from docleak.documents import page as nouns
from docleak.documents.files import (
    describe_folder,
    first_folder,
    images_by_stem,
    paired,
    raise_faults,
    read_json,
    require_split,
    to_box,
)
from docleak.documents.page import Field, Question, Word, fault_list
from docleak.documents.pages import LazyPages, PageEntry, at_most, entry_of, gathered
from docleak.errors import DocumentError

#: Folder of each official split.
SPLITS = {"train": "training_data", "test": "testing_data"}
PARTS = ("images", "annotations")

#: Key of an answer whose questions have no text.
UNNAMED = "unnamed"


@dataclass(frozen=True)
class Entity:
    """A block of the form: its words without the empty ones, its label, the entities it is linked with."""

    id: int
    label: str
    words: tuple[Word, ...]
    links: tuple[tuple[int, int], ...]

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


def find_roots(path: Path) -> dict[str, Path]:
    """The folders with images/ and annotations/, by split: below ``path`` or its ``dataset``, or "" and ``path``."""
    if first_folder([path], PARTS):
        return {"": path}
    there = {split: first_folder([path / name, path / "dataset" / name], PARTS) for split, name in SPLITS.items()}
    return {split: root for split, root in there.items() if root is not None}


def splits(path: Path) -> tuple[str, ...]:
    """The official splits at ``path``."""
    return tuple(split for split in find_roots(path) if split)


def load(path: Path, *, limit: int | None = None, split: str | None = None) -> LazyPages:
    """Forms of a split, or of both: in order of split (train, then test) and file name.

    Each answer that is linked to a question becomes a private field whose key is the question's text (several
    questions, as for a cell of a table, are joined by ", "). The forms do not say who issued them: no provider.
    Annotations are read at once, images on access. Raises DocumentError, listing every fault of the data set.
    """
    roots = find_roots(path)
    if not roots:
        raise DocumentError(
            f"{path} {describe_folder(path)}; expected FUNSD's dataset folder with training_data/ or testing_data/, "
            "each with images/ and annotations/. Unpack the data set and give that path."
        )
    if split is not None:
        require_split(path, split, splits(path))
        roots = {split: roots[split]}
    faults: list[str] = []
    entries: list[PageEntry] = []
    skipped = 0
    for annotation, image in at_most(_forms(roots.values(), faults), limit):
        try:
            entry, empty = _entry(annotation, image)
        except DocumentError as error:
            faults.append(str(error))
            continue
        entries.append(entry)
        skipped += empty
    raise_faults(path, faults, "Restore these files from the data set, or remove the forms from both folders.")
    if not entries:
        raise DocumentError(f"{path}: images/ and annotations/ are empty. Unpack the data set again.")
    notes = [f"{skipped} words without text were left out"] if skipped else []
    return LazyPages(path, entries, notes=notes)


def _forms(roots: Iterable[Path], faults: list[str]) -> list[tuple[Path, Path]]:
    """Annotation file and image of each form; forms that lack either are added to ``faults``."""
    forms: list[tuple[Path, Path]] = []
    for root in roots:
        images = images_by_stem(root / "images")
        annotations = {p.stem: p for p in (root / "annotations").glob("*.json")}
        stems, incomplete = paired({"images": images, "annotations": annotations})
        faults.extend(incomplete)
        forms.extend((annotations[stem], images[stem]) for stem in stems)
    return forms


def _entry(annotation: Path, image: Path) -> tuple[PageEntry, int]:
    """The form, and how many words without text it had."""
    entities, empty = read_entities(annotation)
    words: list[Word] = []
    place: dict[int, tuple[int, ...]] = {}
    for entity in entities:
        place[entity.id] = tuple(range(len(words), len(words) + len(entity.words)))
        words.extend(entity.words)
    fields = linked_fields(entities, place)
    stem = annotation.stem
    kept, links = kept_entities(entities, place)
    entry = entry_of(
        annotation, image, words, name=stem, fields=fields, questions=questions_of(fields), document=stem,
        entities=kept, links=links,
    )  # fmt: skip
    return entry, empty


def linked_fields(entities: Sequence[Entity], place: Mapping[int, tuple[int, ...]]) -> tuple[Field, ...]:
    """One field per answer that has words and is linked to a question, in the order of the entities."""
    by_id = {entity.id: entity for entity in entities}
    asked: dict[int, list[int]] = {}
    for a, b in dict.fromkeys(link for entity in entities for link in entity.links):
        ends = (by_id[a].label, by_id[b].label)
        if ends == ("question", "answer"):
            asked.setdefault(b, []).append(a)
        elif ends == ("answer", "question"):
            asked.setdefault(a, []).append(b)
    fields = []
    for entity in entities:
        questions = [by_id[i].text.rstrip(" :") or by_id[i].text for i in asked.get(entity.id, [])]
        if questions and entity.words:
            key = ", ".join(filter(None, questions)) or UNNAMED
            fields.append(Field(key, entity.text, place[entity.id]))
    return tuple(fields)


def kept_entities(
    entities: Sequence[Entity], place: Mapping[int, tuple[int, ...]]
) -> tuple[tuple[nouns.Entity, ...], tuple[tuple[int, int], ...]]:
    """Entities that have words, and each link between two of them once, by their numbers."""
    number = {entity.id: i for i, entity in enumerate(e for e in entities if e.words)}
    kept = tuple(nouns.Entity(entity.label, place[entity.id]) for entity in entities if entity.words)
    pairs = dict.fromkeys(link for entity in entities for link in entity.links)
    return kept, tuple((number[a], number[b]) for a, b in pairs if a in number and b in number and a != b)


def questions_of(fields: Sequence[Field]) -> tuple[Question, ...]:
    """One question per distinct key; each value found under that key is a right answer."""
    answers = gathered((field.key, field.value) for field in fields)
    return tuple(Question(f"What is {key}?", tuple(dict.fromkeys(a)), key) for key, a in answers.items())


def read_entities(path: Path) -> tuple[list[Entity], int]:
    """The entities of an annotation file, and how many words without text were left out."""
    value = read_json(path)
    form = value.get("form") if isinstance(value, dict) else None
    if not isinstance(form, list):
        raise DocumentError(f'{path}: expected {{"form": [entities]}}. Download the annotation again.')
    entities, faults, empty = [], [], 0
    for number, item in enumerate(form):
        try:
            words = [Word(str(w["text"]).strip(), to_box(w["box"])) for w in item["words"]]
            links = tuple((int(a), int(b)) for a, b in item["linking"])
            kept = tuple(word for word in words if word.text)
            entities.append(Entity(int(item["id"]), str(item["label"]), kept, links))
            empty += len(words) - len(kept)
        except (KeyError, TypeError, ValueError) as error:
            faults.append(f"entity {number}: {type(error).__name__} {error}")
    known = {entity.id for entity in entities}
    faults += [
        f"entity {e.id}: linked to {link}, which does not exist"
        for e in entities
        for link in e.links
        if not known.issuperset(link)
    ]
    if faults:
        raise DocumentError(
            f"{path}: expected entities with id, label, words [{{text, box}}] and linking [[id, id]], found:"
            f"{fault_list(faults)}"
        )
    return entities, empty
