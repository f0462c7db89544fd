"""A unit is one server's manipulation of one model: what it reads of its clients' pages, and what the guard says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docleak.attacks.asking import blamed
from docleak.attacks.registries import SERVERS
from docleak.attacks.servers.asking import looted, manipulated, obstacle_to
from docleak.attacks.servers.view import Loot, PublicPages
from docleak.documents.page import Image, Page
from docleak.errors import DocumentError, FederationError, ModelError
from docleak.files import Stamps, stamps
from docleak.metrics.estimate import Estimate, clopper_pearson
from docleak.metrics.image import psnr
from docleak.models import DocumentModel, Encoded, load_model, pixels_of, trainable
from docleak.models.base import broken_weights, device_of, image_of
from docleak.report.page import Reading, Section, run_facts
from docleak.report.severity import LEAKS, SEVERE_SHARE, Part, Severity
from docleak.report.statement import Scope
from docleak.report.table import Column, Row, Table
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.spec import counted_words
from docleak.studies.gradient.case import pages_for, question_of
from docleak.studies.identity import data_hash, model_title, title_key, weights_hash
from docleak.studies.servers.config import TITLE, ServersConfig
from docleak.studies.study import Study, Tell, Unit
from docleak.training.federated.secure.fixed_point import FixedPoint
from docleak.training.guard.checkpoint import EXAMPLES
from docleak.training.guard.guard import inspect
from docleak.training.update import client_gradient

#: A picture counts as read from this likeness to the true page on, in dB: errors of a grey level or less.
EXACT = 48.0
COLUMNS = {
    "pages": Column("pages read", 1, percent=True), "tokens": Column("tokens read", 1, percent=True),
    "wrong": Column("of what it reads, wrong", 1, percent=True), "guard": Column("guard, first round"),
    "beside": Column("guard, beside the last model"),
}  # fmt: skip
LIMITS = (
    "One gradient, or one step of SGD, of each client: AdamW's steps are nearly signs, and are not read here.",
    "Tokens of VT5 and of language models come without an order, and nothing tells which page of a batch one is from.",
    "What a server does not read here, another manipulation may.",
)


#: Of tokens, where every trial was ``beside_public``, and where one is older.
HELD = "Tokens count where what was read holds more of the clients' pages than of any as many public ones."
NOT_HELD = "Tokens of an older run were not held against public pages: some may stand on any page."


class ServersStudy(Study[ServersConfig]):
    """See ``ServersConfig``."""

    kind = "servers"
    Config = ServersConfig

    def units(self) -> list[Unit]:
        """Every server on every model."""
        c = self.config
        return [
            Unit(f"{title_key(model)}-{name.replace(':', '-')}", what=(model, name))
            for model in c.models for name in c.servers
        ]  # fmt: skip

    def identity(self) -> dict[str, str]:
        """Weights of the models before they were manipulated, and the clients' pages."""
        hashes: dict[str, str] = {}
        for source in self.config.models:
            model = _model(source, self.device)
            hashes |= {f"weights {source}": weights_hash(model), f"pages {source}": data_hash(self._pages(model))}
        return hashes

    def _pages(self, model: DocumentModel) -> list[Page]:
        c = self.config
        pages = pages_for(model, c.documents, count=c.clients * c.batch_size + c.public, seed=c.seed)
        if len(pages) < c.clients * c.batch_size + 2:
            raise DocumentError(
                f"{c.documents!r} has {len(pages)} pages with private fields; expected {c.batch_size} for each of "
                f"{c.clients} clients, and 2 or more besides that the server prepares with."
            )
        return pages

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Image]]:
        """Manipulate, let the clients answer, read, and hold it against the truth, which the server never had."""
        c, (source, name) = self.config, unit.what
        model, server = _model(source, self.device), SERVERS.load(name)
        record: dict[str, Any] = {"model": source, "server": name, "changes": server.changes}
        forget = _loaded.cache_clear
        if fault := obstacle_to(server, model, forget=forget):
            return {**record, "obstacle": fault}, {}
        pages = self._pages(model)
        private, public = pages[: c.clients * c.batch_size], pages[c.clients * c.batch_size :]
        pixels, inputs = tensors(model, private)
        known = PublicPages(*tensors(model, public), expected=len(private))
        drawn = torch.Generator().manual_seed(c.seed)
        sent = manipulated(server, model, known, generator=drawn, forget=forget)
        batches = [slice(k * c.batch_size, (k + 1) * c.batch_size) for k in range(c.clients)]
        try:
            with blamed(f"the model that server {server.name!r} sent", server):
                gradients = [client_gradient(sent.model, pixels[b], inputs[b]) for b in batches]
            update = summed(gradients, c.limit)
        except FederationError as fault:
            return {**record, "obstacle": f"no client would send it under secure aggregation: {fault}"}, {}
        if not all(bool(torch.isfinite(value).all()) for value in update.values()):
            return {**record, "obstacle": "what a client computes of it is no number, and no client sends that"}, {}
        loot = looted(server, sent, update)
        one_page = bool(getattr(server, "one_page", False))
        counts = of_one if one_page else of_tokens
        record |= of_pictures(loot, pixels) | counts(loot, inputs)
        record |= beside_public(loot, inputs, known.inputs, counts)
        trained, before = ({n: p.detach() for n, p in trainable(one.module)} for one in (sent.model, model))
        few = slice(0, min(EXAMPLES, c.batch_size))

        def loss() -> Tensor:
            return sent.model.loss(pixels[few], inputs[few]).mean()

        record["guard"] = inspect(trained, module=sent.model.module, loss=loss).to_json()
        record["guard_beside"] = inspect(trained, before, module=sent.model.module, loss=loss).to_json()
        return record, _pictures(loot, pixels)

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """Every run's rows; the verdict is on what the servers read, not on what the guard would have stopped."""
        units = [(run, record) for run in runs for record in run.units()]
        parts = [part_of(run.config, record) for run, record in units]
        table = Table(
            "Active servers", COLUMNS, [_row(run, record) for run, record in units],
            "Clopper-Pearson 95 % intervals over pages, and over tokens as if they were independent. "
            f"A page is read if what came back has a PSNR of at least {EXACT:g} dB to it.", first="server",
        )  # fmt: skip
        named = "; ".join(dict.fromkeys(str(run.config["documents"]) for run in runs))
        impossible = [record["obstacle"] for _, record in units if "obstacle" in record]
        caught = [record for _, record in units if "guard" in record]
        held = HELD if all("tokens_elsewhere" in record for record in caught) else NOT_HELD
        alone, beside_it = (sum(bool(r[key]["refused"]) for r in caught) for key in ("guard", "guard_beside"))
        guard = (
            f"docleak guard refuses {alone} in a first round, where it sees nothing else, and {beside_it} beside the "
            "honest model."
        )
        counted = (
            f"An active server, which manipulates the model that it sends, read something in "
            f"{sum(part.severity in LEAKS for part in parts)} of "
            f"{counted_words(len(caught), 'trial')}"
        )
        if impossible:
            counted += f"; {len(impossible)} {'was' if len(impossible) == 1 else 'were'} not possible: "
            counted += "; ".join(dict.fromkeys(why.rstrip(".") for why in impossible))
        counted += f"; of {counted_words(len(caught), 'manipulated model')} {guard}" if caught else "."
        return Reading(
            question="What does a server read that does not keep to the protocol?",
            lead=f"Manipulated models, answered by clients with pages of {named}.",
            parts=tuple(parts), counted=counted, lines=(table.to_text(),), tables={"servers": table},
            sections=(
                Section("servers", "Active servers", "What came back", render("table.html.j2", table=table)),
                Section("threat-servers", "Threat model", "Threat model: an active server",
                        render("threat.html.j2", model=threat_model(runs[0].config))),
            ),
            results={"servers": table.to_json()}, limits=(*LIMITS, held),
            runs=tuple(run_facts(run.path, run.manifest()) for run in runs),
            synthetic=all(run.config["documents"] == "synthetic" for run in runs), shows="",
            scope=scope_of(runs, [f"Of {counted_words(len(caught), 'manipulated model')} {guard}"] if caught else []),
        )  # fmt: skip


