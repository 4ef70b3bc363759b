/* A stand-in for the CUDA driver: a GPU that hands out addresses and computes nothing.
 *
 * Preloaded into a CUDA build of PyTorch, it answers what that build asks of libcudart, libcuda,
 * cuBLAS and cuDNN. Every decision about device memory is made on the host, so with addresses from
 * a range that nobody reads and launches that do nothing, PyTorch's caching allocator and operators
 * allocate what they allocate on a GPU. Values are zero.
 *
 * Written without CUDA's headers, which not every build ships: the few structures below are those of
 * CUDA 12 and 13 as far as they are written to. What is not here is made by build.py, which gives
 * every other function that PyTorch imports a body of one line (see standin_missing).
 *
 * STANDIN_NAME, STANDIN_CAPABILITY ("9.0"), STANDIN_MEMORY (bytes), STANDIN_MULTIPROCESSORS,
 * STANDIN_L2 (bytes) describe the device; STANDIN_LOG=1 writes what was called and is not implemented
 * to stderr, STANDIN_LOG=2 memory's calls too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *handle;
typedef struct {
    unsigned x, y, z;
} dim3;

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801 };
enum { CUBLAS_OK = 0, CUDNN_OK = 0, CUDNN_NOT_SUPPORTED = 3000 };

/* ---- the device ---- */

static struct {
    const char *name;
    int major, minor, multiprocessors, l2;
    int threads_per_multiprocessor, blocks_per_multiprocessor;
    int shared_per_multiprocessor, shared_per_block_optin;
    uint64_t memory;
    int log;
} device;

static uint64_t number(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

__attribute__((constructor)) static void describe(void)
{
    const char *name = getenv("STANDIN_NAME"), *capability = getenv("STANDIN_CAPABILITY");
    device.name = name && *name ? name : "NVIDIA H100 80GB HBM3";
    device.major = 9;
    if (capability)
        sscanf(capability, "%d.%d", &device.major, &device.minor);
    device.memory = number("STANDIN_MEMORY", 85029027840ull);
    device.multiprocessors = (int)number("STANDIN_MULTIPROCESSORS", 132);
    device.l2 = (int)number("STANDIN_L2", 50 << 20);
    device.log = (int)number("STANDIN_LOG", 0);
    /* CUDA C++ programming guide, technical specifications per compute capability. */
    int version = 10 * device.major + device.minor, kib;
    device.threads_per_multiprocessor =
        version == 75 ? 1024 : version == 86 || version == 89 || version >= 120 ? 1536 : 2048;
    device.blocks_per_multiprocessor =
        version == 75 || version == 86 ? 16 : version == 89 ? 24 : 32;
    kib = version == 75 ? 64 : version == 70 ? 96 : version == 80 || version == 87 ? 164
        : version == 86 || version == 89 || version >= 120 ? 100 : 228;
    device.shared_per_multiprocessor = kib << 10;
    device.shared_per_block_optin = version < 80 ? kib << 10 : (kib - 1) << 10;
}

#define LOG(level, ...) \
    do { \
        if (device.log >= (level)) \
            fprintf(stderr, "stand-in: " __VA_ARGS__); \
    } while (0)

/* What build.py's functions call: said once each. */
void standin_missing(const char *name, int *said)
{
    if (device.log && !__atomic_exchange_n(said, 1, __ATOMIC_RELAXED))
        fprintf(stderr, "stand-in: not implemented: %s\n", name);
}

/* A different address each time, which nobody reads. */
static handle fresh(void)
{
    static uintptr_t last = 0x5a0000000000;
    return (handle)__atomic_add_fetch(&last, 64, __ATOMIC_RELAXED);
}

static int last_error;

static int failed(int code)
{
    last_error = code;
    return code;
}

/* ---- memory ----
 * Addresses only grow and none is given twice: the driver's own choice is not documented, and this one
 * makes the order of segments by address the order of their making. Physical memory comes in pages of
 * 2 MiB, whoever takes it. */

#define PAGE (2ull << 20)
#define FIRST 0x700000000000ull
#define LAST 0x7e0000000000ull /* below where Linux puts libraries and stacks */

typedef struct {
    uint64_t base, size, physical;
    int live;
} range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static range *ranges;
static size_t range_count, range_room;
static uint64_t next_address = FIRST, used;

static uint64_t pages(uint64_t size) { return (size + PAGE - 1) / PAGE * PAGE; }

/* Address space for size bytes; a gap of a page keeps neighbours apart. Holds the lock. */
static uint64_t reserve(uint64_t size, uint64_t physical)
{
    if (range_count == range_room) {
        range_room = range_room ? 2 * range_room : 256;
        ranges = realloc(ranges, range_room * sizeof *ranges);
    }
    uint64_t base = next_address;
    next_address += pages(size) + PAGE;
    ranges[range_count++] = (range){base, size, physical, 1};
    return base;
}

static range *range_at(uint64_t address)
{
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low || address >= ranges[low - 1].base + ranges[low - 1].size)
        return NULL;
    return &ranges[low - 1];
}

