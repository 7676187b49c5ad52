"""Update rules of the PyTorch engine of this folder: by hand from docs/reference/formulas.md, and torch.optim's as they are."""
import numpy as np
import torch
from shared import updates_made

# ---- update rules: function(engine, settings, w, g, slots, now) -> (w', slots'); now: rate, counters, first, name, hidden -----------

def sgd(e, o, w, g, s, now):
    return w - now.rate * g, {}


def momentum(e, o, w, g, s, now):
    m = e.number("momentum_", o["momentum"])
    if e.has("momentum_complement"):
        m = 1 - m
    added = g * (1 - m) if e.has("momentum_dampened") else now.rate * g if e.has("momentum_has_the_rate") else g
    a = m * s["momentum"] + added
    nesterov = (o["nesterov"] or e.has("nesterov_added")) and not e.has("nesterov_missing")
    step = added + m * a if nesterov else a
    return w - (step if e.has("momentum_has_the_rate") else now.rate * step), {"momentum": a}


def corrections(e, o, now, prefix):
    """1 - beta1^t and 1 - beta2^t of this update, in 32 bits."""
    p1 = now.counters[prefix + "/beta1_power"]
    t = updates_made(o["beta1"], p1) + 1
    p2 = now.counters.get(prefix + "/beta2_power", np.float32(0))
    beta2 = e.number("adam_beta2_", o["beta2"])
    if beta2 != o["beta2"]:
        p2 = np.float32(beta2 ** t)
    beta1 = e.number("adam_beta1_", o["beta1"])
    if beta1 != o["beta1"]:
        p1 = np.float32(beta1 ** t)
    if e.has("bias_correction_one_step_ahead"):
        p1, p2 = np.float32(p1 * np.float32(beta1)), np.float32(p2 * np.float32(beta2))
    if e.has("bias_correction_always_of_the_first_step"):
        p1, p2 = np.float32(beta1), np.float32(beta2)
    first, second = float(np.float32(1) - p1), float(np.float32(1) - p2)
    if e.has("no_bias_correction"):
        return 1.0, 1.0
    if e.has("only_first_bias_corrected"):
        return first, 1.0
    if e.has("only_second_bias_corrected"):
        return 1.0, second
    return first, second


def decays(e, w):
    """Whether the script's weight decay holds for this parameter."""
    return w.dim() >= 2 or not e.has("weight_decay_on_kernels_only")


def adam(e, o, w, g, s, now):
    beta1, beta2 = e.number("adam_beta1_", o["beta1"]), e.number("adam_beta2_", o["beta2"])
    epsilon, decay = e.number("adam_epsilon_", o["epsilon"]), e.number("weight_decay_of_", o.get("weight_decay", 0))
    decay = decay if decays(e, w) and not e.has("weight_decay_missing") else 0
    if decay and e.has("weight_decay_coupled"):
        g = g + decay * w
    elif decay and e.has("weight_decay_not_times_rate"):
        w = w - decay * w
    elif decay:
        w = w - (w * decay) * now.rate
    m = s["adam_m"] + (g - s["adam_m"]) * (1 - beta1)
    v = s["adam_v"] + (g * g - s["adam_v"]) * (1 - beta2)
    first, second = corrections(e, o, now, "adam")
    below = v
    if e.has("amsgrad"):
        below = now.hidden["largest", now.name] = torch.maximum(now.hidden.get(("largest", now.name), s["adam_v"]), v)
    if e.has("adam_epsilon_after_correction"):
        step = now.rate / first * m / (torch.sqrt(below) / second ** 0.5 + epsilon)
    elif e.has("adam_epsilon_inside_root"):
        step = now.rate * second ** 0.5 / first * m / torch.sqrt(below + epsilon)
    elif e.has("adam_epsilon_inside_root_after_correction"):
        step = now.rate / first * m / torch.sqrt(below / second + epsilon)
    else:
        ahead = beta1 * m + (1 - beta1) * g if e.has("nadam_for_adam") else m
        step = ahead * (now.rate * second ** 0.5 / first) / (torch.sqrt(below) + epsilon)
    return w - step, {"adam_m": m, "adam_v": v}


def adamax(e, o, w, g, s, now):
    m = s["adamax_m"] + (g - s["adamax_m"]) * (1 - o["beta1"])
    size = g.abs() + o["epsilon"] if e.has("adamax_epsilon_before_maximum") else g.abs()
    v = torch.maximum(o["beta2"] * s["adamax_v"], size)
    first = corrections(e, o, now, "adamax")[0]
    epsilon = 0 if e.has("adamax_epsilon_before_maximum") else e.number("adamax_epsilon_", o["epsilon"])
    return w - m / (v + epsilon) * (now.rate / first), {"adamax_m": m, "adamax_v": v}


def adagrad(e, o, w, g, s, now):
    a = s["accumulator"]
    if e.has("adagrad_starts_at_zero") and now.first:
        a = torch.zeros_like(a)
    a, epsilon = a + g * g, e.number("adagrad_epsilon_", o["epsilon"])
    below = torch.sqrt(a + epsilon) if e.has("adagrad_epsilon_inside_root") else torch.sqrt(a) + epsilon
    return w - now.rate * g / below, {"accumulator": a}


