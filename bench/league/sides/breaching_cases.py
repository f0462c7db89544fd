"""One side of one of breaching 0.1.2's cases (MIT): its configuration, model, loss and attack, or docleak on the same.

``job["case"]`` is the case's number, or what bench does in one process; ``job["side"]`` "breaching" or "docleak".
Weights are random, pictures are docleak's scenes and tokens are drawn: the data sets of the cases are not to be had
here. What is scaled is in the job.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from exchange import answer, asked, timed
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from bench import beside_breaching as shared
from bench import imprint
from bench.beside_breaching import SIDE, build_pair, build_pair_case, inputs_of, make_scenes, psnr
from bench.imprint import likeness, pictures
from docleak.attacks.gradients import Knowledge
from docleak.attacks.gradients.algebra.subspace import Rows, Subspace, members
from docleak.attacks.gradients.local_steps import ImitatedSteps, Optimiser
from docleak.attacks.servers.imprint import inputs_of_bins

#: The number of the token that stands for a masked word.
MASK = 4

torch.set_num_threads(1)
# breaching 0.1.2 is older than fused attention, of which PyTorch has no second derivative
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
job, _ = asked()
peer = shared.Breaching()
breaching = peer.package
building: Any = import_module("breaching.cases.models.model_preparation")


def case_config(name: str) -> Any:
    """breaching's own configuration of a case."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return breaching.get_case_config(name)


def attacker_of(model: nn.Module, loss: nn.Module, name: str, **optim: float) -> Any:
    """breaching's attacker of that name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = breaching.get_attack_config(name)
    for key, value in optim.items():
        config.optim[key] = value
    return breaching.attacks.prepare_attack(model, loss, config)


def sent(gradient: list[Tensor], labels: Tensor | None) -> list[dict[str, Any]]:
    """What a client of one example sends."""
    told = {"num_data_points": 1, "labels": labels, "local_hyperparams": None}
    return [{"gradients": [one.clone() for one in gradient], "buffers": None, "metadata": told}]


def payload(model: nn.Module, about: Any) -> list[dict[str, Any]]:
    """What the server sent."""
    buffers = list(model.buffers())
    return [{"parameters": list(model.parameters()), "buffers": buffers, "metadata": about}]


def sanity_check(number: int) -> tuple[Callable[[], Any], Callable[[Any], float], int]:
    """Case 0: a linear model on one picture of 224 x 224, its label known; breaching's analytic attacker."""
    config = case_config("0_sanity_check")
    config.data.classes = job["classes"]
    torch.manual_seed(number)
    model, loss = building.construct_model(config.model, config.data, pretrained=False)
    x, label = pictures(number)[:1], torch.tensor([number % job["classes"]])
    gradient = list(torch.autograd.grad(loss(model(x), label), list(model.parameters())))
    about = shared.Metadata(shape=(3, 224, 224), modality="vision", task="classification", classes=job["classes"],
                            mean=list(config.data.mean), std=list(config.data.std))  # fmt: skip

    def theirs() -> Tensor:
        image, _ = attacker_of(model, loss, "analytic").reconstruct(payload(model, about), sent(gradient, label), {})
        return torch.as_tensor(image["data"]).reshape(-1, 3, 224, 224)

    def ours() -> Tensor:
        weight, bias = gradient
        row = int(bias.abs().argmax())
        return inputs_of_bins(weight[row : row + 1], bias[row : row + 1]).float().reshape(-1, 3, 224, 224)

    return (theirs if job["side"] == "breaching" else ours), lambda found: likeness(found, x)[0], 1


def single_image(number: int) -> tuple[Callable[[], Any], Callable[[Any], float], int]:
    """Case 1: breaching's ConvNet on one picture of 32 x 32, its label known; both by Inverting Gradients."""
    config = case_config("1_single_image_small")
    torch.manual_seed(number)
    network, _ = building.construct_model(config.model, config.data, pretrained=False)
    while not isinstance(network, nn.Sequential):  # in containers of its own
        network = network.model
    build = shared.build_pair

    def with_theirs(*names: str, **given: Any) -> Any:
        model = build(*names, **given)
        model.module.image["net"], model.module.image["head"] = network[:-1].eval(), network[-1]
        return model

    shared.build_pair = with_theirs
    case = shared.case_of("lenet5", number)
    shared.build_pair = build
    return inverting(case), lambda found: shared._psnr(case, found), 1


def one_picture(number: int) -> tuple[Callable[[], Any], Callable[[Any], float], int]:
    """bench.beside_breaching's case: one picture, the label known; both by Inverting Gradients."""
    case = shared.case_of(job["network"], number)
    return inverting(case), lambda found: shared._psnr(case, found), 1


