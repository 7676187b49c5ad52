"""The variants, as data: what somebody who ports a training script gets wrong, on what it is tried, and what a right answer says.

    from variants import VARIANTS, PAIRS
    v = VARIANTS["adam_epsilon_after_correction"]
    v.what, v.scenario, v.settings, v.words, v.keys, v.frameworks

`words` are regular expressions of which one must be found in the headline or a finding of the verdict PROGRAM, without regard to case.
They are the words that people use, written without a look at twinrun's own catalogue. `keys` are what a setting of that name might be
called there; one of them is as good as a word. Several formulas that compute the same numbers on what is tried may all be named: right is an
answer with the true one among them.
"""
import dataclasses

BOTH = ("torch", "jax")


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    what: str                    # in the script, against the scenario
    scenario: str                # of scenarios/
    settings: tuple              # of --set
    words: tuple
    keys: tuple = ()
    frameworks: tuple = BOTH
    cores: int = 1
    verdicts: tuple = ("PROGRAM",)    # classes that are right, where words are found


VARIANTS = {}


def variant(name, what, scenario, settings=(), words=(), keys=(), **more):
    settings = tuple(settings.split()) if isinstance(settings, str) else tuple(settings)
    words, keys = ((x,) if isinstance(x, str) else tuple(x) for x in (words, keys))
    assert name not in VARIANTS, name
    VARIANTS[name] = Variant(name, what, scenario, settings, words, keys, **more)


TORCH, JAX = {"frameworks": ("torch",)}, {"frameworks": ("jax",)}
EPSILON = (r"epsilon",)
LOSS_MEAN = (r"(loss|batch|samples).{0,80}\b(sum|mean|average|added)", r"\b(sum|mean|average)[a-z]*.{0,60}(loss|batch|samples)")
RATE = (r"\brate\b",)
UNBIASED = (r"\b(un)?biased", r"bessel", r"n ?[-−] ?1\b")
SHIFTED = (r"(schedule|rate).{0,80}\b(late|early|earlier|later|ahead|behind|off by|next|before|after)\b",
        r"\b(late|early|ahead|behind)\b.{0,80}(schedule|rate)")
FROZEN = (r"frozen|not trained|left out|freez|not updated|never|detach|stop_?gradient|stopped",)

# ---- Adam and AdamW -------------------------------------------------------------------------------------------------------------
ADAM = "optimizer.kind=adam optimizer.lr=0.004"
ADAMW = "optimizer.kind=adamw optimizer.lr=0.004 optimizer.weight_decay=0.05"
AFTER = (r"epsilon.{0,80}after", r"epsilon.{0,80}correct", r"epsilon hat", r"pytorch|optax")
FORM = r"optimizer\.epsilon_(form|place|placement)"

variant("adam_epsilon_after_correction", "Adam adds epsilon after the correction of the bias, as PyTorch and optax do", "mlp",
        ADAM + " optimizer.epsilon=1e-7", AFTER, FORM)
variant("adam_epsilon_inside_root", "Adam adds epsilon inside the root", "mlp", ADAM, (r"epsilon.{0,80}(inside|under|within)", r"root"), FORM)
variant("adam_epsilon_inside_root_after_correction", "Adam adds epsilon inside the root of the corrected average", "mlp", ADAM,
        (r"epsilon.{0,80}(inside|under|within)",), FORM, **TORCH)
variant("adam_epsilon_1e-7", "Adam's epsilon is Keras's 1e-7 instead of 1e-8", "mlp", ADAM, EPSILON, r"optimizer\.epsilon")
variant("adam_epsilon_1e-6", "Adam's epsilon is 1e-6 instead of 1e-8", "mlp", ADAM, EPSILON, r"optimizer\.epsilon", **TORCH)
variant("adam_epsilon_1e-5", "Adam's epsilon is 1e-5 instead of 1e-8", "mlp", ADAM, EPSILON, r"optimizer\.epsilon", **JAX)
variant("adam_epsilon_1e-3", "Adam's epsilon is 1e-3 instead of 1e-8", "mlp", ADAM, EPSILON, r"optimizer\.epsilon")
variant("no_bias_correction", "Adam without corrections of the bias, as BERT's", "mlp", ADAM, (r"bias.{0,20}correct", r"correct.{0,30}bias"),
        r"optimizer\.bias_correction")
variant("only_first_bias_corrected", "Adam corrects the bias of the first moment only", "mlp", ADAM,
        (r"bias.{0,20}correct", r"correct.{0,30}bias", r"correct.{0,40}(first|second)"), r"optimizer\.bias_correction")
