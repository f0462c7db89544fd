"""The privacy filters that NVFlare and Flower ship, measured on one client's update of three tiny models.

    pip install nvflare; python scripts/platform_filters.py --out docs/results/filters.md [--model NAME] [--budget 40]

One SGD step on one made-up page. The filters are imported from the platforms and called as these call them. What is
read afterwards is what docleak's attacks read, which know nothing of the filter. Numbers are kept beside OUT in
filters.json as they come, so that the same command goes on where it was ended; delete it to begin again.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from scipy.optimize import brentq
from scipy.stats import norm

from docleak.attacks.gradients import ATTACKS
from docleak.documents.synthetic import make_pages
from docleak.files import write_atomically
from docleak.models import load_model
from docleak.models.base import pixels_of
from docleak.studies.updates.round import ImitatedRound
from docleak.studies.updates.sight import attacked
from docleak.studies.updates.told import OF_TRANSFORMERS
from docleak.studies.updates.verdict import Pictures
from docleak.studies.updates.words import words_in
from docleak.training.federated.flower.grid import LocalGrid
from docleak.training.federated.local import parameters_of, train_locally
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.objectives.objective import objective_of

#: Model -> the attack on its picture, closed form beside it where it applies. Of VT5 none, whose picture encoder is
#: frozen; of Donut none, since 40 evaluations read no field without any filter (10.8 dB, blank template 8.6 dB).
MODELS = {"layoutlmv3-start": "gi-dqa", "donut-start": "", "vt5-start": ""}
RATE, DELTA, SEED = 0.05, 1e-5, 3
Arrays = dict[str, np.ndarray]
#: (start, end) -> (what the server gets instead of the end, epsilon that is spent towards it).
Filter = Callable[[Arrays, Arrays], tuple[Arrays, float]]


def nvflare(kind: str, **settings: Any) -> Filter:
    """A filter of NVFlare's on the difference of weights, as its executors hand it over."""

    def filtered(start: Arrays, end: Arrays) -> tuple[Arrays, float]:
        from nvflare.apis.dxo import DXO, DataKind, MetaKey
        from nvflare.apis.fl_context import FLContext
        from nvflare.apis.shareable import Shareable
        from nvflare.app_common import filters

        data = {name: (end[name] - start[name]).astype(np.float32) for name in start}
        dxo = DXO(DataKind.WEIGHT_DIFF, data=data, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 1})
        one = getattr(filters, kind)(**settings)
        out = one.process_dxo(dxo, Shareable(), FLContext())
        spent = one.get_privacy_spent() if hasattr(one, "get_privacy_spent") else math.inf
        return {name: start[name] + np.asarray(out.data[name]) for name in start}, spent

    return filtered


def flower(mod: Any, clip: float, std: float) -> Filter:
    """A mod of Flower's around a client that replies with its weights."""

    def filtered(start: Arrays, end: Arrays) -> tuple[Arrays, float]:
        app = ClientApp(mods=[mod])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            return Message(RecordDict({"arrays": record(end)}), reply_to=message)

        content = RecordDict({"arrays": record(start), "config": ConfigRecord({"clipping_norm": clip})})
        grid = LocalGrid(app, {7: {}})
        (out,) = grid.send_and_receive([grid.create_message(content, "train", 7, "1")])
        got = {name: array.numpy() for name, array in out.content["arrays"].items()}
        return got, gaussian_epsilon(2 * clip / std, DELTA) if std else math.inf

    return filtered


def record(arrays: Arrays) -> ArrayRecord:
    """As Flower sends it; a copy, for its mods clip in place."""
    return ArrayRecord({name: Array(np.array(value)) for name, value in arrays.items()})


def local_dp(clip: float, sensitivity: float, epsilon: float) -> Filter:
    """LocalDpMod: the claim is ``epsilon``; what is spent follows from its noise, and from two clipped updates being up
    to twice the norm apart."""
    std = sensitivity * math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon
    return flower(LocalDpMod(clip, sensitivity, epsilon, DELTA), clip, std)


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """Of the Gaussian mechanism with sensitivity / standard deviation ``ratio`` (Balle and Wang, 2018, theorem 8)."""

    def excess(epsilon: float) -> float:
        first = norm.cdf(ratio / 2 - epsilon / ratio)
        return float(first - math.exp(epsilon + norm.logcdf(-ratio / 2 - epsilon / ratio)) - delta)

    most = ratio**2 / 2 + ratio * 10
    return float(brentq(excess, 0, most)) if excess(0) > 0 else 0.0


