"""Play a game on disk, field by field: every field is a unit, so that an interrupted game goes on where it was."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import torch

from docleak.attacks.weights import Attempt, Finding, WeightsView, attack_with
from docleak.evidence.extraction.game import Game, GameConfig, OnEpoch, ShadowConfig, set_up
from docleak.evidence.extraction.own import OwnConfig, set_up_own
from docleak.evidence.run import Run
from docleak.models.encoders.scrubbing import SecretField, scrub

MODELS = "models"
AnyConfig = GameConfig | OwnConfig | ShadowConfig
#: Told how many fields are done, of how many, and the last one's name.
OnField = Callable[[int, int, str], None]


def open_game(config: AnyConfig, out: Path, *, command: str = "") -> Run:
    """Begin or resume a game in ``out``; RunError if another one's results are there."""
    run = Run.open(out, {"kind": "cdmi", **asdict(config)})
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
        run.write_info("threat", view_of(game, game.secrets[0]).text)
        todo = [number for number, secret in enumerate(game.secrets) if not run.has(secret.name)]
        done = len(game.secrets) - len(todo)
        if workers == 1 or len(todo) < 2:
            for count, number in enumerate(todo, start=done + 1):
                attack_field(run, game, number)
                on_field(count, len(game.secrets), game.secrets[number].name)
        else:
            _play_parallel(run, game, config, todo, device, workers, on_field)
    return game


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
        attack_with(
            view, game.knowledge, attack, attempts=config.attempts,
            generator=torch.Generator().manual_seed(2 * (config.seed * 1_000_003 + number) + stream),
        )
        for stream, attack in enumerate((config.attack, replace(config.attack, weight=0.0)))
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


def _play_parallel(
    run: Run, game: Game, config: AnyConfig, todo: list[int], device: str, workers: int, on_field: OnField
) -> None:
    total = len(game.secrets)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(_work, run.path, config, device, number): number for number in todo}
        for count, finished in enumerate(as_completed(waiting), start=total - len(todo) + 1):
            finished.result()
            on_field(count, total, game.secrets[waiting[finished]].name)


def _work(path: Path, config: AnyConfig, device: str, number: int) -> None:
    attack_field(Run.load(path), _game(path, config, device), number)


@lru_cache(maxsize=1)
def _game(path: Path, config: AnyConfig, device: str) -> Game:
    torch.set_num_threads(1)
    return ready(config, path / MODELS, device=device)