variant("bias_correction_one_step_ahead", "Adam's counter is one step ahead", "mlp", ADAM,
        (r"(one|a) step (late|ahead|early|off)", r"counter", r"bias.{0,20}correct"), r"optimizer\.bias_correction", **TORCH)
variant("bias_correction_always_of_the_first_step", "Adam's counter is never moved", "mlp", ADAM,
        (r"bias.{0,20}correct", r"counter"), r"optimizer\.bias_correction", **JAX)
variant("adam_beta2_0.99", "Adam's beta2 is 0.99 instead of 0.999", "mlp", ADAM, (r"beta_?2", r"second moment"), r"optimizer\.beta2")
variant("adam_beta2_0.98", "Adam's beta2 is 0.98 instead of 0.999, as of transformers", "mlp", ADAM, (r"beta_?2", r"second moment"),
        r"optimizer\.beta2", **TORCH)
variant("adam_beta1_0.5", "Adam's beta1 is 0.5 instead of 0.9", "mlp", ADAM, (r"beta_?1", r"first moment"), r"optimizer\.beta1", **JAX)
variant("amsgrad", "Adam keeps the largest second moment (AMSGrad)", "mlp", ADAM, (r"amsgrad", r"largest|maximum"), r"optimizer\.amsgrad")
variant("nadam_for_adam", "Nadam (without its schedule) in the place of Adam", "mlp", ADAM, (r"nadam", r"nesterov"), r"\w+\.\w*(nesterov)", **TORCH)
variant("weight_decay_coupled", "weight decay is added to the gradient, which the moments see", "mlp", ADAMW,
        (r"coupled", r"decay.{0,60}gradient", r"l2"), r"optimizer\.(weight_)?decay")
variant("weight_decay_not_times_rate", "decoupled weight decay is not times the learning rate", "mlp",
        "optimizer.kind=adamw optimizer.lr=0.004 optimizer.weight_decay=0.004", (r"decay.{0,80}rate", r"rate.{0,80}decay"),
        r"optimizer\.(weight_)?decay")
variant("weight_decay_missing", "there is no weight decay", "mlp", ADAMW, (r"weight.?decay",), r"optimizer\.weight_decay")
variant("weight_decay_of_0.01", "weight decay is PyTorch's 0.01 instead of 0.05", "mlp", ADAMW, (r"weight.?decay",),
        r"optimizer\.weight_decay", **TORCH)
variant("weight_decay_on_kernels_only", "biases and the parameters of norms have no weight decay", "phrases", ADAMW,
        (r"decay.{0,80}(kernel|bias|norm|matri|rank|vector)", r"(kernel|bias|norm|matri|rank|vector).{0,80}decay"), r"\w+\.\w*(decay)")
variant("torch_optim", "torch.optim.AdamW as it is, with the scenario's numbers", "phrases", ADAMW + " optimizer.epsilon=1e-7", AFTER, FORM, **TORCH)
variant("optax_as_it_is", "optax.adamw as it is, with the scenario's numbers", "phrases", ADAMW + " optimizer.epsilon=1e-7", AFTER, FORM, **JAX)

# ---- other rules ----------------------------------------------------------------------------------------------------------------
RMS = "optimizer.kind=rmsprop optimizer.lr=0.002 optimizer.momentum=0.9"
variant("rmsprop_epsilon_outside_root", "RMSProp adds epsilon beside the root, as PyTorch does", "mlp", RMS + " optimizer.epsilon=1e-3",
        (r"epsilon.{0,80}(outside|beside|after)", r"root"), FORM)
variant("rmsprop_epsilon_1e-3", "RMSProp's epsilon is 1e-3 instead of 1e-10", "mlp", RMS, EPSILON, r"optimizer\.epsilon", **TORCH)
variant("rmsprop_rho_0.99", "RMSProp's average has PyTorch's 0.99 instead of 0.9", "mlp", RMS, (r"\brho\b", r"decay of the average", r"alpha"),
        r"optimizer\.rho")
variant("rmsprop_rate_outside_momentum", "RMSProp's momentum has no learning rate in it, as PyTorch's", "mlp", RMS,
        (r"rate.{0,80}momentum", r"momentum.{0,80}rate"), r"\w+\.\w*(momentum)", **TORCH)
