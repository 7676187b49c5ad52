"""Healthy engines of mixed precision, and the same engines with one planted fault, for mixed_precision.py. PyTorch uses the layers of
adapters/engines/pytorch, JAX those of adapters/engines/jax; the framework, or this file, decides what is rounded and where.

    python3 mixed_engine.py pytorch autocast [--declare WORD] [--fault KIND:TENSOR:SIZE] SESSION-FOLDER

What each precision does (pytorch; `jax` has f32, default, bf16):
    f32          no rounding
    tf32         operands of products rounded to 10 bits of mantissa, to nearest; tf32_conv: only of convolutions
    default      operands of products rounded to bfloat16
    high         each operand as the sum of two bfloat16 numbers, three products; high_dots: only of dots
    autocast     torch.autocast(bfloat16)
    float16      torch.autocast(float16) with a loss scale, by which the gradients are divided
    bf16         the model cast to bfloat16, its output and the loss in float32; weights and their gradients enter and leave as float32
    bf16_params  weights kept in bfloat16 besides a float32 copy that is updated; autocast in addition
"""
import argparse
import contextlib
import os
import pathlib
import socket
import sys
import types

ADAPTERS = pathlib.Path(__file__).resolve().parents[2] / "adapters"
sys.path.append(str(ADAPTERS))

from twinrun_engine import Unsupported, serve  # noqa: E402


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=("pytorch", "jax"))
    parser.add_argument("precision")
    parser.add_argument("--declare", default="null", help="the hello's precision; null: none")
    parser.add_argument("--gradients", choices=("bf16", "float16"), help="dtype that an all-reduce sends, and the hello's key for it")
    parser.add_argument("--fault", help="scale:TENSOR:X, element:TENSOR:X or core:TENSOR:X of a gradient")
    parser.add_argument("--scale", type=float, default=65536.0, help="loss scale, under float16")
    parser.add_argument("folder")
    return parser.parse_args(words)


def planted(fault, name, gradient):
    """Multiplies a gradient, or its largest element, by 1 + X."""
    kind, tensor, size = fault.split(":")
    if tensor != name:
        return gradient
    if kind == "scale":
        return gradient * (1 + float(size))
    flat = gradient.reshape(-1).clone()
    flat[flat.abs().argmax()] *= 1 + float(size)
    return flat.reshape(gradient.shape)


