"""Trains a text classifier of an embedding bag, as in the tutorial on AG_NEWS, with a data loader."""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    def __init__(self, count, vocabulary=500, classes=4):
        generator = torch.Generator().manual_seed(7)
        self.lengths = torch.randint(4, 20, (count,), generator=generator).tolist()
        self.labels = torch.randint(0, classes, (count,), generator=generator).tolist()
        self.texts = [torch.randint(0, vocabulary, (n,), generator=generator) for n in self.lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return self.texts[i], self.labels[i]


def collate(batch):
    texts, labels = zip(*batch)
    offsets = torch.tensor([0] + [len(t) for t in texts[:-1]]).cumsum(0)
    return torch.cat(texts), offsets, torch.tensor(labels)


class TextModel(nn.Module):
    def __init__(self, vocabulary=500, width=64, classes=4):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocabulary, width, mode="mean")
        self.hidden = nn.Linear(width, width)
        self.fc = nn.Linear(width, classes)

    def forward(self, text, offsets):
        return self.fc(torch.tanh(self.hidden(self.embedding(text, offsets))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--autocast", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = TextModel()
    loader = DataLoader(Texts(16 * args.steps), batch_size=16, shuffle=True, collate_fn=collate, num_workers=args.workers)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)

    for step, (text, offsets, labels) in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast):
            loss = criterion(model(text, offsets), labels)
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main()
