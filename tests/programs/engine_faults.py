"""Engines with a fault of an engine: nothing that a scenario, or a porter's misunderstanding, could say. Each must stay an ENGINE_BUG, and
never be explained away as another program.

    python3 tests/programs/engine_faults.py --framework torch --fault transposed_gradient SESSION-FOLDER

Faults are planted into the healthy engines of this folder, on arrays of numpy between the parts of a step.
"""
import dataclasses
import pathlib
import sys
import typing

import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parent))


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    what: str
    plant: typing.Callable    # function(engine, program, step, ...), by `where`
    where: str                # parts, gradients, state, mask
    scenario: str
    settings: tuple
    framework: str
    cores: int


FAULTS = {}


def fault(what, where, scenario, settings="", framework="torch", cores=1):
    def take(function):
        FAULTS[function.__name__] = Fault(function.__name__, what, function, where, scenario, tuple(settings.split()), framework, cores)
        return function
    return take


ADAM = "optimizer.kind=adam optimizer.lr=0.004"


def changed(arrays, name, function):
    return {**arrays, name: np.ascontiguousarray(function(arrays[name]))}


# ---- gradients of each core, before they are reduced --------------------------------------------------------------------------

@fault("the gradient of one tensor is 1.5 times what it is", "parts", "mlp")
def gradient_times_1_5(engine, program, step, parts):
    return changed(parts, "dense2/kernel", lambda g: g * np.float32(1.5))


@fault("the gradient of a bias is 1.5 times what it is", "parts", "cnn", framework="jax")
def bias_gradient_times_1_5(engine, program, step, parts):
    return changed(parts, "conv2/bias", lambda g: g * np.float32(1.5))


@fault("the gradient of one tensor has the wrong sign", "parts", "mlp", framework="jax")
def gradient_turned(engine, program, step, parts):
    return changed(parts, "dense3/bias", np.negative)


@fault("a gradient is transposed", "parts", "phrases")
def transposed_gradient(engine, program, step, parts):
    return changed(parts, "attention1/value/kernel", lambda g: g.swapaxes(1, 2))


@fault("height and width of a kernel's gradient are exchanged", "parts", "cnn", framework="jax")
def transposed_kernel_gradient(engine, program, step, parts):
    return changed(parts, "conv2/kernel", lambda g: g.swapaxes(1, 2))


@fault("the gradient of one tensor is that of the step before", "parts", "mlp")
def stale_gradient(engine, program, step, parts):
    before = getattr(program, "stale", np.zeros_like(parts["dense2/kernel"]))
    program.stale = parts["dense2/kernel"]
    return {**parts, "dense2/kernel": before}


@fault("the gradient of one tensor is that of the step before, at every third step", "parts", "letters", framework="jax")
def sometimes_stale_gradient(engine, program, step, parts):
    before = getattr(program, "stale", parts["dense1/kernel"])
    program.stale = parts["dense1/kernel"]
    return {**parts, "dense1/kernel": before} if step % 3 == 2 else parts


@fault("one row of a gradient is zero", "parts", "mlp", ADAM)
def gradient_row_zero(engine, program, step, parts):
    return changed(parts, "dense2/kernel", lambda g: np.concatenate([g[:, :5], 0 * g[:, 5:6], g[:, 6:]], 1))


@fault("one column of a gradient is doubled", "parts", "mlp", framework="jax")
def gradient_column_doubled(engine, program, step, parts):
    return changed(parts, "dense1/kernel", lambda g: g * np.where(np.arange(g.shape[2]) == 7, np.float32(2), np.float32(1)))


@fault("the last element of a gradient is missing", "parts", "cnn")
def gradient_last_element(engine, program, step, parts):
    return changed(parts, "dense1/kernel", lambda g: g * (np.arange(g[0].size).reshape(g[0].shape) < g[0].size - 1).astype(np.float32))


