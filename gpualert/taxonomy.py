"""The closed vocabularies of a verdict: what happened, whose it is, and what trying again can do.

Three answers are kept apart on purpose: a full disk and a typo are both "failed", but only one of them is worth a
retry. No other module spells one of these names as a string. The reference page is generated from this file.
"""

from __future__ import annotations

from enum import Enum
from typing import Mapping, NamedTuple


class FailureDomain(str, Enum):
    """Whose the failure is: who has to act before another try can end differently."""

    USER_CODE = "user_code"
    CONFIGURATION = "configuration"
    DATA = "data"
    HOST = "host"
    GPU = "gpu"
    NETWORK = "network"
    SCHEDULER = "scheduler"
    UNKNOWN = "unknown"


class RetryOutlook(str, Enum):
    """What another try can do, asked for one place (the same host, or another one)."""

    NO = "no"
    ONCE = "once"
    YES = "yes"
    RARELY = "rarely"
    WITH_RESUME = "with_resume"
    AFTER_CLEANING = "after_cleaning"
    IF_WANTED = "if_wanted"
    BIGGER_MEMORY_HOST = "bigger_memory_host"
    OTHER_GPU_MODEL = "other_gpu_model"
    IF_NODE_LOCAL = "if_node_local"
    NOT_APPLICABLE = "not_applicable"


class FailureClass(str, Enum):
    """What happened. The first fifteen are GPUAlert's and keep their meaning; the others refine them."""

    CUDA_OOM = "cuda_oom"
    NCCL = "nccl"
    CUDA_RUNTIME = "cuda_runtime"
    RAM_OOM = "ram_oom"
    SEGFAULT = "segfault"
    FILE_NOT_FOUND = "file_not_found"
    PERMISSION = "permission"
    MISSING_MODULE = "missing_module"
    DIV_ZERO = "div_zero"
    DEVICE_MISMATCH = "device_mismatch"
    NAN_LOSS = "nan_loss"
    OOM_KILLER = "oom_killer"
    TRACEBACK = "traceback"
    ASSERTION = "assertion"
    RUNTIME_ERROR = "runtime_error"
    SHM_EXHAUSTED = "shm_exhausted"
    GPU_HARDWARE = "gpu_hardware"
    DRIVER_MISMATCH = "driver_mismatch"
    CUDA_ARCH = "cuda_arch"
    CUDA_LIBRARY = "cuda_library"
    RENDEZVOUS = "rendezvous"
    SHAPE_MISMATCH = "shape_mismatch"
    MISSING_LIBRARY = "missing_library"
    SYNTAX_ERROR = "syntax_error"
    USAGE_ERROR = "usage_error"
    DISK_FULL = "disk_full"
    STORAGE_IO = "storage_io"
    FD_LIMIT = "fd_limit"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    CHECKPOINT_MISMATCH = "checkpoint_mismatch"
    DATA_CORRUPT = "data_corrupt"
    HUB_AUTH = "hub_auth"
    HUB_NETWORK = "hub_network"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    NODE_FAILURE = "node_failure"
    INTERRUPTED = "interrupted"
    COMMAND_NOT_FOUND = "command_not_found"
    NOT_EXECUTABLE = "not_executable"
    HANG = "hang"
    SLOWDOWN = "slowdown"
    UNKNOWN = "unknown"
    SUCCESS = "success"


#: The coarse name of a class that none of GPUAlert's fifteen fits.
GENERIC = "generic"


class ClassFacts(NamedTuple):
    """What holds for a class as long as nobody knows better.

    ``same_host`` and ``other_host`` are the default outlook that a retry policy starts from. ``advice`` is one thing
    that a person can do; a signature may carry a better one.
    """

    sentence: str
    coarse: str
    domain: FailureDomain
    same_host: RetryOutlook
    other_host: RetryOutlook
    advice: str


_D = FailureDomain
_R = RetryOutlook
_C = FailureClass

