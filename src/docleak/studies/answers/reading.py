"""What a run of attacks on released models says: verdicts, all releases side by side, what they said, and tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup

from docleak.attacks.registries import DOCUMENTS
from docleak.documents.blue_red_files import ISSUERS
from docleak.errors import RunError
from docleak.metrics.estimate import Estimate
from docleak.report.page import PAGE, Reading, Section, run_facts
from docleak.report.pictures import new_figure, picture, svg_figure
from docleak.report.severity import Part, Severity
from docleak.report.statement import Scope
from docleak.report.table import Column, Row, Table
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.spec import counted_words
from docleak.studies.answers.config import CONTROL, UNNAMED
from docleak.studies.answers.measured import compared_with, measures_of
from docleak.studies.answers.record import Record, best_attack, best_score, least_of, measured_in, numbers_in
from docleak.studies.answers.shipped import SHIPPED
from docleak.studies.answers.verdict import confidence_of, headline_of, said_of, sentences, severity_of

THREAT: dict[str, Any] = {
    "adversary": "anyone who may ask the released model: a customer of its interface, or whoever downloads it",
    "sees": ["answers; APK also confidences and losses"],
    "knows": ["documents of its own of each provider, with their answers, none of which was trained on (RED)"],
    "cannot": ["see the training, its updates, or any page of it"],
}
DOCUMENT_THREAT = {
    "adversary": "whoever holds the released model and a document, and suspects that it was trained on",
    "sees": ["answers and losses (loss, reference, rmia, informia, calibrated)", "its weights (distance, docmia)"],
    "knows": ["the document, with questions and their answers", "models that saw neither set, where some are given"],
    "cannot": ["see the training, its updates, or who was a member; the auditor, who knows it, evaluates"],
}
DOCUMENT_LIMITS = (
    "A score that fails is not all scores: stronger ones exist, and more questions about a document tell more.",
    "Members and others are as the auditor says. The blind baseline finds differences that a linear classifier of "
    "words, boxes and pictures learns from so many documents; others may be left.",
    "Ranks of fields: the rest of a page may tell its value; compare with others, and with before the training.",
    "Intervals are over documents, and over providers where these have several on a side; not over trainings.",
)
LIMITS = (
    "An attack that fails is not all attacks: stronger ones exist, and more documents of a provider tell more.",
    "Members and others are as the division says; what shows that a release saw them stands with its verdict.",
    "A measured epsilon is a lower bound from one training; 0 proves nothing.",
    "The memorisation test hides what docleak finds; clues that it leaves count as memory: compare both sides.",
    "Intervals are over providers, not over trainings: another training of the same recipe may remember others.",
)
COMPARED = {
    "anls": Column("Useful: ANLS", 1, percent=True),
    "gap": Column("Members answered better by", 1, percent=True),
    "beyond": Column("Beyond the public model", 1, percent=True),
    "documents": Column("Documents told apart: AUC"),
    "known": Column("Hidden fields ranked first, members'", 1, percent=True),
    "unknown": Column("Others'", 1, percent=True),
    "memory": Column("Hidden answer told of members", 1, percent=True),
    "others": Column("Of others", 1, percent=True),
    "attack": Column("Best attack right", 1, percent=True),
    "auc": Column("AUC"),
    "measured": Column("ε shown, at least", 2, bound="least"),
    "claimed": Column("ε claimed, at most", 2, bound="most"),
    "gigabytes": Column("GiB sent", 2),
}
#: Hidden answers, and pictures, that are shown of a release.
EXPOSED, EXAMPLES = 8, 2
SCORES = "Scores of the attacks: members and others."
HEAT = ("Private fields by how well the model knows them, the value taken off the page: red ranks first.",
        "The same of a document that was not trained on.")  # fmt: skip
HIDDEN = "A page as it is, and as it was asked about: what was removed is tinted."


def read_run(run: Run, *, beside: bool = False) -> Reading:
    """Everything from the run's units, the control first. RunError if none is finished. ``beside``: one section."""
    labels = [CONTROL, *(release["label"] for release in run.config["releases"])]
    records = sorted(run.units(), key=lambda record: labels.index(record["label"]))
    released = [record for record in records if not record["control"]]
    if not released:
        raise RunError(f"{run.path} has no finished release. Run the same command again until one is.")
    of = released[0].get("documents")
    asked_for, anchor = ("documents", "documents") if of else ("answers", "released")
    parts = [
        Part(f"{asked_for} of {r['label']}", severity_of(r), headline_of(r), said_of(r), anchor if beside else "",
             chance=1 - confidence_of([r]) / 100)
        for r in released
    ]  # fmt: skip
    named = [str(record["label"]) for record in released if record["label"] != UNNAMED]
    members, providers = _counts(released)
    division = run.config["division"]
    shipped = division == SHIPPED or run.config["members"] == run.config["non_members"] == SHIPPED
    asked = f"asked about {counted_words(providers, 'provider')}" if providers else "asked about the test documents"
    word = "docleak's own record" if shipped else "the division that was given"
    lead = f"{asked}, {members} of which, but none of these documents, were in the training by {word}."
    material = f"documents of {counted_words(providers, 'provider')}, {members} of which were in the training by {word}"
    if of:
        word = "docleak's own record" if shipped else "the word of whoever asked"
        members, asked = of["members"], f"asked about {of['members'] + of['others']} documents"
        lead, material = (
            f"{asked}, {members} of which were trained on, by {word}.",
            f"{members} documents trained on and {of['others']} not, by {word}",
        )
    verdicts = render("verdicts.html.j2", verdicts=[_verdict(record) for record in records])
    side_by_side = render(
        "releases.html.j2", chart=chart(records), table=comparison(records),
        chance=next((best.chance for best in map(best_attack, released) if best), None),
        confidence=confidence_of(records),
    )  # fmt: skip
    threat = render("threat.html.j2", model=DOCUMENT_THREAT if of else _threat(released[0]))
    evidence = render("released.html.j2", releases=[_shown(run, record) for record in records])
    tables = {name: table for name, make in TABLES.items() if (table := make(records)).rows}
    numbers = Markup("").join(render("table.html.j2", table=table) for table in tables.values())
    sections = [
        Section("comparison", "Side by side", "Side by side: what each is good for, gives away, and cost",
                side_by_side),
        Section("threat-answers", "Threat model", "Threat model: who could do this", threat, open=True),
        Section("evidence-answers", "Evidence", "Evidence: look for yourself", evidence, annex=True),
        Section("numbers-answers", "Tables", "The whole tables", numbers),
    ]  # fmt: skip
    if of:
        scores = Section("comparison", "Documents and fields", "Which documents, and which fields", numbers)
        sections = [scores, *sections[1:3]]
    if beside:
        alone = Markup('<p class="quiet">A page of its own, with every score: <a href="{0}">{0}</a>.</p>').format(
            f"{run.path.name}/{PAGE}"
        )
        scored = [verdicts, alone if shipped else numbers]
        body = Markup("").join(scored if of else [verdicts, side_by_side, threat, evidence])
        heading = "And a single document" if of else "And the finished model: whose documents did it see?"
        toc = "A single document" if of else "The released model"
        sections = [Section(anchor, toc, heading, body, annex=True)]
    spoken = released if beside else records
    apart = ", documents" if of else ""
    lines = [line for r in spoken for line in (f"{r['label']}{apart}:", *(f"  {said}" for said in sentences(r)))]
    return Reading(
        question="Was this document trained on, and which of its fields does the model know?" if of else
        "Whose documents did the model see, and what does it remember of them?",
        lead=f"{counted_words(len(released), 'model')}, {lead}",
        parts=tuple(parts),
        counted=f"{counted_words(len(released), 'released model')}, {asked}.",
        articles=Markup("") if beside else verdicts,
        sections=tuple(sections),
        lines=tuple(lines),
        results={"releases": [_for_machines(record) for record in records]},
        tables={"releases": comparison(records), **tables},
        limits=DOCUMENT_LIMITS if of else LIMITS,
        notices=(_left_out(*of["bare"]),) if of and "bare" in of else (),
        runs=(run_facts(run.path, run.manifest()),),
        measures=tuple(one for record in released for one in measures_of(record)),
        scope=Scope(
            system=f"Released model{'s' * (len(released) != 1)} {', '.join(named)}".strip(),
            material=material,
            adversary="whoever may ask the released model", model=True,
            categories=tuple(sorted({key for r in released for name in ("memorisation", "fields")
                                     for key in numbers_in(r, name) if key})),
            remedies=tuple(line for record in released for line in compared_with(record, released)),
            remedy="docleak train federated --epsilon 8 --denominator 20, then docleak audit answers of both releases",
            unfinished=_unfinished(run.config, records),
        ),
        synthetic=shipped or (isinstance(division, dict) and division["documents"] == ISSUERS),
    )  # fmt: skip


