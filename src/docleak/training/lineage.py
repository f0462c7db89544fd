"""Where a model's lineage lies: in docleak.json beside its weights, bound to them by their hash.

MODEL/docleak.json           "lineage": origin, trainings, and the hash of the weights that it was written for
MODEL/../providers.json      whose data each training saw, as keyed hashes with their key; never beside the weights
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from docleak.errors import PrivacyError
from docleak.files import read_json_object, reported, write_json
from docleak.models.published.made import Adapted, asked_for, base_of
from docleak.models.published.made import folder_of as place_of
from docleak.models.shipped import CHECKPOINTS, SHIPPED, SHIPPED_ENCODERS
from docleak.options import said_idle
from docleak.privacy.lineage import PUBLIC, UNKNOWN, Claim, Fingerprints, Lineage, claim_of, united
from docleak.runs.identity import ADAPTER

CARD, PROVIDERS, KEY = "docleak.json", "providers.json", "lineage"
#: In the card of what was made where a model goes: the digest of its files as they were made.
AS_MADE = "as_made"
#: Files of a model's folder that are, or say, its values.
WEIGHTS = ("*.safetensors", "*.bin", "config.json", ADAPTER)
SYNTHETIC = Lineage(PUBLIC, "synthetic pages that docleak makes")
DRAWN = Lineage(PUBLIC, "weights that docleak draws at random")
ADVICE = "Restore the file, or delete it: the model then counts as one of which nothing is known."


def weights_digest(folder: Path) -> str:
    """SHA-256 over the files of a model that hold its values, with their names; of adapters also over their base's."""
    return _digest_of(*filter(None, (folder, _under_adapters(folder))))


