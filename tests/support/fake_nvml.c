/*
 * A libnvidia-ml.so.1 without a GPU: as much of NVML as the module pynvml calls for us, answering from a script.
 *
 * The script is the file "script" beside the library, read again at every call, so that a test changes what a driver
 * says while it runs, and no environment variable is needed. One entry a line, "key value"; the last one counts:
 *
 *   count 2             GPUs
 *   0.temp 71           a value of GPU 0 (without "0.": of all)
 *   0.procs 41:1024     compute processes, "pid:bytes", "-" for bytes that the driver does not tell
 *   error.mem 999       the call named "mem" returns this number (nvmlReturn_t); also 1.error.mem
 *   1.lost 1            every question about GPU 1 returns 15 (GPU is lost), its handle too with 1.error.handle
 *   hang.mem 1          the call never returns, whatever signals it gets that can be ignored; also 1.hang.mem
 *   crash.mem 1         the call writes to address 0; also 1.crash.mem
 *
 * Build: cc -shared -fPIC -o libnvidia-ml.so.1 fake_nvml.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int uint;
typedef unsigned long long ull;
typedef int Result;
typedef struct { int number; } Device;

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };
static const ull UNKNOWN = ~0ULL;

static Device devices[64];
static Device slices[64]; /* MIG devices: number = GPU * 8 + place */

/* -- the script */

static int look(const char *key, char *value, size_t size) {
    Dl_info here;
    char path[4096], line[1024];
    size_t length = strlen(key);
    int found = 0;
    if (!dladdr((void *)look, &here) || !here.dli_fname) return 0;
    snprintf(path, sizeof path, "%s", here.dli_fname);
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 16, "script");
    FILE *script = fopen(path, "r");
    if (!script) return 0;
    while (fgets(line, sizeof line, script))
        if (!strncmp(line, key, length) && line[length] == ' ') {
            line[strcspn(line, "\r\n")] = 0;
            snprintf(value, size, "%s", line + length + 1);
            found = 1;
        }
    fclose(script);
    return found;
}

static int look_for(const Device *device, const char *key, char *value, size_t size) {
    char own[128];
    if (device) {
        snprintf(own, sizeof own, "%d.%s", device->number, key);
        if (look(own, value, size)) return 1;
    }
    return look(key, value, size);
}

static int has(const Device *device, const char *key) {
    char value[1024];
    return look_for(device, key, value, sizeof value);
}

static ull number(const Device *device, const char *key, ull otherwise) {
    char value[1024];
    return look_for(device, key, value, sizeof value) ? strtoull(value, NULL, 0) : otherwise;
}

static void text(const Device *device, const char *key, const char *otherwise, char *out, uint size) {
    char value[1024];
    snprintf(out, size, "%s", look_for(device, key, value, sizeof value) ? value : otherwise);
}

/* What the script wants of every call: to hang, to crash, to fail. */
static Result enter(const Device *device, const char *call) {
    char key[128];
    snprintf(key, sizeof key, "hang.%s", call);
    if (has(device, key)) {
        signal(SIGTERM, SIG_IGN);
        for (;;) pause();
    }
    snprintf(key, sizeof key, "crash.%s", call);
    if (has(device, key)) *(volatile int *)0 = 1;
    snprintf(key, sizeof key, "error.%s", call);
    Result failure = (Result)number(device, key, SUCCESS);
    if (failure) return failure;
    return device && number(device, "lost", 0) && strcmp(call, "handle") ? LOST : SUCCESS;
}

#define ENTER(device, call) do { Result r = enter(device, call); if (r) return r; } while (0)
/* A value that is not in the script is not supported by this GPU. */
#define NEED(device, key) do { if (!has(device, key)) return NOT_SUPPORTED; } while (0)

/* -- the system */

Result nvmlInitWithFlags(uint flags) { (void)flags; ENTER(NULL, "init"); return SUCCESS; }
Result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Result nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(Result result) { (void)result; return "an error of the stand-in"; }

