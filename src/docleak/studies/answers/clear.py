"""What keeps "nothing found" from being said of a release where nothing shows: wrong inputs, and too few of them."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import mean

from scipy.stats import ks_2samp, norm

from docleak.metrics.estimate import Estimate
from docleak.studies.answers.record import (
    Record,
    attacks_in,
    best_score,
    memory_in,
    numbers_in,
    surest_score,
)
from docleak.studies.answers.whose import mistaken

#: AUC from which documents are told apart severely, and so many others without which "nothing found" is not said: they
#: do not resolve a false positive rate of 1 %. Of fewer right answers than this share nothing is concluded.
CLEARLY, ENOUGH, LEAST_RIGHT = 0.75, 100, 0.1
#: Of providers "nothing found" is not said where it is not excluded that so large a share of members' hidden values is
#: told, or that an attack is right about more than CLEARLY of the providers.
TOLD_AT_MOST = 0.1
#: And where members and others are so unlike in number: who says the same of all is right about this share or more, so
#: that an attack which tells them apart may be right no oftener.
LOPSIDED = 0.6
#: By how much members' documents are answered better than others', and how much of that the training added.
SIDES = ("gap", "beyond")
#: Where the public model's answers were not compared.
SURELY = Estimate.exactly(1.0)
#: How often chance alone may set a release's label by the numbers of its providers, whichever; by its measured epsilon;
#: by the scores of its documents.
ERROR = 0.05


def counted(record: Record) -> int:
    """How many numbers of providers may set the label: the gap of each key, each attack, and two of new answers."""
    parts = (len(record.get(measure, {}).get("numbers", {})) for measure in ("memorisation", "membership"))
    return sum(parts) + 2 * ("gap" in record)


def sure_low(number: Estimate, record: Record) -> float:
    """The lower end that holds of all numbers of providers at once (Bonferroni): that of the two-sided 95 % interval,
    stretched as if it were a normal distribution's; -inf where there is none."""
    if number.value is None or number.low is None:
        return -math.inf
    return number.value - _stretch(record) * (number.value - number.low)


def sure_high(number: Estimate, record: Record) -> float:
    """The upper end, likewise; inf where there is none."""
    if number.value is None or number.high is None:
        return math.inf
    return number.value + _stretch(record) * (number.high - number.value)


def together(share: Estimate, record: Record) -> Estimate:
    """A share with the ends that hold of all numbers of providers at once."""
    if share.low is None or share.high is None:
        return share
    return replace(share, low=max(0.0, sure_low(share, record)), high=min(1.0, sure_high(share, record)))


def _stretch(record: Record) -> float:
    return max(1.0, float(norm.isf(ERROR / max(1, counted(record))) / norm.isf(0.025)))


def unsound(record: Record) -> str:
    """Why low scores say nothing of the release: it may be another model than the one that saw these documents, or one
    that guesses; "" where nothing speaks for that."""
    of = record["documents"]
    if of["strangers"]:
        return (
            f"the release's own record of its training knows no provider of {of['strangers']} of the {of['members']} "
            "documents that are said to be trained on"
        )
    if any((one["auc"].high or 1.0) < 0.5 for one in numbers_in(record, "documents").values()):
        return "a score is surely higher for the others: were the two sets given the wrong way round?"
    if of["answered"] < LEAST_RIGHT:
        return _guessing(of["answered"])
    if "learnt" not in of:
        return "nothing shows that it was trained on these documents: give the model before the training (--public)"
    if not (Estimate.of_json(of["learnt"]).low or 0.0) > 0:
        return (
            "on the documents said to be trained on its loss is not below the public model's, as if it never saw them"
        )
    if not (of["recorded"] or documents_told(record)):
        return (
            "nothing of the release says that it was trained on these documents and on no provider of the others, and "
            "no score tells them apart: it may have seen both, or others, or kept too little to show it"
        )
    return ""


def documents_told(record: Record) -> bool:
    """Whether a score surely tells documents that were trained on."""
    return (best_score(record)[1].low or 0.0) > 0.5 or surest_score(record)[1] > 0.01


def no_all_clear(record: Record) -> str:
    """Why it is not said that nothing was found, where no score tells the documents; "" where it may be."""
    of, highs = record["documents"], [one["auc"].high for one in numbers_in(record, "documents").values()]
    most = max((1.0 if high is None else high for high in highs), default=1.0)
    if why := unsound(record):
        return why
    if of["others"] < ENOUGH:
        return f"{of['others']} others do not resolve 1 % false alarms, which takes {ENOUGH}"
    return f"so few documents do not exclude an AUC of {most:.2f}" if most > CLEARLY else ""


