"""Which attacks there are, one registry per view: what each does and where it is, without importing any.

Updates of several local steps are gradient views with ``local`` steps: they are attacked by the attacks on gradients.
Other packages add attacks as entry points of ``docleak.attacks``, named ``gradients/NAME``, ``pairs/NAME``,
``weights/NAME`` or ``answers/NAME``; a NAME alone is one on gradients. A new one of docleak's own is a file and a line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from docleak.errors import AttackError
from docleak.registry import Entry, Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from docleak.attacks.answers.attack import AnswersAttack
    from docleak.attacks.gradients import Attack
    from docleak.attacks.pairs import AttackOnPairs
    from docleak.attacks.pairs.text import TextAttack
    from docleak.attacks.pairs.together import ImageAttack
    from docleak.attacks.weights import Attempt, WeightsAttack

GROUP = "docleak.attacks"
_GRADIENTS, _PAIRS, _WEIGHTS = (f"docleak.attacks.{view}" for view in ("gradients", "pairs", "weights"))
_ANSWERS = "docleak.attacks.answers.attack"
_PROTOCOL = "docleak.attacks.protocol:Attack"

ATTACKS: Registry[Attack] = Registry(
    "attack",
    AttackError,
    {
        "gi-dqa": Entry(
            f"{_GRADIENTS}.gi_dqa:ATTACK",
            "GI-DQA with whitened matching, grey pixels and bounded L-BFGS (default)",
            "Ben Hemo et al. (2025), docleak's solver",
        ),
        "gi-dqa-adam": Entry(
            f"{_GRADIENTS}.gi_dqa:PAPER",
            "the published GI-DQA: squared + cosine per layer, text, Gaussian and TV priors, Adam",
            "Ben Hemo et al. (2025)",
        ),
        "gi-dqa-joint": Entry(
            f"{_GRADIENTS}.gi_dqa_joint:ATTACK",
            "GI-DQA from a start with the known words drawn into their places",
            "docleak, after Ben Hemo et al. (2025)",
        ),
        "words-drawn": Entry(
            f"{_GRADIENTS}.gi_dqa_joint:WORDS",
            "the known words drawn onto the template, no pixel optimised: what the text alone shows",
            "docleak",
        ),
        "april": Entry(
            f"{_GRADIENTS}.april:ATTACK",
            "squared difference plus position-embedding cosine, Adam",
            "Lu et al. (2022)",
        ),
        "inverting-gradients": Entry(
            f"{_GRADIENTS}.inverting_gradients:ATTACK",
            "cosine distance with total variation, signed Adam",
            "Geiping et al. (2020)",
        ),
        "dlg": Entry(f"{_GRADIENTS}.dlg:ATTACK", "squared gradient difference, L-BFGS, no prior", "Zhu et al. (2019)"),
        "idlg": Entry(
            f"{_GRADIENTS}.idlg:ATTACK", "DLG with the label given instead of optimised", "Zhao et al. (2020)"
        ),
        "closed-form": Entry(
            f"{_GRADIENTS}.closed_form:ATTACK",
            "LayoutLMv3's patches, tokens and boxes by linear algebra, no optimisation where that determines them",
            "docleak",
        ),
        "random": Entry(
            f"{_GRADIENTS}.random_guess:ATTACK",
            "random pixels in the private regions, the floor",
            "Ben Hemo et al. (2025), Table 1",
        ),
    },
    protocol=_PROTOCOL,
    group=GROUP,
    view="gradients",
    default=True,
)

PAIRS: Registry[AttackOnPairs] = Registry(
    "pair attack",
    AttackError,
    {
        "mmgia": Entry(
            f"{_PAIRS}.mmgia:ATTACK",
            "both modalities, aligned in a shared space by the quality of each",
            "Zheng et al. (2025)",
        ),
        "mmgia-d": Entry(f"{_PAIRS}.mmgia:DIRECT", "both modalities, aligned directly", "Zheng et al. (2025), eq. 5"),
        "mmgia-prior": Entry(
            f"{_PAIRS}.mmgia:GUIDED",
            "both modalities, alignment as a term of each attack's objective",
            "after Zheng et al. (2025); ours",
        ),
        "mmgia-stage1": Entry(
            f"{_PAIRS}.mmgia:STAGE_1",
            "MMGIA's first stage alone: what the second one must improve on",
            "Zheng et al. (2025), eq. 2-3",
        ),
        "mgis": Entry(
            f"{_PAIRS}.mgis:ATTACK",
            "squared differences on both, the text's class used for the picture",
            "Liu et al. (2024)",
        ),
        "tag": Entry(
            f"{_PAIRS}.mmgia:TAG_ALONE",
            "TAG on the text, DLG on the picture, each alone",
            "Deng et al. (2021); Zhu et al. (2019)",
        ),
        "gifd": Entry(
            f"{_PAIRS}.mmgia:GIFD_ALONE",
            "GIFD on the picture, LAMP on the text, each alone",
            "Fang et al. (2023); Balunović et al. (2022)",
        ),
        "lamp": Entry(
            f"{_PAIRS}.mmgia:LAMP_ALONE",
            "LAMP on the text, Inverting Gradients on the picture, each alone",
            "Balunović et al. (2022); Geiping et al. (2020)",
        ),
    },
    protocol=_PROTOCOL,
    group=GROUP,
    view="pairs",
)

#: What an attack on pairs may be made of, beside the optimisations among ATTACKS.
IMAGES: Registry[ImageAttack] = Registry(
    "image attack",
    AttackError,
    {
        "mmgia-image": Entry(
            f"{_PAIRS}.single:IMAGE",
            "squared L2 distance with total variation, bounded L-BFGS",
            "Zheng et al. (2025), docleak's solver",
        ),
        "mmgia-image-paper": Entry(
            f"{_PAIRS}.single:IMAGE_PAPER",
            "sum of the parameters' L2 distances with total variation, Adam",
            "Zheng et al. (2025), eq. 2",
        ),
        "gifd": Entry(
            f"{_PAIRS}.gifd:GIFD",
            "squared gradient difference over a generator's latent vector, then its inner features",
            "Fang et al. (2023)",
        ),
    },
    protocol=f"{_PAIRS}.together:ImageAttack",
)
TEXTS: Registry[TextAttack] = Registry(
    "text attack",
    AttackError,
    {
        "dlg-text": Entry(
            f"{_PAIRS}.single:DLG", "squared gradient difference on word embeddings", "Zhu et al. (2019)"
        ),
        "tag": Entry(f"{_PAIRS}.single:TAG", "squared plus absolute gradient difference", "Deng et al. (2021)"),
        "lamp": Entry(
            f"{_PAIRS}.single:LAMP",
            "mean cosine distance (eq. 3 of MMGIA), size prior, and words that change places",
            "Balunović et al. (2022)",
        ),
    },
    protocol=_PROTOCOL,
)

WEIGHTS: Registry[WeightsAttack] = Registry(
    "attack on weights",
    AttackError,
    {
        "paper": Entry(
            f"{_WEIGHTS}.cdmi:CdmiConfig",
            "CDMI, algorithm 2: token by token, from left to right",
            "Dentan et al. (2024)",
        ),
        "strong": Entry(
            f"{_WEIGHTS}.strong:StrongConfig",
            "CDMI in another order, with a beam and the field's own loss, at equal calls",
            "docleak, after Dentan et al. (2024)",
        ),
    },
    protocol=_PROTOCOL,
    group=GROUP,
    view="weights",
)

#: What a field's attempts are chosen and the fields sorted by: the greater, the likelier was the field trained on.
METRICS: Registry[Callable[[Attempt], float]] = Registry(
    "membership metric",
    AttackError,
    {
        "raw-perplexity": Entry(
            f"{_WEIGHTS}.membership:raw_perplexity",
            "how surprising the reading is to the public model",
            "Dentan et al. (2024)",
        ),
        "perplexity-ratio": Entry(
            f"{_WEIGHTS}.membership:perplexity_ratio", "how much more so than to the target", "Dentan et al. (2024)"
        ),
        "raw-and-ratio": Entry(f"{_WEIGHTS}.membership:raw_and_ratio", "the product of both", "Dentan et al. (2024)"),
        "max-gap": Entry(
            f"{_WEIGHTS}.membership:max_gap", "the largest difference of a token's likelihoods", "Dentan et al. (2024)"
        ),
        "max-ratio": Entry(
            f"{_WEIGHTS}.membership:max_ratio", "the largest ratio of a token's likelihoods", "Dentan et al. (2024)"
        ),
        "weakest-token": Entry(
            f"{_WEIGHTS}.membership:weakest_token", "how sure the attack was of its least sure token", "docleak"
        ),
    },
)

ANSWERS: Registry[AnswersAttack] = Registry(
    "attack on answers",
    AttackError,
    {
        "AZK": Entry(
            f"{_ANSWERS}:AZK", "two clusters of providers, the more accurate one members", "Tito et al. (2024)"
        ),
        "APK": Entry(f"{_ANSWERS}:APK", "a random forest that learns from providers known", "Tito et al. (2024)"),
        "AZK+CLS1+CLS2": Entry(
            f"{_ANSWERS}:AZK_VOTING", "AZK in a vote with both memorisation classifiers", "Tito et al. (2024)"
        ),
        "APK+CLS1+CLS2": Entry(
            f"{_ANSWERS}:APK_VOTING", "APK in a vote with both memorisation classifiers", "Tito et al. (2024)"
        ),
    },
    protocol="docleak.attacks.answers.attack:AnswersAttack",
    group=GROUP,
    view="answers",
)
