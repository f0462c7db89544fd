"""What the guard finds, and what it refuses for nothing: attacks of active servers, stealthy ones, honest rounds.

    python -m scripts.guard honest --folder work      trainings, whose every round's model is kept (3 CPU minutes)
    python -m scripts.guard look --folder work        the guard on them (3 CPU minutes)
    python -m scripts.guard attack --folder work      the guard on manipulated models, and its time (4 CPU minutes)
    python -m scripts.guard page --folder work        docs/results/guard.md

Each goes on where it was stopped. Honest rounds are those of ``docleak train federated``: its capture has the model
that every round began from; each training is stopped after half of its rounds and gone on with. The limits of the guard
were chosen on trainings of seed 0, a rule was changed after those of seed 100; those of the page have ``--seed 200``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor

from docleak.attacks.registries import SERVERS
from docleak.attacks.servers.view import PublicPages
from docleak.documents.division import divide
from docleak.documents.silos import write_silos
from docleak.documents.synthetic import make_pages
from docleak.files import write_atomically
from docleak.models import DocumentModel, load_model
from docleak.models.lora import Lora, adapt
from docleak.models.vlm.tiny import make_tiny
from docleak.privacy.mechanism import Mechanism
from docleak.privacy.plan import DpPlan
from docleak.studies.gradient.case import pages_for
from docleak.studies.servers.study import of_pictures, of_tokens, share, tensors
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import FedOpt
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.local import set_parameters, train_in_place
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.record import FederatedRun
from docleak.training.guard.checkpoint import EXAMPLES, probe
from docleak.training.guard.guard import Guard, Limits, inspect
from docleak.training.update import client_gradient

ROUNDS, SILOS, PAGES = 10, 2, 8
#: Made on the spot: name -> (base, whether adapters are put on it).
MADE = {"smolvlm": ("smolvlm", False), "smolvlm-lora": ("smolvlm", True), "layoutlmv3-lora": ("layoutlmv3-start", True),
        "donut-lora": ("donut-start", True)}  # fmt: skip
#: Models that are manipulated, each with so many seeds.
ATTACKED = ("donut-start", "donut-trained", "layoutlmv3-start", "layoutlmv3-trained", "vt5-start", "vt5-trained",
            "smolvlm", "smolvlm-lora", "layoutlmv3-lora", "donut-lora")  # fmt: skip
SEEDS = (0, 1)
#: A twentieth of the rows, few enough for few tokens; and a twentieth of attention is left.
STEALTH = "share=0.05,left=0.05"
#: Pages of the epoch that a check is held against.
EPOCH = 48
PRIVATE = DpPlan(Mechanism(0.8, ROUNDS, unit_rate=0.9), clip_norm=0.5, denominator=40, delta=1e-3)
ADAMW = LocalPlan(max_steps=2, batch_size=2)
ADAM = replace(ADAMW, optimiser="adam", learning_rate=2e-4)
SGD = replace(ADAMW, optimiser="sgd", learning_rate=0.05, weight_decay=0.0, max_norm=1.0)
#: Name of a training -> model, local plan, server step, privacy.
TRAININGS: Mapping[str, tuple[str, LocalPlan, FedOpt, DpPlan | None]] = {
    "vt5 adamw": ("vt5-start", ADAMW, FedOpt(), None),
    "vt5 adam fedadam": ("vt5-start", ADAM, FedOpt("fedadam", 1e-3), None),
    "vt5 sgd": ("vt5-start", SGD, FedOpt(), None),
    "vt5 dp": ("vt5-start", ADAMW, FedOpt(), PRIVATE),
    "vt5 trained adamw": ("vt5-trained", ADAMW, FedOpt(), None),
    "vt5 trained dp": ("vt5-trained", ADAMW, FedOpt(), PRIVATE),
    "vt5 fedadam 0.01": ("vt5-start", ADAMW, FedOpt("fedadam", 0.01), None),
    "donut adamw": ("donut-start", ADAMW, FedOpt(), None),
    "donut sgd fedavgm": ("donut-start", SGD, FedOpt("fedavgm"), None),
    "donut dp": ("donut-start", ADAMW, FedOpt(), PRIVATE),
    "donut trained adam": ("donut-trained", ADAM, FedOpt(), None),
    "donut lora adamw": ("donut-lora", ADAMW, FedOpt(), None),
    "layoutlmv3 adamw": ("layoutlmv3-start", ADAMW, FedOpt(), None),
    "layoutlmv3 sgd fedadam": ("layoutlmv3-start", SGD, FedOpt("fedadam", 1e-3), None),
    "layoutlmv3 trained adamw": ("layoutlmv3-trained", ADAMW, FedOpt("fedavgm"), None),
    "layoutlmv3 dp": ("layoutlmv3-start", ADAMW, FedOpt(), PRIVATE),
    "layoutlmv3 lora adamw": ("layoutlmv3-lora", ADAMW, FedOpt(), None),
    "smolvlm adamw": ("smolvlm", ADAMW, FedOpt(), None),
    "smolvlm lora adamw": ("smolvlm-lora", ADAMW, FedOpt(), None),
    "smolvlm lora dp": ("smolvlm-lora", ADAMW, FedOpt(), PRIVATE),
}  # fmt: skip


def model_at(name: str, folder: Path) -> str:
    """Where the model of that name is, made if need be."""
    if name not in MADE:
        return name
    base, adapted = MADE[name]
    out = folder / "models" / name
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        if not adapted:
            make_tiny(base, out, seed=0)
        else:
            adapt(model_at(base, folder), out, Lora(), seed=0)
    return str(out)


def honest(folder: Path, seed: int) -> Iterator[str]:
    """Train all of TRAININGS; each is interrupted after half of its rounds and gone on with."""
    if not (folder / "silos").exists():
        division = divide(["synthetic"], SILOS, by="providers", seed=seed, count=PAGES)
        write_silos(division.shares, division.sources, folder / "silos", by="providers", seed=seed)
    silos = {item.name: item for item in sorted((folder / "silos").iterdir())}
    for number, (name, (source, local, server, private)) in enumerate(TRAININGS.items()):
        out = folder / "trainings" / name.replace(" ", "-")
        done = out / "done.json"
        if done.exists():
            continue
        started = time.perf_counter()
        for rounds in (ROUNDS // 2, ROUNDS):
            kept = 0.0 if private is None else 0.2
            federation = Federation(model_at(source, folder), rounds, holdout=kept, seed=seed + number, local=local,
                                    server=server, privacy=private)  # fmt: skip
            run = FederatedRun.open(out / "run", federation)
            train_embedded(run, silos, evaluate_every=0, capture=out / "updates")
        done.write_text(json.dumps({"seconds": time.perf_counter() - started}))
        yield f"{name}: {time.perf_counter() - started:.0f} s"


def look(folder: Path) -> Iterator[str]:
    """The guard's opinion on every honest round, kept in ``folder``."""
    for name, (source, *_) in TRAININGS.items():
        out = folder / "trainings" / name.replace(" ", "-")
        if (out / "done.json").exists() and not (out / "guard.json").exists():
            (out / "guard.json").write_text(json.dumps(of_training(model_at(source, folder), out / "updates")))
            yield f"honest: {name}"