Result nvmlSystemGetDriverVersion(char *out, uint size) {
    ENTER(NULL, "driver");
    text(NULL, "driver", "570.86.15", out, size);
    return SUCCESS;
}

Result nvmlSystemGetNVMLVersion(char *out, uint size) {
    text(NULL, "nvml", "12.570.86.15", out, size);
    return SUCCESS;
}

Result nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ENTER(NULL, "cuda");
    *out = (int)number(NULL, "cuda", 12080);
    return SUCCESS;
}
Result nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

Result nvmlDeviceGetCount_v2(uint *out) {
    ENTER(NULL, "count");
    *out = (uint)number(NULL, "count", 1);
    return SUCCESS;
}

Result nvmlDeviceGetHandleByIndex_v2(uint index, Device **out) {
    if (index >= (uint)number(NULL, "count", 1) || index >= 64) return INVALID;
    devices[index].number = (int)index;
    ENTER(&devices[index], "handle");
    *out = &devices[index];
    return SUCCESS;
}

/* -- one GPU */

static int is_slice(const Device *device) { return device >= slices && device < slices + 64; }

Result nvmlDeviceGetName(Device *device, char *out, uint size) {
    ENTER(device, "name");
    text(device, "name", "NVIDIA H100 80GB HBM3", out, size);
    return SUCCESS;
}

Result nvmlDeviceGetUUID(Device *device, char *out, uint size) {
    char otherwise[64];
    if (is_slice(device)) {
        snprintf(out, size, "MIG-00000000-0000-0000-%04d-%012d", device->number / 8, device->number % 8);
        return SUCCESS;
    }
    ENTER(device, "uuid");
    snprintf(otherwise, sizeof otherwise, "GPU-0000000%d-0000-0000-0000-%012d", device->number % 10, device->number);
    text(device, "uuid", otherwise, out, size);
    return SUCCESS;
}

typedef struct { char legacy[16]; uint domain, bus, device, id, subsystem; char address[32]; } Pci;
Result nvmlDeviceGetPciInfo_v3(Device *device, Pci *out) {
    char otherwise[32];
    ENTER(device, "pci");
    memset(out, 0, sizeof *out);
    snprintf(otherwise, sizeof otherwise, "00000000:%02X:00.0", 0x1B + 0x20 * device->number);
    text(device, "pci", otherwise, out->address, sizeof out->address);
    return SUCCESS;
}

typedef struct { ull total, free, used; } Memory;
Result nvmlDeviceGetMemoryInfo(Device *device, Memory *out) {
    ENTER(device, "mem");
    out->total = number(device, "mem_total", 85899345920ULL);
    out->used = number(device, "mem_used", 0) + number(device, "mem_reserved", 0);
    out->free = out->total - out->used;
    return SUCCESS;
}

typedef struct { uint version; ull total, reserved, free, used; } MemoryV2;
Result nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *out) {
    ENTER(device, "mem_v2");
    ENTER(device, "mem");
    out->total = number(device, "mem_total", 85899345920ULL);
    out->reserved = number(device, "mem_reserved", 0);
    out->used = number(device, "mem_used", 0);
    out->free = out->total - out->used - out->reserved;
    return SUCCESS;
}

Result nvmlDeviceGetUtilizationRates(Device *device, uint *out) {
    ENTER(device, "util");
    NEED(device, "util");
    out[0] = (uint)number(device, "util", 0);
    out[1] = (uint)number(device, "memory_util", 0);
    return SUCCESS;
}

Result nvmlDeviceGetTemperature(Device *device, uint sensor, uint *out) {
    (void)sensor;
    ENTER(device, "temp");
    NEED(device, "temp");
    *out = (uint)number(device, "temp", 0);
    return SUCCESS;
}

Result nvmlDeviceGetCurrentClocksEventReasons(Device *device, ull *out) {
    ENTER(device, "event_reasons");
    NEED(device, "throttle");
    *out = number(device, "throttle", 0);
    return SUCCESS;
}