def scope_of(runs: Sequence[Run], remedies: Sequence[str]) -> Scope:
    """What training was attacked, of what clients, and that the adversary is active."""
    configs = [run.config for run in runs]
    done = [(len(run.units()), len(run.config["models"]) * len(run.config["servers"])) for run in runs]
    models = dict.fromkeys(model_title(model, None) for config in configs for model in config["models"])
    return Scope(
        system=f"Federated training of {'; '.join(models)}",
        material="; ".join(dict.fromkeys(
            f"one gradient of {counted_words(int(c['clients']), 'client')} with "
            f"{counted_words(int(c['batch_size']), 'page')}{' each' * (int(c['clients']) > 1)}" for c in configs
        )),
        adversary="an active server, or whoever can write what it sends: it does not keep to the protocol, and "
        "manipulates the model that it sends",
        remedies=tuple(remedies),
        unfinished="; ".join(f"{count} of {counted_words(of, 'trial')}" for count, of in done if count < of),
    )  # fmt: skip


def threat_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """Who the adversary is, for the report."""
    many = int(config["clients"]) > 1
    seen = (
        f"the sum of {config['clients']} clients' gradients alone, as secure aggregation gives it"
        if many else "one client's gradient"
    )  # fmt: skip
    return {
        "title": TITLE,
        "adversary": "the server, or whoever can write what it sends: it does NOT keep to the protocol",
        "sees": [f"{seen}, on {counted_words(config['batch_size'], 'page')} each, of the model that it sent"],
        "knows": ["what it did to the model", f"{config['public']} pages of nobody's, of the same kind"],
        "wants": "whole pictures, or every token with its place",
        "cannot": [
            "see a page of a client, or run code there",
            "change the architecture, where only named tensors are sent (imprint needs that)",
        ],
    }


