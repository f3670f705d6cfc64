/* Which box a profile is of, and where it lies. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/cache_folder.h"
#include "base/system.h"
#include "base/text.h"
#include "comm/box.h"
#include "device/device.h"
#include "device/thread_team.h"
#include "engine/profile_file.h"
#include "phasor.h"

/* What stands behind "model name : " of the first processor, without spaces at the end. */
static void processor_name(char out[PROFILE_NAME_BYTES])
{
    char line[512], name[PROFILE_NAME_BYTES];
    FILE *file = fopen("/proc/cpuinfo", "re");
    out[0] = 0;
    if (file == NULL)
        return;
    while (out[0] == 0 && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "model name : %127[^\n]", name) == 1 && utf8_is_valid(name, strlen(name)))
            snprintf(out, PROFILE_NAME_BYTES, "%s", name);
    }
    fclose(file);
}

void profile_identity_here(struct profile_identity *out, const char *kernels, int ranks,
                           int thread_count)
{
    int cores = thread_team_cpu_count();
    int threads = thread_count > 0 ? thread_count : cores;
    *out = (struct profile_identity){.cores = cores,
                                     .threads = threads < ranks ? ranks : threads,
                                     .devices = {.rank_count = ranks}};
    processor_name(out->processor);
    snprintf(out->kernels, sizeof out->kernels, "%s", kernels);
    snprintf(out->version, sizeof out->version, "%s", PHASOR_VERSION);
}

static enum status cpu_kernels(char out[PROFILE_NAME_BYTES], struct error *err)
{
    struct box *box;
    TRY(box_open(&box, &(struct box_params){.rank_count = 1, .thread_count = 1}, err));
    snprintf(out, PROFILE_NAME_BYTES, "%s", box_device(box, 0)->ops->name);
    box_close(box);
    return STATUS_OK;
}

double profile_identity_sharing(const struct profile_identity *identity)
{
    const struct engine_devices *devices = &identity->devices;
    return devices->cuda ? (double)devices->rank_count / engine_devices_gpu_count(devices)
                         : (double)identity->threads / identity->cores;
}