def pytorch(o):
    sys.path.insert(0, str(ADAPTERS / "engines/pytorch"))
    import models
    import numpy as np
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    def rounded(x, bits):
        """Rounds to the given number of bits of significand, to nearest, ties to even."""
        if not isinstance(x, torch.Tensor) or x.dtype != torch.float32:
            return x
        drop = 24 - bits
        b = x.contiguous().view(torch.int32)
        b = b + ((1 << (drop - 1)) - 1) + ((b >> drop) & 1)
        return ((b >> drop) << drop).view(torch.float32).reshape(x.shape)

    class Operands(TorchDispatchMode):
        """Rounds the operands of products, in the forward and in the backward pass."""

        def __init__(self, bits, dots=True, convolutions=True, parts=1):
            super().__init__()
            self.bits, self.parts = bits, parts
            a = torch.ops.aten
            self.of = {}
            if dots:
                self.of.update({a.mm.default: (0, 1), a.bmm.default: (0, 1), a.addmm.default: (1, 2), a.baddbmm.default: (1, 2)})
            if convolutions:
                self.of.update({a.convolution.default: (0, 1), a.convolution_backward.default: (0, 1, 2)})

        def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
            places, kwargs = self.of.get(function, ()), kwargs or {}
            if not places:
                return function(*args, **kwargs)
            if self.parts == 1:
                found = function(*[rounded(x, self.bits) if i in places else x for i, x in enumerate(args)], **kwargs)
                if function is torch.ops.aten.convolution_backward.default and found[2] is not None:
                    found = (*found[:2], args[0].sum((0, 2, 3)))    # a sum, not a product
                return found
            # With x = h + l for both operands, the product is h h + h l + l h, without a third summand.
            a, b = places[-2:]
            high = {i: rounded(args[i], 8) for i in (a, b)}
            low = {i: rounded(args[i] - high[i], 8) for i in (a, b)}
            total = None
            for x, y in ((low, high), (high, low), (high, high)):
                parts = list(args)
                parts[a], parts[b] = x[a], y[b]
                if total is not None and places[0] == 1:
                    parts[0] = torch.zeros_like(parts[0])
                one = function(*parts, **kwargs)
                total = one if total is None else total + one
            return total

    modes = {"tf32": dict(bits=11), "tf32_conv": dict(bits=11, dots=False), "default": dict(bits=8),
             "high_dots": dict(bits=16, convolutions=False, parts=3), "high": dict(bits=16, convolutions=False, parts=3)}

    class Training(models.Training):
        """Runs several replicas one after the other, each on its shard, and reduces the gradients."""

        def __init__(self, program, state):
            replicas = [{k: v[r] if self.own(program, k, v) else v for k, v in state.items()} for r in range(program.cores)]
            super().__init__(program, replicas[0])
            self.each = [program.of_role("statistic", {k: models.to_torch(k, v, "cpu") for k, v in s.items()}) for s in replicas]

        @staticmethod
        def own(program, name, value):
            return program.cores > 1

        def losses(self, c, inputs):
            return models.losses_of(c, self.program, inputs)

        def gradients_of(self, r, inputs, random):
            params = self.params
            kept = params
            if o.precision in ("bf16", "bf16_params"):    # norms keep float32 parameters next to float32 statistics, as frameworks do
                kept = {k: v if "batch_norm" in k else v.to(torch.bfloat16) for k, v in params.items()}
            c = types.SimpleNamespace(params=kept, stats=self.each[r], random=random, weights=inputs.get("weights"))
            context, scale = contextlib.nullcontext(), 1.0
            if o.precision in ("autocast", "bf16_params"):
                context = torch.autocast("cpu", dtype=torch.bfloat16)
            elif o.precision == "float16":
                context, scale = torch.autocast("cpu", dtype=torch.float16), o.scale
            elif o.precision in modes:
                context = Operands(**modes[o.precision])
            backward = context if o.precision in modes else contextlib.nullcontext()
            with context:
                if o.precision == "bf16":
                    loss = self.narrow(c, inputs)
                else:
                    loss = self.losses(c, inputs)[""]
            with backward:
                wanted = torch.autograd.grad(loss * scale, list(self.params.values()))
            self.each[r] = {k: v.detach().float() for k, v in c.stats.items()}
            return loss.item(), {k: g.float() / scale for k, g in zip(self.params, wanted)}

        def narrow(self, c, inputs):
            """The whole model in bfloat16; statistics of norms as the framework computes them."""
            features = models.features_of(inputs)
            if features.is_floating_point():
                features = features.to(torch.bfloat16)
            features = features.permute(0, 3, 1, 2) if features.dim() == 4 else features
            c.random = {k: v for k, v in c.random.items()}
            c.stats = {k: v for k, v in c.stats.items()}
            if c.weights is not None:
                c.weights = c.weights.to(torch.bfloat16)
            output = models.walk(self.program.layers, models.LAYERS, c, features).float()
            weights = None if c.weights is None else c.weights.float()
            loss = models.reduce_loss(models.LOSSES[self.program.loss["kind"]](output, inputs["labels"].long(), self.program.loss),
                                      weights, self.program.loss)
            l2 = self.program.optimizer.get("l2", 0)
            return loss + l2 / 2 * sum((w * w).sum() for w in self.params.values() if w.dim() >= 2)

        def step(self, inputs, random):
            n, program = self.program.cores, self.program

            def part(arrays, r):
                return {k: torch.from_numpy(np.ascontiguousarray(v[r] if n > 1 else v)) for k, v in arrays.items()}

            found = [self.gradients_of(r, part(inputs, r), part(random, r)) for r in range(n)]
            mean = n > 1 and program.sharding["reduction"] == "mean"
            wire = {"bf16": torch.bfloat16, "float16": torch.float16}.get(o.gradients)
            for k, p in self.params.items():
                own = [g[k] / n if mean else g[k] for _, g in found]
                if o.fault and o.fault.startswith("core:" + k + ":"):
                    own[-1] = own[-1] * (1 - float(o.fault.split(":")[2]))
                if wire is not None:
                    total = own[0].to(wire)
                    for g in own[1:]:
                        total = total + g.to(wire)
                    p.grad = total.float()
                else:
                    p.grad = sum(own[1:], own[0])
                if o.fault and not o.fault.startswith("core:"):
                    p.grad = planted(o.fault, k, p.grad)
            models.clip(list(self.params.values()), program.optimizer)
            updates, rate, opt = self.counters.updates(), float(np.asarray(inputs["learning_rate"]).flat[0]), program.optimizer
            if opt["kind"] in ("adam", "adamw"):
                rate *= self.counters.adam_rate(*(1 - opt[beta] ** (updates + 1) for beta in ("beta1", "beta2")))
            self.optimizer.param_groups[0].update(lr=rate, **self.settings(updates))
            self.optimizer.step()
            self.counters.advance()
            for k, average in self.averages.items():
                with torch.no_grad():
                    average.sub_((average - self.params[k.removesuffix(".ema")]) * (1 - program.optimizer["ema"]))
            self.stats = self.each[0]
            losses = np.float32([loss for loss, _ in found])
            return losses if n > 1 else losses[0], {k: models.from_torch(k, v.grad) for k, v in self.params.items()}

        def state(self):
            one = super().state()
            if self.program.cores == 1:
                return one
            each = [{k: models.from_torch(k, v) for k, v in s.items()} for s in self.each]
            n = self.program.cores
            return {k: np.stack([s[k] for s in each]) if k in each[0] else np.broadcast_to(v, (n, *np.shape(v)))
                    for k, v in one.items()}

    class Engine:
        def prepare(self, program):
            if reasons := models.unsupported(program):
                raise Unsupported(reasons)

        def step(self, program, _step, state, inputs, random):
            if state is not None:
                program.own = Training(program, state)
            loss, gradients = program.own.step(inputs, random)
            n = program.cores
            if n > 1:
                gradients = {k: np.broadcast_to(g, (n, *g.shape)) for k, g in gradients.items()}
            return program.own.state(), {"loss": loss, **{f"{k}.grad": g for k, g in gradients.items()}}

    engine = Engine()
    engine.hello = {"name": "mixed-pytorch", "version": str(torch.__version__), "max_cores": 8}
    return engine


