"""The attack's settings sought as in the paper: one set for each of its 14 configurations (Dentan et al., 2024, section
5.1 and appendix A).

The paper tunes on the targets of LayoutLM with the best validation accuracy, by the one-shot variant's metrics, and
uses the settings for BROS, the other epoch and the multi-shot variant, too. It prints ranges, not the sets: so they are
sought in these ranges, by IpF over the attacked fields. That looks at the truth, which an adversary cannot; numbers of
tuned rows are optimistic, and their tables say so.

STORE/settings-3f9c2a1b/04.json     IpF of the fifth setting
                       /card.json   all of them, and the best (``runs.artefact``)
"""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from docleak.attacks.weights import CdmiConfig
from docleak.attacks.weights.sampling import Temperature
from docleak.errors import AttackError
from docleak.files import read_stored, write_json
from docleak.metrics.extraction import as_array, improvement_factor
from docleak.runs.artefact import made_once
from docleak.runs.identity import digest_of
from docleak.studies.study import Tell, plain
from docleak.studies.weights.config import WeightsConfig
from docleak.studies.weights.game import attack_field, ready
from docleak.studies.weights.table import first_matches

#: The ranges of appendix A: the weight (taken as the target's), the temperature of its softmax and (twice that at the
#: field's first token, decaying over 3; twice is ours) of the public model's, and p of top-p.
WEIGHTS, TEMPERATURES, TOP_P = (0.2, 0.4, 0.6), (0.2, 0.3, 0.4), (0.10, 0.12)


def settings_of(config: WeightsConfig) -> list[CdmiConfig]:
    """What is tried for a row: a target that guesses tokens is read without a weight. AttackError for other attacks."""
    attack, tuning = config.attack, config.tuning
    if not isinstance(attack, CdmiConfig) or tuning is None:
        raise AttackError(f"settings are sought for CDMI, and the attack is {attack.name!r}.")
    weights = (attack.weight,) if config.task == "mlm" else WEIGHTS
    settings = [
        with_temperature(replace(attack, weight=weight, top_p=top_p), temperature)
        for weight, temperature, top_p in product(weights, TEMPERATURES, TOP_P)
    ]
    return settings[: tuning.most or len(settings)]


def with_temperature(attack: CdmiConfig, temperature: float) -> CdmiConfig:
    """The attack at a temperature: the public model's begins at twice that and decays, the target's stays."""
    return replace(
        attack, public_temperature=Temperature(last=temperature, first=2 * temperature),
        target_temperature=Temperature(first=temperature, last=temperature, steps=0),
    )  # fmt: skip


def sought_on(config: WeightsConfig) -> WeightsConfig:
    """The game on which a row's settings are sought: LayoutLM's target of the best accuracy, the first attempt."""
    tuning = config.tuning
    assert tuning is not None
    return replace(
        config, model=tuning.model, criterion="precision", attempts=1, fields=tuning.fields or config.fields,
        tuning=None, control=False, noise=False,
    )  # fmt: skip


def sought(config: WeightsConfig, store: Path, *, device: str, tell: Tell = lambda done: None) -> dict[str, Any]:
    """What came of a row's search, which is done, or gone on with, if it is not there; RunError for one of another
    docleak."""
    game, settings = sought_on(config), settings_of(config)
    folder = store / f"settings-{digest_of({**plain(game), 'tried': [asdict(attack) for attack in settings]})}"

    def search() -> dict[str, Any]:
        factors = []
        for number, attack in enumerate(settings):
            file = folder / f"{number:02d}.json"
            if not file.is_file():
                write_json(file, {"ipf": _factor(replace(game, attack=attack), store, device)})
            factors.append(float(read_stored(file)["ipf"]))
            tell(number + 1)
        return {"ipf": factors, "best": int(np.argmax(factors))}

    return made_once(folder, search)


def tuned(config: WeightsConfig, store: Path, *, device: str) -> WeightsConfig:
    """The game with the best of its settings; itself where none are sought."""
    if config.tuning is None:
        return config
    best = sought(config, store, device=device)["best"]
    return replace(config, attack=settings_of(config)[best], tuning=None)


def in_words(attack: CdmiConfig, *, weighted: bool) -> str:
    """The settings that are sought."""
    weight = f"weight {attack.weight:g}, " * weighted
    return f"{weight}temperature {attack.target_temperature.last:g}, top-p {attack.top_p:g}"


def _factor(config: WeightsConfig, store: Path, device: str) -> float:
    game = ready(config, store, device=device)
    records = [attack_field(game, number) for number in range(len(game.secrets))]
    ours, theirs = (as_array(first_matches(records, side)) for side in ("attempts", "baseline"))
    return improvement_factor(ours, theirs, epsilon=config.ipf_epsilon)
