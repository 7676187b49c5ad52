"""The mechanisms by which a sharded step means something else than the whole batch's, in words, and what cures them.

sentence, cure = words("clipping", "torch", facts)
"""


# As harness/sharding/ablation.h: no float32 engine can show a relative difference below a
# quarter of its unit roundoff. Where 1 / replicas is no float32 number, four such errors are
# allowed.
def threshold(replicas):
    return 2.0**-26 if replicas & (replicas - 1) == 0 else 2.0**-22


def words(cause, framework, facts):
    sentence, cures = _TEXT[cause]
    return sentence.format(**facts), cures[framework].format(**facts)


_TEXT = {
    "batch_norm": (
        "Batch norm per replica changes what the program means: each replica normalises by the statistics of its own "
        "samples.",
        {
            "torch": "convert the model with torch.nn.SyncBatchNorm.convert_sync_batchnorm",
            "jax": "average mean and variance over {axes}: axis_name={axes!r} of flax.linen.BatchNorm, or "
            "jax.lax.pmean",
        },
    ),
    "repeated_term": (
        "A term that is added before a sum over replicas changes what the program means: it is the same on all of them and "
        "counts {factor} times.",
        {"torch": "add it after the all-reduce", "jax": "add it after jax.lax.psum over {axes} ({line})"},
    ),
    "pairs_of_samples": (
        "A loss over pairs of samples changes what the program means: each replica pairs its own samples only, and the pairs "
        "of different replicas are missing.",
        {
            "torch": "gather the samples of all replicas before {line}; that this is the whole cause was not proven",
            "jax": "jax.lax.all_gather over {axes} before {line}",
        },
    ),
    "clipping": (
        "Clipping before the all-reduce changes what the program means: each replica clips its own gradient.",
        {
            "torch": "clip after the gradients have been averaged",
            "jax": "clip after the gradients have been averaged over {axes}",
        },
    ),
    "no_all_reduce": (
        "A missing all-reduce changes what the program means: replicas update {names} by gradients of their own "
        "samples, and drift apart.",
        {
            "torch": "average these gradients over the replicas as well",
            "jax": "average these gradients over {axes} by jax.lax.pmean as well",
        },
    ),
    "unscaled": (
        "A gradient that is never divided by the number of replicas changes what the program means: the all-reduce is "
        "a sum, {factor} times the whole batch's gradient.",
        {
            "torch": "divide the sum by the number of replicas, or use ReduceOp.AVG",
            "jax": "use jax.lax.pmean instead of psum",
        },
    ),
    "scaled_twice": (
        "A gradient divided by the number of replicas twice changes what the program means.",
        dict.fromkeys(("torch", "jax"), "divide either the loss or the gradient by the number of replicas, not both"),
    ),
    "reduction": (
        "The loss reduction changes what the program means: the loss of a replica is its part of a sum over samples, "
        "but the all-reduce averages over replicas.",
        {
            "torch": "use a mean over samples, or multiply the loss by the number of replicas",
            "jax": "use a mean over a device's samples, or jax.lax.psum",
        },
    ),
    "token_mean": (
        "A mean of means changes what the program means: each replica divides its loss by its own count, but the "
        "replicas' shares of the whole batch are {shares}.",
        {
            "torch": "divide by the count of all replicas: all-reduce the count and scale the loss by replicas / count",
            "jax": "divide the summed loss by the summed count: jax.lax.psum of both over {axes}",
        },
    ),
    "late_reduction": (
        "A reduction that comes too late changes what the program means: each replica computes a nonlinear function of "
        "its own values first.",
        {"jax": "reduce over {axes} before {line}", "torch": "average over the {axes} what {line} takes the mean or sum of"},
    ),
    "shard_norm": (
        "A norm of the local shard changes what the program means: each device clips or scales by its own part of the "
        "norm.",
        {"jax": "sum the squares over {axes} by jax.lax.psum before the root"},
    ),
    "forgotten_axis": (
        "A forgotten axis of the mesh changes what the program means: {names} is reduced over {summed}, but differs "
        "along {axes}.",
        {"jax": "reduce over {axes} as well, by jax.lax.{by}"},
    ),
    "summed_twice": (
        "An axis summed twice changes what the program means: the values are equal along {axes} already, and their sum "
        "is {factor} times as large.",
        {"jax": "leave {axes} out of this sum, or use jax.lax.pmean"},
    ),
    "summed_by_transpose": (
        "A gradient summed by shard_map itself changes what the program means: the derivative by a value that is the "
        "same on all devices is already a sum over {axes}, {factor} times the mean; reducing it again does "
        "not divide it.",
        {
            "jax": "average the loss by jax.lax.pmean inside of the function that is differentiated and reduce the "
            "gradient no more, or make the parameters varying first (jax.lax.pcast, before JAX 0.9 jax.lax.pvary)"
        },
    ),
    "summed_in_derivative": (
        "A sum that is summed again in its derivative changes what the program means: without check_vma the derivative "
        "of jax.lax.psum over {axes} is a psum, every device along {axes} counts the same loss, and the gradient is "
        "{factor} times as large.",
        {
            "jax": "divide the loss that is differentiated by the number of devices along {axes}: "
            "jax.lax.psum(1, axis)"
        },
    ),
    "sum_for_mean": (
        "A sum over devices in the loss changes what the program means: it is {factor} times what the whole batch has "
        "there.",
        {"jax": "use jax.lax.pmean instead of psum"},
    ),
    "mean_for_sum": (
        "A value in the loss that is divided by the number of devices changes what the program means: it is {factor} "
        "of what the whole batch has there.",
        {"jax": "use jax.lax.psum instead of pmean, or leave the division out"},
    ),
    "partial_sum": (
        "A missing sum in the forward pass changes what the program means: each device goes on with its own part of a "
        "sum over {axes}.",
        {"jax": "jax.lax.psum over {axes} before the value is used"},
    ),
    "permuted": (
        "Permuted shards change what the program means: {names} puts the shards into the order {order}.",
        {"jax": "put the shards back into the order of the axis"},
    ),
    "wrong_direction": (
        "An exchange in the wrong direction changes what the program means: with {words} the step means what it "
        "does on one device.",
        {"jax": "turn the pairs (source, destination) of ppermute round"},
    ),
    "wrong_axis": (
        "A reduction over the wrong axis of the mesh changes what the program means: it goes over {axes}; over {words} "
        "the step means what it does on one device.",
        {"jax": "reduce over {words} instead of {axes}"},
    ),
    "wrong_dimensions": (
        "{names} over the wrong dimensions changes what the program means: with {words} the step means what it does on "
        "one device.",
        {"jax": "use {words}"},
    ),
    "one_stream": (
        "One stream of random numbers changes what the program means: every device draws the same numbers for other "
        "samples.",
        {
            "jax": "fold the device into the key: jax.random.fold_in(key, jax.lax.axis_index(axis))",
            "torch": "make the rank a part of the seed that the step sets: {line} draws",
        },
    ),
    "stream_per_core": (
        "A stream of random numbers per device changes what the program means: devices draw different numbers for what "
        "they should hold alike.",
        {"jax": "draw by the same key on the devices that compute the same"},
    ),
    "statistics": (
        "Statistics that are not reduced change what the program means: {names} are those of each device's own "
        "samples.",
        {
            "jax": "average them over {axes} by jax.lax.pmean",
            "torch": "compute them of the samples of all replicas: all-reduce what they are made of in the step",
        },
    ),
    "rank": (
        "What only some ranks do changes what the program means: the step asks for its rank ({line}), and replicas that "
        "all do the same mean what the whole batch does.",
        {"torch": "do it on every rank, or multiply what one rank adds by the number of replicas"},
    ),
    "unmatched": (
        "Replicas do not call the same collectives: {what}. As processes they wait for one another for ever there, or add up "
        "what does not belong together.",
        {"torch": "call every collective on every rank, in the same order"},
    ),
    "loss_not_reduced": (
        "A loss that is not reduced changes what the program reports: it is that of one device's samples.",
        {"jax": "average the loss over {axes} by jax.lax.pmean"},
    ),
}
