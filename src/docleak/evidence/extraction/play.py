"""Play a game on disk, field by field: every field is a unit, so that an interrupted game goes on where it was."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from docleak.attacks.weights import Attempt, Finding, WeightsView
from docleak.evidence.extraction.game import Game, GameConfig, OnEpoch, ShadowConfig, set_up
from docleak.evidence.extraction.own import OwnConfig, set_up_own
from docleak.models.encoders.scrubbing import SecretField, scrub
from docleak.registry import describe
from docleak.runs.pool import OnProgress, compute
from docleak.runs.run import Run

MODELS = "models"
AnyConfig = GameConfig | OwnConfig | ShadowConfig
#: Told how many fields are done, of how many, and the last one's name.
OnField = Callable[[int, int, str], None]


def open_game(config: AnyConfig, out: Path, *, command: str = "") -> Run:
    """Begin or resume a game in ``out``; RunError if another one's results are there."""
    attack = config.game.attack if isinstance(config, ShadowConfig) else config.attack
    run = Run.open(out, {"kind": "cdmi", **asdict(config), "attack": describe(attack)})
    run.write_info("command", command)
    return run


def play(
    run: Run,
    config: AnyConfig,
    *,
    device: str = "cpu",
    workers: int = 1,
    on_epoch: OnEpoch = lambda which, epochs, epoch: None,
    on_field: OnField = lambda done, total, name: None,
) -> Game:
    """Train what is missing, attack every field that has no result yet; ``workers`` processes of one thread each."""
    torch.set_num_threads(1)
    with run.claimed():
        game = ready(config, run.path / MODELS, device=device, on_epoch=on_epoch)
        run.write_info("card", game.card)
        run.write_info("left_out", game.left_out)
        run.write_info("secrets", len(game.secrets))
        run.write_info("threat", view_of(game, game.secrets[0]).text)
        todo = [secret.name for secret in game.secrets if not run.has(secret.name)]
        done = len(game.secrets) - len(todo)

        def on_progress(name: str, number: int, budget: int) -> None:
            nonlocal done
            done += 1
            on_field(done, len(game.secrets), name)

        compute(Player(run, config, device, game), todo, workers=workers, on_progress=on_progress)
    return game


class Player:
    """Attacks fields by name. Pickled, it is only what the game is made of: a worker process sets it up anew."""

    def __init__(self, run: Run, config: AnyConfig, device: str, game: Game | None = None) -> None:
        self.run, self.config, self.device, self._game = run, config, device, game

    def __call__(self, name: str, report: OnProgress) -> None:
        """One field, which is saved as a unit."""
        if self._game is None:
            self._game = ready(self.config, self.run.path / MODELS, device=self.device)
        number = [secret.name for secret in self._game.secrets].index(name)
        attack_field(self.run, self._game, number)
        report(name, 1, 1)

    def __reduce__(self) -> tuple[type[Player], tuple[Run, AnyConfig, str]]:
        return Player, (self.run, self.config, self.device)


def ready(
    config: AnyConfig, folder: Path, *, device: str = "cpu", on_epoch: OnEpoch = lambda which, epochs, epoch: None
) -> Game:
    """The game of ``config`` with its models in ``folder``: a target that is trained here, or the user's own."""
    if isinstance(config, OwnConfig):
        return set_up_own(config, folder, device=device, on_epoch=on_epoch)
    if isinstance(config, ShadowConfig):
        return set_up(config.game, folder, device=device, shadow=True, on_epoch=on_epoch)
    return set_up(config, folder, device=device, on_epoch=on_epoch)


def view_of(game: Game, secret: SecretField) -> WeightsView:
    """What the adversary is given of one field: SCRUB of algorithm 1. The truth stays behind."""
    page = game.pages[secret.page]
    hidden = (*secret.positions, *(secret.repeats if game.config.repeats else ()))
    scrubbed = scrub(page, hidden, mask_id=game.target.tokenizer.mask_token_id)
    return WeightsView(game.target, scrubbed, secret.positions, game.answers_only)


def attack_field(run: Run, game: Game, number: int) -> None:
    """One field: the attack's attempts and the baseline's, each with a generator of its own, saved as a unit."""
    secret, config = game.secrets[number], game.config
    began = time.perf_counter()
    view = view_of(game, secret)
    found, baseline = (
        attack.run(
            view, game.knowledge, budget=config.attempts,
            generator=torch.Generator().manual_seed(2 * (config.seed * 1_000_003 + number) + stream),
        )
        for stream, attack in enumerate((config.attack, config.attack.baseline()))
    )  # fmt: skip
    record = {
        **asdict(secret),
        "pieces": game.target.tokenizer.convert_ids_to_tokens(list(secret.tokens)),
        "attempts": _plain(found, game),
        "baseline": _plain(baseline, game),
        "calls": found.calls,
        "seconds": time.perf_counter() - began,
    }
    run.write_unit(secret.name, record, {})


def _plain(finding: Finding, game: Game) -> list[dict[str, object]]:
    tokenizer = game.target.tokenizer

    def words(attempt: Attempt) -> dict[str, object]:
        tokens = list(attempt.tokens)
        return {"text": str(tokenizer.decode(tokens)), "pieces": tokenizer.convert_ids_to_tokens(tokens)}

    return [{**asdict(attempt), **words(attempt)} for attempt in finding.attempts]
