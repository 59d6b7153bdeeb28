"""Lines that are no causes: quotations, settings, retries, habits of the software; and facts about how a run went."""

# ruff: noqa: E501  (one row per entry; a pattern that is wrapped cannot be read)
from __future__ import annotations

from gpualert.signature import Role, Signature

_S = Signature

ROWS: tuple[Signature, ...] = (
    # -- quoted or configured ---------------------------------------------------------------------------------------------
    _S("quoted.policy", r"(?i)\b(?:\w+[-_ ])?(?:policy|policies)\b\s*[:=]|\b(?:on_error|on_oom|on_failure|on_nan|retry_on|restart_on|alert_on|(?:(?:error|fatal)_)?patterns?|keywords|triggers)\b['\"]?\s*[:=]|\b(?:watch(?:ing)?|look(?:ing)?|grep(?:ping)?|scan(?:ning)?|alert|match(?:ing)?) (?:for|on)\b.{0,40}[\"']",
       Role.BENIGN),
    _S("quoted.arrow", r"[\"'].{3,80}[\"']\s*(?:->|=>)|(?:->|=>)\s*(?:restart|resume|retry|halve|skip|ignore|abort|continue|requeue)", Role.BENIGN, words=("->", "=>")),
    _S("quoted.on", r"(?i)\b(?:on|if|when) \"[^\"]{3,80}\"|\bif you (?:see|get|encounter|run into|hit|experience)\b|\bin case (?:of|you)\b|^\s*(?:#|//) |^(?:hint|tip|note|help|faq)\s?: (?!.{0,40}previous)",
       Role.BENIGN, words=('on "', 'if "', 'when "', "on '", "if you see", "if you get", "if you encounter", "in case of", "in case you", "when you see", "should you", "if this fails", "to avoid", "to prevent", "to debug", "for debugging", "troubleshoot")),
    _S("quoted.shell_trace", r"^\++ (?!.{0,300}(?:command not found|No such file))\S", Role.BENIGN, words=("+ ",)),
    _S("quoted.source", r"\bre\.(?:compile|search|match)\(|^\s{0,8}[-*•] (?:Fix(?:e[sd])?|Avoid(?:s|ed)?|Handle[sd]?|Improve[sd]?|Prevent(?:s|ed)?) ", Role.BENIGN,
       proves_not="Source code and lists of changes speak of errors that somebody else had."),
    _S("quoted.prompt", r"^(?:\S{1,60}[@:]\S{0,80})?[$#] +(?:docker|podman|kubectl|journalctl|dmesg|grep|cat|tail|sacct|scontrol|nvidia-smi|ls|ps|echo|sudo|head)\b", Role.BENIGN,
       proves_not="A command that looks for something has not found it.", words=("$ ", "# ")),
    _S("quoted.advice", r"^For debugging consider passing|^Compile with `TORCH_USE|kernel errors might be asynchronously|^Search for `cudaError", Role.BENIGN),
    _S("quoted.previous", r"(?i)\b(?:previous|prior|earlier|last|former|preceding) (?:attempt|run|job|try|launch|incarnation|execution)\b.{0,80}(?:ended|failed|died|exit|was|crash|killed|with|:|\()|\bpreviously (?:failed|crashed|ended|killed)|\blast time\b.{0,40}(?:failed|crashed|died)", Role.BENIGN),
    _S("quoted.help", r"^\s*(?:usage: )?.{0,100}\[--\w[\w-]* ?[^\]]{0,60}\]|^\s{1,8}(?:-\w, )?--[\w-]+ ", Role.BENIGN, words=("[--", "usage:")),
    _S("quoted.tests", r"\b(?:PASSED|SKIPPED|XFAIL)\b", Role.BENIGN),
    _S("quoted.megatron", r"number of (?:nan|skipped) iterations:", Role.BENIGN),
    _S("quoted.counter_zero", r"(?i)\b(?:errors?|failed|failures?|oom_kills?|oom|nans?|timeouts?|uncorrectable|ecc(?: errors?)?|xids?|killed)\b ?[:=] ?(?:0\b(?![.x]\w)|(?:false|none|no|\[\])\s{0,3}(?:$|[,;)}\]]))", Role.BENIGN),
    # -- retried, recovered, survived ---------------------------------------------------------------------------------------
    _S("recovered.retry", r"(?i)^\W{0,6}retry\b|\bretrying\b|\bwill (?:be )?retr(?:y|ied)|\bretry(?:ing)? (?:\d|in |after |attempt|again|on |with |#|the )|\[retry\]|\b(?:attempt|try|retry) #?\d+ ?(?:/|of|out of) ?\d+|\btrying again\b|entering retry loop|\bbacking off\b|\breconnect(?:ing|ed)\b|Retry\(total=[1-9]",
       Role.BENIGN),
    _S("recovered.hub_retry", r"thrown while requesting (?:HEAD|GET|PUT|POST)", Role.BENIGN),
    _S("recovered.fallback", r"(?i)\bfall(?:ing|s)? ?back\b|\bfallback (?:to|on)\b|\bskipp(?:ing|ed)\b(?!.{0,20}(?:remaining|tests))|(?<!xception )\bignor(?:e|ed|ing)\b(?!\()|\brecovered\b|\bcontinuing\b|\bwill continue\b|\bnon-?fatal\b|\bharmless\b|\bcan be (?:safely )?ignored|\b(?:halving|reducing|decreasing|lowering) (?:the )?(?:micro|per[-_ ]device|train|auto|current )?[-_ ]?(?:batch|bs\b)|\bcontinu(?:e|ing) without|\busing (?:the )?(?:default|internal|slower)|\bnot critical\b|\bauto(?:matically)?[-_ ](?:find|scal)\w*.{0,30}batch",
       Role.BENIGN),
    _S("recovered.loss_scale", r"(?i)overflow.{0,60}(?:skipping|reducing|ignoring|attempted)|reducing loss scale|attempted loss scale|loss scale (?:reduced|lowered|decreased) to [1-9]", Role.BENIGN,
       ),
    _S("habit.exception_ignored", r"Exception ignored (?:in|on|while)", Role.NOTE, proves_not="Python prints it when an object dies; the exit status does not change."),
    _S("habit.logging_error", r"--- Logging error ---|^Exception in thread ", Role.NOTE, proves_not="The process goes on after either."),
    # -- habits of the software ---------------------------------------------------------------------------------------------
    _S("habit.tensorflow", r"(?i)unable to register cu\w+ factory|TF-TRT Warning|ignore above cudart|cannot dlopen some GPU|NUMA node read|computation placer already|could not load dynamic library|oneDNN custom operations|This TensorFlow binary is optimized|could not find (?:cuda drivers|TensorRT)",
       Role.BENIGN),
    _S("habit.nccl_info", r"NCCL INFO (?:Channel|Rings?|Trees?|Connected|Bootstrap|cudaDriver|NET/(?!Plugin|IB ?: ?Got)|Using|threadThresholds|Setting|Check|Launch|P\wP|Comm config|TUNER|MNNVL|ncclCommInitRank|NCCL_|comm \w{3,20} rank)(?!.{0,300}(?:rror|[Ff]ail|[Aa]bort|COMPLETE))", Role.BENIGN),
    _S("habit.nccl_plugin", r"NET/Plugin ?: ?.{0,120}(?:cannot open|No such file|not found|No plugin|internal)|No plugin found|NCCL INFO (?!.{0,300}(?:-> [1-9]\b|Abort|error|fail|COMPLETE))|NCCL INFO \S{1,120}:\d+ -> \d|(?:TUNER|PROFILER|ENV)/Plugin", Role.BENIGN),
    _S("habit.process_group", r"process group has NOT been destroyed|destroy_process_group\(\) was not called", Role.BENIGN),
    _S("habit.wandb", r"^wandb: (?:Waiting for|Run |View|Synced|Find logs|Tracking|Syncing|Currently|WARNING|Network error|Uploading|updating|You can sync|\s|$)|wandb: .{0,40}\(failed \d+\)\. Press", Role.BENIGN),
    _S("habit.warnings", r"\b(?:Future|Deprecation|Resource|PendingDeprecation|Syntax|Import)Warning\b|(?i:\bis deprecated\b|\bhas been deprecated\b|leaked (?:semaphore|shared_memory))|UserWarning: (?:This DataLoader will create|The given NumPy|Can't initialize NVML|Failed to load image Python|Mem ?Efficient|Flash|.{0,60}(?:deprecat|will be removed))|RuntimeWarning: (?:os\.fork|coroutine|'?\S{1,120} found in sys\.modules)", Role.BENIGN),
    _S("habit.bitsandbytes", r"BUG REPORT=|submit your error trace|CUDA SETUP: (?:Loading|CUDA|Highest|Detected|Required)", Role.BENIGN),
    _S("habit.pictures", r"Corrupt EXIF data|[Pp]ossibly corrupt EXIF|libpng warning|Palette images with Transparency|Truncated File Read|DecompressionBombWarning", Role.BENIGN,
       proves_not="Image libraries remark on files that they read all the same."),
    _S("habit.nfs_busy", r"\[Errno (?:16|39)\].{0,80}\.nfs|Device or resource busy: '.{0,200}\.nfs|Directory not empty: '.{0,100}(?:pymp|tmp|wandb)", Role.BENIGN),
    _S("habit.hf", r"Some weights of .{0,120}(?:not used|not initialized|newly)|newly initialized|huggingface/tokenizers: The current process just got forked|To disable this warning", Role.BENIGN),
    _S("habit.apex", r"(?i)apex was installed without|(?:is|are) not (?:installed|available)[.,;] ?(?:using|falling|proceeding|will use|disabling|so)|no module named '?triton'?.{0,40}(?:optimi|some)|xformers (?:is )?not (?:available|installed|found)|A matching Triton is not available", Role.BENIGN),
    _S("habit.accelerate_install", r"(?i)^(?:pip|conda).{0,10}warning|WARNING: Running pip as|WARNING: There was an error checking the latest version|^npm WARN|^DEPRECATION:", Role.BENIGN),
    _S("habit.tensorboard_port", r"(?i)tensorboard.{0,60}(?:could not bind|port).{0,60}(?:in use|already)", Role.BENIGN),
    _S("note.finished", r"(?i)\btraining (?:is )?(?:has )?(?:been )?(?:complete[d]?|finished|done|successful)\b|\bfinished training\b|total training time|`Trainer\.fit` stopped: `max_(?:steps|epochs)|train_runtime|^\s*(?:all )?done[.!]?\s*$|\b(?:finished|completed|exited) (?:successfully|normally)\b|\bfinal (?:checkpoint|model) (?:saved|written)|saved final|^exit status 0$|\brun (?:is )?(?:finished|complete[d]?)\b|\bjob (?:finished|completed)\b(?!.{0,20}(?:exit|code) [1-9])|\bexit(?:ed)? (?:with )?(?:status|code) 0\b|saving (?:final|last) (?:model|checkpoint)|saving checkpoint to \S{0,120}final",
       Role.NOTE),
    _S("note.early_stop_validation", r"(?i)early[- ]?stopping|did not improve", Role.NOTE),
    _S("note.stopped_early", r"(?i)\b(?:stopping|stopped|ending|exiting|terminating) (?:the )?(?:run |job |training )?early\b|\babort(?:ing|ed)?\b(?:[: ]|$)|\bgiving up\b|\bquarantined\b|\b(?:terminating|exiting|stopping)[.:,]?(?: now| the (?:run|job|training))?\s*$|, (?:terminating|exiting|stopping|aborting)\b",
       Role.NOTE),
    _S("note.restart", r"(?i)\brestarting (?:the )?(?:worker|rank|process|training|job|run|container)|\bresum(?:ing|ed) (?:training )?from\b|\brespawn(?:ing|ed)\b|\brelaunch(?:ing|ed)\b|worker group (?:FAILED|restart)|will restart worker group", Role.NOTE),
    _S("note.host_memory_reading", r"(?i)(?:CPU Virtual Memory|host[- _]?(?:mem(?:ory)?|ram)|\bRAM\b|system memory|cpu mem(?:ory)?|node mem(?:ory)?|\bmem(?:ory)?[ _]usage|\bmem(?:ory)?_(?:percent|used)).{0,60}?(?:9[5-9](?:\.\d+)?|100(?:\.0+)?) ?%|percent ?= ?(?:9[5-9]|100)(?:\.\d+)?%?|(?:RAM|host memory|cpu memory|system memory)\D{0,30}(9[5-9]\d?|\d{3,4})(?:\.\d+)?\s*(?:GB|GiB|G)?\s*/\s*\d", Role.NOTE),
    _S("note.collectives_ready", r"NCCL INFO comm .{0,160}Init COMPLETE", Role.NOTE),
    _S("note.first_collective", r"(?i)entering (?:step|iteration|barrier|all_?reduce)|waiting (?:at|in) (?:the )?barrier", Role.NOTE),
    _S("note.shm_path", r"/dev/shm\b", Role.NOTE),
    _S("note.error_file", r"(?:error_file\s*:|(?:reply|error)[ _]file(?: to)?:?)\s*\(?/\S{1,1000}\.json\b", Role.NOTE, proves_not="It names where a rank may have left its traceback."),
    _S("note.slurm_job", r"srun: job \d+|[Ss]ubmitted batch job \d+|Granted job allocation \d+", Role.NOTE, proves_not="It names the job whose state a scheduler can be asked for."),
)  # fmt: skip
