/*
 * A stand-in for libnvidia-ml.so.1, for machines without a GPU. Hand-written; the environment says what it answers.
 *
 *   NVML_STUB_GPUS        how many GPUs there are (default 1)
 *   NVML_STUB_NAME        name of every GPU               (default "NVIDIA H100 80GB HBM3")
 *   NVML_STUB_CC          compute capability              (default "9.0")
 *   NVML_STUB_MEMORY_MIB  memory of every GPU             (default 81559)
 *   NVML_STUB_DRIVER      driver version                  (default "580.95.05")
 *   NVML_STUB_CUDA        CUDA of the driver, 1000 * major + 10 * minor (default 13000)
 *   NVML_STUB_MIG         "0:2,3:7" - GPU 0 has MIG on with two instances, GPU 3 with seven
 *   NVML_STUB_NVLINKS     "18:17:250" - links of every GPU, those up, errors of each at every reading (default none)
 *   NVML_STUB_FABRIC      health mask of the fabric       (default 0)
 *   NVML_STUB_SRAM        1 where the threshold of SRAM errors is exceeded
 *   NVML_STUB_FAIL        "nvmlInit_v2=9;nvmlDeviceGetName@3=15;nvmlDeviceGetUUID@5=hang;nvmlDeviceGetMigMode=segv"
 *                         (also "slow": the call takes 0.2 s and then succeeds)
 */
#define _DEFAULT_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef struct { int index; int mig; } device;
typedef device *nvmlDevice_t;

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
enum { MAX_GPUS = 64, MAX_MIG = 8 };
static device gpus[MAX_GPUS];
static device instances[MAX_GPUS][MAX_MIG];

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static int gpu_count(void) { return atoi(setting("NVML_STUB_GPUS", "1")); }

static int mig_of(int gpu) {
    const char *at = setting("NVML_STUB_MIG", "");
    int index, count, used;
    while (sscanf(at, "%d:%d%n", &index, &count, &used) == 2) {
        if (index == gpu) return count;
        at += used;
        if (*at == ',') at++;
    }
    return -1;
}

/* What NVML_STUB_FAIL orders for this function on this GPU (-1: no GPU); SUCCESS when nothing. */
static nvmlReturn_t ordered(const char *function, int gpu) {
    char copy[4096], *rest = copy, *entry;
    snprintf(copy, sizeof copy, "%s", setting("NVML_STUB_FAIL", ""));
    while ((entry = strsep(&rest, ";")) != NULL) {
        char *outcome = strchr(entry, '=');
        if (!outcome) continue;
        *outcome++ = '\0';
        char *only = strchr(entry, '@');
        if (only) *only++ = '\0';
        if (strcmp(entry, function) != 0 || (only && atoi(only) != gpu)) continue;
        if (strcmp(outcome, "hang") == 0) for (;;) pause();
        if (strcmp(outcome, "segv") == 0) raise(SIGSEGV);
        if (strcmp(outcome, "slow") == 0) { usleep(200000); continue; }
        return atoi(outcome);
    }
    return SUCCESS;
}

#define ORDERED(gpu) do { nvmlReturn_t code = ordered(__func__, gpu); if (code != SUCCESS) return code; } while (0)
#define TEXT(to, size, ...) (snprintf(to, size, __VA_ARGS__), SUCCESS)
#define UINT(name, number) \
    nvmlReturn_t name(nvmlDevice_t d, unsigned *value) { ORDERED(d->index); *value = (number); return SUCCESS; }

nvmlReturn_t nvmlInit_v2(void) {
    ORDERED(-1);
    for (int i = 0; i < MAX_GPUS; i++) {
        gpus[i] = (device){i, -1};
        for (int j = 0; j < MAX_MIG; j++) instances[i][j] = (device){i, j};
    }
    return SUCCESS;
}
nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; ORDERED(-1); return nvmlInit_v2(); }
nvmlReturn_t nvmlShutdown(void) { ORDERED(-1); return SUCCESS; }

