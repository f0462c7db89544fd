"""What a run of pair attacks says: a verdict in counts, means over pairs, and every pair beside what was read of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import binom, poisson_binom

from docleak.documents.pages import gathered
from docleak.errors import RunError
from docleak.metrics.estimate import Estimate, ratio, ratio_of
from docleak.report.page import Reading, Section, run_facts
from docleak.report.pictures import enlarged, picture
from docleak.report.severity import LEGIBLE_SHARE, Part, Severity
from docleak.report.statement import Scope
from docleak.report.table import Column, Row, Table
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.spec import counted_words, items

#: Pairs of nobody's.
MADE_UP = {"scenes", "pages:synthetic"}
#: All but PSNR lie in 0..1.
SCORES = {
    "ssim": Column("SSIM"), "psnr": Column("PSNR, dB", 1), "rouge1": Column("ROUGE-1"), "rouge2": Column("ROUGE-2"),
    "rouge_l": Column("ROUGE-L"), "tokens": Column("tokens"), "label": Column("label"),
}  # fmt: skip
#: Of picture and text classifiers that were trained under the client's plan.
ACCURACY = {"accuracy_image": Column("ACC, picture"), "accuracy_text": Column("ACC, text")}
COLUMNS = {**SCORES, **ACCURACY}
#: A text of which this share of tokens was read in place, and a picture of this SSIM, count as recovered, or in part.
READ, PARTLY = 0.9, 0.5
SEEN, BLURRED = 0.5, 0.25
#: From this SSIM on a picture counts however like it others are.
CLEAR = 0.9
#: Words count as told where the word table names this share of them, and this share of what it names is right.
TOLD_WORDS, SURE_WORDS = 0.5, 0.8
#: What chance explains with at most this probability counts; each of pictures, texts and classes with a third of it,
#: and of that pictures in outline and blurred ones with a half each.
BY_CHANCE = 0.05
SINGLE = BY_CHANCE / 3
#: Pairs that are shown, and pixels that a shown picture is at least wide; texts that a terminal shows.
SHOWN, WIDE, TOLD = 12, 320, 4
STAGE_1 = "mmgia-stage1"
LIMITS = (
    "An attack that fails is not all attacks: larger budgets, other priors and several rounds of updates tell more.",
    "Lengths of the texts are taken as known, as the published attacks do.",
    "SSIM (1: the same picture) compares structure, not meaning: look at the pictures. ROUGE-L (1: the same text) "
    "counts words in order.",
    "Small networks drawn at random leak more than trained ones of the same kind (--trained).",
)


def attacked(run: Run) -> list[dict[str, Any]]:
    """The finished units that are attacks."""
    return [record for record in run.units() if "scores" in record]


def privacy_in(run: Run) -> dict[str, Any]:
    """What the client's noise guarantees and costs; {} where nothing is to be told, or not yet."""
    return next((dict(record["privacy"]) for record in run.units() if "privacy" in record), {})