def _left_out(members: int, others: int) -> str:
    """That documents cannot be asked about."""
    return (
        f"{counted_words(members, 'document')} said to be trained on and {counted_words(others, 'other')} have no "
        "question with an answer, and were left out."
    )


def _unfinished(config: Mapping[str, Any], records: Sequence[Record]) -> str:
    """How far the run is, in words; "" where every release, and the control, was asked."""
    there, planned = sum(not record["control"] for record in records), len(config["releases"])
    lacking = bool(config.get("public") and config.get("control")) and there == len(records)
    if there == planned and not lacking:
        return ""
    return f"{there} of {counted_words(planned, 'release')}{', no control' if lacking else ''}"


def _threat(record: Record) -> dict[str, Any]:
    """THREAT, as far as attacks on membership were made and know of a public model, with how many providers those that
    are told were told of in each draw: those that they did not guess about."""
    made = numbers_in(record, "membership")
    settings = {name: str(record["membership"]["attacks"][name]["setting"]) for name in made}
    public = any("epsilon_measured" in of for of in made.values())
    told, taught = [], [name for name, setting in settings.items() if setting.endswith("S")]
    for of, least in ((made[name], least_of(made[name])) for name in taught):
        all_of, seeds = (int(of[f"{key}_s{least}"].value or 0) for key in ("providers", "seeds"))
        told += [f"{all_of - of[f'accuracy_s{least}'].n // seeds} of {all_of}"] if seeds else []
    who = "APK" if all(name.startswith("APK") for name in taught) else " and ".join(taught)
    sees = THREAT["sees"] if any(setting.startswith("PK") for setting in settings.values()) else ["answers"]
    documents, some = THREAT["knows"][0], " or ".join(dict.fromkeys(told)) or "some"
    knows = [documents, f"{who}: {'the public model, and ' * public}of {some} providers whether they took part"]
    return {**THREAT, "sees": sees, "knows": knows if taught else [documents]}


