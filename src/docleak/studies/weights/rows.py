"""Rows of CDMI's tables: their settings as games, their numbers, and what stands under and beside a table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from docleak.attacks.weights import PUBLISHED_METRIC, CdmiConfig
from docleak.attacks.weights.strong import StrongConfig
from docleak.documents.pages import gathered
from docleak.errors import RecipeError, refuse, those
from docleak.metrics.estimate import Estimate
from docleak.metrics.extraction import as_array, over_documents
from docleak.models.encoders.vision import VisionConfig
from docleak.report.table import Column
from docleak.runs.run import Run
from docleak.spec import split_name
from docleak.studies.study import PLACEHOLDER, Picture
from docleak.studies.weights.config import Tuning, WeightsConfig
from docleak.studies.weights.factors import Found, Level, levels, three_distances
from docleak.studies.weights.pictures import MOST_CURVES, draw_curves, draw_epochs, draw_numbers
from docleak.studies.weights.table import fields_of, first_matches, published, read_table
from docleak.studies.weights.tuning import in_words, settings_of, with_temperature
from docleak.training.extraction.fit import FitConfig
from docleak.training.extraction.private import PrivateFit

if TYPE_CHECKING:
    from docleak.studies.weights.study import WeightsStudy

#: Column -> the name of its numbers in a game's table; those of public data alone are there as "base_" + column.
NAMES = {
    "ipf": "improvement_factor", "perfect": "perfect", "hamming": "hamming", "hamaac": "hamming_aac",
    "accauc": "accuracy_auc", "at1": "accuracy_at_1%", "at5": "accuracy_at_5%", "at100": "accuracy_at_100%",
}  # fmt: skip
HEADS = {
    "accuracy": Column("validation accuracy"), "loss": Column("loss"), "epoch": Column("epoch", 0),
    "ipf": Column("IpF"), "distances": Column("its distances alone"), "perfect": Column("read exactly, one-shot"),
    "hamming": Column("tokens wrong"), "hamaac": Column("HamAAC"), "accauc": Column("AccAUC"),
    "at1": Column("AccAt 1 %", 1, percent=True), "at5": Column("AccAt 5 %", 1, percent=True),
    "at100": Column("AccAt 100 %", 1, percent=True), "examples": Column("examples"),
}  # fmt: skip
COLUMNS = HEADS | {
    f"base_{name}": Column("public data only", HEADS[name].digits, HEADS[name].percent)
    for name in NAMES
    if name != "ipf"
}
ATTACK = ("accuracy", "epoch", "ipf", "distances", "hamming", "base_hamming", "hamaac", "accauc", "at1", "at5", "at100",
          "base_at100")  # fmt: skip
#: What a table tells of its rows -> its columns.
SHOWS = {
    "attack": ATTACK, "epochs": ATTACK,
    "curves": ("hamaac", "base_hamaac", "accauc", "base_accauc", "at5", "base_at5", "at100", "base_at100"),
    "defences": tuple(name for name in ATTACK if name not in ("at1", "at5")),
    "validation": ("accuracy", "loss", "epoch"),
    "examples": ("at100", "base_at100", "examples"),
}  # fmt: skip
#: Of a picture of numbers: which one, its heading, and what it is where nothing leaks.
DRAWN: dict[str, tuple[str, str, float | None]] = {
    "validation": ("accuracy", "Validation accuracy", None), "examples": ("at100", "Fields read exactly", None),
}  # fmt: skip
EXAMPLES = 3
#: Settings that stand under a table, and how they are called.
TRAINING = {
    "epochs_mlm": "epochs for mlm", "epochs": "for the other tasks", "public_epochs": "for the public models",
    "batch_size": "batches of", "learning_rate": "learning rate", "validate_every": "epochs between validations",
    "dropout": "dropout (-1: the checkpoint's)", "max_tokens": "tokens behind which pages are cut (0: none)",
}  # fmt: skip
ATTACKED = {
    "fields": "fields", "attempts": "attempts (the first is the one-shot variant)", "candidates": "candidates",
    "weight": "weight of the target", "top_p": "top-p", "temperature": "temperature", "metric": "ranked by",
}  # fmt: skip
#: Of these, what a search chooses.
SOUGHT = ("weight", "top_p", "temperature")
#: The paper's data sets, and the share of the documents kept for validation: 100 of SROIE's 626, 50 of FUNSD's 199.
DATA_SETS = {"sroie": 0.16, "funsd": 50 / 199}
SYNTHETIC = "synthetic"
#: What a row's private training may set, and what it says there; it says nothing without an epsilon.
PRIVATE = {item.name: item.default for item in fields(PrivateFit)} | {"epsilon": 0.0}
PRIVATE["private_learning_rate"] = PRIVATE.pop("learning_rate")
#: A row's settings beside those of its game, as the paper has them where it names any (no learning rate, no batches).
PAPER: Mapping[str, Any] = {
    "data": "sroie", "public_data": "", "public_without": {}, "shows": "attack", "candidates": 128, "weight": 0.4,
    "top_p": 0.10, "mean": "geometric", "temperature": 0.3, "tuned_on": "", "strong": False, "epochs": 150,
    "epochs_mlm": 300, "public_epochs": 300, "learning_rate": 5e-5, "batch_size": 8, "validate_every": 1,
    "patch": False, **PRIVATE,
}  # fmt: skip
EXTRA = {name: {dict: "Mapping[str, str]"}.get(type(value), type(value).__name__) for name, value in PAPER.items()}
#: Settings that all tables of a scale share, so that they share models and attacks, too; a row's own come before them.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {"pages": 0, "fields": 0, "metric": PUBLISHED_METRIC},
    "tiny": {
        "pages": 140, "max_tokens": 192, "fields": 60, "attempts": 4, "candidates": 32, "epochs_mlm": 100, "epochs": 40,
        "public_epochs": 40, "learning_rate": 1e-3, "dropout": 0.0, "validate_every": 5, "keep_every": 10,
    },
    # An epoch of each training and an attempt at one field: what the published size costs; nothing is learned.
    "base": {
        "pages": 24, "max_tokens": 192, "fields": 1, "attempts": 1, "candidates": 32, "epochs_mlm": 1, "epochs": 1,
        "public_epochs": 1, "dropout": 0.0,
    },
}  # fmt: skip
#: Settings of a game that rows set otherwise.
NESTED = (
    "documents",
    "public_documents",
    "attack",
    "target_training",
    "public_training",
    "private",
    "tuning",
    "target",
    "trained",
    "shadow",
)


def asked_of(model: str, settings: Mapping[str, Any], documents: Mapping[str, str]) -> dict[str, Any]:
    """All settings of a row: its own over its preset's over the paper's; ``documents`` maps data sets to pages."""
    preset = settings.get("preset", "paper")
    if preset not in PRESETS:
        raise RecipeError(f"there is no preset {preset!r}; known: {', '.join(PRESETS)}.")
    defaults = {item.name: item.default for item in fields(WeightsConfig) if item.name not in NESTED}
    asked = {**defaults, **PAPER, **PRESETS["paper"], **PRESETS[preset], **settings, "model": model}
    idle = [name for name in PRIVATE if asked[name] != PRIVATE[name] and not asked["epsilon"]]
    wrong = [name for name in NESTED if name in settings]
    faults = those(
        (idle, f"{', '.join(idle)}: of a private training, and epsilon is 0, which is none"),
        (asked["shows"] not in SHOWS, f"shows is {asked['shows']!r}, expected one of {', '.join(SHOWS)}"),
        (wrong, f"{', '.join(wrong)} cannot be set in a row"),
    )
    refuse(RecipeError, faults, "the row cannot be used: ")
    made = {SYNTHETIC: SYNTHETIC} if SYNTHETIC in needs(asked) else {}  # they need not be given
    return {**asked, "documents": {**made, **documents}}


def needs(asked: Mapping[str, Any]) -> list[str]:
    """The data sets of a row."""
    return [name for key in ("data", "public_data") if (name := asked.get(key, PAPER[key]))]


def game_asked(asked: Mapping[str, Any]) -> WeightsConfig:
    """The game of a row."""
    names = {item.name for item in fields(WeightsConfig)} - {*NESTED}
    pages = asked["documents"]
    fit = {name: asked[name] for name in ("batch_size", "learning_rate", "validate_every")}
    private = {name: asked[name] for name in PRIVATE if name != "private_learning_rate"}
    published = CdmiConfig(**{name: asked[name] for name in ("candidates", "weight", "top_p", "mean")})
    return WeightsConfig(**{
        **{name: asked[name] for name in names},
        "documents": pages.get(asked["data"], ""),
        "public_documents": pages.get(asked["public_data"], ""),
        "public_without": tuple(sorted(asked["public_without"].items())),
        "validation": DATA_SETS.get(asked["data"], DATA_SETS["sroie"]),
        "public_validation": DATA_SETS.get(asked["public_data"], DATA_SETS["sroie"]),
        "image_size": tuple(asked["image_size"]) if asked["bimodal"] else VisionConfig.size,
        "resnet": asked["resnet"] if asked["bimodal"] else "",
        "tuning": Tuning(asked["tuned_on"]) if asked["tuned_on"] else None,
        "draw_apart": True,
        "calibrate": False,
        "attack": StrongConfig(candidates=asked["candidates"]) if asked["strong"]
        else with_temperature(published, asked["temperature"]),
        "target_training": FitConfig(epochs=asked["epochs_mlm" if asked["task"] == "mlm" else "epochs"],
                                     patch=asked["patch"], **fit),
        "public_training": FitConfig(epochs=asked["public_epochs"], **fit),
        "private": PrivateFit(**private, learning_rate=asked["private_learning_rate"]) if asked["epsilon"] else None,
    })  # fmt: skip


def assigned(wanted: Sequence[str], specs: Sequence[str]) -> dict[str, str]:
    """Which pages each data set gets: ``sroie:DIR`` is that of its name, any other pages stand in for the first left.

    Those of a data set that no row needs are left aside. RecipeError for two of the same name, or more pages than there
    are data sets.
    """
    sources: dict[str, str] = {}
    others = []
    for spec in specs:
        name, _ = split_name(spec)
        if name in sources:
            raise RecipeError(f"--documents names {name!r} twice ({sources[name]} and {spec}); give it once.")
        if name in (*wanted, *DATA_SETS):
            sources[name] = spec
        else:
            others.append(spec)
    for spec in others:
        free = [name for name in wanted if name not in sources]
        if not free:
            raise RecipeError(
                f"--documents {spec!r}: the recipe's data sets are {', '.join(wanted)}, all of them given."
            )
        sources[free[0]] = spec
    return sources


def check(studies: Sequence[WeightsStudy]) -> None:
    """RecipeError where rows show different things, which makes no table, or models or all pages are missing."""
    shown = list(dict.fromkeys(study.asked["shows"] for study in studies))
    if len({study.asked["ipf_epsilon"] for study in studies}) > 1:
        raise RecipeError("the rows have several ipf_epsilon; their factors cannot stand in one table, give them one.")
    if len(shown) > 1:
        raise RecipeError(f"the rows show different things ({', '.join(shown)}); give them tables apart.")
    missing = [f"--model {study.model}=DIR" for study in studies if PLACEHOLDER in study.config.model]
    if all(study.missing() for study in studies):
        wanted = sorted({name for study in studies for name in needs(study.asked)}, reverse=True)
        missing += [f"--documents {name}:DIR" for name in wanted]
    if missing:
        raise RecipeError(f"the recipe needs {' '.join(dict.fromkeys(missing))}; docs/cdmi.md says what they are.")


def found_in(run: Run, config: WeightsConfig, shows: str) -> Found | None:
    """What a row's run says so far; None while it says nothing."""
    units = run.units()
    card = next((unit for unit in units if unit["unit"] == "target"), None)
    if card is None:
        return None
    best = published(card, config.criterion)
    told = {"accuracy": best["validation"]["accuracy"], "loss": best["validation"]["loss"], "epoch": best["number"]}
    estimates = {name: Estimate.exactly(value) for name, value in told.items()}
    attacked = fields_of(run)
    if shows == "validation" or not attacked:
        return Found(estimates, card)
    table = read_table(run, rng=np.random.default_rng(config.seed))
    ours, theirs = (first_matches(attacked, side) for side in ("attempts", "baseline"))
    documents = [str(unit["document"]) for unit in attacked]
    for name, known in NAMES.items():
        estimates[name] = table.estimates[known]
        if name != "ipf":
            estimates[f"base_{name}"] = table.estimates[f"baseline_{known}"]
    read, guessed = as_array(ours), as_array(theirs)
    estimates["distances"] = over_documents(
        documents, lambda chosen: three_distances(read[chosen], guessed[chosen]), rng=np.random.default_rng(config.seed)
    )
    return Found(estimates, card, table, tuple(zip(documents, ours, theirs, strict=True)))