const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "RM has detected an NVML/RM version mismatch.";
    case 999: return "Unknown Error";
    default: return "Error";
    }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *to, unsigned size) {
    ORDERED(-1);
    return TEXT(to, size, "%s", setting("NVML_STUB_DRIVER", "580.95.05"));
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char *to, unsigned size) {
    ORDERED(-1);
    return TEXT(to, size, "13.%s", setting("NVML_STUB_DRIVER", "580.95.05"));
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *to) {
    ORDERED(-1);
    *to = atoi(setting("NVML_STUB_CUDA", "13000"));
    return SUCCESS;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *to) { ORDERED(-1); return nvmlSystemGetCudaDriverVersion_v2(to); }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *to) { ORDERED(-1); *to = (unsigned)gpu_count(); return SUCCESS; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *to) {
    ORDERED((int)index);
    if ((int)index >= gpu_count() || index >= MAX_GPUS) return INVALID_ARGUMENT;
    *to = &gpus[index];
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *to, unsigned size) {
    ORDERED(d->index);
    return TEXT(to, size, "%s", setting("NVML_STUB_NAME", "NVIDIA H100 80GB HBM3"));
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *to, unsigned size) {
    ORDERED(d->index);
    if (d->mig >= 0) return TEXT(to, size, "MIG-0000%04x-1111-2222-3333-44444444%04x", d->index, d->mig);
    return TEXT(to, size, "GPU-0000%04x-aaaa-bbbb-cccc-dddddddddddd", d->index);
}
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t d, char *to, unsigned size) {
    ORDERED(d->index);
    return TEXT(to, size, "13200%08d", d->index);
}
nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t d, char *to, unsigned size) {
    ORDERED(d->index);
    return TEXT(to, size, "96.00.99.00.01");
}
UINT(nvmlDeviceGetIndex, (unsigned)d->index)
UINT(nvmlDeviceGetMinorNumber, (unsigned)d->index)
UINT(nvmlDeviceGetCurrPcieLinkGeneration, 5)
UINT(nvmlDeviceGetMaxPcieLinkGeneration, 5)
UINT(nvmlDeviceGetCurrPcieLinkWidth, 16)
UINT(nvmlDeviceGetMaxPcieLinkWidth, 16)
UINT(nvmlDeviceGetPersistenceMode, 1)
UINT(nvmlDeviceGetComputeMode, 0)
UINT(nvmlDeviceGetPowerUsage, 70000)
UINT(nvmlDeviceGetArchitecture, 9)
UINT(nvmlDeviceGetBrand, 2)
UINT(nvmlDeviceGetDisplayActive, 0)
UINT(nvmlDeviceGetEnforcedPowerLimit, 700000)
UINT(nvmlDeviceGetPowerManagementDefaultLimit, 700000)
UINT(nvmlDeviceGetInforomConfigurationChecksum, 0x5eed)

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t d, int which, unsigned *to) {
    (void)which;
    ORDERED(d->index);
    *to = 87;
    return SUCCESS;
}
static nvmlReturn_t clock_mhz(unsigned mhz, unsigned *to) { *to = mhz; return SUCCESS; }
#define CLOCK(name, mhz) \
    nvmlReturn_t name(nvmlDevice_t d, int which, unsigned *to) { (void)which; ORDERED(d->index); return clock_mhz(mhz, to); }