def _counts(records: Sequence[Record]) -> tuple[int, int]:
    """Members, and providers, of whoever was asked about."""
    inside = {row["provider"]: row["member"] for of in ("membership", "memorisation")
              for row in records[0].get(of, {}).get("scores" if of == "membership" else "answers", ())}  # fmt: skip
    return sum(inside.values()), len(inside)


def comparison(records: Sequence[Record]) -> Table:
    """A row per release: what it is good for, gives away, and cost; columns that nobody has are left out."""
    rows = []
    asked = next((key for record in records for key in numbers_in(record, "memorisation")), "")
    for record in records:
        best, gap = best_attack(record), numbers_in(record, "gap").get("", {})
        useful = numbers_in(record, "utility").get("", {})
        memory = numbers_in(record, "memorisation").get(asked, {})
        aucs = [of["auc"].value for of in numbers_in(record, "membership").values() if "auc" in of]
        values = {
            "anls": useful.get("anls"), "gap": gap.get("gap_acc"),
            "beyond": None if record["control"] else gap.get("beyond_acc"), "memory": memory.get("positive_acc"),
            "documents": best_score(record)[1] if "documents" in record else None,
            "known": numbers_in(record, "fields").get("", {}).get("known"),
            "unknown": numbers_in(record, "fields").get("", {}).get("others"),
            "others": memory.get("negative_acc"), "attack": best.accuracy if best else None,
            "auc": max((auc for auc in aucs if auc is not None), default=None), "measured": measured_in(record),
            "claimed": record["bill"]["epsilon"], "gigabytes": useful.get("gigabytes"),
        }  # fmt: skip
        facts = {"control": record["control"], "best_attack": best.name if best else None}
        note = said_of(record) + (f"; best attack {best.name}" if best else "")
        rows.append(Row(record["label"], values, facts=facts, note=note, quiet=record["control"]))
    hidden = replace(COMPARED["memory"], head=f"Hidden {asked.replace('_', ' ')} told of members")
    return Table("", _known({**COMPARED, "memory": hidden}, rows), rows, first="Release", open=True)


def _known(columns: Mapping[str, Column], rows: Sequence[Row]) -> dict[str, Column]:
    """The columns in which a row has a value."""
    there = {key for row in rows for key, of in row.values.items() if getattr(of, "value", of) is not None}
    return {key: column for key, column in columns.items() if key in there}