def by_document(found: Found, column: str) -> dict[str, float]:
    """The mean over a document's fields of what the first attempts gave: fields read exactly ("perfect"), the share of
    tokens wrong ("hamming"), and the same from public data alone ("base_..."); {} for other columns."""
    side, name = (1, column.removeprefix("base_")) if column.startswith("base_") else (0, column)
    if name not in ("perfect", "hamming"):
        return {}
    values = gathered((document, float(getattr(matches[side], name))) for document, *matches in found.outcomes)
    return {document: float(np.mean(of)) for document, of in values.items()}


def examples(run: Run, found: Found) -> str:
    """The longest fields that were read exactly: what they say, tokens, and private pages that print it."""
    units = {str(unit["unit"]): unit for unit in fields_of(run)}
    perfect = [units[field.name] for field in (found.table.fields if found.table else ()) if field.match.perfect]
    longest = sorted(perfect, key=lambda unit: -len(unit["tokens"]))[:EXAMPLES]
    told = [f"{u['value'].replace('|', '/')} ({len(u['tokens'])} tokens, on {u['printed_on']} pages)" for u in longest]
    return "; ".join(told)


def facts_of(rows: Sequence[tuple[str, WeightsStudy, Found | None, float | None]]) -> dict[str, str]:
    """Means by factor, models, documents, trainings, the attack's settings, claims; of each row its name, study, what
    was found and the paper's improvement factor."""
    facts = {f"Mean IpF, {level.name}": level.text for level in means(rows)}
    computed = [(name, study.asked, findings) for name, study, findings, _ in rows if not study.missing()]
    missing = sorted({n for _, study, *_ in rows for n in needs(study.asked) if not study.asked["documents"].get(n)})
    how = " ".join(f"--documents {name}:DIR" for name in missing)
    left = {"Left out": f"{len(rows) - len(computed)} rows, whose pages were not given ({how})"} if missing else {}
    if not computed:
        return left
    first = computed[0][1]
    named = dict.fromkeys(
        (name, asked["documents"][name], asked["pages"]) for _, asked, _ in computed for name in needs(asked)
    )
    documents = [
        (spec if spec.startswith(name) else f"{spec} for {name}") + (f" ({pages} pages)" if pages else " (all pages)")
        for name, spec, pages in named
    ]
    facts |= {
        "Models": ", ".join(dict.fromkeys(asked["model"] for _, asked, _ in computed)),
        "Seed": _same([asked for _, asked, _ in computed], {"seed": ""}).strip(),
        "Documents": "; ".join(documents),
        "Training": _same([asked for _, asked, _ in computed], TRAINING),
    }
    if first["shows"] != "validation":
        told = {key: words for key, words in ATTACKED.items() if not (first["tuned_on"] and key in SOUGHT)}
        facts["Attack"] = f"{_same([asked for _, asked, _ in computed], told)}; epsilon of IpF {first['ipf_epsilon']:g}"
    facts |= _tuned_facts([study for _, study, *_ in rows if not study.missing()])
    for name, asked, findings in computed:
        card = findings.card if findings else {}
        if "claim" in card:
            facts[f"Claim, {name}"] = (
                f"{card['claim']} {card['units']} units; coins and noise follow from the seed, so that the table can "
                "be repeated"
            )
        if asked["deduplicate"] and card:
            trained = card["pages"]["train"]
            facts[f"Near-duplicates, {name}"] = f"{card['duplicates']} pages taken out, {trained} trained on"
    return facts | left


