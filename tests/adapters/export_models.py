"""Trains the model of adapters/examples/mnist.toml with a framework, from a dump's initial weights, and saves it in the usual way:

    python3 export_models.py FRAMEWORK DUMP FOLDER STEPS     # -> FOLDER/kept..., prints the losses of all steps in the dump

This does not use adapters/: the layouts, names and files are the framework's.
"""
import pathlib
import sys

import h5py
import numpy as np

LR, MOMENTUM = 0.05, 0.9
WEIGHTS = [("conv1/kernel", "conv1/bias"), ("dense1/kernel", "dense1/bias"), ("dense2/kernel", "dense2/bias")]


def pytorch(initial, batches, keep, folder):
    import torch
    from torch import nn
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(392, 64), nn.ReLU(),
                          nn.Linear(64, 10))
    with torch.no_grad():
        for layer, (kernel, bias) in zip((model[0], model[4], model[6]), WEIGHTS):
            w = initial[kernel]
            if kernel == "dense1/kernel":
                w = w.reshape(7, 7, 8, 64).transpose(2, 0, 1, 3).reshape(392, 64)
            layer.weight.copy_(torch.tensor(w.transpose(3, 2, 0, 1) if w.ndim == 4 else w.T))
            layer.bias.copy_(torch.tensor(initial[bias]))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    for step, (images, labels) in enumerate(batches):
        if step == keep:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "kept.pt")
        loss = nn.functional.cross_entropy(model(torch.tensor(images).permute(0, 3, 1, 2)), torch.tensor(labels).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def jax(initial, batches, keep, folder):
    import jax
    import jax.numpy as jnp
    import optax
    import orbax.checkpoint as ocp
    theirs = ("Conv_0", "Dense_0", "Dense_1")
    params = {name: {"kernel": jnp.asarray(initial[k]), "bias": jnp.asarray(initial[b])} for name, (k, b) in zip(theirs, WEIGHTS)}

    def loss_of(params, images, labels):
        x = jax.lax.conv_general_dilated(images, params["Conv_0"]["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + params["Conv_0"]["bias"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 4, 4, 1), (1, 4, 4, 1), "VALID").reshape(len(x), -1)
        x = jax.nn.relu(x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
        logits = x @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    optimizer = optax.sgd(LR, momentum=MOMENTUM)
    state = optimizer.init(params)
    for step, (images, labels) in enumerate(batches):
        if step == keep:
            ocp.PyTreeCheckpointer().save(folder / "kept", {"params": params, "trace": state[0].trace})
        loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
        changes, state = optimizer.update(gradients, state)
        params = optax.apply_updates(params, changes)
        yield float(loss)


def tensorflow(initial, batches, keep, folder):
    import tensorflow as tf
    k = tf.keras
    model = k.Sequential([k.Input((28, 28, 1)), k.layers.Conv2D(8, 3, padding="same", activation="relu"), k.layers.MaxPool2D(4),
                          k.layers.Flatten(), k.layers.Dense(64, activation="relu"), k.layers.Dense(10)])
    model.set_weights([initial[name] for pair in WEIGHTS for name in pair])
    variables = [v.value for v in model.trainable_variables]
    optimizer = tf.compat.v1.train.MomentumOptimizer(LR, MOMENTUM)
    for step, (images, labels) in enumerate(batches):
        if step == keep:
            named = {name.replace("/", "_"): v for name, v in zip((n for pair in WEIGHTS for n in pair), variables)}
            slots = {name + "_momentum": optimizer.get_slot(v, "momentum") for name, v in named.items()}
            tf.train.Checkpoint(model=model, **slots).write(str(folder / "kept"))
            model.save_weights(folder / "kept.weights.h5")
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images)))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        yield float(loss)


def main():
    framework, dump, folder, keep = sys.argv[1:]
    with h5py.File(dump) as file:
        initial = {name.replace("|", "/"): np.asarray(data) for name, data in file["initial"].items()}
        batches = list(zip(np.asarray(file["inputs/images"]), np.asarray(file["inputs/labels"])))
    for loss in globals()[framework](initial, batches, int(keep), pathlib.Path(folder)):
        print(repr(loss))


if __name__ == "__main__":
    main()
