"""Steps for update_test.py, each by its name: python updates.py NAME [TRACE]. With a trace they are recorded as on PyTorch before 1.13. Their optimizers are PyTorch's, some of them changed as a bug of a
release would change them, or the script's own.
"""
import copy
import ctypes
import inspect
import sys

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
CASES, WRONG = {}, {}
VARIANTS = {
    "SGD": [{}, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}, {"momentum": 0.9, "nesterov": True}, {"maximize": True}],
    "Adam": [{}, {"amsgrad": True}, {"weight_decay": 0.1}, {"maximize": True, "betas": (0.5, 0.9)}, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "AdamW": [{"amsgrad": True}, {}], "Adamax": [{"weight_decay": 0.1}], "NAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "RAdam": [{"betas": (0.5, 0.6)}, {"weight_decay": 0.1}], "Adagrad": [{"lr_decay": 0.1, "initial_accumulator_value": 0.5}],
    "Adadelta": [{}], "RMSprop": [{}, {"centered": True, "momentum": 0.9}], "Rprop": [{}, {"etas": (0.3, 1.5)}],
    "ASGD": [{"t0": 0, "lambd": 0.01}], "Adafactor": [{"weight_decay": 0.1}], "Muon": [{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}]}


def case(table=None):
    def keep(make):
        CASES[make.__name__] = make
        if table is not None:
            table[make.__name__] = make
        return make

    return keep


def model(bias=True):
    return nn.Sequential(nn.Linear(6, 12, bias=bias), nn.Tanh(), nn.Linear(12, 3, bias=bias))


def train(*pairs, steps=3, closure=False):
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, 0.9) for _, o in pairs]
    for _ in range(steps):
        for net, optimizer in pairs:
            x, y = torch.randn(8, 6), torch.randn(8, 3)

            def loss(clips=False):
                optimizer.zero_grad()
                value = F.mse_loss(net(x), y)
                value.backward()
                if clips:
                    nn.utils.clip_grad_norm_(net.parameters(), 0.05)
                return value

            if closure:
                optimizer.step(lambda: loss(clips=True))
            else:
                loss()
                optimizer.step()
        for schedule in schedules:
            schedule.step()


@case()
def every_optimizer():
    pairs = []
    for name, variants in VARIANTS.items():
        cls = getattr(torch.optim, name, None)
        for options in variants if cls else []:
            known = inspect.signature(cls).parameters
            if not all(k in known for k in options):
                continue
            for extra in ({}, {"foreach": True}, {"fused": True}):
                if all(k in known for k in extra):
                    net = model(bias=name != "Muon")
                    pairs.append((net, cls(net.parameters(), lr=0.01, **options, **extra)))
    train(*pairs)


@case()
def gradients_that_a_closure_clips():
    net = model()
    train((net, torch.optim.AdamW(net.parameters(), 0.01)), closure=True)


@case()
def a_wrapper():
    """As accelerate's: it holds the optimizer's groups, and calls its step."""
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner, self.param_groups, self.state, self.defaults = inner, inner.param_groups, inner.state, inner.defaults

        def step(self, closure=None):
            self.inner.step()

        def zero_grad(self, set_to_none=True):
            self.inner.zero_grad(set_to_none)

    net = model()
    inner = torch.optim.Adam(net.parameters(), 0.01)
    outer = Wrapper(inner)
    for _ in range(3):
        outer.zero_grad()
        F.mse_loss(net(torch.randn(8, 6)), torch.randn(8, 3)).backward()
        outer.step()


@case()
def hooks():
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    optimizer.register_step_pre_hook(lambda *_: print(nn.utils.clip_grad_norm_(net.parameters(), 0.05)))
    train((net, optimizer))


def halves(cached):
    """Autocast's cache of casts lives as long as its region; what is added up for a metric keeps its graph."""
    net, total = model(), 0
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with torch.autocast("cpu", torch.bfloat16, enabled=cached):
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
                loss = net(torch.randn(8, 6)).float().pow(2).mean()
            loss.backward()
            optimizer.step()
            total = total + loss


@case()
def a_cast_in_each_step():
    halves(False)


@case()
def a_cast_around_the_loop():
    halves(True)


def micro_batches(divide, clip=None, clear=None):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(4):
            loss = F.mse_loss(net(torch.randn(2, 6)), torch.randn(2, 3))
            if clear is not None:
                optimizer.zero_grad(set_to_none=clear)
            (loss / divide if divide else loss).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()