def attack(folder: Path) -> Iterator[str]:
    """The guard's opinion on every manipulation, and what a check takes; each part is kept in ``folder``."""
    out = folder / "time.json"
    if not out.exists():
        out.write_text(json.dumps([times_of(source) for source in ("donut-start", "layoutlmv3-start", "vt5-start")]))
        yield "times"
    for seed in SEEDS:
        for source in ATTACKED:
            out = folder / "attacks" / f"{source}-{seed}.json"
            if not out.exists():
                out.parent.mkdir(exist_ok=True)
                out.write_text(json.dumps(list(of_attacks(source, folder, seed))))
                yield f"attacked: {source}, seed {seed}"


def of_training(source: str, updates: Path) -> list[dict[str, Any]]:
    """The guard's opinions on the models of a training's rounds, one beside the other, tried on pages of its own."""
    model = load_model(source)
    loss = probe(model, make_pages(EXAMPLES, seed=7))
    guard, rounds = Guard(), []
    for file in sorted(updates.glob("round-*/start.safetensors")):
        arrays = load_file(file)
        set_parameters(model, arrays)
        tried = {"module": model.module, "loss": loss} if len(rounds) % 2 == 0 else {}  # a gradient every second round
        rounds.append({"beside": guard.check(arrays, **tried).to_json(), "first": inspect(arrays, **tried).to_json()})
    return rounds