/* For the recorder: which range, by number of its making, and where in it. */
int standin_locate(uint64_t address, uint64_t *which, uint64_t *offset)
{
    pthread_mutex_lock(&lock);
    range *found = range_at(address);
    if (found) {
        *which = (uint64_t)(found - ranges);
        *offset = address - found->base;
    }
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

int cudaMalloc(void **address, size_t size)
{
    pthread_mutex_lock(&lock);
    int fits = used + pages(size) <= device.memory;
    if (fits) {
        used += pages(size);
        *address = size ? (void *)reserve(size, pages(size)) : NULL;
    }
    pthread_mutex_unlock(&lock);
    LOG(2, "cudaMalloc(%zu) %s\n", size, fits ? "" : "fails");
    return fits ? SUCCESS : failed(OUT_OF_MEMORY);
}

int cudaFree(void *address)
{
    if (!address)
        return SUCCESS;
    pthread_mutex_lock(&lock);
    range *found = range_at((uint64_t)address);
    int good = found && found->live && found->base == (uint64_t)address;
    if (good) {
        found->live = 0;
        used -= found->physical;
    }
    pthread_mutex_unlock(&lock);
    LOG(2, "cudaFree(%p) %s\n", address, good ? "" : "fails");
    return good ? SUCCESS : failed(INVALID_VALUE);
}

int cudaMallocAsync(void **address, size_t size, handle stream)
{
    (void)stream;
    return cudaMalloc(address, size);
}

int cudaFreeAsync(void *address, handle stream)
{
    (void)stream;
    return cudaFree(address);
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *free_bytes = device.memory - used;
    *total = device.memory;
    return SUCCESS;
}

static int on_device(const void *address)
{
    return (uint64_t)address >= FIRST && (uint64_t)address < LAST;
}

/* ---- the driver's virtual memory: expandable segments ---- */

int cuMemAddressReserve(uint64_t *address, size_t size, size_t alignment, uint64_t where,
                        unsigned long long flags)
{
    (void)alignment, (void)where, (void)flags;
    pthread_mutex_lock(&lock);
    *address = reserve(size, 0);
    pthread_mutex_unlock(&lock);
    LOG(2, "cuMemAddressReserve(%zu)\n", size);
    return SUCCESS;
}

int cuMemAddressFree(uint64_t address, size_t size)
{
    (void)address, (void)size;
    return SUCCESS;
}

/* A handle of physical memory is its size, which is a multiple of a page, so that nothing is kept. */
int cuMemCreate(uint64_t *memory, size_t size, const void *properties, unsigned long long flags)
{
    (void)properties, (void)flags;
    pthread_mutex_lock(&lock);
    int fits = used + pages(size) <= device.memory;
    if (fits)
        used += pages(size);
    pthread_mutex_unlock(&lock);
    LOG(2, "cuMemCreate(%zu) %s\n", size, fits ? "" : "fails");
    *memory = pages(size);
    return fits ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemRelease(uint64_t memory)
{
    pthread_mutex_lock(&lock);
    used -= memory;
    pthread_mutex_unlock(&lock);
    LOG(2, "cuMemRelease(%zu)\n", (size_t)memory);
    return SUCCESS;
}

int cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t memory, unsigned long long flags)
{
    (void)address, (void)size, (void)offset, (void)memory, (void)flags;
    return SUCCESS;
}

int cuMemUnmap(uint64_t address, size_t size)
{
    (void)address, (void)size;
    return SUCCESS;
}

int cuMemSetAccess(uint64_t address, size_t size, const void *access, size_t count)
{
    (void)address, (void)size, (void)access, (void)count;
    return SUCCESS;
}

int cuMemGetAllocationGranularity(size_t *granularity, const void *properties, int option)
{
    (void)properties, (void)option;
    *granularity = PAGE;
    return SUCCESS;
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address)
{
    range *found = range_at(address);
    if (!found)
        return INVALID_VALUE;
    *base = found->base;
    *size = found->size;
    return SUCCESS;
}

/* ---- memory of the host, and copies ---- */

typedef struct pinned {
    struct pinned *next;
    char *base;
    size_t size;
} pinned;
static pinned *pinned_list;

static void pin(void *base, size_t size)
{
    pinned *item = malloc(sizeof *item);
    pthread_mutex_lock(&lock);
    *item = (pinned){pinned_list, base, size};
    pinned_list = item;
    pthread_mutex_unlock(&lock);
}

static void unpin(void *base)
{
    pthread_mutex_lock(&lock);
    for (pinned **at = &pinned_list; *at; at = &(*at)->next)
        if ((*at)->base == base) {
            pinned *item = *at;
            *at = item->next;
            free(item);
            break;
        }
    pthread_mutex_unlock(&lock);
}

static int is_pinned(const char *address)
{
    int found = 0;
    pthread_mutex_lock(&lock);
    for (pinned *item = pinned_list; item && !found; item = item->next)
        found = address >= item->base && address < item->base + item->size;
    pthread_mutex_unlock(&lock);
    return found;
}

int cudaHostAlloc(void **address, size_t size, unsigned flags)
{
    (void)flags;
    if (posix_memalign(address, 4096, size ? size : 1))
        return failed(OUT_OF_MEMORY);
    pin(*address, size);
    return SUCCESS;
}

int cudaFreeHost(void *address)
{
    unpin(address);
    free(address);
    return SUCCESS;
}

int cudaHostRegister(void *address, size_t size, unsigned flags)
{
    (void)flags;
    pin(address, size);
    return SUCCESS;
}

int cudaHostUnregister(void *address)
{
    unpin(address);
    return SUCCESS;
}

typedef struct {
    int type, device;
    void *device_pointer, *host_pointer;
} pointer_attributes;

int cudaPointerGetAttributes(pointer_attributes *attributes, const void *address)
{
    int gpu = on_device(address), host = !gpu && is_pinned(address);
    *attributes = (pointer_attributes){gpu ? 2 : host ? 1 : 0, gpu || host ? 0 : -2,
                                       gpu || host ? (void *)address : NULL,
                                       gpu ? NULL : (void *)address};
    return SUCCESS;
}

int cuPointerGetAttribute(void *data, int attribute, uint64_t address)
{
    if (attribute == 2) /* memory type */
        *(unsigned *)data = on_device((void *)address) ? 2 : 1;
    else if (attribute == 9) /* device ordinal */
        *(int *)data = 0;
    else
        *(uint64_t *)data = 0;
    return SUCCESS;
}

/* What is read from the device is zero; what is written there is lost. */
static int copy(void *to, const void *from, size_t size)
{
    if (on_device(to) || !size)
        return SUCCESS;
    if (on_device(from))
        memset(to, 0, size);
    else
        memmove(to, from, size);
    return SUCCESS;
}

int cudaMemcpy(void *to, const void *from, size_t size, int kind)
{
    (void)kind;
    return copy(to, from, size);
}

int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, handle stream)
{
    (void)kind, (void)stream;
    return copy(to, from, size);
}