def imprinted(number: int) -> tuple[Callable[[], Any], Callable[[Any], float], int]:
    """bench.imprint's case: eight pictures behind breaching's own block, read by its attacker and by docleak."""
    torch.manual_seed(number)
    network, x = import_module("torchvision").models.resnet18().eval(), pictures(number)
    modified = import_module("breaching.cases.malicious_modifications.imprint")
    block = modified.ImprintBlock((3, imprint.SIDE, imprint.SIDE), num_bins=job["bins"])
    gradient = imprint.gradient_of(block, network, x)
    attack: Any = {
        "breaching": lambda: imprint.theirs(breaching, block, network, x, [one.clone() for one in gradient]),
        "docleak": lambda: inputs_of_bins(gradient[0], gradient[1]).float().reshape(-1, 3, imprint.SIDE, imprint.SIDE),
    }[job["side"]]
    return attack, lambda found: float(sum(value >= imprint.READ for value in likeness(found, x))), len(x)


def batch_of(number: int) -> Any:
    """A client with several pictures, docleak's scenes of 32 x 32, labels known: one gradient of all, or so many local
    steps, each on a picture of its own."""
    count, rate = job["pictures"], job.get("rate", 0.0)
    model = build_pair(job["network"], "bert-tiny", classes=shared.CLASSES, image_size=(SIDE, SIDE), seed=number)
    scenes = make_scenes(count * (number + 1), seed=1)[-count:]
    pair = build_pair_case(model, scenes)
    view, labels = pair.view.side("image"), [int(one) for one in pair.labels[0]]
    inputs = inputs_of(labels)
    if rate:
        steps = ImitatedSteps(Optimiser(learning_rate=rate), tuple((i,) for i in range(count)), tuple(range(count)))
        update = steps.simulate(view.model, pair.pixels, inputs, view.names, create_graph=False)
        view = replace(view, gradient=update, local=steps)
    unknown = torch.ones(count, SIDE, SIDE, dtype=torch.bool)
    knowledge = Knowledge(torch.full_like(pair.pixels, shared.HALF), unknown, inputs)
    start = torch.rand(pair.pixels.shape, generator=torch.Generator().manual_seed(number))
    return shared.Case(model, view, knowledge, pair.pixels, start)


def several(number: int) -> tuple[Callable[[], Any], Callable[[Any], float], int]:
    """Cases 4 and 6: a client's pictures by Inverting Gradients, from one gradient or from several local steps."""
    case, count = batch_of(number), job["pictures"]

    def score(found: Tensor) -> float:
        table = np.array([
            [psnr(255 * true.numpy(), 255 * one.detach().numpy()) for one in found] for true in case.pixels
        ])  # fmt: skip
        return float(table[linear_sum_assignment(-table)].mean())

    return inverting(case), score, count


def inverting(case: Any) -> Callable[[], Any]:
    """Both sides' Inverting Gradients on a case of bench.beside_breaching, and docleak's own solver."""
    shared.BUDGET, shared.KEEP, setting = job["budget"], job.get("keep", "best"), tuple(job["setting"])
    attack: Any = {
        "breaching": lambda: peer(case, setting, steps=job["budget"]),
        "docleak": lambda: shared.ours(case, setting),
        "docleak, own solver": lambda: shared.ours_bounded(case, setting),
    }[job["side"]]
    return attack  # type: ignore[no-any-return]


