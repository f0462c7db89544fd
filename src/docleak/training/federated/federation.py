"""A federation: what every party of a federated training agrees on, and what follows from it alone."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from docleak.documents.coins import coin
from docleak.errors import FederationError, refuse, those
from docleak.files import parse_json, shaped
from docleak.privacy.mechanism import Relation, Unit
from docleak.privacy.plan import DpPlan
from docleak.training.federated.fedopt import FedOpt
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.secure.plan import SecurePlan, too_coarse
from docleak.training.federated.wire import Compression

#: Keep the streams of one seed apart: which silos are sampled, and a client's round.
SAMPLING, TRAINING = 1, 2


@dataclass(frozen=True)
class Federation:
    """Everything that changes a number of a federated training, and nothing else.

    ``model`` is a name of a shipped checkpoint, a directory or a hub name, as each party has it. ``participation`` is
    C, the share of the silos that train in a round: at least one, or, where a privacy plan counts on silos being drawn
    (its client rate is below 1), never more than C, by coins of the server's own and not of ``seed``. Each document is
    kept to evaluate on by a coin of its own with probability ``holdout`` (under a privacy plan, each unit): ``keeps``.
    A round needs the update of every sampled silo, unless ``minimum`` says how many will do.
    With a ``privacy`` plan silos train by FL-PROVIDER-DP, on what it protects. Besides they only send noised scores of
    what they keep, ``evaluations`` times at most (0: once a round of the plan, and once before the first).
    With a ``secure`` plan the server learns sums of updates only, and no counts or losses of a silo.
    """

    model: str = "vt5-start"
    rounds: int = 3
    participation: float = 1.0
    minimum: int = 0
    holdout: float = 0.2
    seed: int = 0
    local: LocalPlan = field(default_factory=LocalPlan)
    server: FedOpt = field(default_factory=FedOpt)
    compression: Compression = field(default_factory=Compression)
    privacy: DpPlan | None = None
    secure: SecurePlan | None = None
    evaluations: int = 0

    def __post_init__(self) -> None:
        faults = those(
            (self.rounds < 1, f"rounds is {self.rounds}; expected at least 1"),
            (not 0 < self.participation <= 1,
             f"participation is {self.participation}; expected more than 0 and at most 1"),
            (self.minimum < 0 or self.seed < 0,
             f"minimum is {self.minimum} and seed {self.seed}; expected 0 or more"),
            (not 0 <= self.holdout < 1, f"holdout is {self.holdout}; expected 0 or more and less than 1"),
            (self.evaluations < 0 or bool(self.evaluations and self.privacy is None),
             f"evaluations is {self.evaluations}; expected 0 or more, and none without a privacy plan"),
        )  # fmt: skip
        faults += _private_faults(self, self.privacy) if self.privacy is not None else []
        faults += _secure_faults(self) if self.secure is not None else []
        refuse(FederationError, faults)

    def to_json(self) -> str:
        """One line that ``from_json`` reads; what the server sends to its silos."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Federation:
        """The inverse of ``to_json``; FederationError names every key that is unknown or of another type."""
        try:
            saved = parse_json(text, strict=False)
        except ValueError as error:
            raise FederationError(f"the federation's settings are no JSON ({error}).") from error
        return shaped(cls, saved, FederationError, "the federation's settings", "Give those of this docleak's own.")

    @property
    def reticent(self) -> bool:
        """Whether silos say nothing of their own besides what the federation is for: no counts, losses or steps."""
        return self.privacy is not None or self.secure is not None

    @property
    def scores_at_most(self) -> int:
        """How many evaluations a silo answers under the privacy plan, which its noise is planned for."""
        assert self.privacy is not None
        return self.evaluations or self.privacy.mechanism.rounds + 1

    def keeps(self, name: str) -> bool:
        """Whether a document (or provider, by its ``provider_key``) is kept to evaluate on, and never trained on.

        It follows from the seed and that one name: whoever is taken away, the others stay where they are. The coin is
        public, and there may be none that is kept.
        """
        return coin(self.seed, "holdout", name) < self.holdout

    @property
    def counts_on_draws(self) -> bool:
        """Whether the privacy plan grants something for silos that are not drawn: nobody may know them beforehand."""
        return self.privacy is not None and self.privacy.mechanism.client_rate < 1

    def sampled(
        self, silos: Sequence[str], round_number: int, coins: np.random.Generator | None = None
    ) -> tuple[str, ...]:
        """The silos of a round, ``drawn`` of the K, without replacement; sorted.

        They follow from the seed. Where the plan ``counts_on_draws`` they come from ``coins``, new ones for every round
        that is begun: a seed gives the same silos in another phase, or again in a round that was lost. FederationError
        without coins there.
        """
        if not self.counts_on_draws:
            coins = np.random.default_rng((self.seed, SAMPLING, round_number))
        elif coins is None:
            raise FederationError("the privacy plan counts on silos drawn by chance; expected the server's own coins.")
        return tuple(sorted(coins.choice(sorted(silos), size=drawn(self, len(silos)), replace=False).tolist()))

    def client_rng(self, silo: str, round_number: int) -> np.random.Generator:
        """What a silo draws from in a round: the same in every engine, and after a resume."""
        return np.random.default_rng((self.seed, TRAINING, round_number, zlib.crc32(silo.encode())))

    def needed(self, sampled: int) -> int:
        """Updates without which a round is not averaged."""
        return min(self.minimum, sampled) if self.minimum else sampled