int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                      size_t height, int kind, handle stream)
{
    (void)kind, (void)stream;
    for (size_t row = 0; row < height; row++)
        copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return SUCCESS;
}

int cudaMemcpyPeerAsync(void *to, int there, const void *from, int here, size_t size, handle stream)
{
    (void)there, (void)here, (void)stream;
    return copy(to, from, size);
}

int cudaMemset(void *address, int value, size_t size)
{
    if (!on_device(address))
        memset(address, value, size);
    return SUCCESS;
}

int cudaMemsetAsync(void *address, int value, size_t size, handle stream)
{
    (void)stream;
    return cudaMemset(address, value, size);
}

int cudaGetSymbolAddress(void **address, const void *symbol)
{
    (void)symbol;
    *address = (void *)(LAST - PAGE); /* on the device, and in no range */
    return SUCCESS;
}

/* ---- properties ---- */

typedef struct {
    char name[256];
    char uuid[16];
    char luid[8];
    unsigned luid_mask;
    size_t total_memory, shared_per_block;
    int registers_per_block, warp_size;
    size_t pitch;
    int threads_per_block, threads_dim[3], grid_size[3];
#if CUDA_MAJOR < 13
    int clock_rate;
#endif
    size_t constant_memory;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
#if CUDA_MAJOR < 13
    int device_overlap;
#endif
    int multiprocessors;
#if CUDA_MAJOR < 13
    int kernel_timeout;
#endif
    int integrated, can_map_host_memory;
#if CUDA_MAJOR < 13
    int compute_mode;
#endif
    int textures_and_surfaces[CUDA_MAJOR < 13 ? 40 : 39];
    size_t surface_alignment;
    int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, copy_engines, unified_addressing;
#if CUDA_MAJOR < 13
    int memory_clock_rate;
#endif
    int bus_width, l2, persisting_l2, threads_per_multiprocessor;
    int stream_priorities, global_l1, local_l1;
    size_t shared_per_multiprocessor;
    int registers_per_multiprocessor, managed_memory, multi_gpu_board, board_group, native_atomics;
#if CUDA_MAJOR < 13
    int double_ratio;
#endif
    int pageable_access, concurrent_managed, preemption, host_pointer_registered, cooperative;
#if CUDA_MAJOR < 13
    int cooperative_many;
#endif
    size_t shared_per_block_optin;
    int pageable_tables, direct_managed, blocks_per_multiprocessor, window;
    size_t reserved_shared_per_block;
    int host_register, sparse_arrays, host_register_read_only, timeline, memory_pools;
} properties;

