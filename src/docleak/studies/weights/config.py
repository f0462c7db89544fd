"""One game on weights: which target and public model, trained here or finished, which fields, and the attack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from docleak.attacks.weights import DEFAULT_METRIC, METRICS, WEIGHTS, CdmiConfig, WeightsAttack
from docleak.documents.ranges import COUNT, SEED, Range, short
from docleak.documents.typed import typed
from docleak.errors import AttackError, refuse, those
from docleak.metrics.extraction import EPSILON
from docleak.models.encoders.tasks import TASKS, Task
from docleak.models.encoders.vision import VisionConfig
from docleak.models.sizes import parse_size
from docleak.options import Need, only, option, said_idle
from docleak.registry import Choice, raised
from docleak.training.extraction.fit import FitConfig
from docleak.training.extraction.kept import BEST, Data, Division, Fitting
from docleak.training.extraction.private import PrivateFit

#: Added to the seed of a control, which is no second copy of the public model.
CONTROL = 500_000
#: IpF's largest epsilon. With a larger one a tenth of the fields read whole, of which public data tell none, and
#: nothing else gained, would be a factor below the verdict's 1.5, so that "nothing found" could be said.
MOST_EPSILON = 0.05
WHOLE = ("pages", "fields", "first", "seed", "max_tokens", "keep_every", "copies")

#: Panels of help.
PAGES, TRAINED = "Pages", "Training"
SEES = Need(lambda config: config.bimodal and not config.target, "--bimodal")
HERE = Need(lambda config: not config.target, "a target that is trained here, without --target")


def trainings(task: Task, *, epochs: int, learning_rate: float) -> tuple[FitConfig, FitConfig]:
    """The tiny models' trainings of target and public model: "mlm" needs twice the epochs, as in the paper."""
    longer = epochs or (150 if task == "mlm" else 75)
    public = FitConfig(epochs=100, learning_rate=learning_rate, validate_every=5)
    return FitConfig(epochs=longer, learning_rate=learning_rate, validate_every=5), public


