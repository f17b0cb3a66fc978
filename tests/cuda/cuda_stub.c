/* A stand-in for libcuda.so.1: what the CUDA driver library answers on machines that are not here.
 *
 * CUDA_STUB_INIT   what cuInit returns, "hang" or "segv"; 0 when unset
 * CUDA_STUB_COUNT  what cuDeviceGetCount finds, "hang" or "segv"; 1 when unset
 * CUDA_STUB_CUDA   what cuDriverGetVersion says, such as 13000
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult;

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static int ordered(const char *name, const char *otherwise) {
    const char *value = setting(name, otherwise);
    if (strcmp(value, "hang") == 0) for (;;) pause();
    if (strcmp(value, "segv") == 0) raise(SIGSEGV);
    return atoi(value);
}

CUresult cuInit(unsigned flags) { (void)flags; return ordered("CUDA_STUB_INIT", "0"); }

CUresult cuDriverGetVersion(int *version) { *version = atoi(setting("CUDA_STUB_CUDA", "13000")); return 0; }

CUresult cuDeviceGetCount(int *count) { *count = ordered("CUDA_STUB_COUNT", "1"); return 0; }

CUresult cuGetErrorName(CUresult code, const char **name) {
    switch (code) {
    case 0: *name = "CUDA_SUCCESS"; return 0;
    case 100: *name = "CUDA_ERROR_NO_DEVICE"; return 0;
    case 803: *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; return 0;
    case 999: *name = "CUDA_ERROR_UNKNOWN"; return 0;
    default: *name = 0; return 1;
    }
}