variant("rmsprop_not_centered", "RMSProp is not centered", "mlp", RMS + " optimizer.centered=true optimizer.epsilon=1e-3", (r"cent(er|re)",),
        r"optimizer\.centered")
variant("rmsprop_starts_at_zero", "RMSProp's average of squares starts from 0 instead of 1", "mlp", RMS,
        (r"\bstart", r"initial", r"first average"), r"optimizer\.(initial|rms)", **TORCH)
ADAGRAD = "optimizer.kind=adagrad optimizer.lr=0.02"
variant("adagrad_epsilon_inside_root", "Adagrad adds epsilon inside the root, as optax does", "mlp",
        ADAGRAD + " optimizer.initial_accumulator=0 optimizer.epsilon=1e-7", (r"epsilon.{0,80}(inside|under|within)", r"root"), FORM)
variant("adagrad_epsilon_1e-10", "Adagrad's epsilon is PyTorch's 1e-10 instead of 1e-7", "mlp", ADAGRAD + " optimizer.initial_accumulator=0",
        EPSILON, r"optimizer\.epsilon", **TORCH)
variant("adagrad_starts_at_zero", "Adagrad's sum of squares starts from 0 instead of 0.1", "mlp", ADAGRAD,
        (r"\bstart", r"initial accumulator", r"initial_accumulator"), r"optimizer\.initial_accumulator")
ADAMAX = "optimizer.kind=adamax optimizer.lr=0.004"
variant("adamax_epsilon_before_maximum", "Adamax adds epsilon to the gradient's size before the maximum, as PyTorch does", "mlp",
        ADAMAX + " optimizer.epsilon=1e-6", (r"epsilon.{0,80}(before|maximum)",), FORM)
variant("no_bias_correction_adamax", "Adamax without the correction of the bias", "mlp", ADAMAX, (r"bias.{0,20}correct", r"correct.{0,30}bias"),
        r"optimizer\.bias_correction", **TORCH)
ADADELTA = "optimizer.kind=adadelta optimizer.lr=1"
variant("adadelta_rho_0.9", "Adadelta's rho is PyTorch's 0.9 instead of 0.95", "mlp", ADADELTA, (r"\brho\b",), r"optimizer\.rho")
variant("adadelta_epsilon_1e-6", "Adadelta's epsilon is PyTorch's 1e-6 instead of 1e-8", "mlp", ADADELTA, EPSILON, r"optimizer\.epsilon", **TORCH)
variant("adadelta_epsilon_outside_roots", "Adadelta adds epsilon beside both roots", "mlp", ADADELTA + " optimizer.epsilon=1e-6",
        (r"epsilon.{0,80}(outside|beside)", r"root"), FORM, **JAX)
LAMB = "optimizer.kind=lamb optimizer.lr=0.004 optimizer.weight_decay=0.01"
variant("no_bias_correction_lamb", "LAMB without corrections of the bias", "mlp", LAMB, (r"bias.{0,20}correct", r"correct.{0,30}bias"),
        r"optimizer\.bias_correction")
variant("lamb_epsilon_inside_root", "LAMB adds epsilon inside the root", "mlp", LAMB, (r"epsilon.{0,80}(inside|under|within)", r"root"),
        FORM, **TORCH)
variant("lamb_epsilon_1e-8", "LAMB's epsilon is 1e-8 instead of 1e-6", "mlp", LAMB, EPSILON, r"optimizer\.epsilon", **JAX)
variant("lamb_norm_without_decay", "LAMB's trust ratio is of the step before weight decay", "mlp", LAMB + " optimizer.weight_decay=0.1",
        (r"trust", r"ratio", r"norm.{0,60}decay", r"decay"), r"optimizer\.(trust|weight_decay)", **TORCH)
variant("lamb_trust_ratio_missing", "LAMB without its trust ratio", "mlp", LAMB, (r"trust", r"ratio"), r"optimizer\.trust", **JAX)

# ---- momentum, rates, schedules -------------------------------------------------------------------------------------------------
variant("nesterov_added", "Nesterov's form where plain momentum is asked for", "mlp", "", (r"nesterov",), r"optimizer\.nesterov")
variant("nesterov_missing", "plain momentum where Nesterov's form is asked for", "mlp", "optimizer.nesterov=true", (r"nesterov",),
        r"optimizer\.nesterov")
variant("momentum_dampened", "momentum with dampening: an average of the gradients", "mlp", "", (r"dampen", r"average", r"1 ?[-−] ?m"),
        r"optimizer\.(dampening|momentum)")
