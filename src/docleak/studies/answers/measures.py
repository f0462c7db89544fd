"""What is measured of a release, as numbers with intervals: one function per measure, from replies kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from docleak.attacks.answers.disclosure import disclosed, draw_absent, items_of, unread
from docleak.attacks.answers.features import Reply, provider_features
from docleak.attacks.answers.memorisation import Case, hidden_items
from docleak.documents.blue_red import RED_NEGATIVE, TEST, VALIDATION
from docleak.documents.page import Image
from docleak.documents.phrasings import PHRASINGS
from docleak.errors import AttackError, RecipeError
from docleak.metrics.estimate import Estimate
from docleak.metrics.memorisation import Remembered, beyond_public, gained, remembered
from docleak.models.loading import load_model
from docleak.privacy.budget import noise_for
from docleak.privacy.empirical import LowerBound, held_against
from docleak.privacy.mechanism import Mechanism, Participation, Unit
from docleak.privacy.second import Accountant
from docleak.studies.answers.bench import Bench, Found, Numbers
from docleak.studies.answers.counting import by_key, by_provider, part_of, size_of
from docleak.studies.answers.documents import asked_about, facts_of, rates_of, recorded, strangers
from docleak.studies.answers.heatmap import as_one, heat_maps, known_in, ranked_fields
from docleak.studies.answers.membership import beyond, features_of, guessed, measure, measured_epsilon, without_public
from docleak.studies.answers.memorisation import (
    CONFIDENT,
    disclosed_values,
    disclosure_rows,
    example,
    outcomes_of,
    skew,
)
from docleak.studies.answers.pictures import draw_scores
from docleak.studies.answers.red import (
    by_provider_means,
    memory_cases,
    memory_of,
    outcomes,
    replies_to,
    together,
)
from docleak.studies.answers.shipped import SHIPPED
from docleak.studies.study import BY_PROVIDER

#: Delta of a measured epsilon where no claim says another.
DELTA = 1e-5
#: The answers to a probe that are looked at (appendix D.1.4), and the pages in pictures.
TOP, EXAMPLES = 15, 6


def gap(bench: Bench) -> Found:
    """ACC and ANLS on RED, the difference between positive and negative (Tables 1 and 9), and what of it the training
    added to the public model's."""
    (target, public), members = bench.replies, bench.red.members
    scores = outcomes(target, members)
    accuracy, anls = together(scores, bench.rng())
    numbers = {"red_acc": accuracy, "red_anls": anls, **sides(remembered(scores, rng=bench.rng()))}
    if public is not None:
        both = beyond_public(scores, outcomes(public, members), rng=bench.rng())
        numbers |= {"beyond_acc": both[0], "beyond_anls": both[1]}
    return Found({"": numbers})