def summed(gradients: Sequence[Mapping[str, Tensor]], limit: float) -> dict[str, Tensor]:
    """The sum over clients; with a ``limit`` in the fixed point of docleak's secure aggregation.

    FederationError for a value beyond it, as a silo would refuse to send it.
    """
    if not limit:
        return {name: torch.stack([gradient[name] for gradient in gradients]).sum(0) for name in gradients[0]}
    fixed = FixedPoint.for_limit(limit, len(gradients))
    sums = {}
    for name in gradients[0]:
        words = [fixed.encode(gradient[name].cpu().numpy()) for gradient in gradients]
        total = fixed.decode(np.sum(words, axis=0, dtype=np.uint32))
        sums[name] = torch.from_numpy(total.reshape(gradients[0][name].shape)).to(gradients[0][name].device)
    return sums


def _model(source: str, device: str) -> DocumentModel:
    return _loaded(source, device, stamps(source))


@lru_cache(maxsize=2)
def _loaded(source: str, device: str, files: Stamps) -> DocumentModel:
    model = load_model(source, device=device)
    if broken := broken_weights(model.module):
        raise ModelError(f"{source!r} cannot be audited: {broken}. Give another checkpoint.")
    return model


def tensors(model: DocumentModel, pages: Sequence[Page]) -> tuple[Tensor, list[Encoded]]:
    """Pixels (P, 3, H, W) in [0, 1] of the pages, and a question about each."""
    device = device_of(model)
    inputs = [model.encode(page, question_of(page)) for page in pages]
    return torch.stack([pixels_of(page.image, device) for page in pages]), inputs


def of_pictures(loot: Loot, pixels: Tensor) -> dict[str, Any]:
    """How many of the true ``pixels`` (P, 3, H, W) were read, and how like the likeliest picture is to each, in dB."""
    likeness = [max((psnr(image_of(one), image_of(true)) for one in loot.pictures), default=0.0) for true in pixels]
    if not len(loot.pictures):
        return {"pages": len(pixels), "pages_read": 0}
    read = sum(value >= EXACT for value in likeness)
    return {"pages": len(pixels), "pages_read": read, "psnr": [min(value, 99.0) for value in likeness]}


def of_tokens(loot: Loot, inputs: Sequence[Encoded]) -> dict[str, Any]:
    """Tokens with their places where any was read with one, else different tokens."""
    placed = any(token.place >= 0 for token in loot.tokens)
    key = "decoder_input_ids" if "decoder_input_ids" in inputs[0].tensors and placed else "input_ids"
    key = key if key in inputs[0].tensors else "decoder_input_ids"
    true = {(int(i), place if placed else -1) for one in inputs for place, i in enumerate(one.tensors[key])}
    read = {(token.id, token.place) for token in loot.tokens}
    return {"tokens": len(true), "tokens_read": len(true & read), "tokens_wrong": len(read - true), "placed": placed}


def of_one(loot: Loot, inputs: Sequence[Encoded]) -> dict[str, Any]:
    """The same of the page that most of the tokens are of, where the server reads one page; nobody tells it which."""
    pages = [of_tokens(loot, [example]) for example in inputs]
    return {**max(pages, key=lambda page: page["tokens_read"] / page["tokens"]), "one_page": True}