variant("momentum_complement", "the coefficient of momentum is 0.1, the share that is not kept", "mlp", "", (r"momentum",), r"optimizer\.momentum")
variant("momentum_0.95", "momentum is 0.95 instead of 0.9", "mlp", "", (r"momentum",), r"optimizer\.momentum", **TORCH)
variant("momentum_has_the_rate", "the velocity has the learning rate in it, as Keras's and Caffe's", "mlp", "",
        (r"rate.{0,80}(momentum|velocity)", r"(momentum|velocity).{0,80}rate"), r"\w+\.\w*(momentum)")
variant("rate_times_10", "the learning rate is ten times too large", "mlp", "", RATE, r"optimizer\.lr")
variant("rate_tenth", "the learning rate is a tenth", "mlp", ADAM, RATE, r"optimizer\.lr", **TORCH)
variant("rate_half", "the learning rate is half", "cnn", "", RATE, r"optimizer\.lr", **JAX)
variant("rate_times_batch", "the learning rate is times the batch", "mlp", "optimizer.kind=sgd optimizer.lr=0.005", RATE, r"optimizer\.lr", **TORCH)
variant("rate_over_batch", "the learning rate is divided by the batch", "mlp", "", RATE, r"optimizer\.lr", **JAX)
FALLS = "optimizer.schedule=exponential optimizer.decay_rate=0.5 optimizer.decay_steps=10"
variant("schedule_one_step_late", "the schedule is one step late", "mlp", FALLS, SHIFTED, r"optimizer\.(schedule|lr)")
variant("schedule_one_step_early", "the schedule is one step early", "mlp", FALLS, SHIFTED,
        r"optimizer\.(schedule|lr)")
variant("schedule_ignored", "the learning rate is constant where a schedule is asked for", "mlp", FALLS, (r"schedule|\brate\b|constant",),
        r"optimizer\.(schedule|lr)", **TORCH)
variant("schedule_staircase_forgotten", "the exponential schedule has no staircase", "mlp", FALLS + " optimizer.staircase=true",
        (r"staircase|schedule|\brate\b",), r"optimizer\.(staircase|schedule|lr)", **JAX)
variant("warmup_missing", "there is no warm-up", "mlp", "optimizer.warmup_steps=10", (r"warm",), r"optimizer\.warmup")
variant("warmup_begins_at_one", "the warm-up begins at 1/W instead of 0", "mlp", "optimizer.warmup_steps=10",
        (r"warm", *SHIFTED), r"optimizer\.(warmup|schedule)", **TORCH)
variant("schedule_counts_the_warmup", "the schedule counts the steps of the warm-up too", "mlp", FALLS + " optimizer.warmup_steps=6",
        (r"warm", r"schedule"), r"optimizer\.(warmup|schedule)", **JAX)

# ---- what makes a gradient ----------------------------------------------------------------------------------------------------
FOURS = "train.accumulate=4"
variant("accumulation_summed", "gradients of four steps are added up where a mean is asked for", "mlp", FOURS, (r"accumul",), r"\w+\.\w*(accumulate)")
variant("accumulation_averaged", "a mean of the gradients of four steps where a sum is asked for", "mlp", FOURS + " train.accumulate_reduction=sum",
        (r"accumul",), r"\w+\.\w*(accumulate)", **TORCH)
variant("accumulation_ignored", "every step makes an update, where gradients of four are due", "mlp", FOURS, (r"accumul",),
        r"\w+\.\w*(accumulate)", **TORCH)
variant("loss_scale_left_in", "gradients still have the 1024 of a scaled loss", "mlp", "", (r"1,?024", r"\bscale", r"factor"), r"loss\.\w+", **TORCH)
variant("loss_summed", "the loss is a sum over the batch where a mean is asked for", "mlp", "", LOSS_MEAN, r"loss\.reduction")
variant("loss_averaged", "the loss is a mean where a sum over the batch is asked for", "mlp", "loss.reduction=sum optimizer.lr=0.003",
        LOSS_MEAN, r"loss\.reduction", **JAX)
variant("loss_mean_over_classes", "cross entropy is a mean over the classes too", "mlp", "", (r"\bclasses\b",), r"loss\.\w+")
variant("loss_summed_over_classes", "squared errors are added up over the classes where a mean is asked for", "features", "",
        (r"\bclasses\b",), r"loss\.\w+")
