"""Small models of ten kinds, each as (model, optimizer, batches, loss): what a user would hand to twinrun.diagnose."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def images(channels, size, batch=16, steps=2, classes=10):
    return [(torch.randn(batch, channels, size, size), torch.randint(0, classes, (batch,))) for _ in range(steps)]


def classify(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def mlp(norm=nn.SyncBatchNorm):
    model = nn.Sequential(nn.Linear(12, 24), norm(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 4))
    batches = [(torch.randn(16, 12), torch.randint(0, 4, (16,))) for _ in range(3)]
    return model, torch.optim.AdamW(model.parameters(), 1e-3), batches, classify


def cnn():
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(16 * 49, 10),
    )
    return model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), images(1, 16), classify


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride, norm):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), norm(outputs)
        self.down = None
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.down is None else self.down(x)))


def resnet18(norm=nn.SyncBatchNorm, width=4):
    layers, inputs = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        norm(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ], width
    for i, stride in enumerate((1, 2, 2, 2)):
        layers += [Block(inputs, width << i, stride, norm), Block(width << i, width << i, 1, norm)]
        inputs = width << i
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))
    return (
        model,
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True),
        images(3, 16),
        classify,
    )


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(6, 12, num_layers=2, batch_first=True), nn.Linear(12, 3)

    def forward(self, x):
        return self.fc(self.lstm(x)[0][:, -1])


def lstm():
    model = Recurrent()
    batches = [(torch.randn(16, 5, 6), torch.randint(0, 3, (16,))) for _ in range(2)]
    return model, torch.optim.RMSprop(model.parameters(), 1e-3), batches, classify


class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary=17, width=16, length=8):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Attention(width, 2, True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt():
    model = Gpt()
    batches = [{"ids": torch.randint(0, 17, (16, 8)), "next": torch.randint(0, 17, (16, 8))} for _ in range(2)]
    return (
        model,
        torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95)),
        batches,
        lambda m, b: F.cross_entropy(m(b["ids"]).flatten(0, 1), b["next"].flatten()),
    )


class Vit(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.patch, self.cls = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.blocks = nn.Sequential(Attention(width, 2, False), Attention(width, 2, False))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.place
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit():
    model = Vit()
    return model, torch.optim.Adam(model.parameters(), 1e-3), images(3, 16), classify


class UNet(nn.Module):
    def __init__(self, w=4):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, w, 3, padding=1), nn.GroupNorm(2, w), nn.SiLU())
        self.middle = nn.Sequential(nn.Conv2d(w, 2 * w, 3, padding=1), nn.GroupNorm(2, 2 * w), nn.SiLU())
        self.up = nn.ConvTranspose2d(2 * w, w, 2, stride=2)
        self.out = nn.Conv2d(2 * w, 1, 1)

    def forward(self, x):
        one = self.down(x)
        two = self.middle(F.avg_pool2d(one, 2))
        return self.out(torch.cat([self.up(two), one], 1))


def unet():
    model = UNet()
    batches = [(torch.randn(16, 3, 8, 8), (torch.rand(16, 1, 8, 8) > 0.5).float()) for _ in range(2)]
    return (
        model,
        torch.optim.RMSprop(model.parameters(), 1e-3, momentum=0.9),
        batches,
        lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]), b[1]),
    )


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.fc = nn.EmbeddingBag(40, 12, mode="mean"), nn.Linear(12, 4)

    def forward(self, ids):
        return self.fc(torch.tanh(self.embedding(ids)))


def embedding_bag():
    model = Bag()
    batches = [(torch.randint(0, 40, (16, 6)), torch.randint(0, 4, (16,))) for _ in range(2)]
    return model, torch.optim.Adagrad(model.parameters(), 0.1), batches, classify


class Lora(nn.Module):
    def __init__(self, width=12, rank=2):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.base.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(rank, width) * 0.1), nn.Parameter(torch.randn(width, rank) * 0.1)

    def forward(self, x):
        return self.base(x) + (x @ self.a.t()) @ self.b.t()


def lora():
    model = nn.Sequential(Lora(), nn.GELU(), Lora(), nn.LayerNorm(12), nn.Linear(12, 4))
    trained = [p for p in model.parameters() if p.requires_grad]
    batches = [(torch.randn(16, 12), torch.randint(0, 4, (16,))) for _ in range(2)]
    return model, torch.optim.AdamW(trained, 1e-3, weight_decay=0.1), batches, classify


def gan(norm=nn.SyncBatchNorm):
    """Two networks and two optimizers that take turns; its step is gan_step."""
    g = nn.Sequential(
        nn.ConvTranspose2d(8, 8, 4, 1, 0, bias=False),
        norm(8),
        nn.ReLU(True),
        nn.ConvTranspose2d(8, 1, 4, 2, 1),
        nn.Tanh(),
    )
    d = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(8, 1, 4, 1, 0), nn.Flatten())
    optimizers = [torch.optim.Adam(m.parameters(), 2e-4, betas=(0.5, 0.999)) for m in (g, d)]
    return [g, d], optimizers, [(torch.randn(16, 1, 8, 8), torch.randn(16, 8, 1, 1)) for _ in range(2)], None


def gan_step(models, optimizers, batch):
    g, d = models
    real, noise = batch
    ones, zeros = torch.ones(real.shape[0], 1), torch.zeros(real.shape[0], 1)
    fake = g(noise)
    loss = F.binary_cross_entropy_with_logits(d(real), ones) + F.binary_cross_entropy_with_logits(
        d(fake.detach()), zeros
    )
    optimizers[1].zero_grad()
    loss.backward()
    optimizers[1].step()
    loss_g = F.binary_cross_entropy_with_logits(d(fake), ones)
    optimizers[0].zero_grad()
    loss_g.backward()
    optimizers[0].step()
    return loss + loss_g.detach()


ALL = {f.__name__: f for f in (mlp, cnn, resnet18, lstm, gpt, vit, unet, embedding_bag, lora, gan)}