CLOCK(nvmlDeviceGetClockInfo, 345)
CLOCK(nvmlDeviceGetMaxClockInfo, 1980)
CLOCK(nvmlDeviceGetApplicationsClock, 1980)
CLOCK(nvmlDeviceGetDefaultApplicationsClock, 1980)
typedef struct { unsigned gpu, memory; } utilization;
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, utilization *to) {
    ORDERED(d->index);
    *to = (utilization){0, 0};
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t d, unsigned long long *to) {
    ORDERED(d->index);
    *to = 0;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *count, void *to) {
    (void)to;
    ORDERED(d->index);
    *count = 0;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned *count, void *to) {
    (void)to;
    ORDERED(d->index);
    *count = 0;
    return SUCCESS;
}
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; } fabric;
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t d, fabric *to) {
    ORDERED(d->index);
    to->state = 3;
    to->status = SUCCESS;
    to->health = (unsigned)strtoul(setting("NVML_STUB_FABRIC", "0"), NULL, 0);
    return SUCCESS;
}
typedef struct { unsigned version; unsigned long long counts[11]; unsigned exceeded; } sram;
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t d, sram *to) {
    ORDERED(d->index);
    to->exceeded = (unsigned)atoi(setting("NVML_STUB_SRAM", "0"));
    return SUCCESS;
}
typedef struct {
    unsigned id, scope;
    long long timestamp, latency_us;
    int value_type, code;
    union { double real; unsigned u; unsigned long long ull; } value;
} field;
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, field *fields) {
    ORDERED(d->index);
    static unsigned long long readings;
    unsigned links = 0, up = 0, errors = 0;
    sscanf(setting("NVML_STUB_NVLINKS", "0:0:0"), "%u:%u:%u", &links, &up, &errors);
    readings++;
    for (int i = 0; i < count; i++) {
        fields[i].code = SUCCESS;
        fields[i].value.ull = 0;
        if (fields[i].id == 91) fields[i].value.u = links;
        if (fields[i].id == 165) fields[i].value.u = fields[i].scope < up;
        if (fields[i].id == 163) fields[i].value.ull = readings * errors;
    }
    return SUCCESS;
}

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
static unsigned long long memory_bytes(void) {
    return strtoull(setting("NVML_STUB_MEMORY_MIB", "81559"), NULL, 10) << 20;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, memory_v1 *to) {
    ORDERED(d->index);
    to->total = memory_bytes();
    to->used = 512ULL << 20;
    to->free = to->total - to->used;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, memory_v2 *to) {
    ORDERED(d->index);
    to->total = memory_bytes();
    to->reserved = 0;
    to->used = 512ULL << 20;
    to->free = to->total - to->used;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor) {
    ORDERED(d->index);
    return sscanf(setting("NVML_STUB_CC", "9.0"), "%d.%d", major, minor) == 2 ? SUCCESS : INVALID_ARGUMENT;
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *current, unsigned *pending) {
    ORDERED(d->index);
    *current = *pending = mig_of(d->index) >= 0;
    return SUCCESS;
}
UINT(nvmlDeviceGetMaxMigDeviceCount, 7)
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned slot, nvmlDevice_t *to) {
    ORDERED(d->index);
    if ((int)slot >= mig_of(d->index) || slot >= MAX_MIG) return NOT_FOUND;
    *to = &instances[d->index][slot];
    return SUCCESS;
}
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_info;
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, pci_info *to) {
    ORDERED(d->index);
    memset(to, 0, sizeof *to);
    to->bus = (unsigned)d->index + 1;
    to->pci_device_id = 0x233010de;
    snprintf(to->bus_id_legacy, sizeof to->bus_id_legacy, "0000:%02X:00.0", to->bus);
    return TEXT(to->bus_id, sizeof to->bus_id, "00000000:%02X:00.0", to->bus);
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, unsigned *to) {
    (void)sensor;
    ORDERED(d->index);
    *to = 34;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t d, int *current, int *pending) {
    ORDERED(d->index);
    *current = *pending = 1;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, int type, int counter, unsigned long long *to) {
    (void)type, (void)counter;
    ORDERED(d->index);
    *to = 0;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned *a, unsigned *b, unsigned *pending, unsigned *failed) {
    ORDERED(d->index);
    *a = *b = *pending = *failed = 0;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long *to) {
    ORDERED(d->index);
    *to = 1;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, unsigned long long *to) {
    ORDERED(d->index);
    *to = 1;
    return SUCCESS;
}