void profile_host_take(struct profile *profile, uint64_t budget)
{
    double all = (double)system_memory_total(), lockable = (double)system_memory_lockable();
    double there = budget > 0 ? fmin((double)budget, all) : all;
    profile->cache_bytes = all / 2;
    profile->host_bytes = fmin(lockable, there / 2 * 7 / 8);
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

static bool is_first_on_its_gpu(const struct engine_devices *devices, int rank)
{
    for (int before = 0; before < rank; before++) {
        if (devices->gpus[before] == devices->gpus[rank])
            return false;
    }
    return true;
}

#define GPU_TEXT_BYTES (GPU_NAME_BYTES + 64)

static void gpu_format(char out[GPU_TEXT_BYTES], const struct gpu_description *gpu)
{
    char part[48] = "";
    bool has_name = *gpu->name != 0 && utf8_is_valid(gpu->name, strlen(gpu->name));
    if (gpu->part > 0)
        snprintf(part, sizeof part, ", %d of %d multiprocessors", gpu->part, gpu->multiprocessors);
    snprintf(out, GPU_TEXT_BYTES, "%s (sm_%d%s)", has_name ? gpu->name : "GPU", gpu->capability,
             part);
}

/* Alike ones that follow each other. Names that have no room are left out. */
struct gpu_list {
    char *text; /* of PROFILE_GPUS_BYTES */
    char last[GPU_TEXT_BYTES];
    int count;
};

static void list_end(struct gpu_list *list)
{
    char part[GPU_TEXT_BYTES + 16];
    size_t length = strlen(list->text);
    if (list->count > 1)
        snprintf(part, sizeof part, "%d x %s", list->count, list->last);
    else
        snprintf(part, sizeof part, "%s", list->last);
    if (list->count > 0 && length + 2 + strlen(part) < PROFILE_GPUS_BYTES)
        snprintf(list->text + length, PROFILE_GPUS_BYTES - length, "%s%s", length > 0 ? ", " : "",
                 part);
    list->count = 0;
}

static void list_add(struct gpu_list *list, const struct gpu_description *gpu)
{
    char text[GPU_TEXT_BYTES];
    gpu_format(text, gpu);
    if (strcmp(text, list->last) != 0)
        list_end(list);
    snprintf(list->last, sizeof list->last, "%s", text);
    list->count++;
}

static void first_take(struct profile_identity *out, const struct gpu_description *gpu)
{
    snprintf(out->kernels, sizeof out->kernels, "cuda (sm_%d)", gpu->capability);
    snprintf(out->cuda, sizeof out->cuda, "runtime %d.%d, driver %d.%d", gpu->runtime / 1000,
             gpu->runtime % 1000 / 10, gpu->driver / 1000, gpu->driver % 1000 / 10);
}

/* As they say; or with the parts that the ranks of `box` have of them. */
static enum status gpus_find(struct profile_identity *out, const struct engine_devices *devices,
                             const struct box *box, struct error *err)
{
    struct gpu_list list = {.text = out->gpus};
    out->memory_bytes = UINT64_MAX;
    for (int r = 0; r < devices->rank_count; r++) {
        struct gpu_description gpu;
        struct gpu_share share = {.ordinal = devices->gpus[r],
                                  .sharer_count = engine_devices_sharers(devices, r),
                                  .is_whole = box != NULL};
        if (!is_first_on_its_gpu(devices, r))
            continue;
        TRY(device_cuda_describe(&gpu, &share, err));
        if (box != NULL)
            gpu.part = device_cuda_part(box_device(box, r));
        uint64_t bytes = gpu.memory_bytes / (uint64_t)share.sharer_count;
        out->memory_bytes = bytes < out->memory_bytes ? bytes : out->memory_bytes;
        list_add(&list, &gpu);
        if (r == 0)
            first_take(out, &gpu);
    }
    list_end(&list);
    return STATUS_OK;
}

enum status profile_identity_of(struct profile_identity *out, const struct engine_devices *devices,
                                int thread_count, struct error *err)
{
    profile_identity_here(out, "", devices->rank_count, thread_count);
    out->devices = *devices;
    return devices->cuda ? gpus_find(out, devices, NULL, err) : cpu_kernels(out->kernels, err);
}

enum status profile_identity_opened(char gpus[PROFILE_GPUS_BYTES],
                                    const struct profile_identity *identity, const struct box *box,
                                    struct error *err)
{
    struct profile_identity opened = {.gpus = ""};
    if (identity->devices.cuda)
        TRY(gpus_find(&opened, &identity->devices, box, err));
    memcpy(gpus, opened.gpus, sizeof opened.gpus);
    return STATUS_OK;
}

/* ---- Where it lies --------------------------------------------------------------------------- */

static void machine_append(struct text *out, const struct profile_identity *here)
{
    char devices[ENGINE_DEVICES_BYTES];
    text_append_format(out, "%s, %d cores, %d threads", here->processor, here->cores,
                       here->threads);
    if (!here->devices.cuda)
        return;
    engine_devices_format(devices, &here->devices);
    text_append_format(out, ", %s, %s", devices, here->gpus);
}

enum status profile_path_in_cache(char **out, const struct profile_identity *here,
                                  struct error *err)
{
    struct text path = {0}, machine = {0};
    machine_append(&machine, here);
    enum status status = text_check(&machine, "the name of a profile", err);
    if (status == STATUS_OK)
        status = cache_folder_append(&path, "the profile", err);
    if (status == STATUS_OK) {
        text_append_format(&path, "/profile-%s%d-%016" PRIx64 ".json",
                           here->devices.cuda ? "cuda" : "cpu", here->devices.rank_count,
                           (uint64_t)XXH3_64bits(machine.bytes, machine.length));
        status = text_check(&path, "the path of a profile", err);
    }
    text_deinit(&machine);
    if (status == STATUS_OK)
        *out = path.bytes;
    else
        text_deinit(&path);
    return status;
}

/* ---- Whether it is the same ------------------------------------------------------------------ */

static bool names_differ(const char *what, const char *file, const char *here, struct error *err)
{
    if (strcmp(file, here) == 0)
        return false;
    error_set(err, STATUS_UNSUPPORTED, "it was measured with the %s \"%s\", here it is \"%s\"",
              what, file, here);
    return true;
}

static bool counts_differ(const char *what, int file, int here, struct error *err)
{
    if (file == here)
        return false;
    error_set(err, STATUS_UNSUPPORTED, "it was measured with %d %s, here there are %d", file, what,
              here);
    return true;
}

/* The CPU's ranks are told by their number, GPUs by which they are. */
static bool devices_differ(const struct engine_devices *file, const struct engine_devices *here,
                           struct error *err)
{
    char of_file[ENGINE_DEVICES_BYTES], of_here[ENGINE_DEVICES_BYTES];
    if (!file->cuda && !here->cuda)
        return counts_differ("ranks", file->rank_count, here->rank_count, err);
    engine_devices_format(of_file, file);
    engine_devices_format(of_here, here);
    return names_differ("devices", of_file, of_here, err);
}

enum profile_fit profile_identity_fit(const struct profile_identity *file,
                                      const struct profile_identity *here, struct error *difference)
{
    if (names_differ("processor", file->processor, here->processor, difference) ||
        counts_differ("cores", file->cores, here->cores, difference) ||
        devices_differ(&file->devices, &here->devices, difference) ||
        names_differ("GPUs", file->gpus, here->gpus, difference) ||
        counts_differ("threads", file->threads, here->threads, difference))
        return PROFILE_FOREIGN;
    if (names_differ("kernels", file->kernels, here->kernels, difference) ||
        names_differ("CUDA", file->cuda, here->cuda, difference) ||
        names_differ("version of phasor", file->version, here->version, difference))
        return PROFILE_STALE;
    return PROFILE_FITS;
}