CLASS_FACTS: Mapping[FailureClass, ClassFacts] = {
    _C.CUDA_OOM: ClassFacts(
        "GPU memory exhausted in any framework, or a refusal to start for lack of free GPU memory.",
        "cuda_oom",
        _D.CONFIGURATION,
        _R.NO,
        _R.NO,
        "Lower the batch size, sequence length or memory fraction, or free the GPU of other processes.",
    ),
    _C.RAM_OOM: ClassFacts(
        "An allocation of host memory failed inside the process (MemoryError, bad_alloc, ENOMEM).",
        "ram_oom",
        _D.CONFIGURATION,
        _R.NO,
        _R.BIGGER_MEMORY_HOST,
        "Use fewer loader workers or stream the data, or run where there is more memory.",
    ),
    _C.OOM_KILLER: ClassFacts(
        "Kernel, cgroup or container runtime killed a process for host memory.",
        "oom_killer",
        _D.CONFIGURATION,
        _R.NO,
        _R.BIGGER_MEMORY_HOST,
        "Raise the memory limit of the job or lower what it holds in host memory.",
    ),
    _C.SHM_EXHAUSTED: ClassFacts(
        "/dev/shm is too small or full (bus error in a loader worker, NCCL shared-memory segment).",
        "runtime_error",
        _D.CONFIGURATION,
        _R.NO,
        _R.NO,
        "Enlarge /dev/shm (docker --shm-size, --ipc=host, a Memory emptyDir) or use fewer loader workers.",
    ),
    _C.GPU_HARDWARE: ClassFacts(
        "GPU or NVLink hardware fault: a hardware Xid, uncorrectable ECC, or the GPU fell off the bus.",
        "cuda_runtime",
        _D.GPU,
        _R.NO,
        _R.YES,
        "Take the GPU out of service, keep its Xid and serial number, and run on another host.",
    ),
    _C.DRIVER_MISMATCH: ClassFacts(
        "Driver, NVML, fabric manager or container toolkit is wrong, too old or detached.",
        "runtime_error",
        _D.HOST,
        _R.NO,
        _R.YES,
        "Repair the driver installation of this host (reboot after an update), or install a build for its driver.",
    ),
    _C.CUDA_RUNTIME: ClassFacts(
        "A program error on the device: device-side assert, illegal address, launch failure.",
        "cuda_runtime",
        _D.USER_CODE,
        _R.NO,
        _R.NO,
        "Run once with CUDA_LAUNCH_BLOCKING=1 to find the kernel; check indices and labels that reach it.",
    ),
    _C.CUDA_ARCH: ClassFacts(
        "The binary has no kernels for this GPU's architecture.",
        "cuda_runtime",
        _D.CONFIGURATION,
        _R.NO,
        _R.OTHER_GPU_MODEL,
        "Install a build that supports this GPU's compute capability, or use another GPU model.",
    ),
    _C.CUDA_LIBRARY: ClassFacts(
        "cuDNN, cuBLAS, cuSOLVER, cuFFT or NVRTC failed inside, or their versions conflict.",
        "cuda_runtime",
        _D.CONFIGURATION,
        _R.RARELY,
        _R.RARELY,
        "Check that the CUDA libraries on the search path are those that the framework was built for.",
    ),
    _C.NCCL: ClassFacts(
        "A collective failed or timed out, and the log holds no earlier cause.",
        "nccl",
        _D.NETWORK,
        _R.ONCE,
        _R.YES,
        "Look at the first rank that stopped; run once with NCCL_DEBUG=INFO and check the links between the hosts.",
    ),
    _C.RENDEZVOUS: ClassFacts(
        "Ranks cannot find or reach each other at launch: port in use, refused, DNS, store timeout.",
        "traceback",
        _D.NETWORK,
        _R.ONCE,
        _R.ONCE,
        "Check MASTER_ADDR and MASTER_PORT, and that every rank was started and can reach that address.",
    ),
    _C.NAN_LOSS: ClassFacts(
        "Loss or gradients are not finite and did not recover, or the loss scale was exhausted.",
        "nan_loss",
        _D.USER_CODE,
        _R.NO,
        _R.NO,
        "Lower the learning rate, clip gradients or use bf16, and restart from a checkpoint before the first NaN.",
    ),
    _C.DEVICE_MISMATCH: ClassFacts(
        "Tensors of one operation are on different devices.",
        "device_mismatch",
        _D.USER_CODE,
        _R.NO,
        _R.NO,
        "Move inputs and parameters of that operation to one device.",
    ),
    _C.SHAPE_MISMATCH: ClassFacts(
        "Tensor shapes or dtypes are incompatible in an operation.",
        "runtime_error",
        _D.USER_CODE,
        _R.NO,
        _R.NO,
        "Print shapes and dtypes before the failing operation; compare the model's configuration with the data.",
    ),
    _C.ASSERTION: ClassFacts(
        "An assert in user or library code failed, and says nothing more specific.",
        "assertion",
        _D.USER_CODE,
        _R.NO,
        _R.NO,
        "Read the asserted condition in the traceback's last frame.",
    ),
    _C.DIV_ZERO: ClassFacts(
        "Division by zero.",
        "div_zero",
        _D.USER_CODE,
        _R.NO,
        _R.NO,
        "Look for an empty dataset, loader or split: a length of zero is the usual divisor.",
    ),
    _C.MISSING_MODULE: ClassFacts(
        "A Python module cannot be imported because it is not installed.",
        "missing_module",
        _D.CONFIGURATION,
        _R.NO,
        _R.NO,
        "Install the module into the environment that ran, or choose the right environment.",
    ),
    _C.MISSING_LIBRARY: ClassFacts(
        "A shared object is missing or binary-incompatible (.so not found, undefined symbol).",
        "missing_module",
        _D.CONFIGURATION,
        _R.NO,
        _R.NO,
        "Reinstall the package against the present framework and CUDA, or put the library on LD_LIBRARY_PATH.",
    ),
    _C.SYNTAX_ERROR: ClassFacts(
        "The source does not parse in this interpreter.",
        "traceback",
        _D.USER_CODE,
        _R.NO,
        _R.NO,
        "Fix the line that is shown, or run with the Python version it was written for.",
    ),
    _C.USAGE_ERROR: ClassFacts(
        "The command line was rejected (argparse, click, hydra; exit 2).",
        "generic",
        _D.CONFIGURATION,
        _R.NO,
        _R.NO,
        "Correct the arguments; the program's --help lists those it knows.",
    ),
    _C.RUNTIME_ERROR: ClassFacts(
        "A framework's RuntimeError with no more specific class.",
        "runtime_error",
        _D.USER_CODE,
        _R.NO,
        _R.NO,
        "Read the message and the last frame in your own code.",
    ),
    _C.TRACEBACK: ClassFacts(
        "Any other Python exception.",
        "traceback",
        _D.USER_CODE,
        _R.NO,
        _R.NO,
        "Read the message and the last frame in your own code.",
    ),
    _C.SEGFAULT: ClassFacts(
        "The process died of SIGSEGV.",
        "segfault",
        _D.UNKNOWN,
        _R.ONCE,
        _R.ONCE,
        "Set PYTHONFAULTHANDLER=1 to see the frame; mixed binary packages are the usual cause.",
    ),
    _C.FILE_NOT_FOUND: ClassFacts(
        "A file or directory is missing.",
        "file_not_found",
        _D.CONFIGURATION,
        _R.NO,
        _R.NO,
        "Check the path, the working directory and whether the file system is mounted on this host.",
    ),
    _C.PERMISSION: ClassFacts(
        "EACCES or EPERM on a file, cache, lock or port.",
        "permission",
        _D.CONFIGURATION,
        _R.NO,
        _R.NO,
        "Give the job's user access to the path, or point the cache or output somewhere it may write.",
    ),
    _C.DISK_FULL: ClassFacts(
        "No space left or quota exceeded on a filesystem other than /dev/shm.",
        "traceback",
        _D.HOST,
        _R.AFTER_CLEANING,
        _R.IF_NODE_LOCAL,
        "Free space or raise the quota; keep fewer checkpoints.",
    ),
    _C.STORAGE_IO: ClassFacts(
        "Input/output error, stale handle or remote I/O error of a filesystem.",
        "traceback",
        _D.HOST,
        _R.YES,
        _R.YES,
        "Check the mount and the storage server; another host tells whether it is this one's mount.",
    ),
    _C.FD_LIMIT: ClassFacts(
        'The limit of open files was reached (EMFILE, "0 items of ancdata").',
        "traceback",
        _D.CONFIGURATION,
        _R.NO,
        _R.NO,
        "Raise `ulimit -n`, or set torch's sharing strategy to file_system and use fewer workers.",
    ),
    _C.CHECKPOINT_CORRUPT: ClassFacts(
        "A checkpoint is truncated or damaged.",
        "runtime_error",
        _D.DATA,
        _R.NO,
        _R.NO,
        "Resume from the checkpoint before it and find out why the writer was cut.",
    ),
    _C.CHECKPOINT_MISMATCH: ClassFacts(
        "A readable checkpoint does not fit the model (state_dict keys or sizes).",
        "runtime_error",
        _D.CONFIGURATION,
        _R.NO,
        _R.NO,
        "Build the model with the configuration that the checkpoint was saved with.",
    ),
    _C.DATA_CORRUPT: ClassFacts(
        "Training data is unreadable or damaged.",
        "traceback",
        _D.DATA,
        _R.NO,
        _R.NO,
        "Replace or exclude the damaged file that the message names.",
    ),
    _C.HUB_AUTH: ClassFacts(
        "A model or dataset hub refuses: 401, 403 or gated.",
        "traceback",
        _D.CONFIGURATION,
        _R.NO,
        _R.NO,
        "Give the job a valid token and accept the repository's terms with that account.",
    ),
    _C.HUB_NETWORK: ClassFacts(
        "A hub or mirror is unreachable, offline, rate limited (429), or its name does not resolve.",
        "traceback",
        _D.NETWORK,
        _R.YES,
        _R.YES,
        "Download once into a shared cache before the job, or check proxy and DNS of this host.",
    ),
    _C.PREEMPTED: ClassFacts(
        "The scheduler or the cloud took the resources away.",
        "generic",
        _D.SCHEDULER,
        _R.YES,
        _R.YES,
        "Resume from the last checkpoint.",
    ),
    _C.TIME_LIMIT: ClassFacts(
        "The wall-time limit was reached.",
        "generic",
        _D.SCHEDULER,
        _R.WITH_RESUME,
        _R.WITH_RESUME,
        "Resume from the last checkpoint, or ask for more time.",
    ),
    _C.NODE_FAILURE: ClassFacts(
        "A node or a peer task of the job was lost.",
        "generic",
        _D.HOST,
        _R.NO,
        _R.YES,
        "Run without the lost node.",
    ),
    _C.INTERRUPTED: ClassFacts(
        "Ctrl-C, a terminal that hung up, or a manual cancel.",
        "generic",
        _D.UNKNOWN,
        _R.IF_WANTED,
        _R.IF_WANTED,
        "Start it again if it was not meant to stop.",
    ),
    _C.COMMAND_NOT_FOUND: ClassFacts(
        "The shell or launcher found no such program (127, execve ENOENT).",
        "generic",
        _D.CONFIGURATION,
        _R.NO,
        _R.NO,
        "Activate the environment that holds the program, or give its full path.",
    ),
    _C.NOT_EXECUTABLE: ClassFacts(
        "The program was found but cannot be executed (126).",
        "generic",
        _D.CONFIGURATION,
        _R.NO,
        _R.NO,
        "Check its mode, its first line and that it was built for this machine.",
    ),
    _C.HANG: ClassFacts(
        "No progress until something killed it; no error from the program.",
        "generic",
        _D.UNKNOWN,
        _R.ONCE,
        _R.YES,
        "Take stacks of the ranks (py-spy dump) the next time it stops.",
    ),
    _C.SLOWDOWN: ClassFacts(
        "It ran, but far below its own baseline (throttling, stragglers, starved loader).",
        "generic",
        _D.HOST,
        _R.NO,
        _R.YES,
        "Compare clocks, power caps and storage speed of this host with a healthy one.",
    ),
    _C.UNKNOWN: ClassFacts(
        "It failed, and the evidence does not decide the cause.",
        "generic",
        _D.UNKNOWN,
        _R.ONCE,
        _R.ONCE,
        "Read the last lines; then make what could not be looked at available for the next run.",
    ),
    _C.SUCCESS: ClassFacts(
        "It finished; error-looking text is benign or recovered.",
        "generic",
        _D.UNKNOWN,
        _R.NOT_APPLICABLE,
        _R.NOT_APPLICABLE,
        "Nothing to do.",
    ),
}