def _tuned_facts(studies: Sequence[WeightsStudy]) -> dict[str, str]:
    """Which settings were chosen for each of the paper's configurations, and what that means for the numbers."""
    settings: dict[str, str] = {}
    for study in studies:
        config = study.config
        if config.tuning is not None and study.chosen is not None:
            attack = settings_of(config)[study.chosen]
            kind = "bimodal" if config.bimodal else "unimodal"
            words = in_words(attack, weighted=config.task != "mlm")
            settings[f"{config.task} of {study.asked['data']}, {kind}"] = words
    if not settings:
        return {}
    return {
        "Settings": "; ".join(f"{name}: {words}" for name, words in settings.items()) + ". Sought in the ranges of the "
        "paper's appendix A by IpF of the first attempt over the attacked fields themselves, on LayoutLM's target of "
        "the best accuracy: that looks at the truth, as the paper did, so IpF is higher than an adversary can count on"
    }  # fmt: skip


def means(rows: Sequence[tuple[str, WeightsStudy, Found | None, float | None]]) -> list[Level]:
    """What each factor does, in a table of attacks. Controls of ours count in no mean that stands beside a paper's."""
    paper = [row for row in rows if not row[1].asked["patch"]]
    members = [(study.asked, findings.outcomes if findings else (), printed) for _, study, findings, printed in paper]
    return levels(members) if members and members[0][0]["shows"] == "attack" else []


