"""BLUE and RED: who is in, which document goes where, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from docleak.documents import load_pages
from docleak.documents.blue_red import RED, RED_NEGATIVE, RED_POSITIVE, BlueRedPlan, check_blue_red, divide_blue_red
from docleak.documents.blue_red_files import open_blue_red, open_issuers, open_own, read_blue_red, write_blue_red
from docleak.documents.folder import save
from docleak.documents.pages import document_names, provider_names
from docleak.documents.partition import Share
from docleak.documents.silos import read_silo
from docleak.errors import DocumentError


def made(counts: dict[str, int], pages: int = 1) -> tuple[list[str], list[str]]:
    """Provider and document of every page: so many documents of each provider, of ``pages`` pages."""
    rows = [(p, f"{p}-{d}") for p, n in counts.items() for d in range(n) for _ in range(pages)]
    return [p for p, _ in rows], [d for _, d in rows]


def test_every_provider_is_in_or_out_and_every_document_in_one_part() -> None:
    rng = np.random.default_rng(5)
    for seed in range(60):
        counts = {f"p{i}": int(n) for i, n in enumerate(rng.integers(1, 12, size=40))}
        providers, documents = made(counts, pages=2)
        plan = BlueRedPlan(clients=3, red=0.3, test=0.15, validation=0.1, matched=bool(seed % 2))
        shares = divide_blue_red("set", providers, documents, plan, seed=seed)
        place = {number: share.name for share in shares for number in share.pages}
        assert len(place) == sum(len(share.pages) for share in shares), "no page twice"
        owners: dict[str, set[str]] = {}
        for number, part in place.items():
            owners.setdefault(providers[number], set()).add(part)
            assert place.get(number ^ 1) == part, "a document's two pages stay together"
        for provider, parts in owners.items():
            silos = {part for part in parts if part.startswith("silos/")}
            assert len(silos) <= 1
            assert not (RED_NEGATIVE in parts and silos)
            assert silos or not parts & {RED_POSITIVE, "validation"}
            if silos and counts[provider] > 1:
                assert RED_POSITIVE in parts
        if not plan.matched:
            assert {d for n, d in enumerate(documents) if n not in place} == set(), "nothing is left out"


def test_the_number_of_red_documents_tells_nothing_about_membership() -> None:
    providers, documents = made({f"p{i:03d}": 6 for i in range(300)})
    shares = divide_blue_red("set", providers, documents, BlueRedPlan(), seed=0)
    parts = {share.name: Counter(providers[n] for n in share.pages) for share in shares}
    assert set(parts[RED_POSITIVE].values()) == set(parts[RED_NEGATIVE].values()) == {2}
    planted = replace(BlueRedPlan(), matched=False)
    shares = divide_blue_red("set", providers, documents, planted, seed=0)
    unmatched = Counter(providers[n] for share in shares if share.name == RED_NEGATIVE for n in share.pages)
    assert set(unmatched.values()) == {5}, "all but the one for the test"


def test_membership_is_a_fair_coin_of_each_provider() -> None:
    providers, documents = made({f"p{i}": 3 for i in range(60)})
    drawn = []
    for seed in range(200):
        shares = divide_blue_red("set", providers, documents, BlueRedPlan(2), seed=seed)
        drawn.append({providers[n] for share in shares if share.name == RED_POSITIVE for n in share.pages})
    sizes = np.array([len(members) for members in drawn])
    assert abs(sizes.mean() - 30) < 1.5 and 10 < sizes.var() < 21, "binomial(60, 1/2): variance 15, not a fixed half"
    counts = Counter(name for members in drawn for name in members)
    assert min(counts.values()) > 65 and max(counts.values()) < 135


@pytest.mark.parametrize("matched", [True, False])
def test_a_provider_that_is_taken_away_changes_nothing_for_the_others(matched: bool) -> None:
    """Otherwise neighbouring data sets would differ in more than one provider, and no claim about one would hold."""
    providers, documents = made({f"p{i:02d}": 2 + i % 6 for i in range(40)})
    documents = [name if i % 3 else "" for i, name in enumerate(documents)]  # pages of unknown document, too
    ids = [f"{p} {sum(q == p for q in providers[:i])}" for i, p in enumerate(providers)]

    def places(without: str) -> dict[str, str]:
        left = [i for i, name in enumerate(providers) if name != without]
        plan = BlueRedPlan(4, matched=matched)
        shares = divide_blue_red("set", [providers[i] for i in left], [documents[i] for i in left], plan, seed=3)
        return {ids[left[n]]: share.name for share in shares for n in share.pages}

    before = places("")
    for name in dict.fromkeys(providers):
        assert places(name) == {page: part for page, part in before.items() if page.split()[0] != name}


def test_spellings_of_a_provider_are_on_one_side() -> None:
    providers, documents = made({f"p{i:02d}": 4 for i in range(30)})
    spelled = [name.upper() + "\u200b" if i % 2 else f" {name}" for i, name in enumerate(providers)]
    plain = divide_blue_red("set", providers, documents, BlueRedPlan(2), seed=1)
    assert divide_blue_red("set", spelled, documents, BlueRedPlan(2), seed=1) == plain
    shares = [Share("silos/client-0", "set", (0,)), Share("silos/client-1", "set", (1,)),
              Share(RED_POSITIVE, "set", (2,)), Share(RED_NEGATIVE, "set", (3,))]  # fmt: skip
    with pytest.raises(DocumentError, match=r"provider 'acme' is in silos/client-0, silos/client-1(.|\n)*red-negative"):
        check_blue_red(shares, {"set": ["ACME", "acme ", "\uff21CME", "A\u200bcme"]}, {"set": ["1", "2", "3", "4"]})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clients": 0}, "clients is 0"),
        ({"inside": 1.0}, "inside is 1.0"),
        ({"red": 0.0}, "red above 0"),
        ({"red": 0.6, "test": 0.4}, "leave some to train"),
    ],
)
def test_plans_that_are_refused(change: dict[str, float], said: str) -> None:
    with pytest.raises(DocumentError, match=said):
        BlueRedPlan(**{**vars(BlueRedPlan()), **change})


def test_data_that_is_refused() -> None:
    providers, documents = made({f"p{i}": 3 for i in range(6)})
    with pytest.raises(DocumentError, match=r"of 6 providers are members, of [0-5] of the 6 clients"):
        divide_blue_red("set", providers, documents, BlueRedPlan(6), seed=0)
    with pytest.raises(DocumentError, match="2 of 18 pages name no provider"):
        divide_blue_red("set", ["", "", *providers[2:]], documents, BlueRedPlan(1), seed=0)


def test_planted_faults_of_a_division_are_all_named() -> None:
    providers = ["a", "a", "b", "c", "d", "d"]
    documents = ["1", "2", "1", "1", "1", "1"]
    shares = [
        Share("silos/client-0", "set", (0,)), Share("silos/client-1", "set", (1, 2)),
        Share(RED_NEGATIVE, "set", (2, 4)), Share(RED_POSITIVE, "set", (3, 5)),
    ]  # fmt: skip
    with pytest.raises(DocumentError) as refused:
        check_blue_red(shares, {"set": providers}, {"set": documents})
    for said in (
        "provider 'a' is in silos/client-0, silos/client-1", "provider 'b' is trained on, and in red-negative",
        "provider 'c' is in red-positive, and nothing", "document '1' of 'd' is in red-negative, red-positive",
        "document '1' of 'b'",
    ):  # fmt: skip
        assert said in str(refused.value)
    with pytest.raises(DocumentError, match="red-negative has no document"):
        check_blue_red([shares[0], Share(RED_POSITIVE, "set", (1,))], {"set": ["a", "a"]}, {"set": ["1", "2"]})


def test_issuers_on_disk_and_back(tmp_path: Path) -> None:
    divided = open_issuers(12, 4.0, BlueRedPlan(2), seed=3)
    told: list[tuple[int, int]] = []
    write_blue_red(divided, tmp_path / "out", on_page=lambda done, total, part: told.append((done, total)))
    assert [done for done, _ in told] == list(range(1, told[-1][1] + 1)), "one count over all parts"
    division = read_blue_red(tmp_path / "out")
    trained = {name for folder in division.silos.values() for name in read_silo(folder).providers}
    assert set(division.members) == trained and not trained & set(division.outsiders) and division.coins == 0.5
    assert set(provider_names(division.pages(RED_POSITIVE))) <= trained
    assert set(provider_names(division.pages(RED_NEGATIVE))) == set(division.outsiders)
    assert read_silo(division.silos["client-0"]).clients == 2
    again = open_issuers(12, 4.0, BlueRedPlan(2), seed=3)
    assert again.shares == divided.shares and open_issuers(12, 4.0, BlueRedPlan(2), seed=4).shares != divided.shares
    assert {e.name for e in divided.sources["issuers"].entries} == {e.name for e in again.sources["issuers"].entries}  # type: ignore[attr-defined]


def test_a_failing_page_leaves_nothing(tmp_path: Path) -> None:
    divided = open_issuers(12, 4.0, BlueRedPlan(2), seed=3)
    assert write_blue_red(divided, tmp_path / "out")
    with pytest.raises(DocumentError, match="only written to a new folder"):
        write_blue_red(divided, tmp_path / "out")
    broken = replace(divided, sources={"issuers": _Breaking(divided.sources["issuers"])})
    with pytest.raises(DocumentError, match="planted"):
        write_blue_red(broken, tmp_path / "other")
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


class _Breaking(list):  # type: ignore[type-arg]
    def __init__(self, pages) -> None:  # type: ignore[no-untyped-def]
        super().__init__(range(len(pages)))
        self.pages = pages

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if index > 20:
            raise DocumentError("planted")
        return self.pages[index]


def test_members_without_questions_are_refused(tmp_path: Path) -> None:
    pages = open_issuers(8, 3.0, BlueRedPlan(1), seed=1).sources["issuers"]
    silent = provider_names(pages)[0]
    save((replace(p, questions=()) if p.provider == silent else p for p in (pages[i] for i in range(len(pages)))),
         tmp_path / "pages")  # fmt: skip
    seeds = []
    for seed in range(6):
        divided = open_blue_red(f"folder:{tmp_path / 'pages'}", BlueRedPlan(1), seed=seed, count=None)  # fmt: skip
        (silo,) = (share for share in divided.shares if share.name.startswith("silos/"))
        inside = silent in {provider_names(divided.sources["folder"])[n] for n in silo.pages}
        seeds.append(inside)
        if inside:
            with pytest.raises(DocumentError, match="no question with an answer"):
                write_blue_red(divided, tmp_path / f"out-{seed}")
        else:
            write_blue_red(divided, tmp_path / f"out-{seed}")
        assert (tmp_path / f"out-{seed}").exists() != inside
    assert len(set(seeds)) == 2


@pytest.mark.parametrize("spec", ["vrdu", "pfl-docvqa"])
def test_the_division_that_vrdu_pfl_brings(spec: str, shared_data: Path) -> None:
    divided = open_own(f"{spec}:{shared_data / 'vrdu_pfl'}")
    (pages,) = divided.sources.values()
    held = {share.name: {provider_names(pages)[n] for n in share.pages} for share in divided.shares}
    assert sorted(held) == ["red-negative", "red-positive", "silos/client-0", "silos/client-1", "silos/client-2",
                            "validation"]  # fmt: skip
    assert [len(held[name]) for name in RED] == [59, 28]  # the data set's README
    documents = {share.name: {document_names(pages)[n] for n in share.pages} for share in divided.shares}
    assert sum(len(documents[name]) for name in documents if name.startswith("silos/")) == 188


def test_official_divisions_that_are_refused(shared_data: Path, tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="sroie pages bring no BLUE and RED"):
        open_own(f"sroie:{shared_data / 'sroie'}")
    imdb, root = tmp_path / "imdb", shared_data / "vrdu_pfl"
    imdb.mkdir()
    (tmp_path / "images").symlink_to(root / "images")
    for file in (root / "imdb").glob("*.npy"):
        records = np.load(file, allow_pickle=True)
        if file.stem == "imdb_test":
            for record in records[1:]:
                record["set_name"] = record["set_name"].replace("red_test_negative", "red_test_unknown")
        np.save(imdb / file.name, records)
    with pytest.raises(DocumentError, match="red_test_unknown"):
        open_own(f"pfl-docvqa:{tmp_path}")


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="data make OUT --blue-red"):
        read_blue_red(tmp_path)
    write_blue_red(open_issuers(12, 4.0, BlueRedPlan(2), seed=3), tmp_path / "out")
    manifest = tmp_path / "out" / "blue-red.json"
    value = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**value, "parts": {**value["parts"], "test2": {}}}))
    with pytest.raises(DocumentError, match="test2"):
        read_blue_red(tmp_path / "out")
    assert len(load_pages(str(tmp_path / "out" / "red-positive"), seed=0)) == value["parts"]["red-positive"]["pages"]