/* The whole structure is larger; PyTorch's copy of it starts as zeros. */
int cudaGetDeviceProperties(properties *out, int ordinal)
{
    if (ordinal != 0)
        return failed(101);
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", device.name);
    memcpy(out->uuid, "stand-in for GPU", 16);
    out->total_memory = device.memory;
    out->shared_per_block = 48 << 10;
    out->registers_per_block = 65536;
    out->warp_size = 32;
    out->pitch = 2147483647;
    out->threads_per_block = 1024;
    memcpy(out->threads_dim, (int[]){1024, 1024, 64}, sizeof out->threads_dim);
    memcpy(out->grid_size, (int[]){2147483647, 65535, 65535}, sizeof out->grid_size);
    out->constant_memory = 65536;
    out->major = device.major;
    out->minor = device.minor;
    out->texture_alignment = 512;
    out->texture_pitch_alignment = 32;
    out->multiprocessors = device.multiprocessors;
    out->can_map_host_memory = 1;
    out->surface_alignment = 512;
    out->concurrent_kernels = 1;
    out->ecc = 1;
    out->pci_bus = 1;
    out->copy_engines = 3;
    out->unified_addressing = 1;
    out->bus_width = 5120;
    out->l2 = device.l2;
    out->threads_per_multiprocessor = device.threads_per_multiprocessor;
    out->stream_priorities = out->global_l1 = out->local_l1 = 1;
    out->shared_per_multiprocessor = device.shared_per_multiprocessor;
    out->registers_per_multiprocessor = 65536;
    out->managed_memory = out->concurrent_managed = out->cooperative = 1;
    out->shared_per_block_optin = device.shared_per_block_optin;
    out->blocks_per_multiprocessor = device.blocks_per_multiprocessor;
    out->reserved_shared_per_block = 1024;
    out->host_register = out->memory_pools = 1;
    return SUCCESS;
}

int cudaGetDeviceProperties_v2(properties *out, int ordinal)
{
    return cudaGetDeviceProperties(out, ordinal);
}

int cudaDeviceGetAttribute(int *value, int attribute, int ordinal)
{
    (void)ordinal;
    switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;
    case 4: *value = 64; break;
    case 5: *value = 2147483647; break;
    case 6: case 7: *value = 65535; break;
    case 8: *value = 48 << 10; break;
    case 9: *value = 65536; break;
    case 10: *value = 32; break;
    case 11: *value = 2147483647; break;
    case 12: case 82: *value = 65536; break;
    case 13: *value = 1980000; break; /* kHz */
    case 14: case 30: *value = 512; break;
    case 16: *value = device.multiprocessors; break;
    case 36: *value = 2619000; break;
    case 37: *value = 5120; break;
    case 38: *value = device.l2; break;
    case 39: *value = device.threads_per_multiprocessor; break;
    case 40: *value = 3; break;
    case 15: case 19: case 31: case 32: case 33: case 41: case 78: case 79: case 80: case 83: case 89:
    case 95: case 99: case 102: case 115: *value = 1; break; /* 102: virtual memory management */
    case 75: *value = device.major; break;
    case 76: *value = device.minor; break;
    case 81: *value = device.shared_per_multiprocessor; break;
    case 97: *value = device.shared_per_block_optin; break;
    case 106: *value = device.blocks_per_multiprocessor; break;
    case 111: *value = 1024; break;
    case 120: *value = device.major >= 9; break;
    default: *value = 0;
    }
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int ordinal)
{
    return cudaDeviceGetAttribute(value, attribute, ordinal);
}