def variants() -> list[tuple[str, str]]:
    """(name, the server with its options), stealthy ones behind the published ones."""
    return [*((name, name) for name in SERVERS.names()),
            *((f"{name}, stealthy", f"{name}:{STEALTH}") for name in ("decepticons", "trap-weights"))]  # fmt: skip


def of_attacks(source: str, folder: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Every server on one model: what is read of one page, and what the guard says."""
    model = load_model(model_at(source, folder))
    pages = pages_for(model, "synthetic", count=12 + EXAMPLES, seed=1000 + seed)
    private, public = pages[:EXAMPLES], pages[EXAMPLES:]
    pixels, inputs = tensors(model, private)
    before = {name: p.detach() for name, p in model.module.named_parameters() if p.requires_grad}
    for name, spec in variants():
        server = SERVERS.load(spec)
        if fault := server.obstacle(model):
            yield {"model": source, "server": name, "obstacle": fault}
            continue
        sent = server.manipulate(model, PublicPages(*tensors(model, public)),
                                 generator=torch.Generator().manual_seed(seed))  # fmt: skip
        loot = server.read(sent, client_gradient(sent.model, pixels[:1], inputs[:1]))
        asked = {name: p.detach() for name, p in sent.model.module.named_parameters() if p.requires_grad}

        def loss(sent: DocumentModel = sent.model) -> Tensor:
            return sent.loss(pixels, inputs).mean()

        looks = {"first": inspect(asked, module=sent.model.module, loss=loss),
                 "weights": inspect(asked),
                 "beside": inspect(asked, before, module=sent.model.module, loss=loss)}  # fmt: skip
        yield {
            "model": source, "server": name, "seed": seed,
            **of_tokens(loot, inputs[:1]), **of_pictures(loot, pixels[:1]),
            **{key: opinion.to_json() for key, opinion in looks.items()},
        }  # fmt: skip


def times_of(source: str) -> dict[str, Any]:
    """Seconds of a check with its gradient, the least of three, and of one local epoch over EPOCH pages."""
    model = load_model(source)
    pages = make_pages(EPOCH, seed=9)
    weights = {name: p.detach().clone() for name, p in model.module.named_parameters() if p.requires_grad}
    last = {name: value + 1e-4 for name, value in weights.items()}
    checks = []
    for _ in range(3):
        started = time.perf_counter()
        inspect(weights, last, module=model.module, loss=probe(model, pages))
        checks.append(time.perf_counter() - started)
    plan, rng = LocalPlan(batch_size=4, max_steps=0), np.random.default_rng(0)
    started = time.perf_counter()
    done = train_in_place(model, pages, plan, client="a", rng=rng)
    return {"model": source, "check": min(checks), "epoch": time.perf_counter() - started, "examples": done.examples,
            "pages": EPOCH}  # fmt: skip


def write_page(folder: Path) -> None:
    """docs/results/guard.md, of what ``look`` and ``attack`` kept."""
    rounds = {file.parent.name: json.loads(file.read_text()) for file in sorted(folder.glob("trainings/*/guard.json"))}
    attacks = [one for file in sorted(folder.glob("attacks/*.json")) for one in json.loads(file.read_text())]
    file = folder / "time.json"
    times = json.loads(file.read_text()) if file.exists() else []
    target = Path(__file__).parents[1] / "docs" / "results" / "guard.md"
    write_atomically(
        target,
        "\n".join(
            [HEAD, *honest_lines(rounds), *late_lines(folder), *attack_lines(attacks), *time_lines(times), ""]
        ).encode(),
    )


HEAD = """# The guard: what it finds, and what it refuses for nothing

`docleak guard` and its Flower mod ([docs/guard.md](../guard.md)), with the limits they come with. Written by `python
-m scripts.guard honest`, `look`, `attack` and `page`. Tiny models, synthetic pages, one CPU thread; intervals are
Clopper-Pearson's, 95 %, as if rounds and manipulations were independent, which rounds of one training are not. The
limits were chosen on trainings with seed 0. One rule was changed after a look at trainings with seed 100: `bare`
refused 33 of 200 rounds, for VT5's output layer and inputs of SmolVLM's last attention that are alike; it now leaves
output layers out and counts inputs that are alike once. The honest rounds below have seed 200 and pages of their own,
were trained after that, looked at once, and nothing was changed since but `silent`, which counts next to nothing as
nothing, too: of 29 honest models, 9 shipped ones and one of each of 20 families at its start, it says so of none. How
honest trainings of models of real size look has not been measured.
"""


def honest_lines(rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Honest rounds: false alarms, and the largest of each sign."""
    opinions = [one for some in rounds.values() for one in some]
    changes = [one for some in rounds.values() for one in some[1:]]
    yield "## Honest rounds"
    yield ""
    yield (f"{len(rounds)} trainings of {ROUNDS} rounds, two silos, each stopped half-way and gone on with (AdamW, "
           "Adam, SGD; FedAvg, FedAvgM, FedAdam; differential privacy; LoRA; start and trained weights).")  # fmt: skip
    yield ""
    yield "| inspected | rounds | refused | share |"
    yield "|---|---|---|---|"
    for what, some, key in (
        ("beside the last model", changes, "beside"),
        ("by itself, and every second one by a gradient", opinions, "first"),
    ):
        wrong = sum(one[key]["refused"] for one in some)
        yield f"| {what} | {len(some)} | {wrong} | {share(wrong, len(some), 'rounds').text(1, percent=True)} |"
    yield ""
    yield "The largest value of each sign in any honest round, beside the limit:"
    yield ""
    yield "| sign | largest | limit | training |"
    yield "|---|---|---|---|"
    for sign in ("flat", "loud", "silent", "leap", "bare"):
        seen = [(entry["value"], name) for name, some in rounds.items() for one in some for key in ("beside", "first")
                for entry in one[key]["signs"] if entry["sign"] == sign]  # fmt: skip
        value, name = max(seen)
        yield f"| {sign} | {value:.3g} | {getattr(Limits(), sign):g} | {name.replace('-', ' ')} |"
    yield ""


def late_lines(folder: Path) -> Iterator[str]:
    """The model of every training's last round beside the one it began with: what a silo sees that is drawn late."""
    leaps = {}
    for updates in sorted(folder.glob("trainings/*/updates")):
        files = sorted(updates.glob("round-*/start.safetensors"))
        opinion = inspect(load_file(files[-1]), load_file(files[0]))
        leaps[updates.parent.name] = next(sign.value for sign in opinion.signs if sign.name == "leap")
    (*_, second, most) = sorted(leaps, key=lambda name: leaps[name])
    refused = sum(value > Limits().leap for value in leaps.values())
    words = {name: f"{name.replace('-', ' ')}, {leaps[name]:.3g}" for name in (most, second)}
    yield (f"A silo of docleak's that is first drawn in round {ROUNDS} compares with its own copy of the checkpoint. "
           f"It would refuse {refused} of these {len(leaps)} trainings then, for a leap: {words[most]}; the next is "
           f"{words[second]}.")  # fmt: skip
    yield ""


def attack_lines(attacks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Manipulated models: what one page gives away, and how often they are refused."""
    held = [one for one in attacks if "obstacle" not in one]
    yield "## Manipulated models"
    yield ""
    yield (
        f"{len(ATTACKED)} models, {len(SEEDS)} seeds each; a gradient of one page is read, and the guard tries one "
        f"of {EXAMPLES} pages of the silo's. *First round*: no last model is known. *Weights alone*: nor pages."
    )
    yield ""
    yield ("| server | manipulations | read of what is on the page | refused beside the last model "
           "| in the first round | by weights alone |")  # fmt: skip
    yield "|---|---|---|---|---|---|"
    names = list(dict.fromkeys(one["server"] for one in held))
    plain = [one for one in held if "stealthy" not in one["server"]]
    for name, some in [*((name, [one for one in held if one["server"] == name]) for name in names),
                       ("**all that are not stealthy**", plain)]:  # fmt: skip
        reads = [
            one["pages_read"] / one["pages"] if "psnr" in one else one["tokens_read"] / one["tokens"] for one in some
        ]
        cells = [share(sum(one[key]["refused"] for one in some), len(some), "models").text(1, percent=True)
                 for key in ("beside", "first", "weights")]  # fmt: skip
        spread = f"{np.mean(reads):.0%} ({min(reads):.0%} to {max(reads):.0%})"
        yield f"| {name} | {len(some)} | {spread} | {' | '.join(cells)} |"
    yield ""
    yield ("What is read is a page as a picture (imprint), or different tokens, with their places for Donut and "
           "LayoutLMv3, as a share of the page's.")  # fmt: skip
    yield ""
    yield "## What evades"
    yield ""
    yield (f"Stealthy servers (`{STEALTH}`) use a twentieth of the rows, among random rows that never fire, and leave "
           "a twentieth of attention.")  # fmt: skip
    yield ""
    yield "| server, model | tokens read of one page | of them wrong | first round | beside the last model |"
    yield "|---|---|---|---|---|"
    for name in (name for name in names if "stealthy" in name):
        for model in ATTACKED:
            some = [one for one in held if one["server"] == name and one["model"] == model]
            if not some:
                continue
            read, wrong, of = (sum(one[key] for one in some) for key in ("tokens_read", "tokens_wrong", "tokens"))
            passed = sum(not one["first"]["refused"] for one in some)
            beside = sum(not one["beside"]["refused"] for one in some)
            verdicts = f"passes {passed} of {len(some)} | passes {beside} of {len(some)}"
            yield f"| {name}, {model} | {read} of {of} | {wrong} | {verdicts} |"
    yield ""
    obstacles = dict.fromkeys((one["server"], one["obstacle"]) for one in attacks if "obstacle" in one)
    yield "Where a server has no hold:"
    yield ""
    yield from (f"- {server}: {why}." for server, why in obstacles if "stealthy" not in server)
    yield ""


def time_lines(times: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What a check takes, beside a local epoch; nothing where it was not measured."""
    if not times:
        return
    yield "## Time"
    yield ""
    yield "| model | a check with its gradient, s | a local epoch, s | examples | share | below 5 % from (examples) |"
    yield "|---|---|---|---|---|---|"
    for one in times:
        enough = one["check"] / 0.05 / (one["epoch"] / one["examples"])
        ratio = one["check"] / one["epoch"]
        yield (f"| {one['model']} | {one['check']:.2f} | {one['epoch']:.1f} | {one['examples']} | {ratio:.1%} "
               f"| {enough:.0f} |")  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("honest", "look", "attack", "page"))
    parser.add_argument("--folder", type=Path, default=Path("guard-work"))
    parser.add_argument("--seed", type=int, default=100)
    asked = parser.parse_args()
    if asked.what == "page":
        write_page(asked.folder)
        return
    steps = {"honest": lambda: honest(asked.folder, asked.seed), "look": lambda: look(asked.folder),
             "attack": lambda: attack(asked.folder)}  # fmt: skip
    for line in steps[asked.what]():
        print(line, flush=True)


if __name__ == "__main__":
    main()
