"""One side of one of breaching 0.1.2's cases (MIT): its configuration, model, loss and attack, or docleak on the same.

``job["case"]`` is the case's number, ``job["side"]`` "breaching" or "docleak". Weights are random, pictures are
docleak's scenes and tokens are drawn: the data sets of the cases are not to be had here. What is scaled is in the job.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from exchange import answer, asked
from torch import Tensor, nn

from bench import beside_breaching as shared
from bench.imprint import likeness, pictures
from docleak.attacks.gradients.algebra.subspace import Rows, Subspace, members
from docleak.attacks.servers.imprint import inputs_of_bins

torch.set_num_threads(1)
# breaching 0.1.2 is older than fused attention, of which PyTorch has no second derivative
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
job, _ = asked()
breaching = shared._package()
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
        found, _ = attacker_of(model, loss, "analytic").reconstruct(payload(model, about), sent(gradient, label), {})
        return torch.as_tensor(found["data"]).reshape(-1, 3, 224, 224)

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
    shared.BUDGET = job["budget"]
    case = shared.case_of("lenet5", number)
    shared.build_pair = build
    setting: tuple[float, float] = tuple(job["setting"])
    attack: Any = {
        "breaching": lambda: shared.Breaching()(case, setting, steps=job["budget"]),
        "docleak": lambda: shared.ours(case, setting),
        "docleak, own solver": lambda: shared.ours_bounded(case, setting),
    }[job["side"]]
    return attack, lambda found: shared._psnr(case, found), 1


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
        found, _ = attacker.reconstruct(payload(model, about), sent(gradient, None), {})
        return torch.as_tensor(found["data"]).flatten()

    def ours() -> Tensor:
        named = dict(zip([name for name, _ in model.named_parameters()], gradient, strict=True))
        rows = named["transformer_encoder.layers.0.self_attn.in_proj_weight"]
        words, places = (
            model.encoder.weight.detach() * model.ninp**0.5,
            model.pos_encoder.embedding.weight.detach()[:length],
        )
        candidates = (words[None] + places[:, None]).flatten(0, 1)
        found = members(Subspace.of([Rows(rows)]), candidates)
        nearest = torch.where(found.taken, found.residuals, torch.inf).reshape(length, -1).min(1)
        return torch.where(nearest.values < torch.inf, nearest.indices, -1)

    count = lambda found: float((found == tokens[0]).sum())  # noqa: E731
    return (theirs if job["side"] == "breaching" else ours), count, length


made = {0: sanity_check, 1: single_image, 10: causal}[job["case"]]


def of_example(number: int) -> tuple[float, float, int]:
    """What the attack on an example is worth, its processor seconds, and of how many."""
    torch.manual_seed(number), np.random.seed(number)
    attack, score, size = made(number)
    began = time.process_time()
    found = attack()
    seconds = time.process_time() - began
    return score(found), seconds, size


if "settings" in job:  # the best on an example before those that count
    tried = []
    for setting in job["settings"]:
        job["setting"] = setting
        tried.append(of_example(job["first"] - 1)[0])
    job["setting"] = job["settings"][int(np.argmax(tried))]
told = [of_example(number) for number in range(job["first"], job["first"] + job["examples"])]
answer({
    "values": [value for value, *_ in told], "of": sum(size for *_, size in told), "setting": job.get("setting"),
    "seconds": sum(seconds for _, seconds, _ in told) / len(told),
})  # fmt: skip