DOMAIN_SENTENCES: Mapping[FailureDomain, str] = {
    _D.USER_CODE: "The training program's own code.",
    _D.CONFIGURATION: "How the program was set up or launched: arguments, environment, limits, versions.",
    _D.DATA: "What the program reads: data sets, checkpoints.",
    _D.HOST: "The machine: driver, disks, memory, mounts.",
    _D.GPU: "A GPU or its links.",
    _D.NETWORK: "The network between ranks, or to a hub.",
    _D.SCHEDULER: "The scheduler or cloud that owns the machine.",
    _D.UNKNOWN: "The evidence does not tell.",
}

OUTLOOK_SENTENCES: Mapping[RetryOutlook, str] = {
    _R.NO: "The same failure is certain or nearly so.",
    _R.ONCE: "One more try is worth its price; a second failure of this kind is not chance.",
    _R.YES: "Another try has a good chance.",
    _R.RARELY: "It helps now and then, when the failure came from a passing state of the device.",
    _R.WITH_RESUME: "Another try helps if it resumes from a checkpoint.",
    _R.AFTER_CLEANING: "Another try helps once space has been freed.",
    _R.IF_WANTED: "A person stopped it; a person decides.",
    _R.BIGGER_MEMORY_HOST: "Another host helps if it has more memory or a higher limit.",
    _R.OTHER_GPU_MODEL: "Another host helps if its GPU model is supported by the build.",
    _R.IF_NODE_LOCAL: "Another host helps if the full filesystem was local to this one.",
    _R.NOT_APPLICABLE: "There is nothing to retry.",
}