def jax(o):
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    sys.path.insert(0, str(ADAPTERS / "engines/jax"))
    import jax
    import jax.numpy as jnp
    import models
    import numpy as np

    narrow = jnp.bfloat16
    norms = ("batch_norm", "layer_norm", "group_norm")

    def cast(tree, dtype):
        return {k: v.astype(dtype) if v.dtype == jnp.float32 else v for k, v in tree.items()}

    if o.precision == "bf16":     # like Keras's mixed_bfloat16: layers in bfloat16, statistics and the loss in float32
        def wrapped(function, name):
            def layer(c, settings, *xs):
                if name in norms:
                    y = function(c, settings, *[x.astype(jnp.float32) for x in xs])
                    return y.astype(narrow)
                own, c.params = c.params, cast(c.params, narrow)
                random, c.random = c.random, cast(c.random, jnp.float32)
                weights = c.weights
                y = function(c, settings, *[x.astype(narrow) if x.dtype == jnp.float32 else x for x in xs])
                c.params, c.random, c.weights = own, random, weights
                return y.astype(narrow)
            return layer

        models.LAYERS.update({k: wrapped(f, k) for k, f in list(models.LAYERS.items())})
        models.LOSSES.update({k: (lambda f: lambda c, x, *rest: f(c, x.astype(jnp.float32), *rest))(f)
                              for k, f in list(models.LOSSES.items())})
    elif o.precision == "default":
        def narrowed(x):
            return jax.lax.reduce_precision(x, 8, 7)

        @jax.custom_vjp
        def product(x, w):
            return narrowed(x) @ narrowed(w)

        product.defvjp(lambda x, w: (product(x, w), (x, w)),
                       lambda kept, g: (narrowed(g) @ narrowed(kept[1]).T, narrowed(kept[0]).T @ narrowed(g)))
        models.LAYERS["dense"] = lambda c, layer, x: models.with_bias(c, layer, product(x, c.params[layer["name"] + "/kernel"]))

    if o.fault:
        kind, tensor, size = o.fault.split(":")
        compute = models.compute

        def wrong(*arguments):
            loss, stats, gradients, layers = compute(*arguments)
            g = gradients[tensor]
            if kind == "scale":
                g = g * (1 + float(size))
            else:
                at = jnp.argmax(jnp.abs(g))
                g = g.reshape(-1).at[at].multiply(1 + float(size)).reshape(g.shape)
            return loss, stats, {**gradients, tensor: g}, layers

        models.compute = wrong

    class Engine:
        def prepare(self, program):
            if reasons := models.unsupported(program):
                raise Unsupported(reasons)

        def step(self, program, _step, state, inputs, random):
            if program.own is None:
                program.own = models.Training(program, state)
            elif state is not None:
                program.own.load(state)
            loss, gradients = program.own.step(inputs, random)
            return program.own.state(), {"loss": np.float32(loss), **{f"{k}.grad": g for k, g in gradients.items()}}

    engine = Engine()
    engine.hello = {"name": "mixed-jax", "version": jax.__version__, "max_cores": 2}
    return engine


def run(chosen):
    made = (pytorch if chosen.framework == "pytorch" else jax)(chosen)
    made.hello |= {"precision": None if chosen.declare == "null" else chosen.declare, "elementary_ulps": 6, "flush": False,
                   "contracts": True, "deterministic": True}
    if chosen.gradients:
        made.hello["gradients"] = chosen.gradients
    serve(made, chosen.folder)


# ---- A framework takes seconds to load, so one process loads it and forks an engine for each session --------------------------

def keep_loaded(framework, path):
    """Serves sessions until it is ended. A client passes its standard input, output and error, and its arguments."""
    sys.path.insert(0, str(ADAPTERS / "engines" / framework))
    if framework == "jax":
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    import models  # noqa: F401
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            if os.fork() == 0:
                words, places, _, _ = socket.recv_fds(client, 1 << 16, 4)
                for at, place in zip((0, 1, 2), places):
                    os.dup2(place, at)
                os.chdir(words.decode().split("\0")[0])
                status = 1
                try:
                    run(arguments(words.decode().split("\0")[1:]))
                    status = 0
                finally:
                    client.sendall(bytes([status]))
                    os._exit(status)
            os._exit(0)
        client.close()
        os.wait()


if __name__ == "__main__":
    if sys.argv[1] == "keep-loaded":
        keep_loaded(*sys.argv[2:])
    else:
        run(arguments())