int cudaDeviceGetPCIBusId(char *text, int size, int ordinal)
{
    (void)ordinal;
    snprintf(text, (size_t)size, "00000000:01:00.0");
    return SUCCESS;
}

#define VERSION (CUDA_MAJOR * 1000 + CUDA_MINOR * 10)

int cudaDriverGetVersion(int *version) { *version = VERSION; return SUCCESS; }
int cudaRuntimeGetVersion(int *version) { *version = VERSION; return SUCCESS; }
int cuDriverGetVersion(int *version) { *version = VERSION; return SUCCESS; }
int cudaGetDeviceCount(int *count) { *count = 1; return SUCCESS; }
int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
int cudaGetDevice(int *ordinal) { *ordinal = 0; return SUCCESS; }
int cudaSetDevice(int ordinal) { return ordinal == 0 ? SUCCESS : failed(101); }
int cuInit(unsigned flags) { (void)flags; return SUCCESS; }
int cuDeviceGet(int *out, int ordinal) { *out = ordinal; return SUCCESS; }

int cuDeviceGetUuid(char *out, int ordinal)
{
    (void)ordinal;
    memcpy(out, "stand-in for GPU", 16);
    return SUCCESS;
}

int cudaDeviceCanAccessPeer(int *can, int here, int there)
{
    (void)here, (void)there;
    *can = 0;
    return SUCCESS;
}

static int context; /* its address is the one context */

int cuCtxGetCurrent(handle *out) { *out = &context; return SUCCESS; }

int cuDevicePrimaryCtxGetState(int ordinal, unsigned *flags, int *active)
{
    (void)ordinal;
    *flags = 0;
    *active = 1;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(handle *out, int ordinal) { (void)ordinal; *out = &context; return SUCCESS; }

/* ---- errors ---- */

const char *cudaGetErrorName(int code)
{
    return code == SUCCESS ? "cudaSuccess"
         : code == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation"
         : code == NOT_SUPPORTED ? "cudaErrorNotSupported" : "cudaErrorInvalidValue";
}

const char *cudaGetErrorString(int code)
{
    return code == SUCCESS ? "no error"
         : code == OUT_OF_MEMORY ? "out of memory"
         : code == NOT_SUPPORTED ? "operation not supported" : "invalid argument";
}

int cuGetErrorString(int code, const char **text) { *text = cudaGetErrorString(code); return SUCCESS; }
int cuGetErrorName(int code, const char **text) { *text = cudaGetErrorName(code); return SUCCESS; }
int cudaPeekAtLastError(void) { return last_error; }
int cudaGetLastError(void) { return __atomic_exchange_n(&last_error, 0, __ATOMIC_RELAXED); }

/* ---- streams and events: whatever is asked has happened already ---- */

int cudaStreamCreate(handle *out) { *out = fresh(); return SUCCESS; }

int cudaStreamCreateWithPriority(handle *out, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    *out = fresh();
    return SUCCESS;
}

int cudaStreamGetPriority(handle stream, int *priority) { (void)stream; *priority = 0; return SUCCESS; }

int cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return SUCCESS;
}

/* ---- CUDA graphs: a stream can be captured, what is replayed does nothing. PyTorch asks this before each
 * request for memory, to take it from the graph's private pool. ---- */

static handle captured; /* the stream under capture: one at a time, as torch.cuda.graph has it */
static unsigned long long captures;

int cudaStreamIsCapturing(handle stream, int *status)
{
    *status = captured && stream == captured;
    return SUCCESS;
}

int cudaStreamGetCaptureInfo(handle stream, int *status, unsigned long long *id, ...)
{
    *status = captured && stream == captured;
    if (id)
        *id = *status ? captures : 0;
    return SUCCESS;
}

int cudaStreamBeginCapture(handle stream, int mode)
{
    (void)mode;
    if (captured)
        return failed(NOT_SUPPORTED);
    captured = stream;
    captures++;
    return SUCCESS;
}

int cudaStreamEndCapture(handle stream, handle *graph)
{
    if (!captured || stream != captured)
        return failed(INVALID_VALUE);
    captured = NULL;
    *graph = fresh();
    return SUCCESS;
}

int cudaGraphInstantiateWithFlags(handle *out, handle graph, unsigned long long flags)
{
    (void)graph, (void)flags;
    *out = fresh();
    return SUCCESS;
}

int cudaGraphInstantiate(handle *out, handle graph, unsigned long long flags)
{
    return cudaGraphInstantiateWithFlags(out, graph, flags);
}