def masked(number: int) -> tuple[Callable[[], Any], Callable[[Any], float], int]:
    """Case 9: BERT on one sequence with masked words; breaching's TAG, and docleak's span of the first layer."""
    import transformers as t

    length, words = job["tokens"], job["vocabulary"]
    torch.manual_seed(number)
    config = t.BertConfig(
        vocab_size=words, hidden_size=job["width"], num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=4 * job["width"], max_position_embeddings=length, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    net = t.BertForMaskedLM(config).eval()
    with torch.no_grad():  # transformers makes padding's row zeros, by whose length breaching's look-up divides
        net.bert.embeddings.word_embeddings.weight[0].normal_(std=config.initializer_range)
    model, loss = building.HuggingFaceContainer(net), building.MLMLoss(vocab_size=words)
    tokens = torch.randint(5, words, (1, length), generator=torch.Generator().manual_seed(100 + number))
    labels, hidden = tokens.clone(), round(job["hidden"] * length)
    if hidden:  # else every token is a label, which breaching calls disable_mlm
        places = torch.randperm(length)[:hidden]
        labels.fill_(-100)[0, places], tokens[0, places] = tokens[0, places].clone(), MASK
    gradient = list(torch.autograd.grad(loss(model(tokens), labels), list(model.parameters()), allow_unused=True))
    gradient = [torch.zeros_like(p) if g is None else g for g, p in zip(gradient, model.parameters(), strict=True)]
    named = dict(zip([name for name, _ in model.named_parameters()], gradient, strict=True))
    about = shared.Metadata(shape=[length], modality="text", task="masked-lm", vocab_size=words)

    def theirs() -> Tensor:
        attacker = attacker_of(model, loss, "tag", max_iterations=job["budget"], callback=job["budget"])
        reconstruction, _ = attacker.reconstruct(payload(model, about), sent(gradient, None), {})
        return torch.as_tensor(reconstruction["data"]).flatten()

    def ours() -> Tensor:
        body = net.bert.embeddings
        summed = body.word_embeddings.weight[None] + body.position_embeddings.weight[:length, None]
        candidates = body.LayerNorm(summed + body.token_type_embeddings.weight[0]).detach()
        return at_places(named["model.bert.encoder.layer.0.attention.self.query.weight"], candidates)

    count = lambda found: float((found == tokens[0]).sum())  # noqa: E731
    return (theirs if job["side"] == "breaching" else ours), count, length


def at_places(rows: Tensor, candidates: Tensor) -> Tensor:
    """Of candidates (places, words, d) the word at each place that lies in the span of the rows; -1 where none does."""
    inside = members(Subspace.of([Rows(rows)]), candidates.flatten(0, 1))
    nearest = torch.where(inside.taken, inside.residuals, torch.inf).reshape(len(candidates), -1).min(1)
    return torch.where(nearest.values < torch.inf, nearest.indices, -1)


def causal(number: int) -> tuple[Callable[[], Any], Callable[[Any], float], int]:
    """Case 10: breaching's three-layer transformer on one sequence; its TAG, and docleak's span of the first layer."""
    config = case_config("10_causal_lang_training")
    config.data.vocab_size, length = job["vocabulary"], job["tokens"]
    torch.manual_seed(number)
    model, loss = building.construct_model(config.model, config.data, pretrained=False)
    model.eval()
    tokens = torch.randint(job["vocabulary"], (1, length), generator=torch.Generator().manual_seed(100 + number))
    # positions beyond the sequence have no gradient of their own, but zeros
    gradient = list(torch.autograd.grad(loss(model(tokens), tokens), list(model.parameters())))
    about = shared.Metadata(shape=[length], modality="text", task="causal-lm", vocab_size=job["vocabulary"])

    def theirs() -> Tensor:
        attacker = attacker_of(model, loss, "tag", max_iterations=job["budget"], callback=job["budget"])
        reconstruction, _ = attacker.reconstruct(payload(model, about), sent(gradient, None), {})
        return torch.as_tensor(reconstruction["data"]).flatten()

    def ours() -> Tensor:
        named = dict(zip([name for name, _ in model.named_parameters()], gradient, strict=True))
        rows = named["transformer_encoder.layers.0.self_attn.in_proj_weight"]
        words, places = model.encoder.weight.detach() * model.ninp**0.5, model.pos_encoder.embedding.weight.detach()
        return at_places(rows, words[None] + places[:length, None])

    count = lambda found: float((found == tokens[0]).sum())  # noqa: E731
    return (theirs if job["side"] == "breaching" else ours), count, length


made: Any = {
    0: sanity_check, 1: single_image, 4: several, 6: several, 9: masked, 10: causal, "picture": one_picture,
    "imprint": imprinted,
}[job["case"]]  # fmt: skip


def of_example(number: int) -> tuple[float, float, int]:
    """What the attack on an example is worth, its processor seconds, and of how many."""
    torch.manual_seed(number), np.random.seed(number)
    attack, score, size = made(number)
    recovered, seconds = timed(attack)
    return score(recovered), seconds, size


if len(job.get("settings", ())) == 1:
    (job["setting"],) = job["settings"]
elif "settings" in job:  # the best on an example before those that count
    tried = []
    for setting in job["settings"]:
        job["setting"] = setting
        tried.append(of_example(job["first"] - 1)[0])
    job["setting"] = job["settings"][int(np.argmax(tried))]
told = [of_example(number) for number in range(job["first"], job["first"] + job["examples"])]
answer({
    "values": [value for value, *_ in told], "of": sum(size for *_, size in told), "setting": job.get("setting"),
    "seconds": sum(seconds for _, seconds, _ in told) / len(told), "each": [seconds for _, seconds, _ in told],
})  # fmt: skip
