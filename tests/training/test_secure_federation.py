"""A federation whose server learns sums only: what they are, what it sees of one silo, and silos that fall silent."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from docleak.documents.division import divide
from docleak.documents.silos import write_silos
from docleak.errors import FederationError
from docleak.models import load_model
from docleak.options import options_of
from docleak.privacy.mechanism import Mechanism
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.federated.capture import read_updates
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import ServerState, step
from docleak.training.federated.flower import embedded
from docleak.training.federated.flower.app import client_app
from docleak.training.federated.flower.discretion import REDACTED
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.local import parameters_of
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.party import private_round, train_round
from docleak.training.federated.record import FederatedRun
from docleak.training.federated.secure.keys import read_pinned, write_key_pair
from docleak.training.federated.secure.plan import SecurePlan
from docleak.training.federated.silo import open_party
from docleak.training.federated.wire import Compression
from docleak.training.settings import TrainingSettings

SILOS = 3
FEDERATION = Federation(
    rounds=2, holdout=0.3, seed=3, secure=SecurePlan(limit=10.0),
    local=LocalPlan(max_steps=2, batch_size=2, dropout=False),
)  # fmt: skip
PLAN = DpPlan(Mechanism(0.8, 2, unit_rate=0.9), clip_norm=0.5, denominator=2, delta=1e-3)


@pytest.fixture(scope="module")
def silos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("secure") / "silos"
    division = divide(["synthetic"], SILOS, by="providers", seed=0, count=15)
    write_silos(division.shares, division.sources, out, by="providers", seed=0)
    return {item.name: item for item in sorted(out.iterdir())}


def run(out: Path, silos: dict[str, Path], federation: Federation = FEDERATION, **options: Any) -> FederatedRun:
    options.setdefault("evaluate_every", 0)
    done = FederatedRun.open(out, federation)
    train_embedded(done, silos, **options)
    return done


def state_of(done: FederatedRun) -> ServerState:
    state = done.state()
    assert state is not None
    return state


def furthest(first: ServerState, second: ServerState) -> float:
    return max(float(np.abs(first.parameters[name] - second.parameters[name]).max()) for name in first.parameters)


def test_it_is_the_plain_federation_up_to_the_fixed_points_error(silos: dict[str, Path], tmp_path: Path) -> None:
    hidden = run(tmp_path / "hidden", silos)
    plain = run(tmp_path / "plain", silos, replace(FEDERATION, secure=None, rounds=1))
    first = run(tmp_path / "first", silos, replace(FEDERATION, rounds=1))
    examples = sum(client.examples for client in plain.rows()[0].clients)
    assert FEDERATION.secure is not None
    error = FEDERATION.secure.fixed_point(SILOS, None).error(SILOS) / examples
    assert 0 < furthest(state_of(first), state_of(plain)) <= error + 1e-15
    assert furthest(state_of(first), state_of(hidden)) > 1e-4  # a second round moves much more than that
    words = sum(value.size for value in state_of(first).parameters.values())
    for row in hidden.rows():
        assert [client.silo for client in row.clients] == sorted(silos)
        for client in row.clients:
            assert (client.loss, client.steps, client.examples) == (None, 0, 1)
            assert 4 * words < client.up <= 4.1 * words and 4 * words < client.down <= 4.1 * words


def test_the_servers_view_of_one_silo_is_noise_and_the_sum_is_not(silos: dict[str, Path], tmp_path: Path) -> None:
    run(tmp_path / "run", silos, replace(FEDERATION, rounds=1), capture=tmp_path / "updates")
    updates = {update.client: update for update in read_updates(tmp_path / "updates")}
    assert set(updates) == {*silos, "(sum of 3 silos)"}
    start = updates["synthetic-0"].start()
    true = {
        name: train_round(open_party(path, FEDERATION), load_model("vt5-start"), start, FEDERATION, 1)
        for name, path in silos.items()
    }
    for name, done in true.items():
        assert updates[name].details["masked"] is True
        seen, sent = (
            np.concatenate([arrays[key].ravel() for key in sorted(arrays)]).astype(np.float64)
            for arrays in (updates[name].delta(), done.update.delta)
        )
        assert abs(np.corrcoef(seen, sent)[0, 1]) < 5 / np.sqrt(seen.size)
        limit = np.abs(seen).max()
        counts, _ = np.histogram(seen, bins=64, range=(-limit, limit))
        expected = seen.size / 64
        assert ((counts - expected) ** 2 / expected).sum() < 63 + 6 * np.sqrt(2 * 63)  # uniform
    total = updates["(sum of 3 silos)"]
    assert total.details["masked"] is False and total.examples == sum(d.update.examples for d in true.values())


class Silent:
    """A client app that does not answer one silo's message of a kind, or changes its reply."""

    def __init__(
        self, app: ClientApp, silo: str, kind: str, change: Callable[[Message], Message] | None = None
    ) -> None:
        self.app, self.silo, self.kind, self.change, self.asked = app, silo, kind, change, 0

    def __call__(self, message: Message, context: Context) -> Message:
        reply = self.app(message, context)
        if context.node_config["name"] == self.silo and message.metadata.message_type == self.kind:
            self.asked += 1
            if self.change is None:
                raise RuntimeError("the line is dead")
            return self.change(reply)
        return reply


