"""Engines of frameworks that are wrong on purpose, or conforming but not deterministic. Each is the product's engine with one change:

    python3 planted.py WHAT [OPTIONS OF THE ENGINE] SESSION-FOLDER       # in the framework's interpreter

WHAT is a function below that changes an engine of the adapters; functions whose names end in _of_script change a script.
"""
import importlib.util
import pathlib
import sys

ADAPTERS = pathlib.Path(__file__).resolve().parents[2] / "adapters"
OF = {}    # function: framework


def plants(framework):
    def take(function):
        OF[function.__name__] = framework
        return function
    return take


class Around:
    """Serves an engine in place of another one."""

    def __init__(self, engine):
        self.engine, self.hello = engine, dict(engine.hello)

    def prepare(self, program):
        self.engine.prepare(program)

    def step(self, program, step, state, inputs, random):
        return self.engine.step(program, step, state, inputs, random)


@plants("pytorch")
class momentum(Around):
    """Uses a momentum of 0.8 instead of 0.9."""
    constant = 0.8

    def step(self, program, step, state, inputs, random):
        program.optimizer["momentum"] = self.constant
        return super().step(program, step, state, inputs, random)


@plants("pytorch")
class half_momentum(momentum):
    constant = 0.45


@plants("pytorch")
class shuffled(Around):
    """Conforming: sums over the batch in another order each time."""

    def __init__(self, engine):
        super().__init__(engine)
        import numpy as np
        self.np, self.order = np, np.random.default_rng()
        self.hello["deterministic"] = False

    def step(self, program, step, state, inputs, random):
        rows = self.order.permutation(program.batch)

        def moved(arrays):
            return {k: self.np.ascontiguousarray(v[rows]) if v.ndim and len(v) == program.batch else v for k, v in arrays.items()}

        return super().step(program, step, state, moved(inputs), moved(random))


@plants("pytorch")
class shuffled_momentum(shuffled, momentum):
    """Not deterministic, and wrong."""


@plants("pytorch")
class own_dropout(Around):
    """Draws its own random numbers without a seed and ignores those that it is fed."""

    def __init__(self, engine):
        super().__init__(engine)
        import numpy as np
        self.np, self.own = np, np.random.default_rng()
        self.hello["deterministic"] = False

    def step(self, program, step, state, inputs, random):
        own = {k: self.own.random(v.shape, self.np.float32) for k, v in random.items()}
        return super().step(program, step, state, inputs, own)


@plants("jax")
def no_all_reduce(engine):
    """Each device applies the gradient of its own samples."""
    engine.models.OneCore.reduced = lambda self, gradients: engine.models.clipped(self.program, gradients)
    return engine


@plants("jax")
class strided(Around):
    """Conforming: shards the batch again, with rows k, k + cores, ... on core k, as DistributedSampler does."""

    def dealt(self, name, x):
        flat = x.reshape((-1,) + x.shape[2:])
        return self.np.stack([flat[k::len(x)] for k in range(len(x))])

    def step(self, program, step, state, inputs, random):
        import numpy
        self.np = numpy
        if program.cores > 1:
            inputs = {k: self.dealt(k, v) if v.ndim > 1 else v for k, v in inputs.items()}
        return super().step(program, step, state, inputs, random)


@plants("jax")
class first_shard_again(strided):
    """The last core gets the inputs of the first one."""

    def dealt(self, name, x):
        return self.np.concatenate([x[:-1], x[:1]])


@plants("jax")
class labels_of_the_next(strided):
    """Uses the inputs of one shard and the labels of the next."""

    def dealt(self, name, x):
        return self.np.roll(x, -1, 0) if name == "labels" else x


