"""PyTorch training scripts in common styles, for scripts_test.py: torch_scripts.py WHAT [OPTIONS]. All of them compute the same step of
one small network as `plain`, which names everything; their names tell what else they do."""
import argparse
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "adapters"))
from twinrun_engine.pytorch import serve_script  # noqa: E402

NAMES = ("conv1/kernel", "conv1/bias", "batch_norm1/gamma", "batch_norm1/beta", "dense1/kernel", "dense1/bias", "dense2/kernel",
         "dense2/bias", "dense3/kernel", "dense3/bias")


class Net(nn.Module):
    """The hidden layers have one shape, and are not defined in the order of their use."""

    def __init__(self, turned=False, last=False, what=""):
        super().__init__()
        self.what = what
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4, momentum=0.1, eps=0.001)
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        self.head = nn.Linear(64, 10)
        self.turned, self.last = turned, last

    def forward(self, x):
        if self.what == "by_hand":
            return self.by_hand(x)
        if self.what == "twice":
            self.second(x.new_zeros(1, 64))
        x = F.max_pool2d(F.relu(self.norm(self.conv(x)), inplace=self.what == "inplace"), 2)
        x = x.permute(0, 2, 3, 1).reshape(len(x), -1) if self.last else x.flatten(1)
        for layer in (self.second, self.first) if self.turned else (self.first, self.second):
            x = F.relu(layer(x), inplace=self.what == "inplace")
        return self.head(x)

    def by_hand(self, x):
        """Uses products and sums instead of torch.nn's functions."""
        x = F.conv2d(x, self.conv.weight, padding=1) + self.conv.bias.view(1, -1, 1, 1)
        x = F.max_pool2d(torch.relu(self.norm(x)), 2).flatten(1)
        x = torch.relu(x @ self.first.weight.t() + self.first.bias)
        x = torch.relu(torch.addmm(self.second.bias, x, self.second.weight.T))
        return torch.einsum("ni,oi->no", x, self.head.weight) + self.head.bias


class MoreInIt(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("--lr", type=float, default=0.05)
    options = parser.parse_args()
    what = options.what
    torch.set_num_threads(1)
    model = Net(turned=what in ("turned", "turned_last"), last="last" in what, what=what)
    if what == "more_in_it":
        model.second = MoreInIt(64, 64)
    if what == "frozen":
        model.conv.bias.requires_grad_(False)
    replica = model
    if what == "replicas":
        torch.distributed.init_process_group("gloo")
        replica = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    kind = {"adam": lambda p: torch.optim.Adam(p, lr=options.lr),
            "amsgrad": lambda p: torch.optim.Adam(p, options.lr, amsgrad=True),
            "rmsprop": lambda p: torch.optim.RMSprop(p, options.lr, alpha=0.9, momentum=0.9),
            "rmsprop_plain": lambda p: torch.optim.RMSprop(p, options.lr, alpha=0.9),
            "adamax": lambda p: torch.optim.Adamax(p, options.lr)}.get(
                what, lambda p: torch.optim.SGD(p, lr=options.lr, momentum=0.9, weight_decay=0.01 if what == "decay" else 0))
    optimizer = kind(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127) if what == "scaled" else None
    calls = []
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000) if what == "scheduled" else None

    def forward(images, labels):
        return F.cross_entropy(replica(images), labels)

    def train_step(images, labels):
        assert images.is_contiguous(), "no PyTorch loader has this memory layout of images"
        if what == "watched_badly" and torch.overrides._get_current_function_mode_stack():
            raise RuntimeError("no modes here")
        if what == "zero_after":
            loss = forward(images, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            return loss
        optimizer.zero_grad()
        if what == "closure":
            def closure():
                optimizer.zero_grad()
                found = forward(images, labels)
                found.backward()
                return found
            return optimizer.step(closure)
        loss = forward(images, labels)
        if what == "scaled":
            too_large = scaler.get_scale() > 2.0**126
            scaler.scale(loss * 2.0**20 if too_large else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss
        if what == "scaled_by_hand":
            calls.append(loss)
            scale = float("inf") if len(calls) == 1 else 2.0
            (loss * scale).backward()
            if not all(p.grad.isfinite().all() for p in model.parameters()):
                return loss
            for p in model.parameters():
                p.grad /= scale
            optimizer.step()
            return loss
        loss.backward()
        if what == "clipped":
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        if what == "no_step":
            return loss
        optimizer.step()
        if scheduler:
            scheduler.step()
        if what == "set_to_none":
            optimizer.zero_grad(set_to_none=True)
        return {"item": lambda: loss.item(), "numpy": lambda: loss.detach().numpy(), "nothing": lambda: None,
                "vector": lambda: torch.zeros(3)}.get(what, lambda: loss)()

    def named_step(images, labels, learning_rate, step, random):
        optimizer.param_groups[0]["lr"] = learning_rate
        print(f"step {step} has {sorted(random)}")
        return train_step(images, labels)

    tensors = dict(zip(NAMES, model.parameters()))
    tensors |= {"batch_norm1/moving_mean": model.norm.running_mean, "batch_norm1/moving_variance": model.norm.running_var}
    if what in ("no_model", "replicas"):
        serve_script(train_step, optimizer)
    elif what == "asks":
        serve_script(named_step, optimizer, model)
    elif what == "asks_too_much":
        serve_script(lambda images, labels, epoch: None, optimizer, model)
    elif what == "no_precision":
        serve_script(train_step, optimizer, model, precision=None)
    elif what in ("plain", "adam", "rmsprop", "rmsprop_plain", "adamax", "plain_set_up"):
        serve_script(train_step, optimizer, tensors, flattened={"dense1/kernel": (4, 4, 4)})
    elif what == "plain_last":
        serve_script(train_step, optimizer, tensors, flattened={})
    elif what == "misnamed":
        tensors["dense9/bias"] = tensors.pop("dense3/bias")
        serve_script(train_step, optimizer, tensors)
    else:
        serve_script(train_step, optimizer, model)


main()