def read_run(run: Run, rng: np.random.Generator) -> Reading:
    """Everything recomputed from the run's units. RunError if none is finished.

    Intervals are percentile bootstraps over batches, since the pairs of one share a gradient.
    """
    units = attacked(run)
    if not units:
        raise RunError(f"{run.path} has no finished attack on pairs. Run docleak attack mmgia first.")
    by_attack = {name: [u for u in units if u["attack"] == name] for name in run.config["attacks"]}
    by_attack = {name: batches for name, batches in by_attack.items() if batches}
    table = table_of(by_attack, rng)
    pairs = sum(len(unit["scores"]) for unit in next(iter(by_attack.values())))
    info, config = run.info, run.config
    planned = config["count"] // config["batch_size"] * len(config["attacks"])
    said = verdict(
        list(by_attack), units, classes=int(info.get("classes", 2)), fused=bool(config["fused"]),
        finished=len(units) >= planned,
    )  # fmt: skip
    lines = [*said["lines"], *filter(None, [_added(by_attack), _cut(run)]), _privacy(run)]
    threat = {
        "adversary": "an honest-but-curious server that averages clients' updates, or whoever reads along",
        "sees": ["one client's gradient of each batch, and the weights it was computed with"],
        "knows": info["knows"],
        "cannot": ["see the pictures or the texts; which reconstruction belongs to which original was decided "
                   "afterwards, by the evaluator"],
    }  # fmt: skip
    size = "one" if config["batch_size"] == 1 else config["batch_size"]
    part = Part(f"{' and '.join(by_attack)} against {info['model']}", said["severity"], said["sentence"], said["label"],
                chance=BY_CHANCE)  # fmt: skip
    beside = _pairs(run, by_attack)
    return Reading(
        question="What do a client's two gradients tell about its picture and its text?",
        lead=f"{counted_words(pairs, 'pair')}, {size} to a gradient, attacked with at most {config['budget']} "
        f"evaluations of each gradient. Model: {info['model']}.",
        parts=(part,),
        counted=said["sentence"],
        remarks=tuple(lines),
        sections=(
            Section("pairs", "Side by side", "Side by side: original and reconstructions",
                    render("pairs.html.j2", pairs=beside, n=pairs), annex=True),
            Section("attacks", "Attacks compared", "Attacks compared", render("table.html.j2", table=table)),
            Section("threat", "Threat model", "Threat model: who could do this",
                    render("threat.html.j2", model=threat), open=True),
        ),
        lines=(f"{info['model']}. The server knows {'; '.join(info['knows'])}.", *lines, "", table.to_text(), "",
               *_cost(by_attack), *_texts(by_attack)),
        results={"model": info["model"], "knows": info["knows"], "rows": table.to_json(), "privacy": privacy_in(run)},
        tables={"attacks": table},
        limits=LIMITS,
        runs=(run_facts(run.path, run.manifest()),),
        synthetic={*items(config["pairs"])} <= MADE_UP,
        scope=Scope(
            system=f"Training of {info['model']}, shared as gradients",
            material=f"{counted_words(pairs, 'pair')} of a picture and a text",
            adversary="whoever receives one client's gradients, and the weights that they were computed with",
            unfinished=f"{len(units)} of {planned} attacks on a gradient" if len(units) < planned else "",
        ),
    )  # fmt: skip


def table_of(by_attack: Mapping[str, Sequence[Mapping[str, Any]]], rng: np.random.Generator) -> Table:
    """A row per attack: means over pairs, cost, and the texts that it read."""
    rows = [Row(name, means(units, rng), facts=cost_of(units)) for name, units in by_attack.items()]
    pairs = sum(len(unit["scores"]) for unit in next(iter(by_attack.values())))
    caption = (
        f"means over {counted_words(pairs, 'pair')}, and 95 % intervals (bootstrap over gradients). All but PSNR "
        "lie between 0 and 1; higher means more leaked."
    )
    return Table("", SCORES, rows, caption, first="attack", open=True)


def means(units: Sequence[Mapping[str, Any]], rng: np.random.Generator) -> dict[str, Estimate]:
    """SCORES over all pairs of the units, with intervals over batches."""
    cells = {}
    for column in SCORES:
        batches = ([float(score[column]) for score in unit["scores"]] for unit in units)
        cells[column] = ratio_of(batches, rng, share=column != "psnr", of="pairs")
    return cells


def cost_of(units: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Cost of an attack: evaluations of each modality, seconds of stage 1's two parts and of stage 2; and its texts."""
    return {
        "evaluations_per_modality": [max(unit["evaluations"][side] for unit in units) for side in (0, 1)],
        "seconds": [sum(unit["seconds"][part] for unit in units) for part in (0, 1, 2)],
        "texts": [{"read": score["read"], "true": score["true"]} for unit in units for score in unit["scores"]],
    }


def gain(
    units: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], column: str, rng: np.random.Generator
) -> Estimate:
    """By how much ``units`` are better than ``other`` on the same batches; those that one lacks are left out."""
    ours, theirs = ({u["batch"]: [float(s[column]) for s in u["scores"]] for u in side} for side in (units, other))
    both = sorted(ours.keys() & theirs.keys())
    differences = np.array([sum(ours[batch]) - sum(theirs[batch]) for batch in both])
    return ratio(differences, np.array([len(theirs[batch]) for batch in both]), rng, share=False)