Result nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, ull *out) {
    ENTER(device, "throttle_reasons");
    NEED(device, "throttle");
    *out = number(device, "throttle", 0);
    return SUCCESS;
}

Result nvmlDeviceGetTotalEccErrors(Device *device, uint type, uint counter, ull *out) {
    static const char *const keys[2][2] = {{"ecc_ce", "ecc_ce_life"}, {"ecc_ue", "ecc_ue_life"}};
    ENTER(device, "ecc");
    if (type > 1 || counter > 1) return INVALID;
    NEED(device, keys[type][counter]);
    *out = number(device, keys[type][counter], 0);
    return SUCCESS;
}

Result nvmlDeviceGetRemappedRows(Device *device, uint *correctable, uint *uncorrectable, uint *pending, uint *failure) {
    ENTER(device, "rows");
    NEED(device, "rows_ue");
    *correctable = (uint)number(device, "rows_ce", 0);
    *uncorrectable = (uint)number(device, "rows_ue", 0);
    *pending = (uint)number(device, "rows_pending", 0);
    *failure = (uint)number(device, "rows_failed", 0);
    return SUCCESS;
}

Result nvmlDeviceGetRetiredPages(Device *device, uint cause, uint *count, ull *addresses) {
    const char *key = cause ? "pages_double" : "pages_single";
    ENTER(device, "pages");
    NEED(device, key);
    uint there = (uint)number(device, key, 0), room = *count;
    *count = there;
    if (there > room || (there && !addresses)) return TOO_SMALL;
    for (uint i = 0; i < there; i++) addresses[i] = 0x1000ULL * (i + 1);
    return SUCCESS;
}

Result nvmlDeviceGetRetiredPagesPendingStatus(Device *device, uint *out) {
    ENTER(device, "pages_pending");
    NEED(device, "pages_pending");
    *out = (uint)number(device, "pages_pending", 0);
    return SUCCESS;
}

Result nvmlDeviceGetMigMode(Device *device, uint *now, uint *next) {
    ENTER(device, "mig");
    NEED(device, "mig");
    *now = *next = number(device, "mig", 0) > 0;
    return SUCCESS;
}

Result nvmlDeviceGetMaxMigDeviceCount(Device *device, uint *out) {
    (void)device;
    *out = 7;
    return SUCCESS;
}

/* "mig 3": three MIG devices */
Result nvmlDeviceGetMigDeviceHandleByIndex(Device *device, uint index, Device **out) {
    if (index >= number(device, "mig", 0) || device->number >= 8) return NOT_FOUND;
    slices[device->number * 8 + index].number = device->number * 8 + (int)index;
    *out = &slices[device->number * 8 + index];
    return SUCCESS;
}

Result nvmlDeviceGetPersistenceMode(Device *device, uint *out) {
    ENTER(device, "persistence");
    NEED(device, "persistence");
    *out = (uint)number(device, "persistence", 0);
    return SUCCESS;
}

typedef struct { uint pid; ull used; uint gpu_instance, compute_instance; } Process;
Result nvmlDeviceGetComputeRunningProcesses_v3(Device *device, uint *count, Process *out) {
    char value[1024];
    uint there = 0, room = *count;
    ENTER(device, "procs");
    if (look_for(device, "procs", value, sizeof value))
        for (char *word = strtok(value, " "); word; word = strtok(NULL, " "), there++) {
            char *bytes = strchr(word, ':');
            if (!out || there >= room) continue;
            out[there].pid = (uint)atoi(word);
            out[there].used = bytes && bytes[1] != '-' ? strtoull(bytes + 1, NULL, 0) : UNKNOWN;
            out[there].gpu_instance = out[there].compute_instance = ~0u;
        }
    *count = there;
    return there > room || (there && !out) ? TOO_SMALL : SUCCESS;
}
