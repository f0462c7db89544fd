from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docleak.documents import pfl_docvqa, provider_names, vrdu
from docleak.documents.pages import document_names
from docleak.documents.partition import clients_of, split_documents, split_providers
from docleak.errors import DocumentError

TRAIN = {"wtq": 1346, "docvqa": 10194, "tabfact": 13163}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("clients", "held", "average"),
    [(3, (1, 1, 1), (1346, 10194, 13163)), (10, (1, 4, 5), (1346, 2548, 2632)), (30, (2, 13, 15), (673, 784, 877))],
)
def test_table_2_of_fedocvqa(clients: int, held: tuple[int, ...], average: tuple[int, ...]) -> None:
    """Clients per data set, and documents per client, as printed (2632 and 877 are whole parts of 2632.6 and 877.5)."""
    assert tuple(clients_of(TRAIN, clients).values()) == held
    shares = split_documents({k: [f"{k}{i}" for i in range(n)] for k, n in TRAIN.items()}, clients, rng=rng())
    for (name, total), mean, count in zip(TRAIN.items(), average, held, strict=True):
        sizes = [len(share.pages) for share in shares if share.data_set == name]
        assert sum(sizes) == total and len(sizes) == count and sum(sizes) // len(sizes) == mean
        assert max(sizes) - min(sizes) <= 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.data())
def test_every_set_gets_a_client_and_no_client_goes_empty(sizes: list[int], data: st.DataObject) -> None:
    documents = {f"s{i}": n for i, n in enumerate(sizes)}
    clients = data.draw(st.integers(len(sizes), sum(sizes)))
    held = clients_of(documents, clients)
    assert sum(held.values()) == clients and list(held) == list(documents)
    assert all(1 <= held[name] <= documents[name] for name in documents)
    assert clients_of(documents, len(sizes)) == dict.fromkeys(documents, 1)  # one data set per client


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(["", "a", "b", "c", "d"]), min_size=4, max_size=30), st.integers(0, 9), st.integers(1, 4)
)
def test_every_page_and_every_document_in_exactly_one_client(names: list[str], seed: int, clients: int) -> None:
    other = ["x", "y", "z", "z"]
    count = len({n for n in names if n}) + names.count("")
    if clients > count:
        return
    shares = split_documents({"mine": names, "other": other}, clients + 1, rng=rng(seed))
    for name, all_names in (("mine", names), ("other", other)):
        pages = [page for share in shares if share.data_set == name for page in share.pages]
        assert sorted(pages) == list(range(len(all_names)))
    owner: dict[str, str] = {}
    for share in shares:
        assert share.pages and list(share.pages) == sorted(share.pages)
        for page in share.pages if share.data_set == "mine" else ():
            assert not names[page] or owner.setdefault(names[page], share.name) == share.name
    assert len({share.name for share in shares}) == len(shares) == clients + 1


def test_the_seed_decides() -> None:
    documents = {"a": [str(i) for i in range(40)]}
    one, again, other = (split_documents(documents, 4, rng=rng(seed)) for seed in (1, 1, 2))
    assert one == again != other and [s.name for s in one] == ["a-0", "a-1", "a-2", "a-3"]


def test_what_cannot_be_divided() -> None:
    for documents, clients, words in (
        ({"a": ["x", "x", "y"]}, 3, "3 clients for 2 documents"),
        ({"a": ["x"], "b": ["y"]}, 1, "1 clients for 2 data sets"),
        ({"a": ["x"], "b": []}, 2, "'b' has no document"),
        ({}, 1, "no data set"),
        ({"a": ["x"]}, 0, "0 clients for 1 data set, "),
    ):
        with pytest.raises(DocumentError, match=words):
            split_documents(documents, clients, rng=rng())


def test_providers_stay_together() -> None:
    providers = ["p", "q", "p", "r", "s", "q", "q"]
    shares = split_providers("pfl", providers, ["d1", "d2", "d1", "", "d3", "d4", "d5"], 2, rng=rng())
    held = [{providers[page] for page in share.pages} for share in shares]
    assert not held[0] & held[1] and [len(h) for h in held] == [2, 2]
    assert sorted(page for share in shares for page in share.pages) == list(range(7))
    with pytest.raises(
        DocumentError, match=r"'d' has the providers \['p', 'q'\](.|\n)*1 of 3 pages have no(.|\n)*9 clients"
    ):
        split_providers("pfl", ["p", "q", ""], ["d", "d", "e"], 9, rng=rng())


def test_the_real_providers(shared_data: Path) -> None:
    pages = vrdu.load(shared_data / "vrdu_pfl")
    providers, documents = provider_names(pages), document_names(pages)
    shares = split_providers("vrdu", providers, documents, 10, rng=rng())
    owners = Counter(provider for share in shares for provider in {providers[page] for page in share.pages})
    assert len(owners) == 94 and set(owners.values()) == {1}
    assert {len({providers[p] for p in share.pages}) for share in shares} == {9, 10}
    assert len({len(share.pages) for share in shares}) > 3  # unequal, as providers are


def test_the_official_clients_of_real_data(shared_data: Path) -> None:
    clients = pfl_docvqa.load_clients(shared_data / "vrdu_pfl")
    assert list(clients) == ["client_0", "client_1", "client_2"]
    held = [{entry.provider for entry in pages.entries} for pages in clients.values()]
    assert not held[0] & held[1] | held[0] & held[2] | held[1] & held[2] and len(set.union(*held)) == 66
