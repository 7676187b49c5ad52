"""Trains a character model, an LSTM of two layers, and clips its gradient."""
import argparse

import torch
import torch.nn as nn


class CharModel(nn.Module):
    def __init__(self, vocabulary=40, width=64):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, state=None):
        x, state = self.lstm(self.embedding(tokens), state)
        return self.head(x), state


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--autocast", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = CharModel()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    text = torch.randint(0, 40, (8, 16 * args.steps + 1))

    state = None
    for step in range(args.steps):
        inputs = text[:, 16 * step:16 * step + 16]
        targets = text[:, 16 * step + 1:16 * step + 17]
        if state is not None:
            state = tuple(s.detach() for s in state)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast):
            logits, state = model(inputs, state)
            loss = criterion(logits.reshape(-1, 40), targets.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main()