def drawn(federation: Federation, silos: int) -> int:
    """How many of so many silos a round takes: C K without its fraction, and at least one unless the plan counts on
    draws. Nguyen and Karatzas (2024) do not say how they round; their public code takes ``int(C K)``, as Flower does.
    """
    taking = math.floor(federation.participation * silos + 1e-9)
    return taking if federation.counts_on_draws else max(1, taking)


def noise_shares(federation: Federation, silos: int) -> int:
    """How many of so many silos share the noise of a round under a privacy plan: the fewest that a sum is over."""
    taking, secure = drawn(federation, silos), federation.secure
    return taking if secure is None else secure.needed(taking, federation.privacy)


def impossible(federation: Federation, silos: int) -> list[str]:
    """Why so many silos cannot be trained as the federation's settings say, if so."""
    taking, secure = drawn(federation, silos), federation.secure
    threshold = 0 if secure is None else secure.needed(taking, federation.privacy)
    coarse = ""
    if secure is not None and federation.privacy is not None and taking > 1:
        coarse = too_coarse(secure.fixed_point(taking, federation.privacy), federation.privacy, threshold)
    return those(
        (federation.minimum > taking,
         f"minimum is {federation.minimum}, and {taking} of {silos} silos train in a round; expected at most {taking}"),
        (secure is not None and taking == 1,
         f"1 of {silos} silos trains in a round; secure aggregation expects at least 2, since the sum of one is that "
         "silo's own update"),
        (secure is not None and taking > 1 and not taking < 2 * threshold <= 2 * taking,
         f"the secure threshold is {threshold}, and {taking} of {silos} silos train in a round; expected more than "
         f"half of these and no more: {taking // 2 + 1} to {taking}"),
        (bool(coarse), coarse),
        (federation.privacy is not None and federation.compression.kind != "none" and taking > 1,
         f"compression is {federation.compression}, and under the privacy plan {taking} silos share the noise of a "
         "round: what each of them leaves out or rounds is of its share, so that the sum has not the noise that is "
         "accounted; send updates whole (none)"),
        (not taking,
         f"participation is {federation.participation}, which is less than one of {silos} silos, and the privacy plan "
         f"counts on no more than that share being drawn; plan with {1 / max(silos, 1):.4g} or more"),
    )  # fmt: skip


def _private_faults(federation: Federation, plan: DpPlan) -> list[str]:
    m, holdout = plan.mechanism, federation.holdout
    return those(
        (m.unit is Unit.RECORD,
         "the plan protects records (single questions), which FL-PROVIDER-DP does not draw; choose unit provider, "
         "document or client, or train centrally (docleak train central --unit record)"),
        (federation.rounds > m.rounds,
         f"rounds is {federation.rounds}, and the privacy plan accounts for {m.rounds}"),
        (m.client_rate < federation.participation,
         f"participation is {federation.participation}, and the privacy plan accounts for a client rate of "
         f"{m.client_rate}"),
        (federation.server.divide_by_clients,
         "divide_by_clients divides the noise twice; leave it off under a privacy plan"),
        (bool(holdout) and m.unit is Unit.CLIENT,
         f"holdout is {holdout}, and the plan protects whole clients: what they answer on documents they keep would be "
         "a second release of what is trained on; set holdout to 0"),
        (bool(holdout) and m.unit is not Unit.CLIENT and m.relation is Relation.REPLACE_ONE,
         f"holdout is {holdout}, and the plan counts replacing one {m.unit} by another: one may be trained on and the "
         "other kept, so that both releases change; set holdout to 0"),
    )  # fmt: skip


def _secure_faults(federation: Federation) -> list[str]:
    return those(
        (bool(federation.minimum),
         f"minimum is {federation.minimum}; with secure aggregation its threshold says how many will do"),
        (federation.compression.kind != "none",
         f"compression is {federation.compression}; masked words cannot be compressed"),
        (federation.server.divide_by_clients,
         "divide_by_clients needs to know the silos one by one; leave it off with secure aggregation"),
    )  # fmt: skip
