"""An NVFlare client with its Client API, as its Hello PyTorch has it; nothing here knows of an audit."""

from __future__ import annotations

import sys
from pathlib import Path

import nvflare.client as flare
import torch
from somebodys_app import MODEL, Questions
from transformers import AutoConfig, LayoutLMv3ForQuestionAnswering


class Net(LayoutLMv3ForQuestionAnswering):
    """The model with its first weights, without arguments, as NVFlare makes it."""

    def __init__(self) -> None:
        super().__init__(AutoConfig.from_pretrained(str(MODEL)))
        self.load_state_dict(LayoutLMv3ForQuestionAnswering.from_pretrained(str(MODEL)).state_dict())


def main() -> None:
    """Train on what comes, send it back."""
    flare.init()
    site = flare.get_site_name()
    pages = Questions(Path(sys.argv[1]) / site.removeprefix("site-"))
    net = Net()
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        net.load_state_dict({name: torch.as_tensor(value) for name, value in received.params.items()}, strict=False)
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        steps = 0
        for batch in torch.utils.data.DataLoader(pages, batch_size=2, collate_fn=pages.collate):
            optimizer.zero_grad()
            net(**batch).loss.backward()
            optimizer.step()
            steps += 1
        params = {name: value.detach().cpu() for name, value in net.state_dict().items()}
        flare.send(flare.FLModel(params=params, meta={"NUM_STEPS_CURRENT_ROUND": steps}))


if __name__ == "__main__":
    main()