#: (platform and filter, setting) -> the filter. Flower's mods have no defaults.
FILTERS: dict[tuple[str, str], Filter] = {
    ("none", ""): lambda start, end: (end, math.inf),
    ("NVFlare PercentilePrivacy", "default: percentile 10, gamma 0.01"): nvflare("PercentilePrivacy"),
    ("NVFlare PercentilePrivacy", "percentile 90, gamma 0.001"): nvflare(
        "PercentilePrivacy", percentile=90, gamma=1e-3
    ),
    ("NVFlare PercentilePrivacy", "percentile 99, gamma 0.0001"): nvflare(
        "PercentilePrivacy", percentile=99, gamma=1e-4
    ),
    ("NVFlare SVTPrivacy", "default: fraction 0.1, epsilon 0.1, noise_var 0.1"): nvflare("SVTPrivacy"),
    ("NVFlare SVTPrivacy", "noise_var 0.001"): nvflare("SVTPrivacy", noise_var=1e-3),
    ("NVFlare SVTPrivacy", "epsilon_release 1"): nvflare("SVTPrivacy", epsilon_release=1.0),
    ("Flower central DP (fixedclipping_mod)", "norm 1"): flower(fixedclipping_mod, 1.0, 0.0),
    ("Flower central DP (fixedclipping_mod)", "norm 0.1"): flower(fixedclipping_mod, 0.1, 0.0),
    ("Flower central DP (fixedclipping_mod)", "norm 0.01"): flower(fixedclipping_mod, 0.01, 0.0),
    ("Flower LocalDpMod", "norm 1, sensitivity 1e-4, epsilon 10 (FLIP's)"): local_dp(1.0, 1e-4, 10.0),
    ("Flower LocalDpMod", "norm 1, sensitivity 1, epsilon 10"): local_dp(1.0, 1.0, 10.0),
    ("Flower LocalDpMod", "norm 1, sensitivity 1, epsilon 1"): local_dp(1.0, 1.0, 1.0),
}


