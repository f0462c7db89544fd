"""Changed, replayed, swapped and contradictory messages: each is noticed, and nothing is unmasked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from docleak.errors import FederationError
from docleak.training.federated.secure import messages, silo
from docleak.training.federated.secure.keys import make_identities
from docleak.training.federated.secure.messages import Advert, Delivery, Survivors, Unmasking
from docleak.training.federated.secure.primitives import agreement_public_key, sign
from docleak.training.federated.secure.server import Aggregation
from docleak.training.federated.secure.shamir import PRIME, SHARE_BYTES, combine

Make = Callable[..., Any]


def adverts_of(case: Any) -> tuple[dict[str, silo.Advertised], list[Advert]]:
    keys, sent = {}, []
    for name, identity in case.identities.items():
        keys[name], advert = silo.advertise(case.session, identity, entropy=case.entropy)
        sent.append(advert)
    return keys, sent


def confirmed_of(case: Any, lost: str = "") -> tuple[Aggregation, dict[str, silo.Confirmed], list[Any]]:
    """Steps 1 to 4, where ``lost`` falls silent before its words."""
    server, masked, sent = case.until_masked()
    for name, (message, words) in sent.items():
        if name != lost:
            server.add(message, words)
    told = server.survivors()
    states, lists = {}, []
    for name in told.silos:
        states[name], reply = silo.confirm(masked[name], told, case.identities[name])
        lists.append(reply)
    return server, states, list(server.confirmations(lists))


# Step 1: keys


@pytest.mark.parametrize("name", ["share_key", "mask_key", "signature"])
def test_swapped_keys(make_round: Make, altered: Callable[..., Any], name: str) -> None:
    """A relaying server puts its own keys in an advert: silos and an honest server both notice."""
    case = make_round(3)
    keys, sent = adverts_of(case)
    wrong = [altered(sent[0], name), *sent[1:]]
    with pytest.raises(FederationError, match="'silo-0' are not signed"):
        silo.share(keys["silo-1"], wrong, case.identities["silo-1"])
    with pytest.raises(FederationError, match="'silo-0' are not signed"):
        Aggregation(case.session, case.pinned).adverts(wrong)


def test_keys_signed_by_the_server_itself(make_round: Make) -> None:
    """The classic swap: fresh keys with a good signature, of a key that nobody pinned."""
    case = make_round(3)
    keys, sent = adverts_of(case)
    middle = make_identities(["silo-0"], entropy=np.random.default_rng(9).bytes)["silo-0"]
    forged = replace(sent[0], mask_key=agreement_public_key(b"\x07" * 32))
    forged = replace(forged, signature=sign(middle.private_key, forged.statement(case.session)))
    with pytest.raises(FederationError, match="not signed for this session with the key pinned"):
        silo.share(keys["silo-1"], [forged, *sent[1:]], case.identities["silo-1"])


@pytest.mark.parametrize("change", [{"round_number": 2}, {"seed": 1}, {"words": 8}, {"threshold": 2}])
def test_keys_of_another_session(make_round: Make, change: dict[str, int]) -> None:
    case, other = make_round(3), make_round(3, **change)
    keys, sent = adverts_of(case)
    _, old = adverts_of(other)
    with pytest.raises(FederationError, match="not signed for this session"):
        silo.share(keys["silo-1"], [old[0], *sent[1:]], case.identities["silo-1"])


def test_lists_of_keys_that_do_not_fit(make_round: Make) -> None:
    case = make_round(4)
    keys, sent = adverts_of(case)
    _, other = adverts_of(case)
    identity = case.identities["silo-1"]
    for wrong, message in (
        ([sent[0], sent[0], *sent[1:]], "comes twice"),
        ([sent[1], sent[2]], "expected at least the threshold"),
        ([sent[0], sent[2], sent[3]], "does not pass on the keys"),
        ([sent[0], other[1], sent[2], sent[3]], "does not pass on the keys"),
        ([replace(sent[0], silo="stranger"), *sent[1:]], "not invited"),
    ):
        with pytest.raises(FederationError, match=message):
            silo.share(keys["silo-1"], wrong, identity)


def test_two_silos_with_the_same_keys(make_round: Make) -> None:
    """Someone who copies another's advert under its own name."""
    case = make_round(3)
    keys, sent = adverts_of(case)
    copied = replace(sent[0], silo="silo-2")
    copied = replace(copied, signature=sign(case.identities["silo-2"].private_key, copied.statement(case.session)))
    with pytest.raises(FederationError, match="a key comes twice"):
        silo.share(keys["silo-1"], [sent[0], sent[1], copied], case.identities["silo-1"])


