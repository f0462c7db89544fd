"""The server's side of secure aggregation: collect, pass on, recover (Bonawitz et al., 2017, figure 4).

Silos that do not answer are simply missing from a step's replies. A reply that does not fit ends the round: better no
sum than a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from docleak.errors import FederationError
from docleak.training.federated.secure.fixed_point import Words
from docleak.training.federated.secure.keys import (
    Pinned,
    check_value,
    checked_adverts,
    enough,
    mask_keys,
    self_mask_key,
)
from docleak.training.federated.secure.messages import (
    Advert,
    Confirmation,
    Delivery,
    MaskedInput,
    Parcels,
    Session,
    Survivors,
    Unmasking,
    pack_all,
)
from docleak.training.federated.secure.primitives import add_masks, agreement_public_key, digest, is_signed
from docleak.training.federated.secure.shamir import SHARE_BYTES, combine
from docleak.training.federated.secure.silo import checked_confirmations

Reply = TypeVar("Reply", Parcels, Unmasking)
#: Sends each silo its payload of a step; the replies of those that answered, by silo.
Ask = Callable[[str, Mapping[str, bytes]], Mapping[str, bytes]]


class Aggregation:
    """One session on the server; its methods are called once each, in the order they stand here (``add`` per silo).

    ``begin`` and ``finish`` go through the steps before and after the masked words by themselves.
    """

    def __init__(self, session: Session, pinned: Pinned) -> None:
        missing = [silo for silo in session.silos if silo not in pinned]
        if missing:
            raise FederationError(f"no key is pinned for the invited silos {', '.join(missing)}.")
        self.session = session
        self._pinned = pinned
        self._adverts: dict[str, Advert] = {}
        self._checks: dict[str, bytes] = {}
        self._summed: set[str] = set()
        self._sum = np.zeros(session.words, np.uint32)
        self._closed = False

    def begin(self, ask: Ask) -> dict[str, bytes]:
        """Steps 1 and 2: what each silo that takes part needs to mask its words (a Delivery's bytes)."""
        said = ask("advertise", dict.fromkeys(self.session.silos, self.session.to_bytes()))
        adverts = self.adverts([Advert.from_bytes(data) for data in said.values()])
        parcels = ask("share", dict.fromkeys([advert.silo for advert in adverts], pack_all(adverts)))
        deliveries = self.deliveries([Parcels.from_bytes(data) for data in parcels.values()])
        return {silo: delivery.to_bytes() for silo, delivery in sorted(deliveries.items())}

    def finish(self, ask: Ask) -> tuple[Words, tuple[str, ...]]:
        """Steps 4 and 5: the sum of the words that were added, and whose it is."""
        survivors = self.survivors()
        confirmed = ask("confirm", dict.fromkeys(survivors.silos, survivors.to_bytes()))
        signed = self.confirmations([Confirmation.from_bytes(data) for data in confirmed.values()])
        shares = ask("unmask", dict.fromkeys([reply.silo for reply in signed], pack_all(signed)))
        return self.total([Unmasking.from_bytes(data) for data in shares.values()]), survivors.silos

    def adverts(self, replies: Iterable[Advert]) -> tuple[Advert, ...]:
        """Step 1: what to send to every silo that advertised, for ``silo.share``."""
        self._adverts = checked_adverts(self.session, replies, self._pinned)
        return tuple(self._adverts.values())

    def deliveries(self, replies: Iterable[Parcels]) -> dict[str, Delivery]:
        """Step 2: what to send to whom, for ``silo.mask``."""
        shares = self._checked(replies, list(self._adverts), "sent shares")
        for sender, parcels in shares.items():
            if set(parcels.sealed) != set(self._adverts) - {sender}:
                raise FederationError(f"silo {sender!r} sealed shares for other silos than those that sent keys.")
        self._checks = {sender: parcels.check for sender, parcels in shares.items()}
        return {
            recipient: Delivery({sender: shares[sender].sealed[recipient] for sender in shares if sender != recipient})
            for recipient in shares
        }

    def add(self, message: MaskedInput, words: Words) -> None:
        """Step 3: one silo's masked words, added up as they come."""
        partners = tuple(sorted(self._checks))
        if self._closed or message.silo in self._summed or message.silo not in partners:
            raise FederationError(
                f"a masked update of silo {message.silo!r} that is not expected: it comes twice, too late, or of a "
                "silo that sent no shares."
            )
        if words.shape != (self.session.words,) or words.dtype != "uint32":
            raise FederationError(
                f"silo {message.silo!r} sent {words.dtype} {words.shape}; expected uint32 ({self.session.words},)."
            )
        statement = message.statement(self.session, digest(words))
        if not is_signed(self._pinned[message.silo], statement, message.signature):
            raise FederationError(f"the masked update of silo {message.silo!r} was changed, or is of another session.")
        if message.partners != partners:
            raise FederationError(
                f"silo {message.silo!r} masked with {', '.join(message.partners)}, the others with "
                f"{', '.join(partners)}: its delivery was changed, and the masks would not cancel."
            )
        self._sum += words
        self._summed.add(message.silo)

    def survivors(self) -> Survivors:
        """Step 4: what to send to every silo whose words arrived, for ``silo.confirm``; later words are refused."""
        enough(self.session, self._summed, "sent masked updates")
        self._closed = True
        return Survivors(tuple(sorted(self._summed)))

    def confirmations(self, replies: Sequence[Confirmation]) -> tuple[Confirmation, ...]:
        """Step 4: what to send to every silo that confirmed, for ``silo.unmask``."""
        told = tuple(sorted(self._summed))
        enough(self.session, checked_confirmations(self.session, replies, told, self._pinned), "confirmed")
        return tuple(sorted(replies, key=lambda reply: reply.silo))

    def total(self, replies: Iterable[Unmasking]) -> Words:
        """Step 5: the (words,) sum of the survivors' words modulo 2^32, without masks.

        Shares are not checked one by one, but what they give is: a seed by its check value, a mask key by the advert.
        """
        by_silo = self._checked(replies, sorted(self._summed), "helped to unmask")
        for silo, reply in by_silo.items():
            if set(reply.shares) != set(self._checks):
                raise FederationError(f"silo {silo!r} sent shares of other silos than its partners.")
        session = self.session
        total = self._sum.copy()
        for silo in sorted(self._checks):
            shares = {session.point(sender): reply.shares[silo] for sender, reply in by_silo.items()}
            secret = combine(shares, session.threshold) if _whole(shares.values()) else None
            if silo in self._summed:
                if secret is None or check_value(session, silo, secret) != self._checks[silo]:
                    raise _wrong_shares(silo, "seed")
                add_masks(total, [], [self_mask_key(session, silo, secret)])
            else:
                if secret is None or agreement_public_key(secret) != self._adverts[silo].mask_key:
                    raise _wrong_shares(silo, "mask key")
                # What is left in the sum are the survivors' masks with this silo: the opposite of those it would add.
                add_masks(total, *mask_keys(session, secret, silo, (self._adverts[s] for s in sorted(self._summed))))
        return total

    def _checked(self, replies: Iterable[Reply], expected: Sequence[str], what: str) -> dict[str, Reply]:
        """Signed replies by silo, sorted, none twice or of another silo, and enough of them."""
        by_silo: dict[str, Reply] = {}
        for reply in replies:
            if reply.silo not in expected or reply.silo in by_silo:
                raise FederationError(f"a reply of silo {reply.silo!r} that is not expected here, or comes twice.")
            if not is_signed(self._pinned[reply.silo], reply.statement(self.session), reply.signature):
                raise FederationError(f"what silo {reply.silo!r} sent was changed, or is of another session.")
            by_silo[reply.silo] = reply
        enough(self.session, by_silo, what)
        return dict(sorted(by_silo.items()))


def _whole(shares: Iterable[bytes]) -> bool:
    return all(len(share) == SHARE_BYTES for share in shares)


def _wrong_shares(silo: str, what: str) -> FederationError:
    return FederationError(
        f"the shares of the {what} of silo {silo!r} do not give it back: a silo dealt or returned wrong ones. There is "
        "no sum."
    )