def unsound_of_providers(record: Record) -> str:
    """Why what does not show of providers says nothing of the release: it may have seen others' documents, or members
    and others are taken for each other; "" where nothing speaks for that."""
    if why := mistaken(record["whose"]) if "whose" in record else "":
        return why
    if why := worded_apart(record) or unequal(record):
        return why
    if _the_wrong_way(record):
        return (
            "others' are surely answered better than members', or gained more by the training: were the two given the "
            "wrong way round?"
        )
    if _by_the_public_model(record):
        return (
            "members' documents are surely answered better, but perhaps as much so by the public model: they may be "
            "easier, or it saw them, too"
        )
    if "gap" not in record:
        return "what it answers right was not asked, and a model that guesses shows nothing: docleak audit answers asks"
    answered = numbers_in(record, "gap").get("", {}).get("positive_acc")
    if answered is not None and answered.value is not None and answered.value < LEAST_RIGHT:
        return _guessing(answered.value)
    return ""


def _guessing(right: float) -> str:
    return f"it answers {100 * right:.0f} % of the questions right, and a model that guesses shows nothing"


def worded_apart(record: Record) -> str:
    """Why what tells members from others may be how they are asked; "" where questions are worded alike, or it is not
    known that they are not: words that tell them worse than chance tell nothing, a classifier learned from them."""
    told = Estimate.of_json(record.get("whose", {}).get("wording", {"value": None}))
    if told.low is None or told.low <= 0.5:
        return ""
    return (
        "the questions about members' documents are worded otherwise than those about others': their words alone tell "
        f"them with AUC {told.text(2)}, and so may what the release answers. Ask both in the same words"
    )


def unequal(record: Record) -> str:
    """Why attacks on means over each provider's questions tell nothing of the release: members and others are surely
    asked other numbers of them (Kolmogorov & Smirnov), and means over few vary more than over many. "" where they are
    not, coins chose the members, or it is not known."""
    of = record.get("membership", {})
    rows = [row for row in of.get("scores", ()) if row.get("questions") is not None]
    inside, outside = ([row["questions"] for row in rows if bool(row["member"]) is side] for side in (True, False))
    if of.get("coins") or not inside or not outside or not ks_2samp(inside, outside).pvalue <= ERROR:
        return ""
    return (
        f"members are asked {mean(inside):.1f} questions on average and others {mean(outside):.1f}, and means over few "
        "vary more than over many, so that what tells members may be how many there are: ask as many of each"
    )


def lopsided(record: Record) -> str:
    """Why an attack that is right no oftener than who says the same of all shows nothing; "" where it does."""
    chance = max((one.chance for one in attacks_in(record)), default=0.0)
    if chance < LOPSIDED:
        return ""
    return (
        f"saying the same of all providers is right about {100 * chance:.0f} % of them, so that an attack may "
        "tell members from others and be right no oftener: ask about as many of either"
    )


def _by_the_public_model(record: Record) -> bool:
    """Whether members are surely answered better, or told, and not surely by what training added to the public model:
    on new documents, or where the answer was taken off the page."""
    answered = [numbers_in(record, "gap").get("", {}), *numbers_in(record, "memorisation").values()]
    for one in answered:
        asked = [of for of in ("acc", "anls") if {f"gap_{of}", f"beyond_{of}"} <= one.keys()]
        surely = {side: any(sure_low(one[f"{side}_{of}"], record) > 0 for of in asked) for side in SIDES}
        if surely["gap"] and not (surely["beyond"] and sure_low(one.get("gained_acc", SURELY), record) > 0):
            return True
    return any(
        one.beyond is not None and sure_low(one.accuracy, record) > one.chance and not sure_low(one.beyond, record) > 0
        for one in attacks_in(record)
    )


def providers_not_excluded(record: Record) -> str:
    """Why it is not said that nothing was found of providers, where neither memory nor membership shows; "" where it
    may be said."""
    if why := unsound_of_providers(record) or lopsided(record):
        return why
    for key, gap in memory_in(record).items():
        if gap.high is not None and gap.high > TOLD_AT_MOST:
            return (
                f"so few documents do not exclude that {100 * gap.high:.0f} % of the {key.replace('_', ' ')}s are told"
            )
    highs = [one.accuracy.high for one in attacks_in(record)]
    most = max((1.0 if high is None else high for high in highs), default=0.0)
    if most > CLEARLY:
        return f"so few providers do not exclude an attack that is right about {100 * most:.0f} % of them"
    return ""


def _the_wrong_way(record: Record) -> bool:
    """Whether what would tell members tells others, beyond chance."""
    gap, memory = numbers_in(record, "gap").get("", {}), numbers_in(record, "memorisation").values()
    answered = [gap[f"{side}_{of}"] for side in SIDES for of in ("acc", "anls") if f"{side}_{of}" in gap]
    answered += [of[f"{side}_acc"] for of in memory for side in SIDES if f"{side}_acc" in of]
    return any(sure_high(one, record) < 0 for one in answered) or any(
        sure_high(one.accuracy, record) < min(one.chance, 0.5) for one in attacks_in(record)
    )