/* PyTorch warns of graphs without nodes. */
int cudaGraphGetNodes(handle graph, handle *nodes, size_t *count)
{
    (void)graph, (void)nodes;
    *count = 1;
    return SUCCESS;
}

int cudaGraphLaunch(handle graph, handle stream) { (void)graph, (void)stream; return SUCCESS; }
int cudaGraphDestroy(handle graph) { (void)graph; return SUCCESS; }
int cudaGraphExecDestroy(handle graph) { (void)graph; return SUCCESS; }

int cudaStreamGetCaptureInfo_v2(handle stream, int *status, unsigned long long *id, ...)
{
    return cudaStreamGetCaptureInfo(stream, status, id);
}

int cudaLaunchHostFunc(handle stream, void (*function)(void *), void *data)
{
    (void)stream;
    function(data);
    return SUCCESS;
}

int cudaStreamAddCallback(handle stream, void (*function)(handle, int, void *), void *data, unsigned flags)
{
    (void)flags;
    function(stream, SUCCESS, data);
    return SUCCESS;
}

int cudaEventCreate(handle *out) { *out = fresh(); return SUCCESS; }
int cudaEventCreateWithFlags(handle *out, unsigned flags) { (void)flags; *out = fresh(); return SUCCESS; }

int cudaEventElapsedTime(float *milliseconds, handle start, handle end)
{
    (void)start, (void)end;
    *milliseconds = 1; /* scripts divide by it */
    return SUCCESS;
}

/* ---- kernels: found, and never run ---- */

void **__cudaRegisterFatBinary(void *binary)
{
    (void)binary;
    static void *module;
    return &module;
}

char __cudaInitModule(void **module) { (void)module; return 1; }

int __cudaGetKernel(handle *kernel, const void *function) { *kernel = (handle)function; return SUCCESS; }

int __cudaLaunchKernel(handle kernel, dim3 grid, dim3 block, void **arguments, size_t shared, handle stream)
{
    (void)kernel, (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
    return SUCCESS;
}

int cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                     handle stream)
{
    return __cudaLaunchKernel((handle)kernel, grid, block, arguments, shared, stream);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, handle stream)
{
    (void)grid, (void)block, (void)shared, (void)stream;
    return 0;
}

int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, handle *stream)
{
    *grid = *block = (dim3){1, 1, 1};
    *shared = 0;
    *stream = NULL;
    return SUCCESS;
}

typedef struct {
    size_t shared, constant, local;
    int threads_per_block, registers, ptx_version, binary_version, cache_mode, dynamic_shared, carveout;
} function_attributes;

/* CUB picks the sizes of its tiles, hence of its temporary storage, by the version of the code that
 * was built for the device. Builds have no code of their own for 8.7 and 8.9: 8.6 runs there. */
int cudaFuncGetAttributes(function_attributes *out, const void *function)
{
    (void)function;
    int version = 10 * device.major + device.minor;
    if (version == 87 || version == 89)
        version = 86;
    *out = (function_attributes){0, 0, 0, 1024, 32, version, version, 0, 48 << 10, -1};
    return SUCCESS;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                           size_t shared, unsigned flags)
{
    (void)function, (void)flags;
    int warps = (threads + 31) / 32, most = device.threads_per_multiprocessor / 32 / (warps ? warps : 1);
    int by_shared = device.shared_per_multiprocessor / (int)(shared + 1024);
    if (most > by_shared)
        most = by_shared;
    *blocks = most < device.blocks_per_multiprocessor ? most : device.blocks_per_multiprocessor;
    return SUCCESS;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, handle function, int threads, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

int cuFuncGetAttribute(int *value, int attribute, handle function)
{
    (void)function;
    *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0; /* threads in a block, registers */
    return SUCCESS;
}

int cuModuleLoad(handle *module, const char *path) { (void)path; *module = fresh(); return SUCCESS; }
int cuModuleLoadData(handle *module, const void *image) { (void)image; *module = fresh(); return SUCCESS; }

int cuModuleLoadDataEx(handle *module, const void *image, ...)
{
    return cuModuleLoadData(module, image);
}

int cuModuleGetFunction(handle *function, handle module, const char *name)
{
    (void)module, (void)name;
    *function = fresh();
    return SUCCESS;
}

static int nothing(void)
{
    LOG(1, "a function of the driver that is not implemented was called\n");
    return SUCCESS;
}

/* PyTorch looks up the driver's functions by name, all of them before the first is called: one that is
 * not here does nothing. */
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                     unsigned long long flags, int *status)
{
    char later[128];
    (void)version, (void)flags;
    snprintf(later, sizeof later, "%s_v2", name);
    *function = dlsym(RTLD_DEFAULT, later);
    if (!*function)
        *function = dlsym(RTLD_DEFAULT, name);
    if (!*function) {
        *function = (void *)nothing;
        LOG(2, "not implemented: %s\n", name);
    }
    if (status)
        *status = 0;
    return SUCCESS;
}

