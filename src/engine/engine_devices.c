/* What --devices means. */
#include "engine/engine_devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPU_MAX     999
#define MB_MIN      10 /* slower ones would look as if they hung */
#define MB_MAX      999999
#define MB_OF_GB    1000
#define BYTES_OF_MB 1e6

/* A number from `least` to `most`, behind which *text then stands; false: there is none. */
static bool number_take(int *out, const char **text, int least, int most)
{
    size_t digits = strspn(*text, "0123456789");
    if (digits < 1 || digits > 6 || ((*text)[0] == '0' && digits > 1))
        return false;
    *out = atoi(*text);
    *text += digits;
    return *out >= least && *out <= most;
}

static bool has_gpu(const struct engine_devices *devices, int gpu)
{
    for (int r = 0; r < devices->rank_count; r++) {
        if (devices->gpus[r] == gpu)
            return true;
    }
    return false;
}

static bool ranks_add(struct engine_devices *out, int gpu, int count)
{
    if (has_gpu(out, gpu) || count > COMM_RANKS_MAX - out->rank_count)
        return false;
    for (int i = 0; i < count; i++)
        out->gpus[out->rank_count++] = gpu;
    return true;
}

/* "0", "0-3" or "0x4"; *text then stands behind it. */
static bool gpus_take(struct engine_devices *out, const char **text)
{
    int first, last, count = 1;
    if (!number_take(&first, text, 0, GPU_MAX))
        return false;
    last = first;
    if (**text == '-') {
        (*text)++;
        if (!number_take(&last, text, first, GPU_MAX))
            return false;
    } else if (**text == 'x') {
        (*text)++;
        if (!number_take(&count, text, 1, COMM_RANKS_MAX))
            return false;
    }
    for (int gpu = first; gpu <= last; gpu++) {
        if (!ranks_add(out, gpu, count))
            return false;
    }
    return true;
}

/* What stands behind the '@': "22GB/s", "800MB/s". */
static bool rate_parse(struct engine_devices *out, const char *text)
{
    int number;
    if (!number_take(&number, &text, 1, MB_MAX))
        return false;
    out->link_mb = strcmp(text, "GB/s") == 0 ? (int64_t)number * MB_OF_GB : number;
    return (strcmp(text, "GB/s") == 0 || strcmp(text, "MB/s") == 0) && out->link_mb >= MB_MIN &&
           out->link_mb <= MB_MAX;
}

/* What stands behind "cuda:". */
static bool gpus_parse(struct engine_devices *out, const char *text)
{
    *out = (struct engine_devices){.cuda = true};
    while (gpus_take(out, &text)) {
        if (*text == '\0')
            return true;
        if (*text == '@')
            return rate_parse(out, text + 1);
        if (*text++ != ',')
            return false;
    }
    return false;
}

static bool cpus_parse(struct engine_devices *out, const char *text)
{
    *out = (struct engine_devices){0};
    return number_take(&out->rank_count, &text, 1, COMM_RANKS_MAX) && *text == '\0';
}

enum status engine_devices_parse(struct engine_devices *out, const char *devices, struct error *err)
{
    *out = (struct engine_devices){.rank_count = 1};
    if (devices == NULL || strcmp(devices, "cpu") == 0)
        return STATUS_OK;
    if (strncmp(devices, "cpu:", 4) == 0 && cpus_parse(out, devices + 4))
        return STATUS_OK;
    if (strncmp(devices, "cuda:", 5) == 0 && gpus_parse(out, devices + 5))
        return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--devices: expected cpu, cpu:N with N from 1 to %d, or GPUs such as cuda:0, "
                     "cuda:0-3, cuda:0,2 or cuda:0x4 (four ranks on cuda:0), each once, of at most "
                     "%d ranks, perhaps with a rate of their links (cuda:0x4@22GB/s), found "
                     "\"%s\"",
                     COMM_RANKS_MAX, COMM_RANKS_MAX, devices);
}

/* ---- As text --------------------------------------------------------------------------------- */

/* How many ranks from `first` on are the same GPU. */
static int sharers_from(const struct engine_devices *devices, int first)
{
    int count = 1;
    while (first + count < devices->rank_count &&
           devices->gpus[first + count] == devices->gpus[first])
        count++;
    return count;
}

/* How many from `first` on are GPUs that follow each other, one rank on each. */
static int neighbours_from(const struct engine_devices *devices, int first)
{
    int count = 0;
    while (first + count < devices->rank_count && sharers_from(devices, first + count) == 1 &&
           devices->gpus[first + count] == devices->gpus[first] + count)
        count++;
    return count;
}

static int part_format(char *out, size_t capacity, const struct engine_devices *devices, int first)
{
    int sharers = sharers_from(devices, first), neighbours = neighbours_from(devices, first);
    int gpu = devices->gpus[first];
    if (sharers > 1) {
        snprintf(out, capacity, "%dx%d", gpu, sharers);
        return sharers;
    }
    if (neighbours > 1)
        snprintf(out, capacity, "%d-%d", gpu, gpu + neighbours - 1);
    else
        snprintf(out, capacity, "%d", gpu);
    return neighbours;
}

void engine_devices_format(char out[ENGINE_DEVICES_BYTES], const struct engine_devices *devices)
{
    size_t length = 0;
    if (!devices->cuda) {
        snprintf(out, ENGINE_DEVICES_BYTES, "cpu:%d", devices->rank_count);
        return;
    }
    snprintf(out, ENGINE_DEVICES_BYTES, "cuda:");
    for (int first = 0; first < devices->rank_count;) {
        length = strlen(out);
        if (first > 0)
            out[length++] = ',';
        first += part_format(out + length, ENGINE_DEVICES_BYTES - length, devices, first);
    }
    length = strlen(out);
    bool is_gb = devices->link_mb % MB_OF_GB == 0;
    if (devices->link_mb > 0)
        snprintf(out + length, ENGINE_DEVICES_BYTES - length, "@%lld%s",
                 (long long)(is_gb ? devices->link_mb / MB_OF_GB : devices->link_mb),
                 is_gb ? "GB/s" : "MB/s");
}

int engine_devices_sharers(const struct engine_devices *devices, int rank)
{
    int count = 0;
    for (int r = 0; devices->cuda && r < devices->rank_count; r++)
        count += devices->gpus[r] == devices->gpus[rank];
    return devices->cuda ? count : 1;
}

struct comm_links engine_devices_links(const struct engine_devices *devices)
{
    return (struct comm_links){.bytes_per_second = (double)devices->link_mb * BYTES_OF_MB};
}

int engine_devices_gpu_count(const struct engine_devices *devices)
{
    int count = 0;
    for (int r = 0; devices->cuda && r < devices->rank_count; r++) {
        bool is_new = true;
        for (int before = 0; before < r; before++)
            is_new &= devices->gpus[before] != devices->gpus[r];
        count += is_new;
    }
    return count;
}