def chart(records: Sequence[Record]) -> str:
    """Usefulness (ANLS) against what the best attack gets right, a point per release (SVG); "" for fewer than two."""
    points = [(row.name, row.values["anls"], row.values["attack"]) for row in comparison(records).rows]
    shown = [(label, useful.value, attack) for label, useful, attack in points
             if isinstance(useful, Estimate) and isinstance(attack, Estimate)
             and useful.value is not None and attack.value is not None]  # fmt: skip
    if len(shown) < 2:
        return ""
    figure = new_figure(7.2, 3.4)
    axis = figure.subplots()
    for number, (label, useful, attack) in enumerate(shown):
        accuracy = attack.value or 0.0
        near = sum(abs(one - useful) < 0.12 and abs((other.value or 0) - accuracy) < 0.03
                   for _, one, other in shown[:number])  # fmt: skip
        spread = 100 * np.abs([[accuracy - (attack.low or accuracy)], [(attack.high or accuracy) - accuracy]])
        axis.errorbar([100 * useful], [100 * accuracy], yerr=spread, fmt="o", capsize=3, color="#24506f")
        axis.annotate(label, (100 * useful, 100 * accuracy), textcoords="offset points", xytext=(7, 5 - 12 * near),
                      fontsize=9)  # fmt: skip
    chance = 100 * next(best.chance for best in map(best_attack, records) if best)
    axis.axhline(chance, color="#999", linestyle="--", linewidth=1)
    axis.text(0.01, chance, " saying one thing of all", va="bottom", fontsize=8, color="#666",
              transform=axis.get_yaxis_transform())  # fmt: skip
    axis.set(xlabel="useful: ANLS on test documents, %", ylabel="given away: best attack right, %")
    axis.margins(x=0.15)
    axis.grid(alpha=0.3)
    return svg_figure(figure)


def membership_table(records: Sequence[Record]) -> Table:
    """A row per release and attack, a column per s."""
    rates = {"auc": Column("AUC"), "tpr_at_10_fpr": Column("TPR at 10 % FPR")}
    columns: dict[str, Column] = {"features": Column("features"), "setting": Column("setting")}
    rows = []
    for record in records:
        for name, of in numbers_in(record, "membership").items():
            least = [key for key in of if key.startswith("accuracy_s")]
            columns |= {
                key: Column(f"accuracy, s = {key.removeprefix('accuracy_s')}", 1, percent=True) for key in least
            }
            told = record["membership"]["attacks"][name]
            facts = {"release": record["label"], **{f"{key}_mean": of[key].value for key in rates if key in of}}
            values = {"features": " + ".join(told["features"]), "setting": told["setting"], **of}
            rows.append(Row(f"{record['label']}: {name}", values, facts=facts))
    caption = "means over draws of whom APK knows, and 95 % intervals over providers"
    return Table("Membership", {**columns, **rates}, rows, caption, first="attack", open=True)


def memorisation_table(records: Sequence[Record]) -> Table:
    """Two rows per release and key: over all its answers, and over the confident ones."""
    heads = {"positive": "members'", "negative": "others'", "gap": "difference"}
    columns = {f"{side}_{of}": Column(f"{head}, {of.upper()}", 1, percent=True)
               for side, head in heads.items() for of in ("acc", "anls")}  # fmt: skip
    rows = []
    for record in records:
        for key, of in numbers_in(record, "memorisation").items():
            for suffix, said in (("", "all answers"), ("_confident", "answers of confidence ≥ 0.9")):
                values = {name: of[name + suffix] for name in columns}
                n, others = (values[f"{side}_acc"].n for side in ("positive", "negative"))
                name = f"{record['label']}: {key}, {said}"
                rows.append(Row(name, values, note=f"of {n} and {others} documents"))
    return Table("Memorisation", columns, rows, "right answers to what was hidden, on RED documents", first="asked for",
                 open=True)  # fmt: skip


def disclosure_table(records: Sequence[Record]) -> Table:
    """The most frequent answers to what no page shows, and whose values of the training they are."""
    columns = {"answer": Column("answer"), "target": Column("it says it", 0), "public": Column("public model", 0),
               "trained_as": Column("in the training as")}  # fmt: skip
    rows = [
        Row(f"{record['label']}: {row['key']}", {name: row[name] for name in columns})
        for record in records if not record["control"]
        for row in record.get("disclosure", {}).get("rows", ())
    ]  # fmt: skip
    remarks = [f"{r['label']}, {key}: {said}." for r in records if not r["control"]
               for key, said in r.get("disclosure", {}).get("remarks", {}).items()]  # fmt: skip
    return Table("Asked of documents that do not show it", columns, rows, " ".join(remarks), first="asked for")


