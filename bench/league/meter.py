"""docleak's document membership beside Privacy Meter's (MIT) RMIA, LOSS and one-run audit, of the same losses.

    python3 -m venv METER && METER/bin/pip install numpy scipy scikit-learn matplotlib seaborn torch transformers tqdm
    python -m bench.league meter --peer METER/bin/python --source CHECKOUT    of privacytrustlab/ml_privacy_meter

Documents are those of the shipped release: 60 that it was trained on, and 60 of the same providers that it was not; the
reference is the public model, which saw none. A document's signal is exp(-mean loss of its questions), as its own code
takes it of a text. Both sides get the same losses and the same population: the audited documents.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from bench.league.ask import ask
from bench.league.auditing import DELTA, ERROR, NO_BOUND, WRONG, verdict
from docleak.attacks.answers.documents import OFFLINE
from docleak.metrics import Estimate
from docleak.metrics.estimate import ratio_interval
from docleak.report.table import Row

TARGET, PUBLIC, SEED = "vt5-released", "vt5-public", 0
#: Pairs of documents whose losses are planted: members' are so much lower, at questions of very different difficulty.
PLANTED, LOWER = 300, (0.7, 0.85)
SHOWN = {"release": "documents of the shipped release", "planted": "planted losses"}
#: A score of docleak's, and the one of Privacy Meter's that it is held against; the first is what either would begin
#: with: docleak's own with one reference, and the algorithm of its example configurations.
PAIRED = (("calibrated", "RMIA"), ("calibrated", "LOSS"), ("loss", "LOSS"), ("rmia", "RMIA"),
          ("informia", "RMIA"), ("reference_ratio", "RMIA"))  # fmt: skip
#: What docleak took from whom; without one, it is docleak's own or the same attack.
BY = {"informia": " (Tao and Shokri)", "reference_ratio": " (after LoRA-Leak)"}
RESAMPLES, STRENGTH = 2000, 1.0
#: Mechanism -> how many canaries, and how many draws.
CANARIES = {"Laplace noise": (100, 16), "randomised response": (40, 80)}


def released() -> dict[str, Any]:
    """Losses of the target and the reference on the questions of both sides."""
    from docleak.attacks.answers.asking import AnswersView, Item
    from docleak.attacks.answers.asking import ask as ask_model
    from docleak.models.loading import load_model
    from docleak.studies.answers.shipped import document_pairs

    sides = document_pairs(SEED)
    items = [
        (2 * number + side, Item(page, question))
        for side, pages in enumerate(sides) for number, page in enumerate(pages) for question in page.questions
    ]  # fmt: skip
    told = [
        [one.loss for one in ask_model(AnswersView(load_model(name), scores=True), [item for _, item in items])]
        for name in (TARGET, PUBLIC)
    ]
    return {
        "document": np.array([document for document, _ in items]), "losses": np.array(told, float).T,
        "key": [item.question.key or item.question.text for _, item in items],
    }  # fmt: skip


def planted() -> dict[str, Any]:
    """Losses of three questions a document, hard and easy ones, even documents members."""
    rng = np.random.default_rng(SEED)
    document = np.repeat(np.arange(2 * PLANTED), 3)
    hard = rng.gamma(1.0, 1.0, len(document)) + 0.05
    share = np.where(document % 2 == 0, rng.uniform(*LOWER, len(document)), 1.0)
    noise = np.exp(0.1 * rng.normal(size=(len(document), 2)))
    return {"document": document, "losses": np.stack([hard * share, hard], 1) * noise, "key": ["q"] * len(document)}


def _game(taken: dict[str, Any]) -> dict[str, Any]:
    """Documents' signals for theirs, questions' losses for ours."""
    document, losses = taken["document"], taken["losses"]
    mean = np.array([losses[document == name].mean(0) for name in np.unique(document)])
    memberships = np.stack([np.unique(document) % 2 == 0, np.zeros(len(mean), bool)], 1)
    return {
        "signals": np.exp(-mean), "losses": mean, "memberships": memberships, "questions/document": document,
        "questions/losses": losses[:, 0], "questions/out": losses[:, 1],
    }  # fmt: skip


def measure(peer: str, source: str) -> dict[str, Any]:
    """Ask, score by both sides, and compare the AUCs by pairs of resamples over documents."""
    arrays: dict[str, Any] = {}
    keys: dict[str, list[str]] = {}
    for name, taken in (("release", released()), ("planted", planted())):
        arrays |= {f"{name}/{one}": value for one, value in _game(taken).items()}
        keys[name] = taken["key"]
    told, truths = _canary_sets()
    arrays |= told
    counts = [[m, r, round(r * share)] for m in (48, 200) for r in (m, m // 3, m // 10) for share in (0.7, 0.9, 1.0)]
    job = {"delta": DELTA, "error": ERROR, "sets": list(keys), "counts": counts, "canaries": list(truths), "keys": keys,
           "source": str(Path(source).resolve()), "offline_a": OFFLINE}  # fmt: skip
    ours, mine = ask(sys.executable, "docleak_scores", job, arrays)
    theirs, other = ask(peer, "privacy_meter_scores", job, arrays)
    rates = {}
    for model in keys:
        members = arrays[f"{model}/memberships"][:, 0]
        of = {
            name.partition("/")[2]: value for name, value in {**mine, **other}.items() if name.startswith(f"{model}/")
        }
        rates[model] = {"auc": {n: auc_of(v, members) for n, v in of.items()}, "n": len(members),
                        "tpr": {n: tpr_of(v, members) for n, v in of.items()}, "told": theirs["sets"][model],
                        "pairs": [[a, b, *paired(of[a], of[b], members)] for a, b in PAIRED]}  # fmt: skip
    return {
        "models": rates, "seconds": ours["seconds"], "counts": counts, "truths": truths,
        "bounds": {"ours": ours["bounds"], "theirs": theirs["bounds"]},
        "optimal": {"ours": ours["optimal"], "theirs": theirs["optimal"]},
        "peak_mib": {"ours": ours["peak_mib"], "theirs": theirs["peak_mib"]},
    }  # fmt: skip


def _canary_sets() -> tuple[dict[str, Any], dict[str, float]]:
    """Scores of two mechanisms with the epsilon STRENGTH: Laplace noise; and randomised response whose answers come
    with a sureness that tells nothing, so that every number of guesses is as good as another."""
    arrays: dict[str, Any] = {}
    truths: dict[str, float] = {}
    for kind, (count, draws) in CANARIES.items():
        for draw in range(draws):
            rng = np.random.default_rng([count, draw])
            coins = rng.random(count) < 0.5
            honest = np.where(rng.random(count) < 1 / (1 + np.exp(-STRENGTH)), coins, ~coins)
            scores = (2 * honest - 1) * (1 + rng.random(count))
            if kind == "Laplace noise":
                scores = coins + rng.laplace(size=count) / STRENGTH
            arrays |= {f"{kind}, {draw}/scores": scores, f"{kind}, {draw}/coins": coins}
            truths[f"{kind}, {draw}"] = STRENGTH
    return arrays, truths


def auc_of(scores: NDArray[np.float64], members: NDArray[np.bool_]) -> float:
    """The chance that a member's score is above another's, ties by half."""
    gaps = scores[members][:, None] - scores[~members]
    return float((gaps > 0).mean() + (gaps == 0).mean() / 2)


def tpr_of(scores: NDArray[np.float64], members: NDArray[np.bool_], fpr: float = 0.1) -> float:
    """The share of members above the lowest threshold that keeps to the rate, without interpolation."""
    thresholds = np.unique(scores)
    kept = [t for t in thresholds if (scores[~members] >= t).mean() <= fpr]
    return float((scores[members] >= min(kept)).mean()) if kept else 0.0


def paired(ours: NDArray[np.float64], theirs: NDArray[np.float64], members: NDArray[np.bool_]) -> list[float]:
    """The difference of both AUCs, with its 95 % interval over resampled documents of either side."""
    rng, gaps = np.random.default_rng(0), []
    inside, outside = np.flatnonzero(members), np.flatnonzero(~members)
    for _ in range(RESAMPLES):
        drawn = np.concatenate([rng.choice(inside, len(inside)), rng.choice(outside, len(outside))])
        gaps.append(auc_of(ours[drawn], members[drawn]) - auc_of(theirs[drawn], members[drawn]))
    low, high = np.quantile(gaps, (0.025, 0.975))
    return [auc_of(ours, members) - auc_of(theirs, members), float(low), float(high)]


def rows(numbers: dict[str, Any]) -> list[Row]:
    """Scores of documents, then bounds on epsilon."""
    table = []
    memory = f"{numbers['peak_mib']['theirs']:.0f}, {numbers['peak_mib']['ours']:.0f}"
    for model, one in numbers["models"].items():
        for mine, peer, gain, low, high in one["pairs"]:
            seconds = f"{numbers['seconds'][f'{model}/{mine}']:.3f} s"
            seconds += f", theirs {one['told']['seconds']:.3f} s" if peer == "RMIA" else ""
            same = low == high == 0
            table.append(Row("Privacy Meter", {
                "case": f"{SHOWN[model]}: docleak's `{mine}`{BY.get(mine, '')}, its {peer}",
                "budget": "the same losses, one reference", "measure": "AUC (TPR at 10 % FPR)",
                "theirs": f"{one['auc'][peer]:.3f} ({100 * one['tpr'][peer]:.0f} %)",
                "ours": f"{one['auc'][mine]:.3f} ({100 * one['tpr'][mine]:.0f} %)",
                "difference": f"{Estimate(gain, low, high, one['n']).text(3, signed=True)}; {seconds}",
                "memory": memory,
                "n": one["n"], "verdict": "equal" if same else verdict(low, high),
            }))  # fmt: skip
    gaps = [a - b for a, b in zip(numbers["bounds"]["ours"], numbers["bounds"]["theirs"], strict=True)]
    table.append(Row("Privacy Meter", {
        "case": "counts of right guesses, Steinke", "budget": "the same counts", "measure": "epsilon at least, mean",
        "theirs": f"{np.mean(numbers['bounds']['theirs']):.3f}", "ours": f"{np.mean(numbers['bounds']['ours']):.3f}",
        "difference": f"from {min(gaps):+.5f} to {max(gaps):+.5f}", "memory": memory, "n": len(gaps),
        "verdict": "equal" if max(map(abs, gaps)) <= 1e-4 else "cannot tell",
    }))  # fmt: skip
    for kind, (count, _) in CANARIES.items():
        at = [i for i, name in enumerate(numbers["truths"]) if name.startswith(kind)]
        ours, theirs = (np.array(numbers["optimal"][side])[at] for side in ("ours", "theirs"))
        one = np.ones(len(at), np.int64)
        low, high = ratio_interval(ours - theirs, one, np.random.default_rng(0), 0.95, 2000, False)
        wrong = int((theirs > STRENGTH).sum()), int((ours > STRENGTH).sum())
        refuted = binomtest(wrong[0], len(at), ERROR, "greater").pvalue < WRONG
        table.append(Row("Privacy Meter", {
            "case": f"{count} canaries, {kind} (epsilon {STRENGTH:g}); number of guesses chosen afterwards",
            "budget": "the same scores", "measure": "epsilon at least, mean; above the truth",
            "theirs": f"{theirs.mean():.3f}; {wrong[0]} of {len(at)}",
            "ours": f"{ours.mean():.3f}; {wrong[1]} of {len(at)}",
            "difference": Estimate(float((ours - theirs).mean()), low, high, len(at)).text(3, signed=True),
            "memory": memory, "n": len(at), "verdict": NO_BOUND if refuted else verdict(low, high),
        }))  # fmt: skip
    return table
