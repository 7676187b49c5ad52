"""A small engine in PyTorch for the subject's chair, healthy or with a program that differs from the scenario's: --variant.

    twinrun diagnose drill_mlp --set tpu.cores=1 --subject 'exec:python3 tests/programs/torch_engine.py --variant nesterov_added'

Layers, losses and update rules are written here by hand from docs/method/numerics.md and docs/reference/formulas.md, or are torch.optim's where a
variant is that somebody took these as they are. Every variant is a few words of code at the place where such a mistake is made.
"""
import pathlib
import sys
import types

sys.path.append(str(pathlib.Path(__file__).resolve().parent))

from shared import Base, arguments, first_layer, last_bias, same_pads  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch_rules import RULES, by_torch_optim  # noqa: E402
from twinrun_engine import serve  # noqa: E402

torch.set_num_threads(1)
LAYERS = ("dense", "conv2d", "max_pool", "avg_pool", "global_avg_pool", "flatten", "relu", "leaky_relu", "gelu", "silu", "sigmoid", "tanh",
          "batch_norm", "layer_norm", "group_norm", "dropout", "embedding", "position_embedding", "attention", "masked_mean", "add")
LOSSES = ("softmax_cross_entropy", "sigmoid_cross_entropy", "mean_squared_error")


class Forward:
    """One forward pass of all cores, layer by layer in step, so that batch norm can look across them. Images are NCHW."""

    def __init__(self, engine, program, step, params, stats, fed, random):
        self.e, self.program, self.step_number, self.params, self.stats = engine, program, step, params, stats
        self.weights, self.random, self.cores = fed.get("weights"), random, program.cores
        self.features = fed["tokens" if "tokens" in fed else "images"]
        self.moved = [{} for _ in params]    # statistics after the step, by core
        self.frozen = first_layer(program)

    def run(self):
        x = self.features
        values = {"data": [x[r].permute(0, 3, 1, 2) if x.dim() == 5 else x[r] for r in range(self.cores)]}
        previous = "data"
        for layer in self.program.layers:
            inputs = [values[name] for name in layer.get("input") or [previous]]
            previous = layer["name"]
            if layer["kind"] == "batch_norm":
                found = self.batch_norm(layer, inputs[0])
            else:
                function = getattr(self, layer["kind"])
                found = [function(layer, r, *(x[r] for x in inputs)) for r in range(self.cores)]
            mask = self.e.mask(self.step_number, previous, tuple(found[0].shape))
            if mask is not None:
                found = [y * torch.from_numpy(mask) for y in found]
            if self.e.has("gradient_stopped") and previous == self.frozen:
                found = [y.detach() for y in found]
            values[previous] = found
        return values[previous]

    def own(self, layer, r, part):
        return self.params[r].get(f"{layer['name']}/{part}")

    # ---- products

    def product(self, x, w):
        """x @ w in the order of sums that was asked for."""
        order, k = self.e.order, x.shape[-1]
        if order == "reversed":
            return x.flip(-1) @ w.flip(0)
        if order == "split" and k > 1:
            return x[..., : k // 2] @ w[: k // 2] + x[..., k // 2:] @ w[k // 2:]
        if order == "tree" and k > 128:
            return self.product(x[..., : k // 2], w[: k // 2]) + self.product(x[..., k // 2:], w[k // 2:])
        return x @ w

    def dense(self, layer, r, x):
        y = self.product(x, self.own(layer, r, "kernel"))
        bias = self.own(layer, r, "bias")
        if bias is None or (self.e.has("bias_missing") and layer["name"] == self.frozen):
            return y
        return y + bias

    def pads(self, layer, x, size):
        """F.pad's list: left, right, top, bottom."""
        stride = layer["stride"] or layer.get("window", 1)
        convolution = layer["kind"] == "conv2d"
        if layer["padding"] == "valid" or (convolution and self.e.has("conv_padding_valid")):
            return [0, 0, 0, 0]
        if convolution and self.e.has("conv_padding_symmetric"):
            return [size // 2] * 4
        if not convolution and self.e.has("pool_padding_symmetric"):
            return [size // 2] * 4
        return [p for axis in (3, 2) for p in same_pads(x.shape[axis], size, stride)]

    def conv2d(self, layer, r, x):
        w = self.own(layer, r, "kernel").permute(3, 2, 0, 1)
        if self.e.has("kernels_flipped"):
            w = w.flip(2, 3)
        if self.e.has("kernels_transposed"):
            w = w.transpose(2, 3)
        x = F.pad(x, self.pads(layer, x, layer["kernel"]))
        stride = layer["stride"] or 1
        if self.e.order == "reversed":
            y = F.conv2d(x.flip(1), w.flip(1), None, stride)
        elif self.e.order in ("split", "tree") and x.shape[1] > 1:
            half = x.shape[1] // 2
            y = F.conv2d(x[:, :half], w[:, :half], None, stride) + F.conv2d(x[:, half:], w[:, half:], None, stride)
        else:
            y = F.conv2d(x, w, None, stride)
        return y + self.own(layer, r, "bias")[:, None, None] if layer["bias"] else y

    # ---- pools and shapes

    def max_pool(self, layer, r, x):
        if self.e.has("avg_for_max_pool"):
            return self.average(layer, x)
        stride = layer["stride"] or layer["window"]
        fill = 0.0 if self.e.has("max_pool_pads_zeros") else -torch.inf
        return F.max_pool2d(F.pad(x, self.pads(layer, x, layer["window"]), value=fill), layer["window"], stride)

    def average(self, layer, x):
        pads, stride = self.pads(layer, x, layer["window"]), layer["stride"] or layer["window"]
        total = F.avg_pool2d(F.pad(x, pads), layer["window"], stride)
        if self.e.has("avg_pool_counts_padding"):
            return total
        return total / F.avg_pool2d(F.pad(torch.ones_like(x[:1, :1]), pads), layer["window"], stride)

    def avg_pool(self, layer, r, x):
        if self.e.has("max_for_avg_pool"):
            return F.max_pool2d(F.pad(x, self.pads(layer, x, layer["window"]), value=-torch.inf), layer["window"],
                                layer["stride"] or layer["window"])
        return self.average(layer, x)

    def global_avg_pool(self, layer, r, x):
        if self.e.has("global_max_for_avg_pool"):
            return x.amax((2, 3)) if x.dim() == 4 else x.amax(1)
        return x.mean((2, 3)) if x.dim() == 4 else x.mean(1)

    def flatten(self, layer, r, x):
        if x.dim() == 4 and not self.e.has("flatten_channels_first"):
            x = x.permute(0, 2, 3, 1)
        return x.reshape(x.shape[0], -1)

    def add(self, layer, r, *xs):
        return xs[-1] if self.e.has("residual_missing") else sum(xs[1:], xs[0])

    # ---- activations

    def relu(self, layer, r, x):
        return F.relu6(x) if self.e.has("relu6_for_relu") else F.relu(x)

    def leaky_relu(self, layer, r, x):
        return F.leaky_relu(x, self.e.number("leaky_relu_slope_", layer["slope"]))

    def gelu(self, layer, r, x):
        if self.e.has("gelu_quick"):
            return x * torch.sigmoid(1.702 * x)
        tanh = (layer["approximate"] or self.e.has("gelu_tanh")) and not self.e.has("gelu_erf")
        return F.gelu(x, approximate="tanh" if tanh else "none")

    def silu(self, layer, r, x):
        return F.relu(x) if self.e.has("relu_for_silu") else F.silu(x)

    def sigmoid(self, layer, r, x):
        return torch.clamp(0.2 * x + 0.5, 0, 1) if self.e.has("hard_sigmoid") else torch.sigmoid(x)

    def tanh(self, layer, r, x):
        return torch.tanh(x)

    # ---- normalization

    def batch_norm(self, layer, xs):
        name, e, dims = layer["name"], self.e, [0, 2, 3] if xs[0].dim() == 4 else [0]
        synced = self.cores > 1 and self.program.sharding["batchnorm"] == "synced"
        means = [x.mean(dims) for x in xs]
        if synced:
            means = [sum(means) / self.cores] * self.cores
        shape = [1, -1, 1, 1] if xs[0].dim() == 4 else [1, -1]
        centred = [x - m.reshape(shape) for x, m in zip(xs, means)]
        variances = [(c * c).mean(dims) for c in centred]
        if synced:
            variances = [sum(variances) / self.cores] * self.cores
        n = xs[0].numel() // xs[0].shape[1] * (self.cores if synced else 1)
        kept = e.number("batch_norm_momentum_", layer["momentum"])
        if e.has("batch_norm_momentum_complement"):
            kept = 1 - kept
        unbiased = xs[0].dim() == 4
        if e.has("batch_norm_running_variance_biased"):
            unbiased = False
        if e.has("batch_norm_running_variance_unbiased"):
            unbiased = True
        found = []
        for r, x in enumerate(xs):
            mean, variance, centre = means[r], variances[r], centred[r]
            old_mean, old_variance = (self.stats[r][f"{name}/{part}"] for part in ("moving_mean", "moving_variance"))
            running = variance * (n / max(1, n - 1)) if unbiased else variance
            moves = not e.has("batch_norm_statistics_frozen", "batch_norm_in_eval_mode")
            self.moved[r][f"{name}/moving_mean"] = kept * old_mean + (1 - kept) * mean if moves else old_mean
            self.moved[r][f"{name}/moving_variance"] = kept * old_variance + (1 - kept) * running if moves else old_variance
            if e.has("batch_norm_in_eval_mode"):
                centre, variance = x - old_mean.reshape(shape), old_variance
            scale = self.own(layer, r, "gamma") * torch.rsqrt(variance + e.number("batch_norm_epsilon_", layer["epsilon"]))
            found.append(centre * scale.reshape(shape) + self.own(layer, r, "beta").reshape(shape))
        return found

    def layer_norm(self, layer, r, x):
        e = self.e
        image = x.dim() == 4
        x = x.permute(0, 2, 3, 1) if image else x
        dims = (-2, -1) if e.has("layer_norm_over_tokens_too") and x.dim() == 3 else (-1,)
        centre = x - x.mean(dims, keepdim=True)
        variance = (centre * centre).mean(dims, keepdim=True)
        if e.has("layer_norm_variance_unbiased"):
            variance = variance * (x.shape[-1] / (x.shape[-1] - 1))
        epsilon = e.number("layer_norm_epsilon_", layer["epsilon"])
        y = centre / (torch.sqrt(variance) + epsilon) if e.has("layer_norm_epsilon_outside") else centre * torch.rsqrt(variance + epsilon)
        y = y * self.own(layer, r, "gamma") + self.own(layer, r, "beta")
        return y.permute(0, 3, 1, 2) if image else y

    def group_norm(self, layer, r, x):
        n, channels, h, w = x.shape
        epsilon, groups = self.e.number("group_norm_epsilon_", layer["epsilon"]), layer["groups"]
        if self.e.has("group_norm_group_size_for_groups"):
            groups = channels // groups
        grouped = x.reshape(n, groups, -1)
        centre = grouped - grouped.mean(-1, keepdim=True)
        y = (centre * torch.rsqrt((centre * centre).mean(-1, keepdim=True) + epsilon)).reshape(x.shape)
        return y * self.own(layer, r, "gamma")[:, None, None] + self.own(layer, r, "beta")[:, None, None]

    def dropout(self, layer, r, x):
        if self.e.has("dropout_off"):
            return x
        u, rate = self.random[layer["name"] + "/rng_uniform"][r], layer["rate"]
        u = u.permute(0, 3, 1, 2) if u.dim() == 4 else u
        if self.e.has("dropout_keep_for_rate"):
            rate = 1 - rate
        y = torch.where(u >= float(np.float32(rate)), x, x.new_zeros(()))
        return y if self.e.has("dropout_not_scaled") else y * float(np.float32(1 / (1 - rate)))

    # ---- sequences

    def embedding(self, layer, r, x):
        table = self.own(layer, r, "embeddings")
        y = F.embedding(x.long(), table, padding_idx=0 if self.e.has("embedding_padding_row_frozen") else None)
        return y * layer["units"] ** 0.5 if self.e.has("embedding_times_root_of_units") else y

    def position_embedding(self, layer, r, x):
        return x if self.e.has("position_embedding_missing") else x + self.own(layer, r, "embeddings")

    def attention(self, layer, r, x):
        e, (batch, tokens, units), heads = self.e, x.shape, layer["heads"]
        size = units // heads

        def project(which, y):
            y = self.product(y, self.params[r][f"{layer['name']}/{which}/kernel"])
            return y + self.params[r][f"{layer['name']}/{which}/bias"] if layer["bias"] else y

        def split(y):
            if e.has("heads_interleaved"):
                return y.reshape(batch, tokens, size, heads).permute(0, 3, 1, 2)
            return y.reshape(batch, tokens, heads, size).permute(0, 2, 1, 3)

        q, k, v = (split(project(which, x)) for which in ("query", "key", "value"))
        divisor = 1.0 if e.has("attention_unscaled") else units ** 0.5 if e.has("attention_scaled_by_all_units") else size ** 0.5
        scores = q @ k.transpose(2, 3) / divisor
        if layer["causal"] and not e.has("causal_mask_missing"):
            scores = scores.masked_fill(torch.ones(tokens, tokens).triu(0 if e.has("causal_mask_strict") else 1).bool(), -1e9)
        if layer["masked"] and not e.has("padding_mask_missing"):
            scores = scores.masked_fill(self.weights[r][:, None, None, :] == 0, -1e9)
        mixed = torch.softmax(scores, -1) @ v
        mixed = mixed.permute(0, 2, 3, 1) if e.has("heads_interleaved") else mixed.permute(0, 2, 1, 3)
        return project("output", mixed.reshape(batch, tokens, units))

    def masked_mean(self, layer, r, x):
        if self.e.has("mean_over_padding_too"):
            return x.mean(1)
        w = self.weights[r]
        return (x * w[..., None]).sum(1) / w.sum(1, keepdim=True)


def loss_of(e, program, logits, labels, weights, divisor):
    """A core's loss, without the L2 term. divisor: of a weighted mean."""
    loss, classes = program.loss, logits.shape[-1]
    smoothing = e.number("label_smoothing_", loss.get("smoothing", 0))
    if e.has("label_smoothing_missing"):
        smoothing = 0.0
    target = F.one_hot(labels, classes).float()
    target = (target * (1 - smoothing) + (1 - target) * (smoothing / (classes - 1)) if e.has("label_smoothing_on_the_others")
              else target * (1 - smoothing) + smoothing / classes)
    if loss["kind"] == "softmax_cross_entropy":
        if e.has("softmax_twice"):
            logits = torch.softmax(logits, -1)
        per_item = -(target * torch.log_softmax(logits, -1)).sum(-1)
        if e.has("loss_mean_over_classes"):
            per_item = per_item / classes
    elif loss["kind"] == "sigmoid_cross_entropy":
        per_item = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        per_item = per_item.sum(-1) if e.has("loss_summed_over_classes") else per_item.mean(-1)
    else:
        squares = (logits - target) ** 2
        per_item = squares.sum(-1) if e.has("loss_summed_over_classes") else squares.mean(-1)
        if e.has("squared_error_halved"):
            per_item = per_item / 2
    if e.has("label_zero_ignored"):
        counted = (labels != 0).float()
        return (per_item * counted).sum() / counted.sum().clamp(min=1)
    mean = (loss["reduction"] == "mean" and not e.has("loss_summed")) or e.has("loss_averaged")
    if loss.get("weights", "none") != "none" and not e.has("loss_weights_ignored"):
        w = weights if per_item.dim() == 2 else weights.sum(1)
        return (w * per_item).sum() / divisor if mean else (w * per_item).sum()
    return per_item.mean() if mean else per_item.sum()


def l2_term(e, program, params):
    """What the loss gets beside itself."""
    l2 = program.optimizer.get("l2", 0) * (2 if e.has("l2_doubled") else 1) * (0.5 if e.has("l2_halved") else 1)
    if l2 == 0 or e.has("l2_missing", "l2_in_the_optimizer"):
        return 0.0
    return l2 / 2 * sum((w * w).sum() for w in params.values() if w.dim() >= 2 or e.has("l2_on_all_parameters"))


def clipped(e, program, gradients):
    """{parameter: gradient}, clipped as the script has it."""
    kind, most = program.optimizer.get("clip", "none"), program.optimizer.get("clip_at", 1.0)
    kind = "none" if e.has("clip_missing") else next((k for k in ("value", "norm", "global_norm") if e.has(f"clip_by_{k}")), kind)
    if kind == "value":
        return {k: g.clamp(-most, most) for k, g in gradients.items()}
    norms = {k: torch.sqrt((g * g).sum()) for k, g in gradients.items()}
    if kind == "global_norm":
        norms = dict.fromkeys(norms, torch.sqrt(sum(n * n for n in norms.values())))
    if kind == "none":
        return gradients
    if e.has("clip_as_pytorch"):
        return {k: g * (most / (norms[k] + 1e-6)).clamp(max=1.0) for k, g in gradients.items()}
    return {k: g * (most / norms[k].clamp(min=most)) for k, g in gradients.items()}


class Engine(Base):
    def __init__(self, chosen):
        super().__init__("torch", chosen)

    def prepare(self, program):
        self.refuse(program, LAYERS, LOSSES, RULES)

    def step(self, program, step, state, inputs, random):
        if state is not None:
            rows = self.rows(program, state, program.state)
            program.own = types.SimpleNamespace(hidden=[{} for _ in range(program.cores)], state=[
                {k: torch.tensor(v[r]) for k, v in rows.items()} for r in range(program.cores)])
        before = program.own.state
        rate = self.rate(program, step, inputs)
        fed, random = self.feed(program, step, inputs, random)
        fed, random = ({k: torch.from_numpy(v) for k, v in part.items()} for part in (fed, random))
        losses, parts, stats = self.forward_and_backward(program, step, before, fed, random)
        gradients, sums, applies = self.reduce(program, step, before, parts)
        after = [self.update(program, step, before[r], gradients[r], rate, program.own.hidden[r], applies) for r in range(program.cores)]
        after = [{**old, **new, **sums[r], **stats[r]} for r, (old, new) in enumerate(zip(before, after))]
        if self.on_state:
            found = self.on_state(program, step, self.stacked(before), self.stacked(after))
            after = [{k: torch.tensor(v[r]) for k, v in found.items()} for r in range(program.cores)]
        program.own.state = after
        one = (lambda v: v[0]) if program.cores == 1 else (lambda v: v)
        outputs = {"loss": one(np.array(losses, np.float32))}
        outputs.update({f"{k}.grad": one(v) for k, v in self.stacked(gradients).items()})
        return {k: one(v) for k, v in self.stacked(after).items()}, outputs

    @staticmethod
    def stacked(rows):
        return {k: np.stack([np.asarray(row[k].detach()) for row in rows]) for k in rows[0]}

    def forward_and_backward(self, program, step, before, fed, random):
        params = [{k: v.clone().requires_grad_() for k, v in program.of_role("parameter", own).items()} for own in before]
        forward = Forward(self, program, step, params, before, fed, random)
        outputs = forward.run()
        weights = fed.get("weights", [None] * program.cores)
        divisors = [None if w is None else w.sum() for w in weights]
        if program.cores > 1 and "weights" in fed and program.sharding["token_mean"] == "global":
            divisors = [sum(divisors) / program.cores] * program.cores
        losses = [loss_of(self, program, outputs[r], fed["labels"][r].long(), weights[r], divisors[r]) + l2_term(self, program, params[r])
                  for r in range(program.cores)]
        scale = 1 / program.cores if program.sharding["reduction"] == "mean" else 1
        total = sum(losses) * scale * (1024 if self.has("loss_scale_left_in") else 1)
        names = list(params[0])
        found = torch.autograd.grad(total, [p[k] for p in params for k in names], allow_unused=True)
        parts = []
        for r, own in enumerate(params):
            mine = found[r * len(names):(r + 1) * len(names)]
            parts.append({k: torch.zeros_like(own[k]) if g is None else g for k, g in zip(names, mine)})
        if self.has("layer_frozen"):
            for part in parts:
                part.update({k: torch.zeros_like(g) for k, g in part.items() if k.split("/")[0] == forward.frozen})
        if self.on_parts:
            changed = self.on_parts(program, step, self.stacked(parts))
            parts = [{k: torch.tensor(v[r]) for k, v in changed.items()} for r in range(program.cores)]
        stats = [{k: v.detach() for k, v in moved.items()} for moved in forward.moved]
        return [float(loss.detach()) for loss in losses], parts, stats

    def reduce(self, program, step, before, parts):
        """(gradients as the optimizer takes them by core, their sums and counter after the step by core, whether there is an update)"""
        early = program.sharding.get("clipping") == "before_all_reduce" or self.has("clip_before_reduction")
        if program.cores > 1 and early:
            parts = [clipped(self, program, part) for part in parts]
        order = range(program.cores) if self.order != "reversed" else reversed(range(program.cores))
        order, total = list(order), {}
        for k in parts[0]:
            total[k] = parts[order[0]][k]
            for r in order[1:]:
                total[k] = total[k] + parts[r][k]
        gradients, sums, applies = [dict(total) for _ in parts], [{} for _ in parts], True
        every = program.scenario["train"].get("accumulate", 1)
        if every > 1 and not self.has("accumulation_ignored"):
            mean = program.scenario["train"]["accumulate_reduction"] == "mean"
            mean = (mean or self.has("accumulation_averaged")) and not self.has("accumulation_summed")
            count = before[0]["accumulate/step"] + 1
            applies = bool(count >= every)
            for r, own in enumerate(before):
                sums[r]["accumulate/step"] = torch.zeros_like(count) if applies else count
                for k, g in total.items():
                    so_far = own[f"{k}.gradient_sum"] + g
                    sums[r][f"{k}.gradient_sum"] = torch.zeros_like(so_far) if applies else so_far
                    gradients[r][k] = so_far / every if mean else so_far
        if program.cores == 1 or not early:
            gradients = [clipped(self, program, own) for own in gradients]
        if self.on_gradients:
            changed = self.on_gradients(program, step, self.stacked(gradients))
            gradients = [{k: torch.tensor(v[r]) for k, v in changed.items()} for r in range(program.cores)]
        return gradients, sums, applies

    def update(self, program, step, before, gradients, rate, hidden, applies):
        """What an update changes in a core's state."""
        o, after = program.optimizer, {}
        if not applies:
            return after
        counters = {k: np.float32(v) for k, v in program.of_role("counter", before).items() if not k.startswith("accumulate")}
        now = types.SimpleNamespace(rate=float(rate), counters=counters, first=step == 0, hidden=hidden)
        out = [k for k in gradients if k.split("/")[0] == first_layer(program)] if self.has("layer_left_out_of_optimizer") else (
            [last_bias(program)] if self.has("bias_left_out_of_optimizer") else [])
        for name, g in gradients.items():
            if name in out:
                continue
            w, now.name = before[name], name
            slots = {k.rsplit(".", 1)[1]: v for k, v in before.items() if k.startswith(name + ".")}
            if self.has("l2_in_the_optimizer") and w.dim() >= 2:
                g = g + o["l2"] * w
            if self.has("torch_optim"):
                w, slots = by_torch_optim(o, w, g, slots, now)
            else:
                w, slots = RULES[o["kind"]](self, o, w, g, slots, now)
            after[name] = w
            after.update({f"{name}.{slot}": v for slot, v in slots.items()})
            if f"{name}.ema" in before:
                kept = self.number("ema_decay_", o["ema"])
                average, new = before[f"{name}.ema"], before[name] if self.has("ema_of_weights_before_update") else w
                after[f"{name}.ema"] = average - (average - new) * (1 - kept)
        betas = {"beta1_power": o.get("beta1", 0), "beta2_power": o.get("beta2", 0)}
        for name, value in counters.items():
            after[name] = torch.tensor(np.float32(value * np.float32(betas[name.split("/")[1]])))
        return after


if __name__ == "__main__":
    options = arguments(__doc__.splitlines()[0])
    serve(Engine(options), options.folder)
