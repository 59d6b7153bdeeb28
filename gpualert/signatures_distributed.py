"""Signatures of many processes that work together: finding each other, collectives, launchers, what peers print."""

# ruff: noqa: E501  (one row per entry; a pattern that is wrapped cannot be read)
from __future__ import annotations

from gpualert.signature import Role, Signature
from gpualert.taxonomy import FailureClass, FailureDomain

_C = FailureClass
_D = FailureDomain
_S = Signature

ROWS: tuple[Signature, ...] = (
    # -- a bug in the program, although collectives report it -----------------------------------------------------------
    _S("collective.mismatch", r"(?i)detected mismatch between collectives|mismatch(?:ed)? collective|ranks? .{0,40}(?:are running|called|calling) different collectives?|collectives? (?:mismatch|fingerprint)|inconsistent (?:collective|broadcast|all-?reduce)|mismatched (?:all|reduce|broadcast|shapes? (?:for|in) collective)",
       Role.ROOT, _C.RUNTIME_ERROR, domain=_D.USER_CODE, no_retry=True),
    _S("collective.params_differ", r"appears not to match (?:strides|sizes)|DDP expects same model across all ranks|found inconsistent params|has \d+ params, while rank", Role.ROOT, _C.RUNTIME_ERROR, domain=_D.USER_CODE, no_retry=True),
    _S("ddp.reduction", r"Expected to have finished reduction in the prior iteration|Expected to mark a variable ready only once", Role.ROOT, _C.RUNTIME_ERROR, domain=_D.USER_CODE),
    # -- ranks that do not find each other ---------------------------------------------------------------------------------
    _S("rendezvous.port_in_use", r"(?i)\bEADDRINUSE\b|address (?:is )?already in use|\[Errno 98\]|port \d* ?is already (?:in use|allocated|used|taken)|failed to (?:listen on|bind to|bind on) |server socket has failed",
       Role.ROOT, _C.RENDEZVOUS, advice="Another process holds the port: use a free one (torchrun --standalone, or --rdzv-endpoint=host:0)."),
    _S("rendezvous.client_socket", r"(?i)client socket has (?:timed out|failed)|failed to connect to any network address|TCPStore(?!.{0,80}(?:recv|send)(?:Value|Bytes|Vector)).{0,80}(?:timed? ?out|refused|failed|unreachable)|(?:reset|refused|timed out|unreachable).{0,60}TCPStore|failed to connect to .{0,60}TCPStore", Role.ROOT, _C.RENDEZVOUS),
    _S("rendezvous.gai", r"network addresses of \(.{1,200}\) cannot be retrieved|gai error: -?\d+|getaddrinfo\(?\)? ?(?:failed|error)", Role.ROOT, _C.RENDEZVOUS),
    _S("rendezvous.init_env", r"(?i)error initializing torch\.distributed using|environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK) expected", Role.ROOT, _C.RENDEZVOUS, domain=_D.CONFIGURATION),
    _S("rendezvous.barrier", r"(?i)store based barrier on rank|store_based_barrier.{0,120}timeout|waiting for clients|(?<!\d)\d{1,6}/\d{1,6} (?:clients|workers|ranks|nodes|peers) joined|only \d{1,6} (?:of|out of) \d{1,6} (?:workers|nodes|ranks|clients) (?:joined|registered|connected)",
       Role.ROOT, _C.RENDEZVOUS),
    _S("rendezvous.torch", r"Rendezvous(?:Connection|Timeout|Closed|State)Error|(?i:(?:connection to the C10d store has failed)|rendezvous (?:barrier |backend |handler )?(?:has |was )?(?:failed|timed? ?out|closed|did not complete)|rendezvous .{0,40}(?:timed out|timeout reached)|failed to (?:join|complete|reach|register with) (?:the )?rendezvous)",
       Role.ROOT, _C.RENDEZVOUS),
    _S("rendezvous.gloo", r"(?i)connectFullMesh failed|ifa != nullptr|unable to find (?:address|interface) for|makeDeviceFor(?:Hostname|Interface)|gloo.{0,200}connect (?:timeout|timed out)|\[enforce fail at .{0,80}gloo/transport/tcp/(?:device|pair)\.cc.{0,40}(?:rv != -1|connect)",
       Role.ROOT, _C.RENDEZVOUS),
    _S("rendezvous.store_key", r"(?i)wait timeout after \d+ ?ms, keys:|timeout waiting for key|StoreTimeoutError|timed out (?:after .{1,40})?waiting for key", Role.ROOT, _C.RENDEZVOUS),
    _S("rendezvous.jax", r"(?i)CoordinationService/RegisterTask|RegisterTask\b.{0,200}(?:deadline|unavailable|failed|timed out)|(?:connect(?:ing)?|register(?:ing)?)\b.{0,60}\b(?:coordinator|coordination service)\b.{0,200}(?:fail|timed? ?out|refused|deadline|unavailable)|(?:failed|unable|timed out).{0,60}(?:connect|register|reach).{0,40}\bcoordinat(?:or|ion)|coordinator_address (?:should|must)|DEADLINE_EXCEEDED: .{0,60}(?:barrier|RegisterTask|coordination|topology)",
       Role.ROOT, _C.RENDEZVOUS),
    _S("rendezvous.mpi", r"(?i)unable to reliably start one or more daemons|daemon .{0,40}failed to launch|unable to connect from .{1,80} to .{1,80} \(|ssh exited with exit code 255|PMIX? ?(?:_Init|server|ERROR).{0,60}(?:failed|unreach|error)|unable to launch .{0,20}(?:orted|prted|proxies)",
       Role.ROOT, _C.RENDEZVOUS),
    _S("rendezvous.ray", r"(?i)could not find any running ray instance|failed to connect to (?:the )?(?:ray cluster|GCS)|unable to connect to (?:the )?GCS|(?:timed out|failed).{0,60}(?:connect|join)\w*.{0,20}ray (?:cluster|head)|could not connect to (?:the )?(?:ray head|GCS)",
       Role.ROOT, _C.RENDEZVOUS),
    _S("rendezvous.ssh", r"ssh: connect to host .{1,80} port \d+: |ssh: Could not resolve hostname", Role.ROOT, _C.RENDEZVOUS),
    _S("rendezvous.master", r"(?i)(?:failed|unable|could not|cannot|can't|timed out).{0,40}(?:connect|reach|contact|resolve).{0,40}\b(?:MASTER_ADDR|master(?: node| addr\w*| port)?|rank ?0|head node|main process|chief)\b", Role.ROOT, _C.RENDEZVOUS),
    _S("rendezvous.network", r"(?i)no route to host|network is unreachable|connection refused|temporary failure in name resolution|name or service not known|connection timed out|nodename nor servname|\bconnect\w{0,10} .{0,60}timed out", Role.WEAK, _C.RENDEZVOUS,
       proves_not="Between ranks it is rendezvous; towards a hub it is hub_network; the traceback's frames tell."),
    # -- collectives: a cause only when nothing stands before them ------------------------------------------------------------
    _S("nccl.config", r"Duplicate GPU detected|no socket interface found|(?i:nccl version mismatch|mismatched nccl version)|NCCL WARN (?:Error: )?(?:network \w+ not found|Failed to initialize any NET plugin|invalid (?:config|argument|usage))",
       Role.ECHO, _C.NCCL, domain=_D.CONFIGURATION),
    _S("nccl.socket", r"NCCL WARN .{0,40}(?:[Cc]onnect to .{1,120} failed|Call to connect|socket\w+:? .{0,80}(?:fail|error|timed? ?out|closed|refused)|Connection closed by remote|Bootstrap)|Net ?: Connection closed by remote peer|NCCL WARN .{0,100}(?:No route|refused|unreachable|timed out)",
       Role.ECHO, _C.NCCL),
    _S("nccl.ib", r"NET/IB ?: ?(?:Got completion|Got async event|Unable|.{0,60}(?:error|fail))|NCCL WARN .{0,60}ibv_\w+ failed|\bibv_\w+(?:\(\))? (?:call )?failed|vendor err \d+|local catastrophic error|NET/OFI .{0,80}(?:fail|error|unable)|IBV_WC_\w*ERR",
       Role.ECHO, _C.NCCL, domain=_D.NETWORK),
    _S("nccl.cuda_failure", r"Cuda failure (?:\d+ )?'(?!out of memory)", Role.ECHO, _C.NCCL, proves_not="NCCL is often the first to notice a broken device."),
    _S("nccl.warn", r"\bNCCL WARN (?!.{0,80}(?:deprecated|NCCL_\w+ (?:set|is)|Could not (?:find|load).{0,40}plugin|No plugin|ENV))", Role.ECHO, _C.NCCL),
    _S("nccl.timeout", r"(?i)watchdog caught collective operation timeout|timeout at nccl work|collective (?:operation )?(?:timeout|timed out)|nccl (?:operation |collective |comm\w* )?(?:timeout|timed out)|failed to pass monitoredBarrier|reached monitoredBarrier, but received errors|(?:all_?reduce|all_?gather|broadcast|reduce_?scatter|all_?to_?all|barrier)\w* (?:operation )?(?:has )?timed out|Some NCCL operations have failed|ran for \d+ milliseconds before timing out",
       Role.ECHO, _C.NCCL),
    _S("nccl.error", r"(?i)\bR?NCCL (?:error|failure)|nccl(?:System|UnhandledCuda|Internal|Remote)Error|nccl(?:InvalidUsage|InvalidArgument)\b|NCCL communicator (?:was|has been) aborted|NCCL operation .{0,60}failed|\bnccl[A-Z]\w{3,30}(?:\(.{0,60}\))? failed|setting up NCCL communicator|DistBackendError: (?!\[|.{0,40}(?:watchdog))",
       Role.ECHO, _C.NCCL),
    _S("nccl.monitor", r"(?i)heartbeat monitor timed out|watchdog (?:thread )?(?:got|is) stuck|watchdog thread terminated with exception|dump signal .{0,40}(?:timeout|rank)|exception \(either an error or timeout\) detected by watchdog|Received a (?:global )?(?:dump|timeout) signal", Role.ECHO, _C.NCCL),
    _S("gloo.peer", r"(?i)connection closed by peer \[|(?:broken pipe|reset by peer).{0,20}\[\S{0,80}/gloo/|gloo/transport/.{0,200}(?:closed|reset|timed out|broken|error)|timed out waiting \d+ms for (?:recv|send)|Socket closed|\[.{0,80}/gloo/.{0,100}\] ", Role.ECHO, _C.NCCL),
    _S("store.peer_gone", r"(?i)failed to recv, got \d+ bytes|connection was likely closed|(?:send|recv)(?:Bytes|Value|Vector) failed|failed to check the \"should dump\"|^(?:\S{1,120}: )?(?:RuntimeError: )?Socket Timeout$", Role.ECHO, _C.NCCL,
       proves_not="The store lived in rank 0: its loss says that rank 0 ended."),
    _S("peer.connection", r"ConnectionResetError|BrokenPipeError|(?i:connection reset by peer|broken pipe)", Role.ECHO, None),
    _S("jax.peer_gone", r"(?i)failed to send RPC to coordination service", Role.ECHO, _C.NCCL,
       proves_not="The service lived in process 0, and which task ended first is in another log."),
    _S("ucx.error", r"\bUC[XTS]\s{1,4}ERROR|ucx.{0,60}(?:error|endpoint timeout|failed)", Role.ECHO, _C.NCCL),
    _S("mpi.collective", r"MPI_ERR\w|\b(?:mca_)?btl_\w{1,30}\b.{0,80}(?:fail|error|unreachable)|(?i:MPI (?:collective|communication) error)", Role.ECHO, _C.NCCL),
    _S("xla.rendezvous_stuck", r"(?i)not all of them arrived|(?:is|be) stuck.{0,60}(?:rendezvous|collective|participants)|waiting for all participants", Role.ECHO, _C.NCCL),
    # -- what launchers and peers print afterwards ----------------------------------------------------------------------------
    _S("echo.elastic", r"ChildFailedError|failed \(exitcode: -?\d+\)|Sending process \d+ closing signal|Root Cause \(first observed failure\)|^\s*exitcode\s*: -?\d+|^\d*:?\s*exitcode\s*: -?\d+", Role.ECHO, None),
    _S("echo.supposed", r"(?i)some potential root causes|\b(?:common|possible|likely) (?:causes|reasons) (?:include|are)\b|could be caused by a segmentation fault|crashed unexpectedly due to SIGSEGV or|worker exit (?:type|detail)", Role.ECHO, None,
       proves_not="A list of what may have killed a worker names all suspects."),
    _S("echo.segv", r"exitcode\s{0,3}: -11\b|(?:[Ss]ignal 11\b|\bSIGSEGV\b|exit(?:ed)? (?:on )?signal 11\b)|return(?:ed)? code ?=? -11\b|tasks? [\d,-]+: Segmentation fault", Role.ECHO, _C.SEGFAULT),
    _S("echo.sigkill", r"exitcode\s{0,3}: -9\b|\bSIGKILL\b|signal 9\b|return(?:ed)? code ?=? ?(?:-9|247)\b|killed by signal: Killed|tasks? [\d,-]+: Killed|^Killed$|: Killed\s*$|\bKilled\s{2,}\S|: \d+ Killed\s", Role.ECHO, None,
       proves_not="SIGKILL has many senders; only the kernel, a cgroup counter or the runtime names the OOM killer."),
    _S("echo.sigabrt", r"exitcode\s{0,3}: -6\b|\bSIGABRT\b|Aborted(?: \(core dumped\))?\s*$|Fatal Python error: Aborted", Role.ECHO, None, proves_not="abort(3) is how C++ ends after an error that was printed before."),
    _S("echo.exit_status", r"(?i)returned non-zero exit status|exited with (?:exit )?code [1-9]|exits? with return code ?=? ?-?[1-9]|exit status [1-9]|failed with exit code [1-9]", Role.ECHO, None),
    _S("echo.keras_call", r"Exception encountered when calling (?:layer )?\S", Role.ECHO, None, proves_not="Keras says where; what it was stands in the lines below."),
    _S("echo.called_process", r"CalledProcessError", Role.ECHO, None, proves_not="A launcher's exception about its child says nothing about the child's reason."),
    _S("echo.worker_gone", r"(?i)Caught \w{1,60} in (?:DataLoader worker|replica|pin memory|thread|worker)|exited unexpectedly|died unexpectedly|terminated (?:abruptly|unexpectedly)|BrokenProcessPool|WorkerCrashedError|(?:Ray)?Actor(?:Died|Unavailable)?Error|actor (?:is dead|died)|engine ?core (?:initialization )?(?:failed|died|proc|encountered|hit)|EngineDeadError|AsyncEngineDead|background loop has errored|See root cause above|ProcessExitedException|ProcessRaisedException|TerminatedWorkerError|KilledWorker|-- Process \d+ terminated with the following error|killed by signal: (?:Terminated|Aborted)|worker proc\w* .{0,40}(?:died|failed|failure)",
       Role.ECHO, None),
    _S("echo.signal_exception", r"SignalException: Process \d+ got signal: 15", Role.ECHO, None),
    _S("echo.mpi_abort", r"MPI_ABORT was invoked|mpi(?:run|exec) (?:noticed|detected)|prterun noticed|Primary job\s+terminated normally|exited on signal \d+", Role.ECHO, None),
    _S("echo.srun", r"srun: error: .{0,120}tasks? [\d,-]+: (?:Exited|Killed|Terminated|Aborted|Bus error)|srun: (?:Terminating|Job step aborted|launch/slurm)", Role.ECHO, None),
    _S("echo.terminate", r"terminate called (?:after throwing|without an active)", Role.ECHO, None),
    _S("echo.killing", r"(?i)killing subprocess|forcefully terminating|(?:killing|terminating|stopping) (?:all )?(?:other )?(?:remaining )?(?:workers|ranks|processes|subprocesses)", Role.ECHO, None),
)  # fmt: skip
