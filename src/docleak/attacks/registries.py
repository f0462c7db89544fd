"""Which attacks there are, one registry per view: what each does and where it is, without importing any.

Updates of several local steps are gradient views with ``local`` steps: they are attacked by the attacks on gradients.
Other packages add attacks as entry points of ``docleak.attacks``, named ``gradients/NAME``, ``pairs/NAME``,
``servers/NAME``, ``weights/NAME``, ``documents/NAME`` or ``answers/NAME``; a NAME alone is one on gradients. A new one
of docleak's own is a file and a line of ``registries.toml``.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from docleak.errors import AttackError
from docleak.registry import Entry, Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from docleak.attacks.answers.attack import AnswersAttack
    from docleak.attacks.answers.documents import DocumentAttack
    from docleak.attacks.gradients import Attack
    from docleak.attacks.pairs import AttackOnPairs
    from docleak.attacks.pairs.text import TextAttack
    from docleak.attacks.pairs.together import ImageAttack
    from docleak.attacks.servers.view import ActiveServer
    from docleak.attacks.weights import Attempt, WeightsAttack

GROUP = "docleak.attacks"
_PROTOCOL = "docleak.attacks.protocol:Attack"
_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _entries(table: str) -> dict[str, Entry]:
    return {name: Entry(f"docleak.attacks.{where}", *told) for name, (where, *told) in _TABLES[table].items()}


ATTACKS: Registry[Attack] = Registry(
    "attack", AttackError, _entries("gradients"), protocol=_PROTOCOL, group=GROUP, view="gradients", default=True
)
SERVERS: Registry[ActiveServer] = Registry(
    "server",
    AttackError,
    _entries("servers"),
    protocol="docleak.attacks.servers.view:ActiveServer",
    group=GROUP,
    view="servers",
)
PAIRS: Registry[AttackOnPairs] = Registry(
    "pair attack", AttackError, _entries("pairs"), protocol=_PROTOCOL, group=GROUP, view="pairs"
)
#: What an attack on pairs may be made of, beside the optimisations among ATTACKS.
IMAGES: Registry[ImageAttack] = Registry(
    "image attack", AttackError, _entries("images"), protocol="docleak.attacks.pairs.together:ImageAttack"
)
TEXTS: Registry[TextAttack] = Registry("text attack", AttackError, _entries("texts"), protocol=_PROTOCOL)
WEIGHTS: Registry[WeightsAttack] = Registry(
    "attack on weights",
    AttackError,
    _entries("weights"),
    protocol="docleak.attacks.weights.cdmi:WeightsAttack",
    group=GROUP,
    view="weights",
)
#: What a field's attempts are chosen and the fields sorted by: the greater, the likelier was the field trained on.
METRICS: Registry[Callable[[Attempt], float]] = Registry("membership metric", AttackError, _entries("metrics"))
#: What documents are sorted by: the greater, the likelier was one trained on.
DOCUMENTS: Registry[DocumentAttack] = Registry(
    "attack on documents",
    AttackError,
    _entries("documents"),
    protocol="docleak.attacks.answers.documents:DocumentAttack",
    group=GROUP,
    view="documents",
)
ANSWERS: Registry[AnswersAttack] = Registry(
    "attack on answers",
    AttackError,
    _entries("answers"),
    protocol="docleak.attacks.answers.attack:AnswersAttack",
    group=GROUP,
    view="answers",
)
