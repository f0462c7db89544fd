"""Data and training of the quickstart: batches of 32, padded to their longest, shuffled; AdamW at 5e-5; dropout on."""

from pathlib import Path

import torch
from somebodys_app import Questions, load_model
from torch.optim import AdamW
from torch.utils.data import DataLoader

__all__ = ["load_data", "load_model", "train"]


def load_data(folder: str, partition_id: int) -> DataLoader:
    """The pages of one partition."""
    pages = Questions(Path(folder) / str(partition_id))
    return DataLoader(pages, batch_size=32, shuffle=True, collate_fn=pages.collate)


def train(net: torch.nn.Module, trainloader: DataLoader, epochs: int) -> float:
    """Train the model on the training set."""
    optimizer = AdamW(net.parameters(), lr=5e-5)
    net.train()
    losses = []
    for _ in range(epochs):
        for batch in trainloader:
            loss = net(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return sum(losses) / len(losses)
