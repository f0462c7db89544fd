"""An NVFlare simulation of two clients, recorded by docleak's filter, and audited.

    pip install nvflare; python examples/nvflare_filter.py OUT [percentile|svt]

With a name, NVFlare's own privacy filter stands before docleak's, which sees what leaves.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import TransferType
from nvflare.recipe import SimEnv
from somebodys_app import MODEL, audit, make_clients

from docleak.training.taps.nvflare import UpdateFilter

HERE = Path(__file__).parent


def run(out: Path, privacy: str = "") -> Path:
    """The folder that was recorded."""
    pages = make_clients(out / "pages", 3)  # 1 and 2 are trained on
    from nvflare_client import Net

    recipe = FedAvgRecipe(
        name="audited", model=Net(), min_clients=2, num_rounds=1, train_script=str(HERE / "nvflare_client.py"),
        train_args=str(pages), params_transfer_type=TransferType.DIFF if privacy else TransferType.FULL,
    )  # fmt: skip
    recipe.add_client_input_filter(UpdateFilter(str(out / "updates")), tasks=["train"])
    if privacy:
        from nvflare.app_common.filters import PercentilePrivacy, SVTPrivacy

        recipe.add_client_output_filter({"percentile": PercentilePrivacy, "svt": SVTPrivacy}[privacy](), ["train"])
    recipe.add_client_output_filter(UpdateFilter(str(out / "updates")), tasks=["train"])
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(out / "nvflare")))
    return out / "updates"


if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    updates = run(folder, *sys.argv[2:3])
    clients = [f"--client=site-{number}={folder / 'pages' / str(number)}" for number in (1, 2)]
    local = "--local=optimiser=sgd,learning_rate=0.05,batch_size=2"
    audit(updates, folder / "pages", "--model", str(MODEL), *clients, local)