def test_a_key_of_small_order(make_round: Make) -> None:
    """The all-zero X25519 key makes every shared secret zero: refused, though its silo signed it."""
    case = make_round(3)
    keys, sent = adverts_of(case)
    weak = replace(sent[0], share_key=bytes(32))
    weak = replace(weak, signature=sign(case.identities["silo-0"].private_key, weak.statement(case.session)))
    with pytest.raises(FederationError, match="no X25519 public key"):
        silo.share(keys["silo-1"], [weak, *sent[1:]], case.identities["silo-1"])


def test_sessions_a_silo_does_not_join(make_round: Make) -> None:
    case = make_round(3, threshold=2)
    identity = case.identities["silo-0"]
    with pytest.raises(FederationError, match="wants at least 3"):
        silo.advertise(case.session, replace(identity, least_threshold=3))
    pinned = {name: key for name, key in identity.pinned.items() if name != "silo-2"}
    with pytest.raises(FederationError, match="'silo-2' is invited, and no key"):
        silo.advertise(case.session, replace(identity, pinned=pinned))
    with pytest.raises(FederationError, match="'silo-0' is not invited"):
        silo.advertise(replace(case.session, silos=("silo-1", "silo-2")), identity)


# Steps 2 and 3: shares and masked words


def test_a_changed_share_is_noticed_by_its_recipient(make_round: Make, altered: Callable[..., Any]) -> None:
    case = make_round(3)
    _, shared, deliveries = case.until_shared()
    wrong = altered(deliveries["silo-1"], "sealed", "silo-2")
    with pytest.raises(FederationError, match="shares of silo 'silo-2' were changed"):
        silo.mask(shared["silo-1"], wrong, case.inputs["silo-1"], case.identities["silo-1"])
    for broken in (b"", b"short", bytes(200)):
        with pytest.raises(FederationError, match="were changed"):
            silo.mask(
                shared["silo-1"],
                Delivery({**deliveries["silo-1"].sealed, "silo-2": broken}),
                case.inputs["silo-1"],
                case.identities["silo-1"],
            )


def test_replayed_and_misdirected_shares(make_round: Make) -> None:
    """Shares of another round or run, of another sender, for another recipient, and one's own sent back."""
    case = make_round(3)
    _, shared, deliveries = case.until_shared()
    good = dict(deliveries["silo-1"].sealed)
    replayed = [
        make_round(3, round_number=2).until_shared()[2]["silo-1"].sealed["silo-2"],
        make_round(3, seed=7).until_shared()[2]["silo-1"].sealed["silo-2"],
        good["silo-0"],
        deliveries["silo-0"].sealed["silo-2"],
        deliveries["silo-2"].sealed["silo-1"],
    ]
    for sealed in replayed:
        with pytest.raises(FederationError, match="are of another session or recipient"):
            silo.mask(
                shared["silo-1"],
                Delivery({**good, "silo-2": sealed}),
                case.inputs["silo-1"],
                case.identities["silo-1"],
            )
    silo.mask(shared["silo-1"], Delivery(good), case.inputs["silo-1"], case.identities["silo-1"])


def test_shares_sealed_with_the_right_keys_in_another_session(make_round: Make) -> None:
    """Even with the same key pairs, the session is in the key and in the authenticated context."""
    case, later = make_round(3), make_round(3, round_number=2)
    keys, _ = adverts_of(case)
    moved = {name: replace(state, session=later.session) for name, state in keys.items()}

    def sealed_in(session: Any, states: dict[str, silo.Advertised]) -> tuple[dict[str, silo.Shared], dict[str, Any]]:
        sent = []
        for name, state in states.items():
            public = agreement_public_key(state.share_secret), agreement_public_key(state.mask_secret)
            advert = Advert(name, *public, b"")
            signature = sign(case.identities[name].private_key, advert.statement(session))
            sent.append(replace(advert, signature=signature))
        shared, parcels = {}, {}
        for name, state in states.items():
            shared[name], parcels[name] = silo.share(state, sent, case.identities[name], entropy=case.entropy)
        return shared, parcels

    shared, parcels = sealed_in(case.session, keys)
    _, old = sealed_in(later.session, moved)
    good = {name: parcels[name].sealed["silo-1"] for name in ("silo-0", "silo-2")}
    silo.mask(shared["silo-1"], Delivery(good), case.inputs["silo-1"], case.identities["silo-1"])
    wrong = Delivery({**good, "silo-2": old["silo-2"].sealed["silo-1"]})
    with pytest.raises(FederationError, match="another session"):
        silo.mask(shared["silo-1"], wrong, case.inputs["silo-1"], case.identities["silo-1"])