@case()
def micro_batches_that_are_averaged():
    micro_batches(4)


@case()
def micro_batches_that_are_averaged_and_clipped():
    micro_batches(4, clip=0.01)


@case()
def micro_batches_that_are_added_and_clipped():
    micro_batches(None, clip=0.01)


@case()
def micro_batches_that_are_cleared():
    micro_batches(None, clear=True)


@case()
def micro_batches_that_are_zeroed():
    micro_batches(None, clear=False)


@case()
def micro_batches_that_are_added():
    micro_batches(None)


@case()
def a_loss_of_stretched_tensors():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        F.mse_loss(net(torch.randn(8, 6))[:, :1], torch.randn(8)).backward()
        optimizer.step()


def clipped_under_a_scaler(unscales):
    net = model()
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(F.mse_loss(net(torch.randn(8, 6)), torch.randn(8, 3))).backward()
        if unscales:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()


@case()
def clipped_while_scaled():
    clipped_under_a_scaler(False)


@case()
def clipped_after_unscaling():
    clipped_under_a_scaler(True)


# As a wrong release would be

def adam(change, **options):
    """Adam with a wrong `_single_tensor_adam`; `change` alters its parts."""
    parts = {"correct": lambda beta, t: 1 - beta**t, "root": lambda v, eps: v.sqrt() + eps, "count": lambda t: t, "decays": True, "keeps": True,
             "rate": 1, **change}

    def wrong(params, grads, m, v, most, steps, *_, amsgrad, beta1, beta2, lr, weight_decay, eps, **__):
        for i, p in enumerate(params):
            steps[i] += 1
            t = parts["count"](steps[i].item())
            g = grads[i].add(p, alpha=weight_decay) if weight_decay and parts["decays"] else grads[i]
            m[i].lerp_(g, 1 - beta1)
            v[i].mul_(beta2).addcmul_(g, g, value=1 - beta2)
            second = v[i]
            if amsgrad:
                second = torch.maximum(most[i], v[i])
                if parts["keeps"]:
                    most[i].copy_(second)
            c1, c2 = parts["correct"](beta1, t), parts["correct"](beta2, t)
            p.addcdiv_(m[i], parts["root"](second / c2, eps), value=-lr * parts["rate"] / c1)

    sys.modules["torch.optim.adam"]._single_tensor_adam = wrong
    net = model()
    train((net, torch.optim.Adam(net.parameters(), 0.01, foreach=False, **options)))


@case(WRONG)
def without_bias_correction():
    adam({"correct": lambda beta, t: 1})


@case(WRONG)
def epsilon_under_the_square_root():
    adam({"root": lambda v, eps: (v + eps).sqrt()})


@case(WRONG)
def one_behind():
    adam({"count": lambda t: max(t - 1, 1)})


@case(WRONG)
def one_ahead():
    adam({"count": lambda t: t + 1})


@case(WRONG)
def without_its_weight_decay():
    adam({"decays": False}, weight_decay=0.1)


@case(WRONG)
def without_keeping_the_largest():
    adam({"keeps": False}, amsgrad=True)


@case(WRONG)
def update_is_2_times():
    adam({"rate": 2})


@case(WRONG)
def other_form_of_weight_decay():
    """Decoupled where it is to be coupled."""
    net = model()

    # The first step does not tell: w - lr (g + d w) is w (1 - lr d) - lr g.
    def wrong(params, grads, buffers, *_, weight_decay, momentum, lr, **__):
        for i, p in enumerate(params):
            p.mul_(1 - lr * weight_decay)
            buffers[i] = grads[i].clone() if buffers[i] is None else buffers[i].mul_(momentum).add_(grads[i])
            p.add_(buffers[i], alpha=-lr)

    sys.modules["torch.optim.sgd"]._single_tensor_sgd = wrong
    train((net, torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=0.1, foreach=False)))


# The script's own