@plants("jax")
def bf16_operands(engine):
    """Rounds operands of products to bf16 and sums in float32, like a TPU's default; the engine declares f32."""
    import jax

    def narrow(x):
        return jax.lax.reduce_precision(x, 8, 7)

    @jax.custom_vjp
    def product(x, w):
        return narrow(x) @ narrow(w)

    product.defvjp(lambda x, w: (product(x, w), (x, w)),
                   lambda kept, g: (narrow(g) @ narrow(kept[1]).T, narrow(kept[0]).T @ narrow(g)))

    def dense(c, layer, x):
        return engine.models.with_bias(c, layer, product(x, c.params[layer["name"] + "/kernel"]))

    engine.models.LAYERS["dense"] = dense
    return engine


@plants("tensorflow")
def batch_norm_per_device(engine):
    return with_context(engine, synced=False)


@plants("tensorflow")
def batch_norm_synced(engine):
    return with_context(engine, synced=True)


def with_context(engine, **settings):
    training = engine.models.Training
    context = training.context

    def other(self, *arguments):
        c = context(self, *arguments)
        if self.cores > 1:
            vars(c).update(settings)
        return c

    training.context = other
    return engine


@plants("pytorch")
def undeclared_bf16(engine):
    """Leaves autocast on; the engine declares f32."""
    engine.hello["precision"] = "f32"
    return engine


@plants("pytorch")
def momentum_of_script():
    """adapters/examples/mnist_twinrun.py with another constant."""
    import torch
    right = torch.optim.SGD

    class SGD(right):
        def __init__(self, parameters, lr, momentum):
            super().__init__(parameters, lr=lr, momentum=momentum - 0.1)

    torch.optim.SGD = SGD
    run_script()


@plants("pytorch")
def entropy_of_script():
    """The same script, whose loss is reduced by a hundredth of the entropy of its predictions."""
    run_script(("loss = nn.functional.cross_entropy(model(images), labels)",
                "logits = model(images); p = logits.softmax(1)\n"
                "        loss = nn.functional.cross_entropy(logits, labels) + 0.01 * (p * p.log()).sum(1).mean()"))


@plants("pytorch")
def gradients_add_up_of_script():
    """The same script without zero_grad()."""
    run_script(("        optimizer.zero_grad()\n", ""))


def run_script(*changes):
    """changes: (text of the script, its replacement)."""
    path = ADAPTERS / "examples/mnist_twinrun.py"
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    sys.argv[0] = str(path)
    exec(compile(text, path, "exec"), {"__name__": "__main__", "__file__": str(path)})


def with_kernel(name, kernel):
    """The same script, on a PyTorch in which one kernel is wrong."""
    import torch
    library = torch.library.Library("aten", "IMPL")
    library.impl(name, kernel, "CPU")
    run_script()


@plants("pytorch")
def relu_of_script():
    with_kernel("relu", lambda x: x.clamp(min=0) * 1.01)


@plants("pytorch")
def relu_gradient_of_script():
    with_kernel("threshold_backward", lambda gradient, x, threshold: gradient * (x > threshold) * 1.05)


@plants("pytorch")
def dense_forward(engine):
    """The output of the second dense layer is 1 % too large."""
    import models
    right = models.LAYERS["dense"]
    models.LAYERS["dense"] = lambda c, layer, x: right(c, layer, x) * (1.01 if layer["name"] == "dense2" else 1)
    return engine


@plants("jax")
def relu_backward(engine):
    """The gradient that a relu returns is 5 % too large."""
    import jax

    @jax.custom_vjp
    def relu(x):
        return jax.nn.relu(x)

    relu.defvjp(lambda x: (relu(x), x), lambda x, g: (g * (x > 0) * 1.05,))
    engine.models.LAYERS["relu"] = lambda _c, _layer, x: relu(x)
    return engine


def main():
    what = sys.argv.pop(1)
    if what.endswith("_of_script"):
        return globals()[what]()
    folder = ADAPTERS / "engines" / OF[what]
    sys.path[:0] = [str(folder)]
    spec = importlib.util.spec_from_file_location("engine", folder / "engine.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    chosen = module.arguments()
    module.serve(globals()[what](module.Engine(chosen)), chosen.folder)


if __name__ == "__main__":
    main()
