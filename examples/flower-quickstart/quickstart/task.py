"""Model, data and training, as in Flower's quickstarts: dropout, padding, shuffling, AdamW and batches as they are."""

from pathlib import Path

import torch
from somebodys_app import Questions, load_model
from torch.utils.data import DataLoader

__all__ = ["load_data", "load_model", "train"]


def load_data(folder: str, partition_id: int, batch_size: int) -> DataLoader:
    """The pages of one partition."""
    pages = Questions(Path(folder) / str(partition_id), length=256)
    return DataLoader(pages, batch_size=batch_size, shuffle=True, collate_fn=pages.collate)


def train(net: torch.nn.Module, trainloader: DataLoader, epochs: int, lr: float) -> float:
    """Train the model on the training set."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for batch in trainloader:
            loss = net(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            running_loss += loss.item()
    return running_loss / len(trainloader)