def test_what_the_server_refuses_of_shares(make_round: Make, altered: Callable[..., Any]) -> None:
    case = make_round(3)
    keys, sent = adverts_of(case)
    parcels = [silo.share(keys[n], sent, case.identities[n], entropy=case.entropy)[1] for n in case.session.silos]

    def server() -> Aggregation:
        aggregation = Aggregation(case.session, case.pinned)
        aggregation.adverts(sent)
        return aggregation

    assert set(server().deliveries(parcels)) == set(case.session.silos)
    for wrong, message in (
        ([altered(parcels[0], "check"), *parcels[1:]], "was changed"),
        ([altered(parcels[0], "sealed", "silo-1"), *parcels[1:]], "was changed"),
        ([parcels[0], *parcels], "comes twice"),
        (parcels[:2], "There is no sum"),
    ):
        with pytest.raises(FederationError, match=message):
            server().deliveries(wrong)
    fewer = replace(parcels[0], sealed={"silo-1": parcels[0].sealed["silo-1"]})
    fewer = replace(fewer, signature=sign(case.identities["silo-0"].private_key, fewer.statement(case.session)))
    with pytest.raises(FederationError, match="for other silos"):
        server().deliveries([fewer, *parcels[1:]])


def test_a_changed_masked_update(make_round: Make, altered: Callable[..., Any]) -> None:
    case = make_round(3)
    server, _, sent = case.until_masked()
    message, words = sent["silo-0"]
    for place in range(case.session.words):
        wrong = words.copy()
        wrong[place] ^= 1
        with pytest.raises(FederationError, match="masked update of silo 'silo-0' was changed"):
            server.add(message, wrong)
    with pytest.raises(FederationError, match="was changed"):
        server.add(message, sent["silo-1"][1])
    with pytest.raises(FederationError, match="was changed"):
        server.add(altered(message, "signature"), words)
    with pytest.raises(FederationError, match="expected uint32"):
        server.add(message, words[:-1])


def test_masked_updates_of_another_session_twice_and_late(make_round: Make) -> None:
    case = make_round(4)
    server, _, sent = case.until_masked()
    old = make_round(4, round_number=2).until_masked()[2]["silo-0"]
    with pytest.raises(FederationError, match="another session"):
        server.add(*old)
    for name in ("silo-0", "silo-1", "silo-2"):
        server.add(*sent[name])
    with pytest.raises(FederationError, match="comes twice"):
        server.add(*sent["silo-0"])
    server.survivors()
    with pytest.raises(FederationError, match="too late"):
        server.add(*sent["silo-3"])


def test_a_delivery_that_lost_a_silo_on_the_way(make_round: Make) -> None:
    """Its masks would not cancel: the server sees with whom the silo masked."""
    case = make_round(4)
    server, shared, deliveries = case.until_shared()
    less = Delivery({name: sealed for name, sealed in deliveries["silo-0"].sealed.items() if name != "silo-3"})
    _, message, words = silo.mask(shared["silo-0"], less, case.inputs["silo-0"], case.identities["silo-0"])
    with pytest.raises(FederationError, match="the masks would not cancel"):
        server.add(message, words)
    nobody = Delivery({"silo-1": deliveries["silo-0"].sealed["silo-1"]})
    with pytest.raises(FederationError, match="There is no sum"):
        silo.mask(shared["silo-0"], nobody, case.inputs["silo-0"], case.identities["silo-0"])


# Steps 4 and 5: survivors and unmasking


def test_lists_of_survivors_a_silo_does_not_sign(make_round: Make) -> None:
    case = make_round(5)
    _, masked, _ = case.until_masked()
    everyone = case.session.silos
    for told, message in (
        (everyone[1:], "this one among them"),
        ((*everyone, "stranger"), "expected silos out of"),
        ((everyone[0], *everyone[:4]), "sorted"),
        (everyone[::-1], "sorted"),
        (everyone[:3], "There is no sum"),
    ):
        with pytest.raises(FederationError, match=message):
            silo.confirm(masked["silo-0"], Survivors(told), case.identities["silo-0"])


