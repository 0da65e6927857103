/* A FAKE of NVIDIA's libnvidia-ml.so.1, for tests on machines without a GPU and its driver. It stands for the driver
 * alone: nvidia-ml-py, which loads it, and all that asks it are the real ones.
 *
 * What it says is in the text file that FAKE_NVML names, read anew at each call so that a test can change it while a
 * program runs. A line is a key and a value:
 *
 *   init 18                        what nvmlInit returns (9: the driver is not loaded, 18: another version of it)
 *   gpus 4                         how many there are
 *   cuda 12080                     the CUDA that the driver knows
 *   2.used 17179869184             of GPU 2, and likewise the fields below; without a line it is healthy and idle
 *   2.processes 4711               a process that computes there
 *   2.more_processes 4712          and another one
 *   2.lost 1                       every call about GPU 2 fails with "GPU is lost"
 *   1.0.peer 0                     GPU 1 does not read GPU 0's memory; 1.0.by_nvlink 0: not through NVLink
 *   1.0.direct 4                   4 of GPU 1's NVLinks end at GPU 0; the others end at a switch
 *   1.0.level 10                   the nearest thing that both hang on, as nvmlGpuTopologyLevel_t numbers it
 *   slow.NAME 60000                the function NAME takes so many milliseconds, as when a driver hangs
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };
enum { MOST_GPUS = 64 };

typedef unsigned long long u64;
typedef int Result;
typedef struct { int gpu; } *Device;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Rates;

static struct { int gpu; } devices[MOST_GPUS];

static u64 value(const char *key, u64 otherwise)
{
    char line[256], name[128];
    u64 found = otherwise, number;
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;

    if (!file)
        return otherwise;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%127s %llu", name, &number) == 2 && !strcmp(name, key))
            found = number;
    fclose(file);
    return found;
}

static u64 of(Device device, const char *field, u64 otherwise)
{
    char key[128];

    snprintf(key, sizeof key, "%d.%s", device->gpu, field);
    return value(key, otherwise);
}

/* What every call begins with. */
static void begin(const char *function)
{
    char key[128];

    snprintf(key, sizeof key, "slow.%s", function);
    usleep(1000 * value(key, 0));
}

#define DEVICE_CALL                                                                                                    \
    do {                                                                                                               \
        begin(__func__);                                                                                               \
        if (of(device, "lost", 0))                                                                                     \
            return LOST;                                                                                               \
    } while (0)

/* A function that tells one number of a GPU. */
#define NUMBER(function, type, field, otherwise)                                                                       \
    Result function(Device device, type *result)                                                                       \
    {                                                                                                                  \
        DEVICE_CALL;                                                                                                   \
        *result = of(device, field, otherwise);                                                                        \
        return SUCCESS;                                                                                                \
    }

NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power", 70000)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, u64, "throttle", 1)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, "retired_pending", 0)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned, "slices", 0)

const char *nvmlErrorString(Result result)
{
    (void)result;
    return "an error of the fake driver";
}

Result nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    begin(__func__);
    return value("init", SUCCESS);
}

Result nvmlSystemGetDriverVersion(char *text, unsigned length)
{
    begin(__func__);
    snprintf(text, length, "570.0-fake");
    return SUCCESS;
}

Result nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    begin(__func__);
    *version = value("cuda", 12080);
    return SUCCESS;
}

Result nvmlDeviceGetCount_v2(unsigned *count)
{
    begin(__func__);
    *count = value("gpus", 0);
    return SUCCESS;
}

Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *handle)
{
    Device device = (Device)&devices[index % MOST_GPUS];

    device->gpu = index;
    DEVICE_CALL;
    *handle = device;
    return SUCCESS;
}

Result nvmlDeviceGetUUID(Device device, char *text, unsigned length)
{
    DEVICE_CALL;
    snprintf(text, length, "GPU-fake-%d", device->gpu);
    return SUCCESS;
}

Result nvmlDeviceGetName(Device device, char *text, unsigned length)
{
    DEVICE_CALL;
    snprintf(text, length, "Fake H100");
    return SUCCESS;
}

