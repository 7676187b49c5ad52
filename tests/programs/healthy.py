"""A hundred runs of engines that compute what the scenario says: models, optimizers, cores, frameworks, orders of sums."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Run:
    scenario: str
    optimizer: str
    cores: int
    framework: str
    order: str
    settings: tuple

    @property
    def name(self):
        return f"{self.scenario}-{self.optimizer}-x{self.cores}-{self.order}"


OPTIMIZERS = {
    "sgd": "optimizer.kind=sgd optimizer.lr=0.05",
    "momentum": "optimizer.kind=momentum optimizer.lr=0.02",
    "nesterov": "optimizer.kind=momentum optimizer.lr=0.02 optimizer.nesterov=true optimizer.clip=global_norm optimizer.clip_at=0.5",
    "adam": "optimizer.kind=adam optimizer.lr=0.003",
    "adamw": "optimizer.kind=adamw optimizer.lr=0.003 optimizer.weight_decay=0.02 optimizer.clip=global_norm optimizer.clip_at=0.5",
    "adamax": "optimizer.kind=adamax optimizer.lr=0.003",
    "adagrad": "optimizer.kind=adagrad optimizer.lr=0.02 optimizer.l2=0.001",
    "adadelta": "optimizer.kind=adadelta optimizer.lr=1",
    "rmsprop": "optimizer.kind=rmsprop optimizer.lr=0.002 optimizer.momentum=0.9 optimizer.centered=true optimizer.epsilon=1e-3",
    "lamb": "optimizer.kind=lamb optimizer.lr=0.004 optimizer.weight_decay=0.01",
    "accumulated": "optimizer.kind=momentum optimizer.lr=0.02 train.accumulate=4 optimizer.clip=norm optimizer.clip_at=0.1",
    "averaged": "optimizer.kind=adam optimizer.lr=0.003 optimizer.ema=0.9 optimizer.schedule=exponential optimizer.decay_rate=0.5"
                " optimizer.decay_steps=10 optimizer.warmup_steps=4 optimizer.clip=value optimizer.clip_at=0.01",
}
MODELS = ("mlp", "cnn", "groups", "phrases", "letters", "features")
ORDERS = ("plain", "reversed", "split", "tree")
CORES = (1, 1, 2, 8)


def all_runs():
    """Every optimizer with every model, then some again on the other framework; cores and orders of sums take turns."""
    found = []
    for again in range(2):
        for i, (optimizer, settings) in enumerate(OPTIMIZERS.items()):
            for j, model in enumerate(MODELS):
                framework = ("torch", "jax")[(i + j + again) % 2]
                cores, order = CORES[(i + j // 2 + again) % 4], ORDERS[(i + 2 * j + again) % 4]
                found.append(Run(model, optimizer, cores, framework, order, tuple(settings.split())))
    return found[:100]


RUNS = all_runs()