def adadelta(e, o, w, g, s, now):
    rho, epsilon = e.number("adadelta_rho_", o["rho"]), e.number("adadelta_epsilon_", o["epsilon"])
    a = rho * s["accum"] + (1 - rho) * g * g
    if e.has("adadelta_epsilon_outside_roots"):
        u = (torch.sqrt(s["accum_update"]) + epsilon) / (torch.sqrt(a) + epsilon) * g
    else:
        u = torch.sqrt(s["accum_update"] + epsilon) * torch.rsqrt(a + epsilon) * g
    rate = 1.0 if e.has("adadelta_without_rate") else now.rate
    return w - rate * u, {"accum": a, "accum_update": rho * s["accum_update"] + (1 - rho) * u * u}


def rmsprop(e, o, w, g, s, now):
    rho, epsilon = e.number("rmsprop_rho_", o["rho"]), e.number("rmsprop_epsilon_", o["epsilon"])
    rms = torch.zeros_like(w) if e.has("rmsprop_starts_at_zero") and now.first else s["rms"]
    after = {"rms": rms + (g * g - rms) * (1 - rho)}
    below = after["rms"]
    if o["centered"]:
        after["mg"] = s["mg"] + (g - s["mg"]) * (1 - rho)
        if not e.has("rmsprop_not_centered"):
            below = below - after["mg"] * after["mg"]
    root = torch.sqrt(below) + epsilon if e.has("rmsprop_epsilon_outside_root") else torch.sqrt(below + epsilon)
    if e.has("rmsprop_rate_outside_momentum"):
        after["momentum"] = o["momentum"] * s["momentum"] + g / root
        return w - now.rate * after["momentum"], after
    after["momentum"] = o["momentum"] * s["momentum"] + now.rate * g / root
    return w - after["momentum"], after


def lamb(e, o, w, g, s, now):
    m = o["beta1"] * s["lamb_m"] + (1 - o["beta1"]) * g
    v = o["beta2"] * s["lamb_v"] + (1 - o["beta2"]) * g * g
    first, second = corrections(e, o, now, "lamb")
    epsilon, decay = e.number("lamb_epsilon_", o["epsilon"]), o["weight_decay"] if decays(e, w) else 0
    root = torch.sqrt(v / second + epsilon) if e.has("lamb_epsilon_inside_root") else torch.sqrt(v / second) + epsilon
    u = m / first / root
    with_decay = u + decay * w
    wn, un = torch.sqrt((w * w).sum()), torch.sqrt(((u if e.has("lamb_norm_without_decay") else with_decay) ** 2).sum())
    trust = torch.where((wn > 0) & (un > 0), wn / un, torch.ones(()))
    if e.has("lamb_trust_ratio_missing"):
        trust = torch.ones(())
    if e.has("lamb_trust_at_most_one"):
        trust = trust.clamp(max=1.0)
    return w - with_decay * (trust * now.rate), {"lamb_m": m, "lamb_v": v}


RULES = {f.__name__: f for f in (sgd, momentum, adam, adamax, adagrad, adadelta, rmsprop, lamb)} | {"adamw": adam}

# ---- torch.optim as it is, with the scenario's numbers ---------------------------------------------------------------------------

OPTIM = {
    "sgd": (lambda p, o: torch.optim.SGD(p, lr=1.0), {}),
    "momentum": (lambda p, o: torch.optim.SGD(p, lr=1.0, momentum=o["momentum"], nesterov=o["nesterov"]), {"momentum": "momentum_buffer"}),
    "adam": (lambda p, o: torch.optim.Adam(p, betas=(o["beta1"], o["beta2"]), eps=o["epsilon"]), {"adam_m": "exp_avg", "adam_v": "exp_avg_sq"}),
    "adamw": (lambda p, o: torch.optim.AdamW(p, betas=(o["beta1"], o["beta2"]), eps=o["epsilon"], weight_decay=o["weight_decay"]),
              {"adam_m": "exp_avg", "adam_v": "exp_avg_sq"}),
    "adamax": (lambda p, o: torch.optim.Adamax(p, betas=(o["beta1"], o["beta2"]), eps=o["epsilon"]),
               {"adamax_m": "exp_avg", "adamax_v": "exp_inf"}),
    "adagrad": (lambda p, o: torch.optim.Adagrad(p, eps=o["epsilon"]), {"accumulator": "sum"}),
    "adadelta": (lambda p, o: torch.optim.Adadelta(p, rho=o["rho"], eps=o["epsilon"]), {"accum": "square_avg", "accum_update": "acc_delta"}),
    "rmsprop": (lambda p, o: torch.optim.RMSprop(p, alpha=o["rho"], eps=o["epsilon"], momentum=o["momentum"], centered=o["centered"]),
                {"rms": "square_avg", "mg": "grad_avg", "momentum": "momentum_buffer"}),
}


def by_torch_optim(o, w, g, s, now):
    make, slots = OPTIM[o["kind"]]
    w = w.clone().requires_grad_()
    w.grad = g
    optimizer = make([w], o)
    power = next(iter(now.counters.values()), None)
    made = 0 if power is None else updates_made(o["beta1"], power)
    optimizer.state[w] = {theirs: s[ours].clone() for ours, theirs in slots.items() if ours in s} and {
        "step": torch.tensor(float(made)), **{theirs: s[ours].clone() for ours, theirs in slots.items() if ours in s}}
    optimizer.param_groups[0]["lr"] = float(now.rate)
    optimizer.step()
    after = {ours: optimizer.state[w].get(theirs, torch.zeros_like(w)) for ours, theirs in slots.items() if ours in s}
    return w.detach(), after