@fault("the gradient of one tensor is rounded to bfloat16", "parts", "mlp")
def gradient_in_bfloat16(engine, program, step, parts):
    return changed(parts, "dense2/kernel", lambda g: ((g.view(np.uint32) + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32))


@fault("the gradient of one tensor is rounded to bfloat16, under Adam", "parts", "phrases", ADAM, framework="jax")
def gradient_in_bfloat16_under_adam(engine, program, step, parts):
    return changed(parts, "dense1/kernel", lambda g: ((g.view(np.uint32) + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32))


@fault("one gradient is wrong at step 7 alone", "parts", "mlp")
def wrong_at_step_seven(engine, program, step, parts):
    return changed(parts, "dense1/kernel", lambda g: g * np.float32(1.25)) if step == 7 else parts


@fault("all gradients are twice what they are, at step 7 alone", "parts", "cnn", framework="jax")
def all_doubled_at_step_seven(engine, program, step, parts):
    return {k: g * np.float32(2) for k, g in parts.items()} if step == 7 else parts


@fault("core 2's part of one gradient is lost", "parts", "mlp", cores=4)
def lost_part(engine, program, step, parts):
    return parts if program.cores == 1 else changed(parts, "dense1/kernel", lambda g: g * np.float32([1, 1, 0, 1]).reshape(4, 1, 1))


@fault("core 1's part of one gradient is counted twice", "parts", "mlp", framework="jax", cores=4)
def doubled_part(engine, program, step, parts):
    return parts if program.cores == 1 else changed(parts, "dense2/kernel", lambda g: g * np.float32([1, 2, 1, 1]).reshape(4, 1, 1))


@fault("core 3's part of all gradients is lost", "parts", "phrases", cores=4)
def lost_core(engine, program, step, parts):
    if program.cores == 1:
        return parts
    return {k: g * np.float32([1, 1, 1, 0]).reshape(4, *[1] * (g.ndim - 1)) for k, g in parts.items()}


@fault("two gradients of one shape are exchanged", "parts", "phrases")
def gradients_exchanged(engine, program, step, parts):
    return {**parts, "attention1/query/kernel": parts["attention1/key/kernel"], "attention1/key/kernel": parts["attention1/query/kernel"]}


@fault("every second row of an embedding's gradient is half of what it is", "parts", "letters")
def embedding_rows_halved(engine, program, step, parts):
    def halve(g):
        return g * np.where(np.arange(g.shape[1]) % 2 == 1, np.float32(0.5), np.float32(1))[None, :, None]
    return changed(parts, "embedding1/embeddings", halve)


# ---- gradients as the optimizer takes them ---------------------------------------------------------------------------------------

@fault("after the reduction, core 1 has another gradient than the rest", "gradients", "mlp", cores=2)
def one_core_differs(engine, program, step, gradients):
    return gradients if program.cores == 1 else changed(gradients, "dense2/kernel", lambda g: g * np.float32([1, 1.01]).reshape(2, 1, 1))


@fault("a tile of a gradient is that of its neighbour", "gradients", "mlp", ADAM, framework="jax")
def tile_repeated(engine, program, step, gradients):
    def repeat(g):
        g = np.array(g)
        g[:, 8:16] = g[:, :8]
        return g
    return changed(gradients, "dense2/kernel", repeat)


@fault("noise of a hundredth in one gradient, the same at every run", "gradients", "cnn")
def noisy_gradient(engine, program, step, gradients):
    random = np.random.default_rng(step)
    return changed(gradients, "conv1/kernel", lambda g: (g * (1 + 0.01 * random.normal(size=g.shape))).astype(np.float32))


# ---- results of the forward pass --------------------------------------------------------------------------------------------------

def ones(shape):
    return np.ones(shape, np.float32)


@fault("the last row of a product is zero", "mask", "mlp")
def row_of_product_zero(engine, step, layer, shape):
    if layer != "dense2":
        return None
    mask = ones(shape)
    mask[-1] = 0
    return mask


@fault("a column of a product is 1.1 times what it is", "mask", "mlp", framework="jax")
def column_of_product(engine, step, layer, shape):
    if layer != "dense2":
        return None
    mask = ones(shape)
    mask[:, 3] = 1.1
    return mask


@fault("the last element of an activation is doubled", "mask", "cnn")
def last_element_of_activation(engine, step, layer, shape):
    if layer != "gelu1":
        return None
    mask = ones(shape)
    mask.reshape(-1)[-1] = 2
    return mask


@fault("one token's attention is half of what it is", "mask", "phrases", framework="jax")
def token_of_attention(engine, step, layer, shape):
    if layer != "attention1":
        return None
    mask = ones(shape)
    mask[:, 4] = 0.5
    return mask


# ---- state ------------------------------------------------------------------------------------------------------------------------

@fault("slots of two tensors are exchanged", "state", "phrases", ADAM)
def slots_exchanged(engine, program, step, before, after):
    one, two = "attention1/query/kernel.adam_v", "attention1/key/kernel.adam_v"
    return {**after, one: after[two], two: after[one]}


@fault("one weight tensor is not updated at step 5", "state", "mlp", framework="jax")
def update_lost(engine, program, step, before, after):
    return {**after, "dense2/kernel": before["dense2/kernel"]} if step == 5 else after


@fault("the update of one weight tensor is applied twice", "state", "cnn")
def update_twice(engine, program, step, before, after):
    return {**after, "conv1/kernel": 2 * after["conv1/kernel"] - before["conv1/kernel"]}


@fault("one element of the weights is set to zero at step 7", "state", "letters", framework="jax")
def weight_lost(engine, program, step, before, after):
    def cut(w):
        w = np.array(w)
        w[:, 3, 4] = 0
        return w
    return changed(after, "dense1/kernel", cut) if step == 7 else after


@fault("the velocity of one tensor is lost at every step", "state", "mlp")
def velocity_lost(engine, program, step, before, after):
    return changed(after, "dense1/kernel.momentum", np.zeros_like)


@fault("the running mean of one channel does not move", "state", "cnn", framework="jax")
def running_mean_of_a_channel(engine, program, step, before, after):
    def keep(mean):
        mean = np.array(mean)
        mean[:, 1] = before["batch_norm1/moving_mean"][:, 1]
        return mean
    return changed(after, "batch_norm1/moving_mean", keep)


def main():
    framework = sys.argv[sys.argv.index("--framework") + 1]
    at = sys.argv.index("--framework")
    del sys.argv[at:at + 2]
    import shared
    chosen = shared.arguments(__doc__.splitlines()[0])
    module = __import__(f"{framework}_engine")
    planted = FAULTS[chosen.fault]

    class Faulty(module.Engine):
        def __init__(self, options):
            super().__init__(options)

            def plant(*arguments):
                return planted.plant(self, *arguments)

            if planted.where == "mask":
                self.mask, self.masked_at = plant, lambda step: True
            else:
                setattr(self, "on_" + planted.where, plant)

    module.serve(Faulty(chosen), chosen.folder)


if __name__ == "__main__":
    main()