def _same(computed: Sequence[Mapping[str, Any]], settings: Mapping[str, str]) -> str:
    """The settings that all rows share; those in which they differ are named."""
    parts = []
    for key, words in settings.items():
        values = list(dict.fromkeys(asked[key] for asked in computed))
        told = "varies" if len(values) > 1 else ("all" if key == "fields" and not values[0] else f"{values[0]}")
        parts.append(f"{words} {told}")
    return ", ".join(parts)


def draw(shows: str, rows: Mapping[str, tuple[Found | None, Mapping[str, float]]], means: Sequence[Level]) -> Picture:
    """The picture of rows by name, each with what was found and what the paper printed."""
    done = {name: findings for name, (findings, _) in rows.items() if findings}
    if shows == "curves":
        tables = {name: findings.table for name, findings in done.items() if findings.table}
        png = draw_curves(*list(tables.values())[:MOST_CURVES], names=list(tables))
        return Picture(png, "Curves", "AccAt(p) and HamAt(p) of attack and baseline, row by row")
    if shows == "epochs":
        png = draw_epochs(list(done.values()))
        return Picture(png, "Along the training", "Validation, one-shot and multi-shot over epochs")
    metric, title, neutral = DRAWN.get(shows, ("ipf", "IpF (1: no better than public data)", 1.0))
    png = draw_numbers(rows, metric, title, means, neutral)
    return Picture(png, "The same as a picture", f"{title} of every row beside the paper's")