def broken(
    monkeypatch: pytest.MonkeyPatch, silo: str, kind: str, change: Callable[[Message], Message] | None = None
) -> list[Silent]:
    made: list[Silent] = []

    def app(*options: Any) -> Silent:
        made.append(Silent(client_app(*options), silo, kind, change))
        return made[-1]

    monkeypatch.setattr(embedded, "client_app", app)
    return made


@pytest.mark.parametrize("kind", ["query.advertise", "query.share", "train", "query.confirm", "query.unmask"])
def test_a_silo_may_fall_silent_at_any_step(
    kind: str, silos: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With threshold 2 of 3: the sum is that of the silos whose words arrived, and says so."""
    federation = replace(FEDERATION, rounds=1, secure=SecurePlan(threshold=2, limit=10.0))
    made = broken(monkeypatch, "synthetic-1", kind)
    done = run(tmp_path / "run", silos, federation)
    assert made[0].asked == 1
    late = kind in ("query.confirm", "query.unmask")  # its words are in the sum already
    left = sorted(silos) if late else sorted(set(silos) - {"synthetic-1"})
    (row,) = done.rows()
    assert [client.silo for client in row.clients] == left
    assert [("synthetic-1" in fault) for fault in row.absent] == ([] if late else [True])
    start = ServerState.of(parameters_of(load_model("vt5-start")))
    weights = {name: value.astype(np.float32) for name, value in start.parameters.items()}
    trained = [train_round(open_party(silos[name], federation), load_model("vt5-start"), weights, federation, 1)
               for name in left]  # fmt: skip
    expected = step(start, [one.update for one in trained], federation.server)
    assert furthest(state_of(done), expected) < 1e-8


def test_too_few_silos_give_no_sum_and_keep_the_last_model(
    silos: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, "synthetic-1", "train")
    with pytest.raises(FederationError, match=r"2 of 3 silos(.|\n)*missing: synthetic-1(.|\n)*own log says") as error:
        run(tmp_path / "run", silos)  # the default threshold is all three
    assert "line is dead" not in str(error.value)
    assert FederatedRun.open(tmp_path / "run", FEDERATION).last_round() == 0


def _words_changed(reply: Message) -> Message:
    array = reply.content.array_records["arrays"]["words"].numpy().copy()
    array[0] += 1
    from docleak.training.federated.flower.messages import array_record

    reply.content["arrays"] = array_record({"words": array})
    return reply


def test_tampered_words_are_noticed(silos: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, "synthetic-1", "train", _words_changed)
    with pytest.raises(FederationError, match="masked update of silo 'synthetic-1' was changed"):
        run(tmp_path / "run", silos)


def test_a_repeated_message_is_not_answered_twice(
    silos: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that asks again for what it was given gets nothing: each step's state is used once."""
    asked: list[tuple[Message, Context]] = []

    class Watched(Silent):
        def __call__(self, message: Message, context: Context) -> Message:
            if message.metadata.message_type == self.kind:
                asked.append((message, context))
            return self.app(message, context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "client_app", lambda *options: Watched(client_app(*options), "", "query.unmask"))
        run(tmp_path / "run", silos, replace(FEDERATION, rounds=1))
    message, context = asked[0]
    app = client_app(identities=lambda config: None)  # type: ignore[arg-type, return-value]
    reply = app(message, context)
    assert set(reply.content) == {"fault"} and reply.content["fault"]["message"] == REDACTED
    assert "no secure aggregation to go on with" in capsys.readouterr().err


def test_a_private_sum_carries_the_noise_of_the_threshold(silos: dict[str, Path], tmp_path: Path) -> None:
    """Every silo adds a share of the noise for the threshold's number of silos, and the sum is over the drawn ones."""
    numbers = iter(range(1000))
    federation = replace(FEDERATION, rounds=1, privacy=PLAN, secure=SecurePlan(threshold=2))
    done = run(tmp_path / "run", silos, federation, randomness=lambda: Randomness.seeded(next(numbers)))
    start = ServerState.of(parameters_of(load_model("vt5-start")))
    weights = {name: value.astype(np.float32) for name, value in start.parameters.items()}
    updates = [
        private_round(open_party(path, federation), load_model("vt5-start"), weights, federation, clients_drawn=2,
                      randomness=Randomness.seeded(number))
        for number, (_, path) in enumerate(sorted(silos.items()), start=1)
    ]  # fmt: skip
    assert furthest(state_of(done), step(start, updates, federation.server)) < 1e-6
    assert all((client.loss, client.examples) == (None, 1) for client in done.rows()[0].clients)


def test_a_private_sum_needs_every_drawn_silo_by_default() -> None:
    assert SecurePlan().needed(5, PLAN) == 5 and SecurePlan().needed(5, None) == 4
    assert SecurePlan(threshold=3).needed(5, PLAN) == 3


def test_a_value_beyond_the_public_limit_ends_the_round(
    silos: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FederationError, match=r"0 of 3 silos sent masked updates(.|\n)*'synthetic-0': it could not"):
        run(tmp_path / "run", silos, replace(FEDERATION, secure=SecurePlan(limit=1e-6)))
    assert capsys.readouterr().err.count("cannot hold it") == SILOS


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(FederationError, match="threshold says how many"):
        Federation(secure=SecurePlan(), minimum=2)
    with pytest.raises(FederationError, match="cannot be compressed"):
        Federation(secure=SecurePlan(), compression=Compression("fp16"))
    with pytest.raises(FederationError, match="expected 0 or more"):
        SecurePlan(threshold=-1)
    assert Federation.from_json(FEDERATION.to_json()) == FEDERATION


def test_one_silo_has_nobody_to_hide_among(silos: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="the sum of one is that silo's own update"):
        run(tmp_path / "run", dict(list(silos.items())[:1]))


def test_a_node_without_keys_says_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    context = Context(1, 1, {"name": "a", "silo": str(tmp_path)}, RecordDict(), {})
    message = Message(RecordDict({"secure": embedded_payload()}), 1, "query.advertise")
    message.metadata.__dict__["_message_id"] = "1"
    reply = client_app()(message, context)
    assert reply.content["fault"]["message"] == REDACTED
    assert "secure-key and secure-pinned" in capsys.readouterr().err


def embedded_payload() -> Any:
    from docleak.training.federated.flower.messages import config_record

    session = SecurePlan().session(["a", "b"], {"w": (2,)}, round_number=1, privacy=None, entropy=secrets.token_bytes)
    return config_record({"data": session.to_bytes()})


def test_a_node_reads_its_keys_from_the_folder_it_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        write_key_pair(tmp_path / "keys", name)
    assert set(read_pinned(tmp_path / "keys")) == {"a", "b"}
    config = {"name": "a", "secure-key": str(tmp_path / "keys" / "a"), "secure-pinned": str(tmp_path / "keys")}
    context = Context(1, 1, config, RecordDict(), {})
    message = Message(RecordDict({"secure": embedded_payload()}), 1, "query.advertise")
    message.metadata.__dict__["_message_id"] = "1"
    reply = client_app()(message, context)
    assert "fault" not in reply.content, reply.content
    context.node_config["secure-threshold"] = 3
    assert client_app()(message, context).content["fault"]["message"] == REDACTED
    assert "wants at least 3" in capsys.readouterr().err


ADVERTISED = """
import sys
from pathlib import Path
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from docleak.training.federated.flower.app import client_app
from docleak.training.federated.flower.messages import config_record
from docleak.training.federated.secure.keys import write_key_pair
from docleak.training.federated.secure.messages import Session
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
keys = Path(sys.argv[1])
own, _ = (write_key_pair(keys, name) for name in ("a", "b"))
session = Session("0" * 32, 1, ("a", "b"), 2, 8, 10)
content = RecordDict({"secure": config_record({"data": session.to_bytes()})})
context = Context(1, 1, {"secure-key": str(own), "secure-pinned": str(keys)}, RecordDict(), {})
reply = client_app()(Message(content, 1, "query.advertise", group_id="1"), context)
print(*reply.content, *(name for name in ("torch", "transformers", "scipy") if name in sys.modules))
"""


def test_a_step_that_needs_no_model_loads_no_torch(tmp_path: Path) -> None:
    """A deployed silo starts a process for each message: of the six of its secure round, torch is for two."""
    command = [sys.executable, "-c", ADVERTISED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "secure", (done.stdout, done.stderr)


def test_the_help_of_the_limit_says_that_privacy_has_another() -> None:
    plan = DpPlan(Mechanism(2.0, 1), clip_norm=0.5, denominator=10, delta=1e-5)
    assert SecurePlan().fixed_point(3, None).limit >= 1000 > SecurePlan().fixed_point(3, plan).limit >= 10
    assert "1000, under --epsilon" in options_of(TrainingSettings)["secure_limit"].option.help
