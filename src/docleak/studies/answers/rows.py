"""Rows of a table of attacks on released models: columns, what is said under them, and the picture beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from docleak.documents.pages import gathered
from docleak.documents.phrasings import PHRASINGS
from docleak.metrics.estimate import Estimate
from docleak.report.pictures import mark, new_figure, png_figure
from docleak.report.table import Column
from docleak.runs.run import Run
from docleak.studies.answers.config import WITHOUT_MODEL, AnswersConfig
from docleak.studies.answers.counting import draw_keys, draw_providers
from docleak.studies.answers.pictures import accuracy_over_minimum
from docleak.studies.answers.record import numbers_in
from docleak.studies.study import TableRow

#: The most questions of which a provider must have more.
MOST_MINIMUM = 30
SIDES = {"positive": "RED positive", "negative": "RED negative", "gap": "difference"}
BOTH = {f"{side}_{name}": Column(f"{title} {name.upper()}", 1, percent=True)
        for side, title in SIDES.items() for name in ("acc", "anls")}  # fmt: skip
RATES = {
    "balanced_accuracy": Column("balanced accuracy", 1, percent=True), "auc": Column("AUC"),
    "tpr_at_10_fpr": Column("TPR at 10 % FPR", 1, percent=True),
    "epsilon_measured": Column("ε measured, at least", 2, bound="least"),
    "epsilon_claimed": Column("ε claimed, at most", 2, bound="most"),
}  # fmt: skip
#: Of each measure; of disclosure for each key, of membership for each s, too.
MEASURED = {
    "utility": {"anls": Column("ANLS", 1, percent=True), "accuracy": Column("ACC", 1, percent=True),
                "gigabytes": Column("GiB sent", 2)},
    "gap": {"red_acc": Column("RED ACC", 1, percent=True), "red_anls": Column("RED ANLS", 1, percent=True), **BOTH},
    "memorisation": {
        "positive_n": Column("N positive", 0), "negative_n": Column("N negative", 0), **BOTH,
        **{f"{name}_confident": Column(f"{column.head}, confidence ≥ 0.9", 1, percent=True)
           for name, column in BOTH.items() if not name.startswith("gap")},
    },
    "noise": {"noise_prv": Column("PRV", 10), "noise_pld": Column("PLD", 4),
              "noise_ours": Column("PLD, known coins", 4)},
    "division": {name: Column(name, 0) for name in ("providers", "documents", "pages", "questions")},
    "spread": {
        "providers": Column("providers", 0), "documents": Column("documents", 0),
        "median": Column("documents of the median provider", 1), "most": Column("of the one with most", 0),
        "tenth": Column("share of the tenth with most", 1, percent=True),
    },
    "keys": {
        "questions": Column("questions", 0), "kinds": Column("keys", 0),
        "commonest": Column("share of the commonest key", 1, percent=True),
        "rarer": Column("of the rarer half of the keys", 1, percent=True),
    },
    "membership": RATES,
    "disclosure": {},
}  # fmt: skip
#: Of more numbers of questions than these, accuracies are drawn over them.
PANELS = 4
#: The pictures of measures that count.
COUNTED: Mapping[str, Callable[[Mapping[str, Any]], bytes]] = {"spread": draw_providers, "keys": draw_keys}


def _of_key(key: str) -> dict[str, Column]:
    return {
        f"asked_{key}": Column(f"{key}: asked", 0), f"different_{key}": Column("different answers", 0),
        f"share_{key}": Column("commonest", 1, percent=True),
        f"trained_{key}": Column("of the top 15, training values the public model does not give", 0),
    }  # fmt: skip


def _of_least(least: int) -> dict[str, Column]:
    return {f"accuracy_s{least}": Column(f"accuracy, s = {least}", 1, percent=True)}


COLUMNS = {
    **{name: column for columns in MEASURED.values() for name, column in columns.items()},
    **{name: column for key in PHRASINGS for name, column in _of_key(key).items()},
    **{name: column for least in range(MOST_MINIMUM + 1) for name, column in _of_least(least).items()},
}


def columns_of(config: AnswersConfig) -> tuple[str, ...]:
    """The columns of the measure."""
    measure = config.measures[0]
    keys = [name for key in config.keys for name in _of_key(key)] if measure == "disclosure" else []
    least = [name for minimum in config.minimum for name in _of_least(minimum)] if measure == "membership" else []
    return (*keys, *least, *MEASURED[measure])


def facts_of(rows: Sequence[TableRow], store: str) -> dict[str, str]:
    """Model, documents, where the targets are, how each was trained, and the remarks of each row."""
    releases = [row.study.config.releases[0] for row in rows]
    held = gathered((of.target.data.sentence(), row.name) for row, of in zip(rows, releases, strict=True))
    documents = "; ".join(f"{said} ({', '.join(dict.fromkeys(names))})" for said, names in held.items())
    documents = documents if len(held) > 1 else next(iter(held))
    facts = {"Models": ", ".join(dict.fromkeys(row.study.config.public for row in rows)),
             "Seed": f"{rows[0].study.config.seed}", "Documents": documents}  # fmt: skip
    if any(row.study.config.measures[0] not in WITHOUT_MODEL for row in rows):
        facts["Targets"] = f"in {store}, beside this folder, for all tables"
        for row, release in zip(rows, releases, strict=True):
            if (target := release.to_train) is not None:
                bill = next((record.get("bill") for record in row.run.units()), None)
                took = f"; {bill['seconds']:.0f} s" if bill else ""
                others = (other.to_train for other in releases)
                alone = all(other in (None, target) or other.name != target.name for other in others)
                name = target.name if alone else f"{target.name}, {row.name}, {row.model}"
                facts[name] = target.training.sentence(bool(target.epsilon)) + took
    several = len({row.model for row in rows}) > 1
    remarks = {
        f"{row.name}{f', {row.model}' * several}, {name}": text
        for row in rows for name, text in remarks_of(row.study.config, row.run).items()
    }  # fmt: skip
    return facts | remarks


def remarks_of(config: AnswersConfig, run: Run) -> dict[str, str]:
    """What is to be said under the table of one row: what could not be measured, how far apart the seeds were, and what
    its target claims."""
    measure, release = config.measures[0], config.releases[0]
    remarks: dict[str, str] = {}
    for record in run.units():
        remarks |= record[measure]["remarks"]
        for of in numbers_in(record, measure).values() if measure == "membership" else ():
            spread = [f"s = {least}: {_spread(of, least)}" for least in config.minimum]
            remarks["± over seeds, and providers"] = "; ".join(spread)
        bill, target = record.get("bill"), release.to_train
        if bill and target is not None and target.epsilon:
            if target.training.published_counting:
                bound = target.training.plan(target.epsilon).bound()
                remarks[target.name] = f"{bill['claim']} A bound for the same training: {bound.sentence()}"
            else:
                published = (
                    f" The paper's counting would call it epsilon {bill['as_published']:.3g}, which is no bound."
                )
                remarks[target.name] = bill["claim"] + published * (target.kind == "federated")
    return remarks


def _spread(numbers: dict[str, Estimate], least: int) -> str:
    std, providers = numbers[f"std_s{least}"].value, numbers[f"providers_s{least}"].value
    return f"{'-' if std is None else format(100 * std, '.1f')}, n = {providers:g}"


def draw(rows: Sequence[TableRow]) -> bytes:
    """A PNG: a panel per column with every row's number and interval (dots), and the paper's (crosses); of documents by
    provider and questions by key, a panel per row with their numbers; of accuracies for more than PANELS numbers of
    questions a curve per row."""
    measure = rows[0].study.config.measures[0]
    if measure in COUNTED:
        parts = {row.name: record[measure]["counts"] for row in rows for record in row.run.units()}
        return COUNTED[measure](parts)
    numbers_of = [row.study.numbers(row.run) for row in rows]
    estimates = [{name: one for name, one in of.items() if isinstance(one, Estimate)} for of in numbers_of]
    several = len({row.model for row in rows}) > 1
    names = [f"{row.name} ({row.model})" if several else row.name for row in rows]
    minimum = rows[0].study.config.minimum
    if measure == "membership" and len(minimum) > PANELS:
        named = {name: {least: numbers[f"accuracy_s{least}"] for least in minimum}
                 for name, numbers in zip(names, estimates, strict=True)}  # fmt: skip
        return png_figure(accuracy_over_minimum(named))
    columns = {name: COLUMNS[name] for name in rows[0].study.shown()}
    told = {name for numbers in estimates for name, number in numbers.items() if number.value is not None}
    columns = {name: column for name, column in columns.items() if column.percent and name in told} or columns
    across = min(4, len(columns))
    down = -(-len(columns) // across)
    height = 0.27 * len(rows) + 0.9
    figure = new_figure(2.6 + 2.6 * across, max(2.4, height) * down)
    axes = figure.subplots(down, across, squeeze=False, sharey=True)
    for axis in axes.flat[len(columns) :]:
        axis.set_visible(False)
    for axis, (name, column) in zip(axes.flat, columns.items(), strict=False):
        for place, (row, numbers) in enumerate(zip(rows, estimates, strict=True)):
            scale = 100.0 if column.percent else 1.0
            mark(axis, place, numbers.get(name), row.printed.get(name), scale=scale)
        axis.set_title(column.head + (", %" if column.percent else ""), fontsize=8)
        axis.grid(alpha=0.25)
        axis.tick_params(labelsize=7)
    first = axes[0, 0]
    first.set_yticks(range(len(rows)), names, fontsize=7)
    first.set_ylim(len(rows) - 0.5, -0.5)
    printed = any(row.printed for row in rows)
    words = "dots: ours; bars: 95 % intervals over providers" + "; crosses: printed in the paper" * printed
    figure.supxlabel(words, fontsize=8)
    return png_figure(figure)