def membership(bench: Bench) -> Found:
    """Attack accuracy per s, and the epsilon that the losses show (Tables 4, 10, 11, 13). Where no coins say who is a
    member, the same attacks are made on the public model, too: members may be told by what it answers."""
    config, red = bench.config, bench.red
    target, public = bench.replies
    attacks = [attack if public is not None else without_public(attack) for attack in config.attacks]
    memory = None
    cases: Sequence[Case] = ()
    if any("G4" in features_of(attack) for attack in attacks):
        cases = memory_cases(red, config.keys[0], bench.values, seed=config.seed).cases
        memory = memory_of(red, cases, bench.ask_target)
    table = provider_features(target, public, memory)
    seeds = range(config.seed, config.seed + config.seeds)
    by_attack = {
        attack.name: [measure(table, red.members, attack, least, seeds=seeds) for least in config.minimum]
        for attack in attacks
    }
    numbers: dict[str, Numbers] = {}
    remarks: dict[str, str] = {}
    for name, subsets in by_attack.items():
        numbers[name] = {rate: Estimate.exactly(value) for rate, value in subsets[0].rates.items()}
        for of in subsets:
            numbers[name] |= {f"accuracy_s{of.minimum}": of.accuracy}
            numbers[name] |= {f"{key}_s{of.minimum}": Estimate.exactly(getattr(of, key))
                              for key in ("std", "providers", "members", "seeds", "chance")}  # fmt: skip
            remarks |= {f"s = {of.minimum}": of.accuracy.why} if of.accuracy.why else {}
    if public is not None:
        bound = _lower_bound(bench, target, public)
        remarks["Measured"] = bound.sentence()
        measured = {"epsilon_measured": Estimate.exactly(bound.epsilon)}
        measured["epsilon_claimed"] = Estimate.exactly(bench.bill.claim.epsilon)
        numbers = {name: {**of, **measured} for name, of in numbers.items()}
    if public is not None and not bench.blue_red.coins and bench.ask_public is not None:
        blank = provider_features(public, public, memory and memory_of(red, cases, bench.ask_public))
        for attack in attacks:
            ours = next(of for of in by_attack[attack.name] if of.minimum == min(config.minimum))
            theirs = measure(blank, red.members, attack, ours.minimum, seeds=seeds)
            numbers[attack.name][f"beyond_s{ours.minimum}"] = beyond(ours, theirs, bench.rng())
    guesses = guessed(table, red.members, attacks, config.seed)
    said = {name: dict(zip(guess.providers, guess.scores.tolist(), strict=True)) for name, guess in guesses.items()}
    scores = [
        {"provider": provider, "member": int(red.members[provider]), "questions": int(table.questions[row]),
         **dict(zip(table.columns, table.values[row].tolist(), strict=True)),
         **{name: of.get(provider) for name, of in said.items()}}
        for row, provider in enumerate(table.providers)
    ]  # fmt: skip
    inside = sum(red.members.values())
    facts = {
        BY_PROVIDER: {f"accuracy_s{of.minimum}": dict(of.right) for of in by_attack[attacks[0].name]},
        "members": inside, "others": len(red.members) - inside, "questions": len(target), "scores": scores,
        "coins": bench.blue_red.coins,
        "attacks": {a.name: {"features": list(features_of(a)), "setting": a.setting} for a in attacks},
    }  # fmt: skip
    return Found(numbers, facts, remarks, {"scores": draw_scores(table, red.members, by_attack)})


def _lower_bound(bench: Bench, target: Sequence[Reply], public: Sequence[Reply]) -> LowerBound:
    """The measured epsilon; ContradictionError where it is above what the training claims."""
    claim, fair = bench.bill.claim, bench.blue_red.coins == 0.5  # else it is an estimate, and may be wrong
    bound = measured_epsilon(
        target, public, bench.red.members, coins=bench.blue_red.coins, delta=claim.delta or DELTA,
        seed=bench.config.seed,
    )  # fmt: skip
    aim = bench.release.to_train
    if fair and aim is not None and aim.epsilon:
        held_against(bound, aim.training.plan(aim.epsilon).bound())
    elif fair and claim.epsilon is not None and claim.unit == Unit.PROVIDER:
        held_against(bound, claim)
    return bound


