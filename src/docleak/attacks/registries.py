"""Which attacks there are, one registry per view: what each does and where it is, without importing any.

Updates of several local steps are gradient views with ``local`` steps: they are attacked by the attacks on gradients.
Other packages add attacks as entry points of ``docleak.attacks``, named ``gradients/NAME``, ``pairs/NAME``,
``servers/NAME``, ``weights/NAME``, ``documents/NAME`` or ``answers/NAME``; a NAME alone is one on gradients. A new one
of docleak's own is a file and a line of ``registries.toml``.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docleak.errors import AttackError
from docleak.registry import MARKS, Entry, Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from docleak.attacks.answers.attack import AnswersAttack
    from docleak.attacks.answers.documents import DocumentAttack
    from docleak.attacks.gradients import Attack
    from docleak.attacks.pairs import AttackOnPairs
    from docleak.attacks.pairs.span import SpanText
    from docleak.attacks.pairs.text import TextAttack
    from docleak.attacks.pairs.together import ImageAttack
    from docleak.attacks.servers.view import ActiveServer
    from docleak.attacks.weights import Attempt, WeightsAttack

GROUP = "docleak.attacks"
_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _registry(noun: str, table: str, protocol: str = "", **how: Any) -> Registry[Any]:
    """The entries of ``table``, by which name other packages add to them too where ``how`` names their group."""
    entries = {name: Entry(f"docleak.attacks.{where}", *told) for name, (where, *told) in _TABLES[table].items()}
    return Registry(noun, AttackError, entries, protocol and f"docleak.attacks.{protocol}", view=table, **how)


ATTACKS: Registry[Attack] = _registry("attack", "gradients", "protocol:Attack", group=GROUP, default=True)
SERVERS: Registry[ActiveServer] = _registry("server", "servers", "servers.view:ActiveServer", group=GROUP)
PAIRS: Registry[AttackOnPairs] = _registry("pair attack", "pairs", "protocol:Attack", group=GROUP)
#: What an attack on pairs may be made of, beside the optimisations among ATTACKS.
IMAGES: Registry[ImageAttack] = _registry("image attack", "images", "pairs.together:ImageAttack")
TEXTS: Registry[TextAttack | SpanText] = _registry("text attack", "texts", "protocol:Attack")
WEIGHTS: Registry[WeightsAttack] = _registry("attack on weights", "weights", "weights.cdmi:WeightsAttack", group=GROUP)
#: What a field's attempts are chosen and the fields sorted by: the greater, the likelier was the field trained on.
METRICS: Registry[Callable[[Attempt], float]] = _registry("membership metric", "metrics")
#: What documents are sorted by: the greater, the likelier was one trained on.
DOCUMENTS: Registry[DocumentAttack] = _registry(
    "attack on documents", "documents", "answers.documents:DocumentAttack", group=GROUP
)
ANSWERS: Registry[AnswersAttack] = _registry(
    "attack on answers", "answers", "answers.attack:AnswersAttack", group=GROUP
)


def misnamed() -> list[str]:
    """A sentence for each entry point of GROUP that nothing takes: its name begins with no view, or cannot be said."""
    views = [known.view for known in (ATTACKS, SERVERS, PAIRS, WEIGHTS, DOCUMENTS, ANSWERS)]
    expected = ", ".join(f"{view}/NAME" for view in views)
    said = []
    for point in entry_points(group=GROUP):
        if "/" in point.name and point.name.rpartition("/")[0] not in views:
            said.append(f"entry point {point.name!r} of group {GROUP} is not used; expected {expected}")
        elif any(mark in point.name for mark in MARKS):
            said.append(
                f"entry point {point.name!r} of group {GROUP} is not used; its name holds one of {' '.join(MARKS)}"
            )
    return said