Result nvmlDeviceGetMemoryInfo(Device device, Memory *memory)
{
    DEVICE_CALL;
    memory->total = of(device, "total", 80ULL << 30);
    memory->used = of(device, "used", 500ULL << 20);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

Result nvmlDeviceGetUtilizationRates(Device device, Rates *rates)
{
    DEVICE_CALL;
    rates->gpu = of(device, "busy", 0);
    rates->memory = 0;
    return SUCCESS;
}

Result nvmlDeviceGetTemperature(Device device, int sensor, unsigned *degrees)
{
    (void)sensor;
    DEVICE_CALL;
    *degrees = of(device, "temperature", 35);
    return SUCCESS;
}

Result nvmlDeviceGetTotalEccErrors(Device device, int kind, int counter, u64 *count)
{
    (void)counter;
    DEVICE_CALL;
    *count = of(device, kind == 1 ? "ecc_uncorrected" : "ecc_corrected", 0);
    return SUCCESS;
}

Result nvmlDeviceGetRemappedRows(Device device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                 unsigned *failed)
{
    DEVICE_CALL;
    *corrected = 0;
    *uncorrected = 0;
    *pending = of(device, "remap_pending", 0);
    *failed = of(device, "remap_failed", 0);
    return SUCCESS;
}

typedef struct {
    unsigned pid;
    u64 memory;
    unsigned gpu_instance, compute_instance;
} Process;

Result nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *room, Process *processes)
{
    u64 pids[] = {of(device, "processes", 0), of(device, "more_processes", 0)};
    unsigned had = *room;

    DEVICE_CALL;
    *room = !!pids[0] + !!pids[1];
    if (*room > had)
        return TOO_SMALL;
    for (unsigned i = 0; i < *room; i++)
        processes[i] = (Process){.pid = pids[i], .memory = 1ULL << 30};
    return SUCCESS;
}

Result nvmlDeviceGetMigMode(Device device, unsigned *now, unsigned *later)
{
    DEVICE_CALL;
    *now = *later = of(device, "slices", 0) > 0;
    return SUCCESS;
}

Result nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *state)
{
    DEVICE_CALL;
    if (link >= 18)
        return INVALID;
    *state = link < of(device, "links", 18);
    return SUCCESS;
}

Result nvmlDeviceGetP2PStatus(Device device, Device other, int what, int *status)
{
    char field[32];

    DEVICE_CALL;
    snprintf(field, sizeof field, what == 2 ? "%d.by_nvlink" : "%d.peer", other->gpu);
    *status = of(device, field, 1) ? 0 : 5;
    return SUCCESS;
}

/* Of the PCI addresses only the bus differs: a GPU's is its number, a switch's is 255. */
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
} Pci;

Result nvmlDeviceGetPciInfo_v3(Device device, Pci *pci)
{
    DEVICE_CALL;
    *pci = (Pci){.bus = device->gpu};
    return SUCCESS;
}

Result nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, Pci *pci)
{
    char field[32];
    unsigned before = 0;

    DEVICE_CALL;
    *pci = (Pci){.bus = 255};
    for (unsigned gpu = 0; gpu < value("gpus", 0); gpu++) {
        snprintf(field, sizeof field, "%u.direct", gpu);
        before += of(device, field, 0);
        if (link < before) {
            pci->bus = gpu;
            break;
        }
    }
    return SUCCESS;
}

Result nvmlDeviceGetTopologyCommonAncestor(Device device, Device other, unsigned *level)
{
    char field[32];

    DEVICE_CALL;
    snprintf(field, sizeof field, "%d.level", other->gpu);
    *level = of(device, field, 50);
    return SUCCESS;
}

typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    Result result;
    u64 value;
} Field;

Result nvmlDeviceGetFieldValues(Device device, int count, Field *fields)
{
    DEVICE_CALL;
    for (int i = 0; i < count; i++) {
        fields[i].result = fields[i].id == 230 ? SUCCESS : NOT_SUPPORTED;
        fields[i].value = of(device, "recovery", 0);
    }
    return SUCCESS;
}