def memorisation(bench: Bench) -> Found:
    """The memorisation test of each key, over all answers and over confident ones (Tables 2, 7 and 8). Keys that no
    document shows are left out; AttackError where none is left. Where no coins say who is a member, the public model is
    asked, too: members' values may be easier to guess, and what it told before is no memory of the training."""
    red, config = bench.red, bench.config
    members = {name for name, inside in red.members.items() if inside}
    numbers: dict[str, Numbers] = {}
    rows: list[dict[str, Any]] = []
    remarks: dict[str, str] = {}
    images: dict[str, Image] = {}
    for key in config.keys:
        drawn = memory_cases(red, key, bench.values, seed=config.seed)
        if not drawn.cases:
            remarks[key] = (
                f"no document of RED shows an answer to it: {len(drawn.unanswered)} have none that is known, of "
                f"{len(drawn.not_found)} the words do not show it"
            )
            continue
        said = bench.ask_target(hidden_items(red.pages, drawn.cases))
        scores = outcomes_of(drawn.cases, said, members)
        every = remembered(scores, rng=bench.rng())
        sure = sides(remembered(scores, rng=bench.rng(), confidence=CONFIDENT))
        counts = {f"{side}_n": Estimate.exactly(of.n, n=of.groups, of="providers")
                  for side, of in (("positive", every.positive[0]), ("negative", every.negative[0]))}  # fmt: skip
        numbers[key] = {**counts, **sides(every), **{f"{name}_confident": number for name, number in sure.items()}}
        before: dict[int, dict[str, float]] = {}
        if bench.ask_public is not None and not bench.blue_red.coins:
            guessed_at = outcomes_of(drawn.cases, bench.ask_public(hidden_items(red.pages, drawn.cases)), members)
            numbers[key]["beyond_acc"] = beyond_public(scores, guessed_at, rng=bench.rng())[0]
            numbers[key]["gained_acc"] = gained(scores, guessed_at, rng=bench.rng())
            before = {row: {"public": one.accuracy} for row, one in enumerate(guessed_at)}
        rows += [
            {"key": key, "provider": case.provider, "member": int(case.provider in members), "document": case.document,
             "question": case.question.text, "hidden": case.question.answers[0], "answer": one.text,
             "confidence": one.confidence, "accuracy": score.accuracy, "anls": score.anls, **before.get(row, {})}
            for row, (case, one, score) in enumerate(zip(drawn.cases, said, scores, strict=True))
        ]  # fmt: skip
        if not images:
            shown = list(zip(drawn.cases, said, strict=True))[:EXAMPLES]
            images = {f"example-{n:03d}": example(red.pages[case.number], case, one)
                      for n, (case, one) in enumerate(shown)}  # fmt: skip
    if not numbers:
        raise AttackError(
            f"{'; '.join(f'{key}: {why}' for key, why in remarks.items())}. Ask for keys that the documents have."
        )
    return Found(numbers, {"answers": rows, "coins": bench.blue_red.coins}, remarks, images)


def disclosure(bench: Bench) -> Found:
    """What the release says of others' documents when asked for what they do not show (appendix D.1.4), and which of it
    are values of its training that neither the page that was asked about prints, in another place, nor the public model
    gives."""
    keys, strange = ([key for key in bench.config.keys if (key in PHRASINGS) is known] for known in (True, False))
    if bench.ask_public is None:
        why = "without a public model what it says of documents that show nothing cannot be compared"
        return Found({}, {"rows": []}, {"Not asked": why})
    pages = bench.pages(RED_NEGATIVE)
    cases = draw_absent(pages, keys, rng=bench.rng())
    if not cases and bench.config.measures == ("disclosure",):
        raise AttackError(f"every document of {RED_NEGATIVE} shows {', '.join(keys)}; ask for other keys.")
    spoken = list(bench.ask_target(items_of(pages, cases)))
    said, secret = disclosed(cases, spoken), disclosed(*unread(cases, spoken, pages))
    control = disclosed(cases, bench.ask_public(items_of(pages, cases)))
    texts = {value.text.lower().strip() for value in bench.values}
    numbers: dict[str, Numbers] = {}
    rows: list[dict[str, Any]] = []
    remarks = {"Not asked": f"there are no words to ask for {', '.join(strange)}"} if strange else {}
    for key, replies in said.items():
        public = {text for text, _ in control[key].answers}
        values = {
            "asked": replies.asked,
            "different": len(replies.answers),
            "share": replies.share,
            "trained": sum(text in texts and text not in public for text, _ in replies.top(TOP)),
            "disclosed": len(disclosed_values(secret[key], control[key], bench.values)) if key in secret else 0,
        }
        numbers[key] = {f"{name}_{key}": Estimate.exactly(value) for name, value in values.items()}
        rows += disclosure_rows(replies, control[key], bench.values, count=TOP)
        remarks[key] = f"{skew('target', replies)}; {skew('public model', control[key])}"
    return Found(numbers, {"rows": rows}, remarks)


def utility(bench: Bench) -> Found:
    """ACC and ANLS on BLUE's test documents (members' and others'), validation beside it (Tables 3 and 6); where there
    are no test documents, on those kept for validation."""
    numbers: Numbers = {}
    apart: dict[str, dict[str, float]] = {}
    for part, suffix in ((VALIDATION, "_validation"), (TEST, "")):
        pages = bench.pages(part)
        if len(pages):
            scores = outcomes(replies_to(pages, bench.ask_target), {})
            (accuracy, anls), apart = together(scores, bench.rng()), by_provider_means(scores)
            numbers |= {f"anls{suffix}": anls, f"accuracy{suffix}": accuracy}
    if "anls" not in numbers:
        numbers = {name.removesuffix("_validation"): number for name, number in numbers.items()}
    why = "" if numbers else f"{bench.blue_red.path.name} keeps nothing for test or validation"
    numbers["gigabytes"] = Estimate.exactly(bench.bill.bytes / 2**30 if bench.bill.bytes else None)
    return Found({"": numbers}, {BY_PROVIDER: apart}, {"Utility": why} if why else {})