def with_trainings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A game's settings by name, of which epochs, of the target, and learning_rate, of both models, become the two
    trainings, as those options of the command line do; unless one of the trainings is given itself. AttackError for
    epochs beside a finished target, which they would not change."""
    if "epochs" in settings and settings.get("target"):
        raise AttackError(said_idle(["epochs"], HERE.what))
    asked = {name: settings[name] for name in ("epochs", "learning_rate") if name in settings}
    if not asked or {"target_training", "public_training"} & settings.keys():
        return dict(settings)
    others = {name: value for name, value in settings.items() if name not in asked}
    how = {"epochs": 0, "learning_rate": 1e-3} | typed(FitConfig, asked, what="the study 'weights'")
    target, public = trainings(settings.get("task", "mlm"), **how)
    return {**others, "target_training": target, "public_training": public}


@dataclass(frozen=True)
class Tuning:
    """Settings sought on the targets of ``model`` (``studies.weights.tuning``): over so many ``fields`` (0: those of
    the game), ``most`` settings (0: all)."""

    model: str
    fields: int = 0
    most: int = 0


@dataclass(frozen=True)
class WeightsConfig:
    """Everything that a game's numbers depend on.

    The target is trained here, from ``model`` on the private part of ``documents`` (``pages`` of 0 are all of them), or
    it is the user's finished ``target``, which was trained on all of them, or ``trained``, a game's models that docleak
    ships. The public model starts from ``model`` too (with a finished target "" is the shipped one of its vocabulary);
    its pages are the public part of ``documents``, or of ``public_documents`` (with a finished target: all of them) but
    for those that ``public_without`` leaves out.

    ``criterion`` says which checkpoint is published: precision, loss, last or epoch-N. Of the private fields, drawn in
    one order, ``fields`` (0: all) of 3 to 15 tokens are attacked from number ``first`` on; ``draw_apart`` draws the
    order from a stream of its own, and not behind the division's. ``control`` trains the target on the public pages,
    so that it never saw the fields. ``repeats`` also masks the places where the page prints the value again, of which
    the paper says nothing. ``noise`` puts Gaussian noise in the place of the pictures. ``tuning`` seeks the settings.
    ``shadow`` is the game that the adversary can play by itself, on its public pages; ``calibrate`` plays it beside
    this one, to say how sure it can be.

    Defences, of the target alone: ``answers_only`` hides its confidences, ``deduplicate`` takes near-duplicates out of
    its pages, of which ``copies`` puts some in, ``private`` trains it with differential privacy.
    """

    documents: str = option(
        "synthetic", "The private pages: synthetic, a folder, or FORMAT:PATH (docleak data list).", group=PAGES
    )
    pages: int = option(120, "Pages of the data set; 0: all.", group=PAGES, range=COUNT, need=HERE)
    model: str = option(
        "layoutlm-tiny", "Backbone that both models start from: layoutlm-tiny, bros-tiny, bert-tiny, a directory or "
        "hub name. With --target: that of the public model (without it, the shipped one of its vocabulary).",
        group=TRAINED,
    )  # fmt: skip
    target: str = option("", "A finished extraction model to attack: a directory or hub name, head included.")
    trained: str = ""
    public_documents: str = option(
        "", "Pages like the private ones that the target was not trained on. Without it: the others of --documents.",
        group=PAGES,
    )  # fmt: skip
    public_without: tuple[tuple[str, str], ...] = ()
    task: Task = option(
        "mlm", "mlm, ee-bio, ee-spade, el, qa or classify: what the target is trained for.", group=TRAINED, need=HERE
    )
    bimodal: bool = option(False, "The models also see the picture.", group=TRAINED, need=HERE)
    image_size: tuple[int, int] = option(
        VisionConfig.size, "Pixels of the picture that bimodal models see.", group=TRAINED, metavar="WxH",
        read=parse_size, need=SEES,
    )  # fmt: skip
    resnet: str = option(
        "", "A pretrained ResNet (a directory or hub name, such as microsoft/resnet-50) whose features of the picture "
        "bimodal models see. Without it: three small convolutions from random weights.", group=TRAINED, need=SEES,
    )  # fmt: skip
    criterion: str = option(
        "precision", "Attack the epoch with the best validation accuracy (precision) or loss, or the last.",
        group=TRAINED, need=HERE,
    )  # fmt: skip
    fields: int = option(100, "Private fields to attack, drawn at random; 0: all.", range=COUNT)
    first: int = 0
    draw_apart: bool = False
    attempts: int = option(8, "Reconstructions per field; the first is the one-shot variant.", range=Range(1, 10_000))
    metric: Choice = option(
        DEFAULT_METRIC, "What a field's attempts are chosen and the fields sorted by: weakest-token (ours), or the "
        "paper's raw-perplexity, perplexity-ratio, raw-and-ratio, max-gap, max-ratio; or your own, as MODULE:OBJECT.",
    )  # fmt: skip
    ipf_epsilon: float = option(
        EPSILON, "Epsilon of the improvement factor IpF, which bounds it where public data alone read no field.",
        range=Range(0, MOST_EPSILON, above=True),
    )  # fmt: skip
    control: bool = option(False, "The target never sees the private pages.", group=TRAINED, need=HERE)
    repeats: bool = option(False, "Also mask where the page prints the value again.")
    noise: bool = False
    validation: float = 0.16
    public_validation: float = 0.16
    seed: int = option(0, "Seed of pages, division, training and draws.", range=SEED)
    attack: WeightsAttack = option(
        CdmiConfig(), "cdmi (the paper's algorithm 2), cdmi-strong (another order, a beam, the field's own loss; equal "
        "calls), with options such as cdmi:candidates=64,top_p=0.2, or one of your own: MODULE:OBJECT.",
    )  # fmt: skip
    target_training: FitConfig = field(
        default=trainings("mlm", epochs=0, learning_rate=1e-3)[0], metadata=only("epochs", "learning_rate")
    )
    public_training: FitConfig = field(default=trainings("mlm", epochs=0, learning_rate=1e-3)[1], metadata=only())
    keep_every: int = 0
    dropout: float = -1.0
    max_tokens: int = 0
    answers_only: bool = False
    copies: int = 0
    deduplicate: bool = False
    private: PrivateFit | None = None
    tuning: Tuning | None = None
    shadow: bool = False
    calibrate: bool = option(
        True,
        "Do not state how probably each reading is right, which is learnt on public pages and takes as long again.",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "attack", WEIGHTS.load(self.attack))
        faults = [f"{key} is {getattr(self, key)}, expected 0 or more" for key in WHOLE if getattr(self, key) < 0]
        faults += those(
            (self.attempts < 1 or self.dropout >= 1,
             f"attempts is {self.attempts} and dropout {self.dropout}; expected 1 or more, and below 1"),
            (self.resnet and not self.bimodal,
             f"resnet is {self.resnet!r}, and models that are not bimodal see no picture"),
            (not 0 < self.ipf_epsilon <= MOST_EPSILON,
             f"ipf_epsilon is {self.ipf_epsilon}, expected above 0 and up to {MOST_EPSILON}: it is added to all means "
             "of which IpF takes the ratios, and a larger one hides a leak"),
        )  # fmt: skip
        try:
            object.__setattr__(self, "metric", METRICS.chosen(self.metric))
        except AttackError as fault:
            faults.append(f"metric is {short(self.metric)}: {str(fault).removesuffix('.')}")
        if self.task not in TASKS:
            faults.append(f"task is {self.task!r}, expected one of {', '.join(TASKS)}")
        faults += self._attack_faults()
        kept = self.criterion.removeprefix("epoch-")
        if self.criterion not in (*BEST, "last") and not (kept.isdigit() and kept != self.criterion):
            faults.append(f"criterion is {self.criterion!r}, expected one of precision, loss, last, epoch-N")
        elif kept.isdigit() and (not self.keep_every or int(kept) % self.keep_every):
            faults.append(f"{self.criterion} is not kept: keep_every is {self.keep_every}")
        every = self.target_training.validate_every
        faults += those(
            (self.keep_every % every,
             f"keep_every is {self.keep_every}, expected a multiple of validate_every {every}"),
            (self.target_training.patch and (self.task != "mlm" or not self.bimodal or self.private),
             "patch hides in the picture what a bimodal model is to guess of masked tokens, without privacy; "
             f"task is {self.task}, bimodal is {self.bimodal}"),
            (self.private and (self.copies or self.deduplicate),
             "copies, deduplicate: which pages are copied or left out depends on other pages, and copies count as "
             "documents of their own; neither is covered by an epsilon"),
            (self.target and not (self.documents and self.public_documents),
             "of a finished target its private pages and public pages must be named: --documents and "
             "--public-documents"),
            (self.target and self.model and Path(self.model).resolve() == Path(self.target).resolve(),
             f"model and target are both {self.target!r}: the public model would begin with what the target knows; "
             "expected a model that never saw the private pages"),
            (self.target and self.documents == self.public_documents,
             f"private and public pages are both {self.documents!r}; expected pages that the model was trained on, "
             "and others that it was not"),
        )  # fmt: skip
        refuse(AttackError, faults, "the game cannot be set up: ")

    def _attack_faults(self) -> list[str]:
        """Of an attack that never looks at the target, and of settings that are for other tasks."""
        attack, faults = self.attack, []
        try:
            baseline: object = attack.baseline()
        except Exception as fault:  # whatever the code of one of one's own raises
            return [f"attack {attack.name}: its baseline cannot be asked for ({raised(fault)})"]
        if not isinstance(baseline, WeightsAttack):
            return [
                f"attack {attack.name}: its baseline is a {type(baseline).__name__}, expected an attack on weights "
                "that never looks at the target: what comes back without it is no leak"
            ]
        if attack == baseline:
            faults.append(
                f"attack {attack.name} is its own baseline, public data alone: it never looks at the target, so that "
                "it would find nothing whatever the weights tell"
            )
        if isinstance(attack, CdmiConfig) and self.task == "mlm" and not self.target:
            idle = [name for name in ("weight", "mean") if getattr(attack, name) != getattr(CdmiConfig(), name)]
            if idle and attack.weight:
                faults.append(
                    f"attack cdmi is given {' and '.join(idle)}, for a target whose loss is asked: one trained for mlm "
                    "guesses tokens itself, and is read without (section 4.3). Leave it out, or take another --task"
                )
        return faults

    @property
    def _vision(self) -> VisionConfig | None:
        return VisionConfig(self.image_size, resnet=self.resnet) if self.bimodal else None

    def data(self) -> Data:
        """The documents that are attacked."""
        division: Division = "private" if self.target else "shadow" if self.shadow else "game"
        return Data(self.documents, self.pages, self.validation, self.seed, division)

    def public_data(self) -> Data:
        """The documents of which the adversary has the public part."""
        if not self.public_documents:
            return self.data()
        division: Division = "public" if self.target else "game"
        return Data(self.public_documents, self.pages, self.public_validation, self.seed, division)

    def target_fitting(self) -> Fitting:
        """The model that is attacked, where it is trained here."""
        part: Literal["private", "public"] = "public" if self.control else "private"
        return Fitting(
            part, self.model, self.data(), self.task, self._vision, self.target_training,
            self.seed + CONTROL * self.control, self.keep_every, self.dropout, self.max_tokens, (), self.copies,
            self.deduplicate, self.private,
        )  # fmt: skip

    def public_fitting(self) -> Fitting:
        """The adversary's masked language model, where the target is trained here."""
        return Fitting(
            "public", self.model, self.public_data(), "mlm", self._vision, self.public_training, self.seed, 0,
            self.dropout, self.max_tokens, self.public_without,
        )  # fmt: skip

    def shadow_game(self, task: Task, *, start: str, bimodal: bool) -> WeightsConfig:
        """The game that the adversary can play by itself: its public pages only, trained like the target. ``task``,
        ``start`` and ``bimodal`` say what a finished target was trained for, and what one like it starts from."""
        if not self.target:
            alone = replace(self, shadow=True, control=False, trained="")
            if not self.public_documents:
                return alone
            return replace(
                alone, documents=self.public_documents, public_documents="", validation=self.public_validation
            )
        training, _ = trainings(task, epochs=0, learning_rate=self.public_training.learning_rate)
        return replace(
            self, documents=self.public_documents, public_documents="", model=start, target="", task=task,
            bimodal=bimodal, target_training=training,
        )  # fmt: skip
