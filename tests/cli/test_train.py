"""``docleak train`` and ``docleak deploy``: what they leave, print and refuse."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
import PIL.Image
import pytest

from docleak.cli.app import command_line
from docleak.models import load_model
from docleak.models.base import trainable
from docleak.options import options_of
from docleak.training.federated.capture import read_updates
from docleak.training.settings import FEDERATED, OF_PRIVACY, TrainingSettings

Command = Callable[..., tuple[Any, str, str]]
SMALL = ("--documents", 10, "--clients", 2, "--rounds", 1, "--max-steps", 1, "--batch-size", 2)


def test_a_small_federation_from_end_to_end(command: Command, tmp_path: Path) -> None:
    code, out, err = command("train", "federated", *SMALL)
    assert code == 0, err
    run = tmp_path / "docleak-train"
    assert "ANLS" in out and "docleak audit updates docleak-train/updates" in out
    assert re.search(r"\] of \d+ questions? on \d+ documents?  ", out), "what was counted, and what the interval is of"
    assert "round 1: training synthetic-1" in err
    lines = (run / "history.csv").read_text().splitlines()
    assert len(lines) == 3 and lines[0].startswith("round,silos,loss,anls") and lines[2].startswith("1,synthetic-0 ")
    picture = np.asarray(PIL.Image.open(run / "curves.png"))
    assert picture.shape[0] > 300 and picture.std() > 5
    assert [update.client for update in read_updates(run / "updates")] == ["synthetic-0", "synthetic-1"]
    trained, start = load_model(str(run / "model")), load_model("vt5-start")
    before = dict(trainable(start.module))
    assert any((p != before[name]).any() for name, p in trainable(trained.module))
    code, out, _ = command("train", "federated", *SMALL, "--rounds", 2, "--tensorboard", "--json")
    (events,) = (run / "tensorboard").iterdir()
    assert all(name in events.read_bytes() for name in (b"loss/mean", b"loss/synthetic-1", b"anls", b"bytes/up"))
    facts = json.loads(out)
    assert code == 0 and [row["round"] for row in facts["rounds"]] == [1, 2], "the run was continued"
    assert facts["start"]["questions"] > 0 and facts["rounds"][1]["bytes_up"] > 0
    code, out, err = command("train", "federated", *SMALL, "--json")
    assert code == 0 and "docleak-train has 2 rounds, more than the 1 asked for: nothing is trained." in err
    assert json.loads(out)["rounds"] == facts["rounds"]
    code, out, err = command("report", "docleak-train")
    assert code == 0 and "Trained, not attacked" in out.replace("trained", "Trained") and "round  loss" in out, err
    page = (run / "report.html").read_text()
    assert "round 2" in page and "data:image/png" in page and "no differential privacy" in page
    code, _, err = command("train", "federated", *SMALL, "--rounds", 2, "--seed", 1)
    assert code == 1 and "a run with another config" in err and "seed: 0 there, 1 asked for" in err


def test_the_hint_names_a_silo_that_sent_something_in_the_round_it_is_about(command: Command, tmp_path: Path) -> None:
    drawn = ("--participation", 0.1, "--evaluate-every", 0)
    code, out, err = command("train", "federated", *SMALL, *drawn)
    assert code == 0, err
    updates = read_updates(tmp_path / "docleak-train" / "updates")
    assert {update.client for update in updates} == {"synthetic-1"}
    assert "in synthetic-1's updates: docleak audit updates docleak-train/updates --client synthetic-1 " in out


def test_the_hint_is_a_command_of_any_names(command: Command, tmp_path: Path) -> None:
    name = "Zoë & Söhne <b>"
    assert command("data", "make", "made", "--count", 4)[0] == 0
    (tmp_path / "my silos").mkdir()
    (tmp_path / "made").rename(tmp_path / "my silos" / name)
    code, out, err = command("train", "federated", *SMALL[4:], "--silos", "my silos", "--holdout", 0, "--out", "a run")
    assert code == 0, err
    (hint,) = (line for line in out.splitlines() if "docleak audit" in line)
    words = shlex.split(hint[hint.index("docleak audit") :])
    assert words[3:] == ["a run/updates", "--client", name, "--documents", f"folder:my silos/{name}"]


def test_capture_and_dropout_can_be_said_both_ways_whatever_the_default(command: Command, tmp_path: Path) -> None:
    code, _, err = command("train", "federated", *SMALL, "--capture", "--no-dropout", "--out", "with")
    assert code == 0 and read_updates(tmp_path / "with" / "updates"), err
    code, _, err = command("train", "federated", *SMALL, "--no-capture", "--dropout", "--out", "without")
    assert code == 0 and not (tmp_path / "without" / "updates").exists(), err
    told = [json.loads((tmp_path / out / "run.json").read_text())["config"]["local"] for out in ("with", "without")]
    assert [local["dropout"] for local in told] == [False, True]
    for words in ("--capture", "--no-capture"):
        code, out, _ = command("train", "central", words, "--pages", 4, "--dry-run")
        assert code == 0 and "1 of 1 silos" in out


def test_a_federation_with_secure_aggregation_says_what_the_server_sees(command: Command, tmp_path: Path) -> None:
    code, out, err = command("train", "federated", *SMALL, "--secure")
    assert code == 0, err
    assert "masked updates and in their sum" in out and "secure aggregation, synthetic-1" in err
    clients = [update.client for update in read_updates(tmp_path / "docleak-train" / "updates")]
    assert clients == ["(sum of 2 silos)", "synthetic-0", "synthetic-1"]
    code, out, err = command("audit", "updates", "docleak-train/updates", "--documents", "docleak-train/silos")
    assert code == 0, err
    assert out.count("noise to the server") == 2 and "all that the server learns" in out
    code, out, _ = command("train", "federated", *SMALL, "--secure-threshold", 2, "--json")
    assert code == 1 and "belongs to --secure" in json.loads(out)["error"]
    code, out, _ = command("train", "federated", *SMALL, "--secure", "--compression", "fp16", "--json")
    assert code == 1 and "cannot be compressed" in json.loads(out)["error"]


def test_central_training_with_privacy(command: Command, tmp_path: Path) -> None:
    private = ("--epsilon", 4, "--denominator", 3, "--delta", 1e-3, "--unit-rate", 0.5)
    code, out, err = command("train", "central", "--pages", 8, "--rounds", 1, "--max-steps", 1, *private)
    assert code == 0, err
    assert "Privacy: after 1 round, epsilon" in out and "probability 0.5" in out
    assert json.loads((tmp_path / "docleak-train" / "ledger.json").read_text())["begun"] == 1


def test_a_private_federation_says_what_it_guarantees(command: Command, tmp_path: Path) -> None:
    code, out, err = command("train", "federated", *SMALL, "--epsilon", 8, "--denominator", 2, "--delta", 1e-3)
    assert code == 0, err
    assert "Privacy: after 1 round, epsilon" in out and "per provider" in out and "a single silo's update" in out
    assert (
        "A public coin by name keeps each provider with probability 0.2" in out and "2 times, which costs them" in out
    )
    assert json.loads((tmp_path / "docleak-train" / "ledger.json").read_text())["begun"] == 1
    assert command("report", "docleak-train")[0] == 0
    page = (tmp_path / "docleak-train" / "report.html").read_text()
    assert "It holds for the released models. Whoever sees a single silo" in page
    assert "privacy mechanism noise multiplier" in page and "{&#39;" not in page
    assert "what is claimed bounds it" in page and "the intervals are of that noise" in page
    code, out, _ = command("train", "federated", *SMALL, "--epsilon", 8, "--json")
    assert code == 1 and "the denominator is 0" in json.loads(out)["error"]
    code, out, _ = command("train", "federated", *SMALL, "--epsilon", 8, "--noise", 1, "--denominator", 2, "--json")
    assert code == 1 and "give one" in json.loads(out)["error"]
    code, out, _ = command("train", "federated", *SMALL, "--epsilon", -1, "--denominator", 2, "--json")
    assert code == 1 and "epsilon" in json.loads(out)["error"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("federated", "--clip-norm", 1), "--clip-norm: of a private training, and none is asked for"),
        (("federated", "--unit", "document", "--delta", 1e-3), "--delta, --unit: of a private training"),
        (("federated", "--denominator", 5), "--denominator: of a private training"),
        (("federated", "--published-counting"), "--published-counting: of a private training"),
        (("central", "--unit-rate", "0.5"), "--unit-rate: of a private training"),
        (("central", "--unit", "record"), "--unit: of a private training"),
        (("federated", "--beta1", 0.5), "--beta1 belongs to --server fedavgm or fedadam"),
        (("federated", "--server", "fedavgm", "--beta2", 0.5), "--beta2 belongs to --server fedadam"),
        (("federated", "--noise", 1, "--denominator", 2, "--published-counting"), "drawn whole"),
        (("federated", "--noise", 1, "--denominator", 2, "--unit", "client"), "set holdout to 0"),
        (("central", "--noise", 1, "--denominator", 2, "--documents", "pages", "--pages", 9), "--pages 9"),
        (("central", "--noise", 1, "--denominator", 2, "--unit", "record", "--epochs", 2), "has no --epochs"),
    ],
)  # fmt: skip
def test_options_that_would_mean_nothing_are_refused(words: tuple[object, ...], said: str, command: Command) -> None:
    if "pages" in words:
        assert command("data", "make", "pages", "--count", 2)[0] == 0
    code, out, _ = command("train", *words, "--json")
    assert code == 1 and said in json.loads(out)["error"]


def test_every_setting_is_an_option_and_reaches_the_federation() -> None:
    asked, group = options_of(TrainingSettings), command_line().commands["train"]
    assert isinstance(group, click.Group)
    flags = {name: {flag for one in command.params for flag in one.opts} for name, command in group.commands.items()}
    assert {one.flag for one in asked.values()} <= flags["federated"]
    of_one = {one.flag for one in asked.values() if one.option.group != FEDERATED}
    assert of_one <= flags["central"] and not flags["central"] & {one.flag for one in asked.values()} - of_one
    plain = asdict(TrainingSettings().federation())
    others: dict[str, Any] = {
        "model": "vt5-public", "optimiser": "sgd", "objective": "tm", "server": "fedadam", "compression": "fp16",
        "secure": True, "dropout": True, "participation": 0.5, "holdout": 0.5,
        "beta1": 0.5, "beta2": 0.5, "lora": "r=2",
    }  # fmt: skip
    # How often is evaluated is part of a federation only where evaluations cost privacy.
    for name in asked.keys() - {*OF_PRIVACY, "epsilon", "noise", "evaluate_every"}:
        value = others[name] if name in others else asked[name].default + 1
        beside = {"beta1": {"server": "fedadam"}, "beta2": {"server": "fedadam"}}.get(name, {})
        beside = {"secure": True} if name.startswith("secure_") else beside
        changed = asdict(TrainingSettings(**{**beside, name: value}).federation())
        assert changed != (asdict(TrainingSettings(**beside).federation()) if beside else plain), name


def test_the_published_counting_is_trained_and_called_no_bound(command: Command) -> None:
    private = ("--noise", 2, "--denominator", 2, "--delta", 1e-3, "--participation", 0.5, "--published-counting")
    code, out, err = command("train", "federated", *SMALL, *private)
    assert code == 0, err
    assert "by the published counting, which is no bound" in out and "A bound for the same rounds: epsilon" in out


def test_central_training_is_one_silo(command: Command, tmp_path: Path) -> None:
    code, out, err = command(
        "train", "central", "--pages", 6, "--rounds", 1, "--max-steps", 1, "--batch-size", 2, "--out", "c"
    )
    assert code == 0, err
    assert len(list((tmp_path / "c" / "silos").iterdir())) == 1 and not (tmp_path / "c" / "updates").exists()
    assert "audit updates" not in out


def test_silos_of_an_earlier_training_are_not_taken_for_those_that_are_named(command: Command) -> None:
    assert command("train", "federated", *SMALL)[0] == 0
    for words in (("--clients", 3), ("--documents", 12)):
        code, out, err = command("train", "federated", *SMALL, *words, "--rounds", 2)
        assert code == 1 and not out and "docleak-train/silos was made of clients 2, documents 10, seed 0" in err
        assert f"{words[0].strip('-')} {words[1]}, " in " ".join(err.split()) and "Pass another out" in err
    assert command("train", "federated", *SMALL, "--rounds", 2)[0] == 0, "the same ones are trained on"


def test_a_private_dry_run_says_what_was_planned(command: Command) -> None:
    words = ("train", "federated", "--dry-run", "--clients", 2, "--rounds", 2, "--epsilon", 4, "--denominator", 9)
    code, out, _ = command(*words)
    assert code == 0 and "Privacy, of this training alone: epsilon 4 at delta 1e-05 per provider" in out
    assert "divided by 9" in out and "PLD accountant" in out
    assert "towards the server, this training alone costs epsilon" in out and "Another silo can take" in out
    _, out, _ = command(*words, "--json")
    plan = json.loads(out)["privacy"]
    assert 3.99 < plan["epsilon"] <= 4 and plan["denominator"] == 9 and plan["mechanism"]["rounds"] == 2
    _, out, _ = command(*words, "--delta", 0.6)
    said = next(line for line in out.splitlines() if line.startswith("Privacy"))
    assert "Of about 18 providers, by the plan's public numbers, delta 0.6 is not below 1/18" in said, "beside epsilon"


def test_the_dry_run_counts_both_ways_and_writes_nothing(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("train", "federated", "--dry-run", "--model", "vt5-base", "--clients", 2, "--rounds", 10)
    assert code == 0 and "44.66 GiB" in out and "33.63 GiB" in out and not list(tmp_path.iterdir())
    _, out, _ = command("train", "central", "--dry-run", "--json")
    assert json.loads(out)["clients_per_round"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "vt5-strat"), "Did you mean 'vt5-start'"),
        (("--silos", "nowhere"), "expected a folder of silos"),
        (("--server", "adam"), "known: fedavg, fedavgm, fedadam"),
        (("--optimiser", "lion"), "known: adamw, adam, sgd"),
        (("--objective", "xx"), "objective"),
        (("--compression", "zip"), "expected none, fp16 or topk:SHARE"),
        (("--clients", "50", "--documents", "10"), "50 clients"),
        (("--clients", "50", "--documents", "10", "--dry-run"), "50 clients"),
        (("--holdout", "1"), "holdout is 1.0"),
        (("--rounds", "0"), "rounds is 0"),
        (("--minimum", "99", "--clients", "2"), "minimum is 99, and 2 of 2 silos train in a round; expected at most 2"),
        (("--minimum", "99", "--dry-run"), "minimum is 99, and 3 of 3"),
        (("--secure", "--secure-threshold", "4"), "the secure threshold is 4, and 3 of 3 silos"),
        (("--secure", "--secure-threshold", "1"), "the secure threshold is 1, and 3 of 3 silos train in a round"),
        (("--secure", "--secure-threshold", "2", "--clients", "4"), "more than half of these and no more: 3 to 4"),
        (("--timeout", "nan", "--documents", "6"), "--timeout is nan; expected 1 to"),
    ],
)
def test_what_cannot_be_trained_is_said_plainly(words: tuple[str, ...], said: str, command: Command) -> None:
    code, out, err = command("train", "federated", *words, "--json")
    assert code == 1 and said in json.loads(out)["error"] and "Traceback" not in err


def test_a_deployment_is_written_and_checked(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("deploy", "init", "dep", "--silos", "a,b", "--host", "127.0.0.1")
    assert code == 0 and "dep/silos/b" in out and (tmp_path / "dep" / "README.md").is_file()
    assert command("deploy", "check", "dep/server")[0] == 0
    code, _, err = command("deploy", "check", "dep/silos/a", "--server", "127.0.0.1:1")
    assert code == 1 and "a cannot start" in err and "cannot be reached" in err
    code, _, err = command("deploy", "init", "dep", "--silos", "2")
    assert code == 1 and "new folder" in err
    code, _, err = command("deploy", "init", "other", "--silos", "0")
    assert code == 1 and "there is no silo" in err


def test_a_silos_limits_are_shown_and_set(command: Command, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    code, _, err = command("deploy", "silo", "pages", "--epsilon", 8)
    assert code == 1 and "has no limits yet; to set them, give --delta --noise-std" in err
    everything = ("--epsilon", 8, "--delta", 1e-5, "--noise-std", 0.3, "--clients", 3, "--unit", "provider",
                  "--clip-norm", 0.5, "--denominator", 4)  # fmt: skip
    code, out, err = command("deploy", "silo", "pages", *everything)
    assert code == 0 and "No private round was begun." in out and "cost more than 8;" in out, err
    assert sorted(file.name for file in (tmp_path / "pages").iterdir() if file.stat().st_mode & 0o777 == 0o600) == [
        "ledger.json", "limits.json", "witness.json"
    ]  # fmt: skip
    code, out, _ = command("deploy", "silo", "pages", "--epsilon", 2, "--evaluation", "--json")
    told = json.loads(out)
    assert told["limits"]["epsilon"] == 2 and told["limits"]["evaluation"] and told["rounds_begun"] == 0
    for words, said in ((("--clients", 0), "clients is 0"), (("--unit", "page"), "unit is 'page'")):
        code, out, _ = command("deploy", "silo", "pages", *words, "--json")
        assert code == 1 and said in json.loads(out)["error"]
    assert command("deploy", "silo", "nowhere")[0] == 1