variant("loss_summed_over_classes_sigmoid", "binary cross entropies are added up over the classes", "mlp", "loss.kind=sigmoid_cross_entropy",
        (r"\bclasses\b",), r"loss\.\w+", **TORCH)
variant("squared_error_halved", "half the squared error", "features", "", (r"half|0\.5|factor|1/2",), r"loss\.\w+", **JAX)
variant("label_smoothing_missing", "there is no label smoothing", "mlp", "loss.smoothing=0.1", (r"smooth",), r"loss\.smoothing")
variant("label_smoothing_0.1", "label smoothing of 0.1 that nobody asked for", "cnn", "", (r"smooth",), r"loss\.smoothing", **TORCH)
variant("label_smoothing_on_the_others", "label smoothing is spread over the other classes only", "mlp", "loss.smoothing=0.1", (r"smooth",),
        r"loss\.smoothing")
variant("softmax_twice", "probabilities are given to a cross entropy of logits", "mlp", "", (r"softmax", r"probabilit", r"twice"),
        r"loss\.\w*softmax")
variant("loss_weights_ignored", "samples are not weighted", "phrases", "", (r"loss.{0,60}weight|weight.{0,40}(ignored|sample|token)",),
        r"loss\.weights")
variant("label_zero_ignored", "the loss ignores label 0, as if it were padding", "letters", "", (r"label 0|ignor",), r"loss\.ignore\w*")
variant("labels_off_by_one", "labels are one too small", "mlp", "", (r"label",), r"data\.\w*label", **TORCH)
variant("l2_missing", "there is no L2 term", "cnn", "optimizer.l2=0.01", (r"\bl2",), r"optimizer\.l2")
variant("l2_doubled", "L2 is the sum of squares times l2, not half of it", "mlp", "optimizer.l2=0.01", (r"\bl2",), r"optimizer\.l2")
variant("l2_on_all_parameters", "L2 is over biases, too", "cnn", "optimizer.l2=0.1", (r"\bl2.{0,80}(bias|all|param|kernel)", r"bias"),
        r"optimizer\.l2")
variant("l2_in_the_optimizer", "L2 is the optimizer's weight_decay, as torch.optim.SGD's: loss and gradient do not show it", "mlp",
        "optimizer.l2=0.05", (r"\bl2", r"weight.?decay"), r"optimizer\.l2", **TORCH)
NORM = "optimizer.clip=norm optimizer.clip_at=0.05"
ALL = "optimizer.clip=global_norm optimizer.clip_at=0.1"
variant("clip_missing", "gradients are not clipped", "mlp", ALL, (r"clip",), r"optimizer\.clip")
variant("clip_by_value", "clipped by value where the norm of all is asked for", "mlp", ALL, (r"clip",), r"optimizer\.clip")
variant("clip_by_norm", "clipped by each variable's norm where the norm of all is asked for", "mlp", ALL, (r"clip",), r"optimizer\.clip", **TORCH)
variant("clip_by_global_norm", "clipped by the norm of all where each variable's is asked for", "mlp", NORM, (r"clip",), r"optimizer\.clip")
variant("clip_as_pytorch", "PyTorch's clipping by norm, with 1e-6 beside the norm", "features",
        "optimizer.clip=global_norm optimizer.clip_at=0.01", (r"1e-0?6", r"clip"), r"\w+\.\w*(clip)")
variant("clip_before_reduction", "each core clips its own gradient, before the reduction", "mlp", ALL, (r"clip",), r"\w+\.\w*(clipping)",
        cores=4, verdicts=("PROGRAM", "SHARDING", "NOISE", "INCONCLUSIVE"))

# ---- norms, dropout -------------------------------------------------------------------------------------------------------------
variant("batch_norm_epsilon_1e-5", "batch norm's epsilon is 1e-5 instead of 1e-3", "cnn", "", EPSILON, r"batch_norm\d?\.epsilon")
variant("batch_norm_epsilon_1e-3", "batch norm's epsilon is 1e-3 instead of 1e-5", "cnn", "model.layers.batch_norm1.epsilon=1e-5", EPSILON,
        r"batch_norm\d?\.epsilon", **TORCH)
variant("batch_norm_momentum_0.9", "batch norm's momentum is 0.9 instead of 0.99", "cnn", "", (r"momentum",), r"batch_norm\d?\.momentum")
variant("batch_norm_momentum_complement", "batch norm's momentum is the share of the new batch, as PyTorch has it", "cnn",
        "model.layers.batch_norm1.momentum=0.9", (r"momentum",), r"batch_norm\d?\.momentum")
