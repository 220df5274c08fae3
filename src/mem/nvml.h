/* nvml.h - what NVIDIA's management library knows of the cards of this machine.
 *
 * The library is loaded at run time and reached through a table, so one program serves machines
 * with and without it, and tests fill the table themselves. Where it is missing or refuses, there
 * are no cards: never an error. Entry points and layouts: NVIDIA's NVML API reference.
 */
#ifndef MEM_NVML_H
#define MEM_NVML_H

#include "mem/device.h"

struct nvml_memory { /* nvmlMemory_t */
    unsigned long long total, free, used;
};
struct nvml_process { /* nvmlProcessInfo_v2_t */
    unsigned pid;
    unsigned long long used; /* all ones: not available */
    unsigned gpu_instance, compute_instance;
};
/* Every entry returns 0 for success. A handle is opaque. */
#define NVML_ENTRIES(X)                                                                            \
    X(init, "nvmlInit_v2", (void))                                                                 \
    X(shutdown, "nvmlShutdown", (void))                                                            \
    X(driver, "nvmlSystemGetDriverVersion", (char *out, unsigned cap))                             \
    X(count, "nvmlDeviceGetCount_v2", (unsigned *n))                                               \
    X(handle, "nvmlDeviceGetHandleByIndex_v2", (unsigned i, void **handle))                        \
    X(name, "nvmlDeviceGetName", (void *handle, char *out, unsigned cap))                          \
    X(uuid, "nvmlDeviceGetUUID", (void *handle, char *out, unsigned cap))                          \
    X(memory, "nvmlDeviceGetMemoryInfo", (void *handle, struct nvml_memory *out))                  \
    X(capability, "nvmlDeviceGetCudaComputeCapability", (void *handle, int *major, int *minor))    \
    X(processes, "nvmlDeviceGetComputeRunningProcesses_v2",                                        \
      (void *handle, unsigned *n, struct nvml_process *out))
struct nvml_api {
#define X(field, symbol, parameters) int(*field) parameters;
    NVML_ENTRIES(X)
#undef X
    void *library; /* dlclose'd by nvml_unload; NULL: a table that somebody filled */
};

/* Loads the library; NULL: libnvidia-ml.so.1. False where it, or a required entry, is missing. */
bool nvml_load(const char *path, struct nvml_api *out);
void nvml_unload(struct nvml_api *api);
/* Adds the cards to the list, cuda:0 on; `api` is borrowed until devices_close. Returns how many.
 */
int nvml_list(const struct nvml_api *api, struct devices *d);

#endif