def test_a_server_that_tells_two_lists_of_survivors_gets_nothing(make_round: Make) -> None:
    """The attack that the consistency check is for: who is told what decides which of a silo's two secrets leaks."""
    case = make_round(5, threshold=3)
    _, masked, _ = case.until_masked()
    everyone = case.session.silos
    first, second = Survivors(everyone[:4]), Survivors((everyone[0], *everyone[2:]))
    told = {"silo-0": first, "silo-1": first, "silo-2": second, "silo-3": second, "silo-4": second}
    states, signed = {}, {}
    for name, survivors in told.items():
        states[name], signed[name] = silo.confirm(masked[name], survivors, case.identities[name])
    for name in everyone:
        with pytest.raises(FederationError, match="told two"):
            silo.unmask(states[name], [signed[other] for other in everyone], case.identities[name])
    with pytest.raises(FederationError, match="'silo-2' confirmed another list"):  # it is in both
        silo.unmask(states["silo-0"], [signed[name] for name in everyone[:3]], case.identities["silo-0"])
    # Only those who were told the same: enough of them for one list, never for both.
    silo.unmask(states["silo-2"], [signed[name] for name in everyone[2:]], case.identities["silo-2"])
    with pytest.raises(FederationError, match="There is no sum"):
        silo.unmask(states["silo-0"], [signed["silo-0"], signed["silo-1"]], case.identities["silo-0"])
    with pytest.raises(FederationError, match="There is no sum"):
        silo.unmask(states["silo-0"], [signed["silo-0"]] * 5, case.identities["silo-0"])


def test_a_silo_gives_one_kind_of_share_per_silo(make_round: Make) -> None:
    case = make_round(4)
    _, states, lists = confirmed_of(case, lost="silo-3")
    for name, state in states.items():
        reply = silo.unmask(state, lists, case.identities[name])
        for other, pair in state.masked.held.items():
            kept = pair[SHARE_BYTES:] if other == "silo-3" else pair[:SHARE_BYTES]
            assert reply.shares[other] == kept


@pytest.mark.parametrize("lost", ["", "silo-3"])
@pytest.mark.parametrize("of", ["silo-0", "silo-3"])
def test_wrong_shares_end_the_round(make_round: Make, altered: Callable[..., Any], lost: str, of: str) -> None:
    """Changed on the way, or returned wrong and signed by a faulty silo: of a survivor's seed, of a lost one's key."""
    case = make_round(4)
    server, states, lists = confirmed_of(case, lost=lost)
    replies = [silo.unmask(state, lists, case.identities[name]) for name, state in states.items()]
    changed = altered(replies[1], "shares", of)
    with pytest.raises(FederationError, match="what silo 'silo-1' sent was changed"):
        server.total([replies[0], changed, *replies[2:]])
    signed = replace(changed, signature=sign(case.identities["silo-1"].private_key, changed.statement(case.session)))
    with pytest.raises(FederationError, match=f"of silo '{of}' do not give it back"):
        server.total([replies[0], signed, *replies[2:]])
    left = [name for name in case.session.silos if name != lost]
    assert server.total(replies).tolist() == case.plain_sum(left)


@pytest.mark.parametrize("of", ["silo-0", "silo-3"])
def test_a_share_made_to_give_another_secret_ends_the_round(make_round: Make, of: str) -> None:
    """A faulty silo moves its share so that the secret becomes the next number: a good one to look at, but wrong."""
    case = make_round(4, threshold=3)
    server, states, lists = confirmed_of(case, lost="silo-3")
    replies = [silo.unmask(state, lists, case.identities[name]) for name, state in states.items()]
    # Lagrange's factor of the share at 1, among those at 1, 2 and 3, is (2 * 3) / ((2 - 1) * (3 - 1)) = 3.
    moved = (int.from_bytes(replies[0].shares[of]) + pow(3, -1, PRIME)) % PRIME
    wrong = replace(replies[0], shares={**replies[0].shares, of: moved.to_bytes(SHARE_BYTES)})
    wrong = replace(wrong, signature=sign(case.identities["silo-0"].private_key, wrong.statement(case.session)))
    given = [
        {number: reply.shares[of] for number, reply in enumerate(sent, start=1)}
        for sent in (replies, [wrong, *replies[1:]])
    ]
    right, other = (combine(shares, 3) for shares in given)
    assert right is not None and other is not None
    assert int.from_bytes(other) == int.from_bytes(right) + 1
    with pytest.raises(FederationError, match=f"of silo '{of}' do not give it back"):
        server.total([wrong, *replies[1:]])