variant("batch_norm_running_variance_biased", "the running variance of images is biased", "cnn",
        "model.layers.conv1.stride=7 model.layers.batch_norm1.momentum=0.9 train.batch=4",
        UNBIASED, r"\w+\.\w*(variance)")
variant("batch_norm_running_variance_unbiased", "the running variance of [batch, features] is unbiased, as PyTorch's", "features", "",
        UNBIASED, r"\w+\.\w*(variance)")
variant("batch_norm_in_eval_mode", "batch norm is in evaluation mode while it trains", "cnn", "", (r"eval", r"running|moving", r"inference"),
        r"batch_norm")
variant("batch_norm_statistics_frozen", "running statistics never move", "features", "", (r"running|moving|statistic",),
        r"\w+\.\w*(batch_norm)", **TORCH)
variant("layer_norm_epsilon_1e-5", "layer norm's epsilon is PyTorch's 1e-5 instead of 1e-3", "phrases", "", EPSILON, r"layer_norm\d?\.epsilon")
variant("layer_norm_epsilon_1e-6", "layer norm's epsilon is Flax's 1e-6 instead of 1e-3", "phrases", "", EPSILON, r"layer_norm\d?\.epsilon", **JAX)
variant("layer_norm_epsilon_1e-12", "layer norm's epsilon is BERT's 1e-12 instead of 1e-5", "letters", "", EPSILON,
        r"layer_norm\d?\.epsilon", **TORCH)
variant("layer_norm_epsilon_1e-3", "layer norm's epsilon is Keras's 1e-3 instead of 1e-5", "letters", "", EPSILON, r"layer_norm\d?\.epsilon", **JAX)
variant("layer_norm_variance_unbiased", "layer norm divides by the unbiased deviation", "phrases", "", UNBIASED, r"\w+\.\w*(variance|layer_norm)")
variant("layer_norm_epsilon_outside", "layer norm adds epsilon to the deviation, outside the root", "phrases", "",
        (r"epsilon.{0,80}(outside|beside|deviation)", r"root"), r"\w+\.\w*(layer_norm)", **TORCH)
variant("layer_norm_over_tokens_too", "layer norm is over tokens and features", "letters", "", (r"token|axes|axis|dimension|layer.?norm",),
        r"\w+\.\w*(layer_norm)", **TORCH)
variant("group_norm_epsilon_1e-5", "group norm's epsilon is PyTorch's 1e-5 instead of 1e-3", "groups", "", EPSILON, r"group_norm\d?\.epsilon")
variant("group_norm_group_size_for_groups", "the number of groups is taken for their size", "groups", "", (r"group",), r"\w+\.\w*(groups)")
variant("dropout_not_scaled", "what dropout keeps is not divided by the share kept", "features", "", (r"dropout",), r"\w+\.\w*(dropout)")
variant("dropout_keep_for_rate", "dropout's rate is taken for the share kept", "features", "", (r"dropout",), r"\w+\.\w*(dropout)")
variant("dropout_off", "there is no dropout", "features", "", (r"dropout",), r"\w+\.\w*(dropout)", **TORCH)

# ---- convolutions, pools, activations -------------------------------------------------------------------------------------------
variant("conv_padding_symmetric", "convolutions at stride 2 are padded alike on both sides", "cnn", "", (r"padd",), r"\w+\.\w*(padding)")
variant("conv_padding_valid", "convolutions are not padded", "groups", "", (r"padd", r"valid"), r"\w+\.\w*(padding)")
variant("pool_padding_symmetric", "pools are padded alike on both sides", "groups", "", (r"padd",), r"\w+\.\w*(padding)", **TORCH)
variant("avg_pool_counts_padding", "average pooling counts the padding", "cnn", "", (r"padd", r"pool"), r"\w+\.\w*(pool)")
variant("max_pool_pads_zeros", "max pooling pads with zeros", "cnn", "model.layers.max_pool1.window=3 model.layers.max_pool1.stride=2",
        (r"padd", r"zero"), r"\w+\.\w*(pool)", **TORCH)
