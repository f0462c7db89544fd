"""The server's side of a secure round in Flower: keys and shares before the training, confirmation and sum after it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import RecordDict

from docleak.errors import FederationError
from docleak.privacy.plan import DpPlan
from docleak.training.federated.fedopt import ClientUpdate
from docleak.training.federated.flower.messages import arrays_in, settings_in
from docleak.training.federated.flower.secure_silo import RECORD
from docleak.training.federated.secure.fixed_point import Shapes, Words, from_words
from docleak.training.federated.secure.keys import Pinned
from docleak.training.federated.secure.messages import (
    Advert,
    Confirmation,
    MaskedInput,
    Parcels,
    Session,
    Unmasking,
    pack_all,
)  # fmt: skip
from docleak.training.federated.secure.plan import SecurePlan
from docleak.training.federated.secure.server import Aggregation

#: Sends each silo its payload of a step; the replies of those that answered, by silo.
Ask = Callable[[str, Mapping[str, bytes]], dict[str, bytes]]
#: What the sum is called in place of a silo's name.
SUM = "(sum of {} silos)"


@dataclass
class SecureRound:
    """One sum. ``session`` is public; ``deliveries`` says what each silo that takes part needs to mask its update."""

    session: Session
    shapes: Shapes
    ask: Ask
    aggregation: Aggregation
    deliveries: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def begin(
        cls,
        plan: SecurePlan,
        privacy: DpPlan | None,
        silos: Sequence[str],
        shapes: Shapes,
        *,
        round_number: int,
        pinned: Pinned,
        ask: Ask,
    ) -> SecureRound:
        """Exchange keys and shares. FederationError if fewer silos than the threshold answer, or one does not fit."""
        session = plan.session(silos, shapes, round_number=round_number, privacy=privacy, entropy=secrets.token_bytes)
        aggregation = Aggregation(session, pinned)
        said = ask("advertise", dict.fromkeys(session.silos, session.to_bytes()))
        adverts = aggregation.adverts([Advert.from_bytes(data) for data in said.values()])
        told = pack_all(adverts)
        parcels = ask("share", {advert.silo: told for advert in adverts})
        deliveries = aggregation.deliveries([Parcels.from_bytes(data) for data in parcels.values()])
        payloads = {silo: delivery.to_bytes() for silo, delivery in sorted(deliveries.items())}
        return cls(session, shapes, ask, aggregation, payloads)

    def add(self, silo: str, content: RecordDict) -> Words:
        """Take one silo's masked words into the sum, and give them back; FederationError if they do not fit."""
        message = MaskedInput.from_bytes(bytes(settings_in(content, RECORD)["data"]))
        if message.silo != silo:
            raise FederationError(f"sent the masked update of silo {message.silo!r}")
        words: Words = arrays_in(content)["words"]
        self.aggregation.add(message, words)
        return words

    def total(self, *, drawn: int, private: bool) -> ClientUpdate:
        """Confirm who is in it, unmask, decode: the mean update of the silos, weighted by their examples.

        Under a privacy plan it is the sum over the ``drawn`` silos, divided by their number, whoever fell silent.
        """
        survivors = self.aggregation.survivors()
        confirmed = self.ask("confirm", dict.fromkeys(survivors.silos, survivors.to_bytes()))
        signed = self.aggregation.confirmations([Confirmation.from_bytes(data) for data in confirmed.values()])
        shares = self.ask("unmask", dict.fromkeys([reply.silo for reply in signed], pack_all(signed)))
        words = self.aggregation.total([Unmasking.from_bytes(data) for data in shares.values()])
        summed, weight = from_words(words, self.shapes, self.session.fixed)
        if private and weight != len(survivors.silos):
            raise FederationError(
                f"{len(survivors.silos)} silos weigh {weight}; under a privacy plan they count alike."
            )
        by = drawn if private else weight
        for value in summed.values():
            value /= by
        return ClientUpdate(SUM.format(len(survivors.silos)), by, summed)
