"""What is asked of released models: which releases, on whose documents, which attacks, and the plan of the attacks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from docleak import spec
from docleak.attacks.registries import ANSWERS
from docleak.documents.ranges import COUNT, SEED, Range
from docleak.errors import AttackError
from docleak.options import Need, option, without_default
from docleak.registry import Choice
from docleak.studies.answers.shipped import RELEASED, SHIPPED
from docleak.studies.answers.targets import NONE, Data, Target

#: What can be measured of a release, and of these what asks no model.
MEASURES = ("gap", "membership", "memorisation", "disclosure", "utility", "noise", "division", "spread", "keys",
            "documents", "fields")  # fmt: skip
WITHOUT_MODEL = MEASURES[5:9]
#: What attacks on membership, and on what a model remembers, measure alone.
MEMBERSHIP, MEMORISATION = ("gap", "membership"), ("memorisation", "disclosure")
#: What is measured of two sets of documents, of which no division says more.
DOCUMENTS = MEASURES[9:]
#: What an audit of a division measures.
AUDITED = MEASURES[:5]
KEYS = ("provider_name", "provider_email", "provider_tax_number", "registration_id")
#: The label of a single release that was given none.
UNNAMED = "released model"
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+(),-]{0,80}")
#: The release that is the public model itself, attacked as a control.
CONTROL = "public model"


@dataclass(frozen=True)
class Release:
    """``source`` is a model as ``load_model`` takes it, or a run directory of docleak train, which also says what was
    sent and what is guaranteed. A ``target`` is trained from it first."""

    label: str
    source: str
    target: Target | None = None

    @property
    def to_train(self) -> Target | None:
        """The target, where it has to be trained."""
        return self.target if self.target is not None and self.target.kind != NONE else None


def parse_release(text: str) -> Release:
    """LABEL=MODEL, or a model alone; AttackError for neither."""
    if "=" not in text:
        return Release(UNNAMED, text)
    return Release(*spec.pair(text, what="--release", expected="LABEL=MODEL, as in 'FL+DP 8=runs/private'",
                              error=AttackError))  # fmt: skip


OF_DIVISION = Need(lambda config: not config.members, "--division, and --members names documents")
OF_DOCUMENTS = Need(lambda config: bool({*DOCUMENTS} & {*config.measures}), "--members and --non-members")


def asks_for_keys(config: AnswersConfig) -> bool:
    """Whether anything hides keys: what a model remembers, or a vote on membership."""
    asked = any(attack.votes for attack in config.attacks) and not config.members
    return bool({*MEMORISATION} & {*config.measures}) or asked


@dataclass(frozen=True)
class AnswersConfig:
    """Defaults of the attacks are those of Tito et al. (2024), sections 5.2.3 and 7.2.

    ``division`` says whose documents the releases saw: a folder, docleak's own ("shipped"), or how one is made.
    ``public`` is the model that they started from, "" if that is unknown; as a ``control`` it is attacked like them.
    Without a division, ``members`` are documents that the releases were trained on and ``non_members`` are not, as
    ``load_pages`` opens them; ``references`` are models that saw neither, beside the public one.
    ``measures`` are some of MEASURES. ``keys`` are those that are hidden and asked for, the first of them for G4, too.
    Membership is attacked by ``attacks`` (names, objects, or "module:object" of your own) over ``minimum`` numbers of
    questions s and so many ``seeds``. Asked is about so many ``providers`` of the division, drawn by the seed; 0: all.
    ``part`` is what the last three measures count: a folder of the division, "training" (all clients), "test-positive"
    or "test-negative" (test documents of members, of others).
    """

    releases: tuple[Release, ...] = field(metadata=without_default(
        "LABEL=MODEL, or MODEL: a directory, hub name, or run directory of docleak train. Repeat to compare. Without "
        "it: docleak's own example.", flag="--release", repeat=True, read=parse_release, optional=True,
    ))  # fmt: skip
    division: str | Data = field(metadata=without_default(
        "Whose documents the releases saw: a folder that `docleak data make OUT --blue-red` wrote.",
        optional=True,
    ))  # fmt: skip
    public: str = option("", "The public model that the releases started from; none: unknown. Without it: that of "
                         "docleak's own example, unknown of others.")  # fmt: skip
    members: str = option("", "Documents that the releases were trained on: a folder or FORMAT:PATH. With "
                          "--non-members instead of --division: was this document trained on?")  # fmt: skip
    non_members: str = option("", "Documents like these that they were not trained on.")
    references: tuple[str, ...] = option((), "Models that saw neither, comma-separated, beside the public one.",
                                         need=OF_DOCUMENTS)  # fmt: skip
    control: bool = True
    measures: tuple[str, ...] = AUDITED
    keys: tuple[str, ...] = option(
        KEYS,
        "Keys to hide and ask for, comma-separated; the first also for the vote.",
        need=Need(asks_for_keys, "attacks that vote"),
    )
    attacks: tuple[Choice, ...] = option(
        tuple(ANSWERS.entries),
        "Attacks on membership, comma-separated: AZK, APK:known=0.3,searched=10, AZK+CLS1+CLS2, ... (known: share "
        "of the providers it is told about; searched: forests that APK compares).",
        need=OF_DIVISION,
    )
    minimum: tuple[int, ...] = option((0, 5, 10), "Providers with more than so many questions; several numbers.",
                                      need=OF_DIVISION)  # fmt: skip
    seeds: int = option(5, "Draws of whom APK knows; results are means.", range=Range(1, 10_000), need=OF_DIVISION)
    providers: int = option(0, "Ask about so many providers, drawn by the seed; 0: all.", range=COUNT, need=OF_DIVISION)
    part: str = ""
    seed: int = option(0, "Seed of data, training and draws.", range=SEED)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attacks", tuple(ANSWERS.load(attack) for attack in self.attacks))
        names = [attack.name for attack in self.attacks]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise AttackError(
                f"two attacks on answers are called {twice[0]!r}, and only one of them would be shown. Leave one out, "
                "or give each a run of its own."
            )
        labels = [release.label for release in self.releases]
        wrong = [label for label in labels if not LABEL.fullmatch(label) or label == CONTROL]
        if not labels or wrong or len(set(labels)) < len(labels):
            raise AttackError(
                f"releases are called {', '.join(map(repr, labels)) or '(none)'}; expected at least one, each with a "
                f"name of its own of letters, digits, spaces and '. _ + - ( ) ,', and none called {CONTROL!r}."
            )
        if bool(self.members) != bool(self.non_members) or (self.members and {*self.measures} - {*DOCUMENTS}):
            raise AttackError(
                "--members and --non-members go together: documents that the releases were trained on, and others that "
                "they were not. They are all that is asked about."
            )
        if self.members == self.non_members == SHIPPED and [one.source for one in self.releases] != [RELEASED]:
            raise AttackError(
                f"of {SHIPPED!r} documents docleak knows whether {RELEASED} saw them, and of no other release. Give "
                "--members and --non-members of your own."
            )
        if unknown := [name for name in self.measures if name not in MEASURES]:
            raise AttackError(f"nothing is called {unknown[0]!r} here; known measures: {', '.join(MEASURES)}.")
        if not self.keys or not self.attacks:
            raise AttackError(f"keys are {self.keys} and attacks {self.attacks}; expected at least one of each.")
        if self.seeds < 1 or self.seed < 0 or not self.minimum or min(self.minimum) < 0:
            raise AttackError(
                f"seeds is {self.seeds}, seed {self.seed} and minimum {self.minimum}; expected at least one seed, and "
                "numbers of 0 or more."
            )
        if self.providers < 0:
            raise AttackError(f"providers is {self.providers}; expected how many to attack, or 0 for all.")