variant("avg_for_max_pool", "average in the place of max pooling", "cnn", "", (r"pool",), r"\w+\.\w*(pool)")
variant("max_for_avg_pool", "max in the place of average pooling", "cnn", "", (r"pool",), r"\w+\.\w*(pool)", **TORCH)
variant("global_max_for_avg_pool", "a global maximum in the place of the mean", "groups", "", (r"pool",), r"\w+\.\w*(pool)", **JAX)
variant("flatten_channels_first", "flattened channels first", "cnn", "", (r"channel", r"flatten", r"nchw"), r"\w+\.\w*(flatten)")
variant("kernels_flipped", "kernels are flipped: true convolutions", "cnn", "", (r"flip", r"true convolution", r"cross-?correlation"),
        r"\w+\.\w*(conv)")
variant("kernels_transposed", "height and width of kernels are exchanged", "cnn", "", (r"transpos", r"height", r"exchang"),
        r"\w+\.\w*(conv)", **TORCH)
variant("gelu_tanh", "GELU by tanh where erf is asked for", "phrases", "model.layers.gelu1.approximate=false", (r"gelu", r"tanh"),
        r"\w+\.\w*(gelu|approximate)")
variant("gelu_erf", "GELU by erf where tanh is asked for", "letters", "", (r"gelu", r"\berf"), r"\w+\.\w*(gelu|approximate)", **JAX)
variant("gelu_quick", "x sigmoid(1.702 x) in the place of GELU", "cnn", "", (r"gelu", r"1\.702"), r"\w+\.\w*(gelu|approximate)", **TORCH)
variant("leaky_relu_slope_0.01", "leaky relu's slope is PyTorch's 0.01 instead of 0.2", "cnn", "", (r"slope",), r"\w+\.\w*(slope)")
variant("leaky_relu_slope_0.3", "leaky relu's slope is Keras's 0.3 instead of 0.2", "cnn", "", (r"slope",), r"\w+\.\w*(slope)", **TORCH)
variant("relu_for_silu", "relu in the place of silu", "groups", "", (r"silu|relu",), r"\w+\.\w*(silu)", **JAX)
variant("hard_sigmoid", "a hard sigmoid in the place of the sigmoid", "groups", "", (r"sigmoid",), r"\w+\.\w*(sigmoid)", **TORCH)
variant("bias_missing", "the first layer has no bias", "mlp", "", (r"bias",), r"dense1\.bias", **TORCH)

# ---- sequences ------------------------------------------------------------------------------------------------------------------
variant("attention_unscaled", "attention scores are not divided by the root of the head's size", "phrases", "", (r"\bscal", r"\broot\b"),
        r"\w+\.\w*(attention)")
variant("attention_scaled_by_all_units", "scores are divided by the root of all units", "letters", "", (r"\bscal", r"\broot\b", r"head"),
        r"\w+\.\w*(attention)", **TORCH)
variant("padding_mask_missing", "attention sees padding", "phrases", "", (r"mask",), r"\w+\.\w*(mask)")
variant("causal_mask_missing", "attention sees the future", "letters", "", (r"causal", r"mask"), r"\w+\.\w*(causal)")
variant("heads_interleaved", "heads take units in turns", "letters", "", (r"head",), r"\w+\.\w*(head)", **JAX)
variant("mean_over_padding_too", "the mean over tokens counts padding", "phrases", "", (r"padding", r"mask", r"weight"),
        r"\w+\.\w*(mask|mean)", **TORCH)
variant("residual_missing", "there is no residual connection", "letters", "", (r"residual", r"skip connection"), r"\w+\.\w*(add|sum|input)", **TORCH)
variant("position_embedding_missing", "there is no position embedding", "letters", "", (r"position",), r"\w+\.\w*(position|stream)", **JAX)
variant("embedding_times_root_of_units", "embeddings are times the root of the units", "letters", "", (r"embedding",), r"\w+\.\w*(embedding)")
variant("embedding_padding_row_frozen", "the embedding of token 0 never learns (padding_idx=0)", "phrases", "model.layers.attention1.masked=false",
        (r"embedding.{0,80}(row|0|padding)", r"padding"), r"\w+\.\w*(embedding)", **TORCH)

# ---- what is fed, what learns ---------------------------------------------------------------------------------------------------
variant("input_times_255", "pixels are 0 to 255", "mlp", "optimizer.lr=1e-4", (r"255",), r"data\.\w*(scale|range|shift|layout)")
variant("input_over_255", "pixels are divided by 255 once more", "cnn", "", (r"255",), r"data\.\w*(scale|range|shift|layout)", **TORCH)
variant("input_mnist_standardised", "images are standardised by MNIST's mean and deviation", "mlp", "",
        (r"standardi|0\.1307|shift|normali",), r"data\.\w*(scale|range|shift|layout)")