class Mine(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, corrects=True, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self.corrects = corrects

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (b1, b2), eps = group["betas"], group["eps"]
            for p in group["params"]:
                s = self.state[p]
                if not s:
                    s.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                s["t"] += 1
                s["m"].mul_(b1).add_(p.grad, alpha=1 - b1)
                s["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                c1, c2 = (1 - b1**s["t"], 1 - b2**s["t"]) if self.corrects else (1, 1)
                p.addcdiv_(s["m"] / c1, (s["v"] / c2).sqrt().add_(eps), value=-group["lr"])


@case()
def of_the_script():
    net = model()
    train((net, Mine(net.parameters())))


@case()
def of_the_script_by_another_name():
    class MyAdamW(Mine):
        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad.add_(p, alpha=group.setdefault("weight_decay", 0.1))
            super().step()

    net = model()
    train((net, MyAdamW(net.parameters())))


@case()
def of_the_script_without_correction():
    net = model()
    train((net, Mine(net.parameters(), corrects=False)))


@case()
def of_the_script_and_unknown():
    class Lion(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_((0.9 * m + 0.1 * p.grad).sign_(), alpha=-self.param_groups[0]["lr"])
                m.mul_(0.99).add_(p.grad, alpha=0.01)

    net = model()
    train((net, Lion(net.parameters(), 0.01)))


def steps_of(net, optimizer=None, same=False, output=lambda net, x: net(x), after=lambda net: None):
    optimizer = optimizer or torch.optim.Adam(net.parameters(), 0.01)
    batch = torch.randn(8, 6)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(output(net, batch if same else torch.randn(8, 6)), torch.zeros(8, 3)).backward()
        optimizer.step()
        after(net)


@case()
def clipped_too_late():
    steps_of(model(), after=lambda net: nn.utils.clip_grad_norm_(net.parameters(), 0.1))


@case()
def clamped_weights():
    steps_of(model(), after=lambda net: net[2].weight.data.clamp_(-0.1, 0.1))


@case()
def frozen_weights():
    net = model()
    net[0].requires_grad_(False)
    steps_of(net)


@case()
def a_closure_that_logs_without_gradients():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        x = torch.randn(8, 6)

        def closure():
            loss = F.mse_loss(net(x), torch.zeros(8, 3))
            with torch.no_grad():
                loss.clone()
            optimizer.zero_grad()
            loss.backward()
            return loss

        optimizer.step(closure)


@case()
def no_gradient_at_all():
    steps_of(model(), output=lambda net, x: net(x).detach().requires_grad_())


@case()
def a_copy_of_the_model():
    net = model()
    steps_of(copy.deepcopy(net), torch.optim.Adam(net.parameters(), 0.01))


@case()
def another_last_layer():
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    net[2] = nn.Linear(12, 3)
    steps_of(net, optimizer)


@case()
def a_part_of_the_model():
    net = model()
    steps_of(net, torch.optim.Adam(net[2].parameters(), 0.01))


@case()
def one_optimizer_for_each():
    """Which steps as soon as its weight has a gradient."""
    net = model()
    optimizers = {p: torch.optim.SGD([p], 0.01) for p in net.parameters()}

    def steps(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in optimizers:
        p.register_post_accumulate_grad_hook(steps)
    for i in range(3):
        net(torch.randn(8, 6)).pow(2).mean().backward()


@case()
def memory_that_nobody_saw():
    """A gradient is changed past PyTorch, before an optimizer of the script reads it."""
    net = model()
    mine = Mine(net.parameters())
    for i in range(3):
        mine.zero_grad()
        net(torch.randn(8, 6)).pow(2).mean().backward()
        ctypes.memset(net[0].weight.grad.data_ptr(), 0, 16)
        mine.step()


@case()
def a_part_that_is_detached():
    steps_of(model(), output=lambda net, x: net[2](net[1](net[0](x)).detach()))


@case()
def one_batch():
    steps_of(model(), same=True)


@case()
def evaluation_mode():
    steps_of(nn.Sequential(model(), nn.BatchNorm1d(3)).eval())


@case()
def dropout_that_is_off():
    steps_of(nn.Sequential(model(), nn.Dropout(0.1)).eval())


@case()
def a_kept_copy():
    kept = []

    def output(net, x):
        kept[:] = kept or [net[2].weight.detach().clone()]
        live = net(x)
        return live + (net[1](net[0](x)) @ kept[0].t() - live).detach()

    steps_of(model(), output=output)


def main(name, trace=None):
    if trace is None:
        return CASES[name]()
    import twinrun
    from twinrun import older

    older.needed = lambda: True
    with twinrun.watch(trace, steps=3):
        CASES[name]()


if __name__ == "__main__":
    main(*sys.argv[1:])
