"""What is audited of a client's gradient, under which exposure, and what is compared of defences; the threat model in
words a report can print. Nothing that computes is imported before it is asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from docleak.attacks.registries import ATTACKS
from docleak.defenses.registry import DEFENSES
from docleak.documents.ranges import BATCH_SIZE, BUDGET, SEED, SOME, Range
from docleak.errors import AttackError
from docleak.models.sizes import parse_size
from docleak.models.stages import STAGES, Stage
from docleak.options import Option, only, option
from docleak.registry import Choice
from docleak.spec import counted_words, split_name

#: Tried by itself wherever it applies: linear algebra, which costs next to nothing where it determines the page.
CLOSED_FORM = "closed-form"
#: What stands for the picture of a model that no attack applies to: it sees no gradient.
FLOOR = "random"
#: What stands for no defence, and those that are compared where none is named.
NONE = "none"
COMPARED = ("noise:sigma=1e-4", "clip:norm=0.1", "top-k:share=0.01", "freeze", "safe-template:epsilon=8/255")
#: Gradient evaluations with which every attack of docleak's can begin as it is, in one round.
ENOUGH = 20
#: Pixels a side of a page may have; more is a slip of the keyboard.
LONGEST_SIDE = 10_000
#: Panels of help.
CLIENT, ADVERSARY = "What the client does", "What the adversary knows"


def parse_stage(name: str) -> Stage:
    """A stage by its name; AttackError names the known ones."""
    for stage in STAGES:
        if name == stage:
            return stage
    raise AttackError(f"unknown stage {name}; expected some of {', '.join(STAGES)}.")


@dataclass(frozen=True)
class Exposure:
    """How the client trained and what of it the server receives and knows.

    With ``random_text`` the client itself trains on random tokens, which the adversary knows (GI-DQA Table 3, last
    row). With ``recover_text`` the adversary reads the text side out of the gradient before it looks for pixels.
    ``defense`` is a name with options, an object, or ``"module:class"`` of your own. With ``clean_template`` the
    adversary, who knows of Safe Template, takes perturbations off the published template first
    (``attacks.gradients.cleaning``).
    """

    train_mode: bool = option(False, "The client computes its gradient with dropout on.", group=CLIENT)
    stages: tuple[Stage, ...] = option(
        (), "Only these parameters are sent: vision,text,fusion,output. Without it all of them.", group=CLIENT,
        read=parse_stage,
    )  # fmt: skip
    question_known: bool = option(True, "The adversary does not know the question.", "--no-question", ADVERSARY)
    answer_known: bool = option(True, "The adversary does not know the answer.", "--no-answer", ADVERSARY)
    gradient_file: str | None = option(
        None, "A client's recorded gradient (.safetensors) instead of one computed here.", "--gradient", CLIENT
    )
    random_text: bool = False
    recover_text: bool = option(
        False, "The adversary knows no text: it reads question and answer out of the gradient.", group=ADVERSARY
    )
    defense: Choice = option(
        NONE, "What the client or the template's owner does; see docleak defend --list.", group=CLIENT
    )
    clean_template: bool = option(
        False, "The adversary takes perturbations off the published template first.", group=ADVERSARY
    )

    def __post_init__(self) -> None:
        if self.defense != NONE:
            object.__setattr__(self, "defense", DEFENSES.chosen(self.defense))
        if self.recover_text:  # knows no text at all, whatever else is said of question and answer
            object.__setattr__(self, "question_known", False)
            object.__setattr__(self, "answer_known", False)


@dataclass(frozen=True)
class GradientConfig:
    """What is audited. Everything that changes a number is here, and nothing else.

    ``attacks`` are names, objects, or ``"module:object"`` of your own (``docleak.registry``).
    """

    models: tuple[str, ...] = option(
        ("donut-start", "donut-trained", "layoutlmv3-start", "layoutlmv3-trained"),
        "Shipped name, directory, hub name (owner/model) or hub name at a revision (owner/model@v1.0). Repeat for "
        "several.", "--model", repeat=True,
    )  # fmt: skip
    documents: str = option(
        "synthetic", "synthetic, or pages of your own: a folder, or FORMAT:PATH (docleak data list)."
    )
    pages: int = option(1, "How many pages to attack, each on its own.", range=SOME)
    attacks: tuple[Choice, ...] = option(
        ("gi-dqa", "april", "inverting-gradients", "dlg", "random", CLOSED_FORM),
        "Comma-separated; see docleak attack --list. closed-form is tried beside them where it applies.",
    )
    budget: int = option(100, "Gradient evaluations per attack and page, the same for all attacks.", range=BUDGET)
    seed: int = option(5, "Seed of pages, starts and draws, and of what a checkpoint does not bring.", range=SEED)
    batch_size: int = option(
        1, "Pages averaged into the client's gradient; the first is the target.", group=CLIENT, range=BATCH_SIZE
    )
    exposure: Exposure = field(default_factory=Exposure)
    ocr: str = option("rapidocr", "Engine that reads the pictures: rapidocr, tesseract, trocr:PATH.")
    fine_tune_steps: int = 0  # training steps on other pages before the client's gradient is taken (see models.py)
    image_size: tuple[int, int] | None = option(
        None, "Run the model on pages of this size in pixels, for instance 320x608 (Donut only). Without it: its own.",
        metavar="WxH", read=parse_size,
    )  # fmt: skip
    rounds: int = option(
        1, "Rounds in which the client sends a gradient of the same batch, ten training steps apart.", group=CLIENT,
        range=SOME,
    )  # fmt: skip
    round_steps: int = 10  # training steps on other pages between two rounds (see models.py)
    allow_failed_self_test: bool = option(False, "Attack although the true page does not match the gradient.")

    def __post_init__(self) -> None:
        plain = bool(self.attacks) and all(map(ATTACKS.plain, self.attacks))
        object.__setattr__(self, "attacks", tuple(self.attacks) if plain else ATTACKS.all_chosen(self.attacks))
        for name in () if plain else self.attacks:
            if name == CLOSED_FORM and not isinstance(ATTACKS.load(name), type(ATTACKS.load(CLOSED_FORM))):
                raise AttackError(
                    f"an attack of your own is called {name!r}, as docleak's, which would be left out for it. "
                    "Give yours another name."
                )
        for what in ("pages", "budget", "batch_size", "rounds", "round_steps"):
            if getattr(self, what) < 1:
                raise AttackError(f"{what} is {getattr(self, what)}; expected at least 1.")
        require_budget(self.attacks, self.budget, rounds=self.rounds)
        if self.fine_tune_steps < 0:
            raise AttackError(f"fine_tune_steps is {self.fine_tune_steps}; expected 0 or more.")
        several = {"model": len(self.models), "page": self.pages, "round": self.rounds}
        if self.exposure.gradient_file and (many := [counted_words(n, what) for what, n in several.items() if n > 1]):
            raise AttackError(
                f"a recorded gradient is of one model, one attacked page and one round; found {', '.join(many)}. Name "
                "the one of each that it is of (--model, --pages 1, --rounds 1)."
            )
        if self.image_size is not None and not all(1 <= side <= LONGEST_SIDE for side in self.image_size):
            raise AttackError(f"image_size is {self.image_size}; expected width and height of 1 to {LONGEST_SIDE}.")


def with_closed_form(attacks: Sequence[str], *, batch_size: int) -> tuple[str, ...]:
    """``attacks``, and behind them the closed form, unless it is among them or the gradient mixes several pages; none
    stay none, which the configuration refuses."""
    named = {split_name(attack)[0] for attack in attacks}
    return (*attacks,) if batch_size > 1 or not named or CLOSED_FORM in named else (*attacks, CLOSED_FORM)


def require_budget(attacks: Sequence[str], budget: int, *, rounds: int = 1, flag: str = "--budget") -> None:
    """AttackError where ``budget`` does not suffice for an attack to begin: its whitening draws come out of it."""
    if budget >= ENOUGH and rounds == 1 and all(map(ATTACKS.plain, attacks)):
        return  # without loading them
    least = {name: least_budget(name, rounds) for name in attacks}
    short = {name: needed for name, needed in least.items() if needed > budget}
    if short:
        named = ", ".join(f"{name} {needed}" for name, needed in short.items())
        raise AttackError(
            f"the budget is {counted_words(budget, 'gradient evaluation')}, which the draws of whitened matching alone "
            f"would spend; expected at least: {named}. Raise {flag}."
        )


def least_budget(name: str, rounds: int) -> int:
    """The fewest gradient evaluations with which the attack of that name can begin."""
    from docleak.attacks.gradients import GradientAttack

    attack = ATTACKS.load(name)
    return attack.least_budget(rounds) if isinstance(attack, GradientAttack) else 1


def threat_model(config: GradientConfig, tagging: Collection[bool] = (False,)) -> dict[str, object]:
    """Who the adversary is, what it sees and knows, what it wants and cannot do; ``tagging``: whether the models tag
    words, and are asked nothing."""
    exposure = config.exposure
    number = "one example" if config.batch_size == 1 else f"a batch of {config.batch_size} pages, averaged"
    parts = f"of the {' and '.join(exposure.stages)} parameters" if exposure.stages else "of every trainable parameter"
    sent = f"one client's gradient {parts}, computed on {number}, "
    weights = "the weights the client started from"
    if config.rounds > 1:
        sent = f"one client's gradients {parts} in {config.rounds} rounds, all computed on {number}, "
        weights = f"the weights of each of these rounds, {config.round_steps} training steps on other pages apart"
    dropout = "in training mode (dropout on)" if exposure.train_mode else "with dropout off"
    template, defended = _defended(exposure)
    return {
        "title": "Honest-but-curious server of a federated training",
        "adversary": "the server (or whoever reads its traffic): it follows the protocol and looks at what it receives",
        "sees": [sent + dropout + defended, weights],
        "knows": [f"the {template} of the page and where its private fields are", *_text_known(config, tagging)],
        "wants": "the private fields' pixels, legible enough for an OCR engine to read",
        "cannot": ["change the model or the protocol", "see any page, or the other clients' data"],
    }


def _defended(exposure: Exposure) -> tuple[str, str]:
    """What the adversary has of the template and, to stand behind what is sent, the defence, of which it knows."""
    if exposure.defense == NONE:
        return "blank template", ""
    from docleak.defenses import TemplateDefense

    defense = DEFENSES.load(exposure.defense)
    told = f"the defence {exposure.defense} ({defense.summary}), which it knows of"
    if not isinstance(defense, TemplateDefense):
        return "blank template", f", sent under {told}"
    cleaned = ", the perturbation taken off again as far as it could" * exposure.clean_template
    return f"template (published under {told}{cleaned})", f"; the defence {exposure.defense} leaves it as it is"


def _text_known(config: GradientConfig, tagging: Collection[bool]) -> list[str]:
    """What the adversary has of the text side before it looks for pixels."""
    exposure = config.exposure
    if exposure.recover_text:
        labels = "no tags" if all(tagging) else "no question, no answer"
        return [
            f"nothing of the text: {labels}, no OCR words; what the attacks use of them was read out of the gradient "
            "first"
        ]
    tags = "the tags of all words" if exposure.answer_known else "no tags: random ones stand in for them"
    asked = [
        "the client's question" if exposure.question_known else "no question: random tokens stand in for it",
        "the answer" if exposure.answer_known else "no answer: random tokens stand in for it",
    ]
    return [
        *([f"of a model that tags words, which is asked nothing, {tags}"] if any(tagging) else []),
        *([] if all(tagging) else asked),
        "for models that read OCR words beside the picture (LayoutLMv3): those words and boxes; there the attack shows "
        "what the picture alone gives away",
    ]


def compared() -> GradientConfig:
    """What is compared where nothing else is asked for: on fewer pages no defence can be told from none."""
    return GradientConfig(models=("layoutlmv3-start",), attacks=("gi-dqa",), pages=5)


@dataclass(frozen=True)
class DefenceConfig:
    """``audit`` has one model and one attack; ``utility_steps`` of training under each defence measure its utility (0:
    none is measured)."""

    audit: GradientConfig = field(
        default_factory=compared, metadata=only(
            "documents", "pages", "budget", "seed", "ocr", "allow_failed_self_test",
            models=Option("Shipped name, directory or hub name of the one model.", "--model"),
            attacks=Option("The one attack that measures them.", "--attack"),
        ),
    )  # fmt: skip
    defenses: tuple[str, ...] = option(
        COMPARED, "Defences such as noise:sigma=1e-4 or safe-template:epsilon=8/255. Without any: one of each.",
        argument=True,
    )  # fmt: skip
    utility_steps: int = option(
        400, "Training steps under each defence; 0 measures no utility.", range=Range(0, 10_000_000)
    )

    def __post_init__(self) -> None:
        if len(self.audit.models) != 1 or len(self.audit.attacks) != 1:
            raise AttackError(
                f"defences are compared on one model by one attack; found {len(self.audit.models)} and "
                f"{len(self.audit.attacks)}."
            )
        chosen = DEFENSES.all_chosen((NONE, *self.defenses))
        object.__setattr__(self, "defenses", tuple(dict.fromkeys(chosen)))