def noise(bench: Bench) -> Found:
    """The noise multiplier of a private target: by the paper's accountant and counting, by PLD, and by ours."""
    target = bench.release.to_train
    if target is None or not target.epsilon:
        raise RecipeError("the noise of a target without privacy was asked for; give the row an epsilon.")
    training = target.training
    plain = Mechanism(0.0, training.rounds, training.unit_rate, training.participation)
    hidden = replace(plain, participation=Participation.HIDDEN)
    by = {
        "noise_prv": (hidden, Accountant.PRV),
        "noise_pld": (hidden, Accountant.PLD),
        "noise_ours": (plain, Accountant.PLD),
    }
    claims = {name: noise_for(m, target.epsilon, training.delta, accountant) for name, (m, accountant) in by.items()}
    numbers = {name: Estimate.exactly(of.mechanism.noise_multiplier) for name, of in claims.items()}
    return Found({"": numbers}, {}, {"Ours": claims["noise_ours"].sentence()})


def division(bench: Bench) -> Found:
    """Providers, documents, pages and questions of one part (Table 5)."""
    return Found({"": size_of(part_of(bench.blue_red, bench.config.part))})


def spread(bench: Bench) -> Found:
    """Documents by provider of one part (Figure 2)."""
    numbers, counts = by_provider(part_of(bench.blue_red, bench.config.part))
    return Found({"": numbers}, {"counts": counts})


def keys(bench: Bench) -> Found:
    """Questions by key of one part (Figure 6)."""
    numbers, counts = by_key(part_of(bench.blue_red, bench.config.part))
    return Found({"": numbers}, {"counts": counts})


def documents(bench: Bench) -> Found:
    """Whether a document was trained on: the AUC of every score, and of controls that must tell nothing."""
    c, sides = bench.config, bench.sides
    references = [name for name in (c.public, *c.references) if name]
    asked = asked_about(sides, bench.ask_target, [bench.asker(name) for name in references], bench.model)
    facts = {
        "references": references, "strangers": strangers(sides, bench.bill.model),
        "recorded": c.members == SHIPPED or recorded(sides, bench.bill.model),
    }  # fmt: skip
    return Found(rates_of(sides, asked, seed=c.seed), {**facts, **facts_of(sides, asked, seed=c.seed)})


def fields(bench: Bench) -> Found:
    """Which private fields the model knows that their page no longer shows, by rank among values of other documents."""
    c, sides = bench.config, bench.sides
    if bench.model.architecture == "layoutlmv3":
        return Found({}, {}, {"Not asked": "it points at words of the page, and cannot say what was taken off"})
    reference = load_model(c.public, device=bench.device) if c.public else None
    if not (ranked := ranked_fields(sides, bench.model, reference, rng=bench.rng())):
        return Found({}, {}, {"Not asked": "no private field has 4 values that other documents have in its place"})
    return Found(
        known_in(ranked, seed=c.seed, groups=as_one(sides)),
        {"rows": [asdict(one) for one in ranked]},
        {},
        heat_maps(sides, ranked),
    )


def sides(found: Remembered) -> Numbers:
    """Positive, negative and their difference by name."""
    rows = {"positive": found.positive, "negative": found.negative, "gap": found.difference}
    return {f"{side}_{of}": one for side, both in rows.items() for of, one in zip(("acc", "anls"), both, strict=True)}


#: What AnswersConfig.measures names.
MEASURED: dict[str, Callable[[Bench], Found]] = {
    measure.__name__: measure
    for measure in (
        gap, membership, memorisation, disclosure, utility, noise, division, spread, keys, documents, fields,
    )
}  # fmt: skip
