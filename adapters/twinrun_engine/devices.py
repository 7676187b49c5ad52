"""The devices that a framework sees, for an engine's hello (docs/reference/engine-protocol.md#hello): what `twinrun doctor` lists."""


def reason(error):
    """The first line of an error, or its class."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:400]


def jax_devices(jax):
    """JAX's devices. One can be used if four bytes go there and come back."""
    found = []
    for device in jax.devices():
        facts = {"name": str(device), "kind": str(device.device_kind), "memory": None, "used": None, "trouble": ""}
        try:
            memory = device.memory_stats() or {}
            facts |= {"memory": memory.get("bytes_limit"), "used": memory.get("bytes_in_use")}
        except Exception:    # some platforms raise where they have no numbers
            pass
        try:
            if float(jax.device_put(1.5, device)) != 1.5:
                facts["trouble"] = "1.5 was sent to it, and another number came back"
        except Exception as error:    # of the runtime: out of memory, a lost link, a driver
            facts["trouble"] = reason(error)
        found.append(facts)
    return found


def torch_devices(torch, own):
    """PyTorch's accelerators and its CPU, `own` first: the one that the engine runs on."""
    found = []
    for name in dict.fromkeys([str(own), *(f"cuda:{i}" for i in range(torch.cuda.device_count())), "cpu"]):
        facts = {"name": name, "kind": "cpu", "memory": None, "used": None, "trouble": ""}
        try:
            if name != "cpu":
                facts["kind"] = torch.cuda.get_device_name(name)
                free, facts["memory"] = torch.cuda.mem_get_info(name)
                facts["used"] = facts["memory"] - free
            if float(torch.tensor(1.5).to(name)) != 1.5:
                facts["trouble"] = "1.5 was sent to it, and another number came back"
        except Exception as error:    # of the driver, or of a device that another process holds
            facts["trouble"] = reason(error)
        found.append(facts)
    return found


def tensorflow_devices(tf):
    """TensorFlow's logical devices."""
    found = []
    for device in tf.config.list_logical_devices():
        facts = {"name": device.name, "kind": device.device_type, "memory": None, "used": None, "trouble": ""}
        try:
            with tf.device(device.name):
                if float(tf.identity(1.5)) != 1.5:
                    facts["trouble"] = "1.5 was sent to it, and another number came back"
        except Exception as error:    # of the runtime
            facts["trouble"] = reason(error)
        found.append(facts)
    return found
