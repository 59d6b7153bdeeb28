"""Signatures of the GPU: its memory, its faults, its driver, its architecture, the CUDA libraries."""

# ruff: noqa: E501  (one row per entry; a pattern that is wrapped cannot be read)
from __future__ import annotations

from gpualert.signature import Role, Signature
from gpualert.taxonomy import FailureClass, FailureDomain

_C = FailureClass
_D = FailureDomain
_S = Signature

#: Codes that mean hardware. 13, 31 and 43 alone are the program's; 45 follows from another; 8, 32, 38 and 69 are either.
_HARDWARE_XIDS = (
    r"4[68]|5[4-8]|6[0-4]|66|68|7[1-9]|8[0-35-9]|92|9[45]|110|119|12[0-689]|13[67]|14[0-9]|15[0-9]|16[0-9]|17[0-2]"
)

ROWS: tuple[Signature, ...] = (
    # -- hardware ------------------------------------------------------------------------------------------------
    _S("gpu.xid_hardware", r"(?i)\bxid\b[^0-9\n]{0,6}(?:\(PCI:[0-9a-fA-F:.]{1,20}\):?|error|code|event|:|=|\s){1,4}[^0-9\n]{0,12}\b(?:" + _HARDWARE_XIDS + r")\b(?!\.)",
       Role.DECISIVE, _C.GPU_HARDWARE),
    _S("gpu.xid_consequence", r"(?i)\bxid\b.{0,40}\b45\b[,:]|preemptive removal|caused by previous xid",
       Role.ECHO, None, proves_not="Xid 45 is the removal of a channel after another error."),
    _S("gpu.xid_program", r"(?i)\bxid\b[^0-9\n]{0,6}(?:\(PCI:[0-9a-fA-F:.]{1,20}\):?|error|:|=|\s){1,3}\s{0,3}(?:13|31|43)\b",
       Role.WEAK, _C.CUDA_RUNTIME, proves_not="Xid 13, 31 and 43 alone come from programs, not from hardware."),
    _S("gpu.sxid", r"(?i)\bSXid\b.{0,60}(?:fatal|\d{5})", Role.DECISIVE, _C.GPU_HARDWARE),
    _S("gpu.off_the_bus", r"(?i)fallen off the bus", Role.DECISIVE, _C.GPU_HARDWARE),
    _S("gpu.lost", r"(?i)\b(?:GPU|device) is lost\b|GPU[_ ]IS[_ ]LOST|GPU requires reset|GPU access blocked|NVML_ERROR_GPU_IS_LOST|GPU reset (?:begin|is) ?(?:required|!)",
       Role.DECISIVE, _C.GPU_HARDWARE),
    _S("gpu.device_handle", r"(?i)unable to determine the device handle for gpu", Role.DECISIVE, _C.GPU_HARDWARE),
    _S("gpu.ecc", r"(?i)uncorrectable ECC error|\bECC_UNCORRECTABLE|ECCUncorrectable|uncorrectable (?:memory|sram|dram) error|double[- ]bit (?:ecc )?error|contained ecc error|ecc error (?:detected|limit)",
       Role.DECISIVE, _C.GPU_HARDWARE),
    _S("gpu.row_remap", r"(?i)row[- ]?remap\w{0,5}.{0,20}fail|remapping failure(?! occurred\s{0,40}:\s{0,4}(?:no|0)\b)|RRF\b.{0,20}fail", Role.DECISIVE, _C.GPU_HARDWARE),
    _S("gpu.nvlink", r"(?i)nvlink.{0,40}(?:uncorrectable|fatal|is down|inactive|down on|fault|failed|error detected)|uncorrectable NVLink|NVLINK_UNCORRECTABLE",
       Role.DECISIVE, _C.GPU_HARDWARE, proves_not="A remote peer's NVLink error names the link, not which end is broken."),
    _S("gpu.hardware_stack", r"(?i)hardware stack error|cudaErrorContained|CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error", Role.ROOT, _C.GPU_HARDWARE),
    _S("gpu.rm_init", r"(?i)RmInitAdapter failed|GSP (?:RPC|firmware).{0,30}(?:timeout|timed out|fail)|Timeout (?:after \d+s )?(?:of )?waiting for (?:RPC|.{0,20}GSP)",
       Role.DECISIVE, _C.GPU_HARDWARE),
    _S("gpu.health_check", r"(?i)\b(?:dcgm\w*|gpu (?:health|diag\w*)).{0,60}\b(?:fail(?:ed|ure)?|unhealthy|error)\b(?!s? ?[:=] ?0)", Role.WEAK, _C.GPU_HARDWARE),
    _S("gpu.amd_fault", r"(?i)amdgpu.{0,60}(?:uncorrectable|GPU reset begin|ring \w+ timeout)", Role.DECISIVE, _C.GPU_HARDWARE),
    # -- driver --------------------------------------------------------------------------------------------------
    _S("driver.nvml_mismatch", r"(?i)driver/library version mismatch|LIB_RM_VERSION_MISMATCH",
       Role.ROOT, _C.DRIVER_MISMATCH, advice="The kernel module and the user library differ after an update: reboot the host or reload the module."),
    _S("driver.nvml_unknown", r"(?i)failed to initialize nvml(?!: (?:driver/library|.{0,20}not found))|NVML_ERROR_(?:UNKNOWN|DRIVER_NOT_LOADED)|NVMLError_(?:Unknown|DriverNotLoaded|LibRmVersion)|nvmlInit(?:_v2)?\(?\)? (?:failed|returned)",
       Role.ROOT, _C.DRIVER_MISMATCH, advice="The container lost its devices (often a systemd daemon-reload): recreate it, and check the container toolkit."),
    _S("driver.too_old", r"(?i)nvidia driver on your system is too old|driver version is insufficient|cudaErrorInsufficientDriver|(?:nvidia|cuda|gpu) driver.{0,40}\b(?:is )?too old|driver .{0,40}(?:older than|requires? (?:at least|a newer))|requires? (?:a )?(?:newer|more recent) (?:nvidia |cuda )?driver|update your (?:nvidia |gpu )?driver",
       Role.ROOT, _C.DRIVER_MISMATCH),
    _S("driver.compat", r"(?i)forward compatibility was attempted|COMPAT_NOT_SUPPORTED_ON_DEVICE|unsupported display driver|SYSTEM_DRIVER_MISMATCH|cudaErrorSystemDriverMismatch|cudaErrorCompatNotSupportedOnDevice",
       Role.ROOT, _C.DRIVER_MISMATCH),
    _S("driver.dso_version", r"kernel version .{1,40} does not match DSO version", Role.ROOT, _C.DRIVER_MISMATCH),
    _S("driver.dso_absent", r"kernel driver does not appear to be running", Role.WEAK, _C.DRIVER_MISMATCH,
       proves_not="A TensorFlow run on a CPU host prints this too."),
    _S("driver.unreachable", r"couldn't communicate with the NVIDIA driver", Role.ROOT, _C.DRIVER_MISMATCH),
    _S("driver.fabric", r"(?i)system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady|fabric ?manager.{0,80}(?:not running|fail|mismatch|inactive|version|start)",
       Role.ROOT, _C.DRIVER_MISMATCH, advice="Start nvidia-fabricmanager in the driver's own version on this host."),
    _S("driver.no_driver", r"(?i)found no nvidia driver|no nvidia driver (?:found|installed|on)|nvidia driver is not (?:loaded|installed)",
       Role.ROOT, _C.DRIVER_MISMATCH),
    _S("driver.container", r"(?i)nvidia-container-cli: .{0,40}(?:error|unsatisfied|failed)|could not select device driver|unsatisfied condition: (?:cuda|driver|brand)|nvidia-container-runtime.{0,60}(?:error|not found|fail)|unresolvable CDI devices",
       Role.ROOT, _C.DRIVER_MISMATCH),
    _S("driver.ptx_toolchain", r"(?i)provided PTX was compiled with an unsupported toolchain|UNSUPPORTED_PTX_VERSION",
       Role.ROOT, _C.DRIVER_MISMATCH),
    _S("driver.cuda_unknown", r"(?i)CUDA unknown error|unexpected error from cudaGetDeviceCount|cudaGetDeviceCount(?:\(\))? (?:failed|returned)|NVML_SUCCESS == r|CUDA driver initialization failed|NVML: Unknown", Role.ROOT, _C.DRIVER_MISMATCH),
    _S("driver.no_gpus", r"(?i)No (?:CUDA|HIP) GPUs are available|no CUDA-capable device is detected|CUDA_ERROR_NO_DEVICE(?!.{0,60}(?:tensorflow|ignore))",
       Role.ROOT, _C.DRIVER_MISMATCH, proves_not="An empty CUDA_VISIBLE_DEVICES looks the same.",
       advice="Check nvidia-smi on the host and CUDA_VISIBLE_DEVICES of the job."),
    _S("driver.cuinit", r"failed call to cuInit", Role.WEAK, _C.DRIVER_MISMATCH, proves_not="TensorFlow prints it on hosts without a GPU."),
    _S("driver.jax_cuda", r"(?i)CUDA backend failed to initialize|Unable to initialize backend 'cuda'(?!.{0,80}(?:module|jaxlib|UNAVAILABLE: No visible))",
       Role.WEAK, _C.DRIVER_MISMATCH),
    # -- memory of the GPU -----------------------------------------------------------------------------------------
    _S("cuda_oom.torch", r"(?i)(?<![\"'`])\b(?:CUDA|HIP|MPS backend|XPU|NPU|cuda runtime error \(2\) :) ?(?:(?:driver )?error: )?(?:\w+ )?out of memory|OutOfMemoryError: (?!Task was|CUDA)(?:Allocation|CUDA|HIP|Out of memory alloc)",
       Role.ROOT, _C.CUDA_OOM),
    _S("cuda_oom.driver_api", r"(?i)CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|\bcuda(?:Malloc|Mem)\w{0,20}\W.{0,40}out of memory|cudaMalloc failed|(?:on|of) (?:the )?GPU\b.{0,40}out of memory|cuMem(?:Alloc|Create).{0,40}(?:out of memory|failed)",
       Role.ROOT, _C.CUDA_OOM),
    _S("cuda_oom.nccl", r"Cuda failure (?:2 )?'?out of memory", Role.ROOT, _C.CUDA_OOM),
    _S("cuda_oom.xla", r"RESOURCE_EXHAUSTED: (?:.{0,40}: )?(?:Out of memory (?!allocating \d)|Failed to allocate|Error allocating|Ran out of memory in memory space hbm|Attempting to (?:allocate|reserve)|XLA:TPU compile permanent error. Ran out of memory|.{0,80}\bhbm\b)",
       Role.ROOT, _C.CUDA_OOM),
    _S("cuda_oom.tensorflow", r"^(?!.{0,400}(?:device:CPU|allocator (?:mkl)?cpu)).{0,400}OOM when allocating tensor with shape", Role.ROOT, _C.CUDA_OOM),
    _S("cuda_oom.tf_allocator", r"(?<!cpu\) )ran out of memory trying to allocate", Role.WEAK, _C.CUDA_OOM,
       proves_not="TensorFlow may go on with less after this warning."),
    _S("cuda_oom.vllm_start", r"(?i)is less than desired GPU memory|no available memory for the cache blocks|larger than the (?:available KV cache memory|maximum number of tokens that can be stored in KV)|not enough (?:gpu )?memory.{0,60}mem[-_]fraction|try increasing `?gpu_memory_utilization|error in memory profiling|not enough GPU memory .{0,40}KV",
       Role.ROOT, _C.CUDA_OOM),
    _S("cuda_oom.insufficient", r"(?i)(?:insufficient|not enough|out of|exhausted|ran out of|lack of) (?:free )?(?:GPU|device|video) (?:memory|RAM)|(?:not enough|insufficient|out of) (?:free )?VRAM|GPU memory (?:is )?(?:exhausted|insufficient)|do(?:es)? not have enough GPU RAM",
       Role.ROOT, _C.CUDA_OOM),
    _S("cuda_oom.accelerate_dispatch", r"Some modules are dispatched on the CPU or the disk", Role.ROOT, _C.CUDA_OOM),
    _S("cuda_oom.cublas_alloc", r"(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED", Role.ROOT, _C.CUDA_OOM,
       proves_not="Rarely a library problem instead."),
    _S("cuda_oom.onnx_llama", r"Failed to allocate memory for requested buffer of size|ggml_backend_cuda_buffer\w*: .{0,60}failed|CUDA\d* buffer.{0,40}failed to allocate|failed to allocate CUDA\d? buffer",
       Role.ROOT, _C.CUDA_OOM),
    # -- architecture ----------------------------------------------------------------------------------------------
    _S("cuda_arch.no_kernel", r"(?i)no kernel image is available|CUDA_ERROR_NO_BINARY_FOR_GPU|cudaErrorNoKernelImageForDevice|invalid device function|device kernel image is invalid",
       Role.ROOT, _C.CUDA_ARCH),
    _S("cuda_arch.rocblas", r"rocBLAS error: .{0,300}for GPU arch\b|rocBLAS error: Could not initialize Tensile|(?i:no (?:tensile|rocblas) (?:library|kernels?) .{0,60}\bgfx\d)", Role.ROOT, _C.CUDA_ARCH),
    _S("cuda_arch.torch_install", r"is not compatible with the current PyTorch installation", Role.ROOT, _C.CUDA_ARCH),
    _S("cuda_arch.found_gpu", r"(?i)PyTorch no longer supports this GPU|of cuda capability [\d.]+ which is|only supports devices of CUDA Capability|(?:is |are )?only supported (?:on|for|by|with) (?:\w+ )?(?:GPUs?|devices|CUDA devices) (?:with|of|having) (?:a )?(?:compute |cuda )?capability|requires? (?:a )?(?:GPUs?|devices?)? ?(?:with )?(?:a )?(?:CUDA |GPU )?(?:compute|device|cuda) capability|(?:minimum|insufficient|unsupported) (?:\w+ )?(?:compute|cuda) capability|compute capability [^.]{0,60}(?:is not supported|not supported|too low|or (?:higher|above|newer)|at least|>=)|does not support .{0,40}compute capability|(?:device|gpu) capability \S{0,12} ?is not supported",
       Role.ROOT, _C.CUDA_ARCH),
    _S("cuda_arch.guard", r"(?i)(?:only (?:supports?|works? on|runs? on|available (?:on|for)|supported (?:on|for|by))|requires?|need(?:s|ed)?|using) (?:an? )?(?:NVIDIA )?(?:\w+ or )?(?:Ampere|Hopper|Turing|Volta|Blackwell|Ada)\b|(?:Ampere|Hopper|Turing|Volta|Blackwell)(?: GPUs?)? (?:or|and) (?:newer|later|above|higher)",
       Role.ROOT, _C.CUDA_ARCH),
    _S("cuda_arch.toolchain", r"(?i)unsupported gpu architecture|'(?:sm|compute)_\d+\w?' is not defined for option|LLVM ERROR: Cannot select: .{0,20}nvvm|unknown (?:target )?(?:CPU|GPU) 'sm_\d+|not compiled for (?:this|the) (?:gpu|device) arch|(?:this|current) gpu(?:'s)? architecture.{0,30}(?:not supported|unsupported)|not supported (?:on|for|by) (?:this|your|the current) GPU(?: architecture| model)?\b|(?:kernel|binary|library|extension|wheel)s? .{0,40}(?:not (?:built|compiled)|without) .{0,20}\bsm_?\d\d",
       Role.ROOT, _C.CUDA_ARCH),
    _S("cuda_arch.bf16", r"(?i)your (?:setup|gpu|device) (?:doesn't|does not) support bf16|bf(?:loat)?16 (?:is |mixed precision )?(?:not supported|unsupported|is only supported) (?:on|by|with) (?:this|your|the current|GPU|CUDA)|(?:fp8|float8|e4m3|fp8e4nv).{0,50}(?:not supported|requires?|only supported|need).{0,50}(?:arch|capability|gpu|H100|hopper|ada|sm_?\d\d|8\.9|9\.0)|type fp8e4nv not supported in this architecture",
       Role.ROOT, _C.CUDA_ARCH),
    # -- program errors on the device ------------------------------------------------------------------------------
    _S("cuda_runtime.device_assert", r"(?i)device-side assert|cudaErrorAssert\b|CUDA_ERROR_ASSERT", Role.ROOT, _C.CUDA_RUNTIME),
    _S("cuda_runtime.kernel_assert", r"block: \[\d+,\s?\d+,\s?\d+\], thread: \[\d+,\s?\d+,\s?\d+\] Assertion `", Role.ROOT, _C.CUDA_RUNTIME),
    _S("cuda_runtime.illegal_address", r"(?i)illegal memory access|ILLEGAL_ADDRESS|cudaErrorIllegalAddress|Memory access fault by GPU", Role.ROOT, _C.CUDA_RUNTIME,
       proves_not="The same access on one GPU only, with an Xid, can be hardware."),
    _S("cuda_runtime.launch", r"(?i)unspecified launch failure|CUDA_ERROR_LAUNCH_(?:FAILED|TIMEOUT|OUT_OF_RESOURCES)|misaligned[_ ]address|illegal instruction was encountered|launch timed out and was terminated|too many resources requested for launch|invalid configuration argument|CUDA_ERROR_ILLEGAL_INSTRUCTION|invalid program counter",
       Role.ROOT, _C.CUDA_RUNTIME),
    _S("cuda_runtime.ordinal", r"(?i)invalid device ordinal|CUDA_ERROR_INVALID_DEVICE\b|cudaErrorInvalidDevice\b",
       Role.ROOT, _C.CUDA_RUNTIME, domain=_D.CONFIGURATION, advice="More processes than visible GPUs: check CUDA_VISIBLE_DEVICES and the number of local ranks."),
    # -- CUDA libraries ----------------------------------------------------------------------------------------------
    _S("cuda_library.status", r"\b(?:CUDNN|CUBLAS|CUSOLVER|CUSPARSE|CURAND|HIPBLAS|hipblas)_STATUS_(?!SUCCESS|ALLOC_FAILED)\w+|CUFFT_(?!SUCCESS)[A-Z]\w+|NVRTC_ERROR_\w+|rocblas_status_(?!success)\w+|miopenStatus(?!Success)\w+",
       Role.ROOT, _C.CUDA_LIBRARY),
    _S("cuda_library.error", r"(?i)\b(?:cudnn|cublas(?:lt)?|cusolver|cusparse|cufft|nvrtc|miopen)(?: frontend)?(?: library)? ?(?:error|failed|:) ?[:\w]|cudnn_frontend error|(?:cuDNN|DNN) failed to initialize",
       Role.ROOT, _C.CUDA_LIBRARY),
    _S("cuda_library.cudnn_version", r"(?i)cuDNN version incompatibility|Loaded runtime CuDNN library: [\d.]+ but source was compiled with|cuDNN failed to initialize|Could not create cudnn handle|(?:incompatible|wrong|mismatched) cuDNN version|cuDNN.{0,40}version mismatch|requires? cuDNN (?:version )?>?=?",
       Role.ROOT, _C.CUDA_LIBRARY),
    _S("cuda_library.dnn_init", r"(?i)DNN library (?:initialization failed|is not found)|Failed to get convolution algorithm|unable to find an engine to execute|unable to find a valid cuDNN algorithm|no algorithm worked|cuSolver internal error|gpusolver\w+.{0,30}failed|Blas x?GEMM\w* launch failed|failed to create cublas handle|no execution plans support|No valid engine configs",
       Role.ROOT, _C.CUDA_LIBRARY),
    _S("cuda_library.magma", r"(?i)\bmagma\b.{0,60}(?:error|failed|illegal)|cutlass (?:error|cannot)", Role.ROOT, _C.CUDA_LIBRARY),
    # -- any other CUDA error ------------------------------------------------------------------------------------------
    _S("cuda_runtime.other", r"(?i)(?<!unhandled )\b(?:CUDA|HIP)(?: runtime| driver)? error(?: at [^:]{1,120}(?::\d+)?)? ?[:(] ?[\w(]|\bCUDA_ERROR_(?!NO_DEVICE)[A-Z_]{4,}|cudaError(?:IllegalState|Unknown|InvalidValue|LaunchFailure|NotSupported|StreamCapture)\w*",
       Role.ROOT, _C.CUDA_RUNTIME, proves_not="The message after 'CUDA error:' may belong to another class; this is the last resort."),
)  # fmt: skip