def beside_public(
    loot: Loot, private: Sequence[Encoded], public: Sequence[Encoded],
    counts: Callable[[Loot, Sequence[Encoded]], Mapping[str, Any]],
) -> dict[str, int]:  # fmt: skip
    """How many tokens what was read holds at most of ``public`` pages, which no client has, and of as many of the
    clients'; of fewer than all of these, where there are fewer public ones."""
    pages = min(len(private), len(public))

    def most(inputs: Sequence[Encoded]) -> int:
        groups = [inputs[at : at + pages] for at in range(0, len(inputs) - pages + 1, pages)]
        return max(int(counts(loot, group)["tokens_read"]) for group in groups)

    return {"tokens_elsewhere": most(public), "tokens_compared": most(private), "pages_compared": pages}


def _pictures(loot: Loot, pixels: Tensor) -> dict[str, Image]:
    if not len(loot.pictures):
        return {}
    likeness = [psnr(image_of(one), image_of(pixels[0])) for one in loot.pictures]
    return {"original": image_of(pixels[0]), "read": image_of(loot.pictures[int(np.argmax(likeness))])}


def _name(config: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    many = int(config["clients"])
    batch = counted_words(int(config["batch_size"]), "page")
    of = f"{many} clients' sum, {batch} each" if many > 1 else f"one client's gradient of {batch}"
    return f"{record['server']} on {model_title(record['model'], None)} ({of})"


def _row(run: Run, record: Mapping[str, Any]) -> Row:
    if "obstacle" in record:
        return Row(_name(run.config, record), {}, note=f"no hold: {record['obstacle']}", facts={"run": str(run.path)})
    pictures = "psnr" in record
    guesses = record["tokens_read"] + record["tokens_wrong"]
    values: dict[str, Any] = {
        "guard": _said(record["guard"]), "beside": _said(record["guard_beside"]),
        "pages": share(record["pages_read"], record["pages"], "pages") if pictures else None,
        "tokens": None if pictures else share(record["tokens_read"], record["tokens"], "tokens"),
        "wrong": share(record["tokens_wrong"], guesses, "tokens") if guesses else None,
    }  # fmt: skip
    return Row(_name(run.config, record), values, facts={"run": str(run.path)})


def share(count: int, of: int, what: str) -> Estimate:
    """``count`` of ``of`` with its Clopper-Pearson interval of 95 %."""
    return Estimate(count / of, *clopper_pearson(count, of), of, of, of=what)


def _said(opinion: Mapping[str, Any]) -> str:
    return "refused" if opinion["refused"] else "passed"


def part_of(config: Mapping[str, Any], record: Mapping[str, Any]) -> Part:
    """The verdict on one trial; tokens that pages without a client hold as many of are no reading."""
    name = _name(config, record)
    if "obstacle" in record:
        return Part(name, Severity.UNMEASURED, f"An active server has no hold here: {record['obstacle']}.", "No hold")
    pictures = "psnr" in record
    read, of = (record["pages_read"], record["pages"]) if pictures else (record["tokens_read"], record["tokens"])
    what = "pages, picture for picture" if pictures else (
        "tokens with their places" if record["placed"] else "different tokens"
    )  # fmt: skip
    what += " of one page" if record.get("one_page") else ""
    as_any = not pictures and bool(read) and record.get("tokens_compared", read) <= record.get("tokens_elsewhere", 0)
    severity = Severity.SEVERE if read >= SEVERE_SHARE * of else Severity.PARTIAL if read else Severity.UNTOLD
    severity = Severity.UNTOLD if as_any else severity
    compared = record.get("pages_compared", int(config["clients"]) * int(config["batch_size"]))
    alone, with_honest = record["guard"], record["guard_beside"]
    stop = (
        f"The guard refuses it in a first round ({counted_words(len(alone['reasons']), 'reason')})" if alone["refused"]
        else "The guard lets it pass in a first round"
        + (f", and refuses it beside the honest model ({counted_words(len(with_honest['reasons']), 'reason')})"
           if with_honest["refused"] else " and beside the honest model")
    )  # fmt: skip
    beside = f", and {record['tokens_wrong']} that it has not" if record.get("one_page") else ""
    said = f"By changing the {record['changes']}, an active server reads {read} of {of} {what}{beside}. {stop}."
    if as_any:
        said += (
            f" Of {counted_words(compared, 'page')} that no client has, what it reads holds as many tokens as of "
            f"{compared} of the clients', so that none is counted."
        )
    return Part(name, severity, said, "" if read else "Nothing read by this server", "servers")