def documents_table(records: Sequence[Record]) -> Table:
    """A row per release and score, and per control, whose interval has to hold 1/2."""
    columns = {"auc": Column("AUC"), "tpr_at_10_fpr": Column("TPR at 10 % FPR", 1, percent=True),
               "tpr_at_1_fpr": Column("TPR at 1 % FPR", 1, percent=True)}  # fmt: skip
    rows, whys, known = [], dict[str, None](), DOCUMENTS.summaries()
    for record in records:
        of = record.get("documents", {"controls": {}})
        for name, told in of["controls"].items():
            note = "tells the sets apart: nothing is concluded" if name in of["differs"] else "control"
            rows.append(Row(f"{record['label']}: {name}", {"auc": Estimate.of_json(told)}, note=note, quiet=True))
        for name, numbers in numbers_in(record, "documents").items():
            rows.append(Row(f"{record['label']}: {name}", numbers, note=known.get(name, "")))
            whys |= dict.fromkeys(number.why for number in numbers.values() if number.why)
    caption = "Intervals over documents: of controls 95 % each, of scores 95 % for all of a release together. "
    return Table("Documents", columns, rows, caption + " ".join(f"{why}." for why in whys), first="score", open=True)


def fields_table(records: Sequence[Record]) -> Table:
    """A row per release and kind of field."""
    heads = {"known": "members'", "before": "members', before the training", "others": "others'", "gap": "difference",
             "beyond": "beyond before", "chance": "chance"}  # fmt: skip
    rows = [
        Row(f"{record['label']}: {key or 'all'}", {name: of.get(name) for name in heads},
            note=f"{of['known'].n} and {of['others'].n} fields")
        for record in records for key, of in numbers_in(record, "fields").items()
    ]  # fmt: skip
    columns = _known({name: Column(head, 1, percent=True) for name, head in heads.items()}, rows)
    caption = "How often the true value, taken off the page, ranks first among those of other documents"
    return Table("Fields", columns, rows, caption, first="field", open=True)


TABLES: dict[str, Callable[[Sequence[Record]], Table]] = {
    "documents": documents_table, "fields": fields_table,
    "membership": membership_table, "memorisation": memorisation_table, "disclosure": disclosure_table,
}  # fmt: skip


def _verdict(record: Record) -> dict[str, Any]:
    severity = Severity.UNMEASURED if record["control"] else severity_of(record)
    first, *rest = sentences(record) or [said_of(record)]
    return {"severity": severity, "name": record["label"], "label": said_of(record), "headline": first, "lines": rest}


def _for_machines(record: Record) -> dict[str, Any]:
    said = {"severity": severity_of(record), "label": said_of(record), "sentence": headline_of(record)}
    numbers = {of: record[of]["numbers"] for of in ("gap", *TABLES, "utility") if of in record}
    if "documents" in record:
        kept = ("controls", "differs", "references", "strangers", "answered", "learnt")
        said |= {name: of for name, of in record["documents"].items() if name in kept}
    return {"release": record["label"], "control": record["control"], **said, "bill": record["bill"], **numbers}


def _shown(run: Run, record: Record) -> dict[str, Any]:
    """Hidden answers of members that a release gave exactly, the surest first, one per provider and key; and pictures:
    of the attacks' scores, and of pages as they were asked about."""
    told = [row for row in record.get("memorisation", {}).get("answers", ()) if row["member"] and row["accuracy"] == 1]
    unique = {(row["key"], row["provider"]): row for row in sorted(told, key=lambda row: row["confidence"] or 0)}
    exposed = sorted(unique.values(), key=lambda row: -(row["confidence"] or 0))[:EXPOSED]
    wanted = ("scores", *(f"example-{n:03d}" for n in range(EXAMPLES)))
    heat = {name: HEAT["other" in name] for name in record["images"] if name.startswith("heat-")}
    names = [*heat, *(name for name in wanted if name in record["images"])]
    pictures = [
        {**picture(run.read_image(record["unit"], record["images"][name]), f"{label} ({record['label']}, {name})"),
         "label": label}
        for name in names for label in [heat.get(name, SCORES if name == "scores" else HIDDEN)]
    ]  # fmt: skip
    return {"label": record["label"], "exposed": exposed, "pictures": pictures}