def verdict(
    attacks: Sequence[str], units: Sequence[Mapping[str, Any]], *, classes: int = 2, fused: bool = False,
    finished: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """How bad it is, in counts: ``severity``, a label, a sentence, and lines. Of each pair the best score of any of the
    attacks counts: who has the gradient may run them all. Labels are those of the first attack, since the best of
    several guesses is no coin's. They alone make it PARTIAL where drawing one of the ``classes`` for each does not
    explain them, and UNTOLD where they are most, or two draws, one for each network (of one that is ``fused`` one), do
    not; the pairs of a gradient stand or fall together. So does the word table's gradient where it names the words. Of
    texts that the vocabulary cannot write none can be read; where most are such, nothing read is UNTOLD. So are
    pictures, and parts of texts, that are not more like the true ones than like any, as a generator's or a language
    model's are whatever was sent, parts of texts where none as long is at hand to say so, and a run that is not
    ``finished``."""
    by_pair: dict[tuple[int, int], dict[str, Mapping[str, Any]]] = {}
    for unit in (unit for unit in units if unit["attack"] in attacks):
        for target, score in enumerate(unit["scores"]):
            by_pair.setdefault((unit["batch"], target), {})[unit["attack"]] = score
    n = len(by_pair)
    best = {
        name: [max(float(score[name]) for score in scores.values()) for scores in by_pair.values()]
        for name in ("tokens", "ssim")
    }
    held = [any(score.get("other_tokens") for score in scores.values()) for scores in by_pair.values()]
    texts, parts = (sum(value >= least for value in best["tokens"]) for least in (READ, PARTLY))
    lone = sum(PARTLY <= value < READ and not there for value, there in zip(best["tokens"], held, strict=True))
    parts -= lone
    pictures, blurs = (sum(value >= least for value in best["ssim"]) for least in (SEEN, BLURRED))
    right, by_draw, by_two, drawn = _of_classes(attacks, by_pair, classes, fused)
    told = by_draw <= SINGLE
    alike = [_alike(list(by_pair.values()), "others", least) for least in (SEEN, BLURRED)]
    like_text = _alike(list(by_pair.values()), "other_tokens", PARTLY)
    by_any = [_by_chance(by_pair.values(), "ssim", "others", least) for least in (SEEN, BLURRED)]
    clear = max(best["ssim"], default=0.0) >= CLEAR
    shown, outlined = (
        count if clear or chance <= SINGLE / 2 else 0 for count, chance in zip((pictures, blurs), by_any, strict=True)
    )
    as_any = bool(blurs) and not max(shown, outlined)
    by_text = _by_chance(by_pair.values(), "tokens", "other_tokens", PARTLY)
    as_text = bool(parts) and not texts and by_text > SINGLE
    most, out = max(texts, shown), max(0 if as_text else parts, shown, outlined)
    first = [next(iter(scores.values())) for scores in by_pair.values()]
    partly, lost = sum(bool(one.get("unwritten")) for one in first), sum(one.get("written") == 0 for one in first)
    named = words_told(units)
    worded = named["right"] >= TOLD_WORDS * named["true"] > 0 and named["right"] >= SURE_WORDS * named["named"]
    unsure = as_any or as_text or bool(lone) or by_two <= BY_CHANCE or 2 * right > n
    unsure = unsure or n - lost < LEGIBLE_SHARE * n or not finished
    if not n:
        severity, label = Severity.UNMEASURED, Severity.UNMEASURED.label
    elif most and 2 * most >= n:
        both = [name for name, count in (("texts", texts), ("pictures", shown)) if 2 * count >= n]
        severity, label = Severity.SEVERE, f"Most {' and '.join(both)} can be recognised"
    elif out or told or worded:
        what = "Parts" if out else "Words" if worded else "Classes"
        severity, label = Severity.PARTIAL, f"{what} come out"
    elif unsure:
        severity, label = Severity.UNTOLD, Severity.UNTOLD.label
    else:
        severity, label = Severity.NONE, "Nothing recognisable"
    of = f"the best of {' and '.join(attacks)} for each pair: " if len(attacks) > 1 else ""
    return {
        "severity": severity, "label": label,
        "sentence": f"{texts} of {n} texts came back almost word for word, {pictures} of {n} pictures in outline, and "
        f"the classes of {right} of {n} pairs{f'; {drawn}' if right and not told else ''}."
        + f" The gradient of the word table names {named['right']} of the texts' {named['true']} words." * worded
        + " Pictures that were in no gradient may by chance be as like, so that none is counted." * as_any
        + " Texts that were in no gradient may by chance be as like, so that no part of one is counted." * as_text
        + f" Of {counted_words(lone, 'more text')} half came back, too, but no text as long that was in no gradient "
        "is at hand, so that it is not counted." * bool(lone),
        "lines": [
            f"Texts: {of}{texts} with {READ:.0%} of their tokens in place or more, {parts - texts} others with half."
            + f" So like what came back are {like_text:.0%} of texts as long that were in no gradient: chance does as "
            f"well with {by_text:.0%} probability." * as_text,
            *([f"The text network's vocabulary cannot write all of {partly} of the texts, and nothing of {lost}: what "
               "it lacks enters a gradient as one token for all, and is not counted."] if partly else []),
            f"Pictures: {of}{pictures} with an SSIM of at least {SEEN}, {blurs - pictures} more above {BLURRED}."
            + f" So like what came back are {alike[0]:.0%} and {alike[1]:.0%} of pictures that were in no gradient: "
            f"chance does as well with {by_any[0]:.0%} and {by_any[1]:.0%} probability." * as_any,
            f"Classes{f', by {attacks[0]}' * (len(attacks) > 1)}: {right} of {n} were read out of the gradient.",
            *([f"Words: the gradient of the word table names {named['named']} words, without their order; "
               f"{named['right']} of the texts' {named['true']} are among them."] if named["named"] else []),
            *([f"Counted by attack: {_by_attack(attacks, list(by_pair.values()))}."] if len(attacks) > 1 else []),
        ],
    }  # fmt: skip


def _of_classes(
    attacks: Sequence[str],
    by_pair: Mapping[tuple[int, int], Mapping[str, Mapping[str, Any]]],
    classes: int,
    fused: bool,
) -> tuple[int, float, float, str]:
    """How many are right by the first attack, how probably drawing one for each gradient, or two, is as right, and the
    first of that in words. What is told counts whole gradients alone; that nothing is, every part of one."""
    labels = gathered(
        (batch, bool(next(scores[name] for name in attacks if name in scores)["label"]))
        for (batch, _), scores in by_pair.items()
    )
    right = sum(sum(side) / len(side) for side in labels.values())
    by_draw = float(binom.sf(math.floor(right + 1e-9) - 1, len(labels), 1 / classes))
    by_two = float(binom.sf(math.ceil(right - 1e-9) - 1, len(labels), classes ** (fused - 2)))
    drawn = "a coin" if classes == 2 else f"one of {classes} drawn"
    odds = " gradient does as well with at most" if len(labels) < len(by_pair) else " does as well with"
    said = f"{drawn} for each{odds} {by_draw:.0%} probability"
    return sum(sum(side) for side in labels.values()), by_draw, by_two, said


def _alike(pairs: Sequence[Mapping[str, Mapping[str, Any]]], key: str, least: float) -> float:
    """Of pictures, or texts, that were in no gradient (``key``) the share that is at least so like what came back, by
    the best attack for each; 0 where none was looked at."""
    sets = [zip(*(score.get(key, ()) for score in scores.values()), strict=False) for scores in pairs]
    return float(np.mean([max(unseen) >= least for others in sets for unseen in others] or [0.0]))


def _by_chance(pairs: Iterable[Mapping[str, Mapping[str, Any]]], column: str, key: str, least: float) -> float:
    """How probably as many pairs or more come out so like what came back if any of those that were in no gradient
    (``key``) had been in its place (exact, pair by pair, by the best attack); pairs without any do not enter."""
    shares, hits = [], 0
    for scores in pairs:
        if others := [
            max(unseen) >= least for unseen in zip(*(one.get(key, ()) for one in scores.values()), strict=False)
        ]:
            hit = max(one[column] for one in scores.values()) >= least
            shares.append(float(np.mean([hit, *others])))
            hits += hit
    return float(poisson_binom.sf(hits - 1, shares)) if shares else 0.0


def words_told(units: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What word tables name, over batches, each of which counts once."""
    by_batch = {unit["batch"]: unit["words"] for unit in units if unit.get("words")}
    return {key: sum(words[key] for words in by_batch.values()) for key in ("named", "right", "true")}


def _by_attack(attacks: Sequence[str], pairs: Sequence[Mapping[str, Mapping[str, Any]]]) -> str:
    """Texts read and pictures seen by each attack, in the words of the verdict."""
    said = []
    for name in attacks:
        scores = [scores[name] for scores in pairs if name in scores]
        texts, pictures = (sum(s[key] >= least for s in scores) for key, least in (("tokens", READ), ("ssim", SEEN)))
        said.append(f"{name} {texts} texts and {pictures} pictures")
    return ", ".join(said)


def _added(by_attack: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """What the link between picture and text added to stage 1, where the run says."""
    first = next(iter(by_attack))
    if first == STAGE_1 or STAGE_1 not in by_attack or not any(unit["rounds"] for unit in by_attack[first]):
        return ""  # an attack without a second stage has another first one
    ours, theirs = by_attack[first], by_attack[STAGE_1]
    gains = {name: gain(ours, theirs, name, np.random.default_rng(0)) for name in ("ssim", "rouge_l")}
    words = [
        f"{SCORES[name].head} by {'nothing that could be compared' if e.value is None else e.text(signed=True)}"
        for name, e in gains.items()
    ]
    clear = [name for name, e in gains.items() if e.low is not None and e.low > 0]
    tail = "" if clear else " Neither is a gain beyond chance."
    return f"Against stage 1 alone, on the same pairs, the link between the two changes {' and '.join(words)}.{tail}"


def _cut(run: Run) -> str:
    """Texts of which the client reads a beginning only."""
    cut = run.info.get("cut", {"texts": 0})
    if not cut["texts"]:
        return ""
    return (
        f"The client reads texts up to {cut['behind']} tokens: of {cut['texts']} of {run.config['count']} the rest "
        "entered no gradient, and is not counted here."
    )


def _privacy(run: Run) -> str:
    told = privacy_in(run)
    if claim := told.get("claim"):
        return f"The client ran DP-SGD: {claim}"
    if epsilon := run.config.get("epsilon"):
        return f"The client ran DP-SGD for epsilon {epsilon:g}; what that guarantees is not worked out yet."
    if noise := run.config.get("noise"):
        return f"The client added noise of standard deviation {noise} to every number."
    return "The client protected nothing."


def _cost(by_attack: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Evaluations, and what stage 2 took of stage 1's time."""
    costs = {name: cost_of(units) for name, units in by_attack.items()}
    most = max(max(cost["evaluations_per_modality"]) for cost in costs.values())
    lines = [f"At most {most} gradient evaluations per modality and batch."]
    for name, cost in costs.items():
        image, text, align = cost["seconds"]
        if align:
            lines.append(f"{name}: stage 2 took {align / max(1e-9, image + text):.1%} of stage 1's time.")
    return lines


def _texts(by_attack: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    name, units = next(iter(by_attack.items()))
    texts = cost_of(units)["texts"][:TOLD]
    return ["", f"Texts of {name} (read | true)", *(f"  {text['read']} | {text['true']}" for text in texts)]


def _pairs(run: Run, by_attack: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The first pairs: the original, and what each attack made of both modalities."""
    pairs: dict[tuple[int, int], dict[str, Any]] = {}
    for attack, units in by_attack.items():
        for unit in units:
            for target, score in enumerate(unit["scores"]):
                key = (unit["batch"], target)
                if key not in pairs and len(pairs) == SHOWN:
                    continue
                name = score["name"]
                pair = pairs.setdefault(key, {
                    "name": name, "true": score["true"], "made": [],
                    "picture": _shown(run, unit["unit"], f"truth-{target}.png", f"Original picture of {name}"),
                })  # fmt: skip
                mark = "exact" if score["tokens"] >= READ else "near" if score["tokens"] >= PARTLY else "no"
                alt = f"What {attack} made of the picture of {name}"
                pair["made"].append({
                    "attack": attack, "read": score["read"], "tokens": score["tokens"], "mark": mark,
                    "ssim": score["ssim"], "rouge_l": score["rouge_l"],
                    "picture": _shown(run, unit["unit"], f"reconstruction-{target}.png", alt),
                })  # fmt: skip
    return list(pairs.values())


def _shown(run: Run, unit: str, file: str, alt: str) -> dict[str, Any]:
    return picture(enlarged(run.read_image(unit, file), WIDE), alt)