def measured(name: str, budget: int, done: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """A record for every filter on one model but those that are ``done``."""
    model = load_model(name)
    page = next(iter(make_pages(1, seed=SEED, size=(224, 224))))
    page = replace(page, questions=page.questions[:1])
    plan = LocalPlan(1, 1, RATE, 0.0, "sgd", dropout=False)
    start = parameters_of(model)
    train_locally(model, [page], plan, client="a", rng=np.random.default_rng(SEED))
    end = parameters_of(model)
    for (filter_name, setting), apply in FILTERS.items():
        if (filter_name, setting) in done:
            continue
        np.random.seed(SEED)  # the platforms draw from numpy's global generator
        got, epsilon = apply(start, end)
        change = {key: start[key].astype(np.float64) - got[key] for key in start}
        put(model, start)
        sent = {key: torch.from_numpy(value.astype(np.float32)) for key, value in change.items()}
        examples = objective_of("qa").examples([page])
        taken = ImitatedRound.of(model, sent, plan, OF_TRANSFORMERS, [page], examples, ((0,),))
        words = words_in(taken, 1)
        seen = {"why": "not attacked"}
        if MODELS[name]:
            attack = ATTACKS.load(MODELS[name])
            seen, _ = attacked(taken, attack, budget=budget, seed=SEED, ocr="rapidocr", report=lambda n: None,
                               allow_failed=True)  # fmt: skip
        pictures = Pictures.of(seen)
        row = {
            "model": name, "parameters": sum(value.size for value in start.values()), "filter": filter_name,
            "setting": setting, "epsilon": epsilon if math.isfinite(epsilon) else None,
            "cosine": cosine(start, end, got), "step": improvement(model, page, start, end, got),
            "attack": MODELS[name],
            "words": {key: words.get(key) for key in ("right", "found", "true", "fields", "failed")},
            "pictures": {"why": seen.get("why", "")} if pictures is None else
            {"exact": pictures.exact, "scored": pictures.scored, "psnr": pictures.psnr, "blank": pictures.blank_psnr,
             "route": seen["route"]},
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        put(model, start)
        yield row


def put(model: Any, arrays: Arrays) -> None:
    """Set the model's weights."""
    with torch.no_grad():
        for key, parameter in model.module.named_parameters():
            if key in arrays:
                parameter.copy_(torch.from_numpy(np.asarray(arrays[key], np.float32)))


def cosine(start: Arrays, end: Arrays, got: Arrays) -> float:
    """Of what was sent and the true update."""
    true = np.concatenate([(end[key] - start[key]).ravel() for key in start]).astype(np.float64)
    sent = np.concatenate([(got[key] - start[key]).ravel() for key in start]).astype(np.float64)
    size = float(np.linalg.norm(true) * np.linalg.norm(sent))
    return float(true @ sent) / size if size else 0.0


def improvement(model: Any, page: Any, start: Arrays, end: Arrays, got: Arrays) -> float:
    """How much of the step's fall of the loss on its own page is left."""
    losses = []
    fitted = model.fit(page)
    for arrays in (start, end, got):
        put(model, arrays)
        with torch.no_grad():
            inputs = [model.encode(fitted, page.questions[0])]
            losses.append(float(model.loss(pixels_of(fitted.image)[None], inputs)))
    return (losses[0] - losses[2]) / (losses[0] - losses[1])


def page_of(records: list[dict[str, Any]]) -> str:
    """The page's tables, a model each."""
    lines = [HEADER, summary(records)]
    for name in dict.fromkeys(one["model"] for one in records):
        mine = [one for one in records if one["model"] == name]
        lines += [f"## {name}\n", f"{mine[0]['parameters']:,} weights that are trained.\n", TABLE]  # fmt: skip
        for one in mine:
            cells = [one["filter"], one["setting"], f"{one['cosine']:.3f}", epsilon_of(one), words_of(one["words"]),
                     fields_of(one["words"]), picture_of(one["pictures"]), f"{short(100 * one['step'])} %"]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def epsilon_of(one: Mapping[str, Any]) -> str:
    """Infinite without noise; a claim beside it where the filter makes one."""
    return "infinite" if one["epsilon"] is None else short(one["epsilon"])


def short(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def summary(records: list[dict[str, Any]]) -> str:
    """What the tables show of the settings that people meet, over the models."""
    lines = []
    for (name, setting), claim in {
        ("NVFlare PercentilePrivacy", "default: percentile 10, gamma 0.01"): "claims no epsilon",
        ("NVFlare SVTPrivacy", "default: fraction 0.1, epsilon 0.1, noise_var 0.1"): "is called with epsilon 0.1",
        ("Flower LocalDpMod", "norm 1, sensitivity 1e-4, epsilon 10 (FLIP's)"): "is called with epsilon 10",
    }.items():
        mine = [one for one in records if (one["filter"], one["setting"]) == (name, setting)]
        cosines, spent = [one["cosine"] for one in mine], [one["epsilon"] for one in mine]
        read = ", ".join(f"{one['words']['right']} of {one['words']['true']}" for one in mine)
        named = ", ".join(str(one["words"]["found"]) for one in mine)
        epsilon = "infinite" if None in spent else " to ".join(dict.fromkeys((short(min(spent)), short(max(spent)))))
        lines.append(
            f"- **{name}, {setting}**, {claim}; spent: {epsilon}. Cosine {min(cosines):.3f} to {max(cosines):.3f}; "
            f"tokens read {read} (named {named}) on {', '.join(one['model'] for one in mine)}."
        )
    return "\n".join(lines) + "\n"


def words_of(words: Mapping[str, Any]) -> str:
    """Right, found, true."""
    return "not read" if words["right"] is None else f"{words['right']} of {words['true']}, {words['found']} named"


def fields_of(words: Mapping[str, Any]) -> str:
    """Private fields all of whose tokens were named."""
    fields = words.get("fields")
    return "–" if not fields or not fields[1] else f"{fields[0]} of {fields[1]}"


def picture_of(pictures: Mapping[str, Any]) -> str:
    """Fields and PSNR."""
    if "exact" not in pictures:
        return f"– ({pictures['why']})"
    return f"{pictures['exact']} of {pictures['scored']} fields, {pictures['psnr']:.1f} dB ({pictures['route']})"


TABLE = """| filter | setting | cosine | epsilon spent | tokens read | fields by words | picture | step left |
|---|---|---|---|---|---|---|---|"""

HEADER = """# The filters that platforms ship, measured

One client's update of three tiny models: one step of SGD (rate 0.05) on one made-up page with one question, without
dropout. NVFlare 2.9.0's filters and Flower 1.41.0's mods are imported and called as the platforms call them, on what
leaves the client. Made by

    python scripts/platform_filters.py --out docs/results/filters.md

- **cosine**: of what leaves with the true update.
- **epsilon spent**: towards the server, for all of one client's data, in this one round; rounds add up. Of SVTPrivacy
  it is what its own accountant says. Of LocalDpMod it is that of the Gaussian noise it really adds at delta 1e-5, by
  Balle and Wang (2018): two clipped updates can be twice the norm apart, whatever ``sensitivity`` was given. Clipping
  and truncation add no noise, so that no epsilon holds. Flower's central DP adds noise after the server has seen the
  update; with clipping at the server it sees the first row. Users met the same elsewhere: londonaicentre/FLIP#1145
  reports a cosine of 0.809 under PercentilePrivacy, and an epsilon of 70,333 in one round of stock SVTPrivacy.
- **tokens read**: of those on the page, by linear algebra; how many were named tells whether anything was told apart
  (all of the vocabulary named is nothing read). **fields by words**: private fields all of whose tokens were named,
  which counts only where few are named.
- **picture**: private fields that OCR reads exactly in the reconstruction, and its PSNR, by closed form or, where that
  cannot begin or explains less, `gi-dqa` of 20 evaluations, which read nothing here. VT5's picture encoder is frozen,
  so that no picture is in its updates. Donut's pictures were not attacked: 40 evaluations of `gi-dqa` read no field
  without any filter (10.8 dB, blank template 8.6 dB), so that filters could not be told apart; its tokens are those of
  question and answer.
- **step left**: how much of the fall of the loss on that page the filtered step keeps; over 100 % where noise helped by
  chance, below 0 where it undid more. A crude measure of use: no training was repeated.

**The attacks know nothing of the filters.** One that does reads at least as much, so "not read" here is no protection;
one page, one seed, no interval. Clipping leaves the direction as it was (cosine 1): who finds the one number by which
the update was scaled has the first row, whatever the norm; it was not looked for here, so closed form fails.

![Cosine with the true update and tokens still told, by filter and model](filters.png)
"""


def chart(records: list[dict[str, Any]], file: Path) -> None:
    """Cosine and tokens told over the filters, a colour for each model."""
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(f"{one['filter']}\n{one['setting']}" for one in records))
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = list(dict.fromkeys(one["model"] for one in records))
    for number, name in enumerate(names):
        mine = {f"{one['filter']}\n{one['setting']}": one for one in records if one["model"] == name}
        places = [labels.index(label) + 0.26 * (number - 1) for label in mine]
        left.barh(places, [one["cosine"] for one in mine.values()], 0.24, label=name)
        right.barh(places, [told_of(one) for one in mine.values()], 0.24)
    left.set_yticks(range(len(labels)), labels, fontsize=7)
    left.invert_yaxis()
    left.set(title="Cosine with the true update", xlim=(0, 1.02))
    right.set(title="Tokens told, % (0 where most of those named are wrong)", xlim=(0, 102))
    right.title.set_fontsize(10)
    left.legend(fontsize=8)
    for axis in (left, right):
        axis.grid(axis="x", alpha=0.3)
    figure.savefig(file, dpi=110, metadata={"Software": None})


def told_of(one: Mapping[str, Any]) -> float:
    """Tokens read, in percent; 0 where most of those that are named are wrong."""
    words = one["words"]
    return 100 * words["right"] / words["true"] if words["found"] and words["right"] > words["found"] / 2 else 0.0


def main() -> None:
    """Measure, keep, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*MODELS], action="append")
    parser.add_argument("--budget", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("docs/results/filters.md"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    kept = given.out.with_suffix(".json")
    records = json.loads(kept.read_text()) if kept.is_file() else []
    for name in given.model or MODELS:
        done = {(one["filter"], one["setting"]) for one in records if one["model"] == name}
        for row in measured(name, given.budget, done):
            records.append(row)
            write_atomically(kept, json.dumps(records, indent=1).encode())
    places = list(FILTERS)
    records.sort(key=lambda one: (list(MODELS).index(one["model"]), places.index((one["filter"], one["setting"]))))
    write_atomically(given.out, page_of(records).encode())
    chart(records, given.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