int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status)
{
    return cudaGetDriverEntryPointByVersion(name, function, VERSION, flags, status);
}

/* ---- cuBLAS ---- */

int cublasCreate_v2(handle *out) { *out = fresh(); return CUBLAS_OK; }
int cublasGetMathMode(handle blas, int *mode) { (void)blas; *mode = 0; return CUBLAS_OK; }
int cublasGetPointerMode_v2(handle blas, int *mode) { (void)blas; *mode = 0; return CUBLAS_OK; }
int cublasLtCreate(handle *out) { *out = fresh(); return CUBLAS_OK; }
size_t cublasLtGetVersion(void) { return 130000; }

int cublasLtMatmulDescCreate(handle *out, int compute, int scale)
{
    (void)compute, (void)scale;
    *out = fresh();
    return CUBLAS_OK;
}

int cublasLtMatrixLayoutCreate(handle *out, int type, uint64_t rows, uint64_t columns, int64_t stride)
{
    (void)type, (void)rows, (void)columns, (void)stride;
    *out = fresh();
    return CUBLAS_OK;
}

int cublasLtMatmulPreferenceCreate(handle *out) { *out = fresh(); return CUBLAS_OK; }

typedef struct {
    uint64_t algorithm[8];
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
} heuristic;

/* Its workspace does not matter: PyTorch hands over one of a fixed size. */
int cublasLtMatmulAlgoGetHeuristic(handle blas, handle operation, handle a, handle b, handle c, handle d,
                                   handle preference, int wanted, heuristic *results, int *count)
{
    (void)blas, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference, (void)wanted;
    memset(results, 0, sizeof *results);
    results->waves = 1;
    *count = 1;
    return CUBLAS_OK;
}

/* ---- cuDNN ----
 * The graph interface accepts every graph and finds one engine, which needs no workspace: what cuDNN's
 * own engines ask for is decided in cuDNN and is NOT here, while what PyTorch and cuDNN's frontend,
 * which is part of PyTorch, add themselves is. Of the older interface there are
 * handles and batch norm, whose workspace and reserve are of no bytes here, too. */

int cudnnCreate(handle *out) { *out = fresh(); return CUDNN_OK; }

int cudnnGetStream(handle dnn, handle *out) { (void)dnn; *out = NULL; return CUDNN_OK; }

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    handle dnn, int mode, int operations, handle x, handle z, handle y, handle statistics,
    handle activation, size_t *size)
{
    (void)dnn, (void)mode, (void)operations, (void)x, (void)z, (void)y, (void)statistics,
        (void)activation;
    *size = 0;
    return CUDNN_OK;
}

int cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    handle dnn, int mode, int operations, handle x, handle y, handle dy, handle dz, handle dx,
    handle statistics, handle activation, size_t *size)
{
    (void)dnn, (void)mode, (void)operations, (void)x, (void)y, (void)dy, (void)dz, (void)dx,
        (void)statistics, (void)activation;
    *size = 0;
    return CUDNN_OK;
}

int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(handle dnn, int mode, int operations,
                                                         handle activation, handle x, size_t *size)
{
    (void)dnn, (void)mode, (void)operations, (void)activation, (void)x;
    *size = 0;
    return CUDNN_OK;
}

int cudnnBatchNormalizationForwardTrainingEx(void) { return CUDNN_OK; }
int cudnnBatchNormalizationForwardInference(void) { return CUDNN_OK; }
int cudnnBatchNormalizationBackwardEx(void) { return CUDNN_OK; }

int cudnnBackendCreateDescriptor(int type, handle *out)
{
    (void)type;
    *out = fresh();
    return CUDNN_OK;
}