def _digest_of(*places: Path) -> str:
    digest = hashlib.sha256()
    for place in places:
        for file in sorted({file for pattern in WEIGHTS for file in place.glob(pattern)}):
            with file.open("rb") as stream:
                digest.update(f"{file.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def _under_adapters(folder: Path) -> Path | None:
    """The folder of the base on which the adapters in ``folder`` are; None of other models and of a hub's name."""
    return folder_of(base) if (base := _base_named(folder)) else None


def _base_named(folder: Path) -> str:
    if not (folder / ADAPTER).is_file():
        return ""
    said = read_json_object(folder / ADAPTER, error=PrivacyError, advice="Save the adapters again.")
    return str(said.get("base_model_name_or_path") or folder)


def seal(folder: Path) -> None:
    """Write into the card of what was just made in ``folder`` what its files are, so that others show."""
    card = read_json_object(folder / CARD, error=PrivacyError, advice=ADVICE)
    with reported(folder):
        write_json(folder / CARD, {**card, AS_MADE: _digest_of(folder)})


def _not_as_made(source: str) -> str:
    """Why what ``source`` asks for is not what docleak makes of it; "" where it is, or is still to be made."""
    if (asked := asked_for(source)) is None:
        return ""
    base, card = isinstance(asked, Adapted) and _not_as_made(asked.base), place_of(asked) / CARD
    if base or not card.is_file():
        return base or ""
    sealed = read_json_object(card, error=PrivacyError, advice=ADVICE).get(AS_MADE)
    if sealed == _digest_of(card.parent) or (sealed is None and isinstance(asked, Adapted)):
        return ""
    why = (
        "which an older docleak put into the cache folder"
        if sealed is None
        else "whose weights in the cache folder were changed"
    )
    return f"{_name(source)}, {why}: delete it there ({card.parent.name}), and it is made again"


def folder_of(source: str) -> Path | None:
    """The folder of a shipped model or a directory, of adapters to be made their base's; None for a hub name."""
    source = base_of(source)
    if source in SHIPPED or source in SHIPPED_ENCODERS:
        return CHECKPOINTS / source
    path = Path(source).expanduser()
    return path if path.is_dir() else None


def lineage_of(source: str) -> Lineage:
    """The lineage of a shipped name, directory or hub name, or of what is made where a model goes; unknown where
    nothing says what it was trained on.

    PrivacyError for a docleak.json that is damaged. One that was written for other weights keeps its trainings and
    loses its origin: what changed the weights since is not known.
    """
    if why := _not_as_made(source):
        return Lineage(UNKNOWN, why)
    if asked_for(base := base_of(source)) and not isinstance(asked_for(base), Adapted):
        return DRAWN
    folder = folder_of(source)
    if folder is None or not (folder / CARD).is_file():
        return Lineage(UNKNOWN, f"{_name(source)}, which has no lineage in a docleak.json")
    card = read_json_object(folder / CARD, error=PrivacyError, advice=ADVICE)
    if KEY not in card:
        return Lineage(UNKNOWN, f"{_name(source)}, whose docleak.json has no lineage")
    saved = card[KEY]
    if not isinstance(saved, dict) or not isinstance(saved.get("weights"), str):
        raise PrivacyError(f"{folder / CARD}: the lineage is damaged; expected the hash of its weights. {ADVICE}")
    try:
        lineage = Lineage.from_dict({name: value for name, value in saved.items() if name != "weights"})
    except PrivacyError as error:
        raise PrivacyError(f"{folder / CARD}: {error} {ADVICE}") from error
    if saved["weights"] != weights_digest(folder):
        note = f"{_name(source)}, whose weights are not those that its docleak.json was written for"
        return Lineage(UNKNOWN, note, lineage.trainings)
    if why := _not_as_made(_base_named(folder)):
        return Lineage(UNKNOWN, why, lineage.trainings)
    return lineage


def declared_start(start: Lineage) -> Lineage:
    """The lineage of what a training starts from, declared public; PrivacyError where it is recorded already."""
    if start.origin == PUBLIC and not start.trainings:
        raise PrivacyError(said_idle(["--start-is-public"], "a start of which nothing is recorded"))
    return start.declared()


def write_lineage(folder: Path, lineage: Lineage, card: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Put the lineage of the model in ``folder`` into its docleak.json, beside what ``card`` or it says; all."""
    file = folder / CARD
    if card is None:
        card = read_json_object(file, error=PrivacyError, advice=ADVICE) if file.is_file() else {}
    written = {**card, KEY: {**lineage.to_dict(), "weights": weights_digest(folder)}}
    with reported(folder):
        write_json(file, written)
    return written


def fingerprints_of(source: str) -> Fingerprints | None:
    """The fingerprints beside the folder of a model, or None. PrivacyError for a damaged file."""
    folder = folder_of(source)
    return None if folder is None else read_fingerprints(folder.absolute().parent)


def record_of(source: str) -> Fingerprints | None:
    """The fingerprints of those whom the trainings in a model's own lineage were trained on, or None: there are none,
    or its weights are others than its lineage was written for, so that they may be another training's."""
    folder, known = folder_of(source), fingerprints_of(source)
    if folder is None or known is None or not (folder / CARD).is_file():
        return None
    trainings = lineage_of(source).trainings
    hashes = {one.identity: of for one in trainings if (of := known.of(one)) is not None}
    if not hashes:
        return None
    saved = read_json_object(folder / CARD, error=PrivacyError, advice=ADVICE)[KEY]
    return replace(known, hashes=hashes).drawn() if saved["weights"] == weights_digest(folder) else None


def read_fingerprints(run: Path) -> Fingerprints | None:
    """The fingerprints in a run's folder, or None."""
    file = run / PROVIDERS
    if not file.is_file():
        return None
    advice = "Restore the file, or delete it: trainings then count as if they had seen the same providers."
    try:
        return Fingerprints.from_dict(read_json_object(file, error=PrivacyError, advice=advice))
    except PrivacyError as error:
        raise PrivacyError(f"{error} ({file}) {advice}") from error


def write_fingerprints(run: Path, fingerprints: Fingerprints) -> None:
    """Put them into a run's folder, for its owner only."""
    with reported(run):
        write_json(run / PROVIDERS, fingerprints.to_dict())
        (run / PROVIDERS).chmod(0o600)


def drop_fingerprints(run: Path, identity: str) -> None:
    """Forget whose data a training saw: not all of it is known any more."""
    known = read_fingerprints(run)
    if known is not None and identity in known.hashes:
        left = {name: hashes for name, hashes in known.hashes.items() if name != identity}
        write_fingerprints(run, replace(known, hashes=left))


def claim_for(source: str) -> Claim:
    """What holds for a model by its lineage, composed."""
    return claim_of(lineage_of(source), fingerprints_of(source))


def assembled(folder: Path, parts: Sequence[str], *, public: bool) -> Lineage:
    """Give a model that was put together of ``parts`` the union of their lineages, and write it beside its weights.

    ``public``: the user declares parts public of which nothing is known.
    """
    lineages = [lineage_of(part) for part in parts]
    lineage = united([one.declared() if public else one for one in lineages])
    write_lineage(folder, lineage)
    return lineage


def ledger_digest(file: Path) -> str:
    """What ties an entry of the lineage to the ledger it was made of."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _name(source: str) -> str:
    """A source as a claim names it: never a path of this machine."""
    if asked := asked_for(source):
        return repr(asked.short)
    return repr(source.rstrip("/").split("/")[-1] if Path(source).exists() else source)


def keep_fingerprints(run: Path, identity: str, names: Iterable[str], *, start: str) -> None:
    """Put the providers of a training into its run's folder, beside those of the trainings that its start saw.

    The key is the start's, so that one can tell whether the same providers were in both.
    """
    known = read_fingerprints(run) or fingerprints_of(start) or Fingerprints()
    write_fingerprints(run, known.with_names(identity, names))


def keep_idle(run: Path, identity: str, names: Iterable[str]) -> None:
    """Say which providers of a training no round drew, beside those that it may have been trained on."""
    known = read_fingerprints(run)
    if known is not None and identity in known.hashes and known.with_idle(identity, names).drawn() != known.drawn():
        write_fingerprints(run, known.with_idle(identity, names))
