"""The silo's side of secure aggregation: advertise, share, mask, confirm, unmask (Bonawitz et al., 2017, figure 4).

Each step takes the state that the step before gave, and gives the next one with what to send. States are values; they
go to bytes and back (``to_bytes``, ``from_bytes``) for engines that start a process per message. They hold secrets:
keep them in the silo. **Save the new state before you send the message, and forget the old one**: a state used twice
answers twice, which is what the protocol must not do. Every step raises FederationError where the server's or another
silo's message does not fit; the silo then takes no further part in the session.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from docleak.errors import FederationError, refuse, those
from docleak.training.federated.secure.fixed_point import Words
from docleak.training.federated.secure.keys import (
    Identity,
    check_value,
    checked_adverts,
    enough,
    mask_keys,
    pair_key,
    self_mask_key,
)
from docleak.training.federated.secure.messages import (
    Advert,
    Confirmation,
    Delivery,
    MaskedInput,
    Message,
    Parcels,
    Session,
    Survivors,
    Unmasking,
    unpack_all,
)
from docleak.training.federated.secure.primitives import (
    KEY_BYTES,
    add_masks,
    agreement_public_key,
    digest,
    is_signed,
    seal,
    sign,
    unseal,
)
from docleak.training.federated.secure.shamir import SHARE_BYTES, Entropy, split

Signed = TypeVar("Signed", Advert, Parcels, MaskedInput, Confirmation, Unmasking)


@dataclass(frozen=True)
class Advertised(Message):
    """After step 1: the secret halves of the advertised keys."""

    session: Session
    share_secret: bytes = field(repr=False)
    mask_secret: bytes = field(repr=False)


@dataclass(frozen=True)
class Shared(Message):
    """After step 2: the seed of the silo's own mask, its own pair of shares, and the others' adverts as bytes."""

    keys: Advertised
    adverts: Mapping[str, bytes]
    seed: bytes = field(repr=False)
    own_shares: bytes = field(repr=False)


@dataclass(frozen=True)
class Masked(Message):
    """After step 3: a pair of shares of every partner (seed's, then mask key's), itself included."""

    session: Session
    held: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class Confirmed(Message):
    """After step 4: the survivors that this silo signed."""

    masked: Masked
    survivors: tuple[str, ...]


def advertise(
    session: Session, identity: Identity, *, entropy: Entropy = secrets.token_bytes
) -> tuple[Advertised, Advert]:
    """Step 1: keys for this session alone. FederationError for a session this silo must not join.

    ``entropy`` makes keys: anything but the default is for tests.
    """
    unknown = [name for name in session.silos if name not in identity.pinned]
    faults = [f"silo {name!r} is invited, and no key of it is pinned" for name in unknown]
    faults += those(
        (identity.silo not in session.silos, f"silo {identity.silo!r} is not invited"),
        (session.threshold < identity.least_threshold,
         f"the server proposes sums over {session.threshold} silos; {identity.silo!r} wants at least "
         f"{identity.least_threshold}"),
    )  # fmt: skip
    refuse(FederationError, faults)
    state = Advertised(session, entropy(KEY_BYTES), entropy(KEY_BYTES))
    keys = agreement_public_key(state.share_secret), agreement_public_key(state.mask_secret)
    advert = Advert(identity.silo, *keys, b"")
    return state, _signed(advert, advert.statement(session), identity)


def share(
    state: Advertised, adverts: Iterable[Advert], identity: Identity, *, entropy: Entropy = secrets.token_bytes
) -> tuple[Shared, Parcels]:
    """Step 2: a seed for the own mask; shares of it and of the mask key, sealed for each silo that advertised."""
    session, name = state.session, identity.silo
    others = checked_adverts(session, adverts, identity.pinned)
    mine = others.pop(name, None)
    if mine is None or mine.mask_key != agreement_public_key(state.mask_secret):
        raise FederationError(f"silo {name!r}: the server does not pass on the keys that this silo sent.")
    seed = entropy(KEY_BYTES)
    points = [session.point(silo) for silo in (name, *others)]
    of_seed = split(seed, session.threshold, points, entropy=entropy)
    of_key = split(state.mask_secret, session.threshold, points, entropy=entropy)
    pairs = {silo: of_seed[session.point(silo)] + of_key[session.point(silo)] for silo in (name, *others)}
    sealed = {}
    for silo, advert in others.items():
        key, context = pair_key(session, "share", state.share_secret, name, advert), ("parcel", name, silo)
        sealed[silo] = seal(key, pairs[silo], session.statement(*context), entropy=entropy)
    parcels = Parcels(name, check_value(session, name, seed), sealed, b"")
    kept = {silo: advert.to_bytes() for silo, advert in others.items()}
    return Shared(state, kept, seed, pairs[name]), _signed(parcels, parcels.statement(session), identity)


def mask(state: Shared, delivery: Delivery, words: Words, identity: Identity) -> tuple[Masked, MaskedInput, Words]:
    """Step 3: the (words,) update plus its masks modulo 2^32; the third value travels as an array.

    ``words`` come from ``fixed_point.to_words`` with the session's fixed point.
    """
    session, here = state.keys.session, identity.silo
    if words.shape != (session.words,) or words.dtype != "uint32":
        raise FederationError(
            f"silo {here!r}: an update of {words.dtype} {words.shape}; this session sums uint32 ({session.words},)."
        )
    signed, most = words.view("int32"), session.fixed.steps
    if signed.max() > most or signed.min() < -most:
        raise FederationError(
            f"silo {here!r}: a word of the update is larger than {most}, so that the sum could wrap; encode it with "
            "the session's own fixed point."
        )
    partners = tuple(sorted([here, *delivery.sealed]))
    strange = [name for name in delivery.sealed if name not in state.adverts]
    if strange:
        raise FederationError(
            f"silo {here!r}: shares of {strange[0]!r}, which sent no keys; the round is not continued."
        )
    enough(session, partners, "sent shares")
    adverts = {silo: Advert.from_bytes(state.adverts[silo]) for silo in delivery.sealed}
    held = {here: state.own_shares}
    for sender, advert in adverts.items():
        key = pair_key(session, "share", state.keys.share_secret, here, advert)
        pair = unseal(key, delivery.sealed[sender], session.statement("parcel", sender, here))
        if pair is None or len(pair) != 2 * SHARE_BYTES:
            raise FederationError(
                f"silo {here!r}: the shares of silo {sender!r} were changed, or are of another session or recipient; "
                "the round is not continued."
            )
        held[sender] = pair
    plus, minus = mask_keys(session, state.keys.mask_secret, here, adverts.values())
    masked = words.copy()
    add_masks(masked, [*plus, self_mask_key(session, here, state.seed)], minus)
    message = MaskedInput(here, partners, b"")
    return Masked(session, held), _signed(message, message.statement(session, digest(masked)), identity), masked


def confirm(state: Masked, survivors: Survivors, identity: Identity) -> tuple[Confirmed, Confirmation]:
    """Step 4, the consistency check: sign the one list of survivors that this silo will unmask for."""
    session, told = state.session, survivors.silos
    if list(told) != sorted(set(told)) or not set(told) <= set(state.held) or identity.silo not in told:
        raise FederationError(
            f"silo {identity.silo!r}: the server names as survivors {', '.join(told)}; expected silos out of "
            f"{', '.join(sorted(state.held))}, sorted, this one among them."
        )
    enough(session, told, "sent masked updates")
    message = Confirmation(identity.silo, b"")
    return Confirmed(state, told), _signed(message, message.statement(session, told), identity)


def unmask(state: Confirmed, confirmations: Iterable[Confirmation], identity: Identity) -> Unmasking:
    """Step 5: once the threshold of survivors signed the same list, one share per partner, never two of one.

    Afterwards the silo deletes the state.
    """
    session, survivors = state.masked.session, state.survivors
    signers = checked_confirmations(session, confirmations, survivors, identity.pinned)
    enough(session, signers, "confirmed the list of survivors")
    shares = {
        silo: pair[:SHARE_BYTES] if silo in survivors else pair[SHARE_BYTES:]
        for silo, pair in state.masked.held.items()
    }
    message = Unmasking(identity.silo, shares, b"")
    return _signed(message, message.statement(session), identity)


def answer(
    state: Advertised | Masked | Confirmed | None, data: bytes, identity: Identity, *,
    entropy: Entropy = secrets.token_bytes,
) -> tuple[Message | None, bytes]:  # fmt: skip
    """The step that follows ``state``, of those that need no words (1 without a state, 2, 4 and 5), from bytes to
    bytes: the next state, None after the last step, and what to send."""
    after: Message | None
    reply: Message
    if state is None:
        after, reply = advertise(Session.from_bytes(data), identity, entropy=entropy)
    elif isinstance(state, Advertised):
        after, reply = share(state, unpack_all(Advert, data), identity, entropy=entropy)
    elif isinstance(state, Masked):
        after, reply = confirm(state, Survivors.from_bytes(data), identity)
    elif isinstance(state, Confirmed):
        after, reply = None, unmask(state, unpack_all(Confirmation, data), identity)
    else:
        raise FederationError(f"no step follows {type(state).__name__} here; expected one that needs no words.")
    return after, reply.to_bytes()


def checked_confirmations(
    session: Session, confirmations: Iterable[Confirmation], survivors: tuple[str, ...], pinned: Mapping[str, bytes]
) -> set[str]:
    """Who signed this list. FederationError for a signature of another list, or of a silo that is not in it."""
    signers = set()
    for message in confirmations:
        statement = message.statement(session, survivors)
        if message.silo not in survivors or not is_signed(pinned[message.silo], statement, message.signature):
            raise FederationError(
                f"silo {message.silo!r} confirmed another list of survivors than {', '.join(survivors)}: the server "
                "told two, or the message was changed. Nothing is unmasked."
            )
        signers.add(message.silo)
    return signers


def _signed(message: Signed, statement: bytes, identity: Identity) -> Signed:
    return replace(message, signature=sign(identity.private_key, statement))