int cudnnBackendGetAttribute(handle descriptor, int name, int type, int64_t wanted, int64_t *count,
                             void *values)
{
    enum { HEURISTIC_RESULTS = 202, ENGINE_CONFIG_ENGINE = 300, DESCRIPTOR = 15 };
    (void)descriptor;
    (void)descriptor;
    /* Sizes of the types by number; the rest is not asked for. */
    size_t size = type == 3 || type == 6 || type == 5 || type == DESCRIPTOR ? 8 : 4;
    int one = name == HEURISTIC_RESULTS || name == ENGINE_CONFIG_ENGINE || type == 3 || type == 23;
    if (count)
        *count = one;
    if (wanted && values && type != DESCRIPTOR) /* the caller has made the descriptors */
        memset(values, 0, size * (one ? 1 : 0));
    return CUDNN_OK;
}

int cudnnBackendSetAttribute(void) { return CUDNN_OK; }
int cudnnBackendFinalize(void) { return CUDNN_OK; }
int cudnnBackendDestroyDescriptor(void) { return CUDNN_OK; }
int cudnnBackendExecute(void) { return CUDNN_OK; }

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
int cudnnGetProperty(int type, int *value)  /* 0 major, 1 minor, 2 patch level */
{
    int parts[] = { CUDNN_VERSION / 10000, CUDNN_VERSION / 100 % 100, CUDNN_VERSION % 100 };
    *value = type >= 0 && type < 3 ? parts[type] : 0;
    return CUDNN_OK;
}

size_t cudnnGetCudartVersion(void) { return VERSION; }
const char *cudnnGetErrorString(int code) { return code ? "not in the stand-in for cuDNN" : "success"; }

void cudnnGetLastErrorString(char *text, size_t size)
{
    snprintf(text, size, "not in the stand-in for cuDNN");
}

/* ---- NVML: build.py gives this library its name too. PyTorch asks it how many devices there are,
 * and for the words of an out-of-memory error, how much each process holds. ---- */

typedef struct {
    unsigned process;
    unsigned long long bytes;
} process_info;

int nvmlInit(void) { return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return SUCCESS; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, handle *out)
{
    (void)bus;
    *out = fresh();
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses(handle nvml, unsigned *count, process_info *processes)
{
    (void)nvml;
    if (!*count)
        return 7; /* too few places */
    *count = 1;
    *processes = (process_info){(unsigned)getpid(), used};
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = VERSION; return SUCCESS; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return 3; } /* 3: not supported, of all NVML */
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return 3; }
int nvmlDeviceGetGpuFabricInfoV(void) { return 3; }

/* ---- NVRTC: PyTorch compiles a few kernels when they are first called; there is nothing to compile. ---- */

int nvrtcCreateProgram(handle *out) { *out = fresh(); return SUCCESS; }
int nvrtcDestroyProgram(handle *program) { (void)program; return SUCCESS; }
int nvrtcAddNameExpression(void) { return SUCCESS; }
int nvrtcCompileProgram(void) { return SUCCESS; }

int nvrtcGetLoweredName(handle program, const char *name, const char **lowered)
{
    (void)program, (void)name;
    *lowered = "kernel";
    return SUCCESS;
}

static int one_byte(handle program, size_t *size) { (void)program; *size = 1; return SUCCESS; }
int nvrtcGetPTXSize(handle program, size_t *size) { return one_byte(program, size); }
int nvrtcGetCUBINSize(handle program, size_t *size) { return one_byte(program, size); }
int nvrtcGetProgramLogSize(handle program, size_t *size) { return one_byte(program, size); }

static int empty(handle program, char *text) { (void)program; *text = 0; return SUCCESS; }
int nvrtcGetPTX(handle program, char *text) { return empty(program, text); }
int nvrtcGetCUBIN(handle program, char *text) { return empty(program, text); }
int nvrtcGetProgramLog(handle program, char *text) { return empty(program, text); }

/* ---- Triton: asked of the driver itself, when it loads and launches what it has compiled ---- */

int cuCtxSetLimit(int limit, size_t value) { (void)limit, (void)value; return SUCCESS; }
int cuCtxGetLimit(size_t *value, int limit) { (void)limit; *value = 1 << 20; return SUCCESS; }
int cuCtxSetCurrent(handle context) { (void)context; return SUCCESS; }
int cuFuncSetCacheConfig(handle function, int config) { (void)function, (void)config; return SUCCESS; }
int cuFuncSetAttribute(handle function, int attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return SUCCESS;
}
int cuOccupancyMaxActiveClusters(int *count, handle function, const void *config)
{
    (void)function, (void)config;
    *count = 1;
    return SUCCESS;
}
int cuTensorMapEncodeTiled(void) { return SUCCESS; }
int cuLaunchKernelEx(const void *config, handle function, void **arguments, void **extra)
{
    (void)config, (void)function, (void)arguments, (void)extra;
    return SUCCESS;
}