def coarse_class(failure_class: FailureClass) -> str:
    """One of GPUAlert's fifteen names, or ``generic`` where none of them fits."""
    return CLASS_FACTS[failure_class].coarse


def default_outlook(failure_class: FailureClass) -> tuple[RetryOutlook, RetryOutlook]:
    """The outlook (same host, other host) that holds unless the evidence says otherwise."""
    facts = CLASS_FACTS[failure_class]
    return facts.same_host, facts.other_host


#: Exception types that Python and frameworks use for exactly one class, by the last part of their dotted name.
EXCEPTION_CLASSES: dict[str, FailureClass] = {
    "OutOfMemoryError": _C.CUDA_OOM,
    "CudaOutOfMemoryError": _C.CUDA_OOM,
    "MemoryError": _C.RAM_OOM,
    "_ArrayMemoryError": _C.RAM_OOM,
    "ArrayMemoryError": _C.RAM_OOM,
    "ModuleNotFoundError": _C.MISSING_MODULE,
    "PackageNotFoundError": _C.MISSING_MODULE,
    "ZeroDivisionError": _C.DIV_ZERO,
    "FileNotFoundError": _C.FILE_NOT_FOUND,
    "NotADirectoryError": _C.FILE_NOT_FOUND,
    "PermissionError": _C.PERMISSION,
    "SyntaxError": _C.SYNTAX_ERROR,
    "IndentationError": _C.SYNTAX_ERROR,
    "TabError": _C.SYNTAX_ERROR,
    "KeyboardInterrupt": _C.INTERRUPTED,
    "AssertionError": _C.ASSERTION,
    "RuntimeError": _C.RUNTIME_ERROR,
    "FloatingPointError": _C.NAN_LOSS,
    "UnidentifiedImageError": _C.DATA_CORRUPT,
    "BadZipFile": _C.DATA_CORRUPT,
    "BadGzipFile": _C.DATA_CORRUPT,
    "ArrowInvalid": _C.DATA_CORRUPT,
    "SafetensorError": _C.CHECKPOINT_CORRUPT,
    "GatedRepoError": _C.HUB_AUTH,
    "RepositoryNotFoundError": _C.HUB_AUTH,
    "LocalTokenNotFoundError": _C.HUB_AUTH,
    "OfflineModeIsEnabled": _C.HUB_NETWORK,
    "LocalEntryNotFoundError": _C.HUB_NETWORK,
    "RendezvousConnectionError": _C.RENDEZVOUS,
    "RendezvousTimeoutError": _C.RENDEZVOUS,
    "DistStoreError": _C.RENDEZVOUS,
    "DistNetworkError": _C.RENDEZVOUS,
    "DistBackendError": _C.NCCL,
    "GPUMemoryError": _C.CUDA_OOM,
}