def test_unmaskings_that_do_not_fit(make_round: Make) -> None:
    case = make_round(4)
    server, states, lists = confirmed_of(case)
    replies = [silo.unmask(state, lists, case.identities[name]) for name, state in states.items()]
    fewer = replace(replies[0], shares={"silo-1": replies[0].shares["silo-1"]})
    fewer = replace(fewer, signature=sign(case.identities["silo-0"].private_key, fewer.statement(case.session)))
    short = replace(replies[0], shares={**replies[0].shares, "silo-1": b""})
    short = replace(short, signature=sign(case.identities["silo-0"].private_key, short.statement(case.session)))
    other = make_round(4, round_number=2)
    _, old_states, old_lists = confirmed_of(other)
    old = silo.unmask(old_states["silo-0"], old_lists, other.identities["silo-0"])
    for wrong, message in (
        ([fewer, *replies[1:]], "other silos than its partners"),
        ([short, *replies[1:]], "do not give it back"),
        ([old, *replies[1:]], "another session"),
        ([replies[0], *replies], "comes twice"),
        (replies[:2], "There is no sum"),
    ):
        with pytest.raises(FederationError, match=message):
            server.total(wrong)


# Bytes


def test_every_message_and_state_survives_its_bytes(make_round: Make) -> None:
    case = make_round(3)
    _, masked, sent = case.until_masked()
    keys, adverts = adverts_of(case)
    shared, parcels = silo.share(keys["silo-0"], adverts, case.identities["silo-0"])
    confirmed, confirmation = silo.confirm(masked["silo-0"], Survivors(case.session.silos), case.identities["silo-0"])
    values = [case.session, keys["silo-0"], adverts[0], shared, parcels, masked["silo-0"], sent["silo-0"][0]]
    values += [confirmed, confirmation, Survivors(("a",)), Delivery({"a": b"1"}), Unmasking("a", {"b": b"2"}, b"3")]
    for value in values:
        data = value.to_bytes()
        assert type(value).from_bytes(data) == value
        assert type(value).from_bytes(data).to_bytes() == data
    kinds = {type(value) for value in values}
    defined = {
        kind
        for module in (messages, silo)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, messages.Message) and kind is not messages.Message
    }
    assert kinds == defined


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"null",
        b"[" * 100_000,
        b'{"silo": 3, "signature": "00"}',
        b'{"silo": "a", "signature": "0"}',
        b'{"silo": "a", "signature": "zz"}',
        b'{"silo": "a", "signature": null}',
        b'{"silo": "a", "signature": "00", "more": 1}',
    ],
)
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(FederationError, match="are no Confirmation"):
        messages.Confirmation.from_bytes(data)


@pytest.mark.parametrize(
    ("name", "value"),
    [("round", True), ("round", 1.0), ("round", "1"), ("silos", "abc"), ("silos", [1, 2, 3]), ("run", None)],
)
def test_sessions_from_bytes_with_fields_of_other_types(make_round: Make, name: str, value: object) -> None:
    content = json.loads(make_round(3).session.to_bytes())
    with pytest.raises(FederationError, match="are no Session"):
        messages.Session.from_bytes(json.dumps({**content, name: value}).encode())


def test_statements_of_different_things_differ(make_round: Make) -> None:
    """Two lists of parts never give the same bytes, wherever one cuts them."""
    session, other = make_round(3).session, make_round(3, round_number=2).session
    statements = [
        session.statement("a", "bc"),
        session.statement("a", "b", "c"),
        session.statement("ab", "c"),
        session.statement("a", b"bc"),
        session.statement("a", "b", "c", ""),
        session.statement("a", 1),
        session.statement("a", "1"),
        other.statement("a", "bc"),
    ]
    assert len(set(statements)) == len(statements)


def test_what_another_party_wrote_is_quoted_on_one_line_and_no_key_at_all() -> None:
    """A name of a field may hold lines that look like the server's own, and a megabyte of them."""
    forged = json.dumps({"x\n  - silo 'b' sent nothing" + "y" * 10_000: 1})
    with pytest.raises(FederationError) as fault:
        Advert.from_bytes(forged.encode())
    assert "\n" not in str(fault.value) and len(str(fault.value)) < 1_000
    with pytest.raises(FederationError, match="twice"):
        Advert.from_bytes(b'{"silo": "a", "silo": "b"}')
    with pytest.raises(FederationError) as fault:
        silo.Advertised.from_bytes(json.dumps({"mask_secret": "5ecre7" * 9}).encode())
    assert "5ecre7" not in str(fault.value)
