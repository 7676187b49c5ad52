// Messages of TensorFlow, TPUEstimator and TPUStrategy.
#include "harness/check/messages.h"

namespace twinrun::check {
namespace {

using enum MessageKind;

constexpr Message kTensorFlow[] = {
    // clang-format off
    {"batch-size-missing", kCause, "batch-missing",
     "",
     "",
     "pass train_batch_size to TPUEstimator: the batch of all cores together",
     ""},
    {"train-steps-missing", kCause, "steps-missing",
     "",
     "",
     "pass steps or max_steps to train(): passes over the data times samples, divided by the "
     "batch",
     ""},
    {"batch-size-uneven", kCause, "batch-not-divisible",
     "eval batch size {batch} must be divisible by number of replicas {cores}\n"
     "predict batch size {batch} must be divisible by number of replicas {cores}\n"
     "The batch output shape of your `Dataset` {batch} cannot be divisible by number of replicas "
     "{cores}",
     "",
     "choose a batch that is a multiple of the number of cores, best of 8 times that number",
     "tensorflow/estimator tpu_context.py; tensorflow python/keras/engine/training_v1.py"},
    {"shape-not-static", kCause, "remainder-kept unknown-shape",
     "{tensor} must have a fixed size for dimension {dimension} that is known\n"
     "The tensor with key ({key}) in TPUEstimatorSpec.predictions has dynamic shape (should be "
     "static)\n"
     "input tensor {tensor} to TPUStrategy.run() has unknown rank, which is not allowed",
     "a step is compiled for known shapes, and this tensor's is not known",
     "batch(n, drop_remainder=True) in the input function; set_shape() or padded records where "
     "the shape of a sample is unknown",
     "tensorflow python/tpu/tpu_sharding.py, python/distribute/tpu_strategy.py; "
     "tensorflow/estimator tpu_estimator.py"},
    {"reshape-dynamic", kCause, "dynamic-shape",
     "",
     "a Reshape splits a dimension whose size is known only at run time, and which of the results "
     "varies is not known",
     "fix the batch (drop_remainder=True), or write the sizes into the Reshape and leave at most "
     "one of them at -1",
     ""},
    {"data-ended", kCause, "data-runs-out",
     "Error recorded from outfeed: End of sequence\n"
     "OutOfRangeError: End of sequence\n"
     "OUT_OF_RANGE: End of sequence\n"
     "Out of range: End of sequence",
     "",
     "repeat() the data for training; for evaluation, steps of at most samples / batch",
     "google-research/bert#486; tensorflow core/kernels/data/iterator_ops.cc"},
    {"infeed-dtype", kCause, "infeed-type",
     "Operation '{op}' has type {dtype} which is not a supported TPU infeed type",
     "",
     "cast on the host, in the input function: images to tf.float32 or tf.bfloat16, other "
     "integers to tf.int32",
     "tensorflow python/tpu/ops/tpu_ops.py"},
    {"op-unsupported", kCause, "unsupported-op",
     "Detected unsupported operations when trying to compile graph {graph} on XLA_TPU_JIT: {op}\n"
     "No registered '{op}' OpKernel for {device} devices compatible with node {node}\n"
     "No registered '{op}' OpKernel for 'TPU'",
     "",
     "do it in the input function, which runs on the host, or write it in ops that a TPU has; ops "
     "of strings, files and Python run on a host only",
     "tensorflow/tensorflow#26214; tensorflow core/framework/op_kernel.cc"},
    {"not-a-constant", kCause, "not-constant",
     "",
     "a size, an axis or an index that the compiler has to know depends on data",
     "compute it in Python, or from static shapes (x.shape instead of tf.shape(x))",
     ""},
    {"all-reduce-missing", kCause, "no-all-reduce",
     "",
     "",
     "wrap the optimizer: tf.tpu.CrossShardOptimizer(optimizer)",
     ""},
    {"clip-in-optimizer", kCause, "clip-before-all-reduce",
     "",
     "",
     "aggregate first, then clip: tf.clip_by_global_norm on the result of the all-reduce, and "
     "apply_gradients(..., experimental_aggregate_gradients=False)",
     ""},
    {"local-file-system", kCause, "local-files file-cache",
     "",
     "",
     "copy the files to a bucket (gs://...), also model_dir and the path of cache(); or run on "
     "the TPU VM itself",
     ""},
    {"eval-batch-size-missing", kCause, "",
     "eval_batch_size in TPUEstimator constructor cannot be `None`if .evaluate is running on "
     "TPU\n"
     "predict_batch_size in TPUEstimator constructor cannot be `None`if .predict is running on "
     "TPU",
     "evaluation and prediction are compiled for shapes of their own",
     "pass eval_batch_size and predict_batch_size to TPUEstimator, multiples of the cores",
     "tensorflow/estimator tpu_context.py"},
    {"eval-steps-missing", kCause, "",
     "Evaluate `steps` must be set on TPU. Cannot be `None`",
     "an evaluation is one loop on the device, whose length is part of the program",
     "evaluate(steps=samples // eval_batch_size)",
     "tensorflow/estimator tpu_estimator.py"},
    {"eval-spec-type", kCause, "",
     "estimator_spec used by TPU {mode} must have type`TPUEstimatorSpec`. Got {type}",
     "metrics are computed on the host, for which TPUEstimatorSpec has eval_metrics",
     "return tf.estimator.tpu.TPUEstimatorSpec from the model function, with "
     "eval_metrics=(function, tensors)",
     "tensorflow/estimator tpu_estimator.py"},
    {"params-missing", kCause, "",
     "model_fn ({function}) does not include params argument, required by TPUEstimator\n"
     "input_fn ({function}) does not include params argument, required by TPUEstimator",
     "the batch of one core (or host) is passed in params",
     "add params to the function's arguments, and read params['batch_size']",
     "tensorflow/estimator tpu_estimator.py"},
    {"num-shards-wrong", kCause, "",
     "TPUConfig.num_shards is not set correctly. According to TPU system metadata for Tensorflow "
     "master ({master}): num_replicas should be ({cores}), got ({given})",
     "the number of cores in the configuration is not that of the TPU",
     "leave num_shards out of TPUConfig: it is read from the TPU",
     "tensorflow/estimator tpu_context.py"},
    {"outfeed-scalar", kCause, "",
     "All tensors outfed from TPU should preserve batch size dimension, but got scalar {tensor}",
     "what the cores send to the host is concatenated along the batch, and a scalar has none",
     "send one value per sample: reduce in the metric function on the host, or tf.reshape(x, [1])",
     "tensorflow/estimator tpu_estimator.py"},
    {"scaffold-none", kCause, "",
     "TPUEstimatorSpec.scaffold_fn returns None, which is not allowed",
     "the function that makes the Scaffold has no return value",
     "return tf.compat.v1.train.Scaffold() from it",
     "tensorflow/estimator tpu_estimator.py"},
    {"training-nan", kCause, "",
     "Gradient for {variable} is NaN\n"
     "NaN loss during training\n"
     "Model diverged with loss = NaN",
     "the training has diverged. The first message tests the weights after a loop, not gradients",
     "lower the learning rate, warm up, clip after the all-reduce; `twinrun diagnose` says "
     "whether the TPU's arithmetic or the sharding has a part in it",
     "tensorflow/estimator tpu_estimator.py; tensorflow "
     "python/training/basic_session_run_hooks.py"},
    {"no-tpu-cores", kCause, "",
     "Cannot find any TPU cores in the system",
     "the server answers, and has no TPU: the address is that of another machine, or its TPU is "
     "not healthy",
     "compare the address with `gcloud compute tpus tpu-vm list`; restart the TPU if it is not "
     "READY",
     "tensorflow/estimator tpu_context.py; tensorflow python/tpu/tpu_system_metadata.py"},
    {"master-unreachable", kCause, "",
     "Failed to connect to the Tensorflow master. The TPU worker may not be ready (still "
     "scheduling) or the Tensorflow master address is incorrect\n"
     "Failed to connect to master. The TPU might not be ready (e.g. still scheduling) or the "
     "master address is incorrect",
     "nothing answers at this address",
     "wait until the TPU is READY; check its name, zone and project, that this machine is in its "
     "network, and that both have the same version of TensorFlow",
     "tensorflow python/tpu/tpu_system_metadata.py, "
     "python/distribute/cluster_resolver/tpu/tpu_cluster_resolver.py"},
    {"tpus-not-in-cluster", kCause, "",
     "TPUs not found in the cluster. Failed in initialization: {error}",
     "the machine that was asked to initialise its TPU has none",
     "pass tpu='local' on a TPU VM, the TPU's name elsewhere; in a notebook choose a TPU runtime",
     "tensorflow python/tpu/tpu_strategy_util.py"},
    {"tpu-name-unknown", kCause, "",
     "Could not lookup TPU metadata from name '{name}'",
     "there is no TPU of this name in this zone and project, or no right to see it",
     "pass zone and project to TPUClusterResolver; check the service account's rights",
     "tensorflow python/tpu/client/client.py"},
    {"tpu-not-ready", kCause, "",
     "TPU \"{name}\" is not yet ready; state: \"{state}\"",
     "the TPU is being made, or is gone (PREEMPTED, TERMINATED)",
     "wait while it is CREATING; one that was preempted has to be deleted and made anew, and the "
     "training goes on from its last checkpoint",
     "tensorflow python/tpu/client/client.py"},
    {"tpu-unhealthy", kCause, "",
     "Timed out waiting for TPU \"{name}\" to become healthy",
     "the TPU's own check of its health fails",
     "stop and start the TPU; make it anew if that does not help",
     "tensorflow python/tpu/client/client.py"},
    {"tpu-preempted", kCause, "",
     "ShutdownHook: lame workers found: {workers}",
     "the TPU announces that it will be taken away, or its host shuts down",
     "make the TPU anew and go on from the last checkpoint; write checkpoints more often",
     "megagonlabs/t5-japanese#1"},
    {"eager-strategy", kCause, "",
     "TPUStrategy.run(fn, ...) does not support pure eager execution",
     "a TPU runs compiled programs only",
     "decorate the step with @tf.function",
     "tensorflow python/distribute/tpu_strategy.py"},
    {"reduce-op", kCause, "",
     "`reduce_op`={op} is not supported. Currently we only support ReduceOp.SUM and ReduceOp.MEAN "
     "in TPUStrategy",
     "cores can be joined by a sum or a mean only",
     "gather the values (strategy.gather) and reduce them on the host",
     "tensorflow python/distribute/tpu_strategy.py"},
    {"loss-reduction", kCause, "reduction-mismatch",
     "Please use `tf.keras.losses.Reduction.SUM` or `tf.keras.losses.Reduction.NONE` for loss "
     "reduction when losses are used with `tf.distribute.Strategy` outside of the built-in "
     "training loops",
     "a mean over one core's samples, summed over the cores, is too large by their number",
     "reduction=NONE, and divide by the whole batch: tf.nn.compute_average_loss(per_sample, "
     "global_batch_size=batch)",
     "tensorflow python/keras/losses.py"},
    {"tpu-not-initialised", kCause, "",
     "Please call tf.tpu.experimental.initialize_tpu_system() before running any ops on tpu\n"
     "The TPU system has not been initialized",
     "the first op for the TPU came before its initialisation, or the TPU has been restarted "
     "since",
     "connect and initialise first: tf.config.experimental_connect_to_cluster, "
     "tf.tpu.experimental.initialize_tpu_system; after a restart of the TPU restart Python, too",
     "tensorflow 2.21 libtensorflow_cc; pytorch/xla#1003"},
    {"device-unassignable", kCause, "pinned-device",
     "",
     "an op is pinned to a device that is not there or has no kernel for it",
     "take it out of the device scope, or set allow_soft_placement; keep input ops on the host",
     ""},
    {"no-shard-context", kRemark, "no-all-reduce",
     "CrossShardOptimizer should be used within a tpu_shard_context, but got unset "
     "number_of_shards\n"
     "cross_replica_sum should be used within a tpu_shard_context, but got unset number_of_shards",
     "the graph is built for one core, so that nothing is summed: right with use_tpu=False, and "
     "for evaluation",
     "on a TPU, let TPUEstimator or tf.compat.v1.tpu build the graph",
     "tensorflow python/tpu/tpu_optimizer.py, python/tpu/ops/tpu_ops.py"},
    {"session-renewed", kConsequence, "",
     "An error was raised while a session was being created.\n"
     "while the session was being created\n"
     "An error was raised. This may be due to a preemption in a connected worker or parameter "
     "server",
     "the session with the TPU's host broke and is opened again, endlessly if its cause stays",
     "look for the first error that is not about a session, in the log of the TPU's host as well: "
     "memory of the device or the host, a preemption, another process on the same TPU",
     "tensorflow python/training/monitored_session.py; tensorflow/models#5633"},
    {"session-closed", kConsequence, "",
     "Closing session due to error {error}\n"
     "Error recorded from {thread}: Step was cancelled by an explicit call to "
     "`Session::Close()`\n"
     "Error recorded from {thread}: Session is closed\n"
     "Aborted: Session {session} is not found",
     "the session was closed after an error elsewhere, and this thread noticed",
     "look for the first error that is not about the session",
     "tensorflow/estimator error_handling.py; kaiyinzhou/BERT-NER#71; pytorch/xla#2661"},
    {"thread-stopped", kConsequence, "",
     "Error recorded from {thread}: {error}",
     "one of TPUEstimator's threads (infeed, outfeed, training_loop) ended with this error",
     "read the words after the colon; of several threads the first that is not about a session",
     "tensorflow/tensorflow#26893"},
    {"remote-handle", kConsequence, "",
     "Unable to find the relevant tensor remote_handle: Op ID: {op}",
     "the TPU's host no longer has a tensor that was made there: an earlier op failed, or the "
     "host was restarted",
     "look for the first error above; restart Python after the TPU was restarted",
     "tensorflow/tensorflow#39296"},
    // clang-format on
};

}  // namespace

std::span<const Message> tensorflow_messages() { return kTensorFlow; }

}  // namespace twinrun::check