variant("input_minus_one_to_one", "pixels are -1 to 1", "groups", "", (r"[-−]1 to 1|\[[-−]1|shift|range|scale",),
        r"data\.\w*(scale|range|shift|layout)", **JAX)
variant("input_channels_reversed", "blue, green, red", "groups", "", (r"channel", r"bgr", r"rgb", r"revers"), r"data\.\w*(channel|order)")
variant("input_transposed", "height and width of images are exchanged", "cnn", "", (r"transpos|height|exchang",),
        r"data\.\w*(scale|range|shift|layout)", **TORCH)
variant("next_batch", "the batch of the next step", "features", "", (r"batch.{0,60}(next|step)", r"next.{0,60}batch",
        r"(step|batch).{0,30}(ahead|early)"),
        r"data\.\w*(shift|offset|batch)", **TORCH)
variant("layer_frozen", "the first layer is frozen: its gradient is zero", "mlp", "", FROZEN, r"dense1\.(trainable|frozen)")
variant("layer_left_out_of_optimizer", "the first layer is not among the optimizer's parameters", "cnn", "",
        FROZEN, r"conv1\.(trainable|frozen)")
variant("bias_left_out_of_optimizer", "the last bias is not among the optimizer's parameters", "mlp", "",
        FROZEN, r"dense3\.(trainable|frozen)", **TORCH)
variant("gradient_stopped", "the gradient stops behind the first layer", "mlp", "", FROZEN, r"dense1\.(trainable|frozen)", **JAX)
variant("ema_of_weights_before_update", "averaged weights take the weights before the update", "mlp", "optimizer.ema=0.9",
        (r"averag|ema",), r"\w+\.\w*(ema)", **TORCH)
variant("ema_decay_0.99", "the decay of averaged weights is 0.99 instead of 0.9", "mlp", "optimizer.ema=0.9", (r"averag|ema",),
        r"\w+\.\w*(ema)", **JAX)

# What an engine is told: the entry's name, unless the same mistake is tried on another optimizer or loss.
ASKED = {"no_bias_correction_adamax": "no_bias_correction", "no_bias_correction_lamb": "no_bias_correction",
         "loss_summed_over_classes_sigmoid": "loss_summed_over_classes", "optax_as_it_is": "optax"}

# Two at once: the settings are those of both; a right answer names both.
PAIRS = {
    "adam_epsilon_after_correction,adam_beta2_0.99": ("mlp", ADAM + " optimizer.epsilon=1e-7", BOTH),
    "adam_epsilon_after_correction,weight_decay_coupled": ("mlp", ADAMW + " optimizer.epsilon=1e-7", ("torch",)),
    "batch_norm_epsilon_1e-5,batch_norm_momentum_0.9": ("cnn", "", BOTH),
    "leaky_relu_slope_0.01,nesterov_added": ("cnn", "", ("torch",)),
    "layer_norm_epsilon_1e-5,gelu_tanh": ("phrases", "model.layers.gelu1.approximate=false", BOTH),
    "label_smoothing_missing,clip_missing": ("mlp", "loss.smoothing=0.1 " + ALL, ("jax",)),
    "conv_padding_symmetric,batch_norm_epsilon_1e-5": ("cnn", "", ("torch",)),
    "l2_doubled,momentum_complement": ("mlp", "optimizer.l2=0.01", ("jax",)),
    "attention_unscaled,schedule_one_step_late": ("letters", FALLS, ("torch",)),
    "dropout_not_scaled,batch_norm_running_variance_unbiased": ("features", "", ("torch",)),
}


def asked(name):
    """What --variant is given."""
    return ",".join(ASKED.get(part, part) for part in name.split(","))


def entries():
    """[(name, framework)] of all that is tried, single mistakes first."""
    found = [(v.name, framework) for v in VARIANTS.values() for framework in v.frameworks]
    return found + [(name, framework) for name, (_, _, frameworks) in PAIRS.items() for framework in frameworks]


def entry(name):
    """(what, scenario, settings, [(words, keys) of each mistake], cores, verdicts)"""
    if name in VARIANTS:
        v = VARIANTS[name]
        return v.what, v.scenario, v.settings, [(v.words, v.keys)], v.cores, v.verdicts
    scenario, settings, _ = PAIRS[name]
    parts = [VARIANTS[part] for part in name.split(",")]
    return "; ".join(v.what for v in parts), scenario, tuple(settings.split()), [(v.words, v.keys) for v in parts], 1, ("PROGRAM",)
